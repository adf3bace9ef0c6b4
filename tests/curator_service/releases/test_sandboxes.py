"""Made-up rows: uniform in the declared bounds, with a drawn function of the declared kernel as y."""

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from blindopt.gp.kernels import kernel_of
from curator_service.privacy import entropy
from curator_service.releases.sandboxes import DrawnFunction, draw_blocks

KINDS = ["squared_exponential", "matern_12", "matern_32", "matern_52"]


def study(**changed):
    spec = {
        "name": "s",
        "dataset_id": "ds_1",
        "features": [
            wire.Feature(column="a", lower=-1.0, upper=3.0),
            wire.Feature(column="b", lower=100.0, upper=101.0, scale=2.0),
        ],
        "measurement": wire.ColumnMeasurement(column="y", direction="maximize"),
        "release": wire.IdentityRelease(mechanism="identity"),
        "answers": wire.NONE,
    }
    return wire.StudyCreate(**(spec | changed))


def rows_of(spec, n, **more):
    return np.vstack(list(draw_blocks(spec, n, **more)))


def test_uniform_numbers_follow_the_uniform_law():
    """100,000 draws; a right law fails once in 10^9 times."""
    drawn = entropy.uniform_matrix(50_000, 2)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-9
    assert np.all(drawn * 2**53 == np.floor(drawn * 2**53))
    assert not np.array_equal(drawn, entropy.uniform_matrix(50_000, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_functions_have_the_covariance_of_their_kernel(kind):
    """3,000 functions of 20 waves at five points: each covariance to within six and a half standard errors."""
    kernel = wire.Kernel(kind=kind, lengthscale=0.7, signal_variance=4.0, noise_variance=0.01)
    points = np.array([[0.0, 0.0], [0.1, 0.2], [0.5, -0.5], [1.0, 1.0], [-2.0, 0.3]])
    f = np.array([DrawnFunction.draw(kernel, 2, waves=20)(points) for _ in range(3_000)])
    expected = kernel_of(kind, 0.7, 4.0)(points, points)
    products = f[:, :, None] * f[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(f))
    assert np.all(np.abs(products.mean(axis=0) - expected) < 6.5 * error)


def test_features_are_uniform_in_their_bounds_and_y_follows_them():
    rows = rows_of(study(), 3_000, block_rows=1_000)
    assert rows.shape == (3_000, 3)
    assert stats.kstest((rows[:, 0] + 1) / 4, "uniform").pvalue > 1e-9
    assert stats.kstest(rows[:, 1] - 100, "uniform").pvalue > 1e-9
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.12
    # y is a smooth function: the nearest row has nearly the same y.
    x = np.column_stack([rows[:, 0] / 4, rows[:, 1] / 2])
    near = np.argsort(np.linalg.norm(x[:200, None] - x[None, :], axis=2), axis=1)[:, 1]
    assert np.median(np.abs(rows[:200, 2] - rows[near, 2])) < 0.2 * rows[:, 2].std()


def test_y_lies_within_the_declared_bounds():
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=5.0, centre=40.0, noise_bound=1.0)
    private = rows_of(study(answers=answers), 2_000)[:, 2]
    assert private.min() >= 35
    assert private.max() <= 45
    people = wire.WebhookMeasurement(source="webhook", direction="maximize", lower=10.0, upper=12.0)
    measured = rows_of(study(measurement=people), 2_000)[:, 2]
    assert measured.min() >= 10
    assert measured.max() <= 12
    kernel = wire.Kernel(lengthscale=0.1, signal_variance=1e-4, noise_variance=0.01, mean=7.0)
    assert rows_of(study(kernel=kernel), 500)[:, 2] == pytest.approx(np.full(500, 7.0), abs=0.1)
