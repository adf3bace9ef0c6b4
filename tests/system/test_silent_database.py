"""While PostgreSQL answers nothing, a service says that it is up: no request of anybody holds its event loop.

BLINDOPT_STOPPED_S=8 lets the server stand still for so long, and then /healthz has 0.2 s.
"""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from tests import postgres

STOPPED_S = float(os.environ.get("BLINDOPT_STOPPED_S", "2"))
HEALTH_S = 0.2 if "BLINDOPT_STOPPED_S" in os.environ else 60.0
"""A held event loop answers when the server goes on, so never in time; a busy machine may take longer than 0.2 s."""
ID = {"study": "std_", "query": "qry_", "dataset": "dts_", "run": "run_", "link": "lnk_"}


@pytest.fixture
def server():
    if (reason := postgres.why_not()) is not None:
        pytest.skip(reason)
    server = postgres.Server()
    yield server
    server.remove()


def _paths(service):
    """A path of every GET of the contract, with ids that nothing has."""
    with service.http("") as http:
        paths = http.get("/openapi.json").json()["paths"]
    assert len(paths) > 30
    return [
        re.sub(r"{(\w+?)(_id)?}", lambda match: f"{ID.get(match[1], 'x_')}0123456789abcdef", path)
        for path, operations in paths.items()
        if "get" in operations
    ]


def _health(service, token):
    """How long /healthz took, over a connection of its own."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    before = time.monotonic()
    with httpx.Client(base_url=service.url, headers=headers, timeout=HEALTH_S, trust_env=False) as http:
        assert http.get("/healthz").status_code == 200
    return time.monotonic() - before


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_health_is_answered_while_every_route_waits_for_a_silent_server(name, server, make_service, tmp_path, until):
    settings = {name: {"database_url": server.create(name)}}
    curator, modeler = (
        make_service(of, tmp_path, metrics="true", **settings.get(of, {})) for of in ("curator", "modeler")
    )
    silent = curator if name == "curator" else modeler
    for service in (curator, modeler):
        service.start()
    assert modeler.run("link", "create", "l", "--url", modeler.url, "--save", str(tmp_path / "l.json")).returncode == 0
    assert curator.run("link", "add", str(tmp_path / "l.json")).returncode == 0
    with curator.http() as http:
        until(lambda: [link["state"] for link in http.get("/v1/links").json()["links"]] == ["connected"])
        (link,) = http.get("/v1/links").json()["links"]
    access = {"curator_url": link["address"], "study_id": "std_0123456789abcdef", "token": curator.token}
    paths = ["/readyz", *_paths(silent)]

    def send(method, path, **body):
        with suppress(httpx.HTTPError), silent.http() as http, http.stream(method, path, **body) as reply:
            return reply.status_code

    def over_the_link():
        with modeler.http(**{"Idempotency-Key": "k"}) as http:
            return http.post("/v1/connections:test", json=access).status_code

    with ThreadPoolExecutor(len(paths) + 1) as pool:
        server.signal(signal.SIGSTOP)
        try:
            sent = [pool.submit(send, "GET", path) for path in paths]
            linked = pool.submit(over_the_link)
            until_s, took = time.monotonic() + STOPPED_S, []
            while time.monotonic() < until_s or len(took) < 10:
                took += [_health(silent, token) for token in (silent.token, "", "no token")]
            assert not all(future.done() for future in sent)
            assert max(took) < HEALTH_S
        finally:
            server.signal(signal.SIGCONT)
        assert {future.result() for future in sent} & {200, 404, 503}
        assert 500 not in {future.result() for future in sent}
        assert linked.result() == 200
    until(lambda: httpx.get(f"{silent.url}/readyz", trust_env=False).status_code == 200)
