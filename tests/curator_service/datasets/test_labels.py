"""Labels: the people who measure and the page of a record see the right one, and nobody else sees any."""

import csv
import hashlib
import io
import json
import logging
import random
from contextlib import closing
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blindopt import wire
from curator_service.datasets.labels import BLOCK, Labels
from curator_service.datasets.records import in_words
from tests import beside
from tests.curator_service.budget.file_of_records import FileOfRecords

N = 2 * BLOCK + 40
HEAD = ["patient", "sex", "grade", "born", "weight", "bed", "age"]
COLUMNS = [
    {"column": "patient", "kind": "label"},
    {"column": "sex", "kind": "one_hot", "values": ["female", "male"]},
    {"column": "grade", "kind": "codes", "values": ["mild", "severe"]},
    {"column": "born", "kind": "date", "date_format": "d.m.y"},
    {"column": "weight", "missing": "leave_out"},
    {"column": "bed", "kind": "label"},
    "age",
]
MADE_UP = {"part": "0", "upload_id": "upl_0123456789abcdef", "forecast_id": "fc_0123456789abcdef"}
MADE_UP |= {"tuning_id": "tun_0123456789abcdef", "message_id": "msg_0123456789abcdef"}


def rows_of(seed=5):
    """Rows of a clinic's table, of which some have no weight, as the file has them."""
    draw = random.Random(seed)
    return [
        {
            "patient": f"Zq label {draw.randrange(10**6):06d}-{i}",
            "sex": draw.choice(["female", "male"]),
            "grade": draw.choice(["mild", "severe"]),
            "born": f"{date(1940, 1, 1) + timedelta(days=draw.randrange(20_000)):%d.%m.%Y}",
            "weight": "" if i % 7 == 3 else str(draw.randrange(40, 120)),
            "bed": f"Wy label {draw.randrange(10**5):05d}",
            "age": str(draw.randrange(18, 90)),
        }
        for i in range(N)
    ]


def csv_of(rows):
    file = io.StringIO(newline="")
    csv.writer(file).writerows([HEAD, *([row[name] for name in HEAD] for row in rows)])
    return file.getvalue().encode()


ROWS = rows_of()


def clinic(folder, rows=ROWS, **fields):
    more = {"columns": json.dumps(COLUMNS)} | fields
    return FileOfRecords(folder, csv=csv_of(rows), fields=more)


def study_of(file, shown=("patient", "bed", "sex=female", "sex=male", "grade", "born", "age"), **more):
    features = [wire.Feature(column=column, lower=0.0, upper=200.0) for column in ("weight", "age")]
    outcome = wire.InboxMeasurement(question="How much?", direction="maximize", shown=list(shown), unit="mg")
    return file.study(measurement=outcome, features=features, answers=wire.NONE, **more)


@pytest.fixture
def file(tmp_path):
    file = clinic(tmp_path)
    yield file
    file.close()


def cells(texts):
    return {each["column"]: each["text"] for each in texts}


def as_in_the_file(item):
    """The row of the file that a spreadsheet shows at the item's row."""
    lines = list(csv.reader(io.StringIO(csv_of(ROWS).decode())))
    return dict(zip(HEAD, lines[item["file_row"] - 1], strict=True))


