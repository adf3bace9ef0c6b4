"""Open measurements as a spreadsheet: hostile content is harmless, and a file is imported whole or not at all."""

import csv
import io
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt import wire
from blindopt.errors import Invalid, Remote
from curator_service.queries.inbox import spreadsheet
from tests.curator_service.queries.inbox.measured_study import LAPLACE
from tests.interventions import act_before, record_calls

HOSTILE = ["=1+1", "\t=1", "\u202e=1"]


def item(number=1, **chosen):
    fields = {
        "seq": number, "id": f"msr_{number:016x}", "query_id": "qry_1", "study_id": "std_1", "study": "s",
        "question": "q", "unit": "mg", "lower": None, "upper": None, "record": 7, "shown": [], "play": 1, "plays": 1,
        "asked_at": datetime.now(UTC), "due_at": None, "state": "open", "value": None, "version": 0, "reason": None,
        "note": None, "changed_at": None, "changed_by": None,
    }  # fmt: skip
    return wire.InboxItem(**(fields | chosen))


def rows_of(file):
    return list(csv.reader(io.StringIO(file.decode("utf-8-sig"), newline="")))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_run_or_turned_round_by_a_spreadsheet(text):
    cells = [wire.RecordText(column=text, text=text)]
    chosen = item(study=text, question=text, unit=text, labels=cells, in_words=cells)
    header, line = rows_of(spreadsheet.export([chosen]))
    for cell in (*header, *line):
        assert not cell.lstrip().startswith(("=", "+", "-", "@", "|", "%", "\uff1d"))
        assert not set(cell) & set("\u202e\u200b\ufeff\u2066")


def test_shown_columns_keep_their_values_and_hide_no_other_column():
    named = [wire.RecordText(column="value", text="K-1")]
    words = [wire.RecordText(column="value", text="0.1"), wire.RecordText(column="big", text="1e+300")]
    exported = spreadsheet.export([item(1, in_words=words, file_row=8), item(2, labels=named)])
    header, first, second = rows_of(exported)
    assert header == [
        *("measurement_id", "label: value", "shown: value", "shown: big", "study", "record", "file_row"),
        *("question", "unit", "value", "decline_reason", "note"),
    ]
    assert first[1:7] == ["", "0.1", "1e+300", "s", "7", "8"]
    assert second[1:7] == ["K-1", "", "", "s", "7", ""]


