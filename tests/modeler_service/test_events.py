"""Streams of news: how many at once."""

import asyncio

import pytest

from modeler_service.events import STREAMS_MAX, News, Streams
from shared.errors import NotFound, RateLimited


def test_no_more_streams_open_than_are_borne_also_when_all_come_together():
    streams = Streams()

    async def all_at_once():
        asked = [streams.follow(lambda after, mark: News([], None, ()), 0) for _ in range(3 * STREAMS_MAX)]
        return await asyncio.gather(*asked, return_exceptions=True)

    told = asyncio.run(all_at_once())
    assert sum(not isinstance(one, Exception) for one in told) == STREAMS_MAX
    assert all(isinstance(one, RateLimited) for one in told if isinstance(one, Exception))


def test_a_stream_that_cannot_begin_takes_no_place():
    streams = Streams()

    def fails(after, mark):
        raise NotFound("no such run")

    async def many():
        for _ in range(2 * STREAMS_MAX):
            with pytest.raises(NotFound):
                await streams.follow(fails, 0)

    asyncio.run(many())
