"""Thousands of connections that send or read nothing, from many addresses, beside a modeler that works.

`make soak` opens BLINDOPT_SLOW_PEERS=5000 of them and bounds the time of an exchange; `make test` opens a few.
"""

import itertools
import os
import resource
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient
from blindopt.client.transport import is_ready

PEERS = int(os.environ.get("BLINDOPT_SLOW_PEERS", "120"))
IS_SOAK = "BLINDOPT_SLOW_PEERS" in os.environ
EXCHANGES = 200 if IS_SOAK else 10
P99_MAX_SECONDS = 1.0
"""On two processors that the peers, the client and the curator share."""
KINDS = (
    b"",
    b"GET /v1/datasets HTTP/1.1\r\nHost: x\r\nX-a: ",
    b"POST /console/login HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\na",
    b"POST /v1/studies HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFF\r\na",
    b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 8,
    b"\x16\x03\x01",
)


@pytest.fixture
def curator(make_service, tmp_path):
    return make_service("curator", tmp_path, connections_max="300", connections_per_address="40").start()


@pytest.fixture
def asking(curator, small, open_study):
    with Owner(curator.url, curator.token, timeout_s=240) as owner:
        opened = open_study(owner, owner.register("small", small.csv, public=True))
    rows = itertools.count()

    def ask(how_many):
        """The seconds of each of so many queries; every tenth on a connection of its own."""
        seconds = []
        while len(seconds) < how_many:
            with StudyClient(curator.url, opened.token, opened.id, timeout_s=60, patience_s=30) as client:
                for row in itertools.islice(rows, 10):
                    began = time.perf_counter()
                    client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row % 400)]), key=f"slow-peers-{row}")
                    seconds.append(time.perf_counter() - began)
        return seconds

    return ask


def test_peers_that_send_or_read_nothing_keep_nobody_waiting(curator, asking, until):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    peers, is_over = [], threading.Event()

    def attack():
        for number in range(PEERS):
            peer = socket.socket()
            peer.bind((f"127.0.{1 + number % 30}.1", 0))
            peer.connect(("127.0.0.1", curator.port))
            peer.sendall(KINDS[number % len(KINDS)])
            peers.append(peer)
        is_over.set()

    quiet = asking(EXCHANGES)
    attacker = threading.Thread(target=attack)
    attacker.start()
    seconds = []
    try:
        while not is_over.is_set() or len(seconds) < EXCHANGES:
            seconds += asking(10)
        assert is_ready(curator.url)
        assert len(peers) == PEERS
        p50, p99 = np.quantile(seconds, [0.5, 0.99])
        quiet_p50, quiet_p99 = np.quantile(quiet, [0.5, 0.99])
        print(
            f"{PEERS} peers, {len(seconds)} exchanges: p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms; "
            f"without peers {quiet_p50 * 1e3:.1f} and {quiet_p99 * 1e3:.1f} ms"
        )
        if IS_SOAK:
            assert p99 <= P99_MAX_SECONDS
            until(lambda: len(list(Path(f"/proc/{curator.process.pid}/fd").iterdir())) < 100)  # all were cut
            asking(10)
    finally:
        attacker.join()
        for peer in peers:
            peer.close()
