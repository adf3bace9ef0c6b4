"""Pending uploads: a file stays until its owner has decided, and nothing of it is anywhere else."""

import asyncio
import gzip
import io
import json
import os
import threading
from contextlib import suppress
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import LogBroken, StateConflict
from curator_service.cli import PROGRAM
from curator_service.datasets.uploads import PENDING_MAX
from curator_service.settings import Settings
from service_kit.store import audit_log
from tests.curator_service.budget.file_of_records import spec_of
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.interventions import act_before, fail_at

CANARY = "Zanzibar-4711"
CSV = f",a,b,town,y\n0,1,2,{CANARY},1\n1,2,,Rome,2\n2,3,1,Rome,3\n3,0,3,Oslo,2\n4,4,,Rome,1\n5,1,0,Oslo,3\n".encode()
COLUMNS = [
    {"column": "a"},
    {"column": "b", "missing": "leave_out"},
    {"column": "town", "kind": "one_hot", "values": ["Oslo", "Rome"], "missing": "fill", "fill": 0},
    "y",
]


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def curator(folder):
    made = InProcessCurator(folder)
    made.tokens["owner"] = made.context.authentication.issue("owner", "o", days=3)[0].text
    yield made
    made.curator.close()
    made.close()


def upload(curator, content=CSV, name="towns.csv", **more):
    return curator.send("owner", "POST", "/v1/uploads", files={"file": (name, content)}, **more)


def register(curator, identity, columns=COLUMNS, key=None, **more):
    data = {"name": "towns", "upload": identity, "columns": json.dumps(columns), **more}
    return curator.send("owner", "POST", "/v1/datasets", data=data, key=key)


def discard(curator, identity, key=None):
    return curator.send("owner", "POST", f"/v1/uploads/{identity}:discard", key=key)


def pending(folder):
    return sorted(path.name for path in (folder / "data" / "files" / "pending").iterdir())


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("columns", "field", "says"),
    [
        ('["a"', "columns", "must be a JSON list"),
        ('"a"', "columns", "must be a JSON list"),
        ('["a", 5]', "columns.1", "an object"),
        ('["a", ""]', "columns.1", "must not be empty"),
        ('["a", {"column": "b", "kind": "dates"}]', "columns.1.kind", 'did you mean "date"?'),
        ('["a", {"kind": "date"}]', "columns.1.column", "is missing"),
        ('["a", {"column": "b", "kind": "date", "since": "today"}]', "columns.1.since", "must be a date such as"),
        ('["a", {"column": "b", "missing": "fill"}]', "columns.1", "fill belongs to missing fill"),
        ('["a", {"column": "b", "gaps": "fill"}]', "columns.1.gaps", "is no field here"),
    ],
)
def test_a_choice_that_cannot_be_right_is_named_with_its_fault(curator, columns, field, says):
    """Found by hand: whatever was wrong, the error said: for example ["age", "stay"]."""
    identity = upload(curator).json()["id"]
    sent = {"name": "towns", "upload": identity, "columns": columns}
    refused = curator.send("owner", "POST", "/v1/datasets", data=sent)
    (fault,) = refused.json()["errors"]
    assert (refused.status_code, fault["field"]) == (422, field)
    assert says in fault["message"]


def test_a_file_waits_through_a_restart_until_it_is_registered_and_is_gone_then(curator, folder):
    identity = upload(curator).json()["id"]
    assert pending(folder) == [f"{identity}.data", f"{identity}.json"]
    curator.reopen()
    seen = curator.call("owner", "GET", f"/v1/uploads/{identity}")
    assert [(c["name"], c["holds"], c["missing"]) for c in seen["columns"]] == [
        ("column_1", "number", 0), ("a", "number", 0), ("b", "number", 2), ("town", "text", 0), ("y", "number", 0),
    ]  # fmt: skip
    assert curator.call("owner", "GET", "/v1/uploads")["uploads"] == [seen]

    wrong = register(curator, identity, ["a", "tawn"])
    assert (wrong.status_code, pending(folder)) == (422, [f"{identity}.data", f"{identity}.json"])
    assert 'did you mean \\"town\\"' in wrong.text

    made = register(curator, identity, key="k")
    assert made.status_code == 201, made.text
    view = made.json()
    assert [c["name"] for c in view["columns"]] == ["a", "b", "town=Oslo", "town=Rome", "y"]
    assert (view["rows"], view["rows_left_out"], view["dropped"]) == (4, 2, ["column_1"])
    by_hand = [[1, 2, 0, 0, 1], [3, 1, 0, 1, 3], [0, 3, 1, 0, 2], [1, 0, 1, 0, 3]]
    np.testing.assert_array_equal(curator.curator.vault.dataset(view["id"]), by_hand)
    assert curator.curator.vault.numbers(view["id"]).tolist() == [1, 3, 4, 6]
    assert view["reading"]["columns"][2]["values"] == ["Oslo", "Rome"]

    assert pending(folder) == []
    assert register(curator, identity, key="k").content == made.content
    assert register(curator, identity, key="another").status_code == 404
    curator.check()
    curator.curator.close()


