"""A file of an office becomes a dataset without being edited: at a terminal, by options, by a file, and in Python."""

import json
import os
import pty
import re

import pytest

import blindopt as bo
from blindopt import wire
from blindopt.errors import Invalid
from tests import processes

CELL = "Tübingen-5519"
ROWS = 30
WHOLE = [i for i in range(ROWS) if i % 9 != 4 and i % 10 != 7]


@pytest.fixture
def clinic(tmp_path):
    """Text, gaps, decimal commas, values below a limit of detection, in Windows-1252."""
    rows = [
        f"P-{100 + i};{('weiblich', 'männlich')[i % 2]};{'' if i % 9 == 4 else f'{150 + i},5'};"
        f"{'<5' if i % 10 == 7 else 5 + i % 17};{CELL if i % 2 else 'Ulm'}"
        for i in range(ROWS)
    ]
    path = tmp_path / "Praxis.csv"
    path.write_bytes("\r\n".join(["Patient;Geschlecht;Größe;Marker;Ort", *rows, ""]).encode("windows-1252"))
    return path


@pytest.fixture
def owner(curator):
    with bo.Owner(curator.url, curator.token) as library:
        yield library


def waiting(curator):
    with curator.http() as http:
        return http.get("/v1/uploads").json()["uploads"]


def at_a_terminal(curator, typed, *arguments):
    """Run a command whose questions are answered by somebody who types; what it prints and shows."""
    ours, theirs = pty.openpty()
    os.write(ours, "".join(f"{answer}\n" for answer in typed).encode())
    done = processes.run("curator_service", *arguments, env=curator.environment, stdin=theirs)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_questions_are_asked_at_a_terminal_and_a_study_is_made(curator, clinic, tmp_path):
    answers = [
        "y",  # the words are right
        "1",  # Patient is left out
        "3", "weiblich,männlich",  # Geschlecht is a list
        "",  # Größe: numbers, as proposed
        "",  # Marker: <5 counts as missing, as proposed
        "1",  # Ort is left out
        "y",  # records with gaps are left out
        "y",  # store them
    ]  # fmt: skip
    printed, shown = at_a_terminal(curator, answers, "dataset", "upload", str(clinic), "--json")
    view = wire.DatasetView.model_validate_json(printed)
    assert (view.name, view.rows, view.rows_left_out) == ("Praxis", len(WHOLE), ROWS - len(WHOLE))
    names = ["Geschlecht=weiblich", "Geschlecht=männlich", "Größe", "Marker"]
    assert [column.name for column in view.columns] == names
    for said in (
        "Are these words right: Größe",
        "Numbers, but for 3 of 30 filled cells: <5",
        f"{len(WHOLE)} of {ROWS} ",
    ):
        assert said in shown
    assert waiting(curator) == []
    body = tmp_path / "study.json"
    body.write_text(json.dumps(study_of(view.id)), encoding="utf-8")
    made = curator.run_in_process("study", "create", str(body))
    assert (made.returncode, made.stdout.startswith("std_")) == (0, True), made.stderr


def study_of(dataset_id):
    return {
        "name": "Who next?",
        "dataset_id": dataset_id,
        "features": [{"column": "Größe", "lower": 140, "upper": 200}],
        "measurement": {"source": "column", "column": "Marker", "direction": "maximize"},
        "release": {"mechanism": "auto", "epsilon": "3"},
        "answers": {"mechanism": "none"},
    }


def test_what_is_proposed_is_printed_edited_and_read(curator, clinic, tmp_path):
    proposed = curator.run_in_process("dataset", "upload", str(clinic), "--propose")
    assert (proposed.returncode, waiting(curator)) == (0, [])
    assert "6 columns" not in proposed.stdout
    body = json.loads(proposed.stdout)
    assert (body["separator"], body["decimal"], body["encoding"]) == (";", ",", "windows-1252")
    body["columns"] += [{"column": "Geschlecht", "kind": "codes", "values": ["weiblich", "männlich"]}]
    reading = tmp_path / "reading.json"
    reading.write_text(json.dumps(body), encoding="utf-8")
    stored = curator.run_in_process("dataset", "upload", str(clinic), "--reading", str(reading), "--json")
    view = wire.DatasetView.model_validate_json(stored.stdout)
    assert (view.rows, [column.name for column in view.columns]) == (len(WHOLE), ["Größe", "Marker", "Geschlecht"])
    assert view.columns[2].maximum == 2


