"""Tampering with the real folders of a finished run: each kind is found, named, and told with its first place.

`audit verify` looks at one party alone; what a party does to its whole history, signing it anew, only the
other party's receipts and countersignatures show, in `audit reconcile`.
"""

import json
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.client import Owner, Vendor
from curator_service import app as curator_app
from curator_service.settings import Settings as CuratorSettings
from modeler_service import app as modeler_app
from modeler_service.settings import Settings as ModelerSettings
from tests import beside
from tests.builders import a_run
from tests.conftest import Service
from tests.system.audit.tampering import Party, head_of, lines, receipts_under, rows_of, write_lines
from tests.system.crashes import crash_checks as checks

SEED = bytes(range(32))


@dataclass(frozen=True)
class Pair:
    """Both parties of a finished run, each in a folder of its own."""

    curator: Party
    modeler: Party
    study: str
    grant: str
    token: str
    run: str

    def copy(self, folder: Path) -> "Pair":
        return replace(
            self, curator=self.curator.copy(folder / "curator"), modeler=self.modeler.copy(folder / "modeler")
        )

    def party(self, name: str) -> Party:
        party: Party = getattr(self, name)
        return party

    def reconcile(self, folder: Path) -> tuple[int, str]:
        """Export both and compare; each export must pass by itself, or the fault is not the other side's to find."""
        paths = [party.export(folder / f"{party.name}.jsonl") for party in (self.curator, self.modeler)]
        for party, path in zip((self.curator, self.modeler), paths, strict=True):
            code, output = party.command("audit", "verify", str(path))
            assert code == 0, output
        return self.curator.command("audit", "reconcile", self.study, *map(str, paths))


@pytest.fixture(scope="module")
def finished(make_service, small, run_of, tmp_path_factory):
    """A run of 12 noisy answers, countersigned twice and at its end; then both services are stopped."""
    folder = tmp_path_factory.mktemp("finished")
    curator = make_service("curator", folder).start()
    modeler = make_service("modeler", folder, countersign_every="5").start()
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        dataset = owner.register("small", small.csv, public=True)
        study = owner.release(owner.create_study(checks.draft(small, dataset.id, epsilon="0.5", answers=14)).id)
        grant = owner.grant(study.id, wire.GrantCreate(name="modeler"))
        spec = a_run(curator.url, study.id, grant.token, algorithm=wire.RandomRows(name="random"), iterations=11)
        run = vendor.wait(vendor.start(spec).id, timeout_s=240)
        assert (run.state, run.trials) == ("completed", 12)
    assert curator.stop() == modeler.stop() == 0
    parties = [Party(service.name, service.data) for service in (curator, modeler)]
    for party in parties:  # nothing is left beside the database
        beside.empty_log_of_changes(party.database)
    return Pair(*parties, study.id, grant.id, grant.token, run.id)


@pytest.fixture
def pair(finished, tmp_path):
    """Copies to tamper with."""
    return finished.copy(tmp_path)


def check_found(party: Party, *expected: str) -> None:
    """`audit verify` fails and says all of ``told``, in one line without a traceback."""
    code, text = party.command("audit", "verify")
    assert (code, text.count("\n")) == (3, 1), text
    assert text.startswith("error: ")
    for pattern in expected:
        assert re.search(pattern, text), text


def test_what_nobody_touched_passes(pair, finished, tmp_path):
    for party in (pair.curator, pair.modeler):
        size = party.rows("SELECT count(*) FROM log")[0][0]
        code, output = party.command("audit", "verify")
        assert (code, output.startswith(f"valid: {size} records, root ")) == (0, True), output
    assert pair.reconcile(tmp_path) == (0, "14 exchanges compared, 0 differences\n")
    assert pair.curator.rows("SELECT size FROM countersignatures") == [(7,), (12,), (14,)]


# --- one record of a log ------------------------------------------------------------------------------


def log_of(pair: Pair, name: str, log: str) -> tuple[Party, str, list[Any]]:
    """A party, the rows of one of its logs as SQL knows them, and the rows."""
    party = pair.party(name)
    where = "log WHERE true" if log == "own" else f"shared WHERE grant_id = '{pair.grant}'"
    return party, where, party.rows(f"SELECT seq, body, leaf, peaks FROM {where} ORDER BY seq")


def put(db: Any, pair: Pair, log: str, row: tuple[int, bytes, bytes, bytes]) -> None:
    if log == "own":
        db.execute("INSERT INTO log VALUES (?, ?, ?, ?)", row)
    else:
        db.execute("INSERT INTO shared VALUES (?, ?, ?, ?, ?)", (pair.grant, *row))


def shift(db: Any, where: str, position: int) -> None:
    """Make room for a row at ``place``; by way of negative numbers, for places are unique."""
    table, condition = where.split(" WHERE ")
    db.execute(f"UPDATE {table} SET seq = -seq - 2 WHERE {condition} AND seq >= ?", (position,))
    db.execute(f"UPDATE {table} SET seq = -seq - 1 WHERE {condition} AND seq < 0")


