"""Choosing rows with hyper-parameters refitted after every answer, beside scikit-learn."""

import time
import warnings
from collections.abc import Callable
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from threadpoolctl import threadpool_limits

from benchmarks.choosing import DELTA_PRIME, NOISE_VARIANCE, Problem, problems
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.gp.acquisition import beta, choose_maximum
from blindopt.gp.fitting import fit
from blindopt.optimizer.algorithms.gp.rules import GpUcb
from blindopt.optimizer.algorithms.settings import AlgorithmSettings

Ard = Literal["auto", "off"]
SCALES: dict[Ard, str] = {"off": "one length-scale", "auto": "a length-scale for each column"}
STEPS, FIRST = 30, 5
REPEATS = 3


def ours(problem: Problem, ard: Ard) -> list[float]:
    """GP-UCB with a fit of one start before every choice: seconds of fitting, and of predicting."""
    kernel = wire.Kernel(lengthscale=problem.lengthscale, signal_variance=1.0, noise_variance=NOISE_VARIANCE)
    often = wire.Fit(every=1, starts=1, ard=ard)
    settings = AlgorithmSettings(kernel, 1, seed=0, capacity=STEPS + FIRST, initial=FIRST, fit=often)
    loop = GpUcb(problem.candidates, settings, 2 * DELTA_PRIME)
    for row in _first(problem):
        loop.observe(row, float(problem.outcomes[row]))
    fitting = 0.0

    def timed(*args: Any, **options: Any) -> Any:
        nonlocal fitting
        before = time.process_time()
        try:
            return fitted(*args, **options)
        finally:
            fitting += time.process_time() - before

    begun, fitted = time.process_time(), fit
    with patch("blindopt.optimizer.algorithms.gp.surrogate.fit", timed):
        for step in range(1, STEPS + 1):
            row = loop.choose(step).row
            loop.observe(row, float(problem.outcomes[row]))
    return [fitting, time.process_time() - begun - fitting]


def scikit_learn(problem: Problem, ard: Ard) -> list[float]:
    """The same loop with GaussianProcessRegressor, whose optimizer starts at the same point."""
    scales = problem.lengthscale * np.ones(1 if ard == "off" else problem.candidates.shape[1])
    rows, ties = _first(problem), np.random.default_rng(0)
    begun, fitting = time.process_time(), 0.0
    for step in range(1, STEPS + 1):
        kernel = ConstantKernel(1.0) * RBF(scales) + WhiteKernel(NOISE_VARIANCE, (1e-6, 1e1))
        model = GaussianProcessRegressor(kernel, alpha=1e-10, normalize_y=False)
        before = time.process_time()
        with warnings.catch_warnings():  # it warns of parameters at their bounds
            warnings.simplefilter("ignore")
            model.fit(problem.candidates[rows], problem.outcomes[rows])
        fitting += time.process_time() - before
        mean, sd = model.predict(problem.candidates, return_std=True)
        bound = mean + np.sqrt(beta(len(problem.candidates), step, DELTA_PRIME)) * sd
        rows.append(choose_maximum(bound, mean, sd**2, ties).row)
    return [fitting, time.process_time() - begun - fitting]


def _first(problem: Problem) -> list[int]:
    return [int(row) for row in np.random.default_rng(1).choice(len(problem.candidates), size=FIRST, replace=False)]


def refit_table(problem: Problem, ard: Ard) -> Table:
    """Medians of interleaved runs; ``ard`` as in ``wire.Fit``: both have one length-scale, or one for each column."""
    loops: dict[str, Callable[[Problem, Ard], list[float]]] = {"blindopt": ours, "scikit-learn": scikit_learn}
    times: dict[str, list[list[float]]] = {name: [] for name in loops}
    with threadpool_limits(1):
        for _ in range(REPEATS):
            for name, loop in loops.items():
                times[name].append(loop(problem, ard))
    median = {name: np.median(samples, axis=0) for name, samples in times.items()}
    peer = median["scikit-learn"]
    rows: list[list[Cell]] = [
        [name, *map(float, medians), float(peer[1] / medians[1]), float(peer.sum() / medians.sum())]
        for name, medians in median.items()
    ]
    title = (
        f"{STEPS} choices with a fit by marginal likelihood before each, {SCALES[ard]} in both, {problem.name} "
        "(goal: prediction 2.5 times)"
    )
    columns = ["loop", "CPU s of fits", "of predictions", "predicts times faster", "in all times faster"]
    return Table(title, columns, rows)


def tables() -> list[Table]:
    """Tables of problems A and B, with one length-scale and with several."""
    return [refit_table(problem, ard) for ard in SCALES for problem in problems()]
