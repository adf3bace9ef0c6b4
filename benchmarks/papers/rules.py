"""Which rule: what a run does that is given candidates and outcomes and no kernel, with each rule, on many pools."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import exp
from time import process_time
from typing import Any

import numpy as np

from benchmarks.papers.part import Curves, Size, Task
from benchmarks.papers.pools import Pool, pool
from benchmarks.papers.search import release, rows_of
from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.optimizer.algorithms.settings import NO_NOISE
from blindopt.optimizer.chooser import RowChooser
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism

MARKS = 5
OPEN = "no privacy"
LEVELS: dict[str, Decimal | None] = {
    OPEN: None,
    "epsilon = 1": Decimal(1),
    "epsilon = e^1.1": Decimal(f"{exp(1.1):.9f}"),
}
BEST, RECOMMENDED, TOP, REPEATS, CPU = "regret", "recommended", "top 1 %", "repeated", "seconds"
"""What is measured of a rule: the regret of the best queried record and of the recommended one, in standard deviations
of y; the queries before the first record of the top 1 %, the initial ones included; candidates queried again; and
processor time."""
FACTS = (BEST, RECOMMENDED, TOP, REPEATS, CPU)

FIT = {"starts": 2}
"""Fewer starting points than usual, for the sake of time."""
RULES: dict[str, dict[str, Any]] = {
    "gp_ucb": {"algorithm": {"name": "gp_ucb"}, "fit": FIT},
    "gp_ucb, nugget out, scale 0.2": {"algorithm": {"name": "gp_ucb", "nugget": "out", "scale": 0.2}, "fit": FIT},
    "ei": {"algorithm": {"name": "ei"}, "fit": FIT},
    "random": {"algorithm": {"name": "random"}},
}
"""Settings of a run, by rule; the others are those of ``spec_of``."""
DEBLURRED: dict[str, dict[str, Any]] = {"ei_deblurred": {"algorithm": {"name": "ei_deblurred"}, "fit": FIT}}
"""Rules that need the law of a release's noise: not for candidates without noise."""


def measured(rule: str, fact: str) -> str:
    """Name of the column."""
    return f"{rule}: {fact}"


def _marks(size: Size) -> list[int]:
    return [size.pool_steps * mark // MARKS for mark in range(1, MARKS + 1)]


def spec_of(rule: str, d: int, run: int, steps: int) -> wire.RunSpec:
    """Settings of a run: max(5, 2 d) spread candidates first, and no candidate twice unless the rule says so."""
    settings = {
        "curator_url": "http://127.0.0.1:9",
        "study_id": "std_0123456789abcdef",
        "iterations": steps,
        "initial_rows": max(5, 2 * d),
        "initial_design": "maximin",
        "repeats": "never",
        "seed": run,
    }
    return wire.RunSpec.model_validate(settings | (RULES | DEBLURRED)[rule])


def study_of(z: Matrix, law: wire.NoiseLaw, epsilon: Decimal | None) -> wire.StudyView:
    """A study of a column's exact outcomes, as a modeler sees it."""
    n, r = z.shape
    return wire.StudyView(
        id="std_0123456789abcdef",
        state="open",
        n=n,
        r=r,
        release_id="rel_1",
        release_sha256="0" * 64,
        mechanism="identity" if epsilon is None else "planar_laplace",
        status="unprotected" if epsilon is None else "sound",
        epsilon=None if epsilon is None else str(epsilon),
        delta=None,
        sensitivity=None if epsilon is None else 1.0,
        noise=law,
        answers=wire.NONE,
        privacy_unit="row",
        budget=wire.Budget(),
        grant_id="grt_0123456789abcdef",
        log_key="x",
        direction="maximize",
        measurement_source="column",
        measurement_noise_variance=0.0,
        kernel=None,
        limits=wire.Limits(rows_per_query=1_000, plays_per_row=1_000),
        reply_after_ms=None,
        guarantee="",
        not_protected=[],
    )


@dataclass(slots=True)
class Course:
    """What a search has found after each of its T steps."""

    pool: Pool
    rows: list[int] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=lambda: {fact: [] for fact in FACTS})

    def mark(self, recommended: int, seconds: float) -> None:
        """Note the state after a step."""
        y, rows, hits = self.pool.y, np.array(self.rows), np.flatnonzero(self.pool.top[self.rows])
        state = {
            BEST: y.max() - y[rows].max(),
            RECOMMENDED: y.max() - y[recommended],
            TOP: hits[0] + 1 if len(hits) else len(rows),
            REPEATS: len(rows) - len(np.unique(rows)),
            CPU: seconds,
        }
        for fact, figure in state.items():
            self.figures[fact].append(float(figure))

    def curves(self, rule: str) -> Curves:
        """The columns of a rule."""
        return {measured(rule, fact): curve for fact, curve in self.figures.items()}


def search(candidates: Pool, chooser: RowChooser) -> Iterator[tuple[int, float]]:
    """Yield the rows of a run and the processor time so far, and show it their outcomes."""
    started = process_time()
    while proposals := chooser.next():
        for proposal in proposals:
            chooser.observe(proposal.row, float(candidates.y[proposal.row]))
            yield proposal.row, process_time() - started


def play(candidates: Pool, z: Matrix, study: wire.StudyView, spec: wire.RunSpec, rule: str) -> Curves:
    """The columns of a rule on candidates released as ``z``."""
    chooser, course = RowChooser(spec, study, z), Course(candidates)
    marks = {chooser.last - spec.iterations * mark // MARKS for mark in range(MARKS)}
    for row, seconds in search(candidates, chooser):
        course.rows.append(row)
        if len(course.rows) in marks:
            best = chooser.best("asked")
            assert best is not None, "outcomes were observed"
            course.mark(best.row, seconds)
    return course.curves(rule)


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules on all pools, without privacy and with planar Laplace noise."""

    name: str = "rules"

    def tasks(self, size: Size) -> list[Task]:
        return [(f"{name}, {level}", run) for run in range(size.rules) for name in size.pools for level in LEVELS]

    def marks(self, size: Size) -> Sequence[int]:
        return _marks(size)

    def play(self, task: Task, size: Size) -> Curves:
        name, level = task[0].rsplit(", ", 1)
        candidates, epsilon = pool(name, task[1], size.side), LEVELS[level]
        z, law = candidates.x, NO_NOISE
        if epsilon is not None:
            mechanism = PlanarLaplaceMechanism(epsilon, 1.0)
            z, law = release(rows_of(candidates.x), mechanism), mechanism.noise(z.shape[1])
        study, curves = study_of(z, law, epsilon), Curves()
        for rule in RULES if epsilon is None else RULES | DEBLURRED:
            curves |= play(candidates, z, study, spec_of(rule, z.shape[1], task[1], size.pool_steps), rule)
        return curves

    def facts(self, size: Size) -> dict[str, Any]:
        return _facts(size.pools, size)


def _facts(names: Iterable[str], size: Size) -> dict[str, Any]:
    shapes = {name: pool(name, 0, size.side).x.shape for name in names}
    return {"steps": size.pool_steps, "shapes": {name: [int(n), int(d)] for name, (n, d) in shapes.items()}}
