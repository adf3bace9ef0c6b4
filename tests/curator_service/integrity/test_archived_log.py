"""Old records of the log move to signed files: the tables are still checked against what these said."""

import gzip
import json
import os
import re
import shlex
import shutil
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from blindopt import wire
from blindopt.audit import letters, merkle_log, reconciliation
from blindopt.audit import segments as files
from blindopt.audit.checkpoints import Signer
from blindopt.audit.merkle_log import sha256
from blindopt.audit.segments import SegmentFile
from blindopt.errors import LogBroken, RecordChanged, StateConflict
from curator_service import app
from curator_service import cli as curator_cli
from curator_service.integrity import log_checks
from curator_service.queries.table import second_draws
from service_kit.context import log_archive as archiving
from service_kit.store import audit_log, schema, segments
from service_kit.store.base import utc_now
from tests import postgres, processes
from tests.builders import BY_HAND, COLUMN, EXACT, a_study, group_release
from tests.curator_service.integrity.changed_copy import Copy
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.docs.snippets import run_by

CSV = b"a,b,y\n" + b"".join(b"%d,%d,%d\n" % (i, 40 - i, i % 7) for i in range(40))
(PAGE,) = run_by("tests/curator_service/integrity/test_archived_log.py")
VERIFY, PROVE = PAGE.text.splitlines()
RECORDS = 16
OLD = timedelta(days=91)


def study(dataset, measurement=COLUMN, **more):
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", value_bound=9.0)
    return a_study(dataset_id=dataset, columns="ab", upper=40.0, answers=answers, measurement=measurement, **more)


class Archived(InProcessCurator):
    """A curator with a study, whose log is archived after 90 days in segments of 16 records."""

    measurement: wire.MeasurementSpec = COLUMN
    later = -timedelta(days=400)  # PostgreSQL deletes no record that is young by the server's clock

    def __init__(self, folder):
        super().__init__(folder, retention_log_days=90)
        self.study = self.open(CSV, partial(study, measurement=self.measurement))

    @property
    def archive(self):
        return archiving.LogArchive(self.context, 90, log_checks.archivable)

    def grow(self, count):
        for row in range(count):
            self.ask(self.study, [row % 40])

    def age(self, by=OLD):
        """Let time pass, and log in again."""
        self.later += by
        self.reopen()
        for role in ("owner", "measurer"):
            self.tokens[role] = self.context.authentication.issue(role, role, days=1)[0].text
        self.grant(self.study)

    def file(self, number):
        return self.settings.data_dir / "archive" / files.name_of(number)

    def entries(self):
        with self.context.database.read() as db:
            return list(audit_log.walk(db))

    def copy(self, folder):
        """A copy of the folder to change, with what a verification finds in it."""
        return Copy((self.settings.data_dir.parent, {"study": self.study}, {}), folder)


@pytest.fixture
def curator(tmp_path, monkeypatch):
    monkeypatch.setattr(archiving, "RECORDS", RECORDS)
    made = Archived(tmp_path / "made")
    yield made
    made.close()


@pytest.fixture
def archived(curator):
    """With two segments at least, and live records after them."""
    return _archived(curator)


@pytest.fixture
def quiet(curator):
    """With four segments, in which are all exchanges of its grant."""
    curator.grow(20)
    for number in range(20):
        curator.context.authentication.issue(f"o{number}", "owner", days=1)
    curator.later += OLD + timedelta(days=31)
    curator.reopen()
    assert curator.archive.seal_all() == 4
    return curator


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The same, to be copied and not changed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(archiving, "RECORDS", RECORDS)
        made = _archived(Archived(tmp_path_factory.mktemp("prepared") / "made"))
        yield made
        made.close()


def _archived(curator):
    curator.grow(20)
    curator.age()
    assert curator.archive.seal_all() >= 2
    curator.grow(3)
    return curator


