"""Runs over a network that delays, refuses, cuts, repeats and reorders: they end as if nothing had been."""

import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from blindopt.client import OwnerClient, VendorClient

RUNS, ITERATIONS = 3, 12


class Meddler:
    """A proxy that hands each whole request to ``fault``, which says what becomes of it."""

    def __init__(self, port: int, fault: Callable[["Meddler", Callable[[], Any]], Any]) -> None:
        self.seen: Counter[str] = Counter()
        self.random = random.Random(11)
        self.lock = threading.Lock()
        self.turn = threading.Condition()
        self.handled = 0
        meddler = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))

                def forward() -> tuple[int, list[tuple[str, str]], bytes]:
                    server = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                    try:
                        server.request(self.command, self.path, body, dict(self.headers))
                        reply = server.getresponse()
                        return reply.status, reply.getheaders(), reply.read()
                    finally:
                        server.close()
                        with meddler.turn:
                            meddler.handled += 1
                            meddler.turn.notify_all()

                verdict = fault(meddler, forward)
                if verdict is None:  # nothing comes back
                    self.close_connection = True
                    return
                status, headers, content = verdict
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = handle_one  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def chance(self, name: str, share: float) -> bool:
        """True in this share of cases, counted."""
        with self.lock:
            happens = self.random.random() < share
            self.seen[name] += happens
        return happens


def late(net: Meddler, forward: Callable[[], Any]) -> Any:
    if net.chance("late", 0.5):
        with net.turn:
            net.turn.wait(net.random.uniform(0.01, 0.15))
    return forward()


def refused(net: Meddler, forward: Callable[[], Any]) -> Any:
    return None if net.chance("refused", 0.3) else forward()


def cut(net: Meddler, forward: Callable[[], Any]) -> Any:
    """The curator has handled it, and its reply is lost."""
    reply = forward()
    return None if net.chance("cut", 0.3) else reply


def repeated(net: Meddler, forward: Callable[[], Any]) -> Any:
    """The curator gets it twice, one after the other or both at once."""
    if net.chance("repeated", 0.4):
        other = threading.Thread(target=forward)
        other.start()
        if net.chance("one after the other", 0.5):
            other.join()
        reply = forward()
        other.join()
        return reply
    return forward()


def reordered(net: Meddler, forward: Callable[[], Any]) -> Any:
    """It is held back until others that came later were handled."""
    if net.chance("reordered", 0.4):
        with net.turn:
            passed = net.handled
            net.turn.wait_for(lambda: net.handled >= passed + 2, timeout=0.3)
    return forward()


@contextmanager
def between(curator: Any, fault: Callable[..., Any]) -> Iterator[Meddler]:
    net = Meddler(curator.port, fault)
    thread = threading.Thread(target=net.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield net
    net.server.shutdown()
    net.server.server_close()


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    quick = {
        "retry_seconds_max": "0.2",
        "retry_attempts": "40",
        "countersign_every": "5",
        "curator_timeout_seconds": "10",
    }
    return make_service("curator", folder).start(), make_service("modeler", folder, **quick).start()


@pytest.fixture(scope="module")
def undisturbed(parties, open_study, small, run_of):
    """The study, and the outcomes that each seed chooses on a good network."""
    curator, modeler = parties
    with OwnerClient(curator.url, curator.token) as owner, VendorClient(modeler.url, modeler.token) as vendor:
        opened = open_study(owner, owner.register("small", small.csv, public=True))
        started = [vendor.start(run_of(curator.url, opened, iterations=ITERATIONS, seed=s)).id for s in range(RUNS)]
        assert [vendor.wait(run, timeout_s=240).state for run in started] == ["completed"] * RUNS
        return opened, [[t.row for t in vendor.export(run).trials] for run in started]


@pytest.mark.parametrize("fault", [late, refused, cut, repeated, reordered])
def test_a_bad_network_changes_no_choice_and_no_charge(parties, undisturbed, run_of, fault):
    curator, modeler = parties
    opened, expected = undisturbed
    with OwnerClient(curator.url, curator.token) as owner, VendorClient(modeler.url, modeler.token) as vendor:
        before = owner.balance(opened.id).total_plays
        with between(curator, fault) as net:
            started = [vendor.start(run_of(net.url, opened, iterations=ITERATIONS, seed=s)).id for s in range(RUNS)]
            ended = [vendor.wait(run, timeout_s=120) for run in started]
            assert net.seen
            assert min(net.seen.values()) >= 3, f"hardly anything happened: {net.seen}"
        assert [(run.state, run.problem) for run in ended] == [("completed", None)] * RUNS
        assert [[t.row for t in vendor.export(run).trials] for run in started] == expected
        assert owner.balance(opened.id).total_plays - before == sum(map(len, expected))


def test_after_all_of_this_both_logs_verify_and_tell_the_same(parties, undisturbed, tmp_path):
    opened, _ = undisturbed
    for service in parties:
        verified = service.run("audit", "verify")
        assert verified.returncode == 0, verified.stderr
        (tmp_path / service.name).write_text(service.run("audit", "export").stdout)
    exports = str(tmp_path / "curator"), str(tmp_path / "modeler")
    compared = parties[0].run("audit", "reconcile", opened.id, *exports)
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert compared.stdout.endswith(" 0 differences\n")