def test_inbox_sheet_and_record_page_show_the_labels_and_words_of_the_record_s_row(file):
    study = study_of(file)
    query = file.ask(study, *range(0, N // 2, 5)).json()["id"]
    items = file.in_process.items(query)
    assert len({item["file_row"] for item in items}) == len(items) > 50
    for item in items:
        row = as_in_the_file(item)
        assert item["record"] == item["file_row"] - 1
        assert cells(item["labels"]) == {"patient": row["patient"], "bed": row["bed"]}
        assert cells(item["in_words"]) == {name: row[name] for name in ("sex", "grade", "born", "age")}
    sheet = file.in_process.send("measurer", "GET", "/v1/inbox.csv").content.decode("utf-8-sig")
    lines = list(csv.DictReader(io.StringIO(sheet)))
    assert list(lines[0])[:4] == ["measurement_id", "label: patient", "label: bed", "shown: sex"]
    by_id = {item["id"]: item for item in items}
    assert {line["measurement_id"] for line in lines} == set(by_id)
    for line in lines:
        row = as_in_the_file(by_id[line["measurement_id"]])
        assert (line["label: patient"], line["label: bed"]) == (row["patient"], row["bed"])
        assert (line["shown: sex"], line["shown: born"], line["shown: age"]) == (row["sex"], row["born"], row["age"])
    page = file.in_process.call("owner", "POST", f"/v1/studies/{study}:open_record", json={"row": 11})
    assert cells(page["labels"] + page["in_words"]) == as_in_the_file(page)


def test_a_study_shows_the_labels_that_its_owner_ticked(file):
    study = study_of(file, shown=["bed", "age"])
    (item,) = file.in_process.items(file.ask(study, 3).json()["id"])
    assert cells(item["labels"]) == {"bed": as_in_the_file(item)["bed"]}
    hidden = study_of(file, shown=["age"])
    (item,) = file.in_process.items(file.ask(hidden, 3).json()["id"])
    assert item["labels"] == []


def test_records_of_persons_keep_their_labels(tmp_path):
    """Records are chosen at random of those of each person."""
    file = clinic(tmp_path, person="sex", rows_per_person="150", columns=json.dumps([COLUMNS[0], *COLUMNS[4:]]))
    try:
        study = study_of(file, shown=["patient", "age"])
        items = file.in_process.items(file.ask(study, *range(0, 300, 9)).json()["id"])
        assert len({item["file_row"] for item in items}) == len(items) == 34
        for item in items:
            assert cells(item["labels"])["patient"] == as_in_the_file(item)["patient"]
    finally:
        file.close()


def test_a_label_is_no_feature_no_outcome_and_no_column_of_bounds(file):
    view = file.in_process.call("owner", "GET", f"/v1/datasets/{file.dataset}")
    assert [column["name"] for column in view["columns"]] == [
        "sex=female", "sex=male", "grade", "born", "weight", "age",
    ]  # fmt: skip
    assert view["dropped"] == []
    feature = wire.Feature(column="patient", lower=0.0, upper=1.0).model_dump(mode="json")
    good = wire.StudyCreate(
        name="s",
        dataset_id=file.dataset,
        features=[wire.Feature(column="age", lower=0.0, upper=100.0)],
        measurement=wire.ColumnMeasurement(column="weight", direction="maximize"),
        release=wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1"),
        answers=wire.NONE,
    ).model_dump(mode="json")
    for wrong in ({"features": [feature]}, {"measurement": good["measurement"] | {"column": "patient"}}):
        assert file.in_process.send("owner", "POST", "/v1/studies", json=good | wrong).status_code == 422
    assert file.in_process.send("owner", "POST", "/v1/studies", json=good).status_code == 201
    bounds = {"columns": [{"column": "patient", "outer": [0.0, 1.0]}], "epsilon": "1"}
    refused = file.in_process.send("owner", "POST", f"/v1/datasets/{file.dataset}:bounds", json=bounds)
    assert refused.status_code == 422


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["age", *({"column": name, "kind": "label"} for name in ("patient", "sex", "bed", "born"))], "at most 3"),
        ([{"column": "patient", "kind": "label"}], "at least one column that is no label"),
        (["age", {"column": "patient", "kind": "label", "missing": "leave_out"}], "do not belong to label"),
        (["age", {"column": "patient", "kind": "label", "values": ["a"]}], "values belong to one_hot and codes"),
    ],
)
def test_labels_that_cannot_be_kept_are_refused(file, columns, says):
    data = {"name": "n", "public": "false", "columns": json.dumps(columns)}
    reply = file.in_process.send("owner", "POST", "/v1/datasets", files={"file": ("a.csv", file.csv)}, data=data)
    assert (reply.status_code, says in reply.text) == (422, True)


