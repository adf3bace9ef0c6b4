"""Measurements of a column and from outside, by play or as means, of one record or of several people."""

import itertools
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from blindopt.errors import NumericalFailure
from blindopt.wire import NoisePassport, RowPlays, StudyCreate
from curator_service.privacy.answers import (
    Measured,
    added_variance,
    is_exact,
    measure,
    mechanism_for,
    mechanism_of,
    passport_of,
    release,
    releases_mean,
)
from curator_service.privacy.guarantees import guarantee
from curator_service.privacy.noise import bounded, laplace, lattice
from tests.builders import BY_HAND, COLUMN, a_study
from tests.curator_service.replaced_noise import replace_answer_release, replace_measurement_noise
from tests.scale import scaled

EXACT = wire.NoAnswerNoise(mechanism="none")
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="2", value_bound=1.0, plays="mean")


def study(answers, variance=0.0):
    system = wire.WebhookMeasurement(direction="maximize", lower=-10.0, upper=10.0, unit="kg", noise_variance=variance)
    return a_study(answers=answers, measurement=system)


@pytest.mark.parametrize("answers", [EXACT, LAPLACE], ids=["exact", "private"])
@pytest.mark.parametrize(("variance", "is_known"), [(0.0, False), (1e-9, True), (0.75, True)])
def test_the_noise_of_a_system_is_known_only_if_its_owner_declared_some(answers, variance, is_known):
    passport = passport_of(study(answers, variance), plays=1)
    assert (passport.measurement_variance, passport.measurement_variance_known) == (variance, is_known)


def test_an_item_without_a_measurement_has_no_answer_and_the_others_keep_theirs():
    answers = release(
        [Measured(4, [], []), Measured(7, [2, 3], [1.5, -2.5]), Measured(1, [], [])], study(EXACT, variance=0.5)
    )
    assert [(a.row, a.play, a.plays, a.y) for a in answers] == [(7, 2, 1, 1.5), (7, 3, 1, -2.5)]
    assert {a.passport.measurement_variance for a in answers} == {0.5}
    assert release([Measured(4, [], [])], study(LAPLACE)) == []


def test_a_mechanism_that_returns_too_few_numbers_releases_nothing(monkeypatch):
    replace_answer_release(monkeypatch, lambda mechanism, offsets: offsets[:-1])
    with pytest.raises(ValueError, match="shorter"):
        release([Measured(1, [1], [0.5]), Measured(2, [1], [0.5])], study(LAPLACE))


def test_the_curator_adds_no_measurement_noise_to_what_a_system_measured():
    assert added_variance(study(EXACT)) == added_variance(study(EXACT, variance=0.5)) == 0.0
    assert is_exact(study(EXACT, variance=0.5))
    assert not is_exact(study(LAPLACE))


MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests


def study_of_column(noise_variance: float) -> StudyCreate:
    return a_study(variance=noise_variance)


def test_every_play_gives_one_answer_in_the_order_asked():
    request = [RowPlays(row=7, plays=2), RowPlays(row=0), RowPlays(row=7, plays=1), RowPlays(row=3, plays=3)]
    answers = measure(np.array([1.5, -2.0, 1.5, 9.0]), request, study_of_column(0.0))
    released = [(a.row, a.play, a.y) for a in answers]
    assert released == [
        *((7, 1, 1.5), (7, 2, 1.5), (0, 1, -2.0), (7, 1, 1.5)),
        *((3, 1, 9.0), (3, 2, 9.0), (3, 3, 9.0)),
    ]


def test_without_noise_an_answer_is_exact_and_nothing_is_drawn(monkeypatch):
    replace_measurement_noise(monkeypatch, lambda values, sd: pytest.fail("noise was drawn"))
    outcomes = np.array([0.1, 1e300, -1e-300, 5e-324])
    answers = measure(outcomes, [RowPlays(row=i) for i in range(4)], study_of_column(0.0))
    assert [a.y for a in answers] == outcomes.tolist()
    assert {a.passport for a in answers} == {NoisePassport(measurement_variance=0.0)}


@pytest.fixture(scope="module")
def noisy() -> np.ndarray:
    """50 rows, 1,000 plays each, less their outcome; declared variance 0.04."""
    outcomes = np.linspace(-100, 100, 50)
    answers = measure(outcomes, [RowPlays(row=i, plays=1_000) for i in range(50)], study_of_column(0.04))
    assert {a.passport for a in answers} == {NoisePassport(measurement_variance=0.04)}
    assert [a.play for a in answers[:1_000]] == list(range(1, 1_001))
    return np.array([a.y for a in answers]).reshape(50, 1_000) - outcomes[:, None]


