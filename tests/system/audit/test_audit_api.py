"""The audit log over REST, by role; and countersignatures at the curator."""

import itertools
import uuid
from typing import Any

import httpx
import pytest

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Checkpoint, Signer, Verifier
from blindopt.audit.merkle_log import Head
from blindopt.client import StudyClient
from service_kit.context.keys import signer
from tests.conftest import as_entry

MODELER, OTHER = Signer.of("modeler", b"m" * 32), Signer.of("modeler", b"o" * 32)


@pytest.fixture(scope="module")
def auditor(curator) -> str:
    return curator.run_in_process("token", "create", "--name", "auditor", "--role", "auditor").stdout.strip()


@pytest.fixture
def study(owner, dataset, open_study) -> Any:
    """A study with a grant of its own, asked three times: its shared log has four exchanges."""
    return open_study(owner, dataset)


@pytest.fixture
def modeler_of(curator, study):
    with StudyClient(curator.url, study.token, study.id) as client:
        client.study()
        for row in range(3):
            client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row, plays=1)]), key=f"k{row}")
    with curator.http(study.token) as http:
        yield http


def listed(http: httpx.Client, **params: Any) -> list[merkle_log.Entry]:
    """A whole log, page by page, verified."""
    entries: list[merkle_log.Entry] = []
    token: dict[str, str] = {}
    while True:
        page = http.get("/v1/audit/entries", params={"page_size": 3, **params, **token}).json()
        entries += [as_entry(wire.AuditEntry.model_validate(entry)) for entry in page["entries"]]
        if page["next_page_token"] is None:
            return entries
        token = {"page_token": page["next_page_token"]}


# --- who sees which log -------------------------------------------------------------------------------


def test_a_modeler_sees_the_shared_log_of_its_grant_and_nothing_else(modeler_of, study, curator):
    entries = listed(modeler_of)
    assert merkle_log.verify(entries, index="position").size == 4
    assert {entry.record["grant_id"] for entry in entries} == {study.grant_id}
    assert listed(modeler_of, grant_id=study.grant_id) == entries
    body = modeler_of.get("/v1/audit/checkpoint").json()
    key = Verifier.parse(curator.run("audit", "key").stdout.strip())
    head = Head(body["size"], body["root"])
    assert key.verify(body["note"]) == Checkpoint(f"{key.name}/{study.grant_id}", head)
    assert head == merkle_log.verify(entries, index="position")


def test_reading_the_log_is_not_recorded_in_it(modeler_of):
    """Else no checkpoint would ever be of the whole log."""
    first = modeler_of.get("/v1/audit/checkpoint").json()
    listed(modeler_of)
    assert modeler_of.get("/v1/audit/consistency", params={"first": 1, "second": 4}).status_code == 200
    assert modeler_of.get("/v1/audit/checkpoint").json() == first


@pytest.mark.parametrize("path", ["entries", "checkpoint", "consistency?first=1&second=1"])
def test_another_grants_log_is_not_there_for_a_modeler(path, modeler_of, opened, study_client, owner, study):
    """Not another study's, not another grant's of the same study, not one that does not exist, not the own log."""
    study_client.study()
    sibling = owner.grant(study.id, wire.GrantCreate(name="sibling"))
    for grant in (opened.grant_id, sibling.id, "grt_0123456789abcdef"):
        reply = modeler_of.get(f"/v1/audit/{path}{'&' if '?' in path else '?'}grant_id={grant}")
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    for grant in ("log", "", "grt_", "x' OR '1'='1", "grt_0123456789abcdeg"):
        reply = modeler_of.get(f"/v1/audit/{path.partition('?')[0]}", params={"grant_id": grant})
        assert reply.status_code == 422


def test_owner_and_auditor_see_every_log(modeler_of, curator, auditor, study):
    shared = listed(modeler_of)
    for token in (None, auditor):
        with curator.http(token) as http:
            own = listed(http)
            assert merkle_log.verify(own).size == len(own)
            assert listed(http, grant_id=study.grant_id) == shared
            body = http.get("/v1/audit/checkpoint", params={"grant_id": study.grant_id}).json()
            assert (body["size"], body["root"]) == (4, merkle_log.verify(shared, index="position").root)


