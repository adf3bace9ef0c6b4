"""Server-sent events (WHATWG HTML, section 9.2): one loop for all streams, and how many may be open."""

import time
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
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


class EventStreams:
    """Opens streams: so many at once, in all and for a principal. All calls come from the event loop's thread."""

    def __init__(self, beat_seconds: float = BEAT_SECONDS) -> None:
        self._open: Counter[str] = Counter()
        self._beat_seconds = beat_seconds

    async def open(self, principal: str, batches: Batches, *, retry_ms: int = 1_000) -> AsyncIterator[str]:
        """A stream of ``batches`` for a principal, after the first of them was read.

        Raises RateLimited, and what reading the first batch raises.
        """
        if self._open.total() >= TOTAL_MAX or self._open[principal] >= PRINCIPAL_MAX:
            raise RateLimited(RETRY_SECONDS)
        self._open[principal] += 1  # before the first await, so that requests meanwhile count it
        # It acts once: at the latest when a stream that never began is garbage-collected.
        release = weakref.finalize(batches, self._release, principal)
        try:
            first = await anext(batches, None)
        except BaseException:
            release()
            raise
        return self._stream(release, first, batches, retry_ms)

    def _release(self, principal: str) -> None:
        self._open -= Counter((principal,))  # without names that have none left

    async def _stream(
        self, release: Callable[[], object], first: Sequence[str] | None, batches: Batches, retry_ms: int
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
            release()
