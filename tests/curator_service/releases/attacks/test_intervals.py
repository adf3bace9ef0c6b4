"""Intervals against exact tests, and how often they cover what they are for."""

import math

import numpy as np
import pytest
from scipy import stats

from curator_service.releases.attacks.scene import clopper_pearson, epsilon_bound, median_interval
from tests.scale import scaled


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (0, 300), (1, 7), (150, 300), (299, 300), (300, 300)])
@pytest.mark.parametrize("alpha", [0.05, 1e-6])
def test_an_interval_of_a_share_is_that_of_scipy(hits, trials, alpha):
    exact = stats.binomtest(hits, trials).proportion_ci(1 - alpha, "exact")
    assert clopper_pearson(hits, trials, alpha) == pytest.approx((exact.low, exact.high), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("law", [lambda rng, shape: rng.normal(size=shape), lambda rng, shape: rng.poisson(1.0, shape)])
@pytest.mark.parametrize("n", [6, 7, 21, 40])
def test_a_median_lies_in_its_interval_as_often_as_it_says(n, law):
    """At most alpha = 5 % of 2,000 intervals miss, but for one chance in a million; a third narrower ones miss more."""
    rng, runs = np.random.default_rng(n), scaled(2_000)
    median = float(np.median(law(rng, 100_001)))
    intervals = [median_interval(values) for values in law(rng, (runs, n))]
    missed = sum(not low <= median <= high for _, low, high in intervals)
    assert missed <= stats.binom(runs, 0.05).isf(1e-6)
    assert all(low <= middle <= high for middle, low, high in intervals)


def test_a_narrower_interval_of_a_median_would_be_caught():
    """The control: the next order statistics inwards."""
    rng, missed = np.random.default_rng(0), 0
    for values in rng.normal(size=(2_000, 21)):
        ordered = np.sort(values)
        missed += not ordered[7] <= 0 <= ordered[-8]
    assert missed > stats.binom(2_000, 0.05).isf(1e-6)


def test_too_few_values_have_no_interval_of_their_median():
    assert median_interval(np.arange(6.0))[1:] == (0.0, 5.0)
    with pytest.raises(ValueError, match="5 values are too few"):
        median_interval(np.arange(5.0))


def randomized_response(rng, epsilon, runs):
    """Guesses that are right with the largest probability that epsilon allows: (hits, false alarms)."""
    right = 1 / (1 + math.exp(-epsilon))
    return int(rng.binomial(runs, right)), int(rng.binomial(runs, 1 - right))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_epsilon_of_a_record_is_not_above_the_true_one_and_near_it(epsilon):
    """Randomized response spends its epsilon whole: the bound exceeds it in 5 % of records at most."""
    rng, runs = np.random.default_rng(1), 20_000
    bounds = []
    for _ in range(scaled(1_000)):
        hits, alarms = randomized_response(rng, epsilon, runs)
        bounds.append(epsilon_bound(hits, runs, alarms, runs, delta=0.0))
    assert np.sum(np.array(bounds) > epsilon) <= stats.binom(len(bounds), 0.05).isf(1e-6)
    assert np.median(bounds) > 0.9 * epsilon


def test_a_mechanism_that_spends_a_fifth_more_than_it_says_is_caught():
    """The control, at an error rate of one in a million."""
    hits, alarms = randomized_response(np.random.default_rng(2), 1.2, 20_000)
    assert epsilon_bound(hits, 20_000, alarms, 20_000, delta=0.0, alpha=1e-6) > 1.0


@pytest.mark.parametrize(
    ("record", "delta", "expected"),
    [
        (
            (50, 50, 0, 50),
            0.0,
            math.log(5e-7 ** (1 / 50) / (1 - 5e-7 ** (1 / 50))),
        ),  # each share from (alpha / 2)^(1/50) on
        ((0, 50, 50, 50), 0.0, 0.0),  # guesses that are always wrong are turned round by no one here
        ((25, 50, 25, 50), 0.0, 0.0),
        ((50, 50, 0, 50), 0.9, 0.0),  # delta allows it
    ],
)
def test_epsilon_of_a_record_by_hand(record, delta, expected):
    assert epsilon_bound(*record, delta=delta, alpha=1e-6) == pytest.approx(expected, abs=1e-12)


def smallest_allowed_epsilon(record, delta, alpha):
    """By bisection over both conditions of differential privacy, at the ends of scipy's exact intervals."""
    hits, true_trials, alarms, false_trials = record
    p = stats.binomtest(hits, true_trials).proportion_ci(1 - alpha, "exact").low
    q = stats.binomtest(alarms, false_trials).proportion_ci(1 - alpha, "exact").high
    low, high = 0.0, 50.0
    while high - low > 1e-9:
        epsilon = (low + high) / 2
        allowed = p <= math.exp(epsilon) * q + delta and 1 - q <= math.exp(epsilon) * (1 - p) + delta
        low, high = (low, epsilon) if allowed else (epsilon, high)
    return high


@pytest.mark.parametrize(
    ("record", "delta", "rounded"),
    [
        ((1000, 1000, 500, 1000), 0.0, 4.85),  # misses imply it: by the hits alone it would be 0.63
        ((500, 1000, 0, 1000), 0.0, 4.85),  # hits imply it
        ((800, 1000, 300, 1000), 0.1, 0.93),  # without the delta it would be 1.09
        ((700, 1000, 200, 1000), 0.1, 0.93),
    ],
)
def test_the_epsilon_of_a_record_is_the_smallest_that_both_conditions_allow(record, delta, rounded):
    bound = epsilon_bound(*record, delta=delta)
    assert bound == pytest.approx(smallest_allowed_epsilon(record, delta, alpha=0.05), abs=1e-7)
    assert round(bound, 2) == rounded