both_logs = pytest.mark.parametrize(
    ("name", "log"), [("curator", "own"), ("curator", "shared"), ("modeler", "own"), ("modeler", "shared")]
)


@both_logs
@pytest.mark.parametrize("position", [0, 6])
def test_a_record_that_is_gone_leaves_a_gap(name, log, position, pair):
    party, where, _ = log_of(pair, name, log)
    with party.open() as db:
        db.execute(f"DELETE FROM {where} AND seq = ?", (position,))
    check_found(party, f"record {position} is missing: the log continues at {position + 1}")


@both_logs
@pytest.mark.parametrize(("part", "bit"), [("body", 0), ("body", 3), ("leaf", 7), ("peaks", 100)])
def test_a_flipped_bit_is_found_at_its_record(name, log, part, bit, pair):
    party, where, rows = log_of(pair, name, log)
    content = bytearray(dict(zip(("seq", "body", "leaf", "peaks"), rows[6], strict=True))[part])
    content[bit // 8 + len(content) // 2] ^= 1 << bit % 8
    with party.open() as db:
        table, condition = where.split(" WHERE ")
        db.execute(f"UPDATE {table} SET {part} = ? WHERE {condition} AND seq = 6", (bytes(content),))
    check_found(party, r"record 6 was (changed|inserted or replaced)")


@both_logs
@pytest.mark.parametrize("value", ["text", 7, ""])
def test_a_record_that_is_no_bytes_is_found_as_any_other(name, log, value, pair):
    party, where, _ = log_of(pair, name, log)
    with party.open() as db:
        table, condition = where.split(" WHERE ")
        db.execute(f"UPDATE {table} SET body = ? WHERE {condition} AND seq = 5", (value,))
    check_found(party, "record 5 was changed")


@both_logs
def test_two_records_that_changed_places_are_found_at_the_first(name, log, pair):
    party, where, rows = log_of(pair, name, log)
    with party.open() as db:
        db.execute(f"DELETE FROM {where} AND seq IN (4, 9)")
        put(db, pair, log, (4, *rows[9][1:]))
        put(db, pair, log, (9, *rows[4][1:]))
    check_found(party, "record 4 was moved: it says it is 9")


@both_logs
def test_an_insertion_is_found_at_its_place(name, log, pair):
    """Its own hash and frontier fit; those that come after it do not."""
    party, where, rows = log_of(pair, name, log)
    member = "seq" if log == "own" else "position"
    forged = merkle_log.canonical({**json.loads(rows[6][1]), member: 6, "request_id": "0" * 32})
    row = rows_of([*(r[1] for r in rows[:6]), forged])[6]
    with party.open() as db:
        shift(db, where, 6)
        put(db, pair, log, row)
    check_found(
        party, "record 7 was (repeated|moved)" if log == "own" else "a fork at or before record 6: a signed checkpoint"
    )


@both_logs
def test_an_insertion_in_the_place_of_another_is_found(name, log, pair):
    party, where, rows = log_of(pair, name, log)
    member = "seq" if log == "own" else "position"
    forged = merkle_log.canonical({**json.loads(rows[6][1]), member: 6, "request_id": "0" * 32})
    with party.open() as db:
        db.execute(f"DELETE FROM {where} AND seq = 6")
        put(db, pair, log, rows_of([*(r[1] for r in rows[:6]), forged])[6])
    replaced = "record 7 was inserted or replaced: the tree before or at it differs"
    check_found(party, replaced if log == "own" else "a fork at or before record 6: a signed checkpoint")


@both_logs
def test_a_record_that_comes_twice_is_found_at_the_second(name, log, pair):
    party, where, rows = log_of(pair, name, log)
    with party.open() as db:
        shift(db, where, 7)
        put(db, pair, log, (7, *rows[6][1:]))
    check_found(party, "record 7 was repeated: it is record 6 again")


@both_logs
@pytest.mark.parametrize("cut", [1, 3])
def test_a_cut_tail_is_found(name, log, cut, pair):
    party, where, rows = log_of(pair, name, log)
    remaining = len(rows) - cut
    with party.open() as db:
        db.execute(f"DELETE FROM {where} AND seq >= ?", (remaining,))
    check_found(party, f"the tail was cut: the log ends after {remaining} records, .* {len(rows)}$")


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_a_shared_log_that_is_gone_is_found(name, pair):
    party = pair.party(name)
    with party.open() as db:
        db.execute("DELETE FROM shared")
    check_found(party, f"shared log {pair.grant}: the tail was cut: the log ends after 0 records")


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_an_own_log_written_anew_does_not_fit_the_shared_one(name, pair):
    """One exchange told otherwise, all hashes made to fit, and signed."""
    party = pair.party(name)

    def lie(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        record = next(r for r in records if (r.get("exchange") or {}).get("position") == 7)
        record["exchange"]["reply_sha256"] = "0" * 64
        return records

    party.rewrite(lie)
    party.keep_checkpoint()
    check_found(party, f"shared log {pair.grant}: place 7 is not what the party's own log has")


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_a_log_put_back_to_an_older_state_does_not_fit_the_checkpoint_that_was_kept(name, pair):
    party = pair.party(name)
    size = len(party.records())
    party.rewrite(lambda records: [*records[:-4], *({**r, "kind": "nothing"} for r in records[-4:])])
    check_found(party, f"a fork: two signed checkpoints of size {size} are of two histories")


@pytest.mark.parametrize("content", ["", "nonsense", "\x00\xff", "curator.1/log\n1\nAAAA\n\n\u2014 curator.1 AAAA\n"])
def test_a_checkpoint_file_that_is_none_is_found(content, pair):
    (pair.curator.data / "checkpoint").write_bytes(content.encode("latin-1", "replace"))
    check_found(pair.curator, "note")


@both_logs
def test_since_a_checkpoint_finds_what_changed_after_it_and_looks_at_nothing_before(name, log, pair, tmp_path):
    """Own and shared records; the control without ``--since`` finds both changes."""
    party, where, rows = log_of(pair, name, log)
    bodies = [merkle_log.canonical(record) for record in party.records()]
    middle = next(i for i, b in enumerate(bodies) if (json.loads(b).get("exchange") or {}).get("position") == 6)
    note = tmp_path / "note"
    note.write_text(party.signer.sign(Checkpoint(f"{party.signer.name}/log", head_of(bodies[:middle]))))
    since = f"verified from the checkpoint of {middle} records: not those before it, and no table"

    def flip(number: int) -> None:
        with party.open() as db:
            db.execute(f"UPDATE {where} AND seq = ?".replace(" WHERE", " SET body = body || ' ' WHERE"), (number,))

    code, output = party.command("audit", "verify", "--since", str(note))
    assert code == 0, output
    assert since in output
    flip(2)
    code, output = party.command("audit", "verify", "--since", str(note))
    assert code == 0, output
    assert since in output
    check_found(party, "record 2 was changed")
    flip(rows[-2][0])
    code, output = party.command("audit", "verify", "--since", str(note))
    assert (code, f"record {rows[-2][0]} was changed" in output) == (3, True), output


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_since_takes_a_checkpoint_of_this_history_and_key_alone(name, pair, tmp_path):
    party, note = pair.party(name), tmp_path / "note"
    bodies = [merkle_log.canonical(record) for record in party.records()]
    head, origin = head_of(bodies[:5]), f"{party.signer.name}/log"
    other = Signer(party.signer.name, Ed25519PrivateKey.from_private_bytes(SEED))
    notes = {
        "the first 5 records are not those": party.signer.sign(Checkpoint(origin, head_of([b"x", *bodies[:4]]))),
        "no valid": other.sign(Checkpoint(origin, head)),
        "size": party.signer.sign(Checkpoint(origin, head)).replace("\n5\n", "\n6\n"),
        "": "nonsense",
    }
    for text in notes.values():
        note.write_text(text)
        code, output = party.command("audit", "verify", "--since", str(note))
        assert (code, output.count("\n")) == (3, 1), output


# --- what stands beside the logs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE ledger SET cost = '0.25' WHERE seq = 3", r"ledger line 3 .* was changed"),
        ("UPDATE ledger SET row = row + 1 WHERE seq = 3", r"ledger line 3 .* was changed"),
        ("UPDATE ledger SET query_id = 'qry_x' WHERE seq = 3", r"ledger line 3 .* was changed"),
        ("UPDATE ledger SET kind = 'refused' WHERE seq = 3", r"ledger line 3 .* was changed"),
        ("DELETE FROM ledger WHERE seq = 3", r"ledger line 4 .* one is missing"),
        ("DELETE FROM ledger WHERE seq = (SELECT max(seq) FROM ledger)", r"the ledger of std_\w+ lacks the last of 13"),
        ("DELETE FROM ledger", r"the ledger of std_\w+ lacks the last of 13"),
        ("INSERT INTO ledger SELECT {more} FROM ledger WHERE seq = 13", r"ledger line 99 is not in the log"),
        ("UPDATE ledger SET study_id = 'std_0' WHERE seq = 3", r"ledger line 3 is not in the log"),
        ("DELETE FROM queries WHERE seq = 3", r"query qry_\w+ is missing in the table of queries"),
        ("UPDATE replies SET body = CAST(replace(body, 'answered', 'Answered') AS BLOB) WHERE {answer}",
         "the stored answer under key {run}:4 was changed"),
        ("UPDATE replies SET body = 'x' WHERE {answer}", "stored answer under key {run}:4 was changed"),
        ("DELETE FROM replies WHERE {answer}", "the stored answer under key {run}:4 is missing"),
        ("UPDATE replies SET sealed = 1 WHERE {answer}", "the stored answer under key {run}:4 is missing"),
        ("UPDATE replies SET status = 403 WHERE {answer}", "the stored answer under key {run}:4 was changed"),
        ("UPDATE studies SET spec = replace(spec, '\"0.5\"', '\"0.25\"')", "epsilon"),
        ("UPDATE studies SET spec = replace(spec, '\"name\":\"', '\"name\":\"x')", "its spec is not the one"),
        ("UPDATE studies SET state = 'closed'", r"study std_\w+ is closed, and the log does not say so"),
        (f"UPDATE releases SET sha256 = '{64 * '0'}'", r"the release of study std_\w+ is not the one"),
        ("UPDATE studies SET state = 'draft'", r"study std_\w+ is draft, and the log does not say so"),
        ("UPDATE releases SET report = report || ' '", "the report of the release"),
        ("UPDATE tokens SET role = 'owner' WHERE role = 'modeler'", r"token \w+ was changed: its bearer"),
        ("UPDATE tokens SET study_id = 'std_0' WHERE role = 'modeler'", r"token \w+ was changed: its bearer"),
        ("UPDATE tokens SET expires_at = '3' WHERE role = 'modeler'", r"token \w+ was changed: its secret"),
        ("UPDATE tokens SET secret_sha256 = x'00' WHERE role = 'modeler'", r"token \w+ was changed: its secret"),
        ("DELETE FROM tokens WHERE role = 'modeler'", r"token \w+ is missing"),
        ("DELETE FROM countersignatures WHERE size = 12", "shared log .* countersignature of size 12 is missing"),
        ("DELETE FROM countersignatures", "shared log .* countersignature of size 7 is missing"),
        ("UPDATE countersignatures SET note = replace(note, '12', '13') WHERE size = 12", "no valid"),
        ("DELETE FROM keys", "shared log .* the key of .* is missing"),
        ("INSERT INTO replies SELECT principal, '{run}:13', '', 201, body, 0, '', NULL FROM replies WHERE {answer}",
         "the stored answer under key {run}:13 is not in the log"),
        ("INSERT INTO queries SELECT {query} FROM queries WHERE seq = 3", "query qry_x is missing in the log"),
    ],
)  # fmt: skip
def test_what_the_curator_stores_beside_its_log_must_fit_it(change, message, pair):
    party = pair.curator
    with party.open() as db:
        columns, of_queries = beside.columns(db, "ledger"), beside.columns(db, "queries")
    more = ", ".join("99" if name == "seq" else name for name in columns)
    changed = {"seq": "99", "id": "'qry_x'", "idempotency_key": "'k'"}
    query = ", ".join(changed.get(name, name) for name in of_queries)
    with party.open() as db:
        statement = change.format(answer=f"idempotency_key = '{pair.run}:4'", more=more, run=pair.run, query=query)
        assert db.execute(statement).rowcount > 0
    check_found(party, message.format(run=pair.run))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM receipts WHERE seq = 5", "the receipt of place 5 is missing"),
        ("DELETE FROM receipts", "the receipt of place 0 is missing"),
        ("UPDATE receipts SET note = replace(note, 'a', 'b') WHERE seq = 5", "shared log .* note"),
        (
            "UPDATE receipts SET note = (SELECT note FROM receipts WHERE seq = 4) WHERE seq = 5",
            "the receipt of place 5 is missing",
        ),
        ("DELETE FROM countersignatures WHERE size = 12", "shared log .* countersignature of size 12 is missing"),
        ("DELETE FROM keys", "shared log .* the key of .* is missing"),
        ("DELETE FROM keys; DELETE FROM receipts", "shared log .* the key of .* is missing"),
        ("UPDATE trials SET row = (row + 1) % 400 WHERE number = 4", "trial 4 of {run} .* another query"),
        ("UPDATE trials SET number = 99 WHERE number = 4", "trial 99 of {run} .* an answer that the log does not"),
        ("UPDATE trials SET query = 3 WHERE number = 4", "trial 3 of {run} .* another query"),
        ("UPDATE trials SET query = 5 WHERE number = 4", "trial 4 of {run} .* another query"),
        ("UPDATE trials SET y = y + 1 WHERE number = 4", "trial 4 of {run} .* not what the last reply says"),
        ("UPDATE trials SET passport = '' WHERE number = 4", "trial 4 of {run} .* not what the last reply says"),
        ("UPDATE trials SET reply = '' WHERE number = 4", "trial 4 of {run} .* not the one that the log records"),
        ("UPDATE trials SET y = NULL WHERE number = 4", "trial 4 of {run} .* an answer that the record has not"),
        ("UPDATE runs SET spec = json_set(spec, '$.seed', 1)", "the settings of {run} were changed"),
        ("UPDATE tokens SET role = 'viewer'", r"token \w+ was changed: its bearer, role, study or revocation"),
        ("DELETE FROM trials WHERE number = 12", "trial 12 of {run} lacks the answer that the log records"),
    ],
)
def test_what_the_modeler_stores_beside_its_log_must_fit_it(change, message, pair):
    party = pair.modeler
    with party.open() as db:
        for statement in change.split(";"):
            assert db.execute(statement).rowcount > 0
    check_found(party, message.format(run=pair.run))