def test_a_pending_file_is_its_owner_s_alone(curator):
    identity = upload(curator).json()["id"]
    other = curator.context.authentication.issue("owner", "another", days=1)[0].text
    own, curator.tokens["owner"] = curator.tokens["owner"], other
    assert curator.call("owner", "GET", "/v1/uploads")["uploads"] == []
    assert curator.send("owner", "GET", f"/v1/uploads/{identity}").status_code == 404
    assert curator.send("owner", "POST", f"/v1/uploads/{identity}:discard").status_code == 404
    assert register(curator, identity).status_code == 404
    curator.tokens["owner"] = own
    assert curator.send("owner", "GET", f"/v1/uploads/{identity}").status_code == 200


@pytest.mark.parametrize("bad", ["upl_0000000000000000", "..", "upl_x", "ds_0000000000000000"])
def test_an_upload_that_is_not_there_is_not_found(curator, bad):
    assert curator.send("owner", "GET", f"/v1/uploads/{bad}").status_code in (404, 405)
    assert register(curator, bad).status_code == 404


def test_a_pending_file_is_deleted_after_a_day_or_when_it_is_discarded(curator, folder):
    first, second = (upload(curator, name=name).json()["id"] for name in ("a.csv", "b.csv"))
    assert curator.call("owner", "POST", f"/v1/uploads/{first}:discard", key="k") == {"id": first}
    assert curator.call("owner", "POST", f"/v1/uploads/{first}:discard", key="k") == {"id": first}
    assert pending(folder) == [f"{second}.data", f"{second}.json"]
    curator.later = timedelta(hours=23, minutes=59)
    assert curator.send("owner", "GET", f"/v1/uploads/{second}").status_code == 200
    curator.later = timedelta(hours=24, seconds=5)
    assert curator.send("owner", "GET", f"/v1/uploads/{second}").status_code == 404
    curator.curator.uploads.sweep()
    assert pending(folder) == []


def test_what_a_crash_left_of_an_upload_is_deleted_at_the_start(curator, folder):
    whole = upload(curator).json()["id"]
    stored = folder / "data" / "files" / "pending"
    for name in ("upl_0123456789abcdef.data", "upl_1123456789abcdef.partial", f"{whole}.partial"):
        (stored / name).write_bytes(CSV)
    curator.reopen()
    assert pending(folder) == [f"{whole}.data", f"{whole}.json"]


