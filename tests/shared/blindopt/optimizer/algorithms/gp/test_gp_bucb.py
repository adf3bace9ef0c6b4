"""GP-BUCB against the article's own words: a dense posterior conditioned on its own means."""

import numpy as np
import pytest

from blindopt import wire
from blindopt.gp.acquisition import beta
from blindopt.optimizer.algorithms.gp.rules import GpBucb, GpUcb
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from tests.shared.blindopt.gp.slow_posterior import candidates, dense, outcome_of, squared_exponential, squares

KERNEL = wire.Kernel(lengthscale=0.8, signal_variance=2.0, noise_variance=1e-2, mean=0.5)
BATCH = 6


def prior(z):
    return squared_exponential(0.8, 2.0)(squares(z, z))


def make(z, kind=GpBucb, sign=1):
    return kind(z, AlgorithmSettings(KERNEL, sign, seed=3, capacity=100), 0.05)


def batch_of(algorithm, step, size):
    rows = []
    for index in range(size):
        rows.append(algorithm.choose(step + index))
        algorithm.suppose(rows[-1].row)
    algorithm.retract()
    return rows


@pytest.mark.parametrize("sign", [1, -1])
def test_batches_are_those_of_a_dense_posterior_conditioned_on_its_own_means(sign):
    """5 batches of 6: within a batch, a row's outcome is hallucinated as the mean there, and all is solved anew."""
    z = candidates(200)
    y, algorithm = sign * outcome_of(z), make(z, sign=sign)
    rows, outcomes, noises = [9], [float(y[9])], [KERNEL.noise_variance]
    algorithm.observe(9, outcomes[0])
    chosen = []
    for batch in range(5):
        step = 1 + batch * BATCH
        batch_choices = batch_of(algorithm, step, BATCH)
        imagined, heard, spread = list(rows), list(outcomes), list(noises)
        for index, choice in enumerate(batch_choices):
            mu, variance = dense(prior(z), imagined, heard, spread, sign * KERNEL.mean)
            bound = mu + np.sqrt(beta(len(z), step + index, 0.025) * np.maximum(variance, 0.0))
            assert choice.row == int(bound.argmax())
            assert choice.acquisition == pytest.approx(bound.max(), rel=1e-8)
            assert choice.mean == pytest.approx(mu[choice.row], rel=1e-7, abs=1e-8)
            imagined.append(choice.row)
            heard.append(float(mu[choice.row]))
            spread.append(KERNEL.noise_variance)
        for choice in batch_choices:
            rows.append(choice.row)
            outcomes.append(float(y[choice.row]))
            noises.append(KERNEL.noise_variance)
            algorithm.observe(choice.row, outcomes[-1])
        chosen += [choice.row for choice in batch_choices]
    assert len(set(chosen[:BATCH])) == BATCH


def test_with_a_batch_of_a_single_row_it_is_gp_ucb():
    z = candidates(200)
    y, single, batched = outcome_of(z), make(z, GpUcb), make(z)
    for step in range(1, 30):
        (choice,) = batch_of(batched, step, 1)
        assert choice == single.choose(step)
        single.observe(choice.row, float(y[choice.row]))
        batched.observe(choice.row, float(y[choice.row]))


def test_without_supposing_a_batch_is_the_same_row_over_and_over():
    """What the hallucination is for."""
    z = candidates(200)
    algorithm, y = make(z), outcome_of(z)
    for row in range(0, 200, 10):
        algorithm.observe(row, float(y[row]))
    assert len({algorithm.choose(step).row for step in range(1, 1 + BATCH)}) == 1
    assert len({choice.row for choice in batch_of(algorithm, 1, BATCH)}) == BATCH


def test_pending_rows_count_with_the_noise_of_the_last_answer():
    """A loud answer before: a row that is pending is worth little, and is asked again in the same batch."""
    z = candidates(12)
    passport = wire.NoisePassport(measurement_variance=50.0)
    quiet, loud = make(z), make(z)
    quiet.observe(3, 1.0)
    loud.observe(3, 1.0, passport)
    rows = [[choice.row for choice in batch_of(algorithm, 1, 30)] for algorithm in (quiet, loud)]
    imagined, noises = [3], [50.0]
    for index, row in enumerate(rows[1]):
        mu, variance = dense(prior(z), imagined, [1.0] + [0.5] * index, noises, KERNEL.mean)
        mu, _ = dense(prior(z), [3], [1.0], [50.0], KERNEL.mean)
        bound = mu + np.sqrt(beta(12, 1 + index, 0.025) * variance)
        assert bound[row] == pytest.approx(bound.max(), rel=1e-9)
        imagined.append(row)
        noises.append(50.0)
    assert rows[0] != rows[1]
