"""The one loop of all event streams: what it sends, when it beats, and what it releases at its end."""

import asyncio
from contextlib import suppress
from math import inf

import pytest

from blindopt.errors import NotFound, RateLimited
from service_kit.web.server_sent_events import PRINCIPAL_MAX, TOTAL_MAX, EventStreams, event


class Source:
    """Yields batches, and records that it was closed."""

    def __init__(self, *batches):
        self.batches = batches
        self.is_closed = False

    async def read(self):
        try:
            for batch in self.batches:
                yield batch
        finally:
            self.is_closed = True


def test_an_event_is_one_line_of_data_with_or_without_an_id():
    assert event("run", "{}") == "event: run\ndata: {}\n\n"
    assert event("trial", "{}", 0) == "id: 0\nevent: trial\ndata: {}\n\n"


@pytest.mark.parametrize(("beat_seconds", "beats"), [(0.0, [": beat\n\n"]), (inf, [])])
def test_a_stream_sends_every_batch_and_beats_only_in_silence(beat_seconds, beats):
    async def main():
        stream = await EventStreams(beat_seconds).open("usr_a", Source(["a"], [], ["b", "c"]).read(), retry_ms=7)
        return [text async for text in stream]

    assert asyncio.run(main()) == ["retry: 7\n\na", *beats, "b", "c"]


def test_a_source_without_anything_to_send_is_an_empty_stream():
    async def main():
        return [text async for text in await EventStreams().open("usr_a", Source().read())]

    assert asyncio.run(main()) == ["retry: 1000\n\n"]


def test_a_stream_that_is_closed_early_closes_its_source_and_releases_its_slot():
    async def main():
        streams = EventStreams()
        for _ in range(2 * PRINCIPAL_MAX):
            source = Source(*[["a"]] * 9)
            stream = await streams.open("usr_a", source.read())
            await anext(stream)
            await stream.aclose()
            assert source.is_closed
        held = [await streams.open("usr_a", Source(["a"]).read()) for _ in range(PRINCIPAL_MAX)]
        with pytest.raises(RateLimited):
            await streams.open("usr_a", Source().read())
        held.clear()  # streams that never began
        await streams.open("usr_a", Source().read())

    asyncio.run(main())


def test_a_source_that_fails_at_first_opens_no_stream():
    async def fails():
        raise NotFound("no such run")
        yield []

    async def main():
        streams = EventStreams()
        for _ in range(2 * PRINCIPAL_MAX):
            with pytest.raises(NotFound):
                await streams.open("usr_a", fails())

    asyncio.run(main())


def test_each_principal_and_all_together_have_a_limit_and_a_stream_counts_once():
    async def main():
        streams = EventStreams()

        async def all_of(principal):
            """As many streams as a principal gets."""
            opened = []
            with suppress(RateLimited):
                while True:
                    opened.append(await streams.open(principal, Source(["a"]).read()))
            return opened

        opened = [await all_of(f"usr_{n}") for n in range(TOTAL_MAX)]
        full = TOTAL_MAX // PRINCIPAL_MAX
        assert [len(own) for own in opened] == [PRINCIPAL_MAX] * full + [0] * (TOTAL_MAX - full)
        ended = opened[0].pop()
        assert [text async for text in ended] == ["retry: 1000\n\na"]
        del ended
        assert len(await all_of("usr_new")) == 1

    asyncio.run(main())
