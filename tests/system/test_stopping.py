"""A service ends in a moment whatever it waits for, and whatever has become of who is at the other end.

BLINDOPT_CRASHES=2 allows two seconds for it.
"""

import json
import os
import signal
import socket
import time
from contextlib import contextmanager

import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from tests.builders import BY_HAND, a_run, a_study_of
from tests.conftest import _until

STOPS_WITHIN_S = 2.0 if int(os.environ.get("BLINDOPT_CRASHES", "1")) > 1 else 60.0
"""A pull takes 25 s, a request of a run a minute, and DRAIN_SECONDS of tests is far more; a busy machine is slow."""
PEERS = ("alive", "frozen", "gone")


class Linked:
    """A curator with a link to a modeler, and a run there whose first query waits for people."""

    def __init__(self, make_service, folder, small, until):
        self.curator, self.modeler = (
            make_service(name, folder, metrics="true").start() for name in ("curator", "modeler")
        )
        self.until, file = until, folder / "link.json"
        made = self.modeler.run("link", "create", "l", "--url", self.modeler.url, "--save", str(file))
        assert made.returncode == 0, made.stderr
        assert self.curator.run("link", "add", str(file)).returncode == 0
        self.link = wire.LinkFile.model_validate_json(file.read_text("utf-8"))
        self.await_connected()
        with Owner(self.curator.url, self.curator.token) as owner:
            dataset = owner.register("small", small.csv, public=True)
            study = owner.create_study(a_study_of(small, dataset.id, measurement=BY_HAND, kernel=small.kernel))
            owner.release(study.id)
            grant = owner.grant(study.id, wire.GrantCreate(name="m"))
        with Vendor(self.modeler.url, self.modeler.token) as vendor:
            self.run_id = vendor.start(a_run(f"link://{self.link.id}", study.id, grant.token)).id
        self.await_waiting()

    def await_connected(self):
        with self.modeler.http() as http:
            self.until(lambda: [link["state"] for link in http.get("/v1/links").json()["links"]] == ["connected"])

    def await_waiting(self):
        with self.modeler.http() as http:
            self.until(lambda: http.get(f"/v1/runs/{self.run_id}").json()["waiting_for"] == "people")

    def half_a_reply(self):
        """A peer that has begun to send a part of a reply, and goes on no more."""
        peer = socket.create_connection(("127.0.0.1", self.modeler.port))
        token = self.link.token if isinstance(self.link.token, str) else self.link.token.get_secret_value()
        head = f"POST /v1/links/{self.link.id}:reply HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {token}\r\n"
        peer.sendall(f"{head}Content-Type: application/octet-stream\r\nContent-Length: 100000\r\n\r\n{{".encode())
        return peer

    def reader_of_events(self):
        """A peer that follows the run."""
        peer = socket.create_connection(("127.0.0.1", self.modeler.port))
        head = f"GET /v1/runs/{self.run_id}/events HTTP/1.1\r\nHost: m\r\nAuthorization: Bearer {self.modeler.token}"
        peer.sendall(f"{head}\r\n\r\n".encode())
        assert peer.recv(100).startswith(b"HTTP/1.1 200")
        return peer


@pytest.fixture(scope="module")
def linked(make_service, tmp_path_factory, small):
    return Linked(make_service, tmp_path_factory.mktemp("stopping"), small, _until)


@contextmanager
def become(peer, service):
    """Freeze or kill a service; afterwards it serves again."""
    if peer == "frozen":
        service.process.send_signal(signal.SIGSTOP)
    elif peer == "gone":
        service.kill()
    try:
        yield
    finally:
        if peer == "frozen":
            service.process.send_signal(signal.SIGCONT)
        elif peer == "gone":
            service.start()


def _check_stops(service):
    before = time.monotonic()
    assert service.stop(within=60) == 0
    assert time.monotonic() - before < STOPS_WITHIN_S


@pytest.mark.parametrize("peer", PEERS)
def test_a_modeler_ends_while_its_curator_pulls_people_measure_and_peers_stand_still(linked, peer):
    with linked.half_a_reply(), linked.reader_of_events(), become(peer, linked.curator):
        _check_stops(linked.modeler)
    linked.modeler.start()
    linked.await_connected()
    linked.await_waiting()


@pytest.mark.parametrize("peer", PEERS)
def test_a_curator_ends_while_it_pulls_and_holds_a_query(linked, peer):
    with become(peer, linked.modeler):
        _check_stops(linked.curator)
    linked.curator.start()
    linked.await_connected()
    linked.await_waiting()


def test_faults_of_peers_are_no_faults_of_ours(linked):
    """After all of these ends. The control: tests of faults read the same line after an exception."""
    for service in (linked.curator, linked.modeler):
        lines = [json.loads(line) for line in service.log.splitlines()]
        assert [line for line in lines if line["message"] == "fault"] == []
        assert len([line for line in lines if line["message"] == "peer"]) < 40
    with linked.curator.http() as http:
        assert 'blindopt_peer_errors_total{kind="unreachable"}' in http.get("/metrics").text
