"""What the posterior does besides choosing: rows supposed and retracted, rows hidden, the best of given rows."""

import numpy as np
import pytest

from blindopt.errors import Invalid
from blindopt.gp.acquisition import UpperConfidenceBound
from blindopt.gp.kernels import Matern52, SquaredExponential
from blindopt.gp.posterior import Posterior
from tests.shared.blindopt.gp.slow_posterior import candidates, dense, outcome_of
from tests.shared.blindopt.gp.test_posterior import first

N, NOISE, MEAN = 300, 1e-2, 0.3
KERNEL = SquaredExponential(0.8, 2.0)


@pytest.fixture
def build(small_blocks):
    """Build a posterior of candidates that are updated in small blocks."""

    def posterior(z, capacity=80, kernel=KERNEL, **more):
        options = {"prior_mean": MEAN, "capacity": capacity, **more}
        return Posterior(z, kernel, noise_variance=NOISE, **options)

    return posterior


def walk(posterior, y, steps, start=7, weight=9.0):
    rows = [start]
    posterior.observe(start, float(y[start]))
    for _ in range(steps):
        row = posterior.argmax(UpperConfidenceBound(weight), first).row
        posterior.observe(row, float(y[row]))
        rows.append(row)
    return rows


@pytest.mark.parametrize("nugget", [0.0, 0.5])
def test_a_supposed_outcome_changes_the_variance_as_any_outcome_would_and_no_mean(build, nugget):
    z = candidates()
    y, posterior = outcome_of(z), build(z, nugget=nugget)
    rows = walk(posterior, y, 10)
    mean = posterior.mean.copy()
    for row in (5, 100, 5):
        posterior.suppose(row, 0.3)
    supposed = [*rows, 5, 100, 5]
    noises = [NOISE] * len(rows) + [0.3] * 3
    _, variance = dense(KERNEL(z, z) + nugget * np.eye(N), supposed, y[supposed], noises, MEAN)  # whatever the outcomes
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-9)
    np.testing.assert_allclose(posterior.variance, variance, atol=1e-9)


def test_after_a_retreat_all_is_as_if_nothing_had_been_supposed(build):
    """To the last bit of each choice, also where all moments were computed meanwhile."""
    z = candidates()
    y, plain, supposing = outcome_of(z), build(z), build(z)
    for posterior in (plain, supposing):
        posterior.observe(7, float(y[7]))
    for step in range(40):
        for number in range(step % 4):
            row = supposing.argmax(UpperConfidenceBound(4.0), first).row
            supposing.suppose(row)
            if number == 2:
                _ = supposing.variance  # brings all candidates up to date with what is only supposed
        supposing.retract(plain.count)
        assert supposing.count == plain.count
        choices = [posterior.argmax(UpperConfidenceBound(9.0), first) for posterior in (plain, supposing)]
        assert choices[0] == choices[1]
        for posterior in (plain, supposing):
            posterior.observe(choices[0].row, float(y[choices[0].row]))
    np.testing.assert_allclose(plain.mean, supposing.mean, atol=1e-10)
    np.testing.assert_allclose(plain.variance, supposing.variance, atol=1e-10)


def test_retracting_to_nothing_gives_the_prior(build):
    z = candidates()
    posterior = build(z)
    walk(posterior, outcome_of(z), 3)
    _ = posterior.mean
    posterior.retract(0)
    np.testing.assert_array_equal(posterior.mean, MEAN)
    np.testing.assert_array_equal(posterior.variance, KERNEL.variance)
    with pytest.raises(Invalid, match="not 1"):
        posterior.retract(1)


def test_a_hidden_row_is_never_chosen_and_the_best_of_the_others_is(build):
    """Each observed row is hidden; the choice has the largest bound of the dense posterior among the others."""
    z = candidates()
    y, posterior = outcome_of(z), build(z, capacity=N)
    rows = [7]
    posterior.observe(7, float(y[7]))
    for step in range(60):
        # With a small weight it would come back to rows that were good.
        choice = posterior.argmax(UpperConfidenceBound(0.5), first, np.unique(rows))
        mean, variance = dense(KERNEL(z, z), rows, y[rows], NOISE, MEAN)
        bound = mean + np.sqrt(0.5 * np.maximum(variance, 0.0))
        bound[rows] = -np.inf
        assert bound[choice.row] == pytest.approx(bound.max(), rel=1e-8, abs=1e-8), step
        assert choice.row not in rows
        rows.append(choice.row)
        posterior.observe(choice.row, float(y[choice.row]))
    free = build(z, capacity=N)
    assert len(set(walk(free, y, 60, weight=0.5))) < 61  # unhidden, it does come back


def test_hidden_rows_are_shown_again_and_a_posterior_with_none_left_refuses(build):
    z = candidates()
    posterior = build(z)
    every_row = np.arange(N)
    bound = UpperConfidenceBound(1.0)
    assert posterior.argmax(bound, first, np.delete(every_row, 3)).row == 3
    posterior.observe(7, 1.0)
    assert posterior.argmax(bound, first, np.delete(every_row, 3)).row == 3
    with pytest.raises(Invalid, match="hidden"):
        posterior.argmax(bound, first, every_row)
    assert posterior.argmax(bound, first).row not in (3, 7)


@pytest.mark.parametrize("weight", [0.0, 4.0])
def test_the_best_of_given_rows_has_the_largest_lower_bound_of_the_dense_posterior(build, weight):
    z, rng = candidates(), np.random.default_rng(4)
    y, posterior = outcome_of(z), build(z)
    rows = walk(posterior, y, 25)
    mean, variance = dense(KERNEL(z, z), rows, y[rows], NOISE, MEAN)
    low = mean - np.sqrt(weight * np.maximum(variance, 0.0))
    for subset in (np.arange(N), np.unique(rows), np.sort(rng.choice(N, 40, replace=False)), np.array([9])):
        row, m, v = posterior.best(subset, weight)
        assert row in subset
        assert low[row] == pytest.approx(low[subset].max(), abs=1e-8)
        assert (m, v) == (pytest.approx(mean[row], abs=1e-8), pytest.approx(variance[row], abs=1e-8))
        moments = posterior.moments(subset)
        np.testing.assert_allclose(moments[0], mean[subset], atol=1e-8)
        np.testing.assert_allclose(moments[1], variance[subset], atol=1e-8)


def test_before_any_outcome_the_best_row_is_the_first(build):
    posterior = build(candidates(), 3, Matern52(1.5, 2.0))
    assert posterior.best(np.arange(4, 40)) == (4, MEAN, 2.0)
