"""Uniform random rows without repetition: what any algorithm must beat."""

import numpy as np

from blindopt import wire
from blindopt.arrays import Rows
from blindopt.gp.acquisition import Choice


class RandomRows:
    """Asks every row once, in a random order of the seed. Looks at nothing.

    ``again``: then in another order, all but those that were declined.
    """

    def __init__(self, n: int, seed: int, *, again: bool = False) -> None:
        self._n, self._seed, self._again, self._round = n, seed, again, 0
        self._declined: set[int] = set()
        self._shuffle()

    def _shuffle(self) -> None:
        # Another stream than that of a run's initial rows, which are drawn from [seed, 0].
        stream = [self._seed, 1, self._round] if self._round else [self._seed, 1]
        self._order = np.random.default_rng(stream).permutation(self._n)
        self._seen = set(self._declined)
        self._pending: set[int] = set()
        self._next = 0

    def choose(self, step: int) -> Choice | None:
        """The next row of the order that was not asked before."""
        while self._next < self._n and int(self._order[self._next]) in self._seen:
            self._next += 1
        for row in map(int, self._order[self._next :]):
            if row not in self._seen and row not in self._pending:
                return Choice(row=row, mean=None, sd=None, acquisition=None, ties=1)
        return None

    def suppose(self, row: int) -> None:
        """A row of the batch was chosen: its outcome is pending."""
        self._pending.add(row)

    def retract(self) -> None:
        """Nothing is pending any more."""
        self._pending.clear()

    def hide(self, rows: Rows) -> None:
        """It repeats no row anyway."""

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Never ask ``row`` again, or not before every other."""
        self._see(row)

    def decline(self, row: int) -> None:
        """Never ask ``row`` again."""
        self._declined.add(row)
        self._see(row)

    def _see(self, row: int) -> None:
        self._seen.add(row)
        if self._again and len(self._seen) == self._n:
            self._round += 1
            self._shuffle()
