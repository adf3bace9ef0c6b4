"""A file is shown as it was read, corrected, counted and then registered: nothing is stored before."""

import csv
import io
import json
import random

import pytest

from service_kit.store import audit_log
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

CELL = "Wiesbaden-8137"
CLINIC = "\n".join(
    ["Patient;Größe;Marker;Ort;Aufnahme", *(
        f"P{i};{'' if i % 9 == 0 else f'1{i % 10},5'};{'<5' if i % 7 == 0 else i % 13};{CELL};{i % 27 + 1:02}.03.2024"
        for i in range(40)
    )]
)  # fmt: skip


@pytest.fixture
def curator(tmp_path):
    made = InProcessCurator(tmp_path)
    made.tokens["owner"] = made.context.authentication.issue("owner", "o", days=3)[0].text
    yield made
    made.curator.close()
    made.close()


def upload(curator, content, name="clinic.csv"):
    files = {"file": (name, content if isinstance(content, bytes) else content.encode())}
    upload_id = curator.call("owner", "POST", "/v1/uploads", files=files)["id"]
    return curator.call("owner", "GET", f"/v1/uploads/{upload_id}")


def read(curator, view, **choice):
    return curator.send("owner", "POST", f"/v1/uploads/{view['id']}:read", json=choice)


def register(curator, view):
    """Register a file as it is read so far."""
    fields = {name: value for name, value in view["reading"].items() if value not in (None, [])}
    fields = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    reply = curator.send("owner", "POST", "/v1/datasets", data={"name": "n", "upload": view["id"], **fields})
    assert reply.status_code == 201, reply.text
    return reply.json()


def study(curator, stored, feature, outcome):
    body = {
        "name": "s",
        "dataset_id": stored["id"],
        "features": [{"column": feature, "lower": 0, "upper": 20}],
        "measurement": {"source": "column", "column": outcome, "direction": "maximize"},
        "release": {"mechanism": "auto", "epsilon": "3"},
        "answers": {"mechanism": "none"},
    }
    return curator.call("owner", "POST", "/v1/studies", json=body)


def test_a_file_is_shown_as_it_was_read_and_stored_as_it_was_counted(curator):
    view = upload(curator, CLINIC)
    assert (view["separator"], view["decimal"], view["encoding"], view["samples"]) == (";", ",", "utf-8", [])
    by_name = {column["name"]: column for column in view["columns"]}
    assert by_name["Größe"]["first"] == ["", "11,5", "12,5", "13,5", "14,5"]
    marker = by_name["Marker"]
    assert (marker["holds"], marker["odd"], marker["values"], by_name["Ort"]["constant"]) == (
        "text",
        ["<5"],
        None,
        True,
    )
    proposed = {choice["column"]: choice for choice in view["reading"]["columns"]}
    assert list(proposed) == ["Patient", "Größe", "Marker", "Aufnahme"]
    assert proposed["Patient"]["kind"] == "label"  # no two are equal
    assert (proposed["Marker"]["missing_values"], proposed["Marker"]["missing"]) == (["<5"], "leave_out")
    whole = [i for i in range(40) if i % 9 and i % 7]
    assert (view["remaining"]["rows"], view["remaining"]["left_out"]) == (len(whole), 40 - len(whole))
    stored = register(curator, view)
    assert (stored["rows"], stored["rows_left_out"]) == (len(whole), 40 - len(whole))
    assert [column["name"] for column in stored["columns"]] == ["Größe", "Marker", "Aufnahme"]
    assert sorted(stored["reading"]["gaps"]) == ["Größe", "Marker"]
    assert study(curator, stored, "Größe", "Marker")["state"] == "draft"


def files(rng):
    """A table of numbers with gaps, markers and copies, as cells; and its columns, by name."""
    names = [f"c{i}" for i in range(rng.randint(2, 5))]
    markers = rng.sample(["?", "-", "<5", "n.b.", "-999", "k. A."], 2)
    gap = rng.choice([0.0, 0.1, 0.3])
    rows = []
    for _ in range(rng.randint(5, 60)):
        row = [str(rng.randint(0, 3)) for _ in names]
        rows.append([rng.choice(["", "NA", *markers]) if rng.random() < gap else cell for cell in row])
    return names, rows, markers


def decided(rng, names, markers):
    """A choice for each column, at random: as a number, by a list, or not at all."""
    choices = []
    for name in rng.sample(names, rng.randint(1, len(names))):
        choice = {"column": name, "missing": rng.choice(["leave_out", "fill"]), "missing_values": markers}
        if rng.random() < 0.3:
            choice |= {"kind": "one_hot", "values": ["0", "1", "2"]}
        choices.append(choice | ({"fill": 0} if choice["missing"] == "fill" else {}))
    return choices