def test_options_answer_where_nobody_can_be_asked(curator, clinic):
    refused = curator.run_in_process("dataset", "upload", str(clinic))
    assert (refused.returncode, waiting(curator)) == (2, [])
    assert "edit what --propose prints" in refused.stderr
    words = curator.run_in_process("dataset", "upload", str(clinic), "--yes")
    assert (words.returncode, "--encoding windows-1252 if these words are right" in words.stderr) == (2, True)
    taken = curator.run_in_process(
        *("dataset", "upload", str(clinic), "--yes", "--encoding", "windows-1252", "--name", "n", "--missing", "Ulm")
    )
    assert (taken.returncode, f"{len(WHOLE)} records" in taken.stdout) == (0, True), taken.stderr
    assert "Numbers, these" in taken.stderr  # the decisions that it took
    assert "with a decimal comma, in windows-1252" in " ".join(taken.stderr.split())
    wrong = curator.run_in_process("dataset", "upload", str(clinic), "--separator", "dots")
    assert (wrong.returncode, "must be commas, semicolons, tabs, bars" in wrong.stderr) == (2, True)
    assert waiting(curator) == []


def test_a_clean_file_is_stored_without_a_question(curator, tmp_path):
    path = tmp_path / "clean.csv"
    path.write_text("a,b\n1,2\n3,4\n", encoding="utf-8")
    done = curator.run_in_process("dataset", "upload", str(path))
    assert (done.returncode, "2 records, 2 columns" in done.stdout) == (0, True)


def test_the_decimal_sign_is_asked_for_where_no_cell_shows_it(curator, tmp_path):
    path = tmp_path / "bills.csv"
    path.write_text("a;b\n1;1.034\n2;2.500\n", encoding="utf-8")
    refused = curator.run_in_process("dataset", "upload", str(path), "--yes")
    assert (refused.returncode, "--decimal comma if 1.034 is 1034, 2.500 is 2500;" in refused.stderr) == (2, True)
    option = curator.run_in_process("dataset", "upload", str(path), "--decimal", ".", "--json")
    assert wire.DatasetView.model_validate_json(option.stdout).columns[1].maximum == 2.5
    word = curator.run_in_process("dataset", "upload", str(path), "--decimal", "comma", "--json")
    assert wire.DatasetView.model_validate_json(word.stdout).columns[1].maximum == 2500
    for separator in ([], ["--separator", "semicolon"]):
        printed, shown = at_a_terminal(curator, ["3", "1"], "dataset", "upload", str(path), "--json", *separator)
        assert wire.DatasetView.model_validate_json(printed).columns[1].maximum == 2500
        assert "type a number from 1 to 2" in shown
        assert "1.034 is 1034" in shown
    refused = curator.run_in_process("dataset", "upload", str(path), "--separator", ";")
    assert (refused.returncode, "--decimal comma if 1.034 is 1034, 2.500 is 2500;" in refused.stderr) == (2, True)


def test_a_wrong_answer_at_the_terminal_is_asked_for_again(curator, tmp_path):
    path = tmp_path / "towns.csv"
    path.write_text("day;town\n01.02.2024;Köln\n13.04.2024;Bonn\n05.06.2024;Köln\n", encoding="utf-8")
    answers = [
        *("1", "1.1.2024", "2024-01-01"),  # day: no date, then one
        *("3", "Köln,,Bonn", '"', "Köln,Köln", "Bern,Ulm"),  # town: no lists of categories, then one without records
        "y",  # records with gaps are left out, which are all
        *("1", "2024-01-01", "3", "Köln,Bonn", "y"),
        "y",  # store them
    ]
    printed, shown = at_a_terminal(curator, answers, "dataset", "upload", str(path), "--json")
    view = wire.DatasetView.model_validate_json(printed)
    assert ([column.name for column in view.columns], view.rows) == (["day", "town=Köln", "town=Bonn"], 3)
    assert view.columns[0].minimum == 31
    for words, times in (("type a date as", 1), ("different categories of 1 to 100", 3), ("decide again:", 1)):
        assert shown.count(words) == times, shown
    assert "columns." not in shown


