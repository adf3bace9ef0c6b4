"""Traps of OpenDP 0.16.0 against which our guards stand: an upgrade that changes one is noticed here, not in Z.

Where one of these fails, read the new behaviour, then decide whether the guard beside it may go.
"""

import importlib.metadata
import math

import opendp.prelude as dp
import pytest

FINITE = {"T": float, "nan": False}


@pytest.fixture(autouse=True)
def _contrib():
    dp.enable_features("contrib")


def laplace(scale: float):
    return dp.m.make_laplace(dp.atom_domain(**FINITE), dp.absolute_distance(T=float), scale=scale)


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
