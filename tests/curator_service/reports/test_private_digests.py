"""No digest of private bytes is in a report, or in a reply to anybody but the owner: it would confirm a guess."""

import base64
import hashlib
import json
import re

import pytest

from service_kit.store import audit_log
from tests.builders import a_study, group_release, laplace
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

CSV = "who,x,y\n" + "".join(f"p{i // 2},{i / 24!r},{0.5 + i / 100!r}\n" for i in range(24))
WAYS = "md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s"
MADE_UP = {"part": "0", "upload_id": "up_0123456789abcdef", "forecast_id": "fc_0123456789abcdef"}
ROLES = "measurer", "auditor", "modeler"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A curator with an open study of groups by persons, an answer, and a person who is withheld."""
    curator = InProcessCurator(tmp_path_factory.mktemp("digests"))
    curator.tokens["auditor"] = curator.context.authentication.issue("auditor", "auditor", days=1)[0].text
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


def replies(curator, role):
    """Path and text of every reply to a role that only reads."""
    names = MADE_UP | {"study_id": curator.study, "dataset_id": curator.dataset, "query_id": curator.query}
    names |= {"measurement_id": "msr_0123456789abcdef", "tuning_id": "tun_0123456789abcdef"}
    names["message_id"] = "msg_0123456789abcdef"
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