@pytest.fixture
def visits(tmp_path):
    """The ids of persons are numbers, and one is written in two ways."""
    path = tmp_path / "visits.csv"
    path.write_text("p,a\n6117,1\n6118,2\n6117.0,3\n", encoding="utf-8")
    return path


def test_persons_whose_ids_are_numbers_are_named_by_options(curator, visits):
    command = ("dataset", "upload", str(visits), "--yes", "--json", "--person", "p", "--records-per-person", "2")
    refused = curator.run_in_process(*command)
    assert (refused.returncode, "6117 and 6117.0" in refused.stderr, waiting(curator)) == (4, True, [])
    for ids, persons in (("folded_1", 2), ("as_written", 3)):
        visits.write_text(visits.read_text(encoding="utf-8") + f"{persons},4\n", encoding="utf-8")
        stored = curator.run_in_process(*command, "--person-ids", ids)
        assert stored.returncode == 0, stored.stderr
        view = wire.DatasetView.model_validate_json(stored.stdout)
        assert ([column.name for column in view.columns], view.rows) == (["a"], 2 + persons)
        assert (view.persons, view.reading.person_ids) == (persons + persons - 1, ids)


def test_a_person_column_needs_the_number_of_its_records(curator, visits):
    alone = curator.run_in_process("dataset", "upload", str(visits), "--yes", "--person", "p")
    assert (alone.returncode, "--records-per-person belong" in re.sub(r"[\s│]+", " ", alone.stderr)) == (2, True)


def test_persons_whose_ids_are_numbers_are_named_in_python(owner, visits):
    file = owner.read(visits)
    of_persons = {"person": "p", "rows_per_person": 2}
    with pytest.raises(bo.Remote) as refused:
        file.correct(**of_persons)
    assert any("6117 and 6117.0" in note for note in refused.value.__notes__)
    file.correct(**of_persons, person_ids="folded_1", columns={"a": {"kind": "number"}})
    assert [choice.column for choice in file.reading.columns] == ["a"]
    with pytest.raises(bo.Remote, match="is the person column"):  # the control: who names it is told
        file.correct(columns=["p", "a"])
    file.discard()


def test_people_of_an_earlier_file_are_named_after_the_upload(curator, tmp_path):
    for name, more in (("first", ""), ("second", "9,8,7\n")):
        path = tmp_path / f"{name}.csv"
        path.write_text(
            f"u,v,w\n{''.join(f'{i},{i * i},{7 * i}' + chr(10) for i in range(40))}{more}", encoding="utf-8"
        )
        done = curator.run_in_process("dataset", "upload", str(path))
        assert done.returncode == 0, done.stderr
        assert ("Decide on its page whose account it continues." in done.stderr) == (name == "second")


