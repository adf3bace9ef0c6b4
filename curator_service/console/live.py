"""Server-sent events for parts of pages: an event whenever a reply of the API has changed."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from starlette.responses import Response, StreamingResponse

from service_kit.console import ApiProblem, Page
from service_kit.web.server_sent_events import MEDIA_TYPE, Batches, EventStreams, event

Look = Callable[[], Awaitable[object]]
POLL_SECONDS = 1.0
STREAM_SECONDS = 300.0
"""After this time a stream ends, and the page opens it again."""


_streams = EventStreams()


async def follow(page: Page, look: Look) -> Response:
    """A stream with an event ``change`` at its start and whenever the result of ``look`` differs. Raises RateLimited.

    It ends with its session, and with the service.
    """
    stream = await _streams.open(page.session.principal.id, _changes(page, look), retry_ms=2_000)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, headers=headers, media_type=MEDIA_TYPE)


async def follow_job(page: Page, path: str) -> Response:
    """A stream with an event ``change`` whenever the state or the progress of the job at ``path`` differs."""

    async def look() -> object:
        view = await page.api.get(path)
        return view["state"], view["progress"]

    return await follow(page, look)


async def _changes(page: Page, look: Look) -> Batches:
    end = time.monotonic() + STREAM_SECONDS
    last = None
    # A service that is stopping ends its streams: they would delay the stop.
    while (
        time.monotonic() < end
        and await page.site.is_live(page.session)
        and not getattr(page.request.app.state, "leaving", False)
    ):
        try:
            state = json.dumps(await look(), sort_keys=True, default=str)
        except ApiProblem:
            return  # its subject is gone, or may not be read any more
        yield [] if state == last else [event("change", "{}")]
        last = state
        await asyncio.sleep(POLL_SECONDS)