# --- a history written anew and signed with the party's own key: the other side's to find -------------------


def other_answer(records: list[dict[str, Any]], position: int, digest: str) -> list[dict[str, Any]]:
    """``records`` of an own or shared log, with another reply at one place of the shared log."""
    for record in records:
        exchange = record.get("exchange", record) or {}
        if exchange.get("position") == position:
            exchange["reply_sha256"] = digest
    return records


def without_countersignatures(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] != "checkpoint.countersigned"]


def drop_countersignatures(party: Party, above: int = 0) -> None:
    """Throw away what the modeler signed, and the reply that it got for it."""
    with party.open() as db:
        db.execute("DELETE FROM countersignatures WHERE size > ?", (above,))
        keys = db.execute("SELECT idempotency_key FROM replies WHERE idempotency_key LIKE 'grt_%'").fetchall()
        for (key,) in keys:
            if int(key.partition(":")[2]) > above:
                db.execute("DELETE FROM replies WHERE idempotency_key = ?", (key,))


def test_a_curator_that_tells_another_answer_is_convicted_by_the_receipts_it_gave(pair, tmp_path):
    """Reply, ledger, both logs and checkpoint fit each other; what the modeler signed is thrown away."""
    curator = pair.curator
    key = f"{pair.run}:4"
    position = next(e["position"] for e in curator.records(pair.grant) if e["idempotency_key"] == key)
    (body,) = curator.rows("SELECT body FROM replies WHERE idempotency_key = ?", key)[0]
    with curator.open() as db:
        reply = re.sub(rb'"y":-?[0-9.e-]+', b'"y":0.125', bytes(body))
        db.execute("UPDATE replies SET body = ? WHERE idempotency_key = ?", (reply, key))
        db.execute("DELETE FROM keys")
    drop_countersignatures(curator)
    digest = merkle_log.sha256(reply)
    curator.rewrite(lambda rs: other_answer(rs, position, digest), pair.grant)
    curator.rewrite(lambda rs: without_countersignatures(other_answer(rs, position, digest)))
    curator.keep_checkpoint()
    code, output = curator.command("audit", "verify")
    assert code == 0, output  # nothing that it holds itself shows it
    code, output = pair.reconcile(tmp_path)
    assert code == 3
    assert f"{pair.grant} place {position}: differs in reply_sha256" in output
    forks = re.findall(rf"{pair.grant} size (\d+): a fork: the curator signed another history than it exported", output)
    assert [int(size) for size in forks] == list(range(position + 1, 15))


