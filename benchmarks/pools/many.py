"""`python -m benchmarks.pools.many PART [RUNS]`: good candidates that a search for many finds, and one for the best.

The parts are pools, told and private, each with a page of its own, which says what it plays. Pools and private need
`make data`. The page is written after each round of runs, so that they may be ended early.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from math import exp, sqrt
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.papers.rules import study_of
from benchmarks.papers.search import START
from benchmarks.papers.synthetic import NOISE_VARIANCE, STEPS, domain, draw
from benchmarks.pools.__main__ import RESULTS
from benchmarks.pools.play import release_of
from benchmarks.pools.suite import Pool, few, halves, pool
from benchmarks.table import Cell, Table
from blindopt import Optimizer
from blindopt.arrays import Matrix, Vector
from blindopt.optimizer.algorithms.settings import NO_NOISE
from blindopt.optimizer.defaults import INITIAL_ROWS
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism

QUERIES, TOGETHER, FEW, SIDE = 50, 8, 20, 100
BEST, BATCHES = "best", "batches"
WAYS = (BEST, "stated", "share", BATCHES)
Levels = dict[str, Decimal | None]
LEVELS: Levels = {"no privacy": None, "epsilon e^1.1": Decimal(f"{exp(1.1):.9f}"), "epsilon 1": Decimal(1)}
EPSILONS: Levels = {"epsilon 1": Decimal(1), "epsilon 4": Decimal(4)}
POOLS = ("wages", "fullerenes", "beam", "chromatography", "robot arm", "cars")
PAGES = {
    "pools": """# Find many

Written by `python -m benchmarks.pools.many pools`. Good are the top 1 % of a pool, or its top 5 % where those are fewer
than 20. A search has 50 queries and looks for the best candidate (`best`), for many with the true threshold (`stated`),
or with the share alone, one candidate a query (`share`) or eight (`batches`). Nothing else is set.

""",
    "told": """# Find many with a known kernel

Written by `python -m benchmarks.pools.many told`. Functions of a Gaussian process on a grid of 10,000 candidates, whose
kernel the search is told; the top 1 % are good. Three random candidates are queried first, then 50 chosen ones. The
candidates of a release have planar Laplace noise. The ways are those of [Find many](many.md).

""",
    "private": """# Find many through a private release

Written by `python -m benchmarks.pools.many private`. The pools and ways are those of [Find many](many.md). A search
sees 2,000 candidates at most, through a new release: planar Laplace noise that hides a twentieth of each range.