def remaining(names, rows, choices, markers):
    """How many rows remain, and how many of these are copies, by a second implementation."""
    kept = []
    for row in rows:
        values = []
        for choice in choices:
            cell = row[names.index(choice["column"])]
            is_gap = cell in ("", "NA", *markers) or cell not in choice.get("values", [cell])
            values.append(None if is_gap and choice["missing"] == "leave_out" else "gap" if is_gap else cell)
        if None not in values:  # a filled number is 0, as a zero of the file; a filled category is no category
            kept.append(
                tuple("0" if v == "gap" and "values" not in c else v for v, c in zip(values, choices, strict=True))
            )
    return len(kept), len(kept) - len(set(kept))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_decided_as_many_records_are_stored_as_were_counted(curator, seed):
    rng = random.Random(seed)
    names, rows, markers = files(rng)
    text = io.StringIO()
    csv.writer(text).writerows([names, *rows])
    view, choices = upload(curator, text.getvalue()), decided(rng, names, markers)
    expected, copies = remaining(names, rows, choices, markers)
    reply = read(curator, view, columns=choices)
    if not expected:
        assert reply.status_code == 422
        return
    counted = reply.json()
    assert (counted["remaining"]["rows"], counted["remaining"]["copies"]) == (expected, copies)
    stored = register(curator, counted)
    assert (stored["rows"], stored["rows_left_out"]) == (expected, len(rows) - expected)


def test_rows_of_persons_are_counted_as_they_are_stored(curator):
    rows = "".join(f"p{i % 4},{i}\n" for i in range(10))  # 3, 3, 2 and 2 rows
    view = upload(curator, f"who,x\n{rows}")
    counted = read(curator, view, columns=["x"], person="who", rows_per_person=2).json()
    assert (counted["remaining"]["rows"], counted["remaining"]["person_rows_dropped"]) == (8, 2)
    stored = register(curator, counted)
    assert (stored["rows"], stored["persons"], stored["person_rows_dropped"]) == (8, 4, 2)


def test_a_file_is_read_again_with_another_separator_decimal_sign_or_markers(curator):
    view = upload(curator, "a;b\n1,5;1\n2,5;-999\n3,5;3\n")
    assert [column["name"] for column in view["columns"]] == ["a", "b"]
    wrong = read(curator, view, separator=",")
    assert (wrong.status_code, curator.call("owner", "GET", f"/v1/uploads/{view['id']}")) == (422, view)
    again = read(curator, view, decimal=".").json()
    assert [column["holds"] for column in again["columns"]] == ["text", "number"]
    marked = read(curator, view, decimal=",", missing_values=["-999"]).json()
    assert ([column["missing"] for column in marked["columns"]], marked["remaining"]["rows"]) == ([0, 1], 2)
    assert curator.call("owner", "GET", f"/v1/uploads/{view['id']}") == marked
    assert register(curator, marked)["reading"]["missing_values"] == ["-999"]


def test_a_file_of_windows_is_kept_and_read_when_its_words_are_right(curator):
    content = "Größe,Ort\n1,Köln\n2,Übersee\n".encode("windows-1252")
    refused = curator.send("owner", "POST", "/v1/datasets", files={"file": ("a.csv", content)}, data={"name": "n"})
    assert refused.status_code == 422
    view = upload(curator, content)
    assert (view["encoding"], view["samples"]) == ("windows-1252", ["Größe", "Köln", "Übersee"])
    assert (view["reading"]["encoding"], view["columns"][1]["first"]) == ("windows-1252", ["Köln", "Übersee"])
    stored = register(curator, view)
    assert (stored["columns"][0]["name"], stored["reading"]["encoding"]) == ("Größe", "windows-1252")


def test_bytes_that_are_no_text_are_refused_in_any_encoding(curator):
    for content in (b"a,b\n1,\x81\n", b"a\x00b\n1,2\n", b"\xff\xfea\x00"):
        reply = curator.send("owner", "POST", "/v1/uploads", files={"file": ("a.csv", content)})
        assert reply.status_code == 422


def test_a_choice_that_a_registration_would_refuse_is_refused_with_the_same_faults_and_changes_nothing(curator):
    view = upload(curator, CLINIC)
    choice = view["reading"] | {"columns": ["Größe", "Marker"]}
    counted = read(curator, view, **choice)
    fields = {"name": "n", "upload": view["id"], "columns": json.dumps(choice["columns"])}
    refused = curator.send("owner", "POST", "/v1/datasets", data=fields)
    assert (counted.status_code, refused.status_code) == (422, 422)
    assert counted.json()["errors"] == refused.json()["errors"]
    assert curator.call("owner", "GET", f"/v1/uploads/{view['id']}") == view


