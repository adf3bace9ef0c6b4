"""Tight composition against closed forms and integrals of its own, its margins, and where no distribution is asked."""

import math
from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from curator_service.privacy import accounting
from curator_service.privacy.accounting import Pair, distribution_epsilon, renyi_epsilon, tight_epsilon

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
    """Where an order between 1.05 and 60 is the best one; a pure pair costs no more than its sum at any delta."""
    exact = best_epsilon(kind, size, times, delta)
    assert exact * (1 - 1e-9) <= renyi_epsilon([Pair(kind, size, times)], delta) <= exact * (1 + 1e-3)


def test_different_parts_add_their_divergences():
    together = renyi_epsilon([Pair("gaussian", 0.5), Pair("pure", 0.3, 2)], 1e-5)
    assert max(renyi_epsilon([Pair("gaussian", 0.5)], 1e-5), renyi_epsilon([Pair("pure", 0.3, 2)], 1e-5)) < together
    assert together < renyi_epsilon([Pair("gaussian", 0.5)], 1e-5) + 0.6


def test_nearly_nothing_costs_nearly_nothing():
    assert renyi_epsilon([Pair("gaussian", 1e-4)], 0.1) == 0.0


# --- the tight figure ----------------------------------------------------------------------------------


def test_no_release_costs_nothing():
    assert tight_epsilon([], 1e-6) == 0.0


def test_at_a_tiny_delta_pure_parts_cost_their_sum_and_no_more():
    assert tight_epsilon([Pair("pure", 0.5, 3), Pair("laplace", 0.25)], 1e-290) == 1.75


def test_equal_parts_are_counted_together():
    one_by_one = [Pair("pure", 0.5) for _ in range(4)]
    assert tight_epsilon(one_by_one, 1e-5) == tight_epsilon([Pair("pure", 0.5, 4)], 1e-5)
    assert tight_epsilon([*one_by_one, Pair("laplace", 0.5)], 1e-5) > tight_epsilon(one_by_one, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -0.1, math.nan])
def test_a_delta_outside_of_0_to_1_is_refused(delta):
    with pytest.raises(ValueError, match="between 0 and 1"):
        tight_epsilon([Pair("pure", 1.0)], delta)


@pytest.mark.parametrize(("size", "times"), [(0.0, 1), (-1.0, 1), (math.inf, 1), (math.nan, 1), (1.0, 0), (-1.0, 0)])
def test_a_part_without_a_size_or_a_release_is_refused(size, times):
    with pytest.raises(ValueError, match="positive, finite size"):
        Pair("pure", size, times)


# --- privacy loss distributions ---------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "times"), [(0.5, 1), (0.05, 100), (1.0, 9), (3.0, 2)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_gaussian_releases_compose_to_one_with_the_root_of_their_number(size, times, delta):
    shift = size * math.sqrt(times)

    def excess(epsilon):
        a, b = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
        return norm.cdf(a) - math.exp(epsilon + norm.logcdf(b)) - delta

    exact = brentq(excess, 0, shift**2 + 20 * shift, xtol=1e-12)
    figure = distribution_epsilon([Pair("gaussian", size, times)], delta)
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
    figure = distribution_epsilon([Pair("pure", epsilon, times)], delta)
    assert exact * (1 - 1e-9) <= figure <= exact * (1 + 2e-3) + 1e-9


@pytest.mark.parametrize("kind", ["pure", "laplace"])
@pytest.mark.parametrize("size", [1e-6, 1e-5, 0.3])
@pytest.mark.parametrize("delta", [1e-18, 1e-15, 1e-12, 1e-6])
def test_the_figure_of_one_release_has_no_more_than_its_delta(kind, size, delta):
    """Closed forms, to 50 digits. Epsilon of 0.000001 had 18 times the delta of 1e-18, by differences of doubles."""
    with mp.workdps(50):
        exact, epsilon = mpf(size), mpf(tight_epsilon([Pair(kind, size)], delta))
        truth = 1 / (1 + mp.exp(-exact))
        least = truth - mp.exp(epsilon) * (1 - truth) if kind == "pure" else 1 - mp.exp((epsilon - exact) / 2)
        assert least <= delta


def test_one_gaussian_release_is_counted_at_any_delta_and_others_not_at_one_that_errors_of_doubles_reach():
    """100 times the error is the least delta: 1e-15 of one release, 1e-11 of several, more above 10,000 releases."""
    assert math.isfinite(distribution_epsilon([Pair("gaussian", 0.5)], 1e-18))
    assert math.isfinite(distribution_epsilon([Pair("pure", 0.5)], 1.01e-13))
    assert distribution_epsilon([Pair("pure", 0.5)], 0.99e-13) == math.inf
    for pairs in ([Pair("pure", 0.5, 2)], [Pair("pure", 0.5), Pair("laplace", 0.5)]):
        assert distribution_epsilon(pairs, 0.99e-9) == math.inf
        assert math.isfinite(distribution_epsilon(pairs, 1.01e-9))
    many = [Pair("pure", 0.001, 20_000)]
    assert distribution_epsilon(many, 1.9e-9) == math.inf
    assert math.isfinite(distribution_epsilon(many, 2.1e-9))


