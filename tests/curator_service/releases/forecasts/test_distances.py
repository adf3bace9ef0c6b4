"""Distances read from Z with its noise law, against an independent simulation."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt.wire import NoiseLaw
from curator_service.releases.forecasts.simulation import draw_pairs, read_distances, relative_errors
from curator_service.releases.mechanisms.row_noise import GaussianMechanism
from tests.curator_service.seeded_noise import seed_gaussian_releases


def test_pairs_are_of_different_rows_and_uniform():
    first, second = draw_pairs(5, 100_000, np.random.default_rng(1))
    assert (first != second).all()
    counts = np.zeros((5, 5))
    np.add.at(counts, (first, second), 1)
    expected = 100_000 / 20
    chi_square = sum((counts[i, j] - expected) ** 2 / expected for i in range(5) for j in range(5) if i != j)
    assert chi_square < 19 + 6 * np.sqrt(2 * 19)


def _reference(x, pairs, sd, rng, *, debias=True):
    """The median error when the difference of two noises is one Gaussian of twice the variance."""
    difference = np.repeat(x[pairs[0]] - x[pairs[1]], 50, axis=0)
    true = np.sqrt((difference**2).sum(axis=1))
    squared = ((difference + rng.normal(0, np.sqrt(2) * sd, difference.shape)) ** 2).sum(axis=1)
    estimated = np.sqrt(np.maximum(squared - 2 * x.shape[1] * sd**2 * debias, 0))
    return float(np.median(np.abs(estimated - true) / true))


@pytest.mark.parametrize("epsilon", ["0.7", "1"])
def test_the_error_of_the_gaussian_mechanism_is_that_of_a_simulation(epsilon, rows_of, monkeypatch):
    """10 releases of 400 rows, 2,000 pairs of each: the median has a standard error of 1.5 % at most.

    Distances that are read as if there were no noise are 16 % off or more.
    """
    seed_gaussian_releases(monkeypatch, 7)
    rows, rng = rows_of(400, d=3), np.random.default_rng(2)
    (_, x), *_ = rows.blocks()
    mechanism = GaussianMechanism(Decimal(epsilon), 1e-5, 1.0)
    law, z, errors, pairs = mechanism.noise(3), np.empty((400, 3)), [], draw_pairs(400, 2_000, rng)
    for _ in range(10):
        mechanism.draw(rows, z)
        errors.append(relative_errors(x, z, law, pairs))
    error = float(np.median(np.concatenate(errors)))
    assert error == pytest.approx(_reference(x, pairs, law.sd, rng), rel=0.08)
    assert error != pytest.approx(_reference(x, pairs, law.sd, rng, debias=False), rel=0.08)


def test_squares_of_distances_are_read_without_bias():
    rng = np.random.default_rng(3)
    x, law = np.array([[0.0, 0.0], [12.0, 16.0]]), NoiseLaw(family="gaussian", sd=2.0)
    z = x + rng.normal(0, 2.0, (20_000, 2, 2))
    squares = np.array([read_distances(pair, law, (np.array([0]), np.array([1])))[0] ** 2 for pair in z])
    assert abs(squares.mean() - 400) < 5 * squares.std() / np.sqrt(20_000)
    assert 10 * squares.std() / np.sqrt(20_000) < 2 * 2 * 2.0**2  # the bias would be seen


def test_no_noise_no_error_and_rows_that_coincide_do_not_count():
    x = np.array([[0.0, 1.0], [0.0, 1.0], [3.0, 5.0]])
    pairs = np.array([0, 0, 1]), np.array([1, 2, 2])
    assert relative_errors(x, x, NoiseLaw(family="none"), pairs).tolist() == [0.0, 0.0]
    assert len(relative_errors(x[:2], x[:2], NoiseLaw(family="none"), (pairs[0][:1], pairs[1][:1]))) == 0


def test_a_square_below_its_noise_is_a_distance_of_zero():
    x = np.array([[0.0], [1.0]])
    pairs = np.array([0]), np.array([1])
    assert relative_errors(x, x, NoiseLaw(family="gaussian", sd=5.0), pairs).tolist() == [1.0]
