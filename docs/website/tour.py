"""A tour that uses the operations of both services, and records a request and a reply of each for the reference."""

import json
import tempfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from blindopt import wire
from blindopt.client import Measurer, Owner, Vendor
from blindopt.client.connection import Client, new_key
from blindopt.client.study import Study
from demo.parties import Party, start_services

Json = dict[str, Any]
READ = {"application/json", "text/csv", "text/plain", "text/event-stream"}


@dataclass(frozen=True, slots=True)
class Example:
    """A request with its reply; bodies are values of JSON or text, None for files and streams."""

    method: str
    target: str
    media: str
    body: Any
    status: int
    reply_media: str
    reply: Any


class Recording(httpx.HTTPTransport):
    """Sends requests, and keeps what was sent and received."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: list[tuple[int | None, Example]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read its whole reply."""
        body = request.read()
        reply = super().handle_request(request)
        content, media = reply.read(), reply.headers.get("content-type", "").partition(";")[0]
        sent = request.headers.get("content-type", "") if body else ""
        example = Example(
            method=request.method.lower(),
            target=request.url.raw_path.decode(),
            media=sent.partition(";")[0],
            body=_value(sent, body),
            status=reply.status_code,
            reply_media=media,
            reply=_value(media, content) if media in READ else None,
        )
        self.examples.append((request.url.port, example))
        return httpx.Response(reply.status_code, headers=reply.headers, stream=httpx.ByteStream(content))


def _value(media: str, body: bytes) -> Any:
    if media.startswith("multipart/"):
        parts = message_from_bytes(f"Content-Type: {media}\r\n\r\n".encode() + body).walk()
        read = {str(part.get_param("name", header="content-disposition")): str(part.get_payload()) for part in parts}
        del read["None"]  # the whole
        return {name: value == "true" if value in ("true", "false") else value for name, value in read.items()}
    if not body:
        return None
    return json.loads(body) if media == "application/json" else body.decode("utf-8-sig")


_METRIC = '# TYPE blindopt_requests_total counter\nblindopt_requests_total{method="GET",status="200"} 3.0'
_LINK, _REQUEST = "/v1/links/lnk_0123456789abcdef", "00112233445566778899aabbccddeeff"
_HEAD = {"request": _REQUEST, "part": 0, "last": True, "status": 200, "headers": {"Content-Type": "application/json"}}
BY_HAND = {
    name: [
        Example("get", "/metrics", "", None, 200, "text/plain", f'{_METRIC}"GET",path="/v1/meta",status="200"}} 3.0')
    ]
    for name in ("curator", "modeler")
}
"""What needs a link or a setting."""
BY_HAND["curator"] += [
    Example("post", f"/v1/inbox/{item}:try_again", "", None, 200, "application/json", {"measurements": 1})
    for item in ("system", "measurements/msr_0123456789abcdef")
]
BY_HAND["modeler"] += [
    Example(
        *("post", f"{_LINK}:pull?wait=20", "application/json", {"working": []}, 200, "application/json"),
        {"requests": [{"id": _REQUEST, "method": "GET", "target": "/v1/meta", "headers": {}, "body": ""}]},
    ),
    Example(
        *("post", f"{_LINK}:reply", "application/octet-stream", f'{json.dumps(_HEAD)}\n{{"service": "curator"}}', 200),
        *("application/json", {"next_part": 1}),
    ),
]


def examples() -> dict[str, list[Example]]:
    """Every example, by service."""
    recording = Recording()
    before, Client._transport = Client._transport, recording
    try:
        with tempfile.TemporaryDirectory() as folder, start_services(Path(folder) / "services") as (curator, modeler):
            _walk(Path(folder), curator, modeler)
            ports = {httpx.URL(party.url).port: party.name for party in (curator, modeler)}
    finally:
        Client._transport = before
    recorded: dict[str, list[Example]] = {name: [] for name in ports.values()}
    for port, example in recording.examples:
        recorded[ports[port]].append(example)
    return {name: item + BY_HAND[name] for name, item in recorded.items()}


def _houses(seed: int, count: int) -> bytes:
    rng = np.random.default_rng(seed)
    area, built = rng.integers(40, 200, count), rng.integers(1900, 2020, count)
    price = area * 4 + (built - 1900) + rng.integers(-40, 40, count)
    blocks = ["area_m2,built,price", *(f"{a},{b},{p}" for a, b, p in zip(area, built, price, strict=True))]
    return "\n".join(blocks).encode()


def _walk(folder: Path, curator: Party, modeler: Party) -> None:
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        study = _study(owner)
        _vendor(folder, owner, vendor, study)
        _measuring(folder, owner, Measurer(curator.url, curator.token))
        _tuning(owner)
        _after(owner, study)
        for client in (owner, vendor):
            _service(client)


