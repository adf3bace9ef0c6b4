"""Formulas of Kusner et al. (2015) against another way to write them, and the numbers that they come to."""

from decimal import Context, Decimal

import pytest

from blindopt.gp import acquisition
from curator_service.tuning.methods import constants

E = Context(prec=40)
PI = Decimal("3.14159265358979323846264338327950288419716939937510")
N, T, APART, DELTA, SIGMA = 100, 200, 0.01, 0.05, 0.1


def ln(value) -> Decimal:
    return E.ln(E.create_decimal(value))


def exactly(value) -> Decimal:
    return Decimal(repr(value))


def test_beta_is_as_printed():
    """2 log(|Lambda| t^2 pi^2 / (3 delta))."""
    exact = 2 * ln(N * T**2 * PI**2 / (3 * exactly(DELTA)))
    assert constants.beta(N, T, DELTA) == pytest.approx(float(exact), rel=1e-14)


def test_beta_is_that_of_srinivas_at_its_share_of_delta():
    assert constants.beta(N, T, DELTA) == pytest.approx(acquisition.beta(N, T, DELTA / 2), rel=1e-14)
    assert constants.beta(N, T, DELTA, "corrected") == pytest.approx(acquisition.beta(N, T, DELTA / 4), rel=1e-14)


def test_c_is_as_printed_in_both_forms():
    """2 sqrt((1 - k1) log(3 n / delta)) = sigma_1 sqrt(2 log(3 n / delta)), sigma_1 = sqrt(2 (1 - k1))."""
    exact = E.sqrt(2 * exactly(APART)) * E.sqrt(2 * ln(3 * N / exactly(DELTA)))
    assert constants.c(N, APART, DELTA) == pytest.approx(float(exact), rel=1e-14)
    exact = 2 * E.sqrt(exactly(APART) * ln(2 * N / exactly(DELTA)))
    assert constants.c2(N, APART, DELTA) == pytest.approx(float(exact), rel=1e-14)


def test_q_is_as_printed_and_as_corrected():
    """sigma sqrt(8 log(3 / delta)); for 2 T draws instead of one, sigma sqrt(8 log(6 T / delta))."""
    assert constants.q(SIGMA, T, DELTA) == pytest.approx(
        float(exactly(SIGMA) * E.sqrt(8 * ln(3 / exactly(DELTA)))), rel=1e-14
    )
    corrected = float(exactly(SIGMA) * E.sqrt(8 * ln(6 * T / exactly(DELTA))))
    assert constants.q(SIGMA, T, DELTA, "corrected") == pytest.approx(corrected, rel=1e-14)
    assert constants.q(SIGMA, T, DELTA, "corrected", "corrected") == pytest.approx(
        float(exactly(SIGMA) * E.sqrt(8 * ln(8 * T / exactly(DELTA)))), rel=1e-14
    )


def test_the_rate_of_regret_is_as_printed():
    """sqrt(C1 T beta_T gamma_T) / T with C1 = 8 / log(1 + sigma^-2)."""
    c1 = 8 / ln(1 + 1 / exactly(SIGMA) ** 2)
    omega = E.sqrt(c1 * T * exactly(31.5) * exactly(26.4))
    assert constants.regret_rate(SIGMA, T, 31.5, 26.4) == pytest.approx(float(omega / T), rel=1e-13)


def test_sensitivities_of_the_paper_are_where_they_were_measured():
    """D_l lies between 12 and 17 for such grids and horizons."""
    for n, evaluations, apart in ((100, 50, 0.0001), (100, 200, 0.01), (100, 500, 0.1)):
        assert 11.5 < constants.index_sensitivity(n, evaluations, apart, DELTA) < 17
    tight = constants.tight_index_sensitivity(N, APART, DELTA)
    assert tight == pytest.approx(
        2 * float(E.sqrt(2 * ln(3 * N / exactly(DELTA)))) + constants.c(N, APART, DELTA), rel=1e-14
    )
    assert 0.2 < 1 - tight / constants.index_sensitivity(N, T, APART, DELTA) < 0.4
    width = 2 * constants.clip_bound(N, DELTA)
    assert width == pytest.approx(float(2 * E.sqrt(2 * ln(2 * N / exactly(DELTA)))), rel=1e-14)
    assert width < tight


def test_the_rate_of_algorithm_2_is_as_printed():
    """A exp(-T tau / (log T)^(d/4)) + c."""
    exact = exactly(3.0) * E.exp(-40 * exactly(0.07) / E.power(ln(40), exactly(0.5)))
    assert constants.last_sensitivity(3.0, 0.07, 40, 2, 0.25) == pytest.approx(float(exact) + 0.25, rel=1e-14)


def test_theorem_7_is_as_printed_and_as_corrected():
    """(l' - l) L / (l' l) + min(g* / m, L / (m l)), and with 2 L in the second term."""
    printed = 8 * 0.5 / 20 + 0.5 / (50 * 2)
    assert constants.lipschitz_sensitivity(0.5, 50, 1.0, (2.0, 10.0), "paper") == pytest.approx(printed, rel=1e-14)
    corrected = 8 * 0.5 / 20 + 2 * 0.5 / (50 * 2)
    assert constants.lipschitz_sensitivity(0.5, 50, 1.0, (2.0, 10.0)) == pytest.approx(corrected, rel=1e-14)
    assert constants.lipschitz_sensitivity(0.5, 50, 0.01, (2.0, 2.0)) == pytest.approx(0.01 / 50, rel=1e-14)
