"""Choosing rows: GP-UCB's loop over finite candidates against scikit-learn's, with equal settings."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from benchmarks.table import Cell, Table
from shared.acquisition import beta, choose_maximum
from shared.kernels import SquaredExponential
from shared.matrix import Matrix, Vector
from shared.posterior import Posterior

STEPS = 50
NOISE_VARIANCE = 1e-4
DELTA_PRIME = 0.025


@dataclass(frozen=True, slots=True)
class Problem:
    """Candidates (n, r), a length-scale, and the outcome of every row."""

    name: str
    candidates: Matrix
    lengthscale: float
    outcomes: Vector


def problems() -> list[Problem]:
    """A: a 100 x 100 grid; B: 36,000 random candidates of 15 columns."""
    axis = np.linspace(0.0, 1.0, 100)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    cloud = np.random.default_rng(0).normal(size=(36_000, 15))
    return [
        Problem("A: n = 10,000, r = 2", grid, 0.2, np.sin(7 * grid).sum(axis=1)),
        Problem("B: n = 36,000, r = 15", cloud, 4.0, np.sin(cloud).sum(axis=1) / 4),
    ]


def ours(problem: Problem) -> list[int]:
    """The rows that the modeler's engine chooses."""
    kernel = SquaredExponential(problem.lengthscale)
    posterior = Posterior(problem.candidates, kernel, noise_variance=NOISE_VARIANCE, capacity=STEPS)
    rows = []
    ties = np.random.default_rng(0)
    for step in range(1, STEPS + 1):
        choice = posterior.choose(beta(len(problem.candidates), step, DELTA_PRIME), lambda: ties)
        posterior.observe(choice.row, float(problem.outcomes[choice.row]))
        rows.append(choice.row)
    return rows


def scikit_learn(problem: Problem) -> list[int]:
    """The same loop over GaussianProcessRegressor, refitted at each step with fixed hyper-parameters."""
    n = len(problem.candidates)
    kernel = RBF(problem.lengthscale)
    rows: list[int] = []
    for step in range(1, STEPS + 1):
        model = GaussianProcessRegressor(kernel, alpha=NOISE_VARIANCE, optimizer=None)
        if rows:
            model.fit(problem.candidates[rows], problem.outcomes[rows])
        mean, sd = model.predict(problem.candidates, return_std=True)
        bound = mean + np.sqrt(beta(n, step, DELTA_PRIME)) * sd
        rows.append(choose_maximum(bound, mean, sd**2, np.random.default_rng([0, step])).row)
    return rows


def measure(loop: Callable[[Problem], list[int]], problem: Problem, repeats: int) -> tuple[float, float]:
    """Median seconds, and peak MiB of one further run."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        loop(problem)
        times.append(time.perf_counter() - started)
    tracemalloc.start()
    loop(problem)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return float(np.median(times)), peak


def tables() -> list[Table]:
    """Loop, seconds, ratio to ours, extra memory."""
    rows: list[list[Cell]] = []
    for problem in problems():
        fast, memory = measure(ours, problem, 5)
        slow, slow_memory = measure(scikit_learn, problem, 1)
        rows.append([problem.name, fast, slow, slow / fast, memory, slow_memory])
    columns = ["problem", "blindopt s", "scikit-learn s", "times faster", "MiB", "scikit-learn MiB"]
    return [Table(f"{STEPS} choices", columns, rows)]
