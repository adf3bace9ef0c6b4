"""Goodness of fit of drawn noise: sound laws have p that are uniform, and each planted fault of each law is found."""

from decimal import Decimal

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from curator_service.privacy.answers import AnswerMechanism
from curator_service.privacy.noise import add_integer_laplace
from curator_service.releases.attacks import privacy_audit as fit
from curator_service.releases.mechanisms.registry import planned_mechanism
from curator_service.releases.mechanisms.row_noise import PublicGrid
from tests.builders import BY_HAND, group_release
from tests.curator_service.releases.attacks.test_black_box import ANSWERS, RELEASES, study
from tests.curator_service.replaced_noise import replace_answer_release, replace_integer_laplace
from tests.scale import scaled

DRAWS = 20_000
GROUPS = {
    "numbers": group_release("1", (2, 2)),
    "centres": group_release("1.25", cells=wire.PrivateCells(kind="private", number=2, epsilon="1")),
}
ONE_COLUMN = {"one column": (wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5), 1)}
LAWS = RELEASES | ONE_COLUMN | {name: (release, 2) for name, release in GROUPS.items()}


def of_release(name, draws=DRAWS, broken=None):
    release, d = LAWS[name]
    spec = study(release, d, ANSWERS["laplace"])
    mechanism = planned_mechanism(spec)
    broken_mechanism = mechanism if broken is None else Broken(mechanism, broken)
    return fit.of_release(spec, broken_mechanism, draws, getattr(release, "delta", None) or 0.0)[0]


def of_answers(name, draws=DRAWS, *, means=False):
    release = GROUPS["numbers"] if name == "sums" else RELEASES["gaussian"][0]
    spec = study(release, answers=ANSWERS.get(name, ANSWERS["laplace"]))
    if means:
        spec = spec.model_copy(update={"privacy_unit": "answer", "measurement": BY_HAND})
        spec = spec.model_copy(update={"answers": spec.answers.model_copy(update={"plays": "mean"})})
    return fit.of_answers(spec, draws)[0]


def contradicted(fits):
    """The kinds of statistics that contradict the law: what is behind a colon, if there is one."""
    return {each.statistic.split(": ")[-1].rstrip(" 1234567890") for each in fits if each.contradicts}


class Broken:
    """A mechanism whose noise is ``change`` of that of another: a matrix (n, r), and its standard deviation."""

    def __init__(self, mechanism, change):
        self._mechanism, self._change = mechanism, change

    def __getattr__(self, name):
        return getattr(self._mechanism, name)

    def draw(self, rows, out):
        self._mechanism.draw(rows, out)
        out[:] = self._change(out.copy(), self._mechanism.noise(rows.d).sd)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", LAWS)
def test_p_of_a_sound_release_are_uniform(name):
    """20 audits of 1,000 draws each; at full size 400."""
    p = [each.p for _ in range(scaled(20)) for each in of_release(name, 1_000)]
    assert stats.kstest(p, "uniform").pvalue > fit.P_MIN
    assert min(p) > fit.P_MIN


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("name", "means"), [*((name, False) for name in (*ANSWERS, "sums")), ("laplace", True)])
def test_p_of_sound_answers_are_uniform(name, means):
    p = [each.p for _ in range(scaled(4)) for each in of_answers(name, 1_000, means=means)]
    assert stats.kstest(p, "uniform").pvalue > fit.P_MIN
    assert min(p) > fit.P_MIN


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", ANSWERS)
def test_means_of_several_people_have_the_noise_of_one(name):
    assert contradicted(of_answers(name, 6_000, means=True)) == set()


def least_of_release(name, epsilon, draws):
    """What draws of the noise for an epsilon imply."""
    release, d = LAWS[name]
    spec = study(release.model_copy(update={"epsilon": epsilon}), d, ANSWERS["laplace"])
    return fit.of_release(spec, planned_mechanism(spec), draws, getattr(release, "delta", None) or 0.0)[1]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", LAWS)
