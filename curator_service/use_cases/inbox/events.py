"""News of the inbox as server-sent events (WHATWG HTML, section 9.2)."""

import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from curator_service.use_cases.inbox.inbox import Inbox
from curator_service.use_cases.queries.wakeups import INBOX, Wakeups
from service_kit.web.stream_limit import Place, Places

BEAT_SECONDS = 15.0


class Streams:
    """Event streams of the inbox, a limited number at once. Idle ones hold neither a thread nor a connection."""

    def __init__(self, inbox: Inbox, wakeups: Wakeups) -> None:
        self._inbox = inbox
        self._wakeups = wakeups
        self._places = Places()

    def follow(self, who: str, seconds: float) -> AsyncIterator[str]:
        """Stream news to a principal for ``seconds``. Raises RateLimited."""
        return self._stream(self._places.take(who), time.monotonic() + seconds)

    async def _stream(self, slot: Place, end: float) -> AsyncIterator[str]:
        try:
            yield "retry: 1000\n\n"
            last: wire.InboxNews | None = None
            with self._wakeups.listening(INBOX) as event:
                while True:
                    event.clear()
                    news = await run_in_threadpool(self._inbox.news)
                    if news != last:
                        last = news
                        yield f"event: inbox\ndata: {news.model_dump_json()}\n\n"
                    remaining = end - time.monotonic()
                    if remaining <= 0 or self._wakeups.closing:
                        return
                    if not await self._wakeups.wait(event, min(remaining, BEAT_SECONDS)):
                        yield ": beat\n\n"
        finally:
            slot.give_back()
