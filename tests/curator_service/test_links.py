"""What a curator lets in over a link: what a grant may send, by a grant's token, and nothing else.

The reference is the table of roles over a socket: with a grant's token every route gives the same status, and with any
other token, which over a socket opens other routes, a link gives 403.
"""

import asyncio
import base64
import json
import threading

import httpx
import pytest

from blindopt import bodies, wire
from blindopt.client import link
from blindopt.client.mailbox import LONG_MAX, Mailbox
from blindopt.errors import ProtocolViolated, StateConflict, Unreachable
from curator_service import links as curator_links
from curator_service.link_file import read, write
from curator_service.links import Links, routes_of_grants
from curator_service.settings import Settings
from service_kit.cli import tls
from tests.curator_service.budget.file_of_records import FileOfRecords
from tests.interventions import act_before

LINK = wire.LinkFile(
    format="blindopt-link-1", id=f"usr_{'0' * 16}", name="acme", url="http://127.0.0.1:9", token="blindopt_x"
)


class Recorder:
    """In place of a connection to a modeler: what was replied, part by part."""

    def __init__(self):
        self.heads, self.bodies = [], []
        self.file, self.name, self.connection = LINK, "link", self

    def carry(self, head, body):
        return None

    async def reply(self, head, body):
        self.heads.append(head)
        self.bodies.append(body)
        return True


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    made = FileOfRecords(tmp_path_factory.mktemp("links"))
    made.opened = made.study()
    made.other = made.study()
    yield made
    made.close()


@pytest.fixture(scope="module")
def ask(file):
    """A request over a link, as a modeler may store it: returns status and body."""
    app, context = file.in_process.app, file.in_process.context
    links = Links(app, context, routes_of_grants(app.routes), Settings(data_dir=context.database.path.parent))

    def send(method, target, token, body=b"", **headers):
        recorder = Recorder()
        sent = {"authorization": f"Bearer {token}", "content-type": "application/json", **headers}
        request = wire.LinkRequest(
            id="0" * 32, method=method, target=target, headers=sent, body=base64.b64encode(body).decode()
        )
        asyncio.run(links.respond(recorder, request))
        assert [head.part for head in recorder.heads] == list(range(len(recorder.heads)))
        assert [head.last for head in recorder.heads] == [False] * (len(recorder.heads) - 1) + [True]
        assert max(map(len, recorder.bodies)) <= wire.LINK_PART_BYTES
        return recorder.heads[0], b"".join(recorder.bodies)

    return send


def test_a_query_over_a_link_has_the_bytes_and_the_receipt_of_one_over_a_socket(file, ask):
    path, body = f"/v1/studies/{file.opened}/queries", json.dumps({"rows": [{"row": 0, "plays": 1}]}).encode()
    token = file.tokens[file.opened]
    head, reply = ask("POST", path, token, body, **{"idempotency-key": "linked"})
    assert head.status == 201
    assert head.headers["blindopt-receipt"]
    again = file.in_process.send(
        file.opened, "POST", path, key="linked", content=body, headers={"content-type": "application/json"}
    )
    assert (again.status_code, again.headers["idempotency-replayed"], again.content) == (201, "true", reply)


def test_what_a_grant_may_not_send_is_refused_whatever_token_comes_with_it(file, ask):
    """Every route of the service, by every token: over a link a modeler's alone, and only on a modeler's routes."""
    token = file.tokens[file.opened]
    paths = file.in_process.app.openapi()["paths"]
    allowed = routes_of_grants(file.in_process.app.routes)
    let_in, refused = 0, 0
    for path, operations in paths.items():
        target = path.replace("{study_id}", file.opened).replace("{", "").replace("}", "")
        for method in (m.upper() for m in operations if m in ("get", "post")):
            is_allowed = any(method == m and pattern.fullmatch(target) for m, pattern in allowed)
            for other in (file.in_process.tokens["owner"], file.in_process.tokens["measurer"]):
                head, _ = ask(method, target, other, b"{}")
                assert head.status == 403, (method, path)
            head, body = ask(method, target, token, b"{}")
            if is_allowed:
                let_in += 1
            else:
                refused += 1
                assert (head.status, json.loads(body)["code"]) == (403, "forbidden"), (method, path)
    assert (let_in, refused > 50) == (len(allowed), True)


@pytest.mark.parametrize(
    "target",
    ["/console/login", "/console/", "/", "/healthz", "/metrics", "/v1/studies/%2e%2e/x", "/openapi.json", "/v1//x"],
)
def test_pages_and_odd_paths_are_refused(file, ask, target):
    head, _ = ask("GET", target, file.tokens[file.opened])
    assert head.status == 403


