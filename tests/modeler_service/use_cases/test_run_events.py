"""Streams of news: how many at once."""

import asyncio

import pytest

from blindopt.errors import NotFound, RateLimited
from modeler_service.use_cases.run_events import News, Streams
from service_kit.web.stream_limit import PRINCIPAL_MAX, TOTAL_MAX


def test_no_more_streams_open_than_are_borne_also_when_all_come_together():
    streams = Streams()

    async def all_at_once():
        asked = [
            streams.follow(f"usr_{i % 30}", lambda after, mark: News([], None, ()), 0) for i in range(3 * TOTAL_MAX)
        ]
        return await asyncio.gather(*asked, return_exceptions=True)

    told = asyncio.run(all_at_once())
    assert sum(not isinstance(one, Exception) for one in told) == TOTAL_MAX
    assert all(isinstance(one, RateLimited) for one in told if isinstance(one, Exception))


def test_one_who_opens_many_streams_leaves_places_for_others():
    streams = Streams()

    async def opened(who):
        return await streams.follow(who, lambda after, mark: News([], None, ()), 0)

    async def go():
        kept = [await opened("usr_a") for _ in range(PRINCIPAL_MAX)]
        with pytest.raises(RateLimited):
            await opened("usr_a")
        other = await opened("usr_b")
        await anext(kept[0])
        await kept.pop(0).aclose()  # one that was begun, and one that was not
        kept.pop()
        kept += [await opened("usr_a") for _ in range(2)]
        with pytest.raises(RateLimited):
            await opened("usr_a")
        return other, kept

    asyncio.run(go())


def test_a_stream_that_cannot_begin_takes_no_place():
    streams = Streams()

    def fails(after, mark):
        raise NotFound("no such run")

    async def many():
        for _ in range(2 * TOTAL_MAX):
            with pytest.raises(NotFound):
                await streams.follow("usr_a", fails, 0)

    asyncio.run(many())