def test_a_modeler_that_tells_another_answer_is_convicted_by_its_countersignatures(pair, tmp_path):
    """It cannot sign as the curator, so it pins a key of its own making and signs its receipts with that."""
    modeler, position = pair.modeler, 7
    forger = Signer("curator.forged", Ed25519PrivateKey.from_private_bytes(SEED))
    ((reply,),) = modeler.rows("SELECT reply FROM trials WHERE number = ?", position - 1)
    said = json.loads(reply)
    said["answers"][0]["y"] += 1
    reply, digest = json.dumps(said).encode(), merkle_log.sha256(json.dumps(said).encode())
    modeler.rewrite(lambda rs: other_answer(rs, position, digest), pair.grant)
    modeler.rewrite(lambda rs: without_countersignatures(other_answer(rs, position, digest)))
    modeler.keep_checkpoint()
    receipts_under(modeler, forger, pair.grant)
    with modeler.open() as db:
        db.execute("UPDATE trials SET reply = ?, y = y + 1 WHERE number = ?", (reply, position - 1))
        db.execute("UPDATE keys SET vkey = ?", (forger.verifier.vkey,))
        db.execute("DELETE FROM countersignatures")
    code, output = modeler.command("audit", "verify")
    assert code == 0, output
    code, output = pair.reconcile(tmp_path)
    assert code == 3
    assert f"{pair.grant} place {position}: differs in reply_sha256" in output
    assert f"{pair.grant}: the key that the modeler holds receipts of is not the curator's" in output
    forks = re.findall(rf"{pair.grant} size (\d+): a fork: the modeler signed another history than it exported", output)
    assert forks == ["12", "14"]


