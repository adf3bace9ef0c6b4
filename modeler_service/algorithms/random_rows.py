"""Uniform random rows without repetition: what any algorithm must beat."""

import numpy as np

from shared import wire
from shared.acquisition import Choice


class RandomRows:
    """Asks every row once, in a random order of the seed. Looks at nothing."""

    def __init__(self, n: int, seed: int) -> None:
        # Another stream than that of a run's initial rows, which are drawn from [seed, 0].
        self._order = np.random.default_rng([seed, 1]).permutation(n)
        self._seen: set[int] = set()
        self._next = 0

    def choose(self, step: int) -> Choice | None:
        """The next row of the order that was not asked before."""
        while self._next < len(self._order) and int(self._order[self._next]) in self._seen:
            self._next += 1
        if self._next == len(self._order):
            return None
        return Choice(row=int(self._order[self._next]), mean=None, sd=None, acquisition=None, ties=1)

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Remember that the row was asked."""
        self._seen.add(row)
