"""Drafts and datasets are deleted where nothing that stays depends on them; note and tags stay with owners."""

import json

import pytest
from sqlalchemy import inspect

from blindopt.errors import LogBroken
from curator_service.integrity import log_checks
from service_kit.store import audit_log
from tests.curator_service.budget.file_of_records import FileOfRecords, spec_of

SECRET = "zq-note-of-the-owner"


@pytest.fixture
def file(tmp_path):
    file = FileOfRecords(tmp_path)
    yield file
    file.in_process.check()  # as `audit verify` does
    file.in_process.close()


def call(file, method, path, role="owner", **sent):
    return file.in_process.call(role, method, path, **sent)


def refused(file, path):
    reply = file.in_process.send("owner", "POST", path)
    assert reply.status_code == 409, reply.text
    return reply.json()["detail"]


def draft(file, **more):
    return call(file, "POST", "/v1/studies", json=spec_of(file.dataset, **more))["id"]


def records(file):
    with file.in_process.context.database.read() as db:
        return [entry.record for entry in audit_log.walk(db)]


def files_of(file, dataset):
    return [path.name for path in (file.in_process.curator.vault.scratch.parent).glob(f"{dataset}*")]


def stored(file, text):
    """Whether the database has a text anywhere that it can be read."""
    with file.in_process.context.database.read() as db:
        tables = inspect(db).get_table_names()
        rows = [row for table in tables for row in db.exec_driver_sql(f"SELECT * FROM {table}").all()]
    return any(text in (cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell))
               for row in rows for cell in row)  # fmt: skip


def test_a_draft_goes_with_its_grants_and_what_replies_said_of_it_and_the_log_verifies(file):
    study = draft(file, name=SECRET)
    assert stored(file, SECRET)
    file.in_process.grant(study)
    assert "use it" in refused(file, f"/v1/datasets/{file.dataset}:delete")
    first = file.in_process.send("owner", "POST", f"/v1/studies/{study}:delete", key="once")
    assert (first.status_code, first.json()["id"]) == (200, study)
    assert file.in_process.send("owner", "POST", f"/v1/studies/{study}:delete", key="once").content == first.content
    assert file.in_process.send("owner", "POST", f"/v1/studies/{study}:delete").status_code == 404
    assert file.in_process.send("owner", "GET", f"/v1/studies/{study}").status_code == 404
    assert file.in_process.send("modeler", "GET", f"/v1/studies/{study}").status_code == 401
    assert not stored(file, SECRET)
    file.in_process.context.database.check_writable()  # with every trigger
    with file.in_process.context.database.read() as db, pytest.raises(LogBroken, match="missing"):
        log_checks.check(db, [r for r in records(file) if r["kind"] != "study.deleted"])


def test_what_the_ledger_knows_of_is_archived_and_not_deleted(file):
    refusing, released = draft(file), draft(file)
    call(file, "PUT", f"/v1/datasets/{file.dataset}/account/caps", json={"epsilon": "0.5", "delta": None})
    assert file.in_process.send("owner", "POST", f"/v1/studies/{refusing}:release").status_code == 403
    assert "archive it instead" in refused(file, f"/v1/studies/{refusing}:delete")
    caps = {"epsilon": "9", "delta": None, "reason": "more", "raise_caps": True}
    call(file, "PUT", f"/v1/datasets/{file.dataset}/account/caps", json=caps)
    call(file, "POST", f"/v1/studies/{released}:release")
    assert "only a draft" in refused(file, f"/v1/studies/{released}:delete")
    assert "close it first" in refused(file, f"/v1/studies/{released}:archive")
    call(file, "POST", f"/v1/studies/{released}:close")
    for study in (released, refusing):
        assert call(file, "POST", f"/v1/studies/{study}:archive")["archived_at"]

    def ids(query):
        return [study["id"] for study in call(file, "GET", f"/v1/studies{query}")["studies"]]

    assert (ids("?archived=false"), ids("?archived=true"), ids("")) == ([], [refusing, released], [refusing, released])
    assert call(file, "POST", f"/v1/studies/{released}:unarchive")["archived_at"] is None
    detail = refused(file, f"/v1/datasets/{file.dataset}:delete")
    assert refusing in detail
    assert released in detail
    assert "Archive the dataset instead" in detail
    assert files_of(file, file.dataset)


BOUNDS = {"columns": [{"column": "a", "outer": [0.0, 8.0]}], "epsilon": "0.25"}


@pytest.mark.parametrize(("act", "body"), [("bounds", BOUNDS), ("withhold", {"record": 2})])
@pytest.mark.parametrize("public", [False, True], ids=["private", "the control: public"])
def test_a_dataset_that_alone_tells_who_lost_something_is_erased_and_not_deleted(act, body, public, tmp_path):
    file = FileOfRecords(tmp_path, public=public)
    call(file, "POST", f"/v1/datasets/{file.dataset}:{act}", json=body)
    if public:
        call(file, "POST", f"/v1/datasets/{file.dataset}:delete")
    else:
        assert "erase it instead" in refused(file, f"/v1/datasets/{file.dataset}:delete")
        assert files_of(file, file.dataset)
        again = file.register()
        call(file, "POST", f"/v1/datasets/{again}:delete")  # nothing was done on it
        for name in ("archive", "erase"):
            call(file, "POST", f"/v1/datasets/{file.dataset}:{name}")
        assert files_of(file, file.dataset) == []
    file.in_process.check()
    file.in_process.close()


