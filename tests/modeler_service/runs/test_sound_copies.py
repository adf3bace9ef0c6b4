"""A copy of a shared log is sound whatever was refused, and a record that is deleted, changed or moved is named.

Two honest curators keep the logs of four grants. A vendor uses any token with the id of any study, at random, and some
replies are lost. After each exchange the modeler's logs verify, and so do those of a loop in Python.
"""

import json
import random
from contextlib import closing

import pytest

from blindopt import wire
from blindopt.audit import merkle_log, segments
from blindopt.audit.checkpoints import Signer
from blindopt.audit.merkle_log import Exchange, Head
from blindopt.audit.verification import Verification
from blindopt.client.log_copy import StudyLog
from blindopt.client.witness import Witness as LibraryWitness
from blindopt.errors import LogBroken, ProtocolViolated, Unreachable
from modeler_service.context import open_context
from modeler_service.runs.witness import Witness, import_segment
from modeler_service.settings import Settings
from service_kit.store import audit_log, checkpoints
from tests import beside
from tests.modeler_service.lying_curator import FakeCurator

REFUSALS = (403, 404, 409, 410, 413, 415, 422, 429, 503)
ROUTES = (
    ("GET", "/v1/studies/{study}"),
    ("GET", "/v1/studies/{study}/candidates"),
    ("GET", "/v1/studies/{study}/queries/qry_1"),
    ("GET", "/v1/studies/{study}/revisions"),
    ("GET", "/v1/studies/{study}/messages/msg_1"),
    ("POST", "/v1/studies/{study}/queries"),
    ("POST", "/v1/studies/{study}/messages"),
)
NOBODYS = "std_ffffffffffffffff"


class Loop:
    """A loop in Python under one grant: its log in memory."""

    def __init__(self, study_id):
        self.log = StudyLog(None)
        self.witness = LibraryWitness(self.log, study_id, self.log.signer, lambda: None)

    def verify(self):
        return verified(self.log.export())


class Modeler:
    def __init__(self, folder):
        self.context = open_context(Settings(data_dir=folder))

    def witness_of(self, study_id):
        return Witness(self.context, study_id, "vendor:x", lambda db, key, digest: True)

    def verify(self):
        with self.context.database.read() as db:
            return verified(self.context.audit_trail.export(db))


def verified(export):
    verification = Verification(export)
    for _ in verification.records():
        pass
    return verification


@pytest.fixture
def curators(study):
    """A grant of each of two studies, and a second one of the first study, at one curator; a grant at another one."""
    first, again, second, other = (FakeCurator(study) for _ in range(4))
    again.signer = second.signer = first.signer
    again.study_id = first.study_id
    for curator in (again, second):
        curator.study = curator.study | {"id": curator.study_id, "log_key": curator.signer.verifier.vkey}
    return [first, again, second, other]


@pytest.fixture
def modeler(tmp_path):
    modeler = Modeler(tmp_path / "data")
    with modeler.context:
        yield modeler


def an_exchange(rng, grant, named, witness, *, refused=None, lost=False):
    """One request under a grant that names a study: what its curator logs and the witness records."""
    refused = named != grant.study_id if refused is None else refused
    method, path = rng.choice(ROUTES) if refused else ROUTES[0]
    body = grant.add_exchange(
        study_id=named,
        method=method,
        path=path.format(study=named),
        status=rng.choice(REFUSALS) if refused else 200,
        idempotency_key=f"k{len(grant.bodies)}" if method == "POST" else None,
    )
    if lost:
        return
    note = grant.note(len(grant.bodies))
    try:
        witness.record(exchange_of(body), note)
        if not refused:
            witness.trust(wire.StudyView.model_validate(grant.study), None, note)
    except Unreachable:  # a refusal of a curator whose key nobody knows yet: as if its reply were lost
        assert refused


def exchange_of(body):
    return Exchange(**json.loads(body))


@pytest.mark.parametrize("seed", range(6))
def test_no_refusal_ever_looks_like_tampering(seed, curators, modeler):
    rng = random.Random(seed)
    names = [NOBODYS, *(grant.study_id for grant in curators)]
    for _ in range(25):
        grant = rng.choice(curators)
        named = grant.study_id if rng.random() < 0.5 else rng.choice(names)
        is_refused = None if named != grant.study_id else rng.random() < 0.3
        an_exchange(rng, grant, named, modeler.witness_of(named), refused=is_refused, lost=rng.random() < 0.1)
        modeler.verify()


