"""A client refuses malformed, encoded, oversized and slow replies of the other party."""

import gzip
import itertools
import json
import math
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import pytest

from blindopt.audit.checkpoints import Signer
from blindopt.client import Owner, StudyClient, Vendor, connection
from blindopt.client import transport as transport_module
from blindopt.client.connection import Watch, wait_until_ended
from blindopt.errors import StateConflict, StillRunning, Unreachable
from tests.interventions import record_calls
from tests.modeler_service.lying_curator import note_of, receipt

STUDY = "std_0123456789abcdef"


@pytest.fixture
def party():
    """A server that answers every GET with ``party.headers`` and ``party.body``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps the connection

        def setup(self):
            super().setup()
            party.connections += 1

        def do_GET(self):
            party.requests.append(dict(self.headers))
            self.send_response(200)
            self.send_header("Content-Length", str(len(party.body)))
            for name, value in party.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(party.body)

        def log_message(self, *args):
            pass

    party = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    party.headers, party.body, party.requests, party.connections = {}, b"{}", [], 0
    thread = threading.Thread(target=party.serve_forever)
    thread.start()
    yield party
    party.shutdown()
    thread.join()
    party.server_close()


def client_of(party, **options):
    return StudyClient(f"http://127.0.0.1:{party.server_address[1]}", "t", STUDY, **options)


def test_an_encoded_reply_is_refused_unread(party):
    """A few bytes of gzip inside gzip unfold to gigabytes."""
    party.headers = {"Content-Encoding": "gzip, gzip"}
    party.body = gzip.compress(gzip.compress(bytes(1 << 24)))
    with client_of(party) as client, pytest.raises(Unreachable, match="encoded"):
        client.study()
    assert party.requests[0]["Accept-Encoding"] == "identity"


def test_an_encoded_download_is_refused_and_leaves_no_file(party, tmp_path):
    party.headers = {"Content-Encoding": "gzip", "ETag": f'"sha256-{"0" * 64}"'}
    party.body = gzip.compress(bytes(1 << 24))
    with client_of(party) as client, pytest.raises(Unreachable, match="encoded"):
        client.download(tmp_path / "z.npy", "0" * 64, max_bytes=1 << 30)
    assert list(tmp_path.iterdir()) == []


def test_a_reply_without_end_is_cut_at_the_limit(party):
    party.body = bytes(9 << 20)
    with client_of(party) as client, pytest.raises(Unreachable, match="larger"):
        client.study()


@contextmanager
def dripping(parts, seconds):
    """A server that sends ``parts`` on each connection, ``seconds`` apart: its address, the finished connections."""
    listener, done = socket.create_server(("127.0.0.1", 0)), []

    def answer(connection):
        with suppress(OSError), connection:
            request = connection.recv(65_536)
            while request.startswith(b"POST") and not request.endswith(b"}"):  # unread bytes would reset the connection
                request += connection.recv(65_536)
            for part in parts:
                connection.sendall(part)
                time.sleep(seconds)
            done.append(connection)

    def accept():
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", done
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


PENDING = json.dumps(
    {"id": f"qry_{0:016x}", "study_id": STUDY, "state": "pending", "created_at": "2026-11-21T00:00:00Z", "due_at": None}
).encode()
HEAD = b"HTTP/1.1 202 Accepted\r\nX-Padding: %s\r\n" % (b"0" * 60)
DRIPS = {
    "head": [*(bytes([byte]) for byte in HEAD), b"Content-Length: %d\r\n\r\n" % len(PENDING), PENDING],
    "body": [HEAD + b"Content-Length: %d\r\n\r\n" % len(PENDING), *(bytes([byte]) for byte in PENDING)],
    "a body that ends with its connection": [HEAD + b"\r\n", PENDING, *[b" "] * 100],
}


@pytest.mark.parametrize("slow", DRIPS)
def test_a_reply_that_drips_is_cut_at_the_timeout(slow):
    """Each byte comes in time, all of them do not. The control: the same bytes without a pause are a reply."""
    with dripping(DRIPS[slow], 0) as (url, _), StudyClient(url, "t", STUDY, timeout_s=5) as client:
        assert client.query("qry_1")[0].state == "pending"
    with dripping(DRIPS[slow], 0.03) as (url, done), StudyClient(url, "t", STUDY, timeout_s=0.3) as client:
        for _ in range(2):
            with pytest.raises(Unreachable, match="did not answer in time"):
                client.query("qry_1")
            assert not done  # it drips for ten times as long


NOTE = note_of(Signer.of("curator", bytes(32)), f"curator/grt_{0:016x}", 1, "0" * 64)
CANDIDATES_HEAD = b'HTTP/1.1 200 OK\r\nETag: "sha256-%s"\r\nBlindopt-Receipt: %s\r\nContent-Length: 50\r\n\r\n' % (
    b"0" * 64,
    receipt(0, NOTE).encode(),
)


def test_a_connection_that_ends_without_a_reply_is_unreachable():
    with (
        dripping([], 0) as (url, _),
        StudyClient(url, "t", STUDY) as client,
        pytest.raises(Unreachable, match=r"the connection to http://127\.0\.0\.1:[0-9]+ failed: it was cut"),
    ):
        client.query("qry_1")


class _Body(httpx.SyncByteStream):
    def __iter__(self):
        yield b'{"notices": [], "next_page_token": null}'


class _Deaf(httpx.BaseTransport):
    """Refuses each connection, but for those whose numbers are in ``answers``."""

    def __init__(self, *answers):
        self.answers, self.tries = answers, 0

    def handle_request(self, request):
        self.tries += 1
        if self.tries in self.answers:
            headers = {"Content-Type": "application/json"}
            return httpx.Response(200, headers=headers, stream=_Body())
        raise httpx.ConnectError("refused", request=request) from ConnectionRefusedError()


def test_an_address_at_which_nothing_has_answered_is_tried_once_and_named(monkeypatch):
    """Found by hand: bo.Owner at a wrong port took 56 s. After a reply it is tried again."""
    pauses = []
    clock = {"sleep": pauses.append, "monotonic": time.monotonic, "perf_counter": time.perf_counter}
    monkeypatch.setattr(connection, "time", SimpleNamespace(**clock))
    for transport, tries in ((_Deaf(), 1), (_Deaf(1, 4), 4)):
        monkeypatch.setattr(Owner, "_transport", transport)
        with Owner("http://127.0.0.1:8410", "t", patience_s=60.0) as owner:
            if tries > 1:
                assert owner.notices() == owner.notices() == []
            else:
                with pytest.raises(
                    Unreachable,
                    match=r"^nothing listens at http://127\.0\.0\.1:8410: .*`blindopt-curator serve` starts it",
                ):
                    owner.notices()
        assert (transport.tries, len(pauses)) == (tries, max(0, tries - 2))


class _Quits(_Deaf):
    """Answers once, and not again."""

    def __init__(self):
        super().__init__(1)


def test_a_service_that_went_away_is_named_on_standard_error_while_it_is_tried(monkeypatch, capsys):
    """Found by hand: 59 s of silence. The control: one that answers again at once is no word worth."""
    for transport, said in ((_Quits(), True), (_Deaf(1, 3), False)):
        monkeypatch.setattr(transport_module, "SAID_AFTER_S", 0.15 if said else 60.0)
        monkeypatch.setattr(Owner, "_transport", transport)
        with Owner("http://127.0.0.1:8410", "t", patience_s=0.5) as owner:
            owner.notices()
            if said:
                with pytest.raises(Unreachable, match=r"^nothing listens at http:"):
                    owner.notices()
            else:
                owner.notices()
        word = "http://127.0.0.1:8410 does not answer (connection refused). Trying for 30 s.\n"
        assert capsys.readouterr().err == (word if said else "")


def test_an_address_that_takes_no_connection_is_named_before_the_time_is_over(monkeypatch, capsys):
    """As behind a firewall that drops packets: the queue of connections is full, so that the next one waits."""
    monkeypatch.setattr(transport_module, "SAID_AFTER_S", 0.1)
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Owner(url, "t", timeout_s=1.0) as owner, pytest.raises(Unreachable, match=url):
            owner.notices()
    assert capsys.readouterr().err == f"{url} does not answer (no connection yet). Trying for 1 s.\n"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:1", "^nothing listens at http://127.0.0.1:1: "),
        ("https://no-such-host.invalid", "^there is no machine of the name in https://no-such-host.invalid: "),
        ("curator.example", "^this is no address: one begins with http:// or https://"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_in_words(address, words):
    with StudyClient(address, "t", STUDY) as client, pytest.raises(Unreachable, match=words):
        client.study()


CANDIDATES = {
    "head": [*(bytes([byte]) for byte in CANDIDATES_HEAD), bytes(50)],
    "body": [CANDIDATES_HEAD, *[b"x"] * 50],
}


@pytest.mark.parametrize("slow", CANDIDATES)
def test_candidates_that_drip_are_cut_too(slow, tmp_path):
    """Each byte comes within the timeout; the head takes longer than one, the body longer than ten."""
    with (
        dripping(CANDIDATES[slow], 0.03) as (url, _),
        StudyClient(url, "t", STUDY, timeout_s=0.06) as client,
        pytest.raises(Unreachable, match="did not answer in time"),
    ):
        client.download(tmp_path / "z.npy", "0" * 64, max_bytes=1 << 20)


def test_exchanges_that_end_in_time_leave_no_deadline(party):
    """A deadline that was left would cut the connection, and the last request would open another one."""
    with client_of(party, timeout_s=3.0) as client:
        for _ in range(5):
            with pytest.raises(Unreachable):
                client.study()
        time.sleep(3.2)  # past the deadlines of all of them
        with pytest.raises(Unreachable):
            client.study()
    assert (len(party.requests), party.connections) == (6, 1)


@pytest.mark.parametrize("etag", ["", "x", '"sha256-xyz"', f'"sha256-{"0" * 63}\x85"'])
def test_candidates_without_a_digest_are_refused(etag, party, tmp_path):
    party.headers = {"ETag": etag}
    with client_of(party) as client, pytest.raises(Unreachable, match="digest"):
        client.download(tmp_path / "z.npy", "0" * 64, max_bytes=1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_a_reply_without_a_receipt_is_nobodys_word_and_is_not_observed(party):
    observed = []
    with (
        client_of(party, watch=Watch(lambda exchange, _: observed.append(exchange))) as client,
        pytest.raises(Unreachable, match="without the curator's receipt"),
    ):
        client.study()
    assert observed == []


@pytest.mark.parametrize("host", ["0" * 100, "xn--a.b", "a..b"])
def test_a_name_that_cannot_be_looked_up_is_unreachable(host):
    with pytest.raises(Unreachable), StudyClient(f"https://{host}", "t", STUDY) as client:
        client.study()


def test_a_closed_port_is_unreachable_and_no_proxy_of_the_environment_is_used(party, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{party.server_address[1]}")
    with StudyClient("http://127.0.0.1:9", "t", STUDY) as client, pytest.raises(Unreachable):
        client.study()
    assert party.requests == []


class FakeTime:
    """In place of the module ``time``: it passes by sleep alone, and by what a test adds."""

    def __init__(self):
        self.now, self.slept = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = FakeTime()
    monkeypatch.setattr(connection, "time", clock)
    return clock


def test_a_wait_polls_less_often_the_longer_it_lasts_and_gives_up_in_time(clock):
    polls = []

    def get():
        polls.append(clock.now)
        return SimpleNamespace(ended_at="then" if clock.now >= end else None, state="running")

    end = 60.0
    assert wait_until_ended(get, "it", timeout_s=100, poll_s=0.05).ended_at == "then"
    assert polls[:4] == pytest.approx([0, 0.05, 0.1, 0.15])
    apart = [b - a for a, b in itertools.pairwise(polls)]
    assert all(gap == pytest.approx(max(0.05, min(at / 10, 1))) for at, gap in zip(polls, apart, strict=False))
    assert len(polls) < 120  # each 0.05 seconds: 1,200
    end = math.inf
    with pytest.raises(StillRunning, match="it is running after 100 s"):
        wait_until_ended(get, "it", timeout_s=100, poll_s=0.05)
    assert 160 < clock.now < 162


def test_a_read_that_the_service_held_is_followed_by_the_next_at_once(clock):
    def get():
        clock.now += 20.0
        return SimpleNamespace(ended_at="then" if clock.now >= 70 else None, state="running")

    wait_until_ended(get, "it", timeout_s=100, poll_s=0.05)
    assert clock.slept == [0.0, 0.0, 0.0]


def test_authorities_are_read_for_tls_alone(monkeypatch):
    """In a thread of its own: a thread reads them once."""
    read = record_calls(monkeypatch, httpx, "create_ssl_context")

    def open_both():
        for scheme, count in (("http", 0), ("https", 1)):
            Vendor(f"{scheme}://127.0.0.1:9", "t").close()
            assert len(read) == count

    with ThreadPoolExecutor(1) as pool:
        pool.submit(open_both).result()


def test_the_address_of_a_link_says_where_a_run_is_to_be_started():
    with pytest.raises(StateConflict, match=r"link://usr_0123456789abcdef .* only the modeler .* start a run there"):
        StudyClient("link://usr_0123456789abcdef", STUDY, "token")
