"""Uniform random rows without repetition: what any algorithm must beat."""

import numpy as np

from blindopt import wire
from blindopt.arrays import Rows
from blindopt.gp.acquisition import Choice


class RandomRows:
    """Chooses every row once, in a random order of the seed, whatever the outcomes.

    With ``repeats`` it then goes through all rows again in another order, except those that were declined.
    """

    def __init__(self, n: int, seed: int, *, repeats: bool = False) -> None:
        self._n, self._seed, self._repeats, self._round = n, seed, repeats, 0
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
        """Return the next row of the order that was not chosen before."""
        while self._next < self._n and int(self._order[self._next]) in self._seen:
            self._next += 1
        for row in map(int, self._order[self._next :]):
            if row not in self._seen and row not in self._pending:
                return Choice(row=row, mean=None, sd=None, acquisition=None, ties=1)
        return None

    def suppose(self, row: int) -> None:
        self._pending.add(row)

    def retract(self) -> None:
        self._pending.clear()

    def hide(self, rows: Rows) -> None:
        """Do nothing: the order repeats no row."""

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Never choose ``row`` again, or not before every other."""
        self._see(row)

    def decline(self, row: int) -> None:
        self._declined.add(row)
        self._see(row)

    def _see(self, row: int) -> None:
        self._seen.add(row)
        if self._repeats and len(self._seen) == self._n:
            self._round += 1
            self._shuffle()
