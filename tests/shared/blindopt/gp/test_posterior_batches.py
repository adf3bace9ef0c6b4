"""What the posterior does for runs beside choosing: rows supposed and retracted, rows hidden, the best of some rows."""

import numpy as np
import pytest

from blindopt.gp import posterior as posterior_module
from blindopt.gp.kernels import Matern52, SquaredExponential
from blindopt.gp.posterior import Posterior

N, NOISE, MEAN = 300, 1e-2, 0.3
KERNEL = SquaredExponential(0.8, 2.0)


@pytest.fixture(params=["all", "late"], autouse=True)
def path(request, monkeypatch):
    """How candidates are brought up to date."""
    monkeypatch.setattr(posterior_module, "_FEW", {"all": 10**9, "late": 0}[request.param])
    for name, small in (("_FIRST", 16), ("_SCAN", 100), ("_CELLS", 500), ("_LEADERS", 8), ("_SOLVED", 64)):
        monkeypatch.setattr(posterior_module, name, small)


def candidates():
    return np.random.default_rng(0).uniform(0, 4, size=(N, 2))


def outcomes(z):
    return np.sin(2 * z[:, 0]) + np.cos(3 * z[:, 1]) * z[:, 0] / 2


def dense(z, rows, y, noises, kernel=KERNEL, nugget=0.0):
    """Moments at all rows by one solve with the whole covariance matrix."""
    rows = np.asarray(rows, dtype=int)
    k = kernel(z, z) + nugget * np.eye(len(z))
    inverse = np.linalg.inv(k[np.ix_(rows, rows)] + np.diag(np.broadcast_to(noises, len(rows))))
    cross = k[:, rows]
    mean = MEAN + cross @ inverse @ (np.asarray(y) - MEAN)
    return mean, np.diag(k) - np.einsum("ij,jk,ik->i", cross, inverse, cross)


def made(z, capacity=80, **more):
    return Posterior(z, KERNEL, noise_variance=NOISE, prior_mean=MEAN, capacity=capacity, **more)


def first():
    return np.random.default_rng(0)


def walked(posterior, y, steps, start=7, weight=9.0):
    rows = [start]
    posterior.observe(start, float(y[start]))
    for _ in range(steps):
        row = posterior.choose(weight, first).row
        posterior.observe(row, float(y[row]))
        rows.append(row)
    return rows


@pytest.mark.parametrize("nugget", [0.0, 0.5])
def test_a_supposed_outcome_changes_the_variance_as_any_outcome_would_and_no_mean(nugget):
    z = candidates()
    y, posterior = outcomes(z), made(z, nugget=nugget)
    rows = walked(posterior, y, 10)
    mean = posterior.mean.copy()
    for row in (5, 100, 5):
        posterior.suppose(row, 0.3)
    asked = [*rows, 5, 100, 5]
    noises = [NOISE] * len(rows) + [0.3] * 3
    _, variance = dense(z, asked, y[asked], noises, nugget=nugget)  # whatever the outcomes
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-9)
    np.testing.assert_allclose(posterior.variance, variance, atol=1e-9)


def test_who_retracts_goes_on_as_if_nothing_had_been_supposed():
    """To the last bit of each choice, whoever looked at what meanwhile."""
    z = candidates()
    y, plain, other = outcomes(z), made(z), made(z)
    for posterior in (plain, other):
        posterior.observe(7, float(y[7]))
    for step in range(40):
        for number in range(step % 4):
            row = other.choose(4.0, first).row
            other.suppose(row)
            if number == 2:
                _ = other.variance  # brings everybody up to date with what is only supposed
        other.retract(plain.count)
        assert other.count == plain.count
        choices = [posterior.choose(9.0, first) for posterior in (plain, other)]
        assert choices[0] == choices[1]
        for posterior in (plain, other):
            posterior.observe(choices[0].row, float(y[choices[0].row]))
    np.testing.assert_allclose(plain.mean, other.mean, atol=1e-10)
    np.testing.assert_allclose(plain.variance, other.variance, atol=1e-10)


def test_retracting_to_nothing_gives_the_prior():
    z = candidates()
    posterior = made(z)
    walked(posterior, outcomes(z), 3)
    _ = posterior.mean
    posterior.retract(0)
    np.testing.assert_array_equal(posterior.mean, MEAN)
    np.testing.assert_array_equal(posterior.variance, KERNEL.variance)
    with pytest.raises(ValueError, match="not 1"):
        posterior.retract(1)


def test_a_hidden_row_is_never_chosen_and_the_best_of_the_others_is():
    """Each asked row is hidden; the choice has the largest bound of the dense posterior among the others."""
    z = candidates()
    y, posterior = outcomes(z), made(z, capacity=N)
    rows = [7]
    posterior.observe(7, float(y[7]))
    for step in range(60):
        posterior.hide(np.array(rows))
        choice = posterior.choose(0.5, first)  # a small weight: it would come back to rows that were good
        mean, variance = dense(z, rows, y[rows], NOISE)
        bound = mean + np.sqrt(0.5 * np.maximum(variance, 0.0))
        bound[rows] = -np.inf
        assert bound[choice.row] == pytest.approx(bound.max(), rel=1e-8, abs=1e-8), step
        assert choice.row not in rows
        rows.append(choice.row)
        posterior.observe(choice.row, float(y[choice.row]))
    free = made(z, capacity=N)
    assert len(set(walked(free, y, 60, weight=0.5))) < 61  # unhidden, it does come back


def test_hidden_rows_are_shown_again_and_a_posterior_with_none_left_refuses():
    z = candidates()
    posterior = made(z)
    everybody = np.arange(N)
    posterior.hide(np.delete(everybody, 3))
    assert posterior.choose(1.0, first).row == 3
    posterior.observe(7, 1.0)
    assert posterior.choose(1.0, first).row == 3
    posterior.hide(everybody)
    with pytest.raises(IndexError, match="hidden"):
        posterior.choose(1.0, first)
    posterior.hide(everybody[:0])
    assert posterior.choose(1.0, first).row not in (3, 7)


@pytest.mark.parametrize("weight", [0.0, 4.0])
def test_the_best_of_some_rows_has_the_largest_lower_bound_of_the_dense_posterior(weight):
    z, rng = candidates(), np.random.default_rng(4)
    y, posterior = outcomes(z), made(z)
    rows = walked(posterior, y, 25)
    mean, variance = dense(z, rows, y[rows], NOISE)
    low = mean - np.sqrt(weight * np.maximum(variance, 0.0))
    for some in (np.arange(N), np.unique(rows), np.sort(rng.choice(N, 40, replace=False)), np.array([9])):
        row, m, v = posterior.best(some, weight)
        assert row in some
        assert low[row] == pytest.approx(low[some].max(), abs=1e-8)
        assert (m, v) == (pytest.approx(mean[row], abs=1e-8), pytest.approx(variance[row], abs=1e-8))
        told = posterior.moments(some)
        np.testing.assert_allclose(told[0], mean[some], atol=1e-8)
        np.testing.assert_allclose(told[1], variance[some], atol=1e-8)


def test_before_any_outcome_the_best_row_is_the_first():
    posterior = Posterior(candidates(), Matern52(1.5, 2.0), noise_variance=NOISE, prior_mean=MEAN, capacity=3)
    assert posterior.best(np.arange(4, 40)) == (4, MEAN, 2.0)
