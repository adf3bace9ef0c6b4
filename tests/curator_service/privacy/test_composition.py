"""Tight composition against closed forms and integrals of its own, and where a distribution is not asked."""

import math
from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from curator_service.privacy.composition import Part, distribution_epsilon, renyi_epsilon, tight_epsilon

# --- Renyi divergences by integration ----------------------------------------------------------------


def divergence(kind, size, alpha):
    """D_alpha(P || Q) of the dominating pair, by its definition: an integral, or a sum of two terms."""
    if kind == "pure":
        p, q = 1 / (1 + math.exp(-size)), 1 / (1 + math.exp(size))
        return math.log(p**alpha * q ** (1 - alpha) + q**alpha * p ** (1 - alpha)) / (alpha - 1)
    log_density = {
        "gaussian": lambda x, m: -((x - m) ** 2) / 2 - math.log(2 * math.pi) / 2,
        "laplace": lambda x, m: -abs(x - m) - math.log(2),
    }[kind]

    def integrand(x):
        return math.exp(alpha * log_density(x, 0.0) + (1 - alpha) * log_density(x, size))

    peak = (1 - alpha) * size if kind == "gaussian" else 0.0
    ends = [peak - 40, peak, 0.0, size, peak + 40]
    pieces = sorted(set(ends))
    total = sum(quad(integrand, a, b, epsabs=0, epsrel=1e-11)[0] for a, b in pairwise(pieces))
    return math.log(total) / (alpha - 1)


def best_epsilon(kind, size, times, delta):
    """The smallest epsilon by Renyi divergences of any order: Canonne, Kamath & Steinke (2020), Proposition 12."""

    def at(log_order):
        alpha = 1 + math.exp(log_order)
        rest = math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)
        return times * divergence(kind, size, alpha) + rest

    return minimize_scalar(at, bounds=(math.log(0.05), math.log(60)), method="bounded").fun


@pytest.mark.parametrize(
    ("kind", "size", "times", "delta"),
    [
        ("gaussian", 0.5, 1, 1e-3),
        ("gaussian", 1.3, 3, 1e-6),
        *(
            (kind, size, times, delta)
            for kind in ("laplace", "pure")
            for size, times, delta in [(0.2, 40, 1e-5), (0.1, 300, 1e-6), (0.5, 60, 1e-4)]
        ),
    ],
)
def test_a_renyi_figure_is_that_of_the_integrals_and_never_less(kind, size, times, delta):
    """Where an order between 1.05 and 60 is the best one; a pure part costs no more than its sum at any delta."""
    exact = best_epsilon(kind, size, times, delta)
    assert exact * (1 - 1e-9) <= renyi_epsilon([Part(kind, size, times)], delta) <= exact * (1 + 1e-3)


def test_different_parts_add_their_divergences():
    together = renyi_epsilon([Part("gaussian", 0.5), Part("pure", 0.3, 2)], 1e-5)
    assert max(renyi_epsilon([Part("gaussian", 0.5)], 1e-5), renyi_epsilon([Part("pure", 0.3, 2)], 1e-5)) < together
    assert together < renyi_epsilon([Part("gaussian", 0.5)], 1e-5) + 0.6


def test_nearly_nothing_costs_nearly_nothing():
    assert renyi_epsilon([Part("gaussian", 1e-4)], 0.1) == 0.0


# --- the tight figure ----------------------------------------------------------------------------------


def test_no_release_costs_nothing():
    assert tight_epsilon([], 1e-6) == 0.0


def test_at_a_tiny_delta_pure_parts_cost_their_sum_and_no_more():
    assert tight_epsilon([Part("pure", 0.5, 3), Part("laplace", 0.25)], 1e-290) == 1.75


def test_equal_parts_are_counted_together():
    one_by_one = [Part("pure", 0.5) for _ in range(4)]
    assert tight_epsilon(one_by_one, 1e-5) == tight_epsilon([Part("pure", 0.5, 4)], 1e-5)
    assert tight_epsilon([*one_by_one, Part("laplace", 0.5)], 1e-5) > tight_epsilon(one_by_one, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -0.1, math.nan])
def test_a_delta_outside_of_0_to_1_is_refused(delta):
    with pytest.raises(ValueError, match="between 0 and 1"):
        tight_epsilon([Part("pure", 1.0)], delta)