ID = "msr_00000000000000aa"
GOOD = {
    "commas": "measurement_id,value\n%s,1.5\n",
    "semicolons": "measurement_id;value\r\n%s;1.5\r\n",
    "tabs": "note\tvalue\tmeasurement_id\n\t1.5\t%s\n",
    "a mark": "\ufeffmeasurement_id,value\n%s, 1.5 \n\n",
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_file_may_be_written_as_spreadsheets_do(kind):
    sheet = spreadsheet.read((GOOD[kind] % ID).encode())
    assert [(entry.measurement_id, entry.value) for _, entry in sheet.entries] == [(ID, 1.5)]
    assert sheet.faults == []


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_decimal_comma_is_read_where_no_comma_separates_cells_and_one_before_three_digits_is_asked_back(separator):
    """Found by hand: 1,034 in the file of an English spreadsheet became 1.034."""

    def read(cell, **chosen):
        sheet = spreadsheet.read(f"measurement_id{separator}value\n{ID}{separator}{cell}\n".encode(), **chosen)
        return [entry.value for _, entry in sheet.entries], [fault["message"] for fault in sheet.faults]

    assert read("44,25") == ([44.25], [])
    assert read("1.034,5") == ([1034.5], [])
    for cell, decimal, thousands in (("1,034", 1.034, 1034.0), ("2.500", 2500.0, 2.5)):
        with pytest.raises(Invalid) as question:
            read(cell)
        (fault,) = question.value.errors
        assert (fault["column"], "group thousands" in fault["message"], cell in str(question.value)) == (
            "value",
            True,
            False,
        )
        assert fault["readings"] == [{"cell": cell, "point": thousands, "comma": decimal}]
        assert read(cell, commas="decimal") == ([decimal], [])
        assert read(cell, commas="thousands") == ([thousands], [])


WRONG = {"value": ["1,5,5", "NaN", "=1+1", "10 00"], "measurement_id": ["", "msr_1", "MSR_00000000000000AA", "=msr"]}


@pytest.mark.parametrize(("column", "cell"), [(column, cell) for column, cells in WRONG.items() for cell in cells])
def test_a_cell_that_is_wrong_is_named_by_line_and_column_and_never_quoted(column, cell):
    value, measurement_id = (cell, ID) if column == "value" else ("1.0", cell)
    text = io.StringIO()
    csv.writer(text).writerows([["measurement_id", "value"], ["msr_00000000000000ab", "0.5"], [measurement_id, value]])
    (fault,) = spreadsheet.read(text.getvalue().encode()).faults
    assert (fault["line"], fault["column"]) == (3, column)
    assert not cell or cell not in fault["message"]


def test_lines_that_contradict_themselves_or_each_other_are_refused():
    lines = [
        "measurement_id,value,decline_reason,note",
        f"{ID},1.0,other,",
        "msr_00000000000000ab,,lazy,",
        "msr_00000000000000ac,1.0,,\x07",
        "msr_00000000000000ad,1.0,,",
        "msr_00000000000000ad,1.0,,",
        "msr_00000000000000ae,,,why",
        "msr_00000000000000af,1.0",
        "msr_00000000000000b0,,,",
    ]
    sheet = spreadsheet.read("\n".join(lines).encode())
    assert [(fault["line"], fault.get("column")) for fault in sheet.faults] == [
        *((2, "decline_reason"), (3, "decline_reason"), (4, "note")),
        *((6, "measurement_id"), (7, "note"), (8, None)),
    ]
    assert sheet.blank == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff\xfe", b"a,b\n1,2\n", b"value\n1\n", b"measurement_id,value,value\n", b'measurement_id,value\n"x'],
)
def test_what_is_no_such_file_is_refused(body):
    with pytest.raises(Invalid):
        spreadsheet.read(body)


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_no_bytes_are_a_fault_of_ours(body):
    for head in (b"", b"measurement_id,value,decline_reason,note\n"):
        with suppress(Invalid):
            spreadsheet.read(head + body)


# --- over REST --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(curator, dataset, open_measured):
    with open_measured(curator, dataset.id, answers=LAPLACE, measurement={"upper": 9.0}) as study:
        yield study


def filled(file, *cells):
    """The file with value, decline_reason and note of each line filled in."""
    header, *lines = rows_of(file)
    for line, ends in zip(lines, cells, strict=True):
        line[-3:] = ends
    text = io.StringIO()
    csv.writer(text).writerows([header, *lines])
    return text.getvalue().encode()


def test_a_spreadsheet_is_tried_then_taken_whole(study):
    queries = study.ask(3, 4), study.ask(5, key="b"), study.ask(6, key="c")
    file = study.measurer.export_csv(study_id=study.study)
    done = filled(file, ("1.5", "", "ok"), ("", "consent", ""), ("-2", "", ""), ("", "", ""))
    dry = study.measurer.import_csv(done, dry_run=True)
    first = [wire.ReadValue(line=line, cell=cell, value=float(cell)) for line, cell in ((2, "1.5"), (4, "-2"))]
    assert dry == wire.InboxImport(dry_run=True, answered=2, declined=1, blank=1, queries=2, first=first)
    assert {item.state for query in queries for item in study.items(query.id)} == {"open"}
    taken = study.measurer.import_csv(done, key="once")
    assert taken == dry.model_copy(update={"dry_run": False, "first": []})
    assert study.measurer.import_csv(done, key="once") == taken
    assert study.reply(queries[0].id).declined == [4]
    assert len(study.reply(queries[1].id).answers) == 1
    assert study.modeler.query(queries[2].id)[0].state == "pending"
    study.answer(queries[2].id, 1.0)


