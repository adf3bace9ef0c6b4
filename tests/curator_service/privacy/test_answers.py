"""Private answers: their law, the clip, an audit of their epsilon, the guards, what is said, and what `auto` takes."""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from blindopt import wire
from blindopt.errors import NumericalFailure
from curator_service.privacy import noise
from curator_service.privacy.answers import faults, is_exact, measure, passport_of
from curator_service.privacy.guarantees import guarantee
from curator_service.privacy.noise import add_laplace, laplace_scale
from tests.builders import IDENTITY, a_study
from tests.curator_service.privacy.epsilon_audit import lower_bound
from tests.curator_service.replaced_noise import forget_the_clip, replace_discrete_laplace
from tests.scale import scaled

MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests
N = scaled(30_000)
C, EPSILON = 1.0, Decimal(1)
ONE_QUERY = wire.PLAYS_MAX


def answers(epsilon="1", value_bound=0.75, noise_bound=0.25):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=value_bound, noise_bound=noise_bound)


def study(said=None, variance=0.0, release=IDENTITY, unit="row", **caps):
    return a_study(release, said or answers(), unit, variance=variance, **caps)


def ask(y, count, spec):
    """``count`` answers about one row whose outcome is ``y``, as the service makes them."""
    plays = [wire.RowPlays(row=0, plays=min(ONE_QUERY, count - done)) for done in range(0, count, ONE_QUERY)]
    return np.array([answer.y for answer in measure(np.full(len(plays), float(y)), plays, spec)])


def fits(sample, scale):
    return stats.kstest(sample, stats.laplace(scale=scale).cdf).pvalue


def has_mean_size(sample, scale):
    """The mean size is the scale, with standard deviation scale / sqrt(N): sharper than Kolmogorov-Smirnov."""
    return 2 * stats.norm.sf(abs(np.abs(sample).mean() / scale - 1) * math.sqrt(len(sample)))


@pytest.fixture(scope="module")
def drawn():
    """N answers about y = 1/3, less y."""
    return add_laplace(np.full(N, 1 / 3), C, EPSILON) - 1 / 3


# --- the law --------------------------------------------------------------------------------------------------


def test_the_noise_is_laplace_of_twice_the_bound_over_epsilon(drawn):
    assert fits(drawn, 2 * C / float(EPSILON)) > MISTAKEN
    assert has_mean_size(drawn, 2 * C / float(EPSILON)) > MISTAKEN
    assert abs(drawn.mean()) < 6 * 2 * math.sqrt(2 / N)


@pytest.mark.parametrize("wrong", [0.8, 1.25])
def test_noise_of_another_width_would_be_caught(drawn, wrong):
    assert fits(wrong * drawn, 2.0) < MISTAKEN


@pytest.mark.parametrize("wrong", [-12, 12])
def test_noise_off_by_twelve_standard_errors_would_be_caught_by_its_mean_size(drawn, wrong):
    """7 % at the default size, 1.5 % at full size."""
    assert has_mean_size((1 + wrong / math.sqrt(N)) * drawn, 2.0) < MISTAKEN


def test_answers_are_independent_and_none_comes_twice(drawn):
    for lag in (1, 2, 50):
        assert stats.pearsonr(np.abs(drawn[:-lag]), np.abs(drawn[lag:])).pvalue > MISTAKEN
    assert len(np.unique(drawn)) >= N - 4  # on the lattice two are equal by chance once in 10^4 times, five never


def test_every_answer_lies_on_the_lattice(drawn):
    steps = np.ldexp(drawn[:5_000] + 1 / 3, -noise.lattice(laplace_scale(C, EPSILON)))
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)  # 1/3 was taken off and put back
    straight = np.ldexp(add_laplace(np.full(2_000, 0.1), C, EPSILON), -noise.lattice(laplace_scale(C, EPSILON)))
    np.testing.assert_array_equal(straight, np.round(straight))


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("y", "centre"), [(1e6, 1.0), (-1e6, -1.0), (1.0 + 1e-9, 1.0), (0.5, 0.5), (1.7e308, 1.0)])
def test_an_outcome_beyond_the_bound_answers_like_the_bound(y, centre):
    """Else an outlier would be seen for what it is, whatever the noise."""
    sample = ask(y, scaled(2_000), study()) - centre
    assert fits(sample, 2.0) > MISTAKEN
    assert fits(sample - 1.0, 2.0) < MISTAKEN  # the control: a centre elsewhere is caught


