"""Public simulations of Assumption 1: how far neighbours' posterior means are apart, and what a release will miss.

Seeded, and of public values alone: grid, kernel, noise and T. Private data has no way in.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import TuningImpossible
from curator_service.tuning.batched_gp_ucb import Arms, ucb

CONFIDENCE = 0.999
"""With which a simulated sensitivity is large enough."""
WORK_MAX = 4e11
"""Multiplications that a simulation may take: minutes."""
_BATCH = 1e6
_NOISES = 32
FUNCTIONS = 400
"""Most functions of the prior that expected errors are averaged over."""


SaidAt = Literal["chosen", "maximum", "largest_score"]


@dataclass(frozen=True, slots=True)
class World:
    """Functions of the prior over a grid, and how scores of them come about.

    Scores are clipped to ``ends``, before noise is added to them, or with it where it is their own.
    """

    covariance: Matrix
    sigma: float
    ends: tuple[float, float] = (-inf, inf)
    adds_noise: bool = True

    def functions(self, count: int, rng: np.random.Generator) -> Matrix:
        """``count`` independent draws (count, n) of the prior."""
        drawn: Matrix = rng.standard_normal((count, len(self.covariance))) @ root(self.covariance).T
        return drawn

    def neighbours(self, functions: Matrix, apart: float, rng: np.random.Generator) -> Matrix:
        """For each function one of a neighbour: jointly Gaussian with correlation 1 - apart."""
        k1 = 1 - apart
        found: Matrix = k1 * functions + np.sqrt(1 - k1**2) * self.functions(len(functions), rng)
        return found

    def scores(self, values: Matrix, rng: np.random.Generator) -> Matrix:
        """Noisy scores of function values, in the same shape."""
        noise = self.sigma * rng.standard_normal(values.shape)
        found: Matrix = np.clip(values, *self.ends) + noise if self.adds_noise else np.clip(values + noise, *self.ends)
        return found

    def searched(self, functions: Matrix, weights: Vector, rng: np.random.Generator) -> tuple[Matrix, Vector]:
        """GP-UCB on each function with fresh noise: posterior means (count, n), largest noisy scores (count,)."""
        batch = max(1, int(_BATCH / (len(self.covariance) * len(weights))))  # what stays in the cache
        found = [
            self._searched(functions[start : start + batch], weights, rng) for start in range(0, len(functions), batch)
        ]
        return np.concatenate([means for means, _ in found]), np.concatenate([largest for _, largest in found])

    def _searched(self, functions: Matrix, weights: Vector, rng: np.random.Generator) -> tuple[Matrix, Vector]:
        every = np.arange(len(functions))

        def observe(arms: Arms) -> Vector:
            return self.scores(functions[every, arms], rng)

        means, _, scores = ucb(self.covariance, self.sigma, weights, len(functions), observe)
        return means, scores.max(axis=0)


def root(covariance: Matrix) -> Matrix:
    """A matrix R with R R^T = covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    product: Matrix = vectors * np.sqrt(np.maximum(values, 0.0))
    return product


@dataclass(frozen=True, slots=True)
class Differences:
    """Between simulated neighbours, one for each pair: of posterior means (the largest) and of maxima of scores."""

    mean: Vector
    maximum: Vector


def neighbour_differences(world: World, weights: Vector, apart: float, pairs: int, seed: int) -> Differences:
    """The same GP-UCB run on both of each pair, with noise of their own."""
    n, steps = len(world.covariance), len(weights)
    check_work(2 * pairs, n, steps)
    rng = np.random.default_rng(seed)
    batch = max(1, int(_BATCH / n))
    found_mean, found_maximum = [], []
    for start in range(0, pairs, batch):
        count = min(batch, pairs - start)
        functions = world.functions(count, rng)
        both = np.vstack([functions, world.neighbours(functions, apart, rng)])
        means, largest = world.searched(both, weights, rng)
        found_mean.append(np.abs(means[count:] - means[:count]).max(axis=1))
        found_maximum.append(np.abs(largest[count:] - largest[:count]))
    return Differences(np.concatenate(found_mean), np.concatenate(found_maximum))


