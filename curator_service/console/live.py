"""Server-sent events for parts of pages: one whenever what the API tells has changed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response, StreamingResponse

from service_kit.console import ApiProblem, Page
from service_kit.web.stream_limit import Place, Places

Look = Callable[[], Awaitable[object]]
POLL_SECONDS = 1.0
BEAT_SECONDS = 15.0
STREAM_SECONDS = 300.0
"""Then it ends, and the page opens it again."""


_places = Places()


def follow(page: Page, look: Look) -> Response:
    """A stream that says ``change`` at its start and whenever ``look`` tells something else. Raises RateLimited.

    It ends with its session, and with the service.
    """
    place = _places.take(page.session.principal.id)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_events(page, look, place), headers=headers, media_type="text/event-stream")


async def _events(page: Page, look: Look, place: Place) -> AsyncIterator[str]:
    try:
        yield "retry: 2000\n\n"
        began = spoke = time.monotonic()
        seen = None
        while time.monotonic() - began < STREAM_SECONDS and page.site.is_live(page.session):
            if getattr(page.request.app.state, "leaving", False):  # else it would hold up the drain
                return
            try:
                told = json.dumps(await look(), sort_keys=True, default=str)
            except ApiProblem:
                return  # what it was about is gone, or may not be seen any more
            if told != seen:
                seen, spoke = told, time.monotonic()
                yield "event: change\ndata: {}\n\n"
            elif time.monotonic() - spoke > BEAT_SECONDS:
                spoke = time.monotonic()
                yield ": beat\n\n"
            await asyncio.sleep(POLL_SECONDS)
    finally:
        place.give_back()