def test_another_study_is_not_to_be_had_and_a_wrong_token_is_401_as_over_a_socket(file, ask):
    assert ask("GET", f"/v1/studies/{file.other}", file.tokens[file.opened])[0].status == 404
    assert ask("GET", f"/v1/studies/{file.opened}", "blindopt_0123456789abcdef." + "x" * 43)[0].status == 401


def test_headers_that_a_modeler_has_no_use_for_are_dropped(file, ask):
    forged = {
        "x-forwarded-for": "127.0.0.1",
        "host": "evil",
        "cookie": "a=b",
        "content-length": "9",
        "transfer-encoding": "x",
    }
    head, _ = ask("GET", f"/v1/studies/{file.opened}", file.tokens[file.opened], **forged)
    assert head.status == 200


def test_a_body_larger_than_a_modeler_may_send_is_refused(file, ask):
    body = b" " * 66_000
    head, _ = ask("POST", f"/v1/studies/{file.opened}/queries", file.tokens[file.opened], body)
    assert head.status == 413


def test_the_file_of_links_is_private_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "links.json"
    assert read(path) == []
    write(path, [LINK])
    assert read(path) == [LINK]
    assert path.stat().st_mode & 0o077 == 0
    path.write_text("{}")
    with pytest.raises(Exception, match=r"^the file links\.json is not a list of links"):  # the log holds no path
        read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StateConflict, match=r"^the file links\.json cannot be read: is a directory"):
        read(path)


def test_a_client_certificate_of_a_link_that_ends_soon_is_named_and_counted(file, tmp_path):
    """The control: one that is valid for 31 days is no reason for words."""
    tls.make_authority(tmp_path)
    cert = LINK.model_copy(update={"cert": str(tmp_path / "client.crt"), "key": str(tmp_path / "client.key")})
    settings = Settings(data_dir=tmp_path / "data", links_file=tmp_path / "links.json")
    write(settings.links_path, [cert])

    async def shown():
        links = Links(None, file.in_process.context, [], settings)
        links.start()
        while not links.status():
            await asyncio.sleep(0)
        _, gauge = (figure() for figure in links.gauges())
        (link,) = links.status()
        await links.stop()
        return round(gauge.samples[0].value / 86_400), link.problem

    tls.issue(tmp_path, "client", None, 9)
    days, words = asyncio.run(shown())
    assert (days, "the client certificate of this link expires on" in words) == (9, True)
    tls.issue(tmp_path, "client", None, 31)
    assert asyncio.run(shown()) == (31, None)


class Connection:
    """In place of one to a modeler: its mailbox, without HTTP between."""

    mailbox: Mailbox

    def __init__(self, file, proxy):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    async def pull(self, working, seconds=60.0, carried=None):
        if carried is not None:
            self.mailbox.reply(carried.head, base64.b64decode(carried.body))
        return await self.mailbox.pull(frozenset(working), seconds)

    async def reply(self, head, body):
        self.mailbox.reply(head, body)
        return True


def test_queries_are_answered_while_all_wait_that_may(file, monkeypatch):
    """Forty runs wait for people and twenty fetch candidates, over one link: the others do not notice."""
    held, ended = set(), asyncio.Event()

    async def app(scope, receive, send):
        if (path := scope["path"]) != f"/v1/studies/{file.opened}":
            held.add(path)
            await ended.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": path.encode()})

    context, mailbox = file.in_process.context, Mailbox()
    monkeypatch.setattr(link, "LinkConnection", type("Linked", (Connection,), {"mailbox": mailbox}))
    settings = Settings(data_dir=context.database.path.parent)
    links = Links(app, context, routes_of_grants(file.in_process.app.routes), settings)
    token = {"authorization": f"Bearer {file.tokens[file.opened]}"}

    def post(number, path):
        target = f"/v1/studies/{file.opened}{path}"
        return mailbox.post(wire.LinkRequest(id=f"{number:032x}", method="GET", target=target, headers=token, body=""))

    async def play():
        write(settings.links_path, [LINK])
        links.start()
        long = [post(n, f"/queries/qry_{n:016x}?wait=25.0") for n in range(40)]
        long += [post(n, f"/candidates/parts/{n}") for n in range(40, 60)]
        while len(held) < sum(LONG_MAX.values()):
            await asyncio.sleep(0)
        for number in range(100, 100 + 2 * wire.LINK_REQUESTS_MAX):
            item = post(number, "")
            await asyncio.to_thread(item.parts.get, timeout=240)
            mailbox.forget(item.request.id)
        assert len(held) == sum(LONG_MAX.values())
        ended.set()
        for item in long:  # each has its turn
            await asyncio.to_thread(item.parts.get, timeout=240)
            mailbox.forget(item.request.id)
        assert len(held) == 60
        await links.stop()

    asyncio.run(play())


