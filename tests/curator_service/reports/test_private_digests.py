"""No digest of private bytes is in a report, or in a reply to anybody but the owner: it would confirm a guess."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

import curator_service
from service_kit.store import audit_log
from tests.builders import a_study, group_release, laplace
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

CSV = "who,x,y\n" + "".join(f"p{i // 2},{i / 24!r},{0.5 + i / 100!r}\n" for i in range(24))
WAYS = "md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s"
MADE_UP = {"part": "0", "upload_id": "up_0123456789abcdef", "forecast_id": "fc_0123456789abcdef"}
ROLES = "measurer", "auditor", "modeler", "monitor"
DIGESTS = {
    # of published bytes
    "release_sha256": "candidates, as a grant gets them",
    "etag": "candidates, or a part of them",
    "parts.sha256": "a part of the candidates",
    "sha256": "in the log: candidates, or measured values with a salt each; in the owner's datasets: the file",
    "reply_sha256": "a reply to a vendor; its numbers are beside a salt",
    "request_sha256": "a request of a vendor",
    # of the owner's declarations
    "spec_sha256": "a study",
    "report_sha256": "the report on a release, of public values; a refuted mechanism also states what it measured",
    "reading_sha256": "how a file is read, with the columns that have gaps, which the promise takes as public",
    "reason_sha256": "the reason for a higher cap, or of an advisory, which everybody reads",
    "replaces": "the study before a change",
    "decision_sha256": "which accounts are one, and why others are apart",
    # with a salt of their own, which leaves with what they are of
    "columns_sha256": "columns of a dataset, with ends and numbers of gaps",
    "deciding_sha256": "what decides in a dataset's row, with the digest of its file",
    "overlaps_sha256": "how many persons other files have",
    "order_sha256": "the record of each candidate",
    "unit_sha256": "a withheld record or person",
    "message_sha256": "a vendor's message",
    "word_sha256": "the owner's word about it",
    "outcome_sha256": "the outcome of a tuning",
    "letter_sha256": "a letter to a person",
    # of logs, keys and random text
    "leaf": "a record of a log",
    "peaks": "records of a log",
    "root": "a log",
    "note": "a signed checkpoint",
    "checkpoint": "a signed checkpoint",
    "signature": "a signed report",
    "blindopt-receipt": "a signed checkpoint",
    "log_key": "a public key",
    "secret_sha256": "a token of 128 random bits",
    "salt": "random text",
    "request_id": "random text",
    "x-request-id": "random text",
}
"""Every digest in a reply, a log, a report, a header or a metric, and what it is over. A new one needs a decision."""
EARLIER = {"row_sha256"}
"""What only logs of earlier versions have."""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A curator with an open study of groups by persons, an answer, and a person who is withheld."""
    curator = InProcessCurator(tmp_path_factory.mktemp("digests"), metrics=True)
    for role in ("auditor", "monitor"):
        curator.tokens[role] = curator.context.authentication.issue(role, role, days=1)[0].text
    dataset = curator.register(CSV, person="who", rows_per_person="2")
    study = a_study(
        group_release(parts=(2,)), laplace("0.5"), columns=("x",), person_column=True, rows_per_person=2
    ).model_copy(update={"dataset_id": dataset})
    curator.study, curator.dataset = curator.release(study), dataset
    curator.query = curator.ask(curator.study, [0])
    curator.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"person": "p3"})
    yield curator
    curator.close()


def private_texts(curator):
    """Bytes that an attacker might guess: the file in common forms, what is stored of it, its records and its cells."""
    lines = CSV.splitlines()
    yield from (CSV, CSV.rstrip(), CSV.replace("\n", "\r\n"), "\n".join([lines[0], *sorted(lines[1:])]))
    table = [line.split(",") for line in lines[1:]]
    yield from (json.dumps(table), json.dumps([[who, float(x), float(y)] for who, x, y in table]))
    for line, cells in zip(lines[1:], table, strict=True):
        yield from (line, f"{line}\n", json.dumps(cells), json.dumps([float(cell) for cell in cells[1:]]), *cells)
        yield json.dumps({"person": cells[0]})
    with curator.context.database.read() as db:
        for row in db.exec_driver_sql("select * from datasets"):
            # What decided in the row of a dataset, as logs once had it: all but the file is public.
            names = "sha256", "sandbox", "rows", "rows_left_out", "person_column", "persons", "person_rows_dropped"
            yield json.dumps([getattr(row, name) for name in names])


def private_digests(curator):
    """Common digests of these, as their first 16 hex digits and 20 of base64, so that a part of one is found too."""
    content = {text.encode() for text in private_texts(curator)}
    vault = curator.curator.vault
    content |= {path.read_bytes() for path in (vault.records(curator.dataset), vault.order_file(_release(curator)))}
    digests = [hashlib.new(way, each).digest() for each in content for way in WAYS]
    return {digest.hex()[:16] for digest in digests}, {base64.b64encode(digest).decode()[:20] for digest in digests}


def _release(curator):
    return curator.call("owner", "GET", f"/v1/studies/{curator.study}")["release_id"]


