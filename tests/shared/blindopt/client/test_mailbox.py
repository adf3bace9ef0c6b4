"""A mailbox: each request is delivered at least once, each part of a reply is read once, and all of it is bounded."""

import asyncio
import gc
import itertools
import threading
import weakref

import httpx
import pytest

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.client.mailbox import (
    BODY_MAX_BYTES,
    CONNECTED_SECONDS,
    LONG_MAX,
    WAITING_MAX,
    LinkTransport,
    Mailbox,
    Mailboxes,
)
from blindopt.errors import Busy, NotFound, Unreachable

NONE = frozenset()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def mailbox(clock):
    return Mailbox(clock)


def _request(number=0, target="/v1/meta"):
    return wire.LinkRequest(id=f"{number:032x}", method="GET", target=target, headers={}, body="")


def _head(item, part=0, *, last=True, status=200):
    return wire.LinkReply(request=item.request.id, part=part, last=last, status=status, headers={"x": str(part)})


def _pull(mailbox, working=NONE, seconds=0.0):
    return [request.id for request in asyncio.run(mailbox.pull(working, seconds))]


def test_a_request_is_delivered_once_while_the_curator_works_on_it(mailbox):
    item = mailbox.post(_request())
    assert _pull(mailbox) == [item.request.id]
    assert _pull(mailbox, frozenset({item.request.id})) == []


def test_a_request_that_was_lost_on_the_way_is_delivered_again(mailbox):
    item = mailbox.post(_request())
    assert _pull(mailbox) == _pull(mailbox) == [item.request.id]


def test_a_request_whose_reply_has_begun_is_not_delivered_again(mailbox):
    item = mailbox.post(_request())
    _pull(mailbox)
    mailbox.reply(_head(item, last=False), b"a")
    assert _pull(mailbox) == []


def test_at_most_sixteen_are_delivered_at_once_oldest_first(mailbox):
    items = [mailbox.post(_request(number)) for number in range(20)]
    first = _pull(mailbox)
    assert first == [item.request.id for item in items[: wire.LINK_PULLED_MAX]]
    assert _pull(mailbox, frozenset(first)) == [item.request.id for item in items[wire.LINK_PULLED_MAX :]]


def _pull_all(mailbox):
    """Pull until nothing comes, as a curator that has ended none yet: the numbers of what came."""
    taken = []
    while more := _pull(mailbox, frozenset(taken)):
        taken += more
    return [int(identity, 16) for identity in taken]


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("held", "/v1/studies/std_0/revisions?wait=25.0&page_token=7"),
        ("held", "/v1/studies/std_0/queries/qry_0?wait=2.5"),
        ("transfer", "/v1/studies/std_0/candidates"),
        ("transfer", "/v1/studies/std_0/candidates/parts/3"),
    ],
)
def test_long_requests_leave_room_for_short_ones_and_wait_for_each_other(mailbox, kind, target):
    most = LONG_MAX[kind]
    items = [mailbox.post(_request(number, target)) for number in range(most + 3)]
    assert _pull_all(mailbox) == list(range(most))
    assert sum(LONG_MAX.values()) + wire.LINK_PULLED_MAX <= wire.LINK_REQUESTS_MAX
    short = [mailbox.post(_request(most + 3 + number)) for number in range(wire.LINK_PULLED_MAX)]
    assert _pull(mailbox, frozenset(item.request.id for item in items)) == [item.request.id for item in short]

    async def next_one():
        pull = asyncio.create_task(mailbox.pull(frozenset(item.request.id for item in items + short), 60.0))
        await asyncio.sleep(0)
        mailbox.forget(items[0].request.id)  # its reply was read
        return [request.id for request in await pull]

    assert asyncio.run(next_one()) == [items[most].request.id]


def test_a_look_that_waits_for_nothing_is_short(mailbox):
    for number in range(wire.LINK_REQUESTS_MAX):
        mailbox.post(_request(number, "/v1/studies/std_0/queries/qry_0?wait=0.0"))
    assert _pull_all(mailbox) == list(range(wire.LINK_REQUESTS_MAX))