def check_work(runs: int, n: int, steps: int) -> None:
    """TuningImpossible where a simulation would take too long."""
    if runs * n * steps**2 / 2 > WORK_MAX:
        raise TuningImpossible(
            "simulating so many runs of so many scores on such a grid takes too long: take fewer pairs, evaluations or "
            "hyper-parameters, or gp_design, which needs no simulated neighbours"
        )


def upper_quantile(values: Vector, delta: float) -> float:
    """The order statistic that exceeds the (1 - delta) quantile with probability ``CONFIDENCE``.

    The k-th smallest of N does if a Binomial(N, 1 - delta) is below k with that probability. TuningImpossible if not
    even the largest does: 7 / delta values are needed.
    """
    from scipy.stats import binom  # late: it takes half a second, which a curator need not wait for at its start

    count = len(values)
    k = int(binom.ppf(CONFIDENCE, count, 1 - delta)) + 1
    if k > count:
        needed = int(np.ceil(np.log(1 - CONFIDENCE) / np.log1p(-delta)))
        raise TuningImpossible(f"a delta of {delta:g} needs {needed} simulated pairs or more", "method.pairs")
    return float(np.sort(values)[k - 1])


@dataclass(frozen=True, slots=True)
class Sample:
    """Functions of the prior, what a method makes of each, and a generator to go on with."""

    functions: Matrix
    means: Matrix
    """Posterior means (count, n)."""
    maxima: Vector
    """Largest noisy scores (count,)."""
    rng: np.random.Generator

    @property
    def spread(self) -> float:
        """How far posterior means lie apart, on average."""
        return float((self.means.max(axis=1) - self.means.min(axis=1)).mean())


def sample_design(world: World, arms: Arms, weights: Matrix, seed: int) -> Sample:
    """Of a fixed design: posterior means are ``weights`` (n, T) times scores."""
    rng = np.random.default_rng(seed)
    functions = world.functions(_count(len(world.covariance), len(arms)), rng)
    scores = world.scores(functions[:, arms], rng)
    return Sample(functions, scores @ weights.T, scores.max(axis=1), rng)


def sample_search(world: World, weights: Vector, seed: int) -> Sample:
    """Of GP-UCB."""
    rng = np.random.default_rng(seed)
    functions = world.functions(_count(len(world.covariance), len(weights)), rng)
    means, maxima = world.searched(functions, weights, rng)
    return Sample(functions, means, maxima, rng)


def sample_grid(world: World, seed: int) -> Sample:
    """Of all scores without noise."""
    rng = np.random.default_rng(seed)
    functions = world.functions(FUNCTIONS, rng)
    return Sample(functions, functions, functions.max(axis=1), rng)


def _count(n: int, steps: int) -> int:
    return max(4, min(FUNCTIONS, int(2e9 / (n * steps**2))))


def expected_errors(
    sample: Sample,
    *,
    index_scale: float | None,
    exponential: bool,
    value_scale: float | None,
    value_at: SaidAt,
) -> tuple[float, float]:
    """Mean gap of lambda~, and mean absolute error of v~, over the sample and draws of both.

    v~ tells the posterior mean at lambda~ (the largest without it) as f there; or the largest posterior mean, or the
    largest noisy score, as max f. Index scale None: lambda~ is where the posterior mean is largest.
    """
    functions, means, rng = sample.functions, sample.means, sample.rng
    every, best = np.arange(len(means)), sample.functions.max(axis=1)
    gaps, errors = [], []
    for _ in range(_NOISES):
        chosen = means.argmax(axis=1)
        if index_scale is not None:
            noise = rng.gumbel(size=means.shape) if exponential else rng.exponential(size=means.shape)
            chosen = (means + index_scale * noise).argmax(axis=1)
        at_chosen = functions[every, chosen]
        gaps.append(best - at_chosen)
        told = {"chosen": means[every, chosen], "maximum": means.max(axis=1), "largest_score": sample.maxima}[value_at]
        noise = rng.laplace(scale=value_scale, size=len(means)) if value_scale is not None else np.zeros(len(means))
        errors.append(np.abs(told + noise - (at_chosen if value_at == "chosen" else best)))
    return float(np.mean(gaps)), float(np.mean(errors))
