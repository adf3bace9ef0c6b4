"""An erased dataset is nowhere in the data folder, what stays still adds up, and what it told is gone (410)."""

import gzip
import json
import struct
from decimal import Decimal
from functools import partial

import pytest
from sqlalchemy import text

from blindopt import wire
from blindopt.errors import LogBroken
from curator_service.integrity import log_checks
from curator_service.integrity.log_checks import erased_in_words
from service_kit.store import audit_log
from tests import beside
from tests.curator_service.budget.file_of_records import FileOfRecords
from tests.interventions import act_before, fail_at

Y, MEASURED, NOTE, ESTIMATE = 2.7182812345, 3.1415912345, "zq-note-of-a-measurer", 0.7316512345
CSV = b"a,b,y\n" + b"\n".join(b"%d,%d,%r" % (i % 3, i % 2, Y) for i in range(6)) + b"\n"
MARKS = {
    "text": (repr(Y).encode(), repr(MEASURED).encode(), NOTE.encode()),
    "estimate": (repr(ESTIMATE).encode(),),
    "double": tuple(struct.pack(f"{order}d", value) for value in (Y, MEASURED) for order in "<>"),
}


def marked(file):
    """The marks that any file of the data folder holds, or of the database's server, with the file's name."""
    database = file.in_process.context.database
    return {
        (path.name, kind)
        for path in {*database.path.parent.rglob("*"), *beside.files(database)}
        if path.is_file()
        for kind, marks in MARKS.items()
        if any(mark in path.read_bytes() for mark in marks)
    }


def call(file, method, path, role="owner", **sent):
    return file.in_process.call(role, method, path, **sent)


def status(file, method, path, role="owner", **sent):
    reply = file.in_process.send(role, method, path, **sent)
    if reply.status_code == 410:
        assert reply.json()["code"] == "erased"
    return reply.status_code


@pytest.fixture
def file(tmp_path):
    file = FileOfRecords(tmp_path, csv=CSV, public=True)
    yield file
    file.close()


def column_study(file):
    return file.study(answers=wire.NONE, release=wire.IdentityRelease(mechanism="identity"))


def inbox_study(file, **more):
    by_hand = wire.InboxMeasurement(question="How much?", direction="maximize", shown=["a"], unit="mg")
    return file.study(**{"measurement": by_hand, "answers": wire.NONE, **more})


def measured(file, study, note=NOTE):
    """A query of two records, one of which is measured; its key and id."""
    query = file.ask(study, 0, key="asked").json()["id"]
    item = file.in_process.items(query)[0]
    values = [{"measurement_id": item["id"], "value": MEASURED}]
    call(file, "POST", f"/v1/queries/{query}:answer", "measurer", json={"values": values, "note": note})
    return query, item["id"]


def used(file):
    """Two closed studies that were answered, the second by a person, with one measurement still open."""
    column, inbox = column_study(file), inbox_study(file)
    assert file.ask(column, 0, key="first").status_code == 201
    query, item = measured(file, inbox)
    estimated = {"rows": [{"row": 1, "plays": 1, "probability": ESTIMATE}]}
    waiting = call(file, "POST", f"/v1/studies/{inbox}/queries", inbox, json=estimated)["id"]
    message = {"kind": "recommendation", "row": 0, "mean": MEASURED, "note": NOTE}
    sent = call(file, "POST", f"/v1/studies/{inbox}/messages", inbox, json=message, key="message")
    call(file, "POST", f"/v1/messages/{sent['id']}:decide", json={"decision": "accepted", "word": NOTE})
    for study in (column, inbox):
        call(file, "POST", f"/v1/studies/{study}:close")
    return column, inbox, query, item, waiting


def erase(file, key="erase"):
    if call(file, "GET", f"/v1/datasets/{file.dataset}")["state"] == "active":
        call(file, "POST", f"/v1/datasets/{file.dataset}:archive")
    return call(file, "POST", f"/v1/datasets/{file.dataset}:erase", key=key)


def erase_and_crash(file, monkeypatch):
    """Erase the dataset in the tables, and end before the first of its files is forgotten."""
    call(file, "POST", f"/v1/datasets/{file.dataset}:archive")
    fail_at(monkeypatch, file.in_process.curator.vault, "forget", Killed)
    assert status(file, "POST", f"/v1/datasets/{file.dataset}:erase") == 500


class Killed(Exception):
    pass


def words(file):
    with file.in_process.context.database.read() as db:
        log_checks.check(db, (entry.record for entry in audit_log.walk(db)))
        return erased_in_words(db)