def _call(client: Client, method: str, path: str, body: Any = None, **params: Any) -> Any:
    content = b"" if body is None else json.dumps(body).encode()
    key = None if method == "GET" else new_key()
    reply = client._send(method, path, body=content or None, key=key, params=params or None).check()
    return json.loads(reply.body) if reply.headers["content-type"].startswith("application/json") else reply.body


def _service(client: Client) -> None:
    for path in ("/healthz", "/readyz", "/v1/meta", "/v1/notices", "/v1/certificates", "/v1/links"):
        _call(client, "GET", path)
    _call(client, "POST", "/v1/notices:test")
    _call(client, "POST", "/v1/audit:verify")
    for path in ("/v1/audit/entries", "/v1/audit/checkpoint", "/v1/audit/verification"):
        _call(client, "GET", path)
    _call(client, "GET", "/v1/audit/consistency", first=1, second=2)


def _study(owner: Owner) -> str:
    """Upload a file, look at a study of its groups from all sides, and release it."""
    upload = owner.start_upload(_houses(1, 600), filename="houses.csv")
    _call(owner, "GET", "/v1/uploads")
    owner.pending_upload(upload.id)
    owner.read_upload(upload.id, wire.ReadingChoice(columns=["area_m2", "built", "price"]))
    owner.discard_upload(upload.id)
    dataset = owner.upload(_houses(1, 600), name="House sales", columns=["area_m2", "built", "price"])
    path = f"/v1/datasets/{dataset.id}"
    for item in ("/v1/datasets", path, f"{path}/account", f"{path}/withheld", f"{path}/picture"):
        _call(owner, "GET", item)
    half = owner.upload(b"\n".join(_houses(1, 600).split(b"\n")[:301]), name="House sales until May")
    _call(owner, "POST", f"/v1/datasets/{half.id}:decide", {"continues": [dataset.id]})
    owner.withhold(dataset.id, 17)
    _call(owner, "GET", f"{path}/withheld")
    _call(owner, "PUT", f"{path}/account/caps", {"epsilon": "8", "delta": None})
    outer = [{"column": "price", "outer": [0, 2000]}]
    _call(owner, "POST", f"{path}:clips", {"columns": outer})
    _call(owner, "POST", f"{path}:bounds", {"columns": outer, "quantiles": [0.05, 0.95], "epsilon": "0.2"})
    owner.bounds(dataset.id)
    body = {
        "name": "Where do houses sell best?",
        "dataset_id": dataset.id,
        "features": [
            {"column": "area_m2", "lower": 40, "upper": 200},
            {"column": "built", "lower": 1900, "upper": 2020},
        ],
        "measurement": {"column": "price", "direction": "maximize"},
        "release": {
            "mechanism": "groups",
            "epsilon": "0.5",
            "cells": {"kind": "grid", "parts": [3, 3]},
            "min_count": 20,
        },
        "answers": {"mechanism": "laplace", "epsilon": "0.5", "centre": 500, "value_bound": 400},
        "budget": {"epsilon_per_row": "1", "queries": 50},
    }
    _call(owner, "POST", "/v1/studies:check", body)
    _call(owner, "POST", "/v1/studies:forecast", body)
    draft = owner.create_study(wire.StudyCreate.model_validate_json(json.dumps(body)))
    study = f"/v1/studies/{draft.id}"
    _call(owner, "PUT", study, body | {"name": "Where do houses sell best in town?", "replaces": draft.spec_sha256})
    forecast = _call(owner, "POST", f"{study}/forecasts", {"epsilons": ["1"], "functions": 4, "queries": 10})
    done = owner.wait_forecast(draft.id, forecast["id"], timeout_s=120)
    slow = _call(owner, "POST", f"{study}/forecasts", {"epsilons": ["0.5", "1", "2"], "functions": 50, "queries": 50})
    owner.cancel_forecast(draft.id, slow["id"])
    owner.forecasts(draft.id)
    assert done.points
    _call(owner, "POST", f"{study}:preview")
    _call(owner, "PUT", f"{study}/labels", {"note": "For the meeting in May.", "tags": ["houses"]})
    _call(owner, "POST", f"{study}:release", {"spec_sha256": owner.draft(draft.id).view.spec_sha256})
    owner.make_sandbox(draft.id)
    for item in (study, "/v1/studies", "/v1/jobs", "/v1/accounts", f"{study}/groups"):
        _call(owner, "GET", item)
    return draft.id