@pytest.mark.parametrize(("names", "is_read"), [(10, True), (90_000, False)])
def test_a_large_frame_of_a_modeler_is_looked_at_beside_the_event_loop_and_a_small_one_on_it(
    monkeypatch, names, is_read
):
    """A frame of a megabyte with names that nothing has is refused before a model of it is built."""

    async def frame():
        yield json.dumps({"requests": []} | {f"{number:06}": 1 for number in range(names)}).encode()

    transport, threads = httpx.MockTransport(lambda request: httpx.Response(200, content=frame())), []
    act_before(monkeypatch, bodies, "parse", lambda *_: threads.append(threading.current_thread()))
    if not is_read:
        monkeypatch.setattr(bodies.faults, "parse", None)

    async def pull():
        async with link.LinkConnection(LINK) as connection:
            connection._http = httpx.AsyncClient(base_url=LINK.url, transport=transport)
            return await connection.pull([])

    if is_read:
        assert asyncio.run(pull()) == []
    else:
        with pytest.raises(ProtocolViolated):
            asyncio.run(pull())
    assert [thread is threading.main_thread() for thread in threads] == [is_read]


@pytest.mark.parametrize(("wrong", "pauses"), [(True, [0.5, 1, 2, 4, 8, 16, 30, 30]), (False, [0.5] * 8)])
def test_wrong_replies_of_a_modeler_lengthen_the_pause_also_between_right_ones(file, monkeypatch, wrong, pauses):
    """One right reply, then a wrong one; the control: one that is lost."""
    slept, sleep = [], asyncio.sleep

    class Alternating(Connection):
        count = 0

        async def pull(self, working, seconds=60.0, carried=None):
            Alternating.count += 1
            if Alternating.count % 2:
                return []
            raise ProtocolViolated("odd") if wrong else Unreachable("lost")

    async def pause(seconds):
        if seconds != curator_links._LOOK_SECONDS:
            slept.append(seconds)
        await sleep(0)

    async def play():
        links.start()
        while len(slept) < len(pauses):
            await sleep(0)
        await links.stop()

    settings = Settings(data_dir=file.in_process.context.database.path.parent)
    write(settings.links_path, [LINK])
    links = Links(file.in_process.app, file.in_process.context, [], settings)
    monkeypatch.setattr(link, "LinkConnection", Alternating)
    monkeypatch.setattr(curator_links, "_LOOK_SECONDS", 2.125)
    monkeypatch.setattr(curator_links.asyncio, "sleep", pause)
    asyncio.run(play())
    assert slept[: len(pauses)] == pauses


def test_a_modeler_that_takes_a_reply_no_more_is_a_peer_and_no_fault(file, monkeypatch, caplog):
    """Its process was started again: it knows of no such request. The control: an exception of the application."""

    class Forgetful(Connection):
        async def reply(self, head, body):
            return False

    async def broken(scope, receive, send):
        raise ZeroDivisionError

    async def lines_of(app, kind):
        mailbox = Mailbox()
        monkeypatch.setattr(link, "LinkConnection", type("Linked", (kind,), {"mailbox": mailbox}))
        links = Links(app, file.in_process.context, routes_of_grants(file.in_process.app.routes), settings)
        caplog.clear()
        links.start()
        token = {"authorization": f"Bearer {file.tokens[file.opened]}"}
        path = f"/v1/studies/{file.opened}"
        mailbox.post(wire.LinkRequest(id="0" * 32, method="GET", target=path, headers=token, body=""))
        while not (messages := {each.message for each in caplog.records} & {"peer", "fault"}):
            await asyncio.sleep(0.01)
        await links.stop()
        return messages

    settings = Settings(data_dir=file.in_process.context.database.path.parent)
    write(settings.links_path, [LINK])
    monkeypatch.setattr(curator_links, "_CARRY_SECONDS", 0.0)
    monkeypatch.setattr(wire, "LINK_CARRIED_BYTES", 0)  # the reply is sent by itself
    assert asyncio.run(lines_of(file.in_process.app, Forgetful)) == {"peer"}
    assert asyncio.run(lines_of(broken, Connection)) == {"fault"}