@pytest.mark.parametrize("seed", range(3))
def test_no_refusal_looks_like_tampering_in_a_loop_of_ones_own(seed, curators):
    rng, grant = random.Random(seed), curators[0]
    loop = Loop(grant.study_id)
    for number in range(25):
        is_refused = rng.random() < 0.5
        named = rng.choice([NOBODYS, grant.study_id]) if is_refused else grant.study_id
        an_exchange(rng, grant, named, loop.witness, refused=is_refused, lost=rng.random() < 0.1 and number > 5)
        loop.verify()


def test_a_refusal_under_a_mistyped_study_is_in_the_copy_of_its_grant_at_once(curators, modeler):
    grant, rng = curators[0], random.Random(1)
    an_exchange(rng, grant, grant.study_id, modeler.witness_of(grant.study_id))
    for named in (NOBODYS, curators[2].study_id):
        an_exchange(rng, grant, named, modeler.witness_of(named))
    verification = modeler.verify()
    with modeler.context.database.read() as db:
        assert [entry.body for entry in audit_log.walk(db, grant.grant)] == grant.bodies
    assert verification.pending == 0


def test_where_an_earlier_version_left_a_refusal_out_of_the_copy_it_is_pending(curators, modeler):
    """It had a receipt. The next exchange of the grant puts it in its place."""
    grant, rng = curators[0], random.Random(1)
    for named in (grant.study_id, NOBODYS, NOBODYS):
        an_exchange(rng, grant, named, modeler.witness_of(named))
    change(modeler, "DELETE FROM shared WHERE seq >= 1")
    assert modeler.verify().pending == 2
    an_exchange(rng, grant, grant.study_id, modeler.witness_of(grant.study_id))
    assert modeler.verify().pending == 0
    with modeler.context.database.read() as db:
        assert [entry.body for entry in audit_log.walk(db, grant.grant)] == grant.bodies


def archived(grant, folder, size):
    """The curator's own log as one segment: the grant's first exchanges."""
    exchanges = enumerate(map(json.loads, grant.bodies[:size]))
    bodies = [merkle_log.canonical({"kind": "exchange", "exchange": each, "seq": seq}) for seq, each in exchanges]
    peaks = b""
    for seq, body in enumerate(bodies):
        peaks = merkle_log.grow(peaks, seq, merkle_log.leaf_hash(body))
    vkey, top = grant.signer.verifier.vkey, merkle_log.root(peaks).hex()
    with (folder / "log-000000.jsonl.gz").open("wb") as file:
        head = {"service": "blindopt-curator", "key": vkey, "first": 0, "peaks": "", "size": size, "root": top}
        segments.write(file, segments.SegmentHead(**head, summary={}), bodies, grant.signer)
    return folder / "log-000000.jsonl.gz"


def test_a_segment_of_the_curators_archive_brings_what_a_late_modeler_lacks(curators, modeler, tmp_path):
    grant, rng = curators[0], random.Random(1)
    for lost in (False, True, True, True):
        an_exchange(rng, grant, grant.study_id, modeler.witness_of(grant.study_id), lost=lost)
    segment = archived(grant, tmp_path, 3)
    assert import_segment(modeler.context, segment) == 2
    assert import_segment(modeler.context, segment) == 0
    assert modeler.verify().head.size == 1
    with modeler.context.database.read() as db:
        assert [entry.body for entry in audit_log.walk(db, grant.grant)] == grant.bodies[:3]
    an_exchange(rng, grant, grant.study_id, modeler.witness_of(grant.study_id))  # it goes on from there
    modeler.verify()


