"""Events of a run as server-sent events (WHATWG HTML, section 9.2), read from the stored run: none is lost."""

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
"""The longest stream: a client that connects again authenticates again."""
TRIALS_MAX = 500


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """Settled trials that were not sent yet, the run if it has changed, and corrections."""

    trials: list[wire.TrialView]
    run: wire.RunView | None
    mark: tuple[object, ...]
    """Identifies the state of the run."""
    corrected: list[wire.TrialView] = field(default_factory=list)
    """Trials that were sent before, whose answer has changed since."""


LoadUpdate = Callable[[int, tuple[object, ...] | None], RunUpdate]
"""Returns the update after the last trial that was sent, by its number, and the last mark."""


class EventStreams:
    """The event streams of the service, which are limited in number."""

    def __init__(self) -> None:
        self._slots = Places()
        self._closing = False

    def close(self) -> None:
        """Let every stream end."""
        self._closing = True

    async def follow(self, principal_id: str, load: LoadUpdate, after: int) -> AsyncIterator[str]:
        """Begin a stream of events after trial ``after``. Raises what ``load`` raises, and RateLimited."""
        slot = self._slots.take(principal_id)  # before the first await, so that others see it taken
        try:
            first = await run_in_threadpool(load, after, None)
        except BaseException:
            slot.give_back()
            raise
        return self._events(slot, load, after, first)

    async def _events(self, slot: Place, load: LoadUpdate, after: int, update: RunUpdate) -> AsyncIterator[str]:
        began = last_sent = time.monotonic()
        ended = False
        try:
            yield "retry: 1000\n\n"
            while True:
                for trial in update.trials:
                    after = trial.number
                    yield event("trial", trial, after)
                for trial in update.corrected:
                    yield event("correction", trial)
                if update.run is not None:
                    yield event("run", update.run)
                    ended = update.run.ended_at is not None
                more = len(update.trials) == TRIALS_MAX
                if ended and not more:
                    return
                now = time.monotonic()
                if update.trials or update.run or update.corrected:
                    last_sent = now
                elif now - last_sent > BEAT_SECONDS:
                    last_sent = now
                    yield ": beat\n\n"
                if self._closing or now - began > STREAM_SECONDS:
                    return
                if not more:
                    await asyncio.sleep(POLL_SECONDS)
                update = await run_in_threadpool(load, after, update.mark)
        finally:
            slot.give_back()


def event(kind: str, data: wire.TrialView | wire.RunView, identity: int | None = None) -> str:
    """Return an event with JSON in one line. An event without an id keeps the last id."""
    name = "" if identity is None else f"id: {identity}\n"
    return f"{name}event: {kind}\ndata: {data.model_dump_json()}\n\n"
