"""How much noise a promise needs: the printed table, and the curve of Balle and Wang written out."""

import math
from decimal import Decimal

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from curator_service.privacy.calibration import gaussian_sd
from curator_service.privacy.noise import LATTICE_BITS, lattice


def delta_of(epsilon: float, sensitivity: float, sd: float) -> float:
    """Balle & Wang (2018), Theorem 8: the least delta of Gaussian noise ``sd`` at ``epsilon``."""
    half, slope = sensitivity / (2 * sd), epsilon * sd / sensitivity
    return stats.norm.cdf(half - slope) - math.exp(epsilon + stats.norm.logcdf(-half - slope))


@pytest.mark.parametrize(
    ("epsilon", "printed"), [("0.5", 7.032), ("1", 3.731), ("3", 1.391), ("5", 0.892), ("10", 0.500)]
)
def test_the_noise_is_that_of_the_table(epsilon, printed):
    """privacy.md section 4, row (ii): delta = 1e-5, Delta = 1."""
    assert round(gaussian_sd(Decimal(epsilon), 1e-5, 1.0, 3), 3) == printed


def test_the_noise_at_epsilon_1_is_3_7306():
    assert round(gaussian_sd(Decimal(1), 1e-5, 1.0, 1), 4) == 3.7306


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.floats(0.01, 12), st.floats(1e-9, 0.1), st.floats(1e-3, 1e3), st.integers(1, 1_000))
def test_the_noise_suffices_and_hardly_exceeds_what_is_needed(epsilon, delta, sensitivity, dimension):
    exact = Decimal(epsilon)
    sd = gaussian_sd(exact, delta, sensitivity, dimension)
    assert delta_of(epsilon, sensitivity, sd) <= delta
    assert delta_of(epsilon, sensitivity, sd * (1 - 1e-5)) > delta


@pytest.mark.parametrize("factor", [1e-3, 0.5, 2.0, 1e4])
def test_the_noise_grows_with_delta(factor):
    """Noise is in scaled units: Delta times as much protects a change Delta times as large."""
    one, scaled = (gaussian_sd(Decimal("0.7"), 1e-6, s, 4) for s in (1.0, factor))
    assert scaled == pytest.approx(factor * one, rel=1e-12)


def delta_of_the_draw(epsilon: mpmath.mpf, sd: float, dimension: int) -> mpmath.mpf:
    """A delta that the lattice draw has for Delta = 1, proved from that of the continuous noise.

    Rounding the rows to the lattice g makes the sensitivity 1 + g sqrt(d). A cell's mass under the rounded
    continuous noise is g phi(x) times the mean of exp(-xu/sd^2 - u^2/(2 sd^2)) for u in [-g/2, g/2]: up to
    |x| = z sd it is that of the discrete noise but for a factor exp(z^2 (g/sd)^2 / 24) a coordinate, e^eta a row,
    and beyond lies a mass tau. Going from one law to the other and back costs 2 eta of epsilon, e^eta and
    (1 + e^(epsilon + eta)) tau of delta. (Counting total variation instead, as (1 + e^eps) d 0.0202 (g/sd)^2, would
    do for epsilon below 20 alone.)
    """
    step = mpmath.mpf(2) ** lattice(sd)
    ratio, least = mpmath.mpf(sd) / (1 + step * mpmath.sqrt(dimension)), mpmath.inf
    for z in (6, 8, 10, 12, 20, 60):
        eta = dimension * z**2 * (step / mpmath.mpf(sd)) ** 2 / 24
        tau = 2 * dimension * mpmath.ncdf(-z) * (1 + step)
        e = epsilon - 2 * eta
        curve = mpmath.ncdf(1 / (2 * ratio) - e * ratio) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * ratio) - e * ratio)
        least = min(least, mpmath.exp(eta) * curve + (1 + mpmath.exp(epsilon + eta)) * tau)
    return least


@pytest.mark.parametrize("delta", [1e-18, 1e-10, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", ["0.000000000001", "0.000001", "0.01", "1", "3", "10", "20", "40", "200", "1000"])
def test_the_claim_holds_for_the_noise_that_is_really_drawn(epsilon, delta):
    """To the last digit, over all that the wire takes; where no noise can keep a promise, none is made."""
    for dimension in (1, 10, 1_000):
        try:
            sd = gaussian_sd(Decimal(epsilon), delta, 1.0, dimension)
        except ValueError:
            assert Decimal(epsilon) < Decimal("1e-6"), "an ordinary promise was refused"
            continue
        with mpmath.workdps(60):
            assert delta_of_the_draw(mpmath.mpf(epsilon), sd, dimension) <= mpmath.mpf(delta)


def test_the_rounding_is_inside_the_noise():
    """More coordinates round more: the noise must not shrink with the dimension."""
    sds = [gaussian_sd(Decimal("0.001"), 1e-5, 1.0, d) for d in (1, 100, 10_000, 1_000_000)]
    assert sds == sorted(sds)
    assert sds[-1] / sds[0] < 1 + 1e-5
    assert LATTICE_BITS == 40


@pytest.mark.parametrize(
    ("epsilon", "delta", "sensitivity"),
    [
        *((bad, 1e-5, 1.0) for bad in ("0", "-1", "10000", "Infinity")),
        *(("1", bad, 1.0) for bad in (0.0, -1e-5, 1.0, math.nan, math.inf)),
        *(("1", 1e-5, bad) for bad in (0.0, -1.0, math.nan, math.inf)),
    ],
)
def test_a_promise_without_meaning_has_no_noise(epsilon, delta, sensitivity):
    with pytest.raises(ValueError, match=r"positive|finite|epsilon|delta"):
        gaussian_sd(Decimal(epsilon), delta, sensitivity, 2)


def test_an_epsilon_that_is_no_number_has_no_noise():
    with pytest.raises((ValueError, ArithmeticError)):
        gaussian_sd(Decimal("NaN"), 1e-5, 1.0, 2)


def test_less_epsilon_or_less_delta_is_more_noise():
    by_epsilon = [gaussian_sd(Decimal(e), 1e-5, 1.0, 2) for e in ("0.1", "0.5", "1", "5", "20")]
    by_delta = [gaussian_sd(Decimal(1), d, 1.0, 2) for d in (1e-15, 1e-10, 1e-5, 1e-2)]
    assert np.all(np.diff(by_epsilon) < 0)
    assert np.all(np.diff(by_delta) < 0)