@pytest.mark.parametrize("size", [301.0, 1e4])
def test_a_loss_beyond_the_range_of_doubles_is_left_to_the_sum(size):
    assert distribution_epsilon([Pair("pure", size)], 1e-6) == math.inf
    assert tight_epsilon([Pair("pure", size)], 1e-6) <= size


def test_a_share_that_rounding_takes_above_one_is_one():
    """Its hockey stick was 1 + 2^-52 there, which the library refuses."""
    assert tight_epsilon([Pair("pure", 100.25)], 1e-6) == pytest.approx(100.25, abs=1e-5)


def test_a_step_that_is_coarser_than_a_part_is_of_no_use():
    assert distribution_epsilon([Pair("pure", 1e-6), Pair("laplace", 200.0)], 1e-6) == math.inf


ORDERS = 1 + np.geomspace(1e-3, 1e7, 1_000)
SAMPLE = np.arange(0, 1_000, 37)


def divergence_on_grid(kind, size, alpha):
    """The Renyi divergence_on_grid of a pair, to 60 digits (Mironov 2017, Table II)."""
    alpha, size = mpf(float(alpha)), mpf(size)
    if kind == "gaussian":
        return alpha * size**2 / 2
    if kind == "laplace":
        moment = alpha / (2 * alpha - 1) * mp.exp((alpha - 1) * size)
        moment += (alpha - 1) / (2 * alpha - 1) * mp.exp(-alpha * size)
    else:
        true = 1 / (1 + mp.exp(-size))
        moment = true**alpha * (1 - true) ** (1 - alpha) + (1 - true) ** alpha * true ** (1 - alpha)
    return mp.log(moment) / (alpha - 1)


@pytest.mark.parametrize("size", [0.000001, 0.001, 0.2, 1.0, 7.0])
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "pure"])
def test_a_divergence_is_the_exact_one_and_its_margin_for_rounding(kind, size):
    """The margin is three times what doubles err by, or more: 1e-12, or 1e-15 for 10 and each log that alpha scales.

    A randomized response of epsilon 1e-6 had no margin for its logarithms, which are of about a half.
    """
    figures = accounting._renyi(Pair(kind, size))
    assert len(figures) == len(ORDERS)
    for alpha, figure in zip(ORDERS[SAMPLE], figures[SAMPLE], strict=True):
        with mp.workdps(60):
            exact = divergence_on_grid(kind, size, alpha)
            above = float(mpf(float(figure)) - exact)
        if kind == "gaussian":
            margin = 1e-12 * float(exact)
        else:
            margin = 1e-15 * (10 + alpha * (size + (kind == "pure"))) / (alpha - 1)
        if kind == "gaussian" or figure != size:
            assert 2 / 3 * margin <= above + 1e-16 * float(exact)
            assert above <= 4 / 3 * margin + 3e-16 * float(exact)
        else:  # it is never more than epsilon
            assert float(exact) <= size <= float(exact) + 4 / 3 * margin


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize(
    "pairs",
    [
        [Pair("gaussian", 0.5, 3)],
        [Pair("gaussian", 30.0)],
        [Pair("laplace", 0.4, 6), Pair("pure", 0.4, 5)],
        [Pair("gaussian", 0.2), Pair("laplace", 0.1, 30)],
        [Pair("pure", 2.0)],
        [Pair("laplace", 0.1)],
    ],
    ids=lambda pairs: " ".join(f"{pair.kind}*{pair.times}" for pair in pairs),
)
def test_the_tight_figure_is_the_least_of_the_sum_and_both_bounds(pairs, delta):
    sum_ = math.fsum(pair.size * pair.times for pair in pairs)
    if any(pair.kind == "gaussian" for pair in pairs):
        sum_ = math.inf
    least = min(sum_, accounting.renyi_epsilon(pairs, delta), accounting.distribution_epsilon(pairs, delta))
    assert accounting.tight_epsilon(pairs, delta) == pytest.approx(least, rel=1e-14)


def test_a_distribution_is_used_from_100_times_its_error_on_and_up_to_losses_of_300():
    few, many = [Pair("pure", 0.5, 2)], [Pair("pure", 0.001, 20_000)]
    assert accounting.distribution_epsilon(few, 0.999e-9) == math.inf
    assert math.isfinite(accounting.distribution_epsilon(few, 1.001e-9))
    assert accounting.distribution_epsilon(many, 1.9999e-9) == math.inf
    assert math.isfinite(accounting.distribution_epsilon(many, 2.0001e-9))
    assert math.isfinite(accounting.distribution_epsilon([Pair("pure", 300.0)], 1e-6))
    assert accounting.distribution_epsilon([Pair("pure", 300.001)], 1e-6) == math.inf


LAWS = {
    "gaussian": lambda size: (size**2 / 2, size),
    "laplace": lambda size: (size * math.tanh(size / 2), size),
    "pure": lambda size: (size * math.tanh(size / 2), size),
}


