"""News of a run as server-sent events (WHATWG HTML, section 9.2), from what is stored: nothing is lost in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from service_kit.web.stream_limit import Place, Places

POLL_SECONDS = 0.3
BEAT_SECONDS = 15.0
STREAM_SECONDS = 600.0
"""Then it ends: who comes again shows a token that is still good."""
TRIALS_MAX = 500


@dataclass(frozen=True, slots=True)
class News:
    """What there is to tell: settled trials that were not told yet, the run where it has changed, and corrections."""

    trials: list[wire.TrialView]
    run: wire.RunView | None
    mark: tuple[object, ...]
    """Tells one state of the run from another."""
    corrected: list[wire.TrialView] = field(default_factory=list)
    """Trials told before, whose answer is another one now."""


Look = Callable[[int, tuple[object, ...] | None], News]
"""Given the number of the last trial told, and the last mark: the news."""


class Streams:
    """As many streams at once as the service bears."""

    def __init__(self) -> None:
        self._places = Places()
        self._closing = False

    def close(self) -> None:
        """Let every stream end."""
        self._closing = True

    async def follow(self, who: str, look: Look, after: int) -> AsyncIterator[str]:
        """Begin to tell a principal news after trial ``after``. Raises what a look raises, and RateLimited."""
        place = self._places.take(who)  # before the first await: who comes meanwhile finds it taken
        try:
            first = await run_in_threadpool(look, after, None)
        except BaseException:
            place.give_back()
            raise
        return self._told(place, look, after, first)

    async def _told(self, place: Place, look: Look, after: int, news: News) -> AsyncIterator[str]:
        began = spoke = time.monotonic()
        ended = False
        try:
            yield "retry: 1000\n\n"
            while True:
                for trial in news.trials:
                    after = trial.number
                    yield event("trial", trial, after)
                for trial in news.corrected:
                    yield event("correction", trial)
                if news.run is not None:
                    yield event("run", news.run)
                    ended = news.run.ended_at is not None
                more = len(news.trials) == TRIALS_MAX
                if ended and not more:
                    return
                now = time.monotonic()
                if news.trials or news.run or news.corrected:
                    spoke = now
                elif now - spoke > BEAT_SECONDS:
                    spoke = now
                    yield ": beat\n\n"
                if self._closing or now - began > STREAM_SECONDS:
                    return
                if not more:
                    await asyncio.sleep(POLL_SECONDS)
                news = await run_in_threadpool(look, after, news.mark)
        finally:
            place.give_back()


def event(kind: str, told: wire.TrialView | wire.RunView, identity: int | None = None) -> str:
    """One event: JSON in one line. One without an id leaves the last id as it was."""
    name = "" if identity is None else f"id: {identity}\n"
    return f"{name}event: {kind}\ndata: {told.model_dump_json()}\n\n"