def test_the_noise_has_the_declared_variance(noisy):
    """The variance is 0.04, so the scale is 0.2; the scale 0.04, or one an eighth off, fails."""
    flat = noisy.ravel()
    assert stats.kstest(flat, stats.norm(scale=0.2).cdf).pvalue > MISTAKEN
    for wrong in (0.04, 0.175, 0.23):
        assert stats.kstest(flat, stats.norm(scale=wrong).cdf).pvalue < MISTAKEN


def test_every_play_of_a_row_has_noise_of_its_own(noisy):
    assert len(np.unique(np.round(noisy, 9))) > 0.999 * noisy.size
    assert stats.pearsonr(noisy[:, :-1].ravel(), noisy[:, 1:].ravel()).pvalue > MISTAKEN
    assert stats.pearsonr(noisy[:-1].ravel(), noisy[1:].ravel()).pvalue > MISTAKEN
    spread = noisy.mean(axis=1).std()
    assert spread < 2 * 0.2 / math.sqrt(1_000)  # one draw shared by a row's plays would leave 0.2


def test_repeating_a_request_draws_anew():
    """A retry must not come here: the stored answer is what it gets."""
    request = [RowPlays(row=0, plays=100)]
    first, second = (measure(np.array([1.0]), request, study_of_column(1.0)) for _ in range(2))
    assert all(a.y != b.y for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_outcome_that_is_no_number_is_never_answered(bad):
    with pytest.raises((NumericalFailure, ValueError)):
        measure(np.array([bad]), [RowPlays(row=0)], study_of_column(1.0))
    with pytest.raises((NumericalFailure, ValueError)):
        measure(np.array([bad]), [RowPlays(row=0)], study_of_column(0.0))


KINDS = {"laplace": wire.LaplaceAnswers, "one_bit": wire.OneBitAnswers, "piecewise": wire.PiecewiseAnswers}


def study_of_means(kind="laplace", plays="mean", variance=0.0, centre=0.0, epsilon="1"):
    parameters = {"epsilon": epsilon, "value_bound": 1.0, "centre": centre, "plays": plays}
    return a_study(answers=KINDS[kind](mechanism=kind, **parameters), variance=variance)


@pytest.fixture
def offsets_seen(monkeypatch):
    """What reaches the mechanism, which then adds nothing."""
    offsets = []
    replace_answer_release(
        monkeypatch, lambda mechanism, values: (offsets.append(values.copy()), mechanism.centre + values)[1]
    )
    return offsets


@pytest.mark.parametrize("kind", KINDS)
def test_each_item_of_a_query_gets_one_answer_that_says_how_many_it_is_the_mean_of(kind):
    request = [wire.RowPlays(row=5, plays=3), wire.RowPlays(row=2), wire.RowPlays(row=5, plays=2)]
    spec = study_of_means(kind, variance=0.6)
    assert releases_mean(spec)
    means = measure(np.zeros(3), request, spec)
    assert [(a.row, a.play, a.plays) for a in means] == [(5, 1, 3), (2, 1, 1), (5, 1, 2)]
    assert [a.passport.measurement_variance for a in means] == pytest.approx([0.2, 0.6, 0.3])
    assert [a.passport for a in means] == [passport_of(spec, n) for n in (3, 1, 2)]
    each = measure(np.zeros(3), request, study_of_means(kind, "each", variance=0.6))
    assert [(a.row, a.play, a.plays) for a in each] == [
        (5, 1, 1),
        (5, 2, 1),
        (5, 3, 1),
        (2, 1, 1),
        (5, 1, 1),
        (5, 2, 1),
    ]
    assert {a.passport.measurement_variance for a in each} == {0.6}


def test_what_is_released_is_the_mean_of_an_item_s_own_measurements(offsets_seen):
    request = [wire.RowPlays(row=0, plays=2), wire.RowPlays(row=1, plays=1), wire.RowPlays(row=0, plays=4)]
    assert [a.y for a in measure(np.array([10.5, 9.25, 10.5]), request, study_of_means(centre=10.0))] == [
        10.5,
        9.25,
        10.5,
    ]
    (offsets,) = offsets_seen
    assert offsets.tolist() == [0.5, -0.75, 0.5]


def test_each_measurement_is_clipped_before_the_mean_is_taken(offsets_seen):
    """One measurement gone astray moves a mean of four by a quarter of the clip's width at most."""
    (answer,) = release([Measured(0, [1, 2, 3, 4], [0.2, 0.2, 0.2, 1e6])], study_of_means(variance=1.0))
    assert answer.y == pytest.approx((3 * 0.2 + 1) / 4)
    assert answer.y < 1.0  # the control: of the unclipped ones the mean lies far beyond the bound


@pytest.mark.parametrize(("value", "offset"), [(-5.0, -1.0), (11.5, 1.0), (9.25, -0.75)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_offset_is_clipped_at_both_ends_before_it_is_randomized(kind, value, offset):
    mechanism = mechanism_of(study_of_means(kind, centre=10.0).answers)
    assert mechanism.clip == (9.0, 11.0)
    assert mechanism.clipped(np.array([value])).tolist() == [offset]


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_a_mean_is_that_of_one_release(kind):
    """40 plays, one draw of privacy noise; the measurement noise shrinks by 40."""
    count, plays = scaled(1_000), 40
    request = [wire.RowPlays(row=0, plays=plays)] * count
    parameters = study_of_means(kind, variance=1e-4, centre=3.0, epsilon="2")
    drawn = np.array([a.y for a in measure(np.full(count, 3.25), request, parameters)])
    size = mechanism_of(parameters.answers).noise.variance
    variance = size - 0.25**2 if kind == "one_bit" else size
    if kind == "piecewise":  # at y = 1/4 instead of 1: Lemma 3 of Wang et al.
        variance -= (1 - 0.25**2) / (math.e - 1)
    assert abs(drawn.mean() - 3.25) < 6 * math.sqrt(variance / count)
    spread = drawn.var() / variance
    if kind == "laplace":
        assert stats.kstest(drawn - 3.25, stats.laplace(scale=1.0).cdf).pvalue > 1e-9
        assert stats.kstest(drawn - 3.25, stats.laplace(scale=0.1).cdf).pvalue < 1e-9  # the control: a mean of draws
    else:  # bounded: the square of a draw is at most 3 (one_bit) or 8 (piecewise) times its mean
        assert abs(spread - 1) < 5 * math.sqrt(7 / count)
    assert spread > 10 / plays  # the control: a mean of draws has 1 / plays


def test_a_measurement_that_is_no_number_is_refused_though_its_mean_would_be_clipped():
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(NumericalFailure, match="not finite"):
            measure(np.array([bad]), [wire.RowPlays(row=0, plays=2)], study_of_means())


def test_answers_without_noise_are_never_means():
    spec = study_of_means().model_copy(update={"answers": wire.NoAnswerNoise(mechanism="none")})
    assert not releases_mean(spec)
    assert len(measure(np.zeros(1), [wire.RowPlays(row=0, plays=3)], spec)) == 3


C = 0.7
EPSILONS = ["0.05", "1", "4.5"]


def study_of_persons(kind, epsilon="1", unit="answer", source="inbox"):
    measurement = BY_HAND if source == "inbox" else COLUMN
    answers = KINDS[kind](mechanism=kind, epsilon=epsilon, value_bound=C, plays="mean")
    return a_study(answers=answers, unit=unit, measurement=measurement)


def exp(epsilon: str, *, up: bool) -> Fraction:
    """e^epsilon to 50 digits, rounded up or down."""
    with localcontext(prec=50, rounding=ROUND_CEILING if up else ROUND_FLOOR) as context:
        value = Decimal(epsilon).exp()
        return Fraction(context.next_plus(value) if up else context.next_minus(value))


def neighbours(k: int):
    """The means, in doubles, of every pair of datasets of k values that differ in one value."""
    grid = (-C, -C / 3, 0.1, C)
    rests = itertools.combinations_with_replacement(grid, k - 1)
    for rest, (old, new) in itertools.product(rests, itertools.permutations(grid, 2)):
        yield math.fsum([*rest, old]) / k, math.fsum([*rest, new]) / k


def up_probability(law: bounded.OneBit, mean: float) -> Fraction:
    """The probability of the upper value: the rounding of the mean to one bit, then randomized response."""
    share = (np.clip(mean, -law.bound, law.bound) / law.bound + 1) / 2
    up, kept = Fraction(int(math.ldexp(share, 53)), 2**53), Fraction(law.prob)
    return up * kept + (1 - up) * (1 - kept)


def worst_bit(law: bounded.OneBit, k: int) -> Fraction:
    """The largest ratio of the probabilities of a released bit."""
    worst = Fraction(0)
    for first, second in neighbours(k):
        p, q = up_probability(law, first), up_probability(law, second)
        worst = max(worst, p / q, (1 - p) / (1 - q))
    return worst


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_one_bit_about_a_mean_is_never_more_than_e_epsilon_times_likelier(k, epsilon):
    law = bounded.one_bit(C, Decimal(epsilon), k)
    worst = worst_bit(law, k)
    most = exp(epsilon, up=False)
    assert 1 + (most - 1) * Fraction(999_999, 1_000_000) < worst <= most
    assert law.prob == bounded.one_bit(C, Decimal(epsilon)).prob if k == 1 else law.prob > 0.5


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_one_bit_for_twice_as_many_people_is_caught(epsilon):
    assert worst_bit(bounded.one_bit(C, Decimal(epsilon), 6), 3) > exp(epsilon, up=True)


def worst_laplace(scale: float, k: int) -> Fraction:
    """The largest loss of the discrete Laplace noise: the distance of two means on its lattice over its scale."""
    step = Fraction(2) ** lattice(scale)
    steps = [abs(round(Fraction(first) / step) - round(Fraction(second) / step)) for first, second in neighbours(k)]
    return max(steps) * step / Fraction(scale)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_laplace_noise_of_a_mean_costs_epsilon_and_for_twice_as_many_people_twice(k, epsilon):
    of = [mechanism_of(study_of_persons("laplace", epsilon).answers, people).noise.scale for people in (k, 2 * k)]
    enough, wrong = (worst_laplace(scale, k) for scale in of)
    assert Fraction(epsilon) * Fraction(999_999, 1_000_000) < enough <= Fraction(epsilon)
    assert wrong > Fraction(epsilon) * Fraction(3, 2)


def test_reach_pays_for_the_rounding_of_means():
    for k in (2, 3, 7, 1_000):
        most = Fraction(2 * C) / k + Fraction(C) / 2**51  # each of two means errs by two roundings
        assert 2 * Fraction(laplace.mean_reach(C, k)) >= most
        assert laplace.mean_reach(C, k) < C / k * (1 + 1e-12)
    assert laplace.mean_reach(C, 1) == C


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("kind", ["laplace", "one_bit"])
def test_passports_have_the_variance_of_that_many_plays_and_so_has_the_noise(kind):
    """Counts in one release are mixed, as where some plays were declined."""
    spec, count = study_of_persons(kind), scaled(4_000)
    items = [Measured(row, list(range(1, k + 1)), [0.0] * k) for row, k in enumerate([1, 4, 16] * count)]
    answers = release(items, spec)
    variances = {}
    for k in (1, 4, 16):
        same = [answer for answer in answers if answer.plays == k]
        assert {answer.passport for answer in same} == {passport_of(spec, k)}
        variances[k] = passport_of(spec, k).privacy.variance
        spread = np.var([answer.y for answer in same]) / variances[k]
        assert abs(spread - 1) < 6 * math.sqrt(5 / count)  # a Laplace variable's square: variance 5 times its mean's
    if kind == "laplace":
        assert variances[4] == pytest.approx(variances[1] / 16, rel=1e-9)
        drawn = np.array([answer.y for answer in answers if answer.plays == 16])
        assert stats.kstest(drawn, stats.laplace(scale=2 * C / 16).cdf).pvalue > 1e-9
        assert stats.kstest(drawn, stats.laplace(scale=2 * C / 32).cdf).pvalue < 1e-9
    else:
        e = 1 + 16 * (math.e - 1)
        assert variances[16] == pytest.approx((C * (e + 1) / (e - 1)) ** 2, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("unit", "source"), [("row", "inbox"), ("row", "column"), ("answer", "column")])
def test_where_one_person_is_behind_all_plays_the_noise_is_for_all_of_them(kind, unit, source):
    spec = study_of_persons(kind, unit=unit, source=source)
    assert mechanism_for(spec, 16).noise == mechanism_for(spec, 1).noise == mechanism_of(spec.answers).noise
    assert "this holds for all of them" in guarantee(spec)


def test_piecewise_answers_keep_the_noise_of_one_value():
    spec = study_of_persons("piecewise")
    assert mechanism_for(spec, 16).noise == mechanism_for(spec, 1).noise
    assert "this holds for each of them" in guarantee(spec)
