"""A streaming replica of the server: how far it is behind is a metric."""

import re
import signal

import pytest

from blindopt.client import Owner
from tests import postgres


@pytest.fixture
def servers():
    """A server and its replica."""
    if (reason := postgres.why_not()) is not None:
        pytest.skip(reason)
    leading = postgres.Server()
    replica = postgres.Server(of=leading)
    yield leading, replica
    for server in (replica, leading):
        server.remove()


def gauge(service, name):
    with service.http() as http:
        (value,) = re.findall(rf"^blindopt_{name} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    return float(value)


def test_what_a_replica_has_not_replayed_is_a_metric(servers, make_service, tmp_path, small, until):
    leading, replica = servers
    service = make_service("curator", tmp_path, database_url=leading.create("followed"), metrics="true").start()
    until(lambda: gauge(service, "replicas") == 1)
    until(lambda: gauge(service, "replication_lag_bytes") < 10_000)  # commits go on: the heartbeat of the leader
    replica.signal(signal.SIGSTOP)
    try:
        with Owner(service.url, service.token) as owner:
            for n in range(5):
                owner.register(f"small {n}", small.csv + b"\n" * n, public=True)
        behind = gauge(service, "replication_lag_bytes")
        assert behind > 10_000
    finally:
        replica.signal(signal.SIGCONT)
    until(lambda: gauge(service, "replication_lag_bytes") < 10_000)
    replica.stop()
    until(lambda: gauge(service, "replicas") == 0)
    assert service.stop() == 0
