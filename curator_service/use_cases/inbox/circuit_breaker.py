"""When a system that failed is called again, and whether it is called at all: for one system, by several threads."""

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 600.0
FAILURES = 3
RESPECTED_SECONDS = 86_400.0
"""The longest that a system may ask us to wait: one that says more by mistake is heard of again the next day."""

Chance = Callable[[], float]


def chance() -> float:
    """A number from 0 to 1, so that what failed together does not come back together."""
    return secrets.randbelow(1_000_001) / 1_000_000


def wait_after(failures: int, part: float) -> float:
    """Seconds until another try after so many failures in a row: doubled each time, and from half of that on.

    ``part`` is a chance from 0 to 1.

    >>> wait_after(1, 1.0), wait_after(3, 1.0), wait_after(3, 0.0), wait_after(99, 1.0)
    (0.5, 2.0, 1.0, 600.0)
    """
    whole = min(FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 30), LONGEST_WAIT_SECONDS)
    return whole * (1 + part) / 2


class Circuit:
    """Open once a system failed several times in a row: then one call at a time asks whether it is back.

    That call comes ever later, or when the system said (Retry-After). The first that succeeds closes the circuit. It
    forgets with the process: a start asks a few times before it knows again. Not safe for several threads by itself.
    """

    def __init__(self, chance: Chance = chance) -> None:
        self._chance = chance
        self._probing: str | None = None
        self.failures = 0
        """In a row, until now."""
        self.problem: str | None = None
        """What was wrong at the last of them."""
        self.opens_at: datetime | None = None
        """When the next call may be made; None: at any time."""

    def may_call(self, now: datetime) -> bool:
        """Whether a call may be made now."""
        return self.opens_at is None or (now >= self.opens_at and self._probing is None)

    def is_open(self, now: datetime) -> bool:
        """Whether the system is taken for down, and nobody is about to find out whether it is back."""
        return self.opens_at is not None and now < self.opens_at and self._probing is None

    def call(self, name: str) -> None:
        """A call is begun: ``may_call`` said so."""
        if self.opens_at is not None:
            self._probing = name

    def succeeded(self) -> None:
        """The system is there."""
        self.failures, self.problem, self.opens_at = 0, None, None

    def failed(self, now: datetime, problem: str, retry_after_s: float | None = None) -> None:
        """The system did not answer, or not as one that works; ``retry_after_s``: what it asked us to wait."""
        self.failures += 1
        self.problem = problem
        seconds = min(retry_after_s or 0.0, RESPECTED_SECONDS)
        if self.failures >= FAILURES:
            seconds = max(seconds, wait_after(self.failures - FAILURES + 1, self._chance()))
        if seconds > 0:
            later = now + timedelta(seconds=seconds)
            self.opens_at = later if self.opens_at is None else max(self.opens_at, later)

    def ended(self, name: str) -> None:
        """A call has ended, whatever it came to."""
        if self._probing == name:
            self._probing = None

    def hurry(self, now: datetime) -> None:
        """Somebody says that it is back: let one call be made now."""
        if self.opens_at is not None:
            self.opens_at = min(self.opens_at, now)
