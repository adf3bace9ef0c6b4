"""The check of a given kernel: how often it rejects the right one, and that it rejects wrong ones."""

import math

import numpy as np
import pytest
from scipy.stats import chi2, multivariate_normal

from blindopt import wire
from blindopt.gp.kernel_check import ERROR, KernelCheck, block_log_density, rival_log_density
from blindopt.gp.marginal_likelihood import Evidence, Hyper, MarginalLikelihood

RUNS, CHECKS = 1_000, 12


def rejections(white_of):
    """Of RUNS runs, those that the first test rejects at any of its checks, after 5, 15, 25, ... answers."""
    rng, count = np.random.default_rng(1), 0
    for _ in range(RUNS):
        check, white = KernelCheck(), white_of(rng, 5 + 10 * CHECKS)
        count += any(check.surprise(white[: 5 + 10 * k]) is not None for k in range(CHECKS))
    return count


def test_the_right_kernel_is_seldom_rejected_however_often_it_is_checked():
    """At most 1 % of the runs, by the union bound; without spending the error over the checks it would be many more."""
    assert rejections(lambda rng, t: rng.normal(size=t)) <= RUNS * ERROR + 3 * math.sqrt(RUNS * ERROR)
    rng, naive = np.random.default_rng(1), 0
    for _ in range(RUNS):
        squares = np.cumsum(rng.normal(size=5 + 10 * CHECKS) ** 2)
        counts = 5 + 10 * np.arange(CHECKS)
        naive += (chi2(counts).sf(squares[counts - 1]) < ERROR / 2).any()
    assert naive > RUNS * ERROR  # control: one side alone


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_answers_twice_as_far_off_or_half_as_far_are_found(factor):
    assert rejections(lambda rng, t: factor * rng.normal(size=t)) > 0.99 * RUNS


def test_what_is_no_number_is_a_surprise():
    assert KernelCheck().surprise(np.array([1.0, math.nan])) is not None


def test_fits_to_earlier_answers_seldom_beat_the_right_kernel_by_so_much():
    """Answers are standard normal; the rival is normal with mean and sd of those before the block."""
    rng, count = np.random.default_rng(2), 0
    for _ in range(RUNS):
        check, y, lost = KernelCheck(), rng.normal(size=65), False
        for at in range(5, 65, 10):
            block, sd = y[at : at + 10], y[:at].std()
            rival = -0.5 * (((block - y[:at].mean()) / sd) ** 2).sum() - 10 * math.log(sd)
            lost = lost or check.loses(-0.5 * (block**2).sum(), rival) is not None
        count += lost
    assert count <= RUNS * ERROR + 3 * math.sqrt(RUNS * ERROR)


def test_densities_of_a_block_are_those_of_the_conditional_normal():
    rng = np.random.default_rng(0)
    points, y = rng.uniform(0, 2, size=(9, 2)), rng.normal(size=9)
    hyper = Hyper(0.7, 1.5, 0.1, 0.3, (0.5, 1.0))
    scaled = points / np.array(hyper.lengthscales)
    squared = ((scaled[:, None] - scaled) ** 2).sum(axis=2)
    gram = 1.5 * np.exp(-squared / 2) + 0.1 * np.eye(9)
    factor = np.linalg.cholesky(gram)
    white = np.linalg.solve(factor, y - 0.3)
    expected = multivariate_normal(np.full(9, 0.3), gram).logpdf(y) - multivariate_normal(
        np.full(6, 0.3), gram[:6, :6]
    ).logpdf(y[:6])
    assert block_log_density(white[6:], factor.diagonal()[6:]) == pytest.approx(expected)
    data = Evidence(points, np.arange(9), y, np.zeros(9), np.ones(9, dtype=bool))
    law = wire.NoiseLaw(family="none")
    whole, before = (
        MarginalLikelihood(part, "squared_exponential", law, hyper.mean, 2) for part in (data, data.first(6))
    )
    assert rival_log_density(whole, before, hyper) == pytest.approx(expected)