def test_every_log_is_proved_to_have_only_grown(modeler_of, curator, study):
    """Own and shared, between any two sizes; and no proof for sizes that are none."""
    with curator.http() as http:
        for entries, params, position in (
            (listed(http)[:9], {}, "seq"),
            (listed(modeler_of), {"grant_id": study.grant_id}, "position"),
        ):
            heads = [merkle_log.verify(entries[:size], index=position) for size in range(len(entries) + 1)]
            for first, second in itertools.combinations_with_replacement(range(1, len(heads)), 2):
                query = {"first": first, "second": second, **params}
                body = http.get("/v1/audit/consistency", params=query).json()
                proof = [bytes.fromhex(node) for node in body["proof"]]
                assert merkle_log.is_consistent(heads[first], heads[second], proof)
        for first, second in ((0, 1), (2, 1), (1, 5), (-1, 2), (1, 2**53), (5, 5)):
            query = {"first": first, "second": second, "grant_id": study.grant_id}
            assert http.get("/v1/audit/consistency", params=query).status_code == 422


@pytest.mark.parametrize("token", ["-1", "x", "1e3", "9" * 16, "\u0661"])
def test_a_page_token_that_is_none_is_refused(token, modeler_of):
    assert modeler_of.get("/v1/audit/entries", params={"page_token": token}).status_code == 422


def test_past_the_end_there_is_an_empty_page(modeler_of):
    reply = modeler_of.get("/v1/audit/entries", params={"page_token": "4"}).json()
    assert reply == {"entries": [], "names": [], "next_page_token": None}


# --- countersignatures -----------------------------------------------------------------------------------


def send(http: httpx.Client, note: str, who: Signer = MODELER, key: str | None = None) -> httpx.Response:
    body = {"note": note, "key": who.verifier.vkey}
    return http.post("/v1/audit/countersignatures", json=body, headers={"Idempotency-Key": key or uuid.uuid4().hex})


def checkpoint(http: httpx.Client) -> str:
    note: str = http.get("/v1/audit/checkpoint").json()["note"]
    return note


def kept(curator: Any, study: Any) -> list[tuple[int, str]]:
    rows: list[tuple[int, str]] = curator.rows(
        "SELECT size, note FROM countersignatures WHERE grant_id = ? ORDER BY size", study.grant_id
    )
    return rows


def test_a_countersignature_is_stored_and_recorded_in_the_own_log(modeler_of, curator, study):
    note = MODELER.countersign(checkpoint(modeler_of), 1_790_000_000)
    reply = send(modeler_of, note)
    assert (reply.status_code, reply.json()) == (201, {"grant_id": study.grant_id, "size": 4, "time": 1_790_000_000})
    assert kept(curator, study) == [(4, note)]
    with curator.http() as http:
        record = listed(http)[-1].record
    assert record["kind"] == "checkpoint.countersigned"
    assert record["details"]["note"] == note
    assert "Blindopt-Receipt" not in reply.headers  # what is about the log is not in it
    assert len(listed(modeler_of)) == 4


def test_every_size_that_the_log_had_can_be_countersigned_once(modeler_of, curator, study):
    """Older ones too, as by a run that was slower than another; a second one of a size changes nothing."""
    key = signer(curator.data / "secrets" / "log.key", "curator")
    entries = listed(modeler_of)
    notes = {}
    for size in (3, 1, 4, 2, 3):
        head = merkle_log.verify(entries[:size], index="position")
        note = MODELER.countersign(key.sign(Checkpoint(f"{key.name}/{study.grant_id}", head)), size + len(notes))
        assert send(modeler_of, note).status_code == 201
        notes.setdefault(size, note)
    assert kept(curator, study) == sorted(notes.items())


def test_a_replayed_countersignature_gets_the_stored_reply(modeler_of, curator, study):
    note = MODELER.countersign(checkpoint(modeler_of), 7)
    first, again = (send(modeler_of, note, key="once") for _ in range(2))
    assert first.content == again.content
    assert again.headers["Idempotency-Replayed"] == "true"
    other = send(modeler_of, MODELER.countersign(checkpoint(modeler_of), 8), key="once")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert kept(curator, study) == [(4, note)]


def test_the_first_key_of_a_grant_is_its_key(modeler_of, curator, study):
    assert send(modeler_of, MODELER.countersign(checkpoint(modeler_of), 1)).status_code == 201
    refused = send(modeler_of, OTHER.countersign(checkpoint(modeler_of), 2), OTHER)
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
    assert len(kept(curator, study)) == 1
    assert curator.rows("SELECT vkey FROM keys WHERE subject = ?", study.grant_id) == [(MODELER.verifier.vkey,)]


