"""News of the inbox as server-sent events."""

import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from curator_service.use_cases.inbox.inbox import Inbox
from curator_service.use_cases.queries.wakeups import INBOX, Bells
from service_kit.web.server_sent_events import BEAT_SECONDS, Batches, EventStreams, event


class Streams:
    """As many streams at once as the service bears. Between news they hold neither a thread nor a connection."""

    def __init__(self, inbox: Inbox, bells: Bells) -> None:
        self._inbox = inbox
        self._bells = bells
        self._streams = EventStreams()

    async def follow(self, who: str, seconds: float) -> AsyncIterator[str]:
        """Tell news to a principal for so long. Raises RateLimited."""
        return await self._streams.open(who, self._news(time.monotonic() + seconds))

    async def _news(self, end: float) -> Batches:
        last: wire.InboxNews | None = None
        with self._bells.listening(INBOX) as bell:
            while True:
                bell.clear()
                news = await run_in_threadpool(self._inbox.news)
                yield [] if news == last else [event("inbox", news.model_dump_json())]
                last = news
                remaining = end - time.monotonic()
                if remaining <= 0 or self._bells.closing:
                    return
                await self._bells.wait(bell, min(remaining, BEAT_SECONDS))
