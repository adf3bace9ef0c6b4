"""Server-sent events for parts of pages: one whenever what the API tells has changed."""

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
"""Then it ends, and the page opens it again."""


_streams = EventStreams()


async def follow(page: Page, look: Look) -> Response:
    """A stream that says ``change`` at its start and whenever ``look`` tells something else. Raises RateLimited.

    It ends with its session, and with the service.
    """
    stream = await _streams.open(page.session.principal.id, _changes(page, look), retry_ms=2_000)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, headers=headers, media_type=MEDIA_TYPE)


async def _changes(page: Page, look: Look) -> Batches:
    end = time.monotonic() + STREAM_SECONDS
    last = None
    # A service that is going down ends its streams: they would hold up the drain.
    while (
        time.monotonic() < end
        and page.site.is_live(page.session)
        and not getattr(page.request.app.state, "leaving", False)
    ):
        try:
            state = json.dumps(await look(), sort_keys=True, default=str)
        except ApiProblem:
            return  # what it was about is gone, or may not be seen any more
        yield [] if state == last else [event("change", "{}")]
        last = state
        await asyncio.sleep(POLL_SECONDS)