def crash_before_the_file_is_deleted(curator, monkeypatch, act):
    """The act is recorded, and its file stays."""
    with monkeypatch.context() as patch:
        fail_at(patch, curator.curator.vault.pending, "drop", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            act()


@pytest.mark.parametrize("act", [discard, register])
def test_a_retry_deletes_the_file_whose_end_was_recorded_before_a_crash(curator, folder, monkeypatch, act):
    identity = upload(curator).json()["id"]
    crash_before_the_file_is_deleted(curator, monkeypatch, lambda: act(curator, identity, key="k"))
    assert pending(folder) == [f"{identity}.data", f"{identity}.json"]
    assert act(curator, identity, key="k").is_success
    assert pending(folder) == []


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("note", [b"", b"{", b"null", b"\xff", b"{}", b'{"owner": "o", "view": {}}'])
def test_a_note_that_does_not_parse_is_deleted_with_its_file(curator, folder, note):
    """The service starts; the other files stay."""
    whole, broken = (upload(curator, name=name).json()["id"] for name in ("a.csv", "b.csv"))
    (folder / "data" / "files" / "pending" / f"{broken}.json").write_bytes(note)
    curator.reopen()
    assert pending(folder) == [f"{whole}.data", f"{whole}.json"]


def test_a_note_is_durable_before_it_has_its_name(curator, folder, monkeypatch):
    """Else a crash could leave the name with nothing in it."""
    durable = set()
    act_before(monkeypatch, os, "fsync", lambda each: durable.add(os.fstat(each).st_ino))
    upload(curator)
    stored = folder / "data" / "files" / "pending"
    assert {path.stat().st_ino for path in stored.iterdir()} <= durable


def test_a_file_that_is_gone_while_it_is_registered_is_not_found(curator, folder):
    identity = upload(curator).json()["id"]
    files = curator.curator.vault.pending
    (folder / "data" / "files" / "pending" / f"{identity}.data").unlink()
    assert identity in files.notes()
    assert register(curator, identity).status_code == 404


def test_only_so_many_files_of_an_owner_wait(curator, folder):
    for number in range(PENDING_MAX):
        assert upload(curator, f"a\n{number}\n".encode()).status_code == 201
    refused = upload(curator)
    assert (refused.status_code, len(pending(folder))) == (409, 2 * PENDING_MAX)
    curator.tokens["owner"] = curator.context.authentication.issue("owner", "another", days=1)[0].text
    assert upload(curator).status_code == 201


def test_only_so_many_bytes_of_all_owners_wait(curator, folder):
    """The file that fills the room has no content on the disk."""
    limit = Settings(data_dir=folder).upload_limit_bytes
    stored = folder / "data" / "files" / "pending"
    upload(curator)
    with next(stored.glob("*.data")).open("r+b") as file:
        file.truncate(PENDING_MAX * limit - len(CSV))
    curator.tokens["owner"] = curator.context.authentication.issue("owner", "another", days=1)[0].text
    assert upload(curator, CSV + b"6,1,1,Oslo,2\n").status_code == 409
    assert upload(curator).status_code == 201
    assert len(pending(folder)) == 4


def test_uploads_at_once_do_not_pass_the_limit_together(curator, folder, monkeypatch):
    for number in range(PENDING_MAX - 1):
        upload(curator, f"a\n{number}\n".encode())
    uploads = curator.curator.uploads
    _, kept = curator.curator.vault.pending.notes().popitem()
    note, seen = json.loads(kept), []
    view = wire.PendingUpload.model_validate_json(json.dumps(note["view"]))

    def let_another_come(identity, content, note):
        other = threading.Thread(target=store, args=("upl_0000000000000001",))
        other.start()
        other.join(0.2)  # without the lock it would be through
        seen.append(other)

    def store(identity):
        with suppress(StateConflict):
            uploads._store(note, view.model_copy(update={"id": identity}), io.BytesIO(CSV))

    act_before(monkeypatch, curator.curator.vault.pending, "keep", let_another_come)
    store("upl_0000000000000000")
    for other in seen:
        other.join()
    assert len(pending(folder)) == 2 * PENDING_MAX


def test_the_same_request_keeps_one_file(curator, folder):
    first, second = upload(curator, key="k"), upload(curator, key="k")
    assert first.content == second.content
    assert len(pending(folder)) == 2
    assert upload(curator, CSV + b"6,1,1,Oslo,2\n", key="k").status_code == 422


def test_a_broken_file_is_not_kept(curator, folder):
    assert upload(curator, b"a,b\n1\n").status_code == 422
    assert upload(curator, b"PAR1", "x.parquet").status_code == 422
    assert pending(folder) == []


def test_nothing_of_a_file_is_in_the_log_the_database_or_a_backup(curator, folder):
    """Only in the pending file and its note; a control finds it there."""
    identity = upload(curator).json()["id"]
    assert CANARY in curator.send("owner", "GET", f"/v1/uploads/{identity}").text
    refused = register(curator, identity, ["a", "town"])
    assert (refused.status_code, refused.json()["errors"][-1]["cell"]) == (422, CANARY)
    assert CANARY not in refused.json()["detail"]
    with curator.context.database.read() as db:
        log = json.dumps([entry.record for entry in audit_log.walk(db)])
    assert "upload.kept" in log
    holding = {
        path.relative_to(folder / "data").as_posix()
        for path in (folder / "data").rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    }
    assert holding == {f"files/pending/{identity}.data", f"files/pending/{identity}.json"}
    curator.call("owner", "POST", f"/v1/uploads/{identity}:discard")
    assert pending(folder) == []


def test_pending_files_are_readable_by_the_service_s_user_alone(curator, folder):
    upload(curator)
    stored = folder / "data" / "files" / "pending"
    assert {oct(path.stat().st_mode & 0o777) for path in stored.iterdir()} == {"0o600"}
    assert oct(stored.stat().st_mode & 0o777) == "0o700"


def held(folder, upload_id):
    """The pending file and its note, opened before they are deleted."""
    stored = folder / "data" / "files" / "pending"
    return [(stored / f"{upload_id}.{kind}").open("rb") for kind in ("data", "json")]


@pytest.mark.parametrize("act", [discard, register])
def test_what_a_pending_file_held_is_overwritten_when_it_goes_as_erased_data_is(curator, folder, act):
    upload_id = upload(curator).json()["id"]
    files = held(folder, upload_id)
    assert all(CANARY.encode() in file.read() for file in files)
    assert act(curator, upload_id).is_success
    for file in files:
        file.seek(0)
        assert file.read().strip(b"\0") == b""


def test_a_file_that_is_discarded_while_it_is_registered_is_read_as_it_was(curator, folder):
    """What is read is never the zeros of a deletion."""
    upload_id = upload(curator).json()["id"]
    owner = asyncio.run(curator.context.authentication.authenticate(f"Bearer {curator.tokens['owner']}"))
    with curator.curator.uploads.opened(owner, upload_id) as (_, file):
        assert discard(curator, upload_id).is_success
        assert (file.read(), pending(folder)) == (CSV, [])


def test_a_packed_file_is_the_same_file(curator):
    """So its records are charged to one account, packed or not."""
    files = {"a.csv": CSV, "a.csv.gz": gzip.compress(CSV)}
    data = {"name": "n", "columns": '["a", "y"]'}
    plain, packed = (curator.call("owner", "POST", "/v1/datasets", files={"file": f}, data=data) for f in files.items())
    assert plain["sha256"] == packed["sha256"]
    identity = upload(curator, gzip.compress(CSV), "a.csv.gz").json()["id"]
    same = curator.call("owner", "GET", f"/v1/uploads/{identity}")["registered_as"]
    assert same == [{"id": plain["id"], "name": "n"}, {"id": packed["id"], "name": "n"}]


def test_the_log_has_the_digest_of_how_a_file_was_read(curator):
    view = register(curator, upload(curator).json()["id"]).json()
    reading = wire.FileReading.model_validate_json(json.dumps(view["reading"])).model_dump_json()
    with curator.context.database.read() as db:
        details = [e.record["details"] for e in audit_log.walk(db) if e.record["kind"] == "dataset.registered"]
    assert [d["reading_sha256"] for d in details] == [sha256(reading.encode())]


def test_a_reading_that_is_changed_in_the_table_is_found_against_the_log(curator):
    identity = register(curator, upload(curator).json()["id"]).json()["id"]
    curator.check()
    with curator.context.database.read() as db:
        assert f"files/{identity}.numbers.npy" in PROGRAM.files(db)  # a backup has it
    for change in ("replace(reading, 'Oslo', 'Rome2')", "NULL"):
        sql = f"UPDATE datasets SET reading = {change} WHERE id = '{identity}'"
        curator.context.database.write(lambda db, sql=sql: db.exec_driver_sql(sql))
        with pytest.raises(LogBroken, match="how it was read"):
            curator.check()


# --- records that keep their numbers ---------------------------------------------------------------------


def open_study(curator, dataset, columns, name):
    features = [wire.Feature(column=column, lower=0.0, upper=4.0) for column in columns]
    study = curator.call("owner", "POST", "/v1/studies", json=spec_of(dataset, features=features))["id"]
    curator.call("owner", "POST", f"/v1/studies/{study}:release")
    return curator.grant(study, name)


def candidate_of(curator, study, record):
    with curator.context.database.read() as db:
        released = curator.curator.released.of(db, study)
    return next(row for row in range(released.n) if released.record(row) == record)


def query(curator, study, who, record):
    body = {"rows": [{"row": candidate_of(curator, study, record), "plays": 1}]}
    return curator.call(who, "POST", f"/v1/studies/{study}/queries", json=body)


def test_answers_about_a_record_add_up_over_registrations_that_leave_out_different_rows(curator):
    whole = curator.register(CSV, columns='["a", "y"]')
    fewer = register(curator, upload(curator).json()["id"]).json()["id"]
    first, second = open_study(curator, whole, ["a"], "m1"), open_study(curator, fewer, ["a", "b"], "m2")
    query(curator, first, "m1", 5)  # left out of the second
    query(curator, first, "m1", 6)
    query(curator, second, "m2", 6)
    for dataset in (whole, fewer):
        account = curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")
        assert (account["epsilon"], account["everyone_epsilon"], account["worst_record"]) == ("3", "2", 6)
        assert account["losses"] == [*({"epsilon": e, "units": n} for e, n in (("3", 1), ("2.5", 1), ("2", 4)))]
    curator.check()


def test_how_many_rows_were_left_out_is_not_in_the_account_that_auditors_read(curator):
    fewer = register(curator, upload(curator).json()["id"]).json()["id"]
    open_study(curator, fewer, ["a", "b"], "m")
    assert curator.call("owner", "GET", f"/v1/datasets/{fewer}/account")["losses"] == [{"epsilon": "1", "units": 4}]


def test_a_record_is_withheld_by_its_number_in_the_file(curator):
    fewer = register(curator, upload(curator).json()["id"]).json()["id"]
    study = open_study(curator, fewer, ["a", "b"], "m")
    path = f"/v1/datasets/{fewer}:withhold"
    assert curator.send("owner", "POST", path, json={"record": 2}).status_code == 422  # it has a gap
    assert curator.call("owner", "POST", path, json={"record": 6})["records"] == 1
    assert query(curator, study, "m", 6)["answers"] == []
    assert len(query(curator, study, "m", 4)["answers"]) == 1


def test_persons_and_gaps_together_keep_the_numbers_of_the_file(curator):
    csv = b"who,a\n" + b"".join(b"P%d,%s\n" % (i % 2, b"" if i % 3 == 0 else b"%d" % i) for i in range(12))
    columns = json.dumps([{"column": "a", "missing": "leave_out"}])
    data = {"name": "n", "columns": columns, "person": "who", "rows_per_person": "2"}
    view = curator.call("owner", "POST", "/v1/datasets", files={"file": ("p.csv", csv)}, data=data)
    numbers, values = curator.curator.vault.numbers(view["id"]), curator.curator.vault.dataset(view["id"])
    assert (view["rows"], view["rows_left_out"], view["person_rows_dropped"]) == (4, 4, 4)
    assert (values[:, 0] == numbers - 1).all()


def test_a_report_names_the_public_inputs_of_a_file_and_not_how_many_rows_were_left_out(curator):
    view = register(curator, upload(curator).json()["id"]).json()
    signed = curator.call("owner", "POST", f"/v1/datasets/{view['id']}:report")
    assert [(c["column"], c["kind"], c["missing"], c["values"]) for c in signed["report"]["dataset"]["encoded"]] == [
        ("b", "number", "leave_out", None),
        ("town", "one_hot", "fill", ["Oslo", "Rome"]),
    ]
    assert "rows_left_out" not in json.dumps(signed)


def test_a_report_says_that_neighbours_have_the_same_gaps_where_rows_were_left_out(curator):
    whole = curator.register(CSV, columns='["a", "y"]')
    fewer = register(curator, upload(curator).json()["id"]).json()["id"]
    said = {}
    for dataset in (whole, fewer):
        study = open_study(curator, dataset, ["a"], f"m of {dataset}")
        report = curator.call("owner", "POST", f"/v1/studies/{study}:report")["report"]
        said[dataset] = report["studies"][0]["relation"]
    same = " Both files have the same gaps (a cell that is missing, unreadable, or outside the list of categories) in b"
    assert said[fewer] == f"{said[whole]}{same}."


# --- what bounds clip ------------------------------------------------------------------------------------


def test_what_bounds_clip_is_counted_for_the_owner_and_kept_nowhere(curator):
    rng = np.random.default_rng(1)
    values = np.round(rng.normal(size=(40_000, 2)), 3)
    dataset = curator.register("a,b\n" + "\n".join(f"{a!r},{b!r}" for a, b in values.tolist()) + "\n")
    with curator.context.database.read() as db:
        before = sum(1 for _ in audit_log.walk(db))
    largest = float(values[:, 0].max())
    body = {"columns": [{"column": "b", "outer": [-0.5, 0.25]}, {"column": "a", "outer": [-1.0, largest]}]}
    seen = curator.call("owner", "POST", f"/v1/datasets/{dataset}:clips", json=body)
    a, b = values.T
    assert seen["columns"] == [
        {
            "column": "b",
            "below": (b < -0.5).sum(),
            "above": (b > 0.25).sum(),
            "is_smallest": False,
            "is_largest": False,
        },
        {"column": "a", "below": sum(a < -1), "above": 0, "is_smallest": False, "is_largest": True},
    ]
    assert "Choosing by this leaks" in seen["caution"]
    with curator.context.database.read() as db:
        assert sum(1 for _ in audit_log.walk(db)) == before
    unknown = {"columns": [{"column": "z", "outer": [0, 1]}]}
    wrong = curator.send("owner", "POST", f"/v1/datasets/{dataset}:clips", json=unknown)
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "columns.0.column")


