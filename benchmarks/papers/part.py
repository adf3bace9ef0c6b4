"""The interface of the parts of the reproduction, and their sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Task = tuple[str, int]
"""The unit of work: a group of columns that share their problem, and the number of a run in it."""
Curves = dict[str, list[float]]
"""For each column, its regret at each mark; tables show the last one."""

POOLS = (
    "process, grid", "process, clusters", "process, scattered", "Branin", "Hartmann 6", "property", "houses", "loans",
    "diabetes", "concrete", "Ames",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of runs; ``rounds`` is T of the algorithms for few arms, ``levels`` are their epsilons.

    ``rules`` is that of each of ``pools`` and level, in ``pool_steps`` steps; ``variants`` that of further experiments
    on records, ``groups`` that of searches for groups, ``coverage`` that of checked intervals.
    """

    name: str
    tables: int
    frontier: int
    records: int
    trials: int
    rounds: int
    levels: tuple[str, ...]
    rules: int
    variants: int = 30
    groups: int = 40
    coverage: int = 200
    pools: tuple[str, ...] = POOLS
    pool_steps: int = 50
    side: int = 100
    """Points of the grid along each axis."""


FULL = Size(
    "full",
    tables=200,
    frontier=400,
    records=200,
    trials=30,
    rounds=20_000,
    levels=("0.5", "1", "2"),
    rules=100,
)
QUICK = Size(
    "quick",
    tables=30,
    frontier=60,
    records=20,
    trials=3,
    rounds=20_000,
    levels=("1",),
    rules=2,
    variants=10,
    groups=4,
    coverage=4,
)
SIZES = {size.name: size for size in (FULL, QUICK)}


class Part(Protocol):
    """An experiment. Small and picklable: each worker gets a copy."""

    @property
    def name(self) -> str:
        """Name of its files."""
        ...

    def tasks(self, size: Size) -> list[Task]:
        """All runs."""
        ...

    def play(self, task: Task, size: Size) -> Curves:
        """Run all columns on the same function. Seeded by the run, except for the curator's draws."""
        ...

    def marks(self, size: Size) -> Sequence[int]:
        """Steps at which curves are stored."""
        ...

    def facts(self, size: Size) -> dict[str, Any]:
        """Properties of the problem for the reader: computed, not measured over runs."""
        ...
