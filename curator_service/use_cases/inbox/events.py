"""News of the inbox as server-sent events."""

import time
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from curator_service.use_cases.inbox.inbox import Inbox
from service_kit.web.server_sent_events import BEAT_SECONDS, Batches, EventStreams, event
from service_kit.web.wakeups import INBOX, Wakeups


class Streams:
    """Event streams of the inbox, a limited number at once. Idle ones hold neither a thread nor a connection."""

    def __init__(self, inbox: Inbox, wakeups: Wakeups) -> None:
        self._inbox = inbox
        self._wakeups = wakeups
        self._streams = EventStreams()

    async def follow(self, who: str, seconds: float) -> AsyncIterator[str]:
        """Stream news to a principal for ``seconds``. Raises RateLimited."""
        return await self._streams.open(who, self._news(time.monotonic() + seconds))

    async def _news(self, end: float) -> Batches:
        last: wire.InboxNews | None = None
        with self._wakeups.listening(INBOX) as changed:
            while True:
                changed.clear()
                news = await run_in_threadpool(self._inbox.news)
                yield [] if news == last else [event("inbox", news.model_dump_json())]
                last = news
                remaining = end - time.monotonic()
                if remaining <= 0 or self._wakeups.closing:
                    return
                await self._wakeups.wait(changed, min(remaining, BEAT_SECONDS))