def test_draws_of_a_release_imply_no_more_than_its_epsilon(name):
    """The control: noise for epsilon 20 implies more than 1.25; for 200, where a projection hides a part of a move."""
    claimed = LAWS[name][0].epsilon
    least = least_of_release(name, claimed, 8_000)
    assert (0.3 if name in ("planar_laplace", "one feature", "turned", "numbers") else 0) <= least <= float(claimed)
    assert least_of_release(name, "200" if name == "projection" else "20", 2_000) > 1.25


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", [*ANSWERS, "sums"])
def test_draws_of_answers_imply_no_more_than_their_epsilon(name, monkeypatch):
    release = GROUPS["numbers"] if name == "sums" else RELEASES["gaussian"][0]
    right = ANSWERS.get(name, ANSWERS["laplace"])
    assert 0.5 < fit.of_answers(study(release, answers=right), 8_000)[1] <= 1
    dear = right.model_copy(update={"epsilon": "8"})  # the control: what its noise implies
    assert fit.of_answers(study(release, answers=dear), 2_000)[1] > 1


def one_coordinate(z, sd):
    z[:, 0] *= 0.85
    return z


def even(z, sd):
    steps = np.ldexp(z, -PublicGrid.of(sd).exponent)
    return np.ldexp(2 * np.rint(steps / 2), PublicGrid.of(sd).exponent)


def repeated(values, *ignored):
    values[1::2] = values[::2]
    return values


FAULTS = {
    "scale": (lambda z, sd: 0.94 * z, {"scale", "law", "mean"}),
    "centre": (lambda z, sd: z + 0.15 * sd, {"orthants"}),
    "coordinate": (one_coordinate, {"law"}),
    "low bit": (even, {"low bits"}),
    "repeated": (repeated, {"successive draws"}),
    "none": (lambda z, sd: 0 * z, {"law", "scale"}),
}


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
def test_a_fault_of_a_release_is_found(name, fault):
    change, statistics = FAULTS[fault]
    assert contradicted(of_release(name, broken=change)) & statistics


CHANGES = {
    "scale": lambda noise: 0.94 * noise,
    "centre": lambda noise: noise + 0.12 * np.std(noise),
    "repeated": repeated,
    "none": lambda noise: 0 * noise,
}


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("fault", CHANGES)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_fault_of_answers_is_found(name, fault, monkeypatch):
    right = AnswerMechanism.release
    replace_answer_release(
        monkeypatch, lambda self, offsets: self.centre + CHANGES[fault](right(self, offsets) - self.centre)
    )
    assert contradicted(of_answers(name, DRAWS if name == "laplace" else 6_000))


def test_bits_that_are_kept_too_often_and_low_bits_that_are_stuck_are_found(monkeypatch):
    """A bit of epsilon 1.2 in place of 1, and Laplace noise on a lattice that is twice as wide."""
    spec = study(answers=ANSWERS["one_bit"])
    other = spec.answers.model_copy(update={"epsilon": "1.2"})
    y = np.array([answer.y for answer in fit.release([fit.Measured(0, [1], [9.0])] * 8_000, study(answers=other))])
    size = np.abs(y[0]) * np.tanh(0.6) / np.tanh(0.5)  # as if it were right
    with monkeypatch.context() as patch:
        replace_answer_release(patch, lambda self, offsets: np.sign(y) * size)
        assert contradicted(of_answers("one_bit", 8_000))
    right = AnswerMechanism.release

    def on_a_wide_lattice(self, offsets):
        step = 2.0 ** (fit.lattice(4.0) + 1)
        return self.centre + np.rint((right(self, offsets) - self.centre) / step) * step

    replace_answer_release(monkeypatch, on_a_wide_lattice)
    assert contradicted(of_answers("laplace")) == {"low bits"}


INTEGERS = {
    "scale": lambda noise: noise,  # by 7 % more epsilon
    "low bit": lambda noise: noise & ~1,
    "repeated": repeated,
    "none": lambda noise: 0 * noise,
}


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("fault", INTEGERS)
@pytest.mark.parametrize("name", GROUPS)
def test_a_fault_of_integer_noise_is_found(name, fault, monkeypatch):
    def add(values, sensitivity, epsilon):
        drawn = add_integer_laplace(values, sensitivity, epsilon * Decimal("1.07" if fault == "scale" else 1))
        return INTEGERS[fault](np.array(drawn)).tolist()

    replace_integer_laplace(monkeypatch, add)
    assert contradicted(of_release(name))
    if fault != "repeated":  # each answer is drawn by itself
        assert contradicted(of_answers("sums"))
