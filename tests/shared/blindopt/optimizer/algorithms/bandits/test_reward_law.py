"""What a learner assumes of a reward is what the curator's mechanisms do."""

import math

import pytest

from blindopt import wire
from blindopt.errors import ProtocolViolated
from blindopt.optimizer.algorithms.bandits.reward_law import RewardLaw
from curator_service.privacy.answers import mechanism_of

KERNEL = wire.Kernel(lengthscale=1.0, signal_variance=4.0, noise_variance=0.25, mean=3.0)
KINDS = {
    "laplace": wire.LaplaceAnswers,
    "one_bit": wire.OneBitAnswers,
    "piecewise": wire.PiecewiseAnswers,
    "auto": wire.AutoAnswers,
}


def answers_of(kind, epsilon):
    return KINDS[kind](mechanism=kind, epsilon=epsilon, value_bound=2.0, noise_bound=0.5, centre=-7.0)


@pytest.mark.parametrize("epsilon", ["0.01", "0.5", "1", "1.28", "1.3", "2", "8", "19"])
@pytest.mark.parametrize("kind", KINDS)
def test_scale_and_variance_are_those_of_the_curators_mechanism(kind, epsilon):
    answers = answers_of(kind, epsilon)
    law, noise = RewardLaw.of(answers, KERNEL), mechanism_of(answers).noise
    assert (law.family, law.bound, law.centre) == (noise.family, noise.bound, -7.0)
    assert (law.scale, law.privacy_variance) == pytest.approx((noise.scale, noise.variance), rel=1e-9)
    law.check(wire.NoisePassport(privacy=noise, measurement_variance=0.0))


@pytest.mark.parametrize("kind", ["laplace", "one_bit"])
def test_a_mean_may_have_less_noise_than_one_reward_and_never_more(kind):
    each = answers_of(kind, "1")
    mean = each.model_copy(update={"plays": "mean"})
    passport = wire.NoisePassport(privacy=mechanism_of(mean, 16).noise, measurement_variance=0.0)
    RewardLaw.of(mean, KERNEL).check(passport)
    with pytest.raises(ProtocolViolated):
        RewardLaw.of(each, KERNEL).check(passport)
    more = passport.privacy.model_copy(update={"scale": 1.001 * mechanism_of(mean).noise.scale})
    with pytest.raises(ProtocolViolated):
        RewardLaw.of(mean, KERNEL).check(passport.model_copy(update={"privacy": more}))


@pytest.mark.parametrize("epsilon", ["0.2", "1.2", "1.4", "5", "20", "20.5", "900"])
def test_auto_is_what_the_curator_takes_it_for(epsilon):
    answers = answers_of("auto", epsilon)
    assert RewardLaw.of(answers, KERNEL).family == wire.concrete_answers(answers).mechanism


@pytest.mark.parametrize("kind", ["one_bit", "piecewise"])
def test_bounded_answers_that_no_curator_gives_are_a_broken_protocol(kind):
    with pytest.raises(ProtocolViolated, match="epsilon"):
        RewardLaw.of(answers_of(kind, "1000"), KERNEL)


def test_moments_are_those_of_the_paper():
    law = RewardLaw.of(answers_of("laplace", "0.5"), KERNEL)
    private = 8 * 2.5**2 / 0.5**2
    assert law.raw_moment == pytest.approx(2.0**2 + 0.5**2 + private)
    assert law.noise_moment == pytest.approx(0.5**2 + private)
    assert law.noise_variance == pytest.approx(private + 0.25 / 3)
    assert (law.scale, law.is_bounded, law.epsilon) == (10.0, False, 0.5)


def test_without_privacy_noise_the_kernel_gives_the_scale():
    law = RewardLaw.of(wire.NoAnswerNoise(mechanism="none"), KERNEL)
    assert (law.family, law.centre, law.value_bound, law.noise_variance) == ("none", 3.0, 2.0, 0.25)
    law.check(wire.NoisePassport(measurement_variance=0.1))


@pytest.mark.parametrize("changed", [{}, {"family": "one_bit", "scale": 10.0}, {"scale": 10.001}, {"scale": None}])
def test_a_passport_of_other_noise_is_a_broken_protocol(changed):
    law = RewardLaw.of(answers_of("laplace", "0.5"), KERNEL)
    privacy = wire.PrivacyNoise(**({"family": "laplace"} | changed if changed else {}))
    with pytest.raises(ProtocolViolated):
        law.check(wire.NoisePassport(privacy=privacy, measurement_variance=0.0))
    law.check(wire.NoisePassport(privacy=wire.PrivacyNoise(family="laplace", scale=10.0), measurement_variance=0))
    assert math.isfinite(law.scale)
