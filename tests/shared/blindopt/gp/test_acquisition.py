"""Beta, the bound, and a choice that can be made again."""

import math

import numpy as np
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from blindopt.gp.acquisition import beta, choose_maximum, upper_confidence_bound


@pytest.mark.parametrize(
    ("n", "t", "delta_prime"),
    [(1, 1, 0.4), (10_000, 1, 0.025), (10_000, 50, 0.025), (36_000, 7, 0.05), (2, 100_000, 1e-6)],
)
def test_beta_is_the_papers_formula(n, t, delta_prime):
    """2 ln(n t^2 pi^2 / (6 delta')), as a sum of logarithms."""
    by_hand = 2 * (math.log(n) + 2 * math.log(t) + 2 * math.log(math.pi) - math.log(6) - math.log(delta_prime))
    assert beta(n, t, delta_prime) == pytest.approx(by_hand, rel=1e-13)


def test_beta_at_values_that_need_no_machine():
    unit = math.pi**2 / 6
    assert beta(1, 1, unit / math.e) == pytest.approx(2.0, rel=1e-14)
    assert beta(8, 1, unit) == pytest.approx(6 * math.log(2), rel=1e-14)
    assert beta(1, 8, unit) == pytest.approx(12 * math.log(2), rel=1e-14)


def test_the_bound_is_mean_plus_root_beta_sd():
    bound = upper_confidence_bound(np.array([1.0, -2.0, 0.0]), np.array([4.0, 0.25, 0.0]), 9.0)
    np.testing.assert_allclose(bound, [7.0, -0.5, 0.0], rtol=1e-15)


def test_the_largest_is_chosen_and_returned_with_its_moments():
    mean, variance = np.array([0.0, 5.0, 1.0]), np.array([9.0, 4.0, 0.0])
    chosen = choose_maximum(np.array([3.0, 7.0, 1.0]), mean, variance, np.random.default_rng(0))
    assert (chosen.row, chosen.mean, chosen.sd, chosen.acquisition, chosen.ties) == (1, 5.0, 2.0, 7.0, 1)


def test_a_tie_is_drawn_evenly_by_the_seed_and_recorded():
    """4,000 seeds over four of seven rows: a row left out, or half as often again, fails."""
    acquisition = np.array([2.0, 1.0, 2.0, 2.0, 0.0, 2.0, -1.0])
    ones = np.ones(7)
    choices = [choose_maximum(acquisition, ones, ones, np.random.default_rng([seed, 3])) for seed in range(4_000)]
    assert {c.ties for c in choices} == {4}
    counts = np.bincount([c.row for c in choices], minlength=7)
    assert counts[[1, 4, 6]].sum() == 0
    assert stats.chisquare(counts[[0, 2, 3, 5]]).pvalue > 1e-6
    again = [choose_maximum(acquisition, ones, ones, np.random.default_rng([seed, 3])) for seed in range(50)]
    assert again == choices[:50]


def test_a_row_that_is_better_by_one_bit_is_no_tie():
    acquisition = np.full(5, 1.0)
    acquisition[2] = np.nextafter(1.0, 2.0)
    for seed in range(20):
        chosen = choose_maximum(acquisition, acquisition, acquisition, np.random.default_rng(seed))
        assert (chosen.row, chosen.ties) == (2, 1)


def test_a_bound_that_is_not_a_number_chooses_nothing():
    bound = np.array([1.0, math.nan, 2.0])
    with pytest.raises(NumericalFailure):
        choose_maximum(bound, bound, bound, np.random.default_rng(0))
