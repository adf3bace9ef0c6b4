"""A limit on how many streams are open at once: in total, and for each principal."""

from collections import Counter

from blindopt.errors import RateLimited

TOTAL_MAX = 64
PRINCIPAL_MAX = 8
_RETRY_SECONDS = 5


class StreamLimit:
    """The open streams of one service. All calls come from the event loop's thread."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def acquire(self, principal: str) -> "StreamSlot":
        """A slot, taken until it is released or garbage-collected. Raises RateLimited if none is free."""
        if self._open.total() >= TOTAL_MAX or self._open[principal] >= PRINCIPAL_MAX:
            raise RateLimited(_RETRY_SECONDS)
        self._open[principal] += 1
        return StreamSlot(self._open, principal)


class StreamSlot:
    """A slot that is taken. A stream that never began releases its slot when it is garbage-collected."""

    def __init__(self, open_streams: Counter[str], principal: str) -> None:
        self._open = open_streams
        self._principal: str | None = principal

    def release(self) -> None:
        """Free the slot. Releasing it again changes nothing."""
        principal, self._principal = self._principal, None
        if principal is not None:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal]

    def __del__(self) -> None:
        self.release()
