"""The slope of planar Laplace noise that a delta buys: a table, the delta computed another way, and drawn noise."""

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from scipy import integrate, special

from blindopt.wire import Feature
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.calibration import delta_of, planar_slope, slope_of_row
from curator_service.privacy.noise import PlanarLaplaceLaw
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism
from tests.scale import scaled

STRONG = Decimal(1)
TABLE = {2: 1.001, 3: 1.005, 5: 1.030, 8: 1.095, 10: 1.146, 13: 1.224, 20: 1.403, 50: 2.021}
"""Computed by another program, epsilon = 1, delta = 1e-5, to three decimals."""


def exact_delta(slope: float, epsilon: float, d: int) -> float:
    """P(L > epsilon) - e^epsilon P(L < -epsilon): the hockey stick, whose second term is the event under the neighbour.

    L > epsilon where |u - v| - |u| > s = epsilon / slope: one sheet of a hyperboloid, c < (1 - s^2) / (2 r) - s.
    """
    s, half = epsilon / slope, (d - 1) / 2

    def below(c: float) -> float:
        return float(special.betainc(half, half, np.clip((1 + c) / 2, 0, 1)))

    def weight(r: float) -> float:
        t = slope * r
        return slope * math.exp((d - 1) * math.log(t) - t - math.lgamma(d)) if t > 0 else float(d == 1) * slope

    def integrand(r: float) -> float:
        apart = (1 - s**2) / (2 * r)
        return weight(r) * (below(apart - s) - math.exp(epsilon) * below(-apart - s))

    ends = [0.0, (1 - s) / 2, (1 + s) / 2, d / slope, (d + 10 * math.sqrt(d) + 40) / slope]
    parts = zip(sorted(ends), sorted(ends)[1:], strict=False)
    return sum(integrate.quad(integrand, a, b, epsabs=1e-14, epsrel=1e-11, limit=400)[0] for a, b in parts)


@pytest.mark.parametrize("d", TABLE)
def test_the_slopes_are_those_of_the_table(d):
    slope = float(planar_slope(STRONG, 1e-5, d))
    assert 0.995 * TABLE[d] < slope < TABLE[d] + 6e-4


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("d", [2, 3, 5, 8, 13, 20])
@pytest.mark.parametrize(("epsilon", "delta"), [("1", 1e-5), ("0.1", 1e-6), ("3", 1e-3), ("0.5", 0.1)])
def test_the_delta_of_a_slope_is_what_was_granted_and_hardly_less(epsilon, delta, d):
    """By the hockey stick in closed form and one quadrature. 5 % more slope is too much, at every d."""
    slope = float(planar_slope(Decimal(epsilon), delta, d))
    assert 0.95 * delta < exact_delta(slope, float(epsilon), d) <= delta
    assert exact_delta(1.05 * slope, float(epsilon), d) > 1.05 * delta


@pytest.mark.parametrize("delta", [1e-18, 1e-3])
@pytest.mark.parametrize("d", [2, 5, 20])
def test_the_bound_is_above_the_exact_delta_everywhere(d, delta):
    for slope in (1.01, 1.3, 2.0, 5.0):
        bound, exact = delta_of(slope, 1.0, d, delta), exact_delta(slope, 1.0, d)
        assert bound >= exact * (1 - 1e-7) - 1e-12


def test_in_one_dimension_it_is_the_laplace_mechanism():
    """Whose delta at epsilon is 1 - e^((epsilon - a) / 2)."""
    for delta in (1e-3, 0.1):
        slope = planar_slope(Decimal("0.7"), delta, 1)
        assert float(slope) == pytest.approx(0.7 - 2 * math.log1p(-delta), rel=2e-6)
        assert 1 - math.exp((0.7 - float(slope)) / 2) <= delta


def test_in_one_dimension_a_millionth_of_delta_and_of_the_slope_is_kept_back():
    """At a delta of 0.9 either shows: 2e-6 delta / (1 - delta) and a millionth of 5.6, computed to 1e-7 of 4.6."""
    target, slope = 0.9 * (1 - 1e-6), float(planar_slope(STRONG, 0.9, 1))
    assert slope * (1 + 1e-6) == pytest.approx(1 - 2 * math.log1p(-target), abs=1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 16.0])
def test_rounding_is_paid_for_in_delta(epsilon):
    """Noise of a slope of epsilon itself has a delta of half of what rounding takes: 2^-36 (1 + epsilon / 16)."""
    taken = 2.0**-36 * (1 + epsilon / 16)
    assert delta_of(epsilon, epsilon, 1, 1e-5) == pytest.approx(taken / 2, rel=1e-3, abs=0.0)
    assert delta_of(epsilon, epsilon, 3, 1e-5) > 0
    for d in (1, 3):
        assert delta_of(epsilon / 2, epsilon, d, 1e-5) == 0.0


def test_short_noise_counts_however_rare_it_is():
    """Where nothing else counts: the cell at the centre, with 1e-4 of a delta of 1e-18, at the largest loss."""
    assert delta_of(1.01, 1.0, 50, 1e-18) == pytest.approx(1e-22, rel=1e-6, abs=0.0)