def test_a_curator_that_cut_both_its_logs_is_convicted(pair, tmp_path):
    """As after the restore of an old copy that nobody tells of."""
    curator = pair.curator
    keys = [f"{pair.run}:{number}" for number in (11, 12)]
    gone = {name for (name,) in curator.rows("SELECT id FROM queries WHERE idempotency_key IN (?, ?)", *keys)}
    with curator.open() as db:
        db.execute("DELETE FROM replies WHERE idempotency_key IN (?, ?)", keys)
        db.execute("DELETE FROM queries WHERE idempotency_key IN (?, ?)", keys)
        db.execute("DELETE FROM ledger WHERE seq > (SELECT max(seq) FROM ledger) - 2")
    drop_countersignatures(curator, above=12)

    def forgotten(record: dict[str, Any]) -> bool:
        details = record.get("details", {})
        return details.get("query_id") in gone or details.get("size") == 14

    curator.rewrite(lambda rs: rs[:12], pair.grant)
    curator.rewrite(lambda rs: [r for r in rs if not forgotten(r)])
    curator.keep_checkpoint()
    code, output = curator.command("audit", "verify")
    assert code == 0, output
    code, output = pair.reconcile(tmp_path)
    assert code == 3
    assert f"{pair.grant} place 12: only the modeler has it: the curator's tail is missing" in output
    assert f"{pair.grant} size 13: the curator signed it and no longer has it: its tail was cut" in output
    assert f"{pair.grant} size 14: the curator signed it and no longer has it: its tail was cut" in output