def test_a_waiting_pull_is_woken_from_another_thread(mailbox):
    async def wait():
        threading.Timer(0.05, lambda: mailbox.post(_request())).start()
        return await mailbox.pull(NONE, 60.0)

    assert len(asyncio.run(wait())) == 1


def test_a_newer_pull_ends_the_one_before_which_takes_nothing(mailbox):
    async def two():
        older = asyncio.create_task(mailbox.pull(NONE, 60.0))
        await asyncio.sleep(0)
        newer = asyncio.create_task(mailbox.pull(NONE, 60.0))
        assert await older == []
        item = mailbox.post(_request())
        return [request.id for request in await newer] == [item.request.id]

    assert asyncio.run(two())


def test_a_part_that_comes_twice_counts_once_and_one_too_early_is_refused(mailbox):
    item = mailbox.post(_request())
    with pytest.raises(NotFound):
        mailbox.reply(_head(item, part=1), b"")
    for _ in range(2):
        mailbox.reply(_head(item, last=False), b"a")
    assert item.parts.qsize() == 1
    mailbox.reply(_head(item, part=1, last=False), b"b")
    with pytest.raises(Busy):  # two parts are held, no more
        mailbox.reply(_head(item, part=2), b"c")
    item.parts.get()
    mailbox.reply(_head(item, part=2), b"c")


def test_nobody_waits_for_the_reply_to_a_request_that_was_given_up(mailbox):
    item = mailbox.post(_request())
    mailbox.forget(item.request.id)
    with pytest.raises(NotFound):
        mailbox.reply(_head(item), b"")
    assert mailbox.waiting == 0


def test_too_many_requests_are_refused(mailbox):
    for number in range(WAITING_MAX):
        mailbox.post(_request(number))
    with pytest.raises(Unreachable, match="too many"):
        mailbox.post(_request(WAITING_MAX))


def test_a_curator_is_connected_while_it_pulls_and_some_time_after(mailbox, clock):
    assert (mailbox.is_connected, mailbox.seconds_since_pull) == (False, None)
    clock.now = 100.0
    _pull(mailbox)
    clock.now += CONNECTED_SECONDS - 1
    assert (mailbox.is_connected, mailbox.seconds_since_pull) == (True, CONNECTED_SECONDS - 1)
    clock.now += 2
    assert not mailbox.is_connected


# --- the transport ------------------------------------------------------------------------------------------


def _client(mailbox, **options):
    return httpx.Client(
        base_url="link://usr_0123456789abcdef", transport=LinkTransport(mailbox, wait_s=0.05), **options
    )


def _curator(mailbox, parts, status=200):
    """Pulls one request and replies with these parts, as a curator does, on a thread; the request it got."""
    seen = []

    async def serve():
        (request,) = await mailbox.pull(NONE, 60.0)
        seen.append(request)
        for number, part in enumerate(parts):
            head = wire.LinkReply(
                request=request.id, part=number, last=number == len(parts) - 1, status=status, headers={"x-a": "b"}
            )
            while True:
                try:
                    mailbox.reply(head, part)
                    break
                except Busy:
                    await asyncio.sleep(0.005)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    return thread, seen


def test_a_request_goes_over_as_it_is_and_its_reply_comes_back_in_order(mailbox):
    parts = [bytes([number]) * 1_000 for number in range(7)]
    thread, seen = _curator(mailbox, parts, status=201)
    with _client(mailbox, headers={"Authorization": "Bearer x"}) as client:
        reply = client.post("/v1/studies/a/queries?b=%20c", content=b'{"rows": []}', headers={"Idempotency-Key": "k"})
    thread.join()
    assert (reply.status_code, reply.headers["x-a"], reply.content) == (201, "b", b"".join(parts))
    (request,) = seen
    assert (request.method, request.target) == ("POST", "/v1/studies/a/queries?b=%20c")
    assert request.headers["authorization"] == "Bearer x"
    assert request.headers["idempotency-key"] == "k"
    assert "host" not in request.headers
    assert mailbox.waiting == 0