def test_no_other_owner_reads_a_file_and_no_cell_of_it_is_in_a_log(curator, capfd, caplog):
    view = upload(curator, CLINIC)
    assert CELL in json.dumps(view)  # the control
    assert read(curator, view, columns=["Ort"]).status_code == 422
    assert read(curator, view, missing_values=[CELL]).status_code == 200
    own, curator.tokens["owner"] = (
        curator.tokens["owner"],
        curator.context.authentication.issue("owner", "another", days=1)[0].text,
    )
    refused = read(curator, view)
    assert (refused.status_code, CELL in refused.text) == (404, False)
    curator.tokens["owner"] = own
    with curator.context.database.read() as db:
        log = json.dumps([entry.record for entry in audit_log.walk(db)])
    printed = capfd.readouterr()
    assert not any(CELL in text for text in (log, caplog.text, printed.out, printed.err))


def test_promises_name_every_column_whose_gaps_were_shown_also_a_filled_one(curator):
    view = upload(curator, "a,b,y\n1,2,1\n,3,2\n4,-,3\n5,6,4\n7,8,5\n2,3,6\n")
    filled = {"missing": "fill", "fill": 0}
    columns = [{"column": "a", **filled}, {"column": "b", "missing_values": ["-"], **filled}, "y"]
    stored = register(curator, read(curator, view, columns=columns).json())
    made = study(curator, stored, "a", "y")
    report = curator.call("owner", "POST", f"/v1/studies/{made['id']}:report")["report"]
    assert " in a, b." in report["studies"][0]["relation"]


@pytest.mark.parametrize("cells", [("1.000-", "(5)"), ("7-",), ("12 mg", "-"), ("3*",)])
def test_cells_with_digits_are_no_gaps_and_their_column_is_neither_list_nor_label(curator, cells):
    """A negative number of a ledger, a number with a unit or a note: left out, only small or large ones may remain."""
    view = upload(curator, "x;y\n" + "".join(f"{cell};1\n" for cell in (*cells, *"135689")))
    seen = view["columns"][0]
    assert (seen["holds"], seen["odd"], seen["values"], seen["distinct"]) == ("text", [], None, False)
    assert [choice["column"] for choice in view["reading"]["columns"]] == ["y"]
    refused = read(curator, view, columns=["x", "y"])
    assert (refused.status_code, refused.json()["errors"][0]["column"]) == (422, "x")
    limits = upload(curator, "x;y\n" + "".join(f"{cell};1\n" for cell in ("<5", "> 1,5", *"135689")))
    assert limits["columns"][0]["odd"] == ["<5", "> 1,5"]  # the control


def test_a_column_that_is_not_proposed_says_no_decimal_sign(curator):
    view = upload(curator, "x;note;n\n2.500;ok;1\n1.000;1.5;2\n4.000;good;3\n")
    assert ([each["cell"] for each in view["unsure"]], view["remaining"]) == (["2.500", "1.000", "4.000"], None)
    index = upload(curator, ";x\n0.5;2.500\n1.5;1.000\n")  # a column without a name is not proposed
    assert ([each["cell"] for each in index["unsure"]], index["remaining"]) == (["2.500", "1.000"], None)


@pytest.mark.parametrize(("decimal", "value"), [(",", 2500.0), (".", 2.5)])
def test_a_decimal_sign_that_no_cell_shows_is_asked_for_before_anything_is_stored(curator, decimal, value):
    view = upload(curator, "x;n\n2.500;1\n1.000;2\n")
    cells = [{"cell": "2.500", "point": 2.5, "comma": 2500.0}, {"cell": "1.000", "point": 1.0, "comma": 1000.0}]
    assert (view["unsure"], view["reading"]["decimal"], view["remaining"]) == (cells, None, None)
    question = read(curator, view, separator=";")
    assert (question.status_code, question.json()["errors"][0]["field"]) == (422, "decimal")
    assert question.json()["errors"][0]["readings"] == cells
    refused = curator.send("owner", "POST", "/v1/datasets", data={"name": "n", "upload": view["id"]})
    assert (refused.status_code, "2.500" in refused.json()["detail"]) == (422, False)
    answered = read(curator, view, decimal=decimal).json()
    assert (answered["unsure"], answered["reading"]["decimal"], answered["remaining"]["rows"]) == ([], decimal, 2)
    stored = register(curator, answered)
    assert (stored["reading"]["decimal"], stored["columns"][0]["maximum"]) == (decimal, value)