@pytest.mark.parametrize(("values", "status"), [(["f", "m"], 422), (["m"], 201)])
def test_a_label_with_the_name_of_a_stored_column_is_refused(file, values, status):
    choices = [{"column": "sex=f", "kind": "label"}, {"column": "sex", "kind": "one_hot", "values": values}, "y"]
    content = "sex=f,sex,y\n" + "".join(f"n{i},{values[i % len(values)]},{i}\n" for i in range(4))
    data = {"name": "n", "public": "false", "columns": json.dumps(choices)}
    reply = file.in_process.send("owner", "POST", "/v1/datasets", files={"file": ("a.csv", content)}, data=data)
    says = "has the name of a column that the choices make: rename one"
    assert (reply.status_code, says in reply.text) == (status, status == 422)


def test_a_label_of_201_characters_is_refused_at_its_row_and_not_repeated(file):
    fine, long = ("k" * 200).encode(), ("k" * 201).encode()
    data = {"name": "n", "public": "false", "columns": json.dumps(["y", {"column": "who", "kind": "label"}])}
    for label, status in ((fine, 201), (long, 422)):
        content = b"y,who\n1,a\n2," + label + b"\n"
        reply = file.in_process.send("owner", "POST", "/v1/datasets", files={"file": ("a.csv", content)}, data=data)
        assert (reply.status_code, b"kkkk" in reply.content) == (status, False)
    (fault,) = reply.json()["errors"]
    assert (fault["row"], fault["line"], fault["column"]) == (2, 3, "who")


@pytest.mark.parametrize(
    ("cells", "is_distinct"),
    [(["a1", "b2", "c3"], True), (["a1", "b2", "a1"], False), (["a1", "", "c3", ""], True), (["1", "2", "3"], False)],
)
def test_a_text_column_whose_filled_cells_all_differ_is_proposed_as_a_label(file, cells, is_distinct):
    content = "y,who\n" + "".join(f"1,{cell}\n" for cell in cells)
    created = file.in_process.call("owner", "POST", "/v1/uploads", files={"file": ("a.csv", content)})
    view = file.in_process.call("owner", "GET", f"/v1/uploads/{created['id']}")
    assert [column["distinct"] for column in view["columns"]] == [False, is_distinct]


def test_equal_cells_far_apart_in_a_long_file_are_found(file):
    """They stand in different blocks of the reading."""
    texts = [f"p{i}" for i in range(10_050)]
    for last, is_distinct in (("p10050", True), ("p0", False)):
        content = "y,who\n" + "".join(f"1,{text}\n" for text in [*texts, last])
        created = file.in_process.call("owner", "POST", "/v1/uploads", files={"file": ("a.csv", content)})
        view = file.in_process.call("owner", "GET", f"/v1/uploads/{created['id']}")
        assert [column["distinct"] for column in view["columns"]] == [False, is_distinct]


def withhold(file, **body):
    return file.in_process.send("owner", "POST", f"/v1/datasets/{file.dataset}:withhold", json=body)


@pytest.mark.parametrize("by", ["file_row", "label", "record"])
def test_a_record_is_withheld_by_its_row_or_its_label_which_a_dry_run_shows_together(file, by):
    row = ROWS[299]
    chosen = {"file_row": 301, "label": f"  {row['patient']} ", "record": 300}
    named = withhold(file, **{by: chosen[by]}, dry_run=True).json()
    assert (named["records"], [each["file_row"] for each in named["named"]]) == (0, [301])
    assert cells(named["named"][0]["labels"]) == {"patient": row["patient"], "bed": row["bed"]}
    done = withhold(file, **{by: chosen[by]})
    assert done.json() == {"dataset_id": file.dataset, "records": 1, "named": []}
    (listed,) = file.in_process.call("owner", "GET", f"/v1/datasets/{file.dataset}/withheld")["withheld"]
    assert (listed["record"], listed["file_row"]) == (300, 301)
    assert files_with_labels(file) == set()


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({"file_row": 1}, "file_row", "the first record is row 2 of the file"),
        ({"file_row": N + 2}, "file_row", "this is none of them"),
        ({"file_row": 5}, "file_row", "this is none of them"),  # it has no weight, and was left out
        ({"label": "Zq label of nobody"}, "label", "no record has this label"),
        ({"label": " "}, "label", "no record has this label"),
        ({"record": 1, "file_row": 2}, "", "record or file_row or label or person"),
    ],
)
def test_a_record_that_is_not_there_is_not_withheld_and_its_label_not_repeated(file, body, field, says):
    for dry_run in (True, False):
        reply = withhold(file, **body, dry_run=dry_run)
        (fault,) = reply.json()["errors"]
        assert (reply.status_code, fault["field"], says in fault["message"]) == (422, field, True)
        assert not has_label(reply.content)


