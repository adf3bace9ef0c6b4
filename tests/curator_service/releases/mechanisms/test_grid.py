"""Every sound release lies on one public grid, turned or not, and its low bits tell nothing of the axes."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from curator_service.privacy import entropy
from curator_service.privacy.noise import lattice
from curator_service.releases.attacks.scene import draw
from curator_service.releases.mechanisms.row_noise import (
    GRID_BITS,
    GaussianMechanism,
    GaussianProjection,
    PlanarLaplaceMechanism,
    PublicGrid,
)
from tests.curator_service.releases.mechanisms.lattice_reduction import axes, degrees_off
from tests.curator_service.replaced_noise import forget_the_grid

MISTAKEN = 1e-9  # a correct release fails a decision less often
RELEASES = {
    "planar_laplace": lambda rotate: PlanarLaplaceMechanism(Decimal(1), 0.7, rotate=rotate),
    "gaussian": lambda rotate: GaussianMechanism(Decimal(1), 1e-5, 0.7, rotate=rotate),
}
ROWS = {2: 40, 3: 60}
"""Rows that the attack takes: sums of fewer, with larger factors, err by more."""
WEIGHT = 2.0**-6
"""Of several, the weight that found the axes best; rows are within 2^-9 of a step of the turned lattice."""


@pytest.fixture
def unrounded(monkeypatch):
    """Releases of version 1: the negative control."""
    forget_the_grid(monkeypatch)


@pytest.fixture(params=ROWS, ids="d={}".format)
def secret(request, monkeypatch) -> np.ndarray:
    """A rotation (d, d) whose axes are 20 degrees and more from those of the release."""
    d = request.param
    turn = np.linalg.qr(np.random.default_rng(d).normal(size=(d, d)))[0]
    assert degrees_off(np.eye(d), turn) > 20
    monkeypatch.setattr(entropy, "orthonormal", lambda rows, columns: turn)
    return turn


def rows_of(m: int, d: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, size=(m, d))


def steps_of(mechanism, m: int, d: int) -> np.ndarray:
    """A release (m, r) in steps of its public grid."""
    sd = mechanism.noise(d).sd or 0.0
    return np.ldexp(draw(mechanism, rows_of(m, d)), -PublicGrid.of(sd).exponent)


def attacked(mechanism, d: int) -> np.ndarray:
    """The axes (d, d) by a lattice reduction of a release, in steps of the lattice that the noise is drawn on."""
    k = mechanism.law(d).k if isinstance(mechanism, PlanarLaplaceMechanism) else lattice(mechanism.sd(d))
    return axes(draw(mechanism, rows_of(ROWS[d], d)), math.ldexp(1.0, k), WEIGHT)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.usefixtures("unrounded")
def test_without_rounding_a_lattice_reduction_finds_the_secret_axes(name, secret):
    drawn = attacked(RELEASES[name](True), len(secret))
    assert degrees_off(drawn, secret) < 1.0
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, atol=0.05)


@pytest.mark.parametrize("name", RELEASES)
def test_with_rounding_it_finds_the_public_grid_and_nothing_else(name, secret):
    drawn = attacked(RELEASES[name](True), len(secret))
    assert degrees_off(drawn, secret) > 20.0
    assert degrees_off(drawn, np.eye(len(secret))) < 1e-6
    assert np.linalg.norm(drawn, axis=1).min() >= 2.0**23


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("name", RELEASES)
def test_every_number_is_on_the_public_grid_and_low_bits_are_uniform(name, rotate):
    """The last four bits of the number of steps, of 20,000 numbers, turned or not."""
    steps = steps_of(RELEASES[name](rotate), 10_000, 2)
    np.testing.assert_array_equal(steps, np.rint(steps))
    counts = np.bincount(np.mod(steps.ravel(), 16).astype(int), minlength=16)
    assert stats.chisquare(counts).pvalue > MISTAKEN


@pytest.mark.parametrize("name", RELEASES)
def test_turned_and_straight_releases_have_low_bits_of_one_law(name):
    straight, turned = (np.mod(steps_of(RELEASES[name](rotate), 10_000, 2).ravel(), 64) for rotate in (False, True))
    assert stats.ks_2samp(straight, turned).pvalue > MISTAKEN


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.usefixtures("unrounded")
def test_without_rounding_the_low_bits_say_whether_z_was_turned(name):
    """The control: straight rows lie on the lattice of the noise, turned ones do not."""
    on_lattice = []
    for rotate in (False, True):
        mechanism = RELEASES[name](rotate)
        k = mechanism.law(2).k if name == "planar_laplace" else lattice(mechanism.sd(2))
        steps = np.ldexp(draw(mechanism, rows_of(100, 2)), -k)
        on_lattice.append(float(np.mean(steps == np.rint(steps))))
    assert on_lattice[0] == 1.0
    assert on_lattice[1] < 0.5


def test_a_projection_is_on_its_grid_too():
    steps = steps_of(GaussianProjection(Decimal(1), 1e-5, 0.7, 4), 500, 13)
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("sd", [1.0, 0.999, 1.5, 2.0**-30, 3e-50, 7e50])
def test_the_step_is_a_power_of_two_of_about_a_65536th_of_the_noise(sd):
    step = Fraction(2) ** PublicGrid.of(sd).exponent
    assert Fraction(sd) / 2 < step * 2**GRID_BITS <= Fraction(sd)


def test_the_nearest_point_is_taken_and_large_numbers_stay():
    grid = PublicGrid(-3)
    block = np.array([[0.06, -0.06, 0.07], [1.0, 2.0**60 + 512.0, -(2.0**51)]])
    np.testing.assert_array_equal(grid.round(block), [[0.0, 0.0, 0.125], [1.0, 2.0**60 + 512.0, -(2.0**51)]])
    assert not np.signbit(grid.round(block)[0, 1])


@pytest.mark.parametrize("sd", [0.0, -1.0, math.nan, math.inf])
def test_without_noise_there_is_no_grid(sd):
    with pytest.raises(ValueError, match="positive"):
        PublicGrid.of(sd)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308])
def test_a_number_that_has_no_finite_number_of_steps_is_refused(bad):
    with pytest.raises(NumericalFailure), np.errstate(over="ignore"):
        PublicGrid(-100).round(np.array([[bad]]))
