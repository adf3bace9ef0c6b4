"""Public simulations of Assumption 1: differences of neighbours' posterior means, and errors of releases.

They are seeded and use public values alone: grid, kernel, noise and T. No private data enter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.errors import TuningImpossible

Arms = NDArray[np.intp]
Observe = Callable[[Arms], Vector]
"""Returns scores (b,) in scaled units, from the grid index of each run (b,)."""


def ucb(covariance: Matrix, sigma: float, weights: Vector, runs: int, observe: Observe) -> tuple[Matrix, Arms, Matrix]:
    """Posterior means (runs, n) after T = len(weights) scores, grid indices (T, runs), and scores (T, runs).

    Each step scores the index of the largest mean + sqrt(beta_t variance), the first one of several: the rule is
    deterministic, and the same in every run. Source: Kusner et al. (2015), eqs. 2-3.
    """
    n, steps = len(covariance), len(weights)
    prior = covariance.diagonal()
    mean, variance = np.zeros((runs, n)), np.tile(prior, (runs, 1))
    whitened = np.empty((runs, steps, n))
    every = np.arange(runs)
    indices, scores = np.empty((steps, runs), dtype=np.intp), np.empty((steps, runs))
    for t, weight in enumerate(weights.tolist()):
        arms = indices[t] = (mean + np.sqrt(weight * variance)).argmax(axis=1)
        values = scores[t] = observe(arms)
        old = whitened[:, :t]
        row = covariance[arms] - np.matmul(old[every, :, arms][:, None, :], old)[:, 0]
        pivot = np.sqrt(variance[every, arms] + sigma**2)
        row /= pivot[:, None]
        whitened[:, t] = row
        mean += row * ((values - mean[every, arms]) / pivot)[:, None]
        variance -= row**2
        np.maximum(variance, 0.0, out=variance)
    return mean, indices, scores


CONFIDENCE = 0.999
"""The probability that a simulated sensitivity is large enough."""
WORK_MAX = 4e11
"""The most multiplications of a simulation, which take minutes."""
_BATCH = 1e6
_NOISES = 32
FUNCTIONS = 400
"""The most functions of the prior that expected errors are averaged over."""


Estimand = Literal["chosen", "maximum", "largest_score"]


@dataclass(frozen=True, slots=True)
class World:
    """Functions of the prior over a grid, and noisy scores of them.

    Scores are clipped to ``ends``: before the noise where the curator adds it (``adds_noise``), else after it.
    """

    covariance: Matrix
    sigma: float
    ends: tuple[float, float] = (-inf, inf)
    adds_noise: bool = True

    def functions(self, count: int, rng: np.random.Generator) -> Matrix:
        """Draw ``count`` independent functions (count, n) of the prior."""
        functions: Matrix = rng.standard_normal((count, len(self.covariance))) @ root(self.covariance).T
        return functions

    def neighbours(self, functions: Matrix, apart: float, rng: np.random.Generator) -> Matrix:
        """Draw a neighbour of each function: jointly Gaussian with correlation 1 - apart."""
        k1 = 1 - apart
        neighbours: Matrix = k1 * functions + np.sqrt(1 - k1**2) * self.functions(len(functions), rng)
        return neighbours

    def scores(self, values: Matrix, rng: np.random.Generator, sharing: int = 1) -> Matrix:
        """Draw noisy scores of function values, in the same shape: each ``sharing`` rows in turn get the same noise."""
        normal = rng.standard_normal((len(values) // sharing, *values.shape[1:]))
        noise = self.sigma * np.repeat(normal, sharing, axis=0)
        inside = np.clip(values if self.adds_noise else values + noise, *self.ends)
        scores: Matrix = inside + noise if self.adds_noise else inside
        return scores

    def searched(
        self, functions: Matrix, weights: Vector, rng: np.random.Generator, sharing: int = 1
    ) -> tuple[Matrix, Vector]:
        """GP-UCB on each function with fresh noise: posterior means (count, n), largest noisy scores (count,).

        Each ``sharing`` functions in turn get the same noise at the same step, wherever their runs evaluate.
        """
        rows = int(_BATCH / (len(self.covariance) * len(weights)))  # this much stays in the processor's cache
        batch = sharing * max(1, rows // sharing)
        batches = [
            self._searched(functions[start : start + batch], weights, rng, sharing)
            for start in range(0, len(functions), batch)
        ]
        return np.concatenate([means for means, _ in batches]), np.concatenate([largest for _, largest in batches])

    def _searched(
        self, functions: Matrix, weights: Vector, rng: np.random.Generator, sharing: int
    ) -> tuple[Matrix, Vector]:
        every = np.arange(len(functions))

        def observe(arms: Arms) -> Vector:
            return self.scores(functions[every, arms], rng, sharing)

        means, _, scores = ucb(self.covariance, self.sigma, weights, len(functions), observe)
        return means, scores.max(axis=0)


def root(covariance: Matrix) -> Matrix:
    """A matrix R with R R^T = covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    product: Matrix = vectors * np.sqrt(np.maximum(values, 0.0))
    return product


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences of each pair of simulated neighbours: the largest of posterior means, and that of maximal scores."""

    mean: Vector
    maximum: Vector


def neighbour_differences(world: World, weights: Vector, apart: float, pairs: int, seed: int) -> Differences:
    """Run GP-UCB on both neighbours of each pair, with the same noise at each step.

    Each run chooses by its own scores, so the two may evaluate different hyper-parameters from some step on: what is
    returned is the difference of whole runs.
    """
    n, steps = len(world.covariance), len(weights)
    check_work(2 * pairs, n, steps)
    rng = np.random.default_rng(seed)
    batch = max(1, int(_BATCH / n))
    means_moved, maxima_moved = [], []
    for start in range(0, pairs, batch):
        count = min(batch, pairs - start)
        functions = world.functions(count, rng)
        both = np.stack([functions, world.neighbours(functions, apart, rng)], axis=1).reshape(2 * count, n)
        means, largest = world.searched(both, weights, rng, sharing=2)
        means_moved.append(np.abs(means[1::2] - means[::2]).max(axis=1))
        maxima_moved.append(np.abs(largest[1::2] - largest[::2]))
    return Differences(np.concatenate(means_moved), np.concatenate(maxima_moved))


def check_work(runs: int, n: int, steps: int) -> None:
    """Raise TuningImpossible where a simulation would take too long."""
    if runs * n * steps**2 / 2 > WORK_MAX:
        raise TuningImpossible(
            "simulating so many runs of so many scores on such a grid takes too long: take fewer pairs, evaluations or "
            "hyper-parameters, or gp_design, which needs no simulated neighbours"
        )


def upper_quantile(values: Vector, delta: float) -> float:
    """The order statistic that exceeds the (1 - delta) quantile with probability ``CONFIDENCE``.

    The k-th smallest of N does if a Binomial(N, 1 - delta) is below k with that probability. Raises TuningImpossible if
    not even the largest does: it takes 7 / delta values.
    """
    from scipy.stats import binom  # takes half a second, so not at the curator's start

    count = len(values)
    k = int(binom.ppf(CONFIDENCE, count, 1 - delta)) + 1
    if k > count:
        needed = int(np.ceil(np.log(1 - CONFIDENCE) / np.log1p(-delta)))
        raise TuningImpossible(f"a delta of {delta:g} needs {needed} simulated pairs or more", "method.pairs")
    return float(np.sort(values)[k - 1])


@dataclass(frozen=True, slots=True)
class Sample:
    """Functions of the prior, a method's results on each, and a generator for further draws."""

    functions: Matrix
    means: Matrix
    """Posterior means (count, n)."""
    maxima: Vector
    """Largest noisy scores (count,)."""
    rng: np.random.Generator

    @property
    def spread(self) -> float:
        return float((self.means.max(axis=1) - self.means.min(axis=1)).mean())