def forget(party: Party, grant: str) -> None:
    """Erase a grant from both logs, and everything that was signed about it."""
    with party.open() as db:
        for table in ("shared", "countersignatures"):
            db.execute(f"DELETE FROM {table} WHERE grant_id = ?", (grant,))
        db.execute("DELETE FROM receipts" if party.name == "modeler" else "DELETE FROM keys")
    party.rewrite(
        lambda rs: [
            r
            for r in rs
            if grant not in ((r.get("exchange") or {}).get("grant_id"), r.get("details", {}).get("grant_id"))
        ]
    )
    party.keep_checkpoint()


def test_a_modeler_that_forgets_a_whole_run_is_convicted(pair, tmp_path):
    """Else its empty word would agree with anything."""
    forget(pair.modeler, pair.grant)
    with pair.modeler.open() as db:
        db.execute("DELETE FROM trials")
    code, output = pair.reconcile(tmp_path)
    assert code == 3
    assert f"{pair.grant} place 0: only the curator has it: the modeler's tail is missing" in output
    assert f"{pair.grant} size 7: the modeler signed it and no longer has it: its tail was cut" in output


def test_a_curator_that_forgets_a_whole_run_is_convicted(pair, tmp_path):
    curator = pair.curator
    with curator.open() as db:
        for table in ("ledger", "queries"):
            db.execute(f"DELETE FROM {table}")
        db.execute("DELETE FROM replies WHERE principal = ?", (pair.grant,))
    curator.rewrite(lambda rs: [r for r in rs if r["kind"] != "charge"])
    forget(curator, pair.grant)
    code, output = curator.command("audit", "verify")
    assert code == 0, output
    code, output = pair.reconcile(tmp_path)
    assert code == 3
    assert f"{pair.grant} place 0: only the modeler has it: the curator's tail is missing" in output
    assert f"{pair.grant} size 1: the curator signed it and no longer has it: its tail was cut" in output


def test_a_curator_with_a_new_key_is_convicted(pair, tmp_path):
    """It signs the same exchanges anew: its receipts then are nobody's, and would go unread."""
    (pair.curator.data / "secrets" / "log.key").write_text(SEED.hex())
    drop_countersignatures(pair.curator)
    pair.curator.rewrite(without_countersignatures)
    pair.curator.keep_checkpoint()
    code, output = pair.curator.command("audit", "verify")
    assert code == 0, output
    code, output = pair.reconcile(tmp_path)
    assert code == 3
    assert f"{pair.grant}: the key that the modeler holds receipts of is not the curator's" in output


def test_a_modeler_with_a_new_key_is_convicted(pair, tmp_path):
    (pair.modeler.data / "secrets" / "log.key").write_text(SEED.hex())
    with pair.modeler.open() as db:
        db.execute("DELETE FROM countersignatures")
    pair.modeler.rewrite(without_countersignatures)
    pair.modeler.keep_checkpoint()
    code, output = pair.reconcile(tmp_path)
    assert code == 3
    assert f"{pair.grant}: the key that the curator holds countersignatures of is not the modeler's" in output


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_a_key_that_was_learnt_another_way_shows_a_history_signed_anew(name, pair, tmp_path):
    party = pair.party(name)
    key = party.command("audit", "key")[1].strip()
    assert party.command("audit", "verify", "--key", key)[0] == 0
    (party.data / "secrets" / "log.key").write_text(SEED.hex())
    (party.data / "checkpoint").unlink()
    code, output = party.command("audit", "verify", "--key", key)
    assert code == 3
    assert "not with the key that was given" in output


# --- exports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_no_line_of_an_export_can_be_left_out_changed_or_repeated(name, finished, tmp_path):
    """Every line, one by one, and each of its members."""
    whole = lines(finished.party(name).export(tmp_path / "whole.jsonl"))
    path = tmp_path / "edited.jsonl"
    first_by_kind: dict[str, int] = {}
    for position, line in enumerate(whole):
        kind = str(line.get("kind") or ("subject" if "subject" in line else line.get("grant_id", "first")))
        first_by_kind.setdefault(kind, position)
        # All lines of one kind are alike; of each, the first, the second, and the last are tried.
        last = position + 1 == len(whole) or whole[position + 1].keys() != line.keys()
        if position - first_by_kind[kind] > 1 and not last:
            continue
        missed = verdict(finished.party(name), write_lines(path, whole[:position] + whole[position + 1 :]))
        # Of two checkpoints of the own log that say the same, one may go.
        assert missed or line.get("kind") == "checkpoint", f"line {position} left out: {line}"
        for member, value in line.items():
            changed = {**line, member: value + 1 if isinstance(value, int) else f"{value or ''}x"}
            edited = [*whole[:position], changed, *whole[position + 1 :]]
            assert verdict(finished.party(name), write_lines(path, edited)), f"line {position}: {member} of {line}"


