"""News of a run as server-sent events, from what is stored: nothing is lost in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from service_kit.web.server_sent_events import Batches, EventStreams, event

POLL_SECONDS = 0.3
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
        self._streams = EventStreams()
        self._closing = False

    def close(self) -> None:
        """Let every stream end."""
        self._closing = True

    async def follow(self, who: str, look: Look, after: int) -> AsyncIterator[str]:
        """Begin to tell a principal news after trial ``after``. Raises what a look raises, and RateLimited."""
        return await self._streams.open(who, self._news(look, after))

    async def _news(self, look: Look, after: int) -> Batches:
        end = time.monotonic() + STREAM_SECONDS
        mark: tuple[object, ...] | None = None
        ended = False
        while True:
            news = await run_in_threadpool(look, after, mark)
            mark = news.mark
            if news.trials:
                after = news.trials[-1].number
            batch = [event("trial", trial.model_dump_json(), trial.number) for trial in news.trials]
            batch += [event("correction", trial.model_dump_json()) for trial in news.corrected]
            if news.run is not None:
                batch.append(event("run", news.run.model_dump_json()))
                ended = news.run.ended_at is not None
            yield batch
            more = len(news.trials) == TRIALS_MAX
            if (ended and not more) or self._closing or time.monotonic() > end:
                return
            if not more:
                await asyncio.sleep(POLL_SECONDS)