def test_an_owner_is_told_that_a_category_is_not_hidden(curator):
    dataset = register(curator, upload(curator).json()["id"]).json()["id"]
    features = [wire.Feature(column=c, lower=0.0, upper=1.0) for c in ("town=Oslo", "town=Rome")]
    seen = curator.call("owner", "POST", "/v1/studies:check", json=spec_of(dataset, features=features))
    assert [c["code"] for c in seen["record_cautions"] if c["code"].startswith("category")] == ["category_not_hidden"]
    hidden = [feature.model_copy(update={"hidden_change": 1.42}) for feature in features]
    seen = curator.call("owner", "POST", "/v1/studies:check", json=spec_of(dataset, features=hidden))
    assert [c["code"] for c in seen["record_cautions"] if c["code"].startswith("category")] == []


def test_the_whole_declaration_of_a_file_is_stored_with_its_dataset(curator):
    content = "größe\ty\n1,5\t2\nk. A.\t-999\n2,5\t3\n".encode("cp1252")
    columns = [{"column": "größe", "missing": "leave_out"}, {"column": "y", "missing": "leave_out"}]
    declared = {"encoding": "windows-1252", "separator": "\t", "decimal": ",", "missing_values": '["k. A.", "-999"]'}
    data = {"name": "n", "columns": json.dumps(columns), **declared}
    view = curator.call("owner", "POST", "/v1/datasets", data=data, files={"file": ("t.tsv", content)})
    reading = view["reading"] | {"missing_values": json.dumps(view["reading"]["missing_values"])}
    assert {name: reading[name] for name in declared} == declared
    assert (view["rows"], view["rows_left_out"], view["columns"][0]["maximum"]) == (2, 1, 2.5)
    report = curator.call("owner", "POST", f"/v1/datasets/{view['id']}:report")["report"]
    assert [choice["missing_values"] for choice in report["dataset"]["encoded"]] == [["k. A.", "-999"]] * 2
    wrong = curator.send(
        "owner", "POST", "/v1/datasets", data={"name": "n", "missing_values": "?"}, files={"file": ("t.csv", b"a\n1\n")}
    )
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "missing_values")