def _open_queries(in_process, small, draft_of, count):
    """Open queries of one row each, and the file that answers them."""
    study = in_process.open(small.csv, draft_of)
    queries = [in_process.ask(study, [row]) for row in range(count)]
    file = in_process.send("measurer", "GET", "/v1/inbox.csv").content
    return queries, filled(file, *[("1.5", "", "")] * (len(rows_of(file)) - 1))


def _import(in_process, file, *, dry=False):
    path = f"/v1/inbox:import?dry_run={'true' if dry else 'false'}"
    return in_process.send("measurer", "POST", path, content=file, headers={"content-type": "text/csv"})


def test_a_dry_run_of_an_import_takes_no_write_turn(in_process, small, draft_of, monkeypatch):
    """The control: the import itself takes one."""
    _, file = _open_queries(in_process, small, draft_of, 3)
    turns = record_calls(monkeypatch, in_process.context.database, "_run_all")
    dry = _import(in_process, file, dry=True)
    assert (
        dry.json()
        == wire.InboxImport(
            dry_run=True,
            answered=3,
            declined=0,
            blank=0,
            queries=3,
            first=[wire.ReadValue(line=line, cell="1.5", value=1.5) for line in (2, 3, 4)],
        ).model_dump()
    )
    assert turns == []
    assert _import(in_process, file).json() == dry.json() | {"dry_run": False, "first": []}
    assert turns


def test_a_file_may_hold_so_many_queries_and_no_more_are_exported(in_process, small, draft_of, monkeypatch):
    monkeypatch.setattr(wire, "IMPORT_QUERIES_MAX", 3)
    queries, file = _open_queries(in_process, small, draft_of, 4)
    assert len(rows_of(file)) == 1 + 3
    (last,) = in_process.items(queries[3])
    more = file + filled(file, *[("1.5", "", "")] * 3).splitlines()[1].replace(
        rows_of(file)[1][0].encode(), last["id"].encode()
    )
    for dry in (True, False):
        refused = _import(in_process, more, dry=dry)
        assert refused.status_code == 422
        assert "3 queries at most" in refused.json()["detail"]
    assert _import(in_process, file).json()["queries"] == 3
    assert [item["state"] for query in queries for item in in_process.items(query)] == ["answered"] * 3 + ["open"]


def test_one_file_is_read_at_a_time(in_process, small, draft_of, monkeypatch):
    _, file = _open_queries(in_process, small, draft_of, 1)
    others = []

    def meanwhile(body, commas):
        if not others:
            others.append(None)  # else an import that is not refused would begin others without end
            others[0] = _import(in_process, file)

    act_before(monkeypatch, spreadsheet, "read", meanwhile)
    assert _import(in_process, file).is_success
    assert (others[0].status_code, others[0].json()["code"]) == (503, "busy")


def test_one_wrong_line_and_nothing_is_stored(study, curator):
    query = study.ask(7, 8, 9, key="d")
    file = study.measurer.export_csv(study_id=study.study)
    wrong = filled(file, ("1.5", "", ""), ("9.5", "", ""), ("2.5", "", ""))
    wrong += f"msr_{'0' * 16},7.77,,\n".encode().replace(b",", b"," * (len(rows_of(file)[0]) - 3), 1)
    with curator.http(study.measurer_token, **{"Idempotency-Key": "w", "Content-Type": "text/csv"}) as http:
        for path in ("/v1/inbox:import", "/v1/inbox:import?dry_run=true"):
            reply = http.post(path, content=wrong)
            assert reply.status_code == 422
            faults = [(error["line"], error["column"]) for error in reply.json()["errors"]]
            assert faults == [(3, "value"), (5, "measurement_id")]
            assert "9.5" not in reply.text
            assert "7.77" not in reply.text
        assert http.post("/v1/inbox:import", content=b"{}", headers={"Content-Type": "application/json"}).is_error
    assert {item.state for item in study.items(query.id)} == {"open"}
    study.answer(query.id, 1.0, 1.0, 1.0)
    with pytest.raises(Remote) as caught:
        study.measurer.import_csv(filled(file, ("1.5", "", ""), ("", "", ""), ("", "", "")))
    assert caught.value.remote_status == 422
