"""Event streams of runs: how many at once."""

import asyncio

import pytest

from blindopt.errors import NotFound, RateLimited
from modeler_service.use_cases.run_events import RunUpdate, batches
from service_kit.web.server_sent_events import PRINCIPAL_MAX, TOTAL_MAX, EventStreams
from service_kit.web.wakeups import Wakeups


def no_update(after, mark):
    return RunUpdate([], None, ())


def follow(streams, principal, load):
    return streams.open(principal, batches(load, 0, Wakeups()))


def test_no_more_streams_than_the_limit_open_also_when_all_come_together():
    streams = EventStreams()

    async def all_at_once():
        requests = [follow(streams, f"usr_{i % 30}", no_update) for i in range(3 * TOTAL_MAX)]
        return await asyncio.gather(*requests, return_exceptions=True)

    results = asyncio.run(all_at_once())
    assert sum(not isinstance(result, Exception) for result in results) == TOTAL_MAX
    assert all(isinstance(result, RateLimited) for result in results if isinstance(result, Exception))


def test_a_principal_with_many_streams_takes_none_from_others():
    streams = EventStreams()

    async def go():
        kept = [await follow(streams, "usr_a", no_update) for _ in range(PRINCIPAL_MAX)]
        with pytest.raises(RateLimited):
            await follow(streams, "usr_a", no_update)
        other = await follow(streams, "usr_b", no_update)
        await anext(kept[0])
        await kept.pop(0).aclose()  # a stream that was begun, and another that was not
        kept.pop()
        kept += [await follow(streams, "usr_a", no_update) for _ in range(2)]
        with pytest.raises(RateLimited):
            await follow(streams, "usr_a", no_update)
        return other, kept

    asyncio.run(go())


def test_a_stream_that_cannot_begin_does_not_count():
    streams = EventStreams()

    def fails(after, mark):
        raise NotFound("no such run")

    async def many():
        for _ in range(2 * TOTAL_MAX):
            with pytest.raises(NotFound):
                await follow(streams, "usr_a", fails)

    asyncio.run(many())
