"""What is kept for so many days is deleted once a day, with counts in the log; what is never swept stays."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from blindopt import wire
from curator_service.erasure.erasure import sweeps
from curator_service.settings import Settings
from service_kit.cli import users
from service_kit.context.retention import Retention
from service_kit.identity import passwords
from service_kit.store import audit_log
from tests.builders import a_study
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

CSV = b"a,b\n1,2\n2,1\n3,3\n"
NOTE = "zq-note"
KEPT = ("log", "shared", "ledger", "replies", "receipts", "queries", "revisions", "entries")


@pytest.fixture
def curator(tmp_path):
    made = InProcessCurator(tmp_path)
    made.tokens["measurer"] = made.context.authentication.issue("measurer", "measurer", days=90)[0].text
    yield made
    made.check()
    made.close()


def study(dataset):
    people = wire.InboxMeasurement(question="How much?", direction="maximize", shown=["a"])
    return a_study(dataset_id=dataset, columns="ab", upper=4.0, measurement=people)


def answered(curator, identity, row):
    query = curator.ask(identity, [row])
    values = [{"measurement_id": curator.items(query)[0]["id"], "value": 1.5}]
    curator.call("measurer", "POST", f"/v1/queries/{query}:answer", json={"values": values, "note": NOTE})
    return query


def count(curator, table):
    with curator.context.database.read() as db:
        return db.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one()


def notes(curator):
    with curator.context.database.read() as db:
        return db.exec_driver_sql("SELECT note FROM entries ORDER BY seq").scalars().all()


def swept(curator):
    with curator.context.database.read() as db:
        return [record.get("details", {}) for record in audit_log.of_kind(db, "retention.swept")]


def test_old_notes_go_once_a_day_and_the_entries_still_verify(curator, tmp_path):
    identity = curator.open(CSV, study)
    answered(curator, identity, 0)
    keeps = Retention(curator.context, sweeps(Settings(data_dir=tmp_path / "data", retention_notes_days=30)))
    curator.later = timedelta(days=20)
    answered(curator, identity, 1)
    assert keeps.sweep()
    assert swept(curator) == [{"notes": 0}]
    curator.later = timedelta(days=31)
    before = {table: count(curator, table) for table in KEPT}
    assert keeps.sweep()
    assert not keeps.sweep()  # once a day
    assert notes(curator) == [None, NOTE]
    (last,) = swept(curator)[1:]
    assert (last["notes"], [seq for seq, _ in last["batches"]]) == (1, [1])
    assert {table: count(curator, table) - n for table, n in before.items() if count(curator, table) != n} == {"log": 1}
    curator.check()
    curator.later = timedelta(days=60)
    assert keeps.sweep()
    assert notes(curator) == [None, None]


def test_a_sweep_under_a_clock_that_was_years_ahead_keeps_none_of_the_later_ones_away(curator, tmp_path):
    keeps = Retention(curator.context, sweeps(Settings(data_dir=tmp_path / "data", retention_sessions_days=30)))
    curator.later = timedelta(days=1_000)
    assert keeps.sweep()
    curator.later = timedelta(days=0)
    assert [keeps.sweep(), keeps.sweep()] == [True, False]
    curator.later = timedelta(days=1)
    assert keeps.sweep()


def test_ended_sessions_and_forecasts_go_and_nothing_does_unless_it_is_set(curator, tmp_path):
    def add(db):
        users.add_user(db, curator.context, "olga", "owner", passwords.hash_of("correct horse battery", "minimal"))
        user = db.exec_driver_sql("SELECT id FROM users").scalar_one()
        for number, ended in enumerate(("2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z")):
            values = {"id": bytes([number]), "user": user, "ended": ended}
            db.execute(text("INSERT INTO sessions VALUES (:id, :user, :ended, :ended, :ended, NULL)"), values)

    curator.context.database.write(add)
    assert Retention(curator.context, sweeps(Settings(data_dir=tmp_path / "data"))).sweep()
    assert count(curator, "sessions") == 2
    assert swept(curator) == [{}]
    curator.later = timedelta(days=2)
    keeps = {"retention_sessions_days": 1, "retention_forecasts_days": 1, "retention_notices_days": 1}
    assert Retention(curator.context, sweeps(Settings(data_dir=tmp_path / "data", **keeps))).sweep()
    assert count(curator, "sessions") == 1
    assert swept(curator)[1:] == [{"sessions": 1, "notices": 0, "forecasts": 0}]