def test_a_segment_has_no_digest_from_which_a_second_draw_can_be_guessed(curator, tmp_path):
    """A draw of one feature has some 2^21 values; a segment's file outlives an erasure."""
    of_draws = {
        "release": wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1"),
        "answers": EXACT,
        "refine": wire.Refine(epsilon="2", persons=40),
    }
    drafted = study(curator.register(CSV, public=True)).model_copy(update=of_draws)
    curator.study = curator.release(drafted, confirm_consent=True)
    curator.grow(20)
    curator.age()
    assert curator.archive.seal_all() >= 2
    with curator.context.database.read() as db:
        draws = second_draws(db, curator.study, range(40))
        states = [json.loads(row.summary)["states"]["_ReplyLogSummary"] for row in segments.every(db) if row.summary]
    digests = dict(states[-1]["refined"])[curator.study]
    assert {row for row, digest in digests if digest} <= draws.keys()
    assert not {digest for _, digest in digests} & {sha256(json.dumps(z).encode()) for z in draws.values()}
    curator.grow(3)  # archived draws leave again
    assert curator.copy(tmp_path).findings() == {}


def test_old_whole_segments_leave_the_database_and_verify_by_themselves(curator, tmp_path):
    curator.grow(20)
    assert curator.archive.seal_all() == 0  # the control: nothing is old
    before = curator.entries()
    curator.age()
    count = curator.archive.seal_all()
    assert count == len(before) // RECORDS
    bodies = [entry.body for number in range(count) for entry in SegmentFile(curator.file(number)).entries()]
    assert bodies == [entry.body for entry in before[: count * RECORDS]]
    seqs = {entry.seq for entry in curator.entries()}
    gone = {e.seq for e in before[: count * RECORDS - 1] if e.record["kind"] in ("exchange", "charge")}
    assert gone
    assert not gone & seqs
    assert curator.archive.seal_all() == 0  # what is left is young, or no whole segment
    curator.grow(3)
    assert curator.copy(tmp_path).findings() == {}
    with curator.context.database.read() as db:
        assert segments.size(db) == count * RECORDS
        assert [row.summary is None for row in segments.every(db)] == [True] * (count - 1) + [False]


def test_a_letter_proves_charges_that_are_archived(archived):
    with archived.context.database.read() as db:
        order = archived.curator.released.of(db, archived.study).order
    dataset = archived.call("owner", "GET", f"/v1/studies/{archived.study}")["spec"]["dataset_id"]
    path, whose = f"/v1/datasets/{dataset}:letter", {"record": int(order[0]) + 1}
    signed = wire.SignedLetter.model_validate_json(archived.send("owner", "POST", path, json=whose).text)
    letter = signed.letter
    assert [(event.kind, event.log is None) for event in letter.events] == [
        ("release", False),
        ("answer", False),
        ("answer", False),
    ]
    letters.check(letter, archived.context.signer.verifier.verify(letter.checkpoint).head)
    archived.file(0).unlink()
    without = archived.call("owner", "POST", path, json=whose)["letter"]
    assert [event["log"] is None for event in without["events"]] == [True, True, False]
    assert without["epsilon"] == letter.epsilon


# --- edits of what rests on archived records ----------------------------------------------------------