@pytest.mark.parametrize(("value", "centre"), [(1e6, 1.0), (-1e6, -1.0)])
def test_the_noise_clips_what_its_caller_did_not(value, centre):
    """The second line of defence: called by itself it still protects a value beyond the bound."""
    sample = add_laplace(np.full(scaled(2_000), value), C, EPSILON) - centre
    assert fits(sample, 2.0) > MISTAKEN


def test_what_measurement_noise_adds_is_clipped_too():
    sample = ask(0.0, scaled(2_000), study(variance=1e12))  # far outside the bound, on either side alike
    law = stats.laplace(scale=2.0)
    assert stats.kstest(sample, lambda x: (law.cdf(x - 1) + law.cdf(x + 1)) / 2).pvalue > MISTAKEN


def test_a_clip_that_is_missing_would_be_caught(monkeypatch):
    forget_the_clip(monkeypatch)
    assert abs(ask(1e6, 10, study()).mean()) > 1e5


# --- an audit of epsilon by Clopper and Pearson -------------------------------------------------------------


def audit(spec, draws):
    bound = spec.answers.bound
    return lower_bound(ask(bound, draws, spec), ask(-bound, draws, spec))


def test_an_audit_of_the_answers_does_not_find_more_than_epsilon():
    """From 10,000 draws a side it finds 0.843, with a standard deviation of 0.021."""
    assert 0.7 < audit(study(), scaled(10_000)) <= 1.0


TOO_LITTLE = 0.9 if scaled(1) >= 5 else 0.8


@pytest.mark.parametrize(
    ("factor", "draws", "least"),
    [(0.5, 10_000, 1.5), (TOO_LITTLE, 20_000, 1.0)],
    ids=["B+R written instead of 2(B+R)", "a fifth too little, at full size a tenth"],
)
def test_too_little_noise_is_found_by_the_audit(factor, draws, least, monkeypatch):
    """1.75 and 1.12 are found, with standard deviations of 0.025 and 0.018."""
    rng = np.random.default_rng(7)
    replace_discrete_laplace(
        monkeypatch, noise.laplace, lambda count, scale: np.rint(rng.laplace(scale=factor * scale, size=count))
    )
    assert audit(study(), scaled(draws)) > least


# --- guards ---------------------------------------------------------------------------------------------------


def test_the_scale_is_twice_the_bound_over_epsilon_and_a_little():
    for bound, epsilon in ((1.0, "1"), (0.3, "0.000001"), (1e-50, "1000"), (2e50, "0.1")):
        exact = 2 * bound / float(epsilon)
        assert exact < laplace_scale(bound, Decimal(epsilon)) < exact * (1 + 4e-6)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_would_not_protect_is_refused(bound):
    with pytest.raises(ValueError, match="positive, finite"):
        add_laplace(np.zeros(1), bound, EPSILON)


@pytest.mark.parametrize("epsilon", ["0", "-1", "Infinity"])
def test_an_epsilon_that_means_nothing_is_refused(epsilon):
    with pytest.raises(ValueError, match="positive, finite"):
        add_laplace(np.zeros(1), 1.0, Decimal(epsilon))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_outcome_that_is_no_number_is_refused_before_anything_is_drawn(bad, monkeypatch):
    replace_discrete_laplace(monkeypatch, noise.laplace, lambda count, scale: pytest.fail("noise was drawn"))
    with pytest.raises(NumericalFailure, match="not finite"):
        add_laplace(np.array([0.0, bad]), C, EPSILON)


@pytest.mark.parametrize("wrong", [0.0, 1e-300, 0.5, 0.999, 3.0])
def test_a_scale_that_does_not_cost_epsilon_draws_nothing(wrong, monkeypatch):
    """B+R for 2(B+R), a scale of 0 that tells the value, noise for another epsilon: found when it is built."""
    noise.laplace._law.cache_clear()
    right = laplace_scale(C, EPSILON)
    monkeypatch.setattr(noise.laplace, "laplace_scale", lambda bound, epsilon: wrong * right)
    with pytest.raises((NumericalFailure, ValueError), match=r"nothing was drawn|positive"):
        add_laplace(np.zeros(3), C, EPSILON)
    monkeypatch.undo()
    noise.laplace._law.cache_clear()
    assert add_laplace(np.zeros(3), C, EPSILON).shape == (3,)


BOUNDS = st.floats(1e-50, 1e50)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    epsilon=st.from_regex(r"\A[0-9]{1,3}(\.[0-9]{1,12})?\Z").filter(lambda e: 1e-6 <= Decimal(e) <= 1000),
    value_bound=BOUNDS,
    noise_bound=st.just(0.0) | BOUNDS,
    variance=st.just(0.0) | st.floats(0, 1e50, exclude_min=True),
    y=st.floats(allow_nan=False, allow_infinity=False),
)
def test_whatever_a_draft_may_say_an_answer_can_be_drawn_and_described(epsilon, value_bound, noise_bound, variance, y):
    """What fails here would fail after the charge."""
    spec = study(answers(epsilon, value_bound, noise_bound), variance)
    (answer,) = measure(np.array([y]), [wire.RowPlays(row=0)], spec)
    assert math.isfinite(answer.y)
    assert wire.Answer.model_validate_json(answer.model_dump_json()) == answer