def test_a_key_is_not_pinned_by_what_is_refused(modeler_of, curator, study):
    assert send(modeler_of, OTHER.sign(Checkpoint("o", Head(1, "0" * 64))), OTHER).status_code == 422
    assert curator.rows("SELECT vkey FROM keys WHERE subject = ?", study.grant_id) == []


def test_what_is_not_this_log_countersigned_is_refused(modeler_of, curator, study, opened, study_client):
    study_client.study()
    with curator.http(opened.token) as http:
        anothers = checkpoint(http)
    with curator.http() as http:
        own = checkpoint(http)
    key = signer(curator.data / "secrets" / "log.key", "curator")
    origin, note = f"{key.name}/{study.grant_id}", checkpoint(modeler_of)
    text = note.partition("\n\n")[0] + "\n\n"

    def forged(size: int, root: str, where: str = origin, who: Signer = key) -> str:
        return MODELER.countersign(who.sign(Checkpoint(where, Head(size, root))), 1)

    true = merkle_log.verify(listed(modeler_of), index="position").root
    for countersigning, status in (
        (MODELER.countersign(anothers, 1), 422),
        (MODELER.countersign(own, 1), 422),
        (forged(0, merkle_log.EMPTY.root), 422),
        (forged(4, "0" * 64), 409),  # signed with the curator's key, and not its history: a fork
        (forged(3, true), 409),
        (forged(5, true), 409),
        (forged(10**17, true), 409),
        (forged(4, true, who=OTHER), 422),
        (forged(4, true, where=f"{OTHER.name}/{study.grant_id}"), 422),
        (note, 422),  # nobody countersigned it
        (OTHER.countersign(note, 1), 422),  # not the key that is told
        (MODELER.countersign(note, 1).replace("\u2014 modeler", "- modeler"), 422),
        (text + MODELER.countersign(note, 1).removeprefix(note), 422),  # the curator's own line is gone
        (MODELER.countersign(note, 1).replace("\n4\n", "\n3\n"), 422),
        (MODELER.countersign(note, 1) + "\n", 422),
        ("nonsense", 422),
        ("x" * 4_001, 422),
        ("\n" * 4_000, 422),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), 422),
    ):
        reply = send(modeler_of, countersigning)
        assert reply.status_code == status, (countersigning, reply.text)
    assert kept(curator, study) == []


@pytest.mark.parametrize("key", ["", "nonsense", "modeler+00000000+AAAA", "x" * 401])
def test_a_key_that_is_none_is_refused(key, modeler_of, curator, study):
    body = {"note": MODELER.countersign(checkpoint(modeler_of), 1), "key": key}
    reply = modeler_of.post("/v1/audit/countersignatures", json=body, headers={"Idempotency-Key": "k"})
    assert reply.status_code == 422
    assert kept(curator, study) == []


def test_the_curators_log_verifies_after_all_of_this(curator):
    done = curator.run("audit", "verify")
    assert done.returncode == 0, done.stderr


# --- at the modeler -----------------------------------------------------------------------------------------


def test_a_modeler_shows_its_logs_to_vendor_and_viewer(modeler, vendor, curator, owner, dataset, open_study, run_of):
    opened = open_study(owner, dataset)
    run = vendor.wait(vendor.start(run_of(curator.url, opened, random=True, iterations=3)).id, timeout_s=240)
    assert run.state == "completed"
    viewer = modeler.run_in_process("token", "create", "--name", "viewer", "--role", "viewer").stdout.strip()
    key = Verifier.parse(modeler.run("audit", "key").stdout.strip())
    for token in (None, viewer):
        with modeler.http(token) as http, curator.http() as there:
            ours, theirs = (listed(side, grant_id=opened.grant_id) for side in (http, there))
            assert ours == theirs
            assert len(ours) == 2 + 4
            for params, size in (({}, len(listed(http))), ({"grant_id": opened.grant_id}, 6)):
                body = http.get("/v1/audit/checkpoint", params=params).json()
                assert key.verify(body["note"]).head == Head(body["size"], body["root"])
                assert body["size"] == size
            proof = http.get("/v1/audit/consistency", params={"first": 2, "second": 6, "grant_id": opened.grant_id})
            nodes = [bytes.fromhex(node) for node in proof.json()["proof"]]
            heads = [merkle_log.verify(ours[:size], index="position") for size in (2, 6)]
            assert merkle_log.is_consistent(*heads, nodes)
