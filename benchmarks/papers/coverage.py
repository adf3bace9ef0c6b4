"""How often the interval of a recommendation holds: the recommended record's mean outcome, and its next measurement.

Functions are draws of the assumed kernel on 500 records of a unit cube. Tables are those of ``pools``, with noise added
to outcomes of standard deviation 1. A run has 5 first records and then the default rule, and all else as by default.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log
from typing import Any

import numpy as np

from benchmarks.papers.part import Curves, Size, Task
from benchmarks.papers.pools import pool
from blindopt.arrays import Matrix, Vector
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.marginal_likelihood import MarginalLikelihood
from blindopt.optimizer.algorithms.gp.rules import GpRule
from blindopt.optimizer.algorithms.settings import NO_NOISE
from blindopt.optimizer.chooser import QUANTILE
from blindopt.optimizer.optimizer import Optimizer

LENGTHSCALES = {2: 0.3, 4: 0.6, 8: 1.0}
"""By the number of columns of a function."""
NOISES = (0.3, 0.05)
TABLES = ("houses", "Ames", "concrete", "diabetes")
N = 500
FIRST = 5
MARKS = (20, 30, 40)
"""Numbers of outcomes, the first records included."""
HELD, NEXT, BIAS, WIDTH = "interval holds", "next interval holds", "bias of the mean", "width, of that with true values"
PLUGGED, PLUGGED_BIAS = "plugged-in interval holds", "bias of the plugged-in mean"
TRUE = "interval with true values holds"


def group(name: str | int, noise: float) -> str:
    """Name of a group of columns."""
    return f"{name} columns, noise sd {noise}" if isinstance(name, int) else f"{name}, noise sd {noise}"


_SHOWN: list[tuple[str | int, float]] = [
    *((d, noise) for noise in NOISES for d in LENGTHSCALES),
    *((name, NOISES[0]) for name in TABLES),
]
GROUPS = {group(name, noise): (name, noise) for name, noise in _SHOWN}


@lru_cache(maxsize=3)
def _root(d: int) -> tuple[Matrix, Matrix]:
    """Records (n, d), and a root (n, n) of the covariance of a function at them."""
    x = np.random.default_rng([46, d]).uniform(size=(N, d))
    covariance = SquaredExponential(LENGTHSCALES[d])(x, x)
    return x, np.asarray(np.linalg.cholesky(covariance + 1e-8 * np.eye(N)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Searches with a known function, whose recommendations are checked."""

    name: str = "coverage"

    def tasks(self, size: Size) -> list[Task]:
        names = [name for name, (of, _) in GROUPS.items() if isinstance(of, int) or of in size.pools]
        return [(name, run) for run in range(size.coverage) for name in names]

    def marks(self, size: Size) -> Sequence[int]:
        return MARKS

    def play(self, task: Task, size: Size) -> Curves:
        name, run = task
        of, noise = GROUPS[name]
        rng = np.random.default_rng([46, run])
        if isinstance(of, int):
            x, root = _root(of)
            return searched(x, root @ rng.standard_normal(N), noise, run, rng, LENGTHSCALES[of])
        candidates = pool(of, run, size.side)
        return searched(candidates.x, candidates.y, noise, run, rng)

    def facts(self, size: Size) -> dict[str, Any]:
        return {"lengthscales": LENGTHSCALES, "n": N, "first": FIRST}


def searched(
    x: Matrix, f: Vector, noise: float, seed: int, rng: np.random.Generator, lengthscale: float | None = None
) -> Curves:
    """The columns of a search for the largest ``f`` (n,), measured with Gaussian noise.

    ``lengthscale`` is the true one, of a function with signal sd 1 and mean 0; None: nobody knows it.
    """
    optimizer = Optimizer(x, seed=seed, algorithm="ei", iterations=MARKS[-1] - FIRST, initial_rows=FIRST)
    curves: Curves = {}
    for t in range(1, MARKS[-1] + 1):
        row = optimizer.ask()
        optimizer.tell(row, float(f[row] + noise * rng.standard_normal()))
        if t in MARKS:
            figures = checked(optimizer, f, noise, rng)
            if lengthscale is not None:
                figures |= _by_true_values(optimizer, x, f, noise, lengthscale)
            for column, figure in figures.items():
                curves.setdefault(column, []).append(float(figure))
    return curves


def checked(optimizer: Optimizer, f: Vector, noise: float, rng: np.random.Generator) -> dict[str, float]:
    """Whether the intervals hold, and the bias of the mean: of the recommendation, and with values plugged in."""
    best, plugged = optimizer.recommendation(), optimizer._chooser.best("asked")
    assert best, "there are outcomes"
    assert best.interval, "hyper-parameters are fitted"
    assert best.next_interval, "hyper-parameters are fitted"
    assert plugged, "there are outcomes"
    assert plugged.sd, "hyper-parameters are fitted"
    truth, following = f[best.row], f[best.row] + noise * rng.standard_normal()
    return {
        HELD: best.interval[0] <= truth <= best.interval[1],
        NEXT: best.next_interval[0] <= following <= best.next_interval[1],
        BIAS: best.mean - truth,
        PLUGGED: abs(plugged.mean - f[plugged.row]) <= QUANTILE * plugged.sd,
        PLUGGED_BIAS: plugged.mean - f[plugged.row],
    }


def _by_true_values(optimizer: Optimizer, x: Matrix, f: Vector, noise: float, lengthscale: float) -> dict[str, float]:
    """Whether the interval with the true hyper-parameters holds at the same record, and how much wider ours is."""
    best, algorithm = optimizer.recommendation(), optimizer._chooser.learner
    assert best, "there are outcomes"
    assert best.interval, "hyper-parameters are fitted"
    assert isinstance(algorithm, GpRule)
    fitted = algorithm.surrogate.evidence(len(optimizer.history))  # in the units of a fit
    evidence = replace(fitted, points=x[fitted.rows], outcomes=algorithm.surrogate.unit.outer_all(fitted.outcomes))
    likelihood = MarginalLikelihood(evidence, "squared_exponential", NO_NOISE, 0.0)
    mean, variance, _ = likelihood.moments(np.array([log(lengthscale), 0.0, 2 * log(noise)]))
    at = int(np.flatnonzero(evidence.rows == best.row)[0])
    reach = QUANTILE * float(variance[at]) ** 0.5
    width = best.interval[1] - best.interval[0]
    return {TRUE: abs(mean[at] - f[best.row]) <= reach, WIDTH: width / (2 * reach)}