def verdict(party: Party, path: Path) -> str | None:
    """What `audit verify` finds in an export, or None."""
    code, output = party.command("audit", "verify", str(path))
    assert code in (0, 3)
    assert code == 0 or output.startswith("error: "), output
    return output if code else None


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_an_export_without_its_last_lines_is_no_whole_export(name, finished, tmp_path):
    whole = lines(finished.party(name).export(tmp_path / "whole.jsonl"))
    path = tmp_path / "cut.jsonl"
    for size in (1, 2, len(whole) // 2, len(whole) - 1):
        assert verdict(finished.party(name), write_lines(path, whole[:size])), size


def test_an_export_that_hides_its_checkpoints_and_the_tail_is_found(finished, tmp_path):
    """The own log alone has no other witness in an export."""
    party = finished.curator
    whole = lines(party.export(tmp_path / "whole.jsonl"))
    last = max(line["seq"] for line in whole if "seq" in line and line["grant_id"] is None)
    hidden = [
        line
        for line in whole
        if not (line.get("kind") == "checkpoint" and "grant_id" not in line)
        and not (line.get("seq") == last and line["grant_id"] is None)
    ]
    assert len(hidden) < len(whole) - 1
    output = verdict(party, write_lines(tmp_path / "hidden.jsonl", hidden))
    assert output is not None
    assert "checkpoint" in output


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"seq": 1}',
        b'{"seq": -1, "body": "{}", "leaf": "00", "peaks": "00", "grant_id": null}',
        b'{"seq":0,"body":"\\ud800","leaf":"' + b"0" * 64 + b'","peaks":"' + b"0" * 64 + b'","grant_id":null}',
        b'{"kind":"checkpoint","note":"\xff"}',
        b'{"kind":"unheard of","note":"x"}',
        b'{"subject":"grt_1","key":"no key"}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_none_of_an_export_is_refused_in_words(line, finished, tmp_path):
    path = finished.curator.export(tmp_path / "export.jsonl")
    path.write_bytes(path.read_bytes() + line + b"\n")
    output = verdict(finished.curator, path)
    assert output is not None
    assert output.count("\n") == 1


def test_the_two_sides_of_a_comparison_cannot_be_mixed_up(finished, tmp_path):
    curator, modeler = (p.export(tmp_path / f"{p.name}.jsonl") for p in (finished.curator, finished.modeler))
    for first, second in ((modeler, curator), (curator, curator), (modeler, modeler)):
        code, output = finished.curator.command("audit", "reconcile", finished.study, str(first), str(second))
        assert (code, "is an export of" in output) == (3, True)


# --- at the start ---------------------------------------------------------------------------------------------


def cut(party: Party) -> None:
    with party.open() as db:
        db.execute("DELETE FROM log WHERE seq > (SELECT max(seq) FROM log) - 2")


def older(party: Party) -> None:
    """The last records as if they had never been, and others in their place."""
    party.rewrite(lambda rs: [*rs[:-2], *({**r, "actor": "another"} for r in rs[-2:])])


def gap(party: Party) -> None:
    with party.open() as db:
        db.execute("DELETE FROM log WHERE seq = 1")


def frontier(party: Party) -> None:
    with party.open() as db:
        db.execute(f"UPDATE log SET peaks = x'{64 * '0'}'")


def changed(party: Party) -> None:
    with party.open() as db:
        db.execute("UPDATE log SET body = replace(body, '201', '200') WHERE seq > (SELECT max(seq) FROM log) - 3")


def spoilt(party: Party) -> None:
    (party.data / "checkpoint").write_bytes(b"\xff\xfe")


class InProcess(Service):
    """A service on a thread of this process: what its command builds and serves, but for the start of a process."""

    BUILDS = {"curator": (curator_app.build, CuratorSettings), "modeler": (modeler_app.build, ModelerSettings)}

    def serve(self, logged: pytest.LogCaptureFixture) -> None:
        build, settings = self.BUILDS[self.name]
        config = uvicorn.Config(build(settings(data_dir=self.data)), port=self.port, log_config=None)
        self._logged, self._server = logged, uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()

    @property
    def log(self) -> str:
        return "\n".join(str(getattr(record, "fields", "")) for record in self._logged.records)

    def is_up(self) -> bool:
        return self._thread.is_alive()

    def stop(self, within: float = 10.0) -> int:
        self._server.handle_exit(signal.SIGTERM, None)
        self._thread.join(within)
        return int(self._thread.is_alive())

    def kill(self) -> None:
        assert self.stop() == 0