def test_nothing_of_it_is_left_in_the_data_folder_and_a_repeated_key_z_or_answer_is_gone(file):
    column, inbox, query, item, waiting = used(file)
    kinds = {kind for _, kind in marked(file)}
    assert kinds == {"text", "double", "estimate"}  # the search finds what is there
    assert any(name.endswith(".npy") for name, _ in marked(file))
    done = erase(file)
    assert marked(file) == set()
    assert (done["id"], set(done["studies"])) == (file.dataset, {column, inbox})
    assert (done["queries"], done["measurements"], done["versions"]) == (3, 1, 1)
    assert file.ask(column, 0, key="first").status_code == 410
    assert file.ask(inbox, 0, key="asked").status_code == 410
    for study in (column, inbox):
        for path in ("", "/candidates"):
            assert status(file, "GET", f"/v1/studies/{study}{path}", study) == 410
    for each in (query, waiting):
        assert status(file, "GET", f"/v1/studies/{inbox}/queries/{each}", inbox) == 410
    assert status(file, "GET", f"/v1/inbox/measurements/{item}", "measurer") == 410
    entered = {"values": [{"measurement_id": file_item(file, waiting), "value": 1.0}]}
    assert status(file, "POST", f"/v1/queries/{waiting}:answer", "measurer", json=entered) == 410
    again = file.in_process.send("owner", "POST", f"/v1/datasets/{file.dataset}:erase", key="erase")
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (done, "true")
    assert status(file, "POST", f"/v1/datasets/{file.dataset}:erase", key="another") == 410
    assert status(file, "POST", f"/v1/datasets/{file.dataset}:unarchive") == 410


def file_item(file, query):
    with file.in_process.context.database.read() as db:
        return db.execute(text("SELECT id FROM measurements WHERE query_id = :query"), {"query": query}).scalar_one()


def test_what_its_owner_may_still_see_is_shown(file):
    column, inbox, *_ = used(file)
    before = file.account()
    erase(file)
    view = call(file, "GET", f"/v1/datasets/{file.dataset}")
    assert (view["state"], view["columns"], view["rows"]) == ("archived", [], 6)
    assert view["erased_at"]
    assert call(file, "GET", "/v1/inbox?state=all", "measurer")["items"] == []
    assert call(file, "GET", "/v1/inbox", "measurer")["open"] == 0
    assert file.account().uses == before.uses
    for study in (column, inbox):
        assert call(file, "GET", f"/v1/studies/{study}")["state"] == "closed"
        for path in ("account", "accounting", "ledger", "ledger/curve", "exposure", "exposure/histogram", "grants"):
            assert status(file, "GET", f"/v1/studies/{study}/{path}") == 200, path
        assert status(file, "GET", f"/v1/studies/{study}/results") == 410
    for path in ("accounts", "messages", "inbox", "datasets", "studies", "jobs"):
        assert status(file, "GET", f"/v1/{path}") == 200, path


def test_the_log_verifies_counts_what_was_erased_and_shows_what_was_not(file):
    used(file)
    assert words(file) == ""
    erase(file)
    assert words(file).startswith("erased: 1 datasets with 2 studies, 3 queries, 1 measurements")
    with file.in_process.context.database.read() as db:
        records = [entry.record for entry in audit_log.walk(db)]
        with pytest.raises(LogBroken):
            log_checks.check(db, [record for record in records if record["kind"] != "dataset.erased"])

    def tampered(db, change):
        beside.drop_triggers(db)
        assert beside.execute(db, change).rowcount
        with pytest.raises(LogBroken):
            log_checks.check(db, records)
        raise Undone

    for change in CHANGES:
        with pytest.raises(Undone):
            file.in_process.context.database.write(partial(tampered, change=change))


CHANGES = [
    "UPDATE entries SET value = 1.5",
    "UPDATE replies SET body = x'7b226964223a31' WHERE idempotency_key = 'first'",
    "UPDATE revisions SET body = x'7b7d'",
    "UPDATE datasets SET erased_at = NULL",
    "UPDATE inquiries SET lost = 0",
    "UPDATE studies SET state = 'open'",
]


class Undone(Exception):
    """Ends a transaction of which nothing is to stay."""


def test_what_is_under_way_is_named_and_nothing_is_erased(file):
    column, draft = column_study(file), file.draft()
    reply = file.in_process.send("owner", "POST", f"/v1/datasets/{file.dataset}:erase")
    assert reply.status_code == 409
    assert column in reply.json()["detail"]
    assert draft not in reply.json()["detail"]
    assert "archive it first" in reply.json()["detail"]
    assert file.ask(column, 0).status_code == 201
    call(file, "POST", f"/v1/studies/{column}:close")
    assert set(erase(file)["studies"]) == {column, draft}
    assert call(file, "GET", f"/v1/studies/{draft}")["state"] == "closed"  # it could not be released
    assert status(file, "POST", f"/v1/studies/{draft}:release") == 409


