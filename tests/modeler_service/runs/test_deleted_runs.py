"""What is left of a run that was deleted, and what is not."""

import json

import pytest

from blindopt.audit.merkle_log import Exchange, LogBroken, sha256
from blindopt.errors import NotFound, StateConflict
from modeler_service import store
from modeler_service.integrity.log_checks import findings
from modeler_service.runs.query_keys import is_run_query
from service_kit.store import audit_log
from tests.modeler_service.in_process_modeler import modeler_at_work, request_of, start
from tests.modeler_service.stored_trials import ANSWER, AT, chosen_trial


def digest_of(row):
    """Of the body as every version has sent it."""
    return sha256(f'{{"rows":[{{"row":{row},"plays":1}}]}}'.encode())


def ended_run(modeler, release):
    """A stopped run: trial 1 asked row 7 and was answered, trial 2 asked row 8, and no reply to it came."""
    run = start(modeler)
    modeler.stop(request_of(modeler), run)
    exchange = Exchange("grt_0123456789abcdef", None, "std_0123456789abcdef", "r", "POST", "/v1", f"{run}:1",
                        digest_of(7), 201, sha256(b"reply"), False)  # fmt: skip

    def work(db):
        store.change_run(db, run, study=json.dumps({"release_sha256": release}))
        audit_log.append(db, "exchange", actor=run, now=modeler.context.clock(), exchange=exchange.body)
        for number, row in ((1, 7), (2, 8)):
            store.add_trial(db, chosen_trial(run, number, row=row))
        store.answer_trial(db, run, 1, ANSWER, answered_at=AT)
        store.add_version(db, run, 2, 0, at=AT, reply=b"pending")

    modeler.context.database.write(work)
    return run


def test_a_witness_knows_after_a_deletion_what_a_run_asked_and_nothing_else(tmp_path):
    with modeler_at_work(tmp_path, work=False) as modeler:
        run = ended_run(modeler, "a" * 64)
        own = [(f"{run}:1", digest_of(7)), (f"{run}:2", digest_of(8)), (f"{run}:2", None)]
        never = [(f"{run}:1", digest_of(9)), (f"{run}:2", digest_of(7)), (f"{run}:3", None), ("run_0:1", None)]
        for is_deleted in (False, True):
            with modeler.context.database.read() as db:
                assert [is_run_query(db, *each) for each in own] == [True] * 3
                assert [is_run_query(db, *each) for each in never] == [False] * 4
            if not is_deleted:
                modeler.delete(request_of(modeler), run)
        with pytest.raises(NotFound):
            modeler.run(run)


def test_what_is_stored_of_a_run_goes_with_it_and_versions_stay_append_only(tmp_path):
    with modeler_at_work(tmp_path, work=False) as modeler:
        folder = tmp_path / "candidates"
        folder.mkdir(exist_ok=True)
        run, other = ended_run(modeler, "a" * 64), ended_run(modeler, "b" * 64)
        for name in "ab":
            (folder / f"{name * 64}.npy").touch()
        running = start(modeler)
        with pytest.raises(StateConflict):
            modeler.delete(request_of(modeler), running)
        request = request_of(modeler)
        deleted = modeler.delete(request, run)
        assert modeler.delete(request, run).body == deleted.body
        assert [path.stem[0] for path in folder.iterdir()] == ["b"]
        with modeler.context.database.read() as db:
            assert (store.version_page(db, run), len(store.version_page(db, other))) == ([], 1)
            assert {run} == {r["details"]["run_id"] for r in audit_log.of_kind(db, "run.deleted")}
        modeler.context.database.check_writable()  # with every trigger
        with pytest.raises(Exception, match="IntegrityError"):
            modeler.context.database.write(lambda db: db.exec_driver_sql("DELETE FROM versions"))
        (folder / f"{'a' * 64}.npy").touch()  # a crash before the file was deleted
    with modeler_at_work(tmp_path, work=False):
        assert [path.stem[0] for path in folder.iterdir()] == ["b"]


def check(db, records):
    """Raise the first finding."""
    for finding in findings(db, records):
        raise finding


def test_a_run_that_is_missing_without_a_record_of_its_deletion_is_a_fault(tmp_path):
    with modeler_at_work(tmp_path, work=False) as modeler:
        run = ended_run(modeler, "a" * 64)

        def faults():
            with modeler.context.database.read() as db:
                return check(db, [entry.record for entry in audit_log.walk(db)])

        modeler.context.database.write(lambda db: store.delete_run(db, run))
        with pytest.raises(LogBroken, match="lacks the answer"):
            faults()
        run = ended_run(modeler, "a" * 64)
        record = {"kind": "run.deleted", "actor": "cli", "details": {"run_id": run}}
        with modeler.context.database.read() as db, pytest.raises(LogBroken, match="was deleted"):
            check(db, [*(entry.record for entry in audit_log.walk(db)), record])