def sample_design(world: World, arms: Arms, weights: Matrix, seed: int) -> Sample:
    """The sample of a fixed design: posterior means are ``weights`` (n, T) times scores."""
    rng = np.random.default_rng(seed)
    functions = world.functions(_count(len(world.covariance), len(arms)), rng)
    scores = world.scores(functions[:, arms], rng)
    return Sample(functions, scores @ weights.T, scores.max(axis=1), rng)


def sample_search(world: World, weights: Vector, seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    functions = world.functions(_count(len(world.covariance), len(weights)), rng)
    means, maxima = world.searched(functions, weights, rng)
    return Sample(functions, means, maxima, rng)


def sample_grid(world: World, seed: int) -> Sample:
    """The sample of all scores, without noise."""
    rng = np.random.default_rng(seed)
    functions = world.functions(FUNCTIONS, rng)
    return Sample(functions, functions, functions.max(axis=1), rng)


def _count(n: int, steps: int) -> int:
    return max(4, min(FUNCTIONS, int(2e9 / (n * steps**2))))


def expected_errors(
    sample: Sample, *, index_scale: float | None, exponential: bool, value_scale: float | None, value_at: Estimand
) -> tuple[float, float]:
    """Mean gap of lambda~, and mean absolute error of v~, over the sample and draws of both.

    v~ is the posterior mean at lambda~ (the largest without it) as an estimate of f there; or the largest posterior
    mean, or the largest noisy score, as an estimate of max f. Without an index scale lambda~ is where the posterior
    mean is largest.
    """
    functions, means, rng = sample.functions, sample.means, sample.rng
    every, best = np.arange(len(means)), sample.functions.max(axis=1)
    gaps, errors = [], []
    for _ in range(_NOISES):
        arms = means.argmax(axis=1)
        if index_scale is not None:
            noise = rng.gumbel(size=means.shape) if exponential else rng.exponential(size=means.shape)
            arms = (means + index_scale * noise).argmax(axis=1)
        at_arms = functions[every, arms]
        gaps.append(best - at_arms)
        estimates = {"chosen": means[every, arms], "maximum": means.max(axis=1), "largest_score": sample.maxima}
        noise = rng.laplace(scale=value_scale, size=len(means)) if value_scale is not None else np.zeros(len(means))
        errors.append(np.abs(estimates[value_at] + noise - (at_arms if value_at == "chosen" else best)))
    return float(np.mean(gaps)), float(np.mean(errors))
