"""The covariance, against its formula and the laws of a covariance."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gamma, kv

from blindopt.errors import Invalid
from blindopt.gp.kernels import KERNELS as KINDS
from blindopt.gp.kernels import Matern12, Matern32, Matern52, SquaredExponential, kernel_of
from blindopt.wire import Kernel as WireKernel

KERNELS = [kernel(*scales) for kernel in KINDS.values() for scales in ((0.5,), (2.0, 9.0), (30.0, 1e-3))]
ORDERS = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}


def bessel(distance, order, lengthscale, variance):
    """Rasmussen & Williams (2006), eq. 4.14, by scipy's modified Bessel function."""
    u = np.sqrt(2 * order) * distance / lengthscale
    return variance * 2 ** (1 - order) / gamma(order) * u**order * kv(order, u)


@pytest.mark.parametrize("kernel", ORDERS, ids=lambda k: k.__name__)
def test_a_matern_kernel_is_the_bessel_form(kernel):
    """From a ten-thousandth of a lengthscale to forty of them, to 1e-12 of the variance and of the value."""
    distance = np.geomspace(1e-4, 40, 2_000) * 0.7
    got = kernel(0.7, 3.0)(distance[:, None], np.zeros((1, 1)))[:, 0]
    np.testing.assert_allclose(got, bessel(distance, ORDERS[kernel], 0.7, 3.0), rtol=1e-12, atol=0)
    wrong = bessel(distance, ORDERS[kernel] + 1e-6, 0.7, 3.0)  # the oracle tells another order
    assert np.abs(got / wrong - 1).max() > 1e-9


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_correlations_in_single_precision_stay_single(kernel):
    squared = np.linspace(0, 9, 50, dtype=np.float32)[:, None]
    double = squared.astype(float)
    kernel.correlate(squared)
    kernel.correlate(double)
    assert squared.dtype == np.float32
    np.testing.assert_allclose(squared, double, rtol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_every_kernel_reads_turned_rows_as_before(kernel):
    """So a modeler need not know whether Z was rotated; stretching it would change the kernel."""
    rng = np.random.default_rng(8)
    rows, turn = rng.normal(size=(20, 4)), np.linalg.qr(rng.normal(size=(4, 4)))[0]
    np.testing.assert_allclose(kernel(rows @ turn, rows @ turn), kernel(rows, rows), rtol=1e-9, atol=1e-12)
    stretched = rows * [1.5, 1.0, 1.0, 1.0]
    assert not np.allclose(kernel(stretched, stretched), kernel(rows, rows), rtol=1e-9, atol=1e-12)


def test_every_kind_of_the_wire_has_its_kernel():
    kinds = WireKernel.model_json_schema()["properties"]["kind"]["enum"]
    assert list(KINDS) == kinds
    assert {type(kernel_of(kind, 2.0, 3.0)) for kind in kinds} == set(KINDS.values())
    assert kernel_of("matern_52", 2.0, 3.0) == Matern52(2.0, 3.0)


@pytest.mark.parametrize(
    ("a", "b", "lengthscale", "variance", "by_hand"),
    [
        ([0.0], [2.0], 2.0, 1.0, math.exp(-0.5)),
        ([1.0, 2.0], [4.0, 6.0], 5.0, 3.0, 3.0 * math.exp(-0.5)),
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], 1.0, 2.0, 2.0 * math.exp(-1.5)),
        ([7.0], [7.0], 0.1, 4.0, 4.0),
    ],
)
def test_the_kernel_is_the_formula_worked_by_hand(a, b, lengthscale, variance, by_hand):
    got = SquaredExponential(lengthscale, variance)(np.array([a]), np.array([b]))
    assert got.shape == (1, 1)
    assert got[0, 0] == pytest.approx(by_hand, rel=1e-15)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_every_kernel_matrix_is_a_covariance(kernel):
    x = np.random.default_rng(0).normal(size=(40, 4))
    gram = kernel(x, x)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_array_equal(np.diag(gram), kernel.variance)
    assert np.linalg.eigvalsh(gram).min() > -1e-12 * kernel.variance


def test_rows_of_a_stand_against_rows_of_b():
    a, b = np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(4, 2) / 3
    got = SquaredExponential(1.5, 2.0)(a, b)
    expected = [[2.0 * math.exp(-((x - y) ** 2).sum() / (2 * 1.5**2)) for y in b] for x in a]
    np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_rows_far_from_the_origin_keep_their_distance():
    """|a|^2 + |b|^2 - 2ab would lose every digit of it."""
    got = SquaredExponential(1.0)(np.array([[1e8]]), np.array([[1e8 + 1.0]]))
    assert got[0, 0] == pytest.approx(math.exp(-0.5), rel=1e-15)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_kernel_with_a_senseless_parameter_cannot_be_made(bad):
    with pytest.raises(Invalid, match="positive, finite"):
        SquaredExponential(bad)
    with pytest.raises(Invalid, match="positive, finite"):
        SquaredExponential(1.0, bad)


@settings(deadline=None, derandomize=True)
@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_whatever_lengthscale_is_accepted_gives_variance_at_distance_zero(lengthscale):
    """Never NaN, never an arithmetic error: what cannot be computed with is refused when it is built."""
    try:
        kernel = SquaredExponential(lengthscale, 3.0)
    except Invalid:
        return
    got = kernel(np.array([[0.0], [1.0]]), np.array([[0.0]]))[:, 0]
    assert got[0] == 3.0
    assert 0.0 <= got[1] <= 3.0


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_slope_is_the_derivative_in_the_log_lengthscale(kernel):
    """Central differences of the correlation at fixed distances; zero at distance zero."""
    distance = np.concatenate([[0.0], np.geomspace(1e-3, 8, 50)]) * kernel.lengthscale
    step = 1e-5

    def correlations(factor):
        squared = (distance / (kernel.lengthscale * factor)) ** 2
        kernel.correlate(squared)
        return squared

    differences = (correlations(math.exp(step)) - correlations(math.exp(-step))) / (2 * step)
    slopes = kernel.slope((distance / kernel.lengthscale) ** 2)
    np.testing.assert_allclose(slopes, differences, atol=1e-9)
    assert slopes[0] == 0.0