def test_a_file_is_told_by_its_first_bytes_whatever_its_name_is(curator):
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1.0], "__index_level_0__": [7]}), file)
    for name, content in {"t.csv": file.getvalue(), "t.csv.gz": gzip.compress(file.getvalue())}.items():
        data = {"name": "n", "columns": '["a"]'}
        stored = curator.call("owner", "POST", "/v1/datasets", data=data, files={"file": (name, content)})
        assert (stored["reading"]["separator"], stored["columns"][0]["maximum"]) == (None, 1.0)
        view = curator.call("owner", "GET", f"/v1/uploads/{upload(curator, content, name).json()['id']}")
        assert [column["unnamed"] for column in view["columns"]] == [False, True]
        assert [choice["column"] for choice in view["reading"]["columns"]] == ["a"]


def test_a_refused_cell_is_shown_to_the_owner_and_is_in_no_log(curator, folder, capfd, caplog):
    caplog.set_level("DEBUG")
    reply = curator.send(
        "owner", "POST", "/v1/datasets", data={"name": "n"}, files={"file": ("t.csv", b"a\n1\n5%4711\n")}
    )
    fault = reply.json()["errors"][0]
    assert (fault["cell"], fault["row"], "4711" in reply.json()["detail"]) == ("5%4711", 2, False)
    question = curator.send(
        "owner", "POST", "/v1/datasets", data={"name": "n"}, files={"file": ("t.csv", b"a;b\n4.711;1\n")}
    )
    assert question.json()["errors"][0]["readings"][0]["cell"] == "4.711"
    stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    logged = "".join(capfd.readouterr()) + caplog.text + stored.decode(errors="replace")
    assert "/v1/datasets" in logged  # the control: requests are logged
    assert "4711" not in logged
    assert "4.711" not in logged
