"""Batches over few arms: pending rounds change variances alone, leave no trace, and MoMA asks what single rounds do."""

import math

import numpy as np
import pytest

from blindopt import wire
from blindopt.optimizer.algorithms.bandits.igp_ucb import IgpUcb
from blindopt.optimizer.algorithms.bandits.laplace_adf import LaplaceAdf
from blindopt.optimizer.algorithms.bandits.ldp_moma import LdpMoma, MomaSettings
from blindopt.optimizer.algorithms.bandits.thompson import Thompson
from blindopt.optimizer.chooser import RowChooser
from tests.shared.blindopt.optimizer.algorithms.bandits.synthetic_bandits import Bandit, answers_of
from tests.shared.blindopt.optimizer.small_runs import candidates, spec, study

BANDIT = Bandit.drawn(2, n=25)
PAST = [(3, 2.5), (9, -7.0), (3, 11.0), (24, 0.5)]
PENDING = [5, 5, 20]
LAM = 2.0
MAKERS = {
    "igp_ucb": lambda: IgpUcb(BANDIT.problem(100), lam=LAM, scale=0.3, sub_gaussian=1.5, rkhs_bound=5.0, delta=0.1),
    "laplace_adf": lambda: LaplaceAdf(BANDIT.problem(100), 2.0),
    "thompson": lambda: Thompson(BANDIT.problem(100), 0.5),
    "ldp_moma": lambda: LdpMoma(BANDIT.problem(100), MomaSettings(LAM, 0.01, 5.0, 30.0, plays=3)),
}


def made(name):
    algorithm = MAKERS[name]()
    for arm, reward in PAST:
        algorithm.observe(arm, reward)
    return algorithm


@pytest.mark.parametrize("name", MAKERS)
def test_pending_rounds_leave_the_estimates_of_an_algorithm_bit_for_bit_as_they_were(name):
    algorithm, twin = made(name), made(name)
    for _ in range(2):
        for arm in PENDING:
            algorithm.suppose(arm)
        algorithm.retract()
    for step in range(5, 12):
        for ours, theirs in zip(algorithm.estimates(), twin.estimates(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert algorithm.choose(step) == twin.choose(step)
        for each in (algorithm, twin):
            each.observe(step, 0.1 * step)


def test_pending_rounds_count_as_answered_with_the_mean_and_widen_the_bounds_by_their_gain():
    """Against the textbook posterior, the gain by a determinant."""
    algorithm = made("igp_ucb")
    mean, _, width, _ = algorithm.estimates()
    mean = mean.copy()
    for arm in PENDING:
        algorithm.suppose(arm)
    rows = [arm for arm, _ in PAST] + PENDING
    gram = BANDIT.gram

    def gain(played):
        return 0.5 * np.linalg.slogdet(np.eye(len(played)) + gram[np.ix_(played, played)] / LAM)[1]

    inverse = np.linalg.inv(gram[np.ix_(rows, rows)] + LAM * np.eye(len(rows)))
    after, variance, widened, _ = algorithm.estimates()
    np.testing.assert_allclose(after, mean, atol=1e-12)
    np.testing.assert_allclose(variance, 1 - np.einsum("ij,jk,ik->i", gram[:, rows], inverse, gram[:, rows]), atol=1e-9)
    assert widened == pytest.approx(width * math.exp(gain(rows) - gain(rows[: len(PAST)])), rel=1e-9)


def test_the_standard_deviation_without_a_batch_is_within_the_widened_one():
    """What the bounds of a batch rest on, for every arm, whatever the batch."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        algorithm = made("igp_ucb")
        _, variance, width, _ = algorithm.estimates()
        variance = variance.copy()
        for arm in rng.integers(25, size=rng.integers(1, 30)):
            algorithm.suppose(int(arm))
        _, pending, widened, _ = algorithm.estimates()
        assert (width * np.sqrt(variance) <= widened * np.sqrt(pending) * (1 + 1e-9)).all()


def test_pending_rounds_of_the_laplace_rule_lower_variances_and_keep_means():
    algorithm = made("laplace_adf")
    mean, variance = algorithm.mean.copy(), algorithm.estimates()[1].copy()
    for arm in PENDING:
        algorithm.suppose(arm)
    np.testing.assert_array_equal(algorithm.mean, mean)
    assert (algorithm.estimates()[1] <= variance).all()
    assert algorithm.estimates()[1][5] < variance[5]


def chooser_of(algorithm, batch_size):
    kernel = wire.Kernel(lengthscale=1.0, signal_variance=1.0, noise_variance=1.0)
    settings = {"iterations": 60, "initial_rows": 4, "repeats": "algorithm", "seed": 7, "fit": None}
    run = spec(algorithm, batch_size=batch_size, **settings)
    return RowChooser(run, study(25, answers=answers_of("laplace"), kernel=kernel), candidates(25))


def queries_of(chooser, rewards):
    """The rows of each query, where the t-th answer is the t-th of ``rewards``."""
    queries, t = [], 0
    while proposals := chooser.next():
        queries.append([proposal.row for proposal in proposals])
        for row in queries[-1]:
            chooser.observe(row, float(rewards[t] + row / 10))
            t += 1
    return queries


@pytest.mark.parametrize("batch_size", [2, 5, 7, 100])
def test_moma_asks_in_batches_the_very_rows_that_it_asks_one_by_one(batch_size):
    rewards = np.random.default_rng(1).laplace(scale=3.0, size=64)
    single = [row for query in queries_of(chooser_of("ldp_moma", 1), rewards) for row in query]
    queries = queries_of(chooser_of("ldp_moma", batch_size), rewards)
    assert [row for query in queries for row in query] == single
    assert max(map(len, queries)) == min(batch_size, 5)  # an epoch at most


@pytest.mark.parametrize("algorithm", ["igp_ucb", "laplace_adf", "thompson"])
def test_a_batch_over_few_arms_is_full_and_may_ask_an_arm_again(algorithm):
    rewards = np.random.default_rng(1).laplace(scale=3.0, size=64)
    queries = queries_of(chooser_of(algorithm, 8), rewards)
    assert [len(query) for query in queries] == [4] + [8] * 7 + [4]
    assert any(len(set(query)) < len(query) for query in queries)