def test_a_later_file_of_the_same_people_counts_what_they_lost_by_bounds_alone(file):
    """What a deletion would hide: the overlap, the sum and a withheld record."""
    call(file, "POST", f"/v1/datasets/{file.dataset}:bounds", json=BOUNDS)
    call(file, "POST", f"/v1/datasets/{file.dataset}:withhold", json={"record": 2})
    file.in_process.send("owner", "POST", f"/v1/datasets/{file.dataset}:delete")
    content = file.csv.decode() + "7,7,7\n"
    later = file.in_process.register(content, apart=False)
    assert call(file, "GET", f"/v1/datasets/{later}")["overlaps"] != []
    assert call(file, "GET", f"/v1/datasets/{later}/withheld")["withheld"][0]["record"] == 2
    assert file.decide(later, continues=[file.dataset]).status_code == 200
    assert file.account(later).epsilon == "0.25"


def test_a_file_keeps_its_caps_when_its_dataset_is_deleted(file):
    assert file.caps("2").status_code == 200
    gone, extreme = file.dataset, '"maximum"'
    assert stored(file, extreme)
    assert files_of(file, gone)
    drop = file.in_process.curator.vault.drop
    file.in_process.curator.vault.drop = lambda identity: None  # a crash right after the commit
    call(file, "POST", f"/v1/datasets/{gone}:delete")
    file.in_process.curator.vault.drop = drop
    assert files_of(file, gone)
    file.reopen()
    assert files_of(file, gone) == []
    assert not stored(file, extreme)
    for path in ("", "/account", "/bounds", "/withheld"):
        assert file.in_process.send("owner", "GET", f"/v1/datasets/{gone}{path}").status_code == 404
    assert call(file, "GET", "/v1/datasets")["datasets"] == []
    again = file.register()
    account = call(file, "GET", f"/v1/datasets/{again}/account")
    assert (account["account"], account["cap_epsilon"]) == (gone, "2")
    assert [r["dataset_id"] for r in account["registrations"]] == [again]
    file.in_process.check()
    with file.in_process.context.database.read() as db, pytest.raises(LogBroken, match="deleted datasets"):
        log_checks.check(db, [r for r in records(file) if r["kind"] != "dataset.deleted"])


def test_a_file_that_was_never_charged_is_forgotten(file):
    view = call(file, "GET", f"/v1/datasets/{file.dataset}")
    call(file, "POST", f"/v1/datasets/{file.dataset}:delete")
    assert files_of(file, file.dataset) == []
    assert not stored(file, view["sha256"])
    assert file.dataset in json.dumps(records(file))  # the log keeps what it recorded


def test_a_dataset_leaves_the_archive_unless_its_file_has_other_persons_since(tmp_path):
    file = FileOfRecords(tmp_path, fields={"person": "a", "rows_per_person": "1"})
    call(file, "POST", f"/v1/datasets/{file.dataset}:archive")
    assert [d["id"] for d in call(file, "GET", "/v1/datasets?archived=true")["datasets"]] == [file.dataset]
    assert call(file, "GET", "/v1/datasets?archived=false")["datasets"] == []
    assert call(file, "POST", f"/v1/datasets/{file.dataset}:unarchive")["state"] == "active"
    call(file, "POST", f"/v1/datasets/{file.dataset}:archive")
    other = file.register()
    assert other in refused(file, f"/v1/datasets/{file.dataset}:unarchive")
    call(file, "POST", f"/v1/datasets/{other}:delete")
    assert call(file, "POST", f"/v1/datasets/{file.dataset}:unarchive")["state"] == "active"
    file.in_process.check()
    file.in_process.close()


def test_note_and_tags_are_for_owners_alone(file):
    study = draft(file)
    labels = {"note": SECRET, "tags": [SECRET + "-tag"]}
    view = call(file, "PUT", f"/v1/studies/{study}/labels", json=labels)
    assert (view["note"], view["tags"]) == (SECRET, [SECRET + "-tag"])
    call(file, "POST", f"/v1/studies/{study}:release")
    file.in_process.grant(study)
    page = call(file, "GET", f"/v1/studies?tag={SECRET}-tag")
    assert ([s["id"] for s in page["studies"]], page["tags"]) == ([study], [SECRET + "-tag"])
    assert call(file, "GET", "/v1/studies?tag=other")["studies"] == []
    assert SECRET in json.dumps(call(file, "GET", f"/v1/studies/{study}"))
    seen = [call(file, "GET", f"/v1/studies/{study}{path}", "modeler") for path in ("", "/revisions")]
    seen += [call(file, "GET", "/v1/audit/entries", role) for role in ("owner", "modeler")]
    seen += [call(file, "GET", "/v1/accounts"), call(file, "POST", f"/v1/studies/{study}:report")]
    assert SECRET not in json.dumps([*seen, records(file)])
    for wrong in ({"tags": ["a", "a"]}, {"tags": ["a,b"]}, {"tags": [" a"]}, {"tags": ["x" * 31]},
                  {"tags": [str(i) for i in range(11)]}, {"note": "x" * 2_001}):  # fmt: skip
        assert file.in_process.send("owner", "PUT", f"/v1/studies/{study}/labels", json=wrong).status_code == 422
