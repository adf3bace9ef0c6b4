"""Server-sent events (WHATWG HTML, section 9.2): one loop for all streams, and how many may be open."""

import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from blindopt.errors import RateLimited

MEDIA_TYPE = "text/event-stream"
TOTAL_MAX = 64
PRINCIPAL_MAX = 8
RETRY_SECONDS = 5
BEAT_SECONDS = 15.0
"""After so long a silence a comment is sent, which shows that the stream is alive."""
Batches = AsyncGenerator[Sequence[str], None]
"""Yields the events since it last looked, perhaps none, at least every ``BEAT_SECONDS``. The stream ends with it."""


def event(kind: str, data: str, event_id: int | None = None) -> str:
    """One event; ``data`` is one line. Without an id, the client keeps the id of an earlier event."""
    id_line = "" if event_id is None else f"id: {event_id}\n"
    return f"{id_line}event: {kind}\ndata: {data}\n\n"


class StreamLimit:
    """The open streams of one service. All calls come from the event loop's thread."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def acquire(self, principal: str) -> "StreamSlot":
        """A slot, taken until it is released or garbage-collected. Raises RateLimited if none is free."""
        if self._open.total() >= TOTAL_MAX or self._open[principal] >= PRINCIPAL_MAX:
            raise RateLimited(RETRY_SECONDS)
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


class EventStreams:
    """Opens streams, within a ``StreamLimit`` of its own."""

    def __init__(self, beat_seconds: float = BEAT_SECONDS) -> None:
        self._limit = StreamLimit()
        self._beat_seconds = beat_seconds

    async def open(self, principal: str, batches: Batches, *, retry_ms: int = 1_000) -> AsyncIterator[str]:
        """A stream of ``batches`` for a principal, after the first of them was read.

        Raises RateLimited, and what reading the first batch raises.
        """
        slot = self._limit.acquire(principal)  # before the first await, so that requests meanwhile count it
        try:
            first = await anext(batches, None)
        except BaseException:
            slot.release()
            raise
        return self._stream(slot, first, batches, retry_ms)

    async def _stream(
        self, slot: StreamSlot, first: Sequence[str] | None, batches: Batches, retry_ms: int
    ) -> AsyncIterator[str]:
        try:
            async with aclosing(batches):
                yield f"retry: {retry_ms}\n\n" + "".join(first or ())
                sent_at = time.monotonic()
                async for events in batches:
                    for line in events:
                        yield line
                    if events:
                        sent_at = time.monotonic()
                    elif time.monotonic() - sent_at >= self._beat_seconds:
                        sent_at = time.monotonic()
                        yield ": beat\n\n"
        finally:
            slot.release()
