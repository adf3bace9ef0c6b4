"""Server-sent events (WHATWG HTML, section 9.2): one loop for all streams, and how many may be open."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from service_kit.web.stream_limit import StreamLimit, StreamSlot

MEDIA_TYPE = "text/event-stream"
BEAT_SECONDS = 15.0
"""After so long a silence a comment is sent, which shows that the stream is alive."""
Batches = AsyncGenerator[Sequence[str], None]
"""Yields the events since it last looked, perhaps none, at least every ``BEAT_SECONDS``. The stream ends with it."""


def event(kind: str, data: str, identity: int | None = None) -> str:
    """One event; ``data`` is one line. Without an id, the client keeps the id of an earlier event."""
    id_line = "" if identity is None else f"id: {identity}\n"
    return f"{id_line}event: {kind}\ndata: {data}\n\n"


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
                    for text in events:
                        yield text
                    if events:
                        sent_at = time.monotonic()
                    elif time.monotonic() - sent_at >= self._beat_seconds:
                        sent_at = time.monotonic()
                        yield ": beat\n\n"
        finally:
            slot.release()