def test_a_segment_of_another_curator_or_history_is_not_imported(curators, modeler, tmp_path):
    grant, rng = curators[0], random.Random(1)
    for lost in (False, True, False):
        an_exchange(rng, grant, grant.study_id, modeler.witness_of(grant.study_id), lost=lost)
    signer, honest = grant.signer, list(grant.bodies)
    grant.signer = curators[3].signer
    with pytest.raises(LogBroken, match="no valid signature"):
        import_segment(modeler.context, archived(grant, tmp_path, 3))
    grant.signer, grant.bodies[2] = signer, grant.bodies[2].replace(b'"status":200', b'"status":201')
    with pytest.raises(ProtocolViolated, match="not what this side saw"):
        import_segment(modeler.context, archived(grant, tmp_path, 3))
    grant.bodies[:] = honest
    assert import_segment(modeler.context, archived(grant, tmp_path, 3)) == 2


FORGERIES = {
    "a study that nobody knows here": ({"study_id": NOBODYS}, LogBroken, "no valid signature"),
    "the study of the other curator": ({}, LogBroken, "no valid signature"),
    "an unknown field, by its own curator": ({"more": 1}, ProtocolViolated, "is no exchange of this grant"),
    "a study of another, by its own curator": ({"study_id": NOBODYS}, ProtocolViolated, "is no exchange of this"),
    "a grant that is none": ({"grant_id": ["x"]}, None, ""),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_segment_is_refused_in_words_and_the_honest_curator_goes_on(name, curators, modeler, tmp_path):
    grant, other, rng = curators[0], curators[3], random.Random(1)
    for curator in (grant, other):
        an_exchange(rng, curator, curator.study_id, modeler.witness_of(curator.study_id))
    changed, error, words = FORGERIES[name]
    forged = {
        **json.loads(grant.bodies[0]),
        "position": 1,
        "request_id": "f" * 32,
        "study_id": other.study_id,
        **changed,
    }
    if "its own" in name:
        forged = {**forged, "study_id": changed.get("study_id", grant.study_id)}
    signer, honest = grant.signer, list(grant.bodies)
    grant.bodies[:] = [merkle_log.canonical(forged)]
    grant.signer = signer if "its own" in name else other.signer
    segment = archived(grant, tmp_path, 1)
    grant.bodies[:], grant.signer = honest, signer
    if error is None:
        assert import_segment(modeler.context, segment) == 0
    else:
        with pytest.raises(error, match=words):
            import_segment(modeler.context, segment)
    an_exchange(rng, grant, grant.study_id, modeler.witness_of(grant.study_id))
    assert modeler.verify().pending == 0


def test_without_a_pinned_key_no_segment_is_imported(curators, modeler, tmp_path):
    grant, rng = curators[0], random.Random(1)
    for lost in (False, True):
        an_exchange(rng, grant, grant.study_id, modeler.witness_of(grant.study_id), refused=not lost, lost=lost)
    with pytest.raises(LogBroken, match="no curator's key is pinned"):
        import_segment(modeler.context, archived(grant, tmp_path, 2))


def change(modeler, statement, *values):
    """Change the modeler's database behind its back."""
    with closing(beside.connect(modeler.context.database.path)) as db, db:
        beside.drop_triggers(db)
        db.execute(statement, values)


CHANGES = {
    "an accepted record at the end deleted": ("DELETE FROM shared WHERE seq >= 3", "the tail was cut"),
    "a record in the middle deleted": ("DELETE FROM shared WHERE seq = 1", "record 1 is missing"),
    "a record changed": ("UPDATE shared SET body = CAST(body || ' ' AS BLOB) WHERE seq = 2", "record 2 was changed"),
    "two records moved": ("UPDATE shared SET seq = CASE seq WHEN 1 THEN 102 WHEN 2 THEN 101 END WHERE seq IN (1, 2)",
                          "record 1 is missing"),
    "the receipt of a pending one gone": ("DELETE FROM shared WHERE seq >= 4; DELETE FROM receipts WHERE seq = 4",
                                          "the receipt of place 4 is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_done_to_a_copy_is_named(name, curators, modeler):
    """Accepted, refused, accepted, accepted, refused under a mistyped study."""
    grant, rng = curators[0], random.Random(2)
    for named, refused in ((0, False), (0, True), (0, False), (0, False), (1, True)):
        study_id = (grant.study_id, NOBODYS)[named]
        an_exchange(rng, grant, study_id, modeler.witness_of(study_id), refused=refused)
    modeler.verify()
    statements, what = CHANGES[name]
    for statement in statements.split("; "):
        change(modeler, statement)
    with pytest.raises(LogBroken, match=what):
        modeler.verify()


OF_REFUSALS = {
    "no receipt": ("DELETE FROM receipts WHERE grant_id = '{grant}'", "the receipt of place 0 is missing"),
    "the first one gone": ("DELETE FROM receipts WHERE grant_id = '{grant}' AND seq = 0", "the receipt of place 0 is"),
    "the last one gone": ("DELETE FROM receipts WHERE grant_id = '{grant}' AND seq = 1", "the receipt of place 1 is"),
    "another history": ("UPDATE receipts SET note = '{other}' WHERE grant_id = '{grant}' AND seq = 0", "history"),
    "another log": ("UPDATE receipts SET note = '{moved}' WHERE grant_id = '{grant}' AND seq = 0", "of another log"),
    "an own record changed": ("UPDATE receipts SET note = '{first}' WHERE grant_id = '{grant}'", "receipt of place 1"),
}
FORGED = {
    "every signature": ("UPDATE receipts SET note = '{forged}' WHERE grant_id = '{grant}'", "no valid signature"),
    "a signature": ("UPDATE receipts SET note = '{forged}' WHERE grant_id = '{grant}' AND seq = 0", "no valid signat"),
}


@pytest.mark.parametrize(
    ("is_known", "name"),
    [*((is_known, name) for is_known in (True, False) for name in OF_REFUSALS), *((True, n) for n in FORGED)],
)
def test_where_all_requests_of_a_grant_were_refused_each_pending_one_has_a_valid_receipt(
    is_known, name, curators, modeler
):
    """Two refusals about a study whose curator countersigns with the modeler, or by a curator that nobody knows."""
    trusted, grant, rng = curators[0], curators[1] if is_known else curators[3], random.Random(4)
    an_exchange(rng, trusted, trusted.study_id, modeler.witness_of(trusted.study_id))
    witness = modeler.witness_of(trusted.study_id)
    witness._countersign(trusted.grant, Head(1, trusted.root(trusted.bodies)), trusted.note(1))
    for _ in range(2):
        named = grant.study_id if is_known else NOBODYS
        an_exchange(rng, grant, named, modeler.witness_of(named), refused=True)
    if is_known:
        change(modeler, f"DELETE FROM shared WHERE grant_id = '{grant.grant}'")
    assert modeler.verify().pending == 2  # the control: with their receipts
    notes = {"other": grant.note(1, bodies=[b"{}"]), "moved": grant.note(1, grant="grt_1"), "first": grant.note(1)}
    grant.signer = Signer.of("curator", bytes(32))
    statement, what = (OF_REFUSALS | FORGED)[name]
    change(modeler, statement.format(grant=grant.grant, forged=grant.note(1), **notes))
    with pytest.raises(LogBroken, match=what):
        modeler.verify()


def test_a_curator_that_nobody_knows_yet_cannot_make_the_log_unsound(curators, modeler):
    """Its receipt of another history is a violation of the protocol, and is not recorded."""
    grant, rng = curators[3], random.Random(5)
    witness = modeler.witness_of(NOBODYS)
    an_exchange(rng, grant, NOBODYS, witness)
    body = grant.add_exchange(study_id=NOBODYS, status=404)
    with pytest.raises(ProtocolViolated, match="another history"):
        modeler.witness_of(NOBODYS).record(exchange_of(body), grant.note(2, bodies=[b"{}", body]))
    assert modeler.verify().pending == 1
    modeler.witness_of(NOBODYS).record(exchange_of(body), grant.note(2))  # the control: the right one
    assert modeler.verify().pending == 2


def test_a_refusal_with_the_signature_of_a_stranger_is_in_no_copy(curators, modeler):
    grant, rng = curators[0], random.Random(3)
    an_exchange(rng, grant, grant.study_id, modeler.witness_of(grant.study_id))
    grant.signer = Signer.of("curator", bytes(32))
    an_exchange(rng, grant, NOBODYS, modeler.witness_of(NOBODYS))
    with modeler.context.database.read() as db:
        assert checkpoints.RECEIPTS.last(db, grant.grant).seq == 1  # kept, and used for nothing
        assert audit_log.head(db, grant.grant).size == 1
    with pytest.raises(LogBroken, match="no valid signature"):
        modeler.verify()