EDITS = {
    "a ledger line": ("UPDATE ledger SET cost = '1' WHERE seq = 3", "its first .* lines was changed"),
    "the last archived line is gone": ("DELETE FROM ledger WHERE seq = 2", "not what the log says|lacks the last"),
    "a query": ("UPDATE queries SET id = 'qry_0123456789abcdef' WHERE seq = 2", "first .* queries are not those"),
    "a record that stays": (
        "UPDATE log SET body = CAST(body || ' ' AS BLOB) WHERE seq = 3",
        "stays in the database was changed",
    ),
    "one is gone": ("DELETE FROM log WHERE seq = 2", "stays in the database was changed or is missing"),
    "the summary": ("UPDATE segments SET summary = replace(summary, 'plays', 'play') WHERE summary > ''", "summary"),
    "it is no bytes": ("UPDATE log SET body = 'x' WHERE seq = 3", "is none: its body is not a JSON object"),
    "the checkpoint": (
        "UPDATE segments SET note = (SELECT note FROM segments WHERE number = 0) WHERE summary > ''",
        "record 15 is missing",
    ),
    "an earlier digest": (
        "UPDATE segments SET sha256 = 'x' WHERE number = 0",
        "digest, place or summary of log-000000",
    ),
    "the segment": ("DELETE FROM segments WHERE number > 0", "missing"),
    "a study": ("UPDATE studies SET spec = replace(spec, '0.1', '0.2') WHERE id = '{study}'", "spec is not the one"),
    "the frontier": (
        "UPDATE log SET peaks = zeroblob(length(peaks)) WHERE seq = (SELECT max(size) - 1 FROM segments)",
        ".",
    ),
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_what_rests_on_archived_records_is_found_without_their_files(name, prepared, tmp_path):
    copy = prepared.copy(tmp_path)
    for file in (copy.folder / "data" / "archive").iterdir():
        file.unlink()
    assert copy.findings() == {}
    statement, words = EDITS[name]
    copy.edit(statement)
    assert any(re.search(words, finding) for finding in copy.findings()), copy.findings()


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_what_rests_on_archived_records_is_found_beside_their_files(name, prepared, tmp_path):
    copy = prepared.copy(tmp_path)
    assert copy.findings() == {}
    copy.edit(EDITS[name][0])
    assert copy.findings() != {}


def test_no_segment_is_sealed_on_an_edited_summary(curator):
    """An edit that no verification has seen yet."""
    curator.grow(30)
    curator.age()
    archive = curator.archive
    first = archive._written()
    curator.context.database.write(lambda db: archive._settle(db, first | {"summary": first["summary"] + " "}))
    with curator.context.database.read() as db:
        assert segments.size(db) == RECORDS  # the control: the next one is due
    curator.context.database.write(lambda db: _edit_summary(db, first["summary"]))
    with pytest.raises(LogBroken, match="summary of log-000000"):
        archive.seal_all()


def _edit_summary(db, summary):
    with schema.unguarded(db, "segments"):
        db.execute(text("UPDATE segments SET summary = :summary"), {"summary": summary})


def test_a_second_answer_or_charge_of_an_archived_query_is_found(prepared, tmp_path):
    """The control of the summary: live records that repeat archived ones."""
    [old] = [e for e in SegmentFile(prepared.file(1)).entries() if e.record["kind"] == "charge"][:1]
    copy = prepared.copy(tmp_path)
    shutil.rmtree(copy.folder / "data" / "archive")
    copy.open()
    copy.curator.context.database.write(
        lambda db: audit_log.append(db, "charge", actor="modeler", now=utc_now(), details=old.record["details"])
    )
    copy.close()
    faults = copy.findings()
    assert any("lacks the last of" in finding for finding in faults), faults


def exported(copy, folder):
    """Verify the export of a copy, without its database."""
    copy.open()
    with copy.curator.context.database.read() as db:
        (folder / "export").write_text("".join(reconciliation.write(copy.curator.context.audit_trail.export(db))))
    copy.close()
    export = reconciliation.read(folder / "export")
    reconciliation.verify_export(export)
    return export


LAST_SHARED = {
    "its body": "UPDATE shared SET body = CAST(replace(body, '/v1/', '/v2/') AS BLOB)",
    "it is no bytes": "UPDATE shared SET body = 'x'",
    "its hash": "UPDATE shared SET leaf = zeroblob(32)",
    "the frontier": "UPDATE shared SET peaks = zeroblob(length(peaks))",
    "the row": "DELETE FROM shared",
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("has_files", [True, False])
@pytest.mark.parametrize("name", LAST_SHARED)
def test_an_edit_of_the_last_exchange_of_a_quiet_grant_is_found_and_no_receipt_forks_its_log(
    name, has_files, quiet, tmp_path
):
    copy = quiet.copy(tmp_path)
    if not has_files:
        shutil.rmtree(copy.folder / "data" / "archive")
    assert copy.findings() == {}
    [grant] = json.loads(next(row.positions for row in every(quiet) if row.positions != "{}"))
    names = [files.name_of(row.number) for row in every(quiet) if grant in json.loads(row.positions)]
    assert list(exported(copy, tmp_path).of_kind("segment", grant)) == names
    copy.edit(LAST_SHARED[name])
    [(finding, grant)] = copy.findings().items()
    assert finding == f"shared log {grant}: place 19, its last archived one, was changed or is missing"
    with pytest.raises(LogBroken, match=finding):
        exported(copy, tmp_path)
    copy.open()
    with pytest.raises(RecordChanged):
        copy.curator.context.audit_trail.check_named(grant)
    copy.close()


class Measured(Archived):
    """Its study is measured by people, who correct the first answer."""

    measurement = BY_HAND

    def grow(self, count):
        for row in range(count):
            query = self.ask(self.study, [row % 40])
            self.enter("answer", query, self.items(query), float(row % 7))
            if row == 0:
                self.enter("correct", query, self.items(query), 6.0)


INBOX_EDITS = {
    "the study of a query": "UPDATE inquiries SET study_id = 'std_0123456789abcdef' WHERE seq = 2",
    "a query": "DELETE FROM inquiries WHERE seq = 3",
    "an entry": "UPDATE entries SET value = 5.5 WHERE seq = 3",
    "an answer that was sent": "UPDATE revisions SET body = replace(body, 'answered', 'Answered') WHERE seq = 1",
    "a correction": "DELETE FROM rounds WHERE version = 2",
    "a measurement": "UPDATE measurements SET row = 39 WHERE seq = 2",
}


def test_the_summary_does_not_grow_with_measured_queries_and_their_rows_are_still_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(archiving, "RECORDS", RECORDS)
    curator = Measured(tmp_path / "made")
    lengths, counts = [], []
    for _ in range(2):
        curator.grow(12)
        curator.age()
        assert curator.archive.seal_all() >= 2
        state = json.loads(every(curator)[-1].summary)["states"]["InboxLogSummary"]
        lengths.append(len(json.dumps(state)))
        counts.append(state["queries"]["count"])
    assert counts[1] > counts[0] > 2
    assert lengths[1] - lengths[0] <= 40  # a corrected query, and a digit
    curator.grow(1)
    curator.close()
    prepared = curator.settings.data_dir.parent, {}, {}
    for has_files in (True, False):
        if not has_files:
            shutil.rmtree(curator.settings.data_dir / "archive")
        assert Copy(prepared, tmp_path / f"sound-{has_files}").findings() == {}
        for name, statement in INBOX_EDITS.items():
            copy = Copy(prepared, tmp_path / f"{name}-{has_files}")
            copy.edit(statement)
            assert copy.findings() != {}, (name, has_files)


# --- files ------------------------------------------------------------------------------------------


def changed_byte(archived):
    data = bytearray(gzip.decompress(archived.file(0).read_bytes()))
    data[data.index(b'"kind":"charge"', len(data) // 2) + 9] ^= 1
    archived.file(0).write_bytes(gzip.compress(bytes(data), mtime=0))


def swapped(archived):
    shutil.copyfile(archived.file(1), archived.file(0))


@pytest.mark.parametrize("damage", [changed_byte, swapped])
def test_a_changed_or_swapped_file_is_named(damage, archived, tmp_path):
    assert archived.copy(tmp_path / "sound").findings() == {}
    damage(archived)
    faults = archived.copy(tmp_path).findings()
    assert any("log-000000.jsonl.gz in the archive is not the file that was sealed" in finding for finding in faults), (
        faults
    )


def folder_in_its_place(archived):
    archived.file(0).unlink()
    archived.file(0).mkdir()


def cut(archived):
    archived.file(0).write_bytes(b"")


@pytest.mark.parametrize("damage", [changed_byte, cut, folder_in_its_place])
def test_a_damaged_file_is_a_finding_and_queries_go_on(damage, archived, tmp_path):
    damage(archived)
    tokens = {"modeler": archived.tokens["modeler"]}
    copy = Copy((archived.settings.data_dir.parent, {"study": archived.study}, tokens), tmp_path)
    copy.open()
    copy.curator.later = archived.later
    verified = copy.verification.verify()
    fault = "log-000000.jsonl.gz in the archive is not the file that was sealed: it was changed or cannot be read"
    assert (verified.sound, verified.problem) == (False, fault)
    with archived.context.database.read() as db:
        assert verified.unread == segments.size(db)
    assert copy.ask("study", token="modeler", row=31).status_code == 201
    assert not copy.curator.context.audit_trail.is_sound  # so that nothing more is archived
    shutil.rmtree(copy.folder / "data" / "archive")
    assert copy.verification.verify().sound
    copy.close()
    copy.edit("UPDATE ledger SET cost = '1' WHERE seq = 3")
    assert any(re.search("its first .* lines was changed", finding) for finding in copy.findings())


def test_a_changed_or_cut_file_does_not_verify(archived):
    whole = archived.file(0).read_bytes()
    changed_byte(archived)
    with pytest.raises(LogBroken, match=r"log-000000.jsonl.gz: "):
        files.verified(archived.file(0))
    for cut in (whole[:-20], whole[:200], b"", b"x"):
        archived.file(0).write_bytes(cut)
        with pytest.raises(LogBroken, match=r"log-000000.jsonl.gz: "):
            files.verified(archived.file(0))
    archived.file(0).write_bytes(whole)
    assert files.verified(archived.file(0), archived.context.signer.verifier.vkey).startswith("records 0 to 15 of ")
    with pytest.raises(LogBroken, match="log-000000"):
        files.verified(archived.file(0), Signer.of("curator", b"x" * 32).verifier.vkey)


def test_a_file_with_more_after_an_empty_line_does_not_verify(archived):
    whole = gzip.decompress(archived.file(0).read_bytes())
    for more in (b"\n", b"\n" + whole.splitlines()[-1] + b"\n"):
        archived.file(0).write_bytes(gzip.compress(whole + more, mtime=0))
        with pytest.raises(LogBroken, match="log-000000"):
            files.verified(archived.file(0))
    archived.file(0).write_bytes(gzip.compress(whole, mtime=0))
    assert files.verified(archived.file(0))


def test_a_segment_made_by_hand_with_the_right_digest_and_a_wrong_record_is_found(archived, tmp_path):
    """By the service's own key, with a sound tree: only what was signed before, and what the tables hold, tells."""
    segment = SegmentFile(archived.file(1))
    bodies = [entry.body for entry in segment.entries()]
    index = next(i for i, body in enumerate(bodies) if b'"kind":"charge"' in body)
    bodies[index] = bodies[index].replace(b'"epsilon":"0.1"', b'"epsilon":"0.2"')
    peaks = bytes.fromhex(segment.head.peaks)
    for seq, body in enumerate(bodies, start=segment.head.first):
        peaks = merkle_log.grow(peaks, seq, merkle_log.leaf_hash(body))
    head = segment.head.model_copy(update={"root": merkle_log.root(peaks).hex()})
    with archived.file(1).open("wb") as file:
        note = files.write(file, head, bodies, archived.context.signer)
    assert files.verified(archived.file(1))  # by itself it is sound
    copy = archived.copy(tmp_path)
    digest = sha256(archived.file(1).read_bytes())
    copy.edit(f"UPDATE segments SET sha256 = '{digest}' WHERE number = 1")
    assert any("the digest, place or summary of log-000001" in finding for finding in copy.findings())
    copy.names["note"] = note
    copy.edit("UPDATE segments SET note = '{note}' WHERE number = 1")
    assert copy.findings() != {}


def test_without_a_file_the_tables_are_compared_with_the_summary_and_verify_says_so(archived):
    command = partial(processes.run, "curator_service")
    settings = {"DATA_DIR": str(archived.settings.data_dir), **postgres.settings_for(archived.settings.data_dir)}
    environment = os.environ | {f"BLINDOPT_CURATOR_{name}": value for name, value in settings.items()}
    whole = command("audit", "verify", env=environment)
    assert whole.returncode == 0, whole.stderr
    assert "verified from their files" in whole.stdout
    line = VERIFY.replace("log-000003", "log-000001").replace("$LOG_KEY", archived.context.signer.first.vkey)
    alone = command(*shlex.split(line)[1:], env=environment, cwd=archived.settings.data_dir)
    assert alone.stdout.startswith("records 16 to 31 of blindopt-curator, root "), alone
    archived.file(1).unlink()
    partly = command("audit", "verify", env=environment)
    assert partly.returncode == 0, partly.stderr
    assert "lacks log-000001.jsonl.gz" in partly.stdout


# --- sealing ----------------------------------------------------------------------------------------


def test_a_sealing_that_was_interrupted_writes_the_same_bytes(archived, monkeypatch):
    archived.grow(16)
    archived.age()

    def dies(*_, **__):
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(archiving.LogArchive, "_settle", dies)
        with pytest.raises(RuntimeError):
            archived.archive.seal_all()
    with archived.context.database.read() as db:
        number = len(segments.every(db))
    first = archived.file(number).read_bytes()
    archived.grow(2)
    archived.age(timedelta(days=1))
    assert archived.archive.seal_all() > 0
    assert archived.file(number).read_bytes() == first


def test_a_file_of_another_history_is_not_overwritten(archived):
    with archived.context.database.read() as db:
        number = len(segments.every(db))
    shutil.copyfile(archived.file(0), archived.file(number))
    archived.grow(16)
    archived.age()
    with pytest.raises(StateConflict, match="another history"):
        archived.archive.seal_all()


def test_no_segment_is_written_whose_summary_is_too_long_to_be_read(curator, monkeypatch):
    curator.grow(20)
    curator.age()
    archive = curator.archive
    first = archive._written()
    length = gzip.decompress(curator.file(0).read_bytes()).index(b"\n") + 1
    curator.file(0).unlink()
    for limit, sealed in ((length - 1, 0), (length, RECORDS)):  # that of the second one is longer
        monkeypatch.setattr(files, "_LINE_BYTES", limit)
        with pytest.raises(StateConflict, match=f"not archived further: .* and {limit} are read"):
            archive.seal_all()
        assert archive.has_failed
        assert curator.file(0).exists() == (sealed > 0)
        with curator.context.database.read() as db:
            assert segments.size(db) == sealed
    assert SegmentFile(curator.file(0)).note == first["note"]
    monkeypatch.undo()
    monkeypatch.setattr(archiving, "RECORDS", RECORDS)
    assert archive.seal_all() >= 1
    assert not archive.has_failed
    assert curator.copy(curator.settings.data_dir.parent.parent / "copied").findings() == {}


def test_a_metric_says_that_archiving_failed(tmp_path, monkeypatch):
    pytest.importorskip("prometheus_client", reason="extra metrics")
    made = []
    monkeypatch.setattr(app, "LogArchive", lambda *of: made.append(archiving.LogArchive(*of)) or made[-1])
    curator = InProcessCurator(tmp_path, retention_log_days=90, metrics=True)

    def shown():
        return re.findall(r"^blindopt_log_archive_failed (\S+)", curator.send("owner", "GET", "/metrics").text, re.M)

    with monkeypatch.context() as patched:
        patched.setattr(archiving.LogArchive, "_written", None)
        assert shown() == ["0.0"]
        with pytest.raises(TypeError):
            made[0].seal_all()
    assert shown() == ["1.0"]
    assert made[0].seal_all() == 0
    assert shown() == ["0.0"]
    curator.close()


def test_how_much_is_archived_is_read_without_the_summary(archived, monkeypatch):
    with archived.context.database.read() as db:
        row = segments.LAST.row(db)
        assert row.summary  # the control
        monkeypatch.setattr(segments.LAST, "row", None)
        assert segments.size(db) == row.size


# --- readers ----------------------------------------------------------------------------------------


def refused(reply):
    assert (reply.status_code, reply.json()["code"]) == (410, "archived"), reply.text
    return reply.json()["detail"]


def test_a_request_for_what_is_archived_is_410_with_the_segments_name(archived):
    with archived.context.database.read() as db:
        size, last = segments.size(db), segments.LAST.row(db).number
    assert "log-000000.jsonl.gz" in refused(archived.send("owner", "GET", "/v1/audit/entries"))
    token = f"/v1/audit/entries?page_token={size - 3}"
    assert files.name_of(last) in refused(archived.send("owner", "GET", token))
    kept = archived.call("owner", "GET", f"/v1/audit/entries?page_token={size - 1}")["entries"]
    assert kept[0]["seq"] == size
    newest = archived.call("owner", "GET", "/v1/audit/entries?order=newest&page_size=1000")["entries"]
    assert newest[-1]["seq"] == size - 1
    grant = next(iter(json.loads(next(row for row in every(archived) if row.positions != "{}").positions)))
    refused(archived.send("owner", "GET", f"/v1/audit/entries?grant_id={grant}"))


def every(curator):
    with curator.context.database.read() as db:
        return segments.every(db)


def test_an_archived_answer_is_not_sent_again_and_a_live_one_is(curator):
    body = {"rows": [{"row": 1, "plays": 1}]}
    path = f"/v1/studies/{curator.study}/queries"
    first = curator.send("modeler", "POST", path, key="old", json=body)
    assert first.status_code == 201
    curator.grow(20)
    later = curator.send("modeler", "POST", path, key="new", json=body)
    archive = archiving.LogArchive(curator.context, 0, log_checks.archivable)
    curator.later += timedelta(days=31)
    assert archive.seal_all() >= 2
    charged = count(curator, "ledger")
    refused(curator.send("modeler", "POST", path, key="old", json=body))
    assert count(curator, "ledger") == charged
    again = curator.send("modeler", "POST", path, key="new", json=body)
    assert (again.status_code, again.content) == (201, later.content)


def test_answers_about_all_groups_are_read_after_their_segment_is_archived(curator, tmp_path):
    spec = partial(study, release=group_release("1", (2, 2), 1), budget=wire.Budget())
    grouped = curator.open(CSV.replace(b"0,40,0", b"0,40,1"), spec)
    path = f"/v1/studies/{grouped}"
    first = curator.send("owner", "POST", f"{path}:answer_all")
    assert first.status_code == 201, first.text
    curator.grant(curator.study)
    curator.grow(20)
    curator.age()
    curator.grant(grouped)
    archived_until = curator.archive.seal_all() * RECORDS
    (record,) = (entry.record for entry in curator.entries() if entry.record["kind"] == "query.all_answered")
    assert record["seq"] < archived_until
    for who, act in (
        ("owner", f"POST {path}:answer_all"),
        ("owner", f"GET {path}/answers"),
        ("modeler", f"GET {path}/answers"),
    ):
        assert curator.send(who, *act.split()).content == first.content
    groups = curator.call("owner", "GET", f"{path}/groups")["groups"]
    assert [group["y"] for group in groups] == [answer["y"] for answer in first.json()["answers"]]
    copy = curator.copy(tmp_path)
    assert copy.findings() == {}
    copy.edit("UPDATE replies SET body = replace(body, ':[]', ':[0]') WHERE idempotency_key = 'answers'")
    assert copy.findings() != {}


def test_a_charged_query_without_its_answer_is_not_drawn_again_where_its_charge_is_archived(curator, tmp_path):
    """The answer may be in the archive, where the service does not look."""
    body, path = {"rows": [{"row": 1, "plays": 1}]}, f"/v1/studies/{curator.study}/queries"
    token = curator.tokens["modeler"]
    curator.send("modeler", "POST", path, key="old", json=body)
    curator.grow(20)
    archive = archiving.LogArchive(curator.context, 0, log_checks.archivable)
    curator.later += timedelta(days=31)
    assert archive.seal_all() >= 2
    copy = Copy((curator.settings.data_dir.parent, {"study": curator.study}, {"modeler": token}), tmp_path)
    copy.edit("DELETE FROM replies WHERE idempotency_key = 'old'")
    copy.open()
    copy.curator.later = curator.later
    refused(copy.curator.send("modeler", "POST", path, key="old", json=body))
    copy.close()


def test_proofs_between_live_sizes_need_no_archived_record_and_older_ones_its_files(archived, monkeypatch):
    with archived.context.database.read() as db:
        size, end = segments.size(db), audit_log.head(db).size
        key = archived.context.signer.first.vkey
        leaves = archiving.ArchiveFiles(db, archived.context.archive, key).leaves(db, None)
        for first in range(size, end + 1):
            for second in range(first, end + 1):
                proof = audit_log.consistency(db, None, first, second)
                assert proof == merkle_log.consistency(leaves[:second], first), (first, second)
    path = "/v1/audit/consistency"
    refused(archived.send("owner", "GET", f"{path}?first={size - 1}&second={end}"))
    monkeypatch.setenv("BLINDOPT_CURATOR_DATA_DIR", str(archived.settings.data_dir))
    printed = CliRunner().invoke(curator_cli.app, shlex.split(PROVE.replace("1000 200000", f"5 {end}"))[1:])
    assert printed.exit_code == 0, printed.output
    nodes = [bytes.fromhex(line) for line in printed.stdout.split()]
    heads = [merkle_log.Head(n, merkle_log.root(frontier(leaves[:n])).hex()) for n in (5, end)]
    assert merkle_log.is_consistent(*heads, nodes)


def count(curator, table):
    with curator.context.database.read() as db:
        return db.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()


def frontier(leaves):
    peaks = b""
    for size, leaf in enumerate(leaves):
        peaks = merkle_log.grow(peaks, size, leaf)
    return peaks


def test_a_backup_is_restored_with_or_without_the_files_of_its_segments(archived, tmp_path, monkeypatch):
    run = partial(CliRunner().invoke, curator_cli.app)
    monkeypatch.setenv("BLINDOPT_CURATOR_DATA_DIR", str(archived.settings.data_dir))
    assert run(["backup", str(tmp_path / "backup")]).exit_code == 0
    restore = ["restore", str(tmp_path / "backup"), "--secrets", str(archived.settings.data_dir / "secrets")]
    for name, words in (("without", "lacks log-000000.jsonl.gz"), ("with", "verified from their files")):
        data = tmp_path / name
        if name == "with":
            shutil.copytree(archived.settings.data_dir / "archive", data / "archive")
        monkeypatch.setenv("BLINDOPT_CURATOR_DATA_DIR", str(data))
        done = run(restore)
        assert (done.exit_code, words in done.output) == (0, True), done.output
        assert run(["audit", "verify"]).exit_code == 0


def test_segments_verify_after_a_change_of_the_log_key(archived, tmp_path, monkeypatch):
    monkeypatch.setenv("BLINDOPT_CURATOR_DATA_DIR", str(archived.settings.data_dir))
    archived.close()
    run = partial(CliRunner().invoke, curator_cli.app)
    assert run(["key", "rotate", "log"]).exit_code == 0
    assert archived.copy(tmp_path).findings() == {}
    done = run(["audit", "verify"])
    assert (done.exit_code, "verified from their files" in done.output) == (0, True), done.output


def test_a_segment_waits_for_the_countersignatures_of_live_grants_or_thirty_days(curator):
    curator.grow(20)
    granted = curator.later
    curator.later += timedelta(days=20)
    archive = archiving.LogArchive(curator.context, 10, log_checks.archivable)
    assert archive.seal_all() == 0  # the grant is live, and its modeler has signed nothing
    sealed = curator.later
    curator.later = granted + timedelta(days=39)
    assert archive.seal_all() == 0
    curator.later = sealed + timedelta(days=21)
    assert archive.seal_all() >= 2


def test_an_erasure_rewrites_no_segment_and_the_tables_verify_with_and_without_the_files(archived, tmp_path):
    before = archived.file(0).read_bytes()
    dataset = archived.call("owner", "GET", f"/v1/studies/{archived.study}")["spec"]["dataset_id"]
    archived.call("owner", "POST", f"/v1/studies/{archived.study}:close")
    for act in ("archive", "erase"):
        archived.call("owner", "POST", f"/v1/datasets/{dataset}:{act}")
    assert archived.file(0).read_bytes() == before
    copy = archived.copy(tmp_path)
    assert copy.findings() == {}
    shutil.rmtree(copy.folder / "data" / "archive")
    assert copy.findings() == {}
    copy.edit("UPDATE ledger SET cost = '1' WHERE seq = 3")  # the control
    assert copy.findings() != {}
