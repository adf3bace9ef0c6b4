"""After how many outcomes hyper-parameters are fitted, and a given kernel is checked."""

from dataclasses import dataclass

from blindopt.gp.fitting import ANSWERS_MAX, ANSWERS_MIN
from blindopt.wire.algorithms.plans import Engine

_SHARE = 4


@dataclass(frozen=True, slots=True)
class FitSchedule:
    """A fit after the ``initial`` outcomes (ANSWERS_MIN at least), and then again, up to ANSWERS_MAX outcomes.

    Each fit has a quarter more outcomes than the one before it, rounded down, but 1 more at least and ``every`` at
    most: a fit to few outcomes costs little, and the next outcome changes it most. By version 1 of the ``engine`` fits
    come after initial + every, initial + 2 every, ... outcomes, as checks do by both.
    """

    initial: int
    every: int
    engine: Engine = 2

    @property
    def first(self) -> int:
        """The number of outcomes of the first fit, and of the first check."""
        return max(self.initial, ANSWERS_MIN)

    def last(self, count: int) -> int:
        """The number of outcomes of the last fit that is due after ``count`` outcomes; 0 before the first."""
        if count < self.first:
            return 0
        count = min(count, ANSWERS_MAX)
        if self.engine == 1:
            return max(self.first, self.initial + (count - self.initial) // self.every * self.every)
        due = self.first
        while (later := due + min(max(due // _SHARE, 1), self.every)) <= count:
            due = later
        return due

    def before(self, due: int) -> int:
        """The number of outcomes of the fit before one; 0 if it is the first."""
        return self.last(due - 1)

    def is_check_due(self, check: int, count: int) -> bool:
        """Whether a check of ``check`` outcomes is due after ``count``."""
        return check <= count and check <= max(self.first, ANSWERS_MAX)

    def next_check(self, check: int) -> int:
        """The number of outcomes of the check after one."""
        return self.initial + ((check - self.initial) // self.every + 1) * self.every