def test_a_crash_after_the_commit_leaves_a_dataset_that_answers_nothing_and_a_start_finishes(file, monkeypatch):
    used(file)
    erase_and_crash(file, monkeypatch)
    assert marked(file)
    file.reopen()
    assert marked(file) == set()
    listed = json.loads((file.in_process.context.database.path.parent / "erased").read_text())
    assert listed == [file.dataset]


def test_what_records_of_the_file_lost_in_an_erased_study_counts_at_its_most(tmp_path):
    file = FileOfRecords(tmp_path)
    study, other = file.study(), file.register()
    for row in (0, 0, 1):
        assert file.ask(study, row).status_code == 201
    before = Decimal(file.account(other).epsilon)
    everyone = Decimal(file.account(other).everyone_epsilon)
    call(file, "POST", f"/v1/studies/{study}:close")
    orders = file.in_process.curator.budgets.uses._orders
    assert len(orders) == 1
    erase(file)
    assert len(orders) == 0  # the secret order of its rows
    assert (before, everyone) == (2, 1)
    for dataset in (other, file.dataset):
        after = file.account(dataset)
        assert (Decimal(after.epsilon), Decimal(after.everyone_epsilon)) == (before, before)
    file.caps("2.4")
    refused = file.release(file.draft(other))
    assert refused.status_code == 403  # 2 and 1 are more than the cap: as if the order were still there
    file.close()


def test_figures_of_a_report_that_follow_from_records_go_too(tmp_path):
    file = FileOfRecords(tmp_path, csv=CSV, public=True)
    refuted = {"mechanism": "po_gp_ucb", "epsilon": "4", "delta": 1e-5, "r": 2, "acknowledge_refuted": True}
    study = file.study(release=wire.PoGpUcbRelease(**refuted))
    assert call(file, "GET", f"/v1/studies/{study}")["report"]["sigma_min"] is not None
    call(file, "POST", f"/v1/studies/{study}:close")
    erase(file)
    report = call(file, "GET", f"/v1/studies/{study}")["report"]
    assert (report["sigma_min"], report["omega"], report["n"]) == (None, None, 6)
    assert set(file.records("dataset.erased")[0]["reports"]) == {study}
    file.close()


# --- uploads of the same file that wait for a decision --------------------------------------------------------


def keep(file, content=CSV, name="a.csv"):
    return file.in_process.send("owner", "POST", "/v1/uploads", files={"file": (name, content)})


def pending(file):
    return {each["id"] for each in call(file, "GET", "/v1/uploads")["uploads"]}


def test_pending_uploads_of_the_file_go_with_it_packed_or_not_and_others_stay(file):
    other = keep(file, CSV + b"0,0,1\n").json()["id"]
    keep(file)
    keep(file, gzip.compress(CSV), "b.csv.gz")
    assert len(pending(file)) == 3
    erase(file)
    assert pending(file) == {other}
    call(file, "POST", f"/v1/uploads/{other}:discard")
    assert marked(file) == set()
    assert keep(file).status_code == 201  # sent anew, it is a new file
    assert len(pending(file)) == 1


def test_a_crash_after_the_commit_leaves_no_pending_upload_after_the_next_start(file, monkeypatch):
    keep(file)
    erase_and_crash(file, monkeypatch)
    later = keep(file).json()["id"]
    assert len(pending(file)) == 2
    file.reopen()
    assert pending(file) == {later}
    call(file, "POST", f"/v1/uploads/{later}:discard")
    assert marked(file) == set()


def test_an_upload_that_is_read_while_its_file_is_erased_is_not_kept(file, monkeypatch):
    uploads = file.in_process.curator.uploads
    act_before(monkeypatch, uploads, "sweep", lambda: erase(file))  # what a file that was read is stored after
    reply = keep(file)
    assert (reply.status_code, reply.json()["code"]) == (410, "erased")
    assert pending(file) == set()
    assert marked(file) == set()


def test_metrics_are_scraped_after_an_erasure_and_show_what_stays_spent(tmp_path):
    file = FileOfRecords(tmp_path, metrics=True)
    file.in_process.tokens["monitor"] = file.in_process.context.authentication.issue("monitor", "m", days=1)[0].text

    def share():
        page = file.in_process.send("monitor", "GET", "/metrics")
        assert page.status_code == 200, page.text
        (line,) = (line for line in page.text.splitlines() if line.startswith("blindopt_budget_share_max "))
        return float(line.split()[1])

    study = file.study()
    assert file.ask(study, 0, 0).status_code == 201
    assert file.caps("4").status_code == 200
    assert share() == 0.5  # 1 + 2 x 0.5 of 4
    call(file, "POST", f"/v1/studies/{study}:close")
    erase(file)
    assert share() == 0.5
    assert file.caps("2").status_code == 200
    assert share() == 1.0
    file.close()