def test_an_absent_curator_is_reported_in_words_and_nothing_stays(mailbox):
    with _client(mailbox) as client, pytest.raises(Unreachable, match="is not connected"):
        client.get("/v1/meta")
    assert mailbox.waiting == 0


def test_a_reply_that_does_not_come_or_stops_ends_by_the_time_limit(mailbox):
    _pull(mailbox)
    with _client(mailbox, timeout=0.2) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.get("/v1/meta")
        item = mailbox.post(_request())
        mailbox.forget(item.request.id)
        thread, _ = _curator(mailbox, [b"a"])
        with client.stream("GET", "/v1/meta") as reply:
            assert reply.read() == b"a"
        thread.join()
    assert mailbox.waiting == 0


def _study_client(mailbox, address="link://usr_0123456789abcdef"):
    transport = LinkTransport(mailbox, wait_s=0.05)
    return StudyClient(address, "t", "std_0123456789abcdef", timeout_s=0.3, transport=transport)


@pytest.mark.parametrize("part", [b"", b"x"])
def test_a_reply_that_never_ends_is_given_up_at_the_deadline_of_the_exchange(mailbox, part):
    """Each part comes in time, and the reply does not grow beyond what is read of one."""

    async def serve():
        (request,) = await mailbox.pull(NONE, 60.0)
        for number in itertools.count():
            head = wire.LinkReply(request=request.id, part=number, last=False, status=200, headers={})
            try:
                mailbox.reply(head, part)
            except NotFound:
                return
            except Busy:
                pytest.fail("a part was not read")
            await asyncio.sleep(0.05)

    curator = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    curator.start()
    outcome = []

    def ask():
        with _study_client(mailbox) as client, pytest.raises(Unreachable, match="in time") as refused:
            client.study()
        outcome.append(refused)

    reader = threading.Thread(target=ask, daemon=True)  # it would read for ever
    reader.start()
    reader.join(20)
    assert outcome
    curator.join(20)
    assert not curator.is_alive()
    assert mailbox.waiting == 0


def test_a_reply_whose_head_cannot_be_read_leaves_nothing(mailbox):
    async def serve():
        (request,) = await mailbox.pull(NONE, 60.0)
        mailbox.reply(wire.LinkReply(request=request.id, part=0, last=True, status=200, headers={"x": "\u20ac"}), b"{}")

    curator = threading.Thread(target=lambda: asyncio.run(serve()))
    curator.start()
    with _study_client(mailbox) as client, pytest.raises(Unreachable):
        client.study()
    curator.join()
    assert mailbox.waiting == 0


def test_an_address_that_no_link_carries_is_refused_in_words(mailbox):
    address = f"link://usr_0123456789abcdef/{'a' * 1_970}"
    with _study_client(mailbox, address) as client, pytest.raises(Unreachable, match="too long"):
        client.study()
    assert mailbox.waiting == 0


def test_a_body_that_is_too_large_is_refused_at_once(mailbox):
    with _client(mailbox) as client, pytest.raises(Unreachable, match="bytes"):
        client.post("/v1/x", content=b"x" * (BODY_MAX_BYTES + 1))
    assert mailbox.waiting == 0


def test_only_addresses_of_links_have_a_transport():
    boxes = Mailboxes()
    assert boxes.transport("https://curator.example") is None
    assert boxes.transport("link://usr_0123456789abcdef") is not None
    assert boxes.of("usr_0123456789abcdef") is boxes.of("usr_0123456789abcdef")


def test_the_mailbox_of_a_link_that_nobody_made_is_gone_with_its_client():
    """Whoever may name a curator may name any link."""
    boxes = Mailboxes()
    client = boxes.transport("link://usr_0123456789abcdef")
    assert client._mailbox is boxes.of("usr_0123456789abcdef")
    kept = weakref.ref(client._mailbox)
    stranger = weakref.ref(boxes.transport("link://anything")._mailbox)
    del client
    gc.collect()
    assert stranger() is None
    assert kept() is boxes.transport("link://usr_0123456789abcdef")._mailbox
