"""`make openapi-client`: a client that a stock generator makes from the curator's document runs an exchange.

BLINDOPT_GENERATOR is the folder where openapi-python-client is installed; without it, these tests are skipped.
"""

import base64
import hashlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Verifier
from tests.system.meddler import between, cut, late, repeated, truncated

GENERATOR = os.environ.get("BLINDOPT_GENERATOR")
QUERIES, TRIES = 12, 60
pytestmark = [
    pytest.mark.skipif(GENERATOR is None, reason="make openapi-client"),
    pytest.mark.filterwarnings("ignore:invalid decimal literal"),  # in what the generator writes
]


@pytest.fixture(scope="module")
def curator(make_service, tmp_path_factory):
    return make_service("curator", tmp_path_factory.mktemp("generated")).start()


@pytest.fixture(scope="module")
def api(curator, tmp_path_factory):
    """Imports a module of the generated package, by its name."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "curator.json").write_bytes(httpx.get(f"{curator.url}/openapi.json").content)
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    command += ["--path", str(folder / "curator.json"), "--output-path", str(folder / "generated_curator")]
    done = subprocess.run(command, env={"PYTHONPATH": str(GENERATOR), "PATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    left_out = set(re.findall(r"WARNING parsing (\w+ \S+)", done.stdout + done.stderr))
    # The candidates are bytes: the content of the reply. An import is CSV, or JSON.
    path = "GET /v1/studies/{study_id}/candidates"
    assert left_out == {path, f"{path}/parts/{{part}}", "POST /v1/inbox:import"}
    sys.path.insert(0, str(folder))
    yield lambda name: importlib.import_module(f"generated_curator.{name}")
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def grant(api, curator, small):
    """The owner registers, releases and grants."""
    models = api("models")
    client = api("client").AuthenticatedClient(curator.url, curator.token, timeout=httpx.Timeout(60))

    def send(name: str, *path: str, body: Any = None) -> Any:
        content = {} if body is None else {"body": body}
        return _ok(api(f"api.{name}").sync_detailed(*path, client=client, idempotency_key=name, **content))

    file = api("types").File(io.BytesIO(small.csv), "small.csv", "text/csv")
    dataset = send("datasets.register_dataset", body=models.BodyRegisterDataset(name="small", public=True, file=file))
    lower, upper = small.bounds
    maximize = models.ColumnMeasurementDirection.MAXIMIZE
    draft = models.StudyCreate(
        name="generated",
        dataset_id=dataset.id,
        features=[models.Feature(column=name, lower=lower, upper=upper) for name in small.names[:2]],
        measurement=models.ColumnMeasurement(column=small.names[2], direction=maximize),
        release=models.IdentityRelease(mechanism="identity"),
        answers=models.NoAnswerNoise(mechanism="none"),
    )
    study = send("studies.create_study", body=draft)
    released = send("studies.release_study", study.id)
    assert released.state == "open"
    reply = send("studies.create_grant", study.id, body=models.GrantCreate(name="vendor"))

    def plays() -> int:
        return int(_ok(api("api.accounts.get_ledger").sync_detailed(study.id, client=client)).total_plays)

    return study.id, reply, plays


def _ok(reply: Any) -> Any:
    assert reply.status_code < 300, reply.content
    return reply.parsed


def _insist(call: Callable[[], Any]) -> Any:
    """As any client should: the same request again while nothing whole comes back, or it may be repeated."""
    for _ in range(TRIES):
        try:
            reply = call()
        except httpx.TransportError:
            continue
        if reply.status_code < 400 or not json.loads(reply.content)["retryable"]:
            return reply
        time.sleep(0.05)  # a repeated request may find the first one still running
    raise AssertionError("no reply")


@pytest.mark.parametrize("fault", [late, cut, repeated, truncated])
def test_an_exchange_on_a_bad_network_is_charged_once_and_every_receipt_verifies(api, curator, grant, fault):
    study_id, granted, plays = grant
    before, sent = plays(), {}

    def remember(request: httpx.Request) -> None:
        sent["body"] = request.read()

    with between(curator, fault) as net:
        hooks = {"event_hooks": {"request": [remember]}}
        client = api("client").AuthenticatedClient(net.url, granted.token, httpx_args=hooks)
        study = _ok(_insist(lambda: api("api.exchange.get_study").sync_detailed(study_id, client=client)))
        verifier, seen, signed = Verifier.parse(study.log_key), [], {}
        file = _insist(lambda: api("api.exchange.get_candidates").sync_detailed(study_id, client=client))
        assert hashlib.sha256(file.content).hexdigest() == study.release_sha256
        query, row = api("models.query_request").QueryRequest, api("models.row_plays").RowPlays
        ask = api("api.exchange.ask")
        for number in range(QUERIES):
            key, body = f"{fault.__name__}-{number}", query([row(number)])
            reply = _insist(
                lambda body=body, key=key: ask.sync_detailed(study_id, client=client, body=body, idempotency_key=key)
            )
            assert reply.status_code == 201
            assert [answer.row for answer in reply.parsed.answers] == [number]
            position, _, note = reply.headers["Blindopt-Receipt"].partition(" ")
            checkpoint = verifier.verify(base64.b64decode(note).decode())
            assert checkpoint.head.size == int(position) + 1
            signed[checkpoint.head.size] = checkpoint.head.root
            digests = merkle_log.sha256(sent["body"]), merkle_log.sha256(reply.content)
            seen.append((int(position), key, *digests, reply.headers.get("Idempotency-Replayed") == "true"))
        assert net.seen
    assert min(net.seen.values()) >= 1
    assert plays() - before == QUERIES
    entries = _shared_log(api, curator, granted)
    merkle_log.verify(entries, index="position", signed=signed)
    for position, key, request, reply, replayed in seen:
        record = entries[position].record
        assert (record["idempotency_key"], record["request_sha256"], record["reply_sha256"]) == (key, request, reply)
        assert record["replayed"] == replayed
        assert record.keys() == _fields(curator)


def _shared_log(api: Any, curator: Any, granted: Any) -> list[merkle_log.Entry]:
    client, page, entries = api("client").AuthenticatedClient(curator.url, granted.token), {}, []
    while True:
        got = _ok(api("api.audit.list_audit_entries").sync_detailed(client=client, page_size=50, **page))
        for entry in got.entries:
            hashes = bytes.fromhex(entry.leaf), bytes.fromhex(entry.peaks)
            entries.append(merkle_log.Entry(entry.seq, entry.body.encode(), *hashes))
        if not got.next_page_token:
            return entries
        page = {"page_token": got.next_page_token}


def _fields(curator: Any) -> set[str]:
    document = json.loads(httpx.get(f"{curator.url}/openapi.json").content)
    return document["components"]["schemas"]["SharedLogRecord"]["properties"].keys()