@pytest.mark.parametrize("times", [1, 4, 900])
@pytest.mark.parametrize("size", [0.05, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("kind", LAWS)
def test_a_distribution_spans_its_mean_and_ten_deviations_on_both_sides_or_all_of_its_losses(kind, size, times):
    """A loss of randomized response is +-size, with the mean size tanh(size / 2); its square's mean is size^2."""
    mean, deviation = LAWS[kind](size)
    width = 2 * times * mean + 2 * 10 * deviation * math.sqrt(times)
    all_losses = math.inf if kind == "gaussian" else 2 * times * size
    assert accounting._span(Pair(kind, size, times)) == pytest.approx(min(width, all_losses), rel=1e-12)


@pytest.mark.parametrize(
    ("pair", "step"),
    [
        (Pair("pure", 0.5), 0.025),
        (Pair("laplace", 4.0, 7), 0.2),
        (Pair("gaussian", 0.5), 0.005),
        (Pair("gaussian", 1.0), 0.01),
        (Pair("gaussian", 3.0, 2), 0.01),
    ],
)
def test_the_step_is_a_twentieth_of_a_loss_or_a_hundredth_of_a_deviation(pair, step):
    assert accounting._step(pair) == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize(
    ("pair", "step", "cut"),
    [
        (Pair("pure", 2.0, 195), 0.1, 0.0),  # 195 * 42 cells are 8,190
        (Pair("pure", 2.0, 196), 0.1, 1e-13),
        (Pair("laplace", 1.0, 256), 1 / 15, 0.0),  # 256 * 32 are 8,192
        (Pair("laplace", 1.0, 257), 1 / 15, 1e-13),
        (Pair("gaussian", 1.0, 2), 0.05, 1e-13),  # its losses have no end
    ],
)
def test_tails_are_cut_off_from_8192_cells_on_and_count_as_an_infinite_loss(pair, step, cut):
    assert accounting._cut(pair, step) == cut


def test_a_distribution_of_many_releases_has_200_000_cells_at_most(monkeypatch):
    """The step grows with the span of all pairs, and is refused where it exceeds a pair."""
    steps = []

    class Recorded:
        def __init__(self, kind, size, step):
            self.kind = kind
            steps.append(step)

        def self_compose(self, times, cut):
            steps.append((times, cut))
            return self

        def compose(self, other):
            steps.append((self.kind, other.kind))
            return self

        def get_epsilon_for_delta(self, delta):
            steps.append(delta)
            return 2.0

    monkeypatch.setattr(accounting, "_single", Recorded)
    pairs = [Pair("pure", 0.5, 90_000), Pair("gaussian", 1.0)]
    span = 2 * 90_000 * 0.5 * math.tanh(0.25) + 20 * 0.5 * 300 + 1 + 20
    assert accounting.distribution_epsilon(pairs, 1e-3) == 2.0 * (1 + 1e-12)
    step = pytest.approx(span / 200_000, rel=1e-12)
    error = 1e-11 * 90_001 / 10_000
    assert steps == [step, (90_000, 1e-13), step, ("pure", "gaussian"), pytest.approx(1e-3 - error, rel=1e-15)]
    steps.clear()
    assert accounting.distribution_epsilon([Pair("gaussian", 1.0)], 1e-3) == 2.0 * (1 + 1e-12)
    assert steps == [0.01, 1e-3 - 1e-12]  # 1e-9 of delta
    steps.clear()
    accounting.distribution_epsilon([Pair("pure", 0.5, 2), Pair("laplace", 0.1)], 1e-3)
    assert steps == [0.005, (2, 0.0), 0.005, ("pure", "laplace"), 1e-3 - 1e-11]


@pytest.mark.parametrize("size", [0.01, 1.0, 20.0, 100.25, 299.0])
@pytest.mark.parametrize("share", [1 / 20, 1 / 7.3])
def test_the_hockey_stick_of_randomized_response_is_exact_on_the_grid(monkeypatch, size, share):
    """P - e^epsilon Q of the two answers, where positive, at the points beside both losses."""
    from dp_accounting.pld import pld_pmf

    seen = []

    def create(step, grid, deltas):
        seen.append((step, grid, deltas))
        return original(step, grid, deltas)

    original = pld_pmf.create_pmf_pessimistic_connect_dots
    monkeypatch.setattr(pld_pmf, "create_pmf_pessimistic_connect_dots", create)
    accounting._randomized_response(size, size * share)
    ((step, grid, deltas),) = seen
    assert step == size * share
    ends = [-size / step, size / step]
    assert list(grid) == sorted({f(end) for end in ends for f in (math.floor, math.ceil)})
    with mp.workdps(60):
        true, lie = 1 / (1 + mp.exp(-mpf(size))), 1 / (1 + mp.exp(mpf(size)))
        for point, delta in zip(grid, deltas, strict=True):
            much = mp.exp(mpf(int(point)) * mpf(step))
            exact = max(true - much * lie, 0) + max(lie - much * true, 0)
            assert abs(float(mpf(float(delta)) - exact)) <= 2.0**-50 * max(1.0, size)
            assert 0 <= delta <= 1
