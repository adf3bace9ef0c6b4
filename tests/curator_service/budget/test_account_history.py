"""What an account keeps: after a restore, in an old database, in the log, in notices."""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from blindopt import wire
from blindopt.errors import LogBroken
from curator_service.integrity.restore import close_after_restore
from tests import beside
from tests.curator_service.budget.file_of_records import FileOfRecords
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

SNAPSHOT = Path(__file__).parents[2] / "data" / "version_0_1_0.tar.xz"


@pytest.fixture
def file(tmp_path):
    made = FileOfRecords(tmp_path)
    yield made
    made.close()


def _restore(file):
    context = file.in_process.context
    context.database.write(lambda db: close_after_restore(db, context))


def test_after_a_restore_nothing_more_is_released_of_the_file_and_its_caps_stay(file):
    file.study()
    _restore(file)
    bounds = {"columns": [{"column": "y", "outer": [0.0, 4.0]}], "epsilon": "0.25"}
    of_bounds = file.in_process.send("owner", "POST", f"/v1/datasets/{file.dataset}:bounds", json=bounds)
    for refused in (file.release(file.draft()), of_bounds):
        assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
        assert "a backup was restored" in refused.json()["detail"]
    assert file.caps("100").status_code == 409
    account = file.account()
    assert (account.closed, account.epsilon, [use.kind for use in account.uses]) == (True, "1", ["study", "closed"])
    checked = file.in_process.call("owner", "GET", f"/v1/studies/{file.draft()}")["spec"]
    assert (
        "a backup was restored"
        in file.in_process.call("owner", "POST", "/v1/studies:check", json=checked)["account"]["problem"]
    )


def test_after_a_restore_public_records_can_still_be_released(tmp_path):
    file = FileOfRecords(tmp_path, public=True)
    _restore(file)
    file.study(release=wire.IdentityRelease(mechanism="identity"))
    file.close()


def test_a_cap_that_somebody_raised_in_the_table_is_found(tmp_path):
    file = FileOfRecords(tmp_path)
    file.caps("2")
    file.caps("4", raise_caps=True, reason="agreed")
    file.in_process.check()
    for change in (
        "UPDATE tuning_ledger SET cap_epsilon = '40' WHERE seq = 2",
        "UPDATE tuning_ledger SET tuning_id = 'never agreed' WHERE seq = 2",
        "DELETE FROM tuning_ledger WHERE seq = 1",
    ):
        with closing(beside.connect(tmp_path / "data" / "curator.sqlite")) as db, db:
            beside.drop_triggers(db, "tuning_ledger_UPDATE", "tuning_ledger_DELETE")
            kept = db.execute("SELECT * FROM tuning_ledger").fetchall()
            db.execute(change)
        with pytest.raises(LogBroken, match="accounts of datasets"):
            file.in_process.check()
        with closing(beside.connect(tmp_path / "data" / "curator.sqlite")) as db, db:
            db.execute("DELETE FROM tuning_ledger")
            for row in kept:
                db.execute(f"INSERT INTO tuning_ledger VALUES ({', '.join('?' * len(row))})", row)
    file.close()


def test_a_database_of_version_0_1_0_shows_what_its_ledgers_say(tmp_path):
    """The figure is computed here from the old tables and order files alone."""
    with tarfile.open(SNAPSHOT) as archive:
        archive.extractall(tmp_path, filter="data")
    (database,) = tmp_path.rglob("curator.sqlite")
    folder = database.parent
    with closing(sqlite3.connect(database)) as db:
        joined = "studies JOIN datasets ON datasets.id = dataset_id"
        studies = db.execute(f"SELECT studies.id, dataset_id, spec, sha256 FROM {joined}").fetchall()
        lines = db.execute("SELECT study_id, kind, row, cost FROM ledger").fetchall()
        tunings = db.execute("SELECT count(*) FROM tuning_ledger").fetchone()
    assert tunings == (0,)
    if folder.name != "data":
        folder = folder.rename(folder.parent / "data")
    curator = InProcessCurator(folder.parent)
    for dataset, digest in {(dataset, digest) for _, dataset, _, digest in studies}:
        same = {study for study, _, _, other in studies if other == digest}
        releases = sum(float(cost) for study, kind, _, cost in lines if study in same and kind == "release")
        account = curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")
        specs = [json.loads(spec) for study, _, spec, _ in studies if study in same]
        assert {spec["privacy_unit"] for spec in specs} == {"row"}
        records = {}
        orders = dict.fromkeys(same, curator.curator.released)
        for study, kind, row, cost in lines:
            if study in same and kind in ("answers", "correction"):
                with curator.context.database.read() as db:
                    record = int(orders[study].of(db, study).order[row])
                records[record] = records.get(record, 0.0) + float(cost)
        assert account["epsilon"] is not None
        assert float(account["epsilon"]) == pytest.approx(releases + max(records.values(), default=0.0))
        assert sum(use["kind"] == "study" for use in account["uses"]) == len(same)
    assert max(records.values(), default=0.0) > 0
    curator.curator.close()
    curator.close()


def test_a_raised_cap_and_a_cap_that_is_80_per_cent_spent_have_notices(tmp_path):
    secret = tmp_path / "notices.key"
    secret.write_bytes(b"k" * 40)
    receiver = {"notify_url": "http://127.0.0.1:9/", "notify_secret_file": secret}
    file = FileOfRecords(tmp_path, notify_events="budget_80,cap_raised", **receiver)
    file.caps("2")
    study = file.study()
    file.ask(study, 0)
    file.ask(study, 1)  # another record comes as far, and has no notice of its own
    file.caps("3", raise_caps=True, reason="a private reason")
    listed = file.in_process.call("owner", "GET", "/v1/notices")["notices"]
    notices = [item["notice"] for item in listed]
    assert [(n["event"], n["subject"]["cap"], n["subject"]["dataset_id"]) for n in notices] == [
        ("cap_raised", "epsilon", file.dataset)
    ]
    file.ask(study, 0)
    file.ask(study, 0)
    file.ask(study, 0)
    notices = [item["notice"] for item in file.in_process.call("owner", "GET", "/v1/notices")["notices"]]
    assert [(n["event"], n["counts"].get("percent")) for n in notices] == [("cap_raised", None), ("budget_80", 83)]
    assert notices[1]["sentence"] == f"83 % of the cap epsilon of dataset {file.dataset} is used."
    assert "private reason" not in json.dumps(notices)
    file.close()
