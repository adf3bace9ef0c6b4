"""What every part of the reproduction offers, and how large it is played."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Task = tuple[str, int]
"""A group of columns that share their problem, and the number of a run in it: the unit of work."""
Curves = dict[str, list[float]]
"""For each column, its regret after each mark; the last is the one that tables show."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many runs; ``rounds`` is T of the algorithms over few arms, ``levels`` their epsilons."""

    name: str
    tables: int
    frontier: int
    records: int
    trials: int
    rounds: int
    levels: tuple[str, ...]
    side: int = 100
    """Points of the grid along each axis."""


FULL = Size("full", tables=200, frontier=400, records=200, trials=30, rounds=20_000, levels=("0.5", "1", "2"))
QUICK = Size("quick", tables=30, frontier=60, records=20, trials=3, rounds=20_000, levels=("1",))
SIZES = {size.name: size for size in (FULL, QUICK)}


class Part(Protocol):
    """An experiment. Small and picklable: each worker gets its own."""

    @property
    def name(self) -> str:
        """Of its files."""
        ...

    def tasks(self, size: Size) -> list[Task]:
        """Every run."""
        ...

    def play(self, task: Task, size: Size) -> Curves:
        """All columns of one run, on the same function. Seeded by the run, but for what the curator draws."""
        ...

    def marks(self, size: Size) -> Sequence[int]:
        """The steps at which curves are kept."""
        ...

    def facts(self, size: Size) -> dict[str, Any]:
        """What a reader must know of the problem: numbers that are computed, not measured over runs."""
        ...