def test_a_delta_that_does_not_pay_for_rounding_buys_nothing():
    """Rounding takes 7.7e-12 of it: a delta of 5e-12 has the slope of epsilon."""
    assert planar_slope(STRONG, 5e-12, 1) == STRONG
    assert planar_slope(STRONG, 1e-5, 1) > STRONG  # the control
    least = Decimal("0.000001")  # the least epsilon for which a delta is used
    assert slope_of_row(4 * least, 0.4, 5, 4) == planar_slope(least, 0.1, 5) > 2 * least


def test_a_larger_move_has_no_smaller_delta():
    """That the longest allowed move is the worst one: a move of t is one of 1 at t times the slope."""
    for d in (2, 8):
        deltas = [exact_delta(2.0 * t, 1.0, d) for t in (0.55, 0.7, 0.85, 1.0)]
        assert deltas == sorted(deltas)


@pytest.mark.parametrize("d", [1, 3, 20])
@pytest.mark.parametrize(("epsilon", "delta"), [("0.000001", 1e-18), ("1000", 1e-18), ("0.000001", 0.1), ("1000", 0.1)])
def test_at_the_ends_of_what_can_be_chosen_the_slope_is_epsilon_at_least(epsilon, delta, d):
    assert planar_slope(Decimal(epsilon), delta, d) >= Decimal(epsilon)


def test_rows_of_a_person_share_epsilon_and_delta():
    assert slope_of_row(STRONG, None, 5, 3) * 3 <= 1
    assert slope_of_row(STRONG, 1e-5, 5, 1) == planar_slope(STRONG, 1e-5, 5)
    assert slope_of_row(STRONG, 1e-5, 5, 4) == planar_slope(Decimal("0.25"), 2.5e-6, 5)
    assert slope_of_row(Decimal("0.000001"), 1e-5, 5, 4) == Decimal("0.00000025")  # too small for a delta: pure
    for out in [(Decimal(0), 1e-5, 2), (STRONG, 0.0, 2), (STRONG, 1.0, 2), (STRONG, 1e-5, 0), (Decimal(1001), 1e-5, 2)]:
        with pytest.raises(ValueError, match="between"):
            planar_slope(*out)


# --- the audit: drawn noise ---------------------------------------------------------------------------


class Steeper(PlanarLaplaceMechanism):
    """The negative control: a slope 5 % above the one that delta buys."""

    __slots__ = ()

    def law(self, d: int) -> PlanarLaplaceLaw:
        law = PlanarLaplaceMechanism.law(self, d)
        return replace(law, scale=law.scale / 1.05)


def estimated_delta(mechanism: PlanarLaplaceMechanism, d: int, draws: int) -> tuple[float, float]:
    """The mean and standard error of (1 - e^(epsilon - L))_+ over releases of one row, L of a neighbour at Delta.

    The slope in L is estimated from the draws themselves, as d over the mean length of the noise, and not computed: the
    error is that of both.
    """
    features = [Feature(column=f"c{j}", lower=-1.0, upper=1.0, scale=1.0) for j in range(d)]
    z = np.empty((draws, d))
    mechanism.draw(ScaledRows(np.zeros((draws, d)), list(range(d)), features, np.arange(draws)), z)
    move = np.full(d, mechanism.sensitivity / math.sqrt(d))
    near, far = np.linalg.norm(z, axis=1), np.linalg.norm(z - move, axis=1)
    slope = d / near.mean()
    kept = np.exp(float(mechanism.epsilon) - slope * (far - near))
    stick = np.maximum(1 - kept, 0)
    by_slope = ((far - near) * kept)[stick > 0].sum() / draws
    error = (stick - by_slope * slope * near / near.mean()).std() / math.sqrt(draws)
    return float(stick.mean()), float(error)


def test_the_drawn_release_has_the_delta_that_is_charged_and_a_slope_five_per_cent_steeper_is_caught():
    """At (1, 0.02), d = 5: 0.0197 and 0.0269; 16,000 draws see 0.02 with an error of 0.0007."""
    parameters, draws = (STRONG, 0.3, 0.0, True, 1, 0.02), scaled(16_000)
    right, error = estimated_delta(PlanarLaplaceMechanism(*parameters), 5, draws)
    assert right - 4.5 * error < 0.02 < right + 5 * error
    wrong, error = estimated_delta(Steeper(*parameters), 5, draws)
    assert wrong - 4.5 * error > 0.02


def test_drawn_by_another_generator_the_delta_is_that_of_the_table():
    """A million seeded draws at (1, 1e-3), d = 10; slope x 1.05 has twice the delta."""
    rng, d, delta = np.random.default_rng(15), 10, 1e-3
    slope, means = float(planar_slope(STRONG, delta, d)), []
    t, c = rng.gamma(d, size=10**6), 2 * rng.beta((d - 1) / 2, (d - 1) / 2, size=10**6) - 1
    for a in (slope, 1.05 * slope):
        loss = a * (np.sqrt((t / a) ** 2 + 1 - 2 * t / a * c) - t / a)
        stick = np.maximum(1 - np.exp(1 - loss), 0)
        means.append((stick.mean(), stick.std() / 1e3))
    assert abs(means[0][0] - delta) < 5 * means[0][1] + 0.02 * delta
    assert means[1][0] - 10 * means[1][1] > delta