@pytest.fixture
def serving(make_service, finished, tmp_path, caplog, unset_tempdir) -> Iterator[Callable[..., Any]]:
    """Puts a copy of a party where a service serves it, tampered with; the service, as far as it came up.

    As a process of its own where its tail was cut or nothing was done, else on a thread: processes take their time.
    """
    made: list[InProcess] = []

    def make(name: str, tamper: Callable[[Party], None], process: bool) -> Any:
        service = make_service(name, tmp_path) if process else InProcess(name, tmp_path / name)
        beside.copytree(finished.party(name).data, service.data)
        shutil.copy(finished.party(name).data.parent / "first-token", service.folder / "first-token")
        tamper(Party(name, service.data))
        if isinstance(service, InProcess):
            made.append(service)
            service.serve(caplog)
        else:
            service.process = service.spawn()
        return service

    yield make
    for service in made:
        service.kill()


def answers(service: Any) -> bool:
    try:
        reply = httpx.get(f"{service.url}/readyz", timeout=60, trust_env=False)
        return reply.status_code == 200 or reply.json()["code"] != "standby"  # with PostgreSQL, at first
    except httpx.TransportError:
        up = service.is_up() if isinstance(service, InProcess) else service.process.poll() is None
        assert up, service.log[-2000:]
        return False


@pytest.mark.parametrize("tamper", [cut, older, gap, frontier, changed, spoilt])
def test_a_curator_whose_log_is_not_what_it_was_answers_no_query_and_shows_its_log(
    tamper, serving, finished, until, run_of
):
    service = serving("curator", tamper, process=tamper is cut)
    until(lambda: answers(service))
    with service.http() as owner:
        reply = owner.get("/readyz")
        assert (reply.status_code, reply.json()["code"]) == (503, "audit_unavailable")
        entries = owner.get("/v1/audit/entries").json()["entries"]
        assert len(entries) > 10
        size = Party("curator", service.data).rows("SELECT count(*) FROM log")[0][0]
        for path, body in (
            (f"/v1/studies/{finished.study}/grants", {"name": "x"}),
            (f"/v1/studies/{finished.study}:close", None),
        ):
            refused = owner.post(path, json=body, headers={"Idempotency-Key": f"k{path[-3:]}"})
            assert (refused.status_code, refused.json()["code"]) == (503, "audit_unavailable")
        # No signature under a history that is not the one it signed before.
        checkpoint = owner.get("/v1/audit/checkpoint")
        assert (checkpoint.status_code, checkpoint.json()["code"]) == (503, "audit_unavailable")
    assert Party("curator", service.data).rows("SELECT count(*) FROM log")[0][0] == size
    service.kill()


def test_a_modeler_gets_503_from_a_curator_whose_log_was_cut(serving, finished, until):
    service = serving("curator", cut, process=False)
    until(lambda: answers(service))
    with service.http(finished.token) as modeler:
        for reply in (
            modeler.get(f"/v1/studies/{finished.study}"),
            modeler.post(
                f"/v1/studies/{finished.study}/queries",
                json={"rows": [{"row": 1, "plays": 1}]},
                headers={"Idempotency-Key": "after"},
            ),
        ):
            assert (reply.status_code, reply.json()["code"]) == (503, "audit_unavailable")
    assert Party("curator", service.data).rows("SELECT count(*) FROM queries") == [(12,)]
    service.kill()


@pytest.mark.parametrize("tamper", [cut, older, gap])
def test_a_modeler_whose_log_is_not_what_it_was_leaves_its_runs_alone(tamper, serving, finished, until):
    """A run goes on by itself: no request has to come in."""

    def under_way(party: Party) -> None:
        with party.open() as db:
            db.execute("UPDATE runs SET state = 'running', ended_at = NULL, ended_because = NULL")
        tamper(party)

    service = serving("modeler", under_way, process=tamper is cut)
    until(lambda: answers(service))
    party = Party("modeler", service.data)
    until(lambda: "AuditUnavailable" in service.log)
    with service.http() as vendor:
        assert vendor.get("/readyz").json()["code"] == "audit_unavailable"
        assert len(vendor.get("/v1/audit/entries").json()["entries"]) > 10
        assert vendor.get(f"/v1/runs/{finished.run}").json()["state"] == "running"
        reply = vendor.post(f"/v1/runs/{finished.run}:stop", headers={"Idempotency-Key": "k"})
        assert (reply.status_code, reply.json()["code"]) == (503, "audit_unavailable")
    size = party.rows("SELECT count(*) FROM log")
    assert service.stop() == 0
    assert party.rows("SELECT count(*) FROM log") == size
    untouched = {"cut": -2, "older": 0, "gap": -1}[tamper.__name__]
    assert size[0][0] == finished.modeler.rows("SELECT count(*) FROM log")[0][0] + untouched


def test_the_folders_of_a_finished_run_serve_again(serving, until):
    """The control: nothing was done to them."""
    for name in ("curator", "modeler"):
        service = serving(name, lambda party: None, process=True)
        until(lambda service=service: answers(service))
        with service.http() as client:
            assert client.get("/readyz").status_code == 200
        assert service.stop() == 0