@pytest.mark.parametrize(("size", "times"), [(0.0, 1), (-1.0, 1), (math.inf, 1), (math.nan, 1), (1.0, 0), (-1.0, 0)])
def test_a_part_without_a_size_or_a_release_is_refused(size, times):
    with pytest.raises(ValueError, match="positive, finite size"):
        Part("pure", size, times)


# --- privacy loss distributions ---------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "times"), [(0.5, 1), (0.05, 100), (1.0, 9), (3.0, 2)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_gaussian_releases_compose_to_one_with_the_root_of_their_number(size, times, delta):
    shift = size * math.sqrt(times)

    def excess(epsilon):
        a, b = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
        return norm.cdf(a) - math.exp(epsilon + norm.logcdf(b)) - delta

    exact = brentq(excess, 0, shift**2 + 20 * shift, xtol=1e-12)
    figure = distribution_epsilon([Part("gaussian", size, times)], delta)
    assert exact * (1 - 1e-9) <= figure <= exact * 1.01 + 1e-3


@pytest.mark.parametrize("epsilon", [0.01, 0.7, 5.0])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_randomized_responses_compose_like_coins(epsilon, times):
    """The loss after k answers is (2 heads - k) epsilon: a binomial law, summed exactly."""
    p, delta = 1 / (1 + math.exp(-epsilon)), 1e-4
    heads = np.arange(times + 1)
    truth = np.array([math.comb(times, k) * p**k * (1 - p) ** (times - k) for k in heads])
    lie = truth[::-1]

    def excess(e):
        return np.maximum(truth - math.exp(e) * lie, 0).sum() - delta

    exact = brentq(excess, 0, times * epsilon, xtol=1e-13)
    figure = distribution_epsilon([Part("pure", epsilon, times)], delta)
    assert exact * (1 - 1e-9) <= figure <= exact * (1 + 2e-3) + 1e-9


@pytest.mark.parametrize("kind", ["pure", "laplace"])
@pytest.mark.parametrize("size", [1e-6, 1e-5, 0.3])
@pytest.mark.parametrize("delta", [1e-18, 1e-15, 1e-12, 1e-6])
def test_the_figure_of_one_release_has_no_more_than_its_delta(kind, size, delta):
    """Closed forms, to 50 digits. Epsilon of 0.000001 had 18 times the delta of 1e-18, by differences of doubles."""
    with mp.workdps(50):
        exact, epsilon = mpf(size), mpf(tight_epsilon([Part(kind, size)], delta))
        truth = 1 / (1 + mp.exp(-exact))
        least = truth - mp.exp(epsilon) * (1 - truth) if kind == "pure" else 1 - mp.exp((epsilon - exact) / 2)
        assert least <= delta


def test_one_gaussian_release_is_counted_at_any_delta_and_others_not_at_one_that_errors_of_doubles_reach():
    """100 times the error is the least delta: 1e-15 of one release, 1e-11 of several, more above 10,000 releases."""
    assert math.isfinite(distribution_epsilon([Part("gaussian", 0.5)], 1e-18))
    assert math.isfinite(distribution_epsilon([Part("pure", 0.5)], 1.01e-13))
    assert distribution_epsilon([Part("pure", 0.5)], 0.99e-13) == math.inf
    for parts in ([Part("pure", 0.5, 2)], [Part("pure", 0.5), Part("laplace", 0.5)]):
        assert distribution_epsilon(parts, 0.99e-9) == math.inf
        assert math.isfinite(distribution_epsilon(parts, 1.01e-9))
    many = [Part("pure", 0.001, 20_000)]
    assert distribution_epsilon(many, 1.9e-9) == math.inf
    assert math.isfinite(distribution_epsilon(many, 2.1e-9))


@pytest.mark.parametrize("size", [301.0, 1e4])
def test_a_loss_beyond_the_range_of_doubles_is_left_to_the_sum(size):
    assert distribution_epsilon([Part("pure", size)], 1e-6) == math.inf
    assert tight_epsilon([Part("pure", size)], 1e-6) <= size


def test_a_share_that_rounding_takes_above_one_is_one():
    """Its hockey stick was 1 + 2^-52 there, which the library refuses."""
    assert tight_epsilon([Part("pure", 100.25)], 1e-6) == pytest.approx(100.25, abs=1e-5)


def test_a_step_that_is_coarser_than_a_part_is_of_no_use():
    assert distribution_epsilon([Part("pure", 1e-6), Part("laplace", 200.0)], 1e-6) == math.inf