BROKEN = {
    "text": ("a,b\n1,x\n2,y\n3,x\n", {"columns": {"b": {"kind": "one_hot", "values": ["x", "y"]}}}, 3),
    "gaps": ("a,b\n1,\n2,5\n3,NA\n", {}, 1),
    "a marker": ("a,b\n1,?\n2,5\n3,6\n", {}, 2),
    "a number that marks gaps": ("a,b\n1,-999\n2,5\n3,6\n", {"missing_values": ["-999"]}, 2),
    "below a limit": ("a,b\n1,<5\n2,-\n3,6\n4,7\n5,8\n", {}, 3),
    "decimal commas": ("a;b\n1,5;2\n2,5;3\n", {}, 2),
    "thousands": ('a,b\n1.5,"1,034"\n2.5,"2,500"\n', {}, 2),
    "thousands or decimals": ("a;b\n1;1.034\n2;2.500\n", {"decimal": ","}, 2),
    "bars": ("a|b\n1|2\n3|4\n", {"separator": "|"}, 2),
    "dates": ("a,b\n1,31.01.2024\n2,01.02.2024\n", {}, 2),
    "several kinds of dates": (
        "a,b\n1,01/02/2024\n2,03/04/2024\n", {"columns": {"b": {"kind": "date", "date_format": "d/m/y"}}}, 2,
    ),
    "an index": (",a\n0,5\n1,6\n", {}, 2),
    "Windows-1252": ("a,Größe\n1,2\n".encode("windows-1252"), {}, 1),
}  # fmt: skip


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("kind", BROKEN)
def test_each_kind_of_broken_file_becomes_a_dataset(owner, kind):
    content, changes, rows = BROKEN[kind]
    file = owner.read(content if isinstance(content, bytes) else content.encode())
    if changes:
        file.correct(**changes)
    assert file.view.remaining.rows == rows
    assert file.store(name=kind).view.rows == rows


def test_a_file_is_shown_corrected_and_stored_in_python(owner, curator, clinic):
    file = owner.read(clinic)
    assert str(file).splitlines()[0] == (
        "Praxis.csv: 30 records, 5 columns, separated by semicolons, with a decimal comma, in windows-1252"
    )
    assert f"{len(WHOLE)} of 30 records remain." in str(file).splitlines()
    assert "<td>Numbers, these 3 cells count as missing</td>" in file._repr_html_()
    assert repr(file) == f"<file Praxis.csv: {len(WHOLE)} of 30 records remain>"
    file.correct(
        columns={"Größe": None, "Geschlecht": {"kind": "one_hot", "values": ["weiblich"], "missing": "fill", "fill": 0}}
    )
    assert file.view.remaining.rows == sum(i % 10 != 7 for i in range(ROWS))
    with pytest.raises(Invalid, match=r"^columns\.Marker must be a choice"):
        file.correct(columns={"Marker": "number"})
    for change in ({}, None):  # found by hand: None was taken for a column to leave out
        with pytest.raises(Invalid, match=r'^columns\.Markr names no column of the file: did you mean "Marker"\?'):
            file.correct(columns={"Markr": change})
    reading = file.reading
    file.discard()
    assert waiting(curator) == []
    dataset = owner.upload(clinic, name="again", reading=reading)
    assert [column.name for column in dataset.view.columns] == ["Geschlecht=weiblich", "Marker"]


def test_a_wide_file_is_shown_in_thirty_lines(owner):
    header, row = ",".join(f"c{i}" for i in range(400)), ",".join("1" for _ in range(400))
    file = owner.read(f"{header}\n{row}\n{row}\n".encode())
    assert len(str(file).splitlines()) <= 30
    file.discard()


METRES = "Größe, m;Gewicht, kg\n1,805;75,125\n1,815;80,250\n"


def test_another_separator_finds_the_decimal_sign_anew(owner, curator, tmp_path):
    file = owner.read(METRES.encode()).correct(separator=",")
    with pytest.raises(bo.Remote, match="which sign is decimal"):
        file.correct(separator=";")
    stored = file.correct(separator=";", decimal=",").correct(missing_values=["-"]).store(name="m")
    assert [column.maximum for column in stored.view.columns] == [1.815, 80.25]
    path = tmp_path / "m.csv"
    path.write_text(METRES, encoding="utf-8")
    done = curator.run_in_process("dataset", "upload", str(path), "--separator", "semicolons", "--yes")
    assert (done.returncode != 0, "which sign is decimal" in done.stderr) == (True, True)


def test_a_column_that_is_left_out_says_no_decimal_sign(owner):
    file = owner.read(b"time;a\n8.30;2.500\n9.15;1.000\n")
    assert file.reading.decimal == "."
    with pytest.raises(bo.Remote, match="which sign is decimal"):
        file.correct(columns=["a"])
    file.correct(decimal=",", columns=["a"]).correct(columns={"a": {"missing": "leave_out"}})
    assert file.store(name="t").view.columns[0].maximum == 2500