# --- what is said ---------------------------------------------------------------------------------------------


def test_the_passport_says_what_was_done():
    spec = study(answers("0.25", 3.0, 1.0), variance=0.5)
    scale = laplace_scale(4.0, Decimal("0.25"))
    privacy = wire.PrivacyNoise(family="laplace", scale=scale, bound=4.0, variance=2 * scale**2)
    passport = wire.NoisePassport(privacy=privacy, clip=(-4.0, 4.0), measurement_variance=0.5)
    assert passport_of(spec) == passport
    made = measure(np.zeros(2), [wire.RowPlays(row=5, plays=2), wire.RowPlays(row=1)], spec)
    assert [(a.row, a.play, a.passport) for a in made] == [(5, 1, passport), (5, 2, passport), (1, 1, passport)]
    assert len({a.y for a in made}) == 3
    bare = study(wire.NoAnswerNoise(mechanism="none"), variance=0.5)
    assert passport_of(bare) == wire.NoisePassport(measurement_variance=0.5)


def test_an_answer_is_exact_only_where_nothing_is_drawn():
    none = wire.NoAnswerNoise(mechanism="none")
    assert [is_exact(study(said, variance)) for said in (none, answers()) for variance in (0.0, 1e-300)] == [
        True, False, False, False,
    ]  # fmt: skip


RELEASES = {
    "None: the candidates are the records": wire.IdentityRelease(mechanism="identity"),
    "(0.5, 1e-05)-differential privacy": wire.GaussianRelease(mechanism="gaussian", epsilon="0.5", delta=1e-5),
    "As published, and refuted: no differential": wire.PoGpUcbRelease(
        mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True
    ),
}
GUARANTEE_OF_ONE_ANSWER = "Each answer is 0.2-differentially private"


@pytest.mark.parametrize("beginning", RELEASES)
@pytest.mark.parametrize(
    ("said", "unit", "cap", "end"),
    [
        (wire.NoAnswerNoise(mechanism="none"), "row", None, "without privacy noise. The number of records is public."),
        (answers("0.2"), "row", None, "add up{}: the study sets no cap on the sum."),
        (answers("0.2"), "row", "1.5", "add up{} to {} at most."),
        (answers("0.2"), "answer", "1.5", "Each answer is counted as another person's."),
    ],
)
def test_the_guarantee_says_what_holds_for_release_and_answers(beginning, said, unit, cap, end):
    text = guarantee(study(said, release=RELEASES[beginning], unit=unit, epsilon_per_row=cap))
    assert text.startswith(beginning)
    sound = "differential privacy of each record" in text  # with no other release do they add up to anything
    most = "(1.5, 1e-05)" if "1e-05" in beginning else "1.5"
    assert text.endswith(end.format(", with the release" + "," * (" to " in end) if sound else "", most))
    assert (GUARANTEE_OF_ONE_ANSWER in text) == (said.mechanism == "laplace")
    assert len(text) <= 4_000


BOUNDED = {"one_bit": wire.OneBitAnswers, "piecewise": wire.PiecewiseAnswers}


@pytest.mark.parametrize("bound", [1e-6, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("epsilon", "mechanism"), [("1", "one_bit"), ("1.5", "piecewise"), ("15", "piecewise")])
def test_auto_takes_the_same_mechanism_for_any_bound(bound, epsilon, mechanism):
    auto = wire.AutoAnswers(mechanism="auto", epsilon=epsilon, value_bound=bound)
    assert wire.concrete_answers(auto).mechanism == mechanism


@pytest.mark.parametrize("mechanism", BOUNDED)
def test_bounded_answers_take_an_epsilon_of_20_at_most(mechanism):
    assert faults(BOUNDED[mechanism](mechanism=mechanism, epsilon="20", value_bound=1.0)) == []
    assert faults(BOUNDED[mechanism](mechanism=mechanism, epsilon="20.000000000001", value_bound=1.0)) == [
        {
            "field": "answers.epsilon",
            "message": f"{mechanism} answers take an epsilon of 20 at most: choose laplace or auto",
        }
    ]
    assert faults(wire.LaplaceAnswers(mechanism="laplace", epsilon="1000", value_bound=1.0)) == []
