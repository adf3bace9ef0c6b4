"""Events of a run as server-sent events, read from the stored run: none is lost."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool

from blindopt import wire
from service_kit.web.server_sent_events import Batches, event
from service_kit.web.wakeups import Wakeups

POLL_SECONDS = 0.3
STREAM_SECONDS = 600.0
"""The longest stream: a client that connects again authenticates again."""
TRIALS_MAX = 500


@dataclass(frozen=True, slots=True)
class RunUpdate:
    """Settled trials that were not sent yet, the run if it has changed, and corrections."""

    trials: list[wire.TrialView]
    run: wire.RunView | None
    mark: tuple[Any, ...]
    """Identifies the state of the run."""
    corrected: list[wire.TrialView] = field(default_factory=list)
    """Trials that were sent before, whose answer has changed since."""


LoadUpdate = Callable[[int, tuple[Any, ...] | None], RunUpdate]
"""Returns the update after the last trial that was sent, by its number, and the last mark."""


async def batches(load: LoadUpdate, after: int, wakeups: Wakeups) -> Batches:
    """Events after trial ``after``, until the service ends or the stream is too long. Raises what ``load`` raises."""
    end = time.monotonic() + STREAM_SECONDS
    mark: tuple[Any, ...] | None = None
    ended = False
    while True:
        update = await run_in_threadpool(load, after, mark)
        mark = update.mark
        if update.trials:
            after = update.trials[-1].number
        batch = [event("trial", trial.model_dump_json(), trial.number) for trial in update.trials]
        batch += [event("correction", trial.model_dump_json()) for trial in update.corrected]
        if update.run is not None:
            batch.append(event("run", update.run.model_dump_json()))
            ended = update.run.ended_at is not None
        yield batch
        more = len(update.trials) == TRIALS_MAX
        if (ended and not more) or wakeups.closing or time.monotonic() > end:
            return
        if not more:
            await asyncio.sleep(POLL_SECONDS)