def _vendor(folder: Path, owner: Owner, vendor: Vendor, study: str) -> None:
    """Grants, a run with all that can be read of it, a loop of one's own, and messages."""
    released = owner.study(study)
    path = f"/v1/studies/{study}"
    for name in ("Acme", "own loop", "Messages"):
        released.grant(name).save(folder / f"{name}.json")
    spare = _call(owner, "POST", f"{path}/grants", {"name": "Another vendor"})
    more = _call(owner, "POST", f"{path}/grants/{spare['id']}:rotate", {"expires_in_days": 30})
    _call(owner, "POST", f"{path}/grants/{spare['id']}/tokens/{more['token'].split('.')[0].split('_')[1]}:revoke")
    _call(owner, "PUT", f"{path}/grants/{spare['id']}/log_quota", {"bytes_per_day": 50_000_000})
    owner.grants(study)
    owner.revoke(study, spare["id"])

    grant = wire.GrantFile.model_validate_json((folder / "Acme.json").read_bytes())
    access = grant.access.model_dump(mode="json")
    _call(vendor, "POST", "/v1/connections:test", access)
    run = vendor.start(folder / "Acme.json", queries=6, seed=7, name="First run").wait()
    path = f"/v1/runs/{run.id}"
    for item in ("/v1/runs", path, *(f"{path}/{what}" for what in ("trials", "curve", "export", "recommendation"))):
        _call(vendor, "GET", item)
    for item in ("posterior", "map", "slices", "events"):
        _call(vendor, "GET", f"{path}/{item}")
    number = run.hand_over("Look at these sales.").number
    vendor.update_message(run.id, number)
    vendor.messages(run.id)
    _call(vendor, "PUT", f"{path}/labels", {"note": "The best so far.", "tags": ["houses"]})
    _call(vendor, "POST", f"{path}:archive")
    _call(vendor, "POST", f"{path}:unarchive")

    held = vendor.start(folder / "Acme.json", queries=6, name="With past outcomes", hold=True, continue_from=None)
    past = {"observations": [{"row": 0, "y": 450.0, "noise_variance": 100.0}]}
    _call(vendor, "POST", f"/v1/runs/{held.id}/observations", past, dry_run="true")
    _call(vendor, "POST", f"/v1/runs/{held.id}/observations", past)
    _call(vendor, "POST", f"/v1/runs/{held.id}:pause")
    _call(vendor, "POST", f"/v1/runs/{held.id}:replace_token", {"token": grant.token})
    _call(vendor, "POST", f"/v1/runs/{held.id}:resume")
    _call(vendor, "POST", f"/v1/runs/{held.id}:stop")
    vendor.run(held.id).wait()
    _call(vendor, "POST", f"/v1/runs/{held.id}:delete")

    queried = {trial.row for trial in run.export.trials}
    first, second, *_ = (row for row in range(9) if row not in queried)
    file, log = folder / "own loop.json", folder / "own.sqlite"
    with Study.from_grant(file, log=log, transport=Client._transport) as loop:  # countersigns at its end
        loop.query(first)
        loop.refresh()
    path = f"/v1/studies/{study}"
    grant = wire.GrantFile.model_validate_json((folder / "Messages.json").read_bytes())
    with Client(grant.curator_url, grant.token) as client:
        query = _call(client, "POST", f"{path}/queries", {"rows": [{"row": second}]})
        _call(client, "GET", f"{path}/queries/{query['id']}")
        message = {"kind": "recommendation", "row": second, "mean": 610.0, "salt": "00112233445566778899aabbccddeeff"}
        sent = _call(client, "POST", f"{path}/messages", message)
        _call(client, "GET", f"{path}/messages/{sent['id']}")
    _call(owner, "GET", "/v1/messages")
    _call(owner, "GET", f"/v1/messages/{sent['id']}")
    _call(owner, "POST", f"/v1/messages/{sent['id']}:decide", {"decision": "accepted", "word": "Thank you."})
    _call(owner, "POST", f"{path}:open_group", {"row": second})
    answers = {"epsilon": 0.5, "centre": 500, "value_bound": 400}
    budget = {"epsilon_per_row": 1}
    at_once = released.another("All groups", outcome="price", answers=answers, budget=budget).release().id
    _call(owner, "POST", f"/v1/studies/{at_once}:answer_all")
    _call(owner, "GET", f"/v1/studies/{at_once}/answers")
    owner.close_study(at_once)


