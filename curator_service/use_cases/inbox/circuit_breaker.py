"""When a system that failed is called again, and whether it is called at all."""

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 600.0
FAILURES = 3
RESPECTED_SECONDS = 86_400.0
"""The longest wait that a system may request: if it requests more by mistake, it is called again the next day."""

Chance = Callable[[], float]


def chance() -> float:
    """A random number from 0 to 1, so that calls that failed together are not retried together."""
    return secrets.randbelow(1_000_001) / 1_000_000


def wait_after(failures: int, part: float) -> float:
    """Seconds until the next try after so many failures in a row: between half and all of a limit that doubles.

    ``part`` is a random number from 0 to 1.

    >>> wait_after(1, 1.0), wait_after(3, 1.0), wait_after(3, 0.0), wait_after(99, 1.0)
    (0.5, 2.0, 1.0, 600.0)
    """
    whole = min(FIRST_WAIT_SECONDS * 2.0 ** min(failures - 1, 30), LONGEST_WAIT_SECONDS)
    return whole * (1 + part) / 2


class Circuit:
    """Open once a system failed several times in a row: then one call at a time probes whether it is back.

    Each probe comes later than the one before, or when the system said (Retry-After). The first that succeeds closes
    the circuit. Its state is not stored: after a restart a few calls fail before it opens again. Not thread-safe.
    """

    def __init__(self, chance: Chance = chance) -> None:
        self._chance = chance
        self._probing: str | None = None
        self.failures = 0
        """Failures in a row, until now."""
        self.problem: str | None = None
        """The problem of the last failure."""
        self.opens_at: datetime | None = None
        """When the next call may be made; None: at any time."""

    def may_call(self, now: datetime) -> bool:
        """Whether a call may be made now."""
        return self.opens_at is None or (now >= self.opens_at and self._probing is None)

    def is_open(self, now: datetime) -> bool:
        """Whether the system counts as down, and no call probes whether it is back."""
        return self.opens_at is not None and now < self.opens_at and self._probing is None

    def begin_call(self, name: str) -> None:
        """Record that a call begins, which ``may_call`` allowed."""
        if self.opens_at is not None:
            self._probing = name

    def record_success(self) -> None:
        """Close the circuit."""
        self.failures, self.problem, self.opens_at = 0, None, None

    def record_failure(self, now: datetime, problem: str, retry_after_s: float | None = None) -> None:
        """Count a failure of the system; ``retry_after_s``: the wait that it requested."""
        self.failures += 1
        self.problem = problem
        seconds = min(retry_after_s or 0.0, RESPECTED_SECONDS)
        if self.failures >= FAILURES:
            seconds = max(seconds, wait_after(self.failures - FAILURES + 1, self._chance()))
        if seconds > 0:
            later = now + timedelta(seconds=seconds)
            self.opens_at = later if self.opens_at is None else max(self.opens_at, later)

    def end_call(self, name: str) -> None:
        """Record that a call has ended, in success or failure."""
        if self._probing == name:
            self._probing = None

    def allow_probe(self, now: datetime) -> None:
        """Allow a probe now, because a person says that the system is back."""
        if self.opens_at is not None:
            self.opens_at = min(self.opens_at, now)
