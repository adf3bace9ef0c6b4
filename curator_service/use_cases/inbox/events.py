"""News of the inbox as server-sent events (WHATWG HTML, section 9.2)."""

import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from curator_service.use_cases.inbox.inbox import Inbox
from curator_service.use_cases.queries.wakeups import INBOX, Bells
from service_kit.web.stream_limit import Place, Places

BEAT_SECONDS = 15.0


class Streams:
    """As many streams at once as the service bears. Between news they hold neither a thread nor a connection."""

    def __init__(self, inbox: Inbox, bells: Bells) -> None:
        self._inbox = inbox
        self._bells = bells
        self._places = Places()

    def follow(self, who: str, seconds: float) -> AsyncIterator[str]:
        """Tell news to a principal for so long. Raises RateLimited."""
        return self._told(self._places.take(who), time.monotonic() + seconds)

    async def _told(self, place: Place, end: float) -> AsyncIterator[str]:
        try:
            yield "retry: 1000\n\n"
            last: wire.InboxNews | None = None
            with self._bells.listening(INBOX) as event:
                while True:
                    event.clear()
                    news = await run_in_threadpool(self._inbox.news)
                    if news != last:
                        last = news
                        yield f"event: inbox\ndata: {news.model_dump_json()}\n\n"
                    left = end - time.monotonic()
                    if left <= 0 or self._bells.closing:
                        return
                    if not await self._bells.wait(event, min(left, BEAT_SECONDS)):
                        yield ": beat\n\n"
        finally:
            place.give_back()
