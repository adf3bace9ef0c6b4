"""Commits of other connections: how many a transaction has noticed, and whether a verification has covered them."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from blindopt.errors import Verifying

T = TypeVar("T")
_WRITES = "blindopt_foreign_writes"
RETRY_S_MAX = 10
_SETTLE_S = 1.0


class ForeignWrites:
    """Counts the commits of other connections, so of other programs, that were noticed at the begin of transactions."""

    def __init__(self) -> None:
        self.count = 0
        self.verified: int | None = None
        """The count that the last verification covered, -1 before the first; None: this process waits for none."""
        self.is_seen = False
        """Whether a read saw one, which the next transaction counts."""
        self.seconds = 0.0
        """How long a verification takes, about."""

    @property
    def are_verified(self) -> bool:
        """Whether a verification has covered all of them, and the start."""
        return self.verified is None or (self.verified >= self.count and not self.is_seen)

    async def settle(self) -> None:
        """Wait until they are verified, for a moment, unless a verification takes longer."""
        deadline = time.monotonic() + _SETTLE_S
        while not self.are_verified and self.seconds <= _SETTLE_S and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def retry(self, act: Callable[[], T], is_over: Callable[[], bool]) -> T:
        """Act again for as long as it raises Verifying, in a thread whose work of minutes would be lost."""
        while True:
            try:
                return act()
            except Verifying:
                if is_over():
                    raise
                time.sleep(_SETTLE_S)

    def check_verified(self) -> None:
        """Raise Verifying unless they are verified."""
        if not self.are_verified:
            raise Verifying(min(max(1, round(self.seconds)), RETRY_S_MAX))


def watch(db: Connection, writes: ForeignWrites) -> None:
    """Let the transactions of the connection that writes look at ``writes``."""
    db.info[_WRITES] = writes


def note(db: Connection, writes: ForeignWrites) -> None:
    """Note at the begin of a reading transaction how many were noticed."""
    db.info[_WRITES] = writes.count


def noticed(db: Connection) -> int:
    """How many were noticed before this transaction read anything: what was read before another one may be changed."""
    writes: ForeignWrites | int = db.info.get(_WRITES, 0)
    return writes if isinstance(writes, int) else writes.count


def check_verified(db: Connection) -> None:
    """Raise Verifying in a transaction that writes, unless all foreign writes before it are verified."""
    writes = db.info.get(_WRITES)
    if isinstance(writes, ForeignWrites):
        writes.check_verified()
