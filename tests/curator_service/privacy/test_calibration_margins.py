"""The margins of calibrated noise: what the root finders get, to the last digit that they return."""

import math
from decimal import Decimal

import dp_accounting
import numpy as np
import pytest

from curator_service.privacy.calibration import gaussian_delta, gaussian_sd, projected_gaussian_sd, projection_error
from curator_service.privacy.entropy import CONDITION_MAX

LATTICE = 2.0**-40


@pytest.mark.parametrize(("dimension", "rows"), [(1, 1), (4, 1), (3, 2), (5, 7)])
@pytest.mark.parametrize("per_unit", [0.25, 3.0, 2.0**30])
def test_the_library_is_asked_for_a_little_less_than_is_promised_and_its_answer_grown(
    monkeypatch, dimension, rows, per_unit
):
    """The step of the lattice is 2^-40 of the noise at most, and moves all rows by that times sqrt(rows d), twice."""
    asked_for = []

    def recorded(epsilon, delta):
        asked_for.append((epsilon, delta))
        return per_unit

    monkeypatch.setattr(dp_accounting, "get_sigma_gaussian", recorded)
    sd = gaussian_sd.__wrapped__(Decimal("0.7"), 1e-5, 1.5, dimension, rows)
    assert asked_for == [(0.7 * (1 - 1e-12), 1e-5 * (1 - 1e-6))]
    grown = per_unit * (1 + 1e-9)
    exact = grown * 1.5 * math.sqrt(rows) * (1 + 2 * grown * LATTICE * math.sqrt(rows * dimension))
    assert exact * (1 - 2.0**-51) <= sd <= exact * (1 + 2.0**-49)
    assert rows == 1 or sd > exact  # the root of the number of rows is rounded up


@pytest.mark.parametrize(("d", "r"), [(3, 1), (5, 2), (40, 6), (6, 5)])
@pytest.mark.parametrize(
    ("epsilon", "delta", "sensitivity", "slack"),
    [("0.7", 1e-5, 1.5, 0.0), ("3", 1e-9, 0.5, 0.25), ("0.000001", 1e-9, 1.0, 0.0)],
)
def test_a_projection_s_noise_meets_its_delta_with_every_margin_and_without_waste(
    d, r, epsilon, delta, sensitivity, slack
):
    """By another quadrature: 400 nodes in place of panels. The result is grown by 1e-9, and that is all."""
    x, weights = np.polynomial.legendre.leggauss(400)
    angle = (x + 1) * math.pi / 4  # sqrt(t) = sin(angle), t ~ Beta(r/2, (d - r)/2)
    mass = weights * np.sin(angle) ** (r - 1) * np.cos(angle) ** (d - r - 1)
    mass /= mass.sum()
    moved = sensitivity * math.sqrt(d / r) * (np.sin(angle) + projection_error(d, r)) + slack

    def delta_at(sd):
        return float(mass @ gaussian_delta(float(epsilon), moved / sd + LATTICE * math.sqrt(r)))

    sd = projected_gaussian_sd(Decimal(epsilon), delta, sensitivity, d, r, slack)
    assert delta_at(sd / (1 + 1e-9)) == pytest.approx(delta * (1 - 1e-6), rel=3e-9)
    assert delta_at(sd) < delta * (1 - 1e-6)


@pytest.mark.parametrize(("d", "r"), [(2, 1), (40, 6), (500, 20)])
def test_the_error_of_a_projection_is_that_of_its_draw_and_its_factorization(d, r):
    """Twice the largest condition number times sqrt(r) (d r + 8) units of 2^-53."""
    assert projection_error(d, r) == pytest.approx(2 * CONDITION_MAX * math.sqrt(r) * (d * r + 8) / 2**53, rel=1e-14)