def test_a_label_of_two_records_names_neither(tmp_path):
    content = b"who,a,b,y\nx,1,1,1\nx,2,2,2\nz,1,2,3\n"
    file = FileOfRecords(
        tmp_path, csv=content, fields={"columns": '[{"column": "who", "kind": "label"}, "a", "b", "y"]'}
    )
    try:
        assert "2 records have this label" in withhold(file, label="x").json()["detail"]
        assert withhold(file, label="z").json()["records"] == 1
    finally:
        file.close()


def test_rows_of_parquet_are_counted_without_a_header(tmp_path):
    sink = io.BytesIO()
    pq.write_table(pa.table({"who": ["x", "y", "z"], "a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0]}), sink)
    file = FileOfRecords(tmp_path)
    try:
        fields = {"name": "n", "columns": '[{"column": "who", "kind": "label"}, "a", "b"]'}
        send = file.in_process.call
        made = send("owner", "POST", "/v1/datasets", files={"file": ("a.parquet", sink.getvalue())}, data=fields)
        path = f"/v1/datasets/{made['id']}:withhold"
        (named,) = send("owner", "POST", path, json={"file_row": 2, "dry_run": True})["named"]
        assert (named["record"], named["file_row"], cells(named["labels"])) == (2, 2, {"who": "y"})
    finally:
        file.close()


def test_exposure_group_and_account_count_rows_as_a_spreadsheet(file):
    study = study_of(file)
    query = file.ask(study, 2).json()["id"]
    (item,) = file.in_process.items(query)
    file.in_process.enter("answer", query, [item], 1.5)
    (line,) = file.in_process.call("owner", "GET", f"/v1/studies/{study}/exposure")["rows"]
    assert (line["record"], line["file_row"]) == (item["record"], item["file_row"])
    file.in_process.tokens["auditor"] = file.in_process.context.authentication.issue("auditor", "a", days=1)[0].text
    (line,) = file.in_process.call("auditor", "GET", f"/v1/studies/{study}/exposure")["rows"]
    assert (line["record"], line["file_row"]) == (None, None)


# --- nobody else sees one ---------------------------------------------------------------------------


def has_label(content):
    """Whether bytes hold any label, or its beginning, which all of a column have in common."""
    return b"Zq label" in content or b"Wy label" in content


def files_with_labels(file):
    """Files of the data folder, and of the database's server, that hold a label."""
    database = file.in_process.context.database
    paths = {*database.path.parent.rglob("*"), *beside.files(database)}
    return {path.name for path in paths if path.is_file() and has_label(path.read_bytes())}


def replies_with_labels(file, role, study, **more):
    """Paths whose reply to a role holds a label, and how many it was sent."""
    names = MADE_UP | {"study_id": study, "dataset_id": file.dataset, "measurement_id": "msr_0123456789abcdef"} | more
    holding, sent = set(), 0
    for path, operations in file.in_process.app.openapi()["paths"].items():
        if "get" in operations and not path.endswith("/events"):
            reply = file.in_process.send(role, "GET", path.format(**names))
            sent += reply.is_success
            holding |= {path} if has_label(reply.content + repr(reply.headers).encode()) else set()
    return holding, sent


def used(file):
    """A study with a preview, a release, an answer, one measurement that is open, a message and a report."""
    study = study_of(file)
    query = file.ask(study, 0, key="asked").json()["id"]
    (item,) = file.in_process.items(query)
    file.in_process.enter("answer", query, [item], 1.5)
    file.ask(study, 1)
    message = {"kind": "recommendation", "row": 0, "mean": 1.0, "note": "n"}
    file.in_process.call(study, "POST", f"/v1/studies/{study}/messages", json=message)
    return study, query, item


@pytest.fixture
def small(tmp_path):
    """The first rows of the clinic's table."""
    file = clinic(tmp_path, ROWS[:40])
    yield file
    file.close()


def test_no_vendor_auditor_log_report_preview_or_file_has_a_label(small, caplog):
    caplog.set_level(logging.DEBUG)
    file = small
    study, query, item = used(file)
    process, roles = file.in_process, (study, "auditor")
    process.tokens["auditor"] = process.context.authentication.issue("auditor", "auditor", days=1)[0].text
    for role in roles:
        holding, sent = replies_with_labels(file, role, study, query_id=query, measurement_id=item["id"])
        assert (holding, sent > 3) == (set(), True)
    owners, _ = replies_with_labels(file, "owner", study, query_id=query, measurement_id=item["id"])
    assert owners == {"/v1/inbox", "/v1/inbox.csv", "/v1/inbox/measurements/{measurement_id}"}
    draft = file.draft(features=[wire.Feature(column="age", lower=0.0, upper=100.0)],
                       measurement=wire.ColumnMeasurement(column="weight", direction="maximize"))  # fmt: skip
    for path in (f"studies/{draft}:preview", f"studies/{study}:report", f"datasets/{file.dataset}:report"):
        reply = process.send("owner", "POST", f"/v1/{path}")
        assert (path, reply.is_success, has_label(reply.content)) == (path, True, False)
    wrong = process.enter("answer", query, [item], 2.0)
    assert (wrong.status_code, has_label(wrong.content)) == (409, False)
    logged = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert not has_label(logged.encode())
    assert files_with_labels(file) == set()


def test_the_search_finds_a_label_that_is_stored_in_the_clear(tmp_path, monkeypatch):
    """The control: sealing that leaves texts as they are."""
    monkeypatch.setattr("service_kit.context.keys.Seal.close", lambda self, clear: clear)
    file = clinic(tmp_path)
    assert files_with_labels(file) != set()
    file.close()


def sealed_blocks(file):
    with file.in_process.context.database.read() as db:
        return db.exec_driver_sql("SELECT block, sealed_texts FROM labels ORDER BY block").all()


def sealed_remains(file, blocks):
    """Files that hold the beginning of a sealed block: with the key each of them is labels."""
    database = file.in_process.context.database
    paths = {*database.path.parent.rglob("*"), *beside.files(database)}
    marks = [bytes(block.sealed_texts)[:60] for block in blocks]
    return {path.name for path in paths if path.is_file() and any(mark in path.read_bytes() for mark in marks)}


def test_after_an_erasure_no_label_is_anywhere_not_even_sealed(file):
    study, query, item = used(file)
    blocks = sealed_blocks(file)
    assert len(blocks) == 2  # the records of 552 rows that have a weight
    assert sealed_remains(file, blocks) != set()
    file.in_process.call("owner", "POST", f"/v1/studies/{study}:close")
    for act in ("archive", "erase"):
        file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:{act}")
    assert (sealed_blocks(file), sealed_remains(file, blocks), files_with_labels(file)) == ([], set(), set())
    holding, _ = replies_with_labels(file, "owner", study, query_id=query, measurement_id=item["id"])
    assert holding == set()
    file.in_process.check()


@pytest.mark.parametrize("is_erased", [False, True])
def test_no_stored_digest_confirms_the_label_or_value_that_somebody_sent(file, is_erased):
    """By hand: the digest of a guessed request, which was sent, is nowhere in the data folder."""
    study = study_of(file)
    query = file.ask(study, 0).json()["id"]
    (item,) = file.in_process.items(query)
    answered = json.dumps({"values": [{"measurement_id": item["id"], "value": 3.5}]}).encode()
    labelled = json.dumps({"label": ROWS[1]["patient"]}).encode()
    sent = [
        ("owner", f"/v1/datasets/{file.dataset}:withhold", labelled),
        ("measurer", f"/v1/queries/{query}:answer", answered),
    ]
    for role, path, body in sent:
        headers = {"Content-Type": "application/json"}
        file.in_process.call(role, "POST", path, content=body, headers=headers, key=role)
        if not is_erased:  # the control: it is known again
            reply = file.in_process.send(role, "POST", path, content=body, headers=headers, key=role)
            assert reply.headers["Idempotency-Replayed"] == "true"
            reply = file.in_process.send(role, "POST", path, content=body + b" ", headers=headers, key=role)
            assert reply.json()["code"] == "idempotency_key_reused"
    if is_erased:
        file.in_process.call("owner", "POST", f"/v1/studies/{study}:close")
        file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:archive")
        file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:erase")
    paths = {*file.in_process.settings.data_dir.rglob("*"), *beside.files(file.in_process.context.database)}
    stored = b"".join(path.read_bytes() for path in paths if path.is_file())
    for _, path, body in sent:
        digest = hashlib.sha256(body).hexdigest()
        assert digest.encode() not in stored
        assert hashlib.sha256(f"POST {path} {digest}".encode()).hexdigest().encode() not in stored


def test_a_dataset_that_is_deleted_takes_its_labels_along(file):
    assert sealed_blocks(file)
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:delete")
    assert (sealed_blocks(file), files_with_labels(file)) == ([], set())


def test_a_block_in_another_place_is_no_label_of_its_records(file):
    """Else a swap of two rows of the table would send a nurse to another patient."""
    study = study_of(file)
    query = file.ask(study, 4).json()["id"]
    assert file.in_process.items(query)[0]["labels"]
    first, second, *_ = (bytes(block.sealed_texts) for block in sealed_blocks(file))
    with file.in_process.context.database.read() as db:
        labels = Labels(file.in_process.context.seal)
        assert len(list(labels.all(db, file.dataset))) == sum(bool(row["weight"]) for row in ROWS)
    change = "UPDATE labels SET sealed_texts = ? WHERE block = ?"
    file.in_process.context.database.write(lambda db: [
        db.exec_driver_sql(change, (sealed, block)) for sealed, block in ((second, 0), (first, 1))
    ])  # fmt: skip
    reply = file.in_process.send("measurer", "GET", f"/v1/inbox?query_id={query}&state=all")
    assert (reply.status_code, reply.json()["code"]) == (503, "record_changed")


def test_a_database_of_the_version_without_labels_opens_and_takes_some(file):
    path = file.in_process.context.database.path
    file.in_process.curator.close()
    file.in_process.close()
    with closing(beside.connect(path)) as db:
        db.execute("DROP TABLE labels")
        for column in ("account", "overlap_decisions"):  # of the version after it
            db.execute(f"ALTER TABLE datasets DROP COLUMN {column}")
        beside.set_version(db, 15)
        db.commit()
    file.in_process.open_folder()
    assert sealed_blocks(file) == []
    file.register(columns=json.dumps(COLUMNS), name="again")
    assert len(sealed_blocks(file)) == 2
    file.in_process.check()


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"sex=f": 1.0, "sex=m": 0.0}, {"sex": "f"}),
        ({"sex=f": 0.0}, {"sex": "not f"}),
        ({"sex=f": 0.0, "sex=m": 0.0}, {"sex": "not f or m"}),
        ({"grade": 2.0, "at": 0.5}, {"grade": "high", "at": "01/02/2020 12:00"}),
        ({"grade": 7.0, "at": 1e300}, {"grade": "7", "at": "1e+300"}),
        ({"x": 0.1, "big": 2.0**53}, {"x": "0.1", "big": "9007199254740992"}),
    ],
)
def test_values_are_read_in_the_words_of_the_file(values, texts):
    choices = [
        wire.ColumnChoice(column="sex", kind="one_hot", values=["f", "m"]),
        wire.ColumnChoice(column="grade", kind="codes", values=["low", "high"]),
        wire.ColumnChoice(column="at", kind="date", date_format="d/m/y", since=date(2020, 2, 1)),
    ]
    reading = wire.FileReading(separator=",", decimal=".", columns=choices)
    assert {each.column: each.text for each in in_words(reading, values)} == texts
    assert np.isfinite(list(values.values())).all()
