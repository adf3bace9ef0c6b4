"""Peers that send or read nothing, too much or no HTTP, and too many of them: nobody else waits for them."""

import asyncio
import ipaddress
import json
import multiprocessing
import resource
import signal
import socket
import ssl
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response

from service_kit.certificates import Certificates
from service_kit.cli import tls
from service_kit.listener import connections as limits
from service_kit.listener import server as servers
from service_kit.listener.connections import OTHER_FILES, RESERVE, Connections, Standing, TrustedProxies
from service_kit.listener.protocol import PIPELINE_MAX, Deadlines
from service_kit.settings import ServiceSettings
from service_kit.store.base import utc_now

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
BIG = b"a" * (24 << 20)
"""More than the buffers of two sockets hold."""


class Member:
    def __init__(self, address="192.0.2.1"):
        self.address, self.is_dropped, self.standing = address, False, Standing.NOBODY

    def check(self):
        raise AssertionError

    def drop(self):
        self.is_dropped = True


def entered(connections, *addresses):
    members = [Member(address) for address in addresses]
    for member in members:
        connections.enter(member)
    return members


def test_at_a_cap_the_connection_that_waited_longest_leaves_and_authenticated_ones_last():
    connections = Connections(total=3, per_address=3)
    kept, first, second = entered(connections, "a", "b", "c")
    kept.standing = Standing.KEPT
    connections.rest(first)
    (newcomer,) = entered(connections, "d")
    assert [m.is_dropped for m in (kept, first, second, newcomer)] == [False, False, True, False]
    entered(connections, "e", "f")
    assert not kept.is_dropped, "a connection that served somebody outlives those that served nobody"
    for member in connections.all():
        member.standing = Standing.KEPT if member is kept else Standing.BUSY
    entered(connections, "g")
    assert kept.is_dropped
    assert len(connections) == 3


def test_the_cap_of_an_address_costs_no_other_address_a_connection():
    connections = Connections(total=10, per_address=2)
    others = entered(connections, "b", "c")
    crowd = entered(connections, *"aaaaa")
    assert not any(member.is_dropped for member in others)
    assert [member.is_dropped for member in crowd] == [True, True, True, False, False]


def test_where_every_connection_is_busy_newcomers_may_only_ask_for_health_and_push_each_other_out():
    connections = Connections(total=2, per_address=2)
    busy = entered(connections, "a", "b")
    for member in busy:
        member.standing = Standing.BUSY
    newcomers = [Member(str(number)) for number in range(RESERVE + 1)]
    assert [connections.enter(member) for member in newcomers] == [False] * (RESERVE + 1)
    assert [member.is_dropped for member in newcomers] == [True] + [False] * RESERVE
    connections.leave(busy[0])
    assert connections.enter(Member("c")), "a free place is given to the next one"
    assert not any(member.is_dropped for member in busy)


def test_a_connection_that_leaves_twice_is_counted_once():
    connections = Connections(total=2, per_address=2)
    (member,) = entered(connections, "a")
    connections.leave(member)
    connections.leave(member)
    assert connections.enter(member)
    assert len(connections) == 1


# --- proxies ------------------------------------------------------------------------------------------