def _measuring(folder: Path, owner: Owner, measurer: Measurer) -> None:
    """A study that people measure: answers, corrections, and what they decline."""
    dataset = owner.upload(_houses(2, 100), name="Houses to visit", public=True)
    study = dataset.study(
        "Most valued house",
        features={"area_m2": (40, 200), "built": (1900, 2020)},
        outcome=wire.InboxMeasurement(direction="maximize", question="What would it sell for?", unit="thousand"),
        privacy="public",
        answers={"epsilon": 1, "centre": 500, "value_bound": 500, "plays": "mean"},
        budget={"queries": 20},
    ).release(confirm_high_risk=True)
    study.grant("Acme").save(folder / "measured.json")
    grant = wire.GrantFile.model_validate_json((folder / "measured.json").read_bytes())
    path = f"/v1/studies/{study.id}"
    with Client(grant.curator_url, grant.token) as vendor:
        for file in (path, f"{path}/candidates"):
            _call(vendor, "GET", file)
        queries = [
            _call(vendor, "POST", f"{path}/queries", {"rows": [{"row": row, "plays": 2 - row}]})["id"] for row in (0, 1)
        ]
        _call(vendor, "GET", f"{path}/queries/{queries[0]}", wait=0)
        sent = _call(vendor, "POST", f"{path}/messages", {"kind": "recommendation", "row": 1})["id"]
    for item in ("/v1/inbox", "/v1/inbox/system", "/v1/inbox.csv"):
        _call(measurer, "GET", item)
    _call(measurer, "GET", "/v1/inbox/events", seconds=0.2)
    items = {query: [item.id for item in measurer.measurements(query_id=query)] for query in queries}
    first, second = items[queries[0]]
    _call(measurer, "GET", f"/v1/inbox/measurements/{first}")
    measurer.import_csv(f"measurement_id,value\n{first},412\n".encode(), dry_run=True)
    measurer.import_csv(f"measurement_id,value\n{first},412\n".encode())
    path = f"/v1/queries/{queries[0]}"
    _call(measurer, "POST", f"{path}:answer", {"values": [{"measurement_id": second, "value": 405}]})
    _call(measurer, "POST", f"{path}:correct", {"values": [], "void": [second], "reason": "record"})
    _call(measurer, "POST", f"{path}:release_mean", {"measurement_ids": [first]})
    decline = {"measurement_ids": items[queries[1]], "reason": "unavailable"}
    _call(measurer, "POST", f"/v1/queries/{queries[1]}:decline", decline)
    _call(owner, "POST", f"/v1/studies/{study.id}:open_record", {"row": 0})
    _call(owner, "POST", f"/v1/messages/{sent}:open_records")


def _tuning(owner: Owner) -> None:
    public = owner.upload(_houses(3, 60), name="Old sales", public=True)
    private = owner.upload(_houses(4, 400), name="New sales")
    tuning = {
        "name": "Lambda of expensive houses",
        "grid": [{"name": "lambda", "values": [0.01, 0.1, 1], "scale": "log10"}],
        "score": {
            "kind": "logistic",
            "training_dataset_id": public.id,
            "label": "price",
            "threshold": 500,
            "loss": "zero_one",
            "features": [{"column": "area_m2", "lower": 40, "upper": 200}],
        },
        "validation_dataset_id": private.id,
        "budget": {"epsilon": "1"},
        "caps": {"epsilon": "3"},
    }
    _call(owner, "POST", "/v1/tunings:preview", tuning)
    first, waiting = (_call(owner, "POST", "/v1/tunings", tuning)["id"] for _ in range(2))
    owner.cancel_tuning(waiting)  # while the first starts its process
    owner.wait_tuning(first, timeout_s=120)
    owner.tunings()


def _after(owner: Owner, study: str) -> None:
    """What is read of a study with answers, and how studies and datasets end."""
    path, dataset = f"/v1/studies/{study}", owner.draft(study).view.spec.dataset_id
    reads = ("ledger", "exposure", "accounting", "account", "exposure/histogram", "results", "ledger/curve")
    for item in reads:
        _call(owner, "GET", f"{path}/{item}")
    _call(owner, "GET", f"/v1/datasets/{dataset}/account")
    _call(owner, "POST", f"{path}:report")
    _call(owner, "POST", f"/v1/datasets/{dataset}:report")
    _call(owner, "POST", f"/v1/datasets/{dataset}:letter", {"record": 18})
    more = {"budget": {"queries": 100}, "reason": "The vendor asked for 50 more queries."}
    _call(owner, "PUT", f"{path}/budget", more)
    for verb in ("close", "archive", "unarchive"):
        _call(owner, "POST", f"{path}:{verb}")
    unused = owner.upload(_houses(5, 50), name="Unused", public=True)
    spec = {"area_m2": (40, 200)}
    draft = unused.study("Unused", features=spec, outcome="price", privacy="public", answers="exact")
    _call(owner, "POST", f"/v1/studies/{draft.id}:delete")
    for verb in ("archive", "unarchive", "archive", "delete"):
        _call(owner, "POST", f"/v1/datasets/{unused.id}:{verb}")
    owner.archive_dataset(dataset)
    owner.erase_dataset(dataset)