""",
}
FILES = {"pools": "many.md", "told": "many_told.md", "private": "many_private.md"}
RUNS = {"pools": 10, "told": 400, "private": 10}


@dataclass(frozen=True, slots=True)
class Problem:
    """Candidates as a search sees them (n, r), their outcomes (n,), and settings of an optimizer."""

    candidates: Matrix
    y: Vector
    share: float
    queries: int
    settings: dict[str, Any]

    def count_good(self, way: str) -> int:
        """The number of good candidates that a search queries."""
        maximize = self.settings["maximize"]
        gain = self.y if maximize else -self.y
        level = float(np.quantile(gain, 1 - self.share, method="higher"))
        stated = {"kind": "many", "threshold": level if maximize else -level}
        goal = {BEST: None, "stated": stated}.get(way, {"kind": "many", "share": self.share})
        more: dict[str, Any] = {"batch_size": TOGETHER} if way == BATCHES else {}
        optimizer, rows = Optimizer(self.candidates, goal=goal, **self.settings, **more), list[int]()
        while len(rows) < self.queries:
            for row in optimizer.ask_batch():
                optimizer.tell(row, float(self.y[row]))
                rows.append(row)
        return int((gain[rows] >= level).sum())


def share_of(candidates: Pool) -> float:
    """The share of candidates that are good."""
    return 0.01 if len(candidates.y) >= 100 * FEW else 0.05


def of_pool(candidates: Pool, epsilon: Decimal | None, run: int) -> Problem:
    """Nothing is set but the direction, the seed and the number of queries."""
    settings: dict[str, Any] = {"maximize": candidates.maximize, "seed": run, "iterations": QUERIES - INITIAL_ROWS}
    z = candidates.x
    if epsilon is not None:
        z, settings["study"] = release_of(candidates, epsilon)
    return Problem(z, candidates.y, share_of(candidates), QUERIES, settings)


def of_process(epsilon: Decimal | None, run: int) -> Problem:
    """A function of the process, drawn anew; the outcomes have a part that each candidate has for itself."""
    grid, rng = domain(SIDE), np.random.default_rng([3, run])
    y = draw(SIDE, rng) + sqrt(NOISE_VARIANCE) * rng.standard_normal(SIDE**2)
    z, law = grid.x, NO_NOISE
    if epsilon is not None:
        mechanism = PlanarLaplaceMechanism(epsilon, 1.0)
        z, law = grid.release(mechanism), mechanism.noise(grid.rows.d)
    settings: dict[str, Any] = {"maximize": True, "seed": run, "iterations": STEPS, "initial_rows": START}
    settings |= {"initial_design": "random", "kernel": grid.kernel, "fit": None, "study": study_of(z, law, epsilon)}
    return Problem(z, y, 0.01, START + STEPS, settings)


Case = tuple[str, str]
"""The labels of a row."""


def cases(part: str) -> dict[Case, Callable[[int], Problem]]:
    """The problems of a part, a new one each run."""
    if part == "told":
        return {(level, "1%"): partial(of_process, epsilon) for level, epsilon in LEVELS.items()}
    if part == "private":
        pools, levels = {name: few(pool(name)) for name in POOLS}, EPSILONS
    else:
        pools, levels = {name: pool(name) for name in halves()["choose"]}, {"": None}
    return {
        (f"{name}, {level}" if level else name, f"{share_of(candidates):.0%}"): partial(of_pool, candidates, epsilon)
        for level, epsilon in levels.items()
        for name, candidates in pools.items()
    }


def table_of(counts: dict[Case, dict[str, list[int]]], queries: int) -> Table:
    """Means with standard errors, and how often a way is ahead of a search for the best, or behind it."""
    rows: list[list[Cell]] = []
    ways, runs = next(iter(counts.values())), 0
    ahead, behind = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
    for (name, share), of_case in counts.items():
        runs = len(of_case[BEST])
        error = {way: np.std(of_case[way], ddof=1) / sqrt(runs) for way in ways}
        cells = [f"{np.mean(of_case[way]):.1f} ({error[way]:.1f})" for way in ways]
        rows.append([name, share, *cells, f"{float(share[:-1]) / 100 * queries:.1f}"])
        for way in ways:
            apart = np.subtract(of_case[way], of_case[BEST])
            error_apart = apart.std(ddof=1) / sqrt(runs)
            ahead[way] += bool(apart.mean() > 2 * error_apart)
            behind[way] += bool(apart.mean() < -2 * error_apart)
    for title, counted in (("ahead of `best` by two standard errors", ahead), ("behind it", behind)):
        rows.append([title, "", "", *(str(counted[way]) for way in ways if way != BEST), ""])
    head = ["Candidates", "Good", *ways, "random"]
    return Table(f"Good candidates found in {queries} queries, {runs} runs (standard errors)", head, rows)


def main() -> None:
    """Play a part, and write its page."""
    part, *rest = sys.argv[1:]
    runs = int(rest[0]) if rest else RUNS[part]
    ways = WAYS if part == "pools" else WAYS[:-1]
    problems, queries = cases(part), START + STEPS if part == "told" else QUERIES
    counts = {case: {way: list[int]() for way in ways} for case in problems}
    with threadpool_limits(1):
        for run in range(runs):
            for case, make in problems.items():
                problem = make(run)
                for way in ways:
                    counts[case][way].append(problem.count_good(way))
            if run:
                page = "\n".join(table_of(counts, queries).lines()) + "\n"
                (RESULTS / FILES[part]).write_text(PAGES[part] + page, encoding="utf-8")


if __name__ == "__main__":
    main()