def has_any(text, digests):
    """Whether any of the digests is in a text."""
    in_hex, in_base64 = digests
    hexes = (run[i : i + 16] for run in re.findall(r"[0-9a-f]{16,}", text.lower()) for i in range(len(run) - 15))
    standard = text.replace("-", "+").replace("_", "/")
    runs = re.findall(r"[A-Za-z0-9+/]{20,}", standard)
    return not in_hex.isdisjoint(hexes) or any(
        run[i : i + 20] in in_base64 for run in runs for i in range(len(run) - 19)
    )


def shown(reply):
    return repr(reply.headers.items()) + reply.content.decode("latin-1")


def names_of(curator):
    names = MADE_UP | {"study_id": curator.study, "dataset_id": curator.dataset, "query_id": curator.query}
    names |= {"measurement_id": "msr_0123456789abcdef", "tuning_id": "tun_0123456789abcdef"}
    return names | {"message_id": "msg_0123456789abcdef"}


def replies(curator, role):
    """Path and text of every reply to a role that only reads."""
    names = names_of(curator)
    for path, operations in curator.app.openapi()["paths"].items():
        if "get" in operations and not path.endswith("/events"):
            reply = curator.send(role, "GET", path.format(**names))
            yield path, reply.status_code, shown(reply)


@pytest.mark.parametrize("role", ROLES)
def test_no_reply_to_another_role_holds_a_digest_of_private_bytes(role, served):
    digests = private_digests(served)
    texts = {path: (status, text) for path, status, text in replies(served, role)}
    assert [path for path, (_, text) in texts.items() if has_any(text, digests)] == []
    needed = {"measurer": "/v1/inbox", "auditor": "/v1/audit/entries", "modeler": "/v1/studies/{study_id}"}
    needed["monitor"] = "/readyz"
    assert texts[needed[role]][0] == 200  # the search does see what this role reads


def test_no_report_of_a_dataset_holds_a_digest_of_private_bytes(served):
    path = f"/v1/datasets/{served.dataset}:report"
    assert not has_any(shown(served.send("owner", "POST", path)), private_digests(served))


@pytest.mark.slow(sibling="test_no_report_of_a_dataset_holds_a_digest_of_private_bytes")
def test_no_report_of_a_study_holds_one(served):
    """It attacks the release, which takes some seconds."""
    path = f"/v1/studies/{served.study}:report"
    assert not has_any(shown(served.send("owner", "POST", path)), private_digests(served))


def test_no_page_of_the_log_holds_one(served):
    digests = private_digests(served)
    with served.context.database.read() as db:
        records = [entry.record for entry in audit_log.walk(db)]
    assert {record["kind"] for record in records} >= {"dataset.registered", "charge", "record.withheld"}
    assert [record["kind"] for record in records if has_any(json.dumps(record), digests)] == []


def digests_in(value, name=""):
    """The names of what looks like a digest or a key: 32 hex digits, or 40 of base64."""
    if isinstance(value, dict):
        for inner, each in value.items():
            yield from digests_in(each, "parts.sha256" if (name, inner) == ("parts", "sha256") else inner)
    elif isinstance(value, list):
        for each in value:
            yield from digests_in(each, name)
    elif isinstance(value, str) and value.startswith("{"):
        yield from digests_in(json.loads(value), name)
    elif isinstance(value, str) and re.search(r"[0-9a-f]{32}|[A-Za-z0-9+/]{40}", value):
        yield name


def test_every_digest_that_leaves_is_in_the_list(served):
    names = set()
    for role in ROLES:
        for path, operations in served.app.openapi()["paths"].items():
            if "get" in operations and not path.endswith("/events"):
                reply = served.send(role, "GET", path.format(**names_of(served)))
                names |= set(digests_in({name.lower(): text for name, text in reply.headers.items()}))
                if reply.headers["content-type"].startswith("application/json"):
                    names |= set(digests_in(reply.json()))
    names |= set(digests_in(served.call("owner", "POST", f"/v1/datasets/{served.dataset}:report")))
    with served.context.database.read() as db:
        for entry in audit_log.walk(db):
            names |= set(digests_in(entry.record)) - {"path"}  # of a request: it names an id, not a digest
    assert names - DIGESTS.keys() - {"path"} == set()
    assert names >= {"deciding_sha256", "unit_sha256", "etag", "blindopt-receipt", "order_sha256"}
    metrics = served.send("monitor", "GET", "/metrics")
    assert metrics.status_code == 200
    assert not re.search(r"[0-9a-f]{32}", metrics.text)


def test_every_digest_that_the_code_names_is_in_the_list():
    sources = [path.read_text(encoding="utf-8") for path in Path(curator_service.__file__).parent.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"\"(\w*sha256)\"", text)}
    assert named - DIGESTS.keys() - EARLIER == set()
    assert "order_sha256" in named


def test_a_planted_digest_is_found(served):
    """The control, and what the owner alone reads."""
    digests = private_digests(served)
    assert has_any(shown(served.send("owner", "GET", f"/v1/datasets/{served.dataset}")), digests)
    cell = hashlib.sha256(b"p3").digest()
    for planted in (
        cell.hex(),
        cell.hex().upper(),
        base64.b64encode(cell).decode(),
        base64.urlsafe_b64encode(cell).decode(),
    ):
        assert has_any(f'{{"etag": "x{planted}y"}}', digests)
    assert not has_any(hashlib.sha256(b"nothing of it").hexdigest(), digests)
