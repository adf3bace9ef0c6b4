"""Plays a tool on a pool, and finds random rows' figures exactly."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from time import process_time

import numpy as np

from benchmarks import botorch_loop
from benchmarks.papers.rules import study_of
from benchmarks.pools.suite import Pool
from blindopt import LoopEnded, Optimizer, wire
from blindopt.arrays import Matrix
from blindopt.optimizer.defaults import INITIAL_ROWS
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.forecasts.simulation import chance_regret
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism

QUERIES = 60
MARKS = (20, 50)
DEFAULT, BOTORCH = "default", "BoTorch"
EPSILONS = {"epsilon1": Decimal(1), "epsilon3": Decimal(3), "refined2": Decimal(1), "refined3": Decimal(1)}
"""The default through a release, by the name of the tool."""
SECOND = {"refined2": Decimal(2), "refined3": Decimal(3)}
"""Epsilon of the second draw of each queried candidate."""
TOOLS = {DEFAULT: "blindopt", BOTORCH: "botorch", **dict.fromkeys(EPSILONS, "blindopt")}
"""The package of each tool."""
HIDDEN = 20
"""The release hides this part of each range: a twentieth, as the console suggests."""
FIRST_ROWS = 10
"""BoTorch's own start: random candidates."""


@dataclass(frozen=True, slots=True)
class Run:
    """One search. ``top``: queries to the first candidate of the top 1 %, one more than all if none is.

    ``regret``: of the best queried candidate after 20 and 50 queries, in standard deviations of the pool's outcomes,
    None after the last query; ``seconds``: processor time of 20 queries and of all ``queries``.
    """

    top: int
    regret: tuple[float | None, ...]
    seconds: tuple[float, float]
    queries: int


def default(candidates: Pool, run: int, queries: int) -> Iterator[int]:
    """Yield the rows that the product's optimizer queries; only the direction, seed and number of queries are set."""
    optimizer = Optimizer(candidates.x, maximize=candidates.maximize, seed=run, iterations=queries)
    yield from _rows_of(optimizer, candidates)


def release_of(candidates: Pool, epsilon: Decimal) -> tuple[Matrix, wire.StudyView]:
    """Make a new release of the candidates (n, r), whose noise has no seed, and its study."""
    low, high = candidates.x.min(axis=0), candidates.x.max(axis=0)
    columns = np.flatnonzero(high > low).tolist()
    features = [
        wire.Feature(column=f"x{j}", lower=low[j], upper=high[j], hidden_change=(high[j] - low[j]) / HIDDEN)
        for j in columns
    ]
    rows = ScaledRows(candidates.x, columns, features, np.arange(len(candidates.y)))
    mechanism, z = PlanarLaplaceMechanism(epsilon, 1.0), np.empty((rows.n, rows.d))
    mechanism.draw(rows, z)
    study = study_of(z, mechanism.noise(rows.d), epsilon)
    return z, study.model_copy(update={"direction": "maximize" if candidates.maximize else "minimize"})


def released(
    candidates: Pool, run: int, queries: int, epsilon: Decimal, second: Decimal | None = None
) -> Iterator[int]:
    """Yield the rows that a run queries on a new release, whose queried rows come again with epsilon ``second``."""
    z, study = release_of(candidates, epsilon)
    draws = None
    if second is not None:
        draws, again = release_of(candidates, second)
        refine = {"epsilon": str(second), "sd": again.noise.sd}
        study = study.model_copy(update={"refine": wire.RefineView.model_validate(refine)})
    optimizer = Optimizer(z, study=study, seed=run, iterations=queries - INITIAL_ROWS)
    yield from _rows_of(optimizer, candidates, draws)


def _rows_of(optimizer: Optimizer, candidates: Pool, draws: Matrix | None = None) -> Iterator[int]:
    """Yield the rows that an optimizer asks for, until it ends; each is told its outcome, with its second draw."""
    while True:
        try:
            row = optimizer.ask()
        except LoopEnded:
            return
        yield row
        passport = None if draws is None else wire.NoisePassport(measurement_variance=0.0, z=draws[row].tolist())
        optimizer.tell(row, float(candidates.y[row]), passport=passport)


def botorch(candidates: Pool, run: int, queries: int) -> Iterator[int]:
    """Yield the rows of SingleTaskGP and LogEI after ten random ones, without columns that are constant."""
    gain, x = candidates.gain, candidates.x[:, np.ptp(candidates.x, axis=0) > 0]
    rows = np.random.default_rng([run]).choice(len(gain), min(FIRST_ROWS, queries), replace=False).tolist()
    yield from rows
    while True:
        rows.append(botorch_loop.next_by_log_ei(x, rows, gain[rows]))
        yield rows[-1]


def play(candidates: Pool, tool: str, run: int, queries: int = QUERIES) -> Run:
    """Play a run. BoTorch, which is slow, stops after 20 queries once it has found a candidate of the top 1 %."""
    if tool in EPSILONS:
        loop = released(candidates, run, queries, EPSILONS[tool], second=SECOND.get(tool))
    else:
        loop = {DEFAULT: default, BOTORCH: botorch}[tool](candidates, run, queries)
    gain, top, first, best = candidates.gain, candidates.top, queries + 1, list[float]()
    start, seconds, query = process_time(), 0.0, 0
    for query, row in enumerate(loop, start=1):
        best.append(max([gain[row], *best[-1:]]))
        first = min(first, query) if top[row] else first
        if query == MARKS[0]:
            seconds = process_time() - start
        if query == queries or (tool == BOTORCH and query >= MARKS[0] and first <= query):
            break
    regret = [float(f"{gain.max() - best[mark - 1]:.5g}") if mark <= query else None for mark in MARKS]
    return Run(first, tuple(regret), (round(seconds, 3), round(process_time() - start, 3)), query)


def random_rows(candidates: Pool, queries: int = QUERIES) -> tuple[float, tuple[float, ...]]:
    """Mean queries of random rows to the top 1 %, and their mean regret after 20 and 50: exact.

    The sum over k of the probability that none of k random candidates of n is one of the m best: C(n-m, k) / C(n, k).
    """
    n, m = len(candidates.y), int(candidates.top.sum())
    k = np.arange(min(queries, n))
    missed = np.cumprod(np.concatenate([[1.0], np.maximum(n - m - k, 0) / (n - k)]))
    return float(missed.sum()), tuple(chance_regret(candidates.gain, mark) for mark in MARKS)
