"""Means of several people's measurements: noise for a move of one of them, in exact probabilities."""

import itertools
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from curator_service.privacy.answers import mechanism_of
from curator_service.privacy.guarantees import guarantee
from curator_service.privacy.measurement.privatize import Measured, mechanism_for, passport_of, release
from curator_service.privacy.noise import bounded, laplace, lattice
from tests.builders import BY_HAND, COLUMN, a_study
from tests.scale import scaled

KINDS = {"laplace": wire.LaplaceAnswers, "one_bit": wire.OneBitAnswers, "piecewise": wire.PiecewiseAnswers}
C = 0.7
EPSILONS = ["0.05", "1", "4.5"]


def study(kind, epsilon="1", unit="answer", source="inbox"):
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
    of = [mechanism_of(study("laplace", epsilon).answers, people).noise.scale for people in (k, 2 * k)]
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
    spec, count = study(kind), scaled(4_000)
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
    spec = study(kind, unit=unit, source=source)
    assert mechanism_for(spec, 16).noise == mechanism_for(spec, 1).noise == mechanism_of(spec.answers).noise
    assert "this holds for all of them" in guarantee(spec)


def test_piecewise_answers_keep_the_noise_of_one_value():
    spec = study("piecewise")
    assert mechanism_for(spec, 16).noise == mechanism_for(spec, 1).noise
    assert "this holds for each of them" in guarantee(spec)
