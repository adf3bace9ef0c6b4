"""Traps of OpenDP 0.16.0 against which our guards stand: an upgrade that changes one is noticed here, not in Z.

Where one of these fails, read the new behaviour, then decide whether the guard beside it may go.
"""

import importlib.metadata
import math

import numpy as np
import opendp.prelude as dp
import pytest

FINITE = {"T": float, "nan": False}


@pytest.fixture(autouse=True)
def _contrib():
    dp.enable_features("contrib")


def gaussian(sd: float, size: int, **domain):
    atoms = dp.atom_domain(**FINITE, **domain)
    return dp.m.make_gaussian(dp.vector_domain(atoms, size=size), dp.l2_distance(T=float), scale=sd, k=-60)


def laplace(scale: float, **more):
    return dp.m.make_laplace(dp.atom_domain(**FINITE), dp.absolute_distance(T=float), scale=scale, **more)


def noisy_max(scale: float, measure=None):
    scores = dp.vector_domain(dp.atom_domain(**FINITE)), dp.linf_distance(T=float)
    return dp.m.make_noisy_max(*scores, measure or dp.max_divergence(), scale=scale)


def test_the_version_is_the_one_whose_traps_are_known():
    assert importlib.metadata.version("opendp") == "0.16.0"


def test_the_unsafe_part_is_closed():
    with pytest.raises(dp.OpenDPException, match="honest-but-curious"):
        dp.m.make_user_measurement(
            dp.atom_domain(**FINITE), dp.absolute_distance(T=float), dp.max_divergence(), lambda x: x, lambda d: 0.0
        )


def test_nan_is_read_as_zero():
    """Hence check_finite."""
    assert np.abs(gaussian(1e-3, 3)([math.nan] * 3)).max() < 0.1
    assert abs(laplace(1e-3)(math.nan)) < 0.1


def test_infinity_is_read_as_the_largest_double():
    assert gaussian(1e-3, 2)([math.inf, math.inf]) == [np.finfo(float).max] * 2


def test_values_beyond_the_bounds_are_neither_clamped_nor_refused():
    """Hence our own clips."""
    out = gaussian(1e-3, 3, bounds=(-1.0, 1.0))([5.0, 5.0, -5.0])
    np.testing.assert_allclose(out, [5.0, 5.0, -5.0], atol=0.1)


def test_any_sensitivity_is_believed():
    """Even one that the bounds of the domain refute."""
    domain = dp.atom_domain(**FINITE, bounds=(-1.0, 1.0))
    assert dp.m.make_laplace(domain, dp.absolute_distance(T=float), scale=1.0).map(1e-9) < 1e-8


@pytest.mark.parametrize("make", ["make_gaussian", "make_laplace"])
def test_a_scale_of_zero_builds_and_tells_the_value(make):
    """Hence the check of the scale, and of the map at build."""
    distance = dp.l2_distance if make == "make_gaussian" else dp.l1_distance
    domain = dp.vector_domain(dp.atom_domain(**FINITE), size=2)
    exact = getattr(dp.m, make)(domain, distance(T=float), scale=0.0)
    assert exact([1.5, -2.5]) == [1.5, -2.5]
    assert exact.map(1.0) == math.inf


def test_a_scale_of_zero_tells_integers_too():
    exact = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64"), scale=0.0)
    assert exact([7, -9]) == [7, -9]
    assert exact.map(1) == math.inf


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_a_scale_that_is_no_scale_is_refused(bad):
    with pytest.raises(dp.OpenDPException):
        laplace(bad)


def test_integers_stop_at_the_ends_of_their_range():
    """Hence the check in planar: what comes back there is no draw of the law."""
    near = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64"), scale=2.0**70)
    ends = sum(abs(value) >= 2**63 - 1 for value in near([0] * 200))
    assert ends > 150  # 0.8 % lie inside


def test_plus_infinity_wins_a_noisy_maximum_without_a_word_and_nan_raises():
    """Hence scores are checked to be finite."""
    select = noisy_max(1.0)
    assert {select([0.0, math.inf, 1.0]) for _ in range(50)} == {1}
    with pytest.raises(dp.OpenDPException):
        select([0.0, math.nan, 1.0])


@pytest.mark.parametrize(("measure", "cost"), [("max_divergence", 2.0), ("zero_concentrated_divergence", 0.5)])
def test_a_noisy_maximum_costs_what_the_theory_says(measure, cost):
    """Pure: 2 Delta / scale. zCDP: (2 Delta / scale)^2 / 8."""
    assert noisy_max(1.0, getattr(dp, measure)()).map(1.0) == pytest.approx(cost, rel=1e-9)


def test_a_privacy_filter_stays_exhausted_after_one_refusal():
    """Hence a ledger of our own: a later, cheaper request that fits would be refused too."""
    domain, metric = dp.atom_domain(**FINITE), dp.absolute_distance(T=float)
    try:
        filtered = dp.c.make_privacy_filter(
            dp.c.make_fully_adaptive_composition(domain, metric, dp.max_divergence()), d_in=1.0, d_out=1.0
        )
    except (AttributeError, TypeError) as error:
        pytest.fail(f"the filter's interface changed: {error}")
    queryable = filtered(0.0)
    queryable(laplace(2.0))  # 0.5 of 1.0
    with pytest.raises(dp.OpenDPException):
        queryable(laplace(1.0))
    with pytest.raises(dp.OpenDPException):
        queryable(laplace(4.0))  # 0.25, which would fit


@pytest.mark.parametrize("distance", [0.1, 1.0, 7.0])
def test_a_gaussian_costs_what_the_theory_says(distance):
    """rho = (Delta / sd)^2 / 2, a little more for the lattice, never less."""
    rho = gaussian(2.0, 4).map(distance)
    assert (distance / 2.0) ** 2 / 2 <= rho < (distance / 2.0) ** 2 / 2 * (1 + 1e-6)


@pytest.mark.parametrize("k", [-1074, -40, -2])
def test_a_laplace_costs_what_the_theory_says_and_more_on_a_coarser_lattice(k):
    assert 0.5 <= laplace(2.0, k=k).map(1.0) <= (1 + 2.0**k) / 2 * (1 + 1e-9)