PROXIES = TrustedProxies([ipaddress.ip_network(each) for each in ("10.0.0.7", "10.1.0.0/16", "2001:db8::7")])


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        ("192.0.2.1", ["198.51.100.1"], "192.0.2.1"),  # the control: from anybody else it is not read
        ("10.0.0.7", [], "10.0.0.7"),
        ("10.0.0.7", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.7", ["127.0.0.1, 198.51.100.1"], "198.51.100.1"),  # the client made up the left one
        ("10.0.0.7", ["127.0.0.1", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.7", ["198.51.100.1, 10.1.2.3"], "198.51.100.1"),  # two proxies, one behind the other
        ("10.0.0.7", ["10.1.2.3"], "10.1.2.3"),
        ("10.0.0.7", ["198.51.100.1, unknown"], "10.0.0.7"),
        ("10.0.0.7", ["\u00e4, 198.51.100.1, 10.1.2.3 ,"], "10.0.0.7"),
        ("::ffff:10.0.0.7", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8::7", ["2001:DB8:1::0"], "2001:db8:1::"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_only_a_trusted_proxy_says_for_whom_it_asks(peer, lines, client):
    headers = [(b"x-forwarded-for", line.encode("latin-1")) for line in lines]
    assert PROXIES.client_of(peer, [(b"host", b"x"), *headers]) == client
    assert TrustedProxies(()).client_of(peer, headers) == peer


def test_no_cap_by_address_holds_for_a_trusted_proxy_and_the_cap_in_all_does():
    connections = Connections(total=3, per_address=1)
    members = [Member("proxy") for _ in range(4)]
    for member in members:
        member.standing = Standing.KEPT
        connections.enter(member, serves_many=True)
    assert [member.is_dropped for member in members] == [True, False, False, False]


@pytest.mark.parametrize("wrong", ["proxy.example", "10.0.0.0/40", "10.0.0.7/8", "10.0.0.7;10.0.0.8"])
def test_a_setting_that_is_no_list_of_addresses_is_refused(wrong, tmp_path):
    with pytest.raises(ValueError, match="TRUSTED_PROXIES"):
        ServiceSettings(data_dir=tmp_path, trusted_proxies=wrong)
    settings = ServiceSettings(data_dir=tmp_path, trusted_proxies=" 10.0.0.7, 10.1.0.0/16,2001:db8::7 ,")
    assert [str(each) for each in settings.proxy_networks] == ["10.0.0.7/32", "10.1.0.0/16", "2001:db8::7/128"]


# --- descriptors --------------------------------------------------------------------------------------


def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
        limits.raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connections_at(hard, folder):
    """How many connections a server takes, at most 500, where this is the hard limit: it is not raised again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    app, settings = FastAPI(), ServiceSettings(data_dir=folder, connections_max=500)
    app.state.certificates = Certificates(settings, utc_now)
    return servers.server(app, settings).server_state.open_connections.total


@pytest.mark.parametrize(("hard", "total"), [(OTHER_FILES + RESERVE + 400, 400), (OTHER_FILES + RESERVE + 600, 500)])
def test_connections_leave_descriptors_to_health_checks_files_and_processes(tmp_path, hard, total):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as process:
        assert process.submit(connections_at, hard, tmp_path).result() == total


# --- over sockets ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    """A small application behind the listener of both services, whose deadlines are a tenth."""
    app = FastAPI()

    @app.get("/healthz")
    def healthz():
        return {"status": "ok"}

    @app.get("/big")
    async def big():
        return Response(BIG)

    @app.post("/body")
    async def body(request: Request):
        body = await request.body()
        return {"bytes": len(body), "names": sorted(name.decode() for name, _ in request.scope["headers"])}

    @app.post("/early")
    async def early():
        return Response(status_code=401)

    settings = ServiceSettings(data_dir=tmp_path_factory.mktemp("listener"), drain_seconds=5)
    with served(app, settings) as server:
        yield server


@contextmanager
def served(app, settings, tick_seconds=0.1):
    """A server of ``app`` in a thread, with its port."""
    app.state.certificates = Certificates(settings, utc_now)
    listening = socket.create_server(("127.0.0.1", 0))
    server = servers.server(app, settings, Deadlines(head=1.0, linger=0.05, tick=tick_seconds))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        server.port = listening.getsockname()[1]
        yield server
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join()


@pytest.fixture
def port(listener):
    return listener.port


def connected(port, sent=b"", receive_buffer=None):
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    sock.sendall(sent)
    return sock


def read(sock):
    """All that is sent until the connection ends."""
    parts = []
    try:
        while part := sock.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        parts.append(b"<reset>")
    sock.close()
    return b"".join(parts)


def refusal(reply):
    """Status and code of a problem document; everything about the connection ends with it."""
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close\r\n" in head
    assert b"content-type: application/problem+json" in head
    problem = json.loads(body)
    assert b"x-request-id: " + problem["request_id"].encode() in head
    return int(head.split()[1]), problem["code"]


POST = b"POST /body HTTP/1.1\r\nHost: x\r\n"
ODD = {
    "a head that stops": (HEAD + b"X: ", (408, "request_timeout")),
    "a body that stops": (POST + b"Content-Length: 9\r\n\r\na", (408, "request_timeout")),
    "a chunk that stops": (POST + b"Transfer-Encoding: chunked\r\n\r\n9\r\na", (408, "request_timeout")),
    "a chunk size of 17 F": (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"F" * 17 + b"\r\n", (400, "bad_request")),
    "a chunk size that is none": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", (400, "bad_request")),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\na", (400, "bad_request")),
    "a head of 100 KB": (HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n", (431, "head_too_large")),
    "a line without an end": (HEAD + b"X: " + b"a" * 100_000, (431, "head_too_large")),
    "5,000 lines": (HEAD + b"X: a\r\n" * 5_000 + b"\r\n", (431, "head_too_large")),
    "an endless trailer": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 100_000,
        (431, "head_too_large"),
    ),
    "no Host": (b"GET /healthz HTTP/1.1\r\n\r\n", (400, "bad_request")),
    "two Hosts": (HEAD + b"Host: y\r\n\r\n", (400, "bad_request")),
    "no version": (b"GET /healthz\r\n\r\n", (400, "bad_request")),
    "CONNECT": (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", (400, "bad_request")),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", (400, "bad_request")),
}


def test_what_is_late_too_long_or_no_http_gets_a_problem_document_and_its_connection_ends(port):
    opened = {what: connected(port, sent) for what, (sent, _) in ODD.items()}
    replies = {what: refusal(read(sock)) for what, sock in opened.items()}
    assert replies == {what: expected for what, (_, expected) in ODD.items()}


@pytest.mark.parametrize("earlier", [1, 3])
def test_a_refusal_follows_the_replies_to_earlier_requests(port, earlier):
    """They wait on one connection: each is answered, and then the last is refused in the same way as a first one."""
    opened = {
        what: connected(port, earlier * (HEAD + b"\r\n") + sent)
        for what, (sent, (status, _)) in ODD.items()
        if status != 408  # which comes late
    }
    replies = {what: read(sock) for what, sock in opened.items()}
    assert {what: reply.count(b"HTTP/1.1 200 OK") for what, reply in replies.items()} == dict.fromkeys(opened, earlier)
    last = {what: refusal(reply[reply.rindex(b"HTTP/1.1 4") :]) for what, reply in replies.items()}
    assert last == {what: ODD[what][1] for what in opened}


def test_a_connection_that_sends_nothing_ends_without_a_reply(port):
    silent, early = connected(port), connected(port, b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\na")
    assert read(silent) == b""
    assert read(early).count(b"HTTP/1.1") == 1, "a second reply would be taken for that of the next request"


def test_a_handshake_that_stops_half_way_ends_at_its_deadline_and_one_that_does_not_is_answered(tmp_path):
    tls.make_authority(tmp_path)
    tls.issue(tmp_path, "server", tls.alternatives(["localhost"]), 1)
    settings = ServiceSettings(data_dir=tmp_path, tls_cert=tmp_path / "server.crt", tls_key=tmp_path / "server.key")
    with served(FastAPI(), settings) as server:
        half = [connected(server.port), connected(server.port, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")]
        assert [read(sock) for sock in half] == [b"", b""]
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        with trusting.wrap_socket(connected(server.port), server_hostname="localhost") as whole:
            whole.sendall(HEAD + b"Connection: close\r\n\r\n")
            assert whole.recv(1 << 16).startswith(b"HTTP/1.1 404")


def test_a_reply_that_nobody_reads_is_cut(port, listener, until):
    deaf = connected(port, b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n", receive_buffer=4096)
    until(lambda: listener.server_state.open_connections.turned_away["reply not read"])
    assert len(read(deaf)) < len(BIG)


def test_requests_that_wait_for_replies_on_a_connection_are_few(port):
    replies = read(connected(port, (HEAD + b"\r\n") * 1_000))
    assert 1 <= replies.count(b"HTTP/1.1 200") <= PIPELINE_MAX + 1
    assert refusal(replies[replies.rindex(b"HTTP/1.1 4") :]) == (400, "bad_request")


def test_an_upgrade_is_answered_as_any_other_request(port):
    reply = read(connected(port, HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"))
    assert reply.startswith(b"HTTP/1.1 200")


def test_trailers_are_no_headers_of_their_request(port):
    sent = POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: x\r\n\r\n"
    reply = read(connected(port, sent))
    assert reply.endswith(b'{"bytes":1,"names":["connection","host","transfer-encoding"]}')


def test_the_end_and_new_certificates_do_not_wait_for_the_next_tick(tmp_path):
    """Negative control: the next tick is an hour away."""
    app, looks = FastAPI(), threading.Semaphore(0)
    with served(app, ServiceSettings(data_dir=tmp_path), tick_seconds=3_600.0) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as open_connection:
            open_connection.sendall(HEAD + b"Connection: close\r\n\r\n")
            assert open_connection.recv(1)  # so the first tick is over
        app.state.certificates.look = looks.release
        server.hang_up(signal.SIGHUP, None)
        assert looks.acquire(timeout=60)


def test_a_service_that_ends_answers_what_is_on_its_way_and_says_that_it_closes(tmp_path):
    """Negative control: without a grace, the kept connection is closed before its second request."""
    app = FastAPI()
    settings = ServiceSettings(data_dir=tmp_path, drain_seconds=30)
    app.state.certificates = Certificates(settings, utc_now)

    @app.get("/healthz")
    def healthz():
        return {"status": "ok"}

    async def exchange():
        listening = socket.create_server(("127.0.0.1", 0))
        server = servers.server(app, settings)
        serving = asyncio.create_task(server._serve([listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        replies = []
        for _ in range(2):
            writer.write(HEAD + b"\r\n")
            replies.append(await reader.readuntil(b'{"status":"ok"}'))
            if not server.should_exit:
                server.handle_exit(signal.SIGTERM, None)
                while not server.server_state.is_draining:
                    await asyncio.sleep(0)
        assert await reader.read() == b""
        writer.close()
        await serving
        return replies

    first, second = asyncio.run(exchange())
    assert b"connection: close" not in first
    assert b"connection: close" in second
