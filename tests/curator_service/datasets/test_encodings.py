"""Columns of text, dates and gaps as numbers: as their owner chose, by rules that are written here a second time."""

import csv
import gzip
import io
import json
import math
import tracemalloc
from datetime import UTC, date, datetime
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from blindopt.errors import DatasetInvalid
from blindopt.wire import CellReading, ColumnChoice, Feature, PlanarLaplaceRelease, ReadingChoice
from curator_service.datasets.csv_source import csv_source
from curator_service.datasets.parquet_source import parquet_source
from curator_service.datasets.persons import PersonColumn
from curator_service.datasets.reading import read_table
from curator_service.datasets.readings import unpacked
from curator_service.datasets.scaling import ScaledRows
from curator_service.datasets.sources import Findings, Limits
from curator_service.datasets.survey import survey
from curator_service.privacy.cautions import of_categories
from tests.builders import a_study

read_csv, read_parquet = (partial(read_table, parquet=parquet) for parquet in (False, True))
LIMITS = Limits(rows=1_000, columns=50)
CUTS = ["Fair", "Good", "Ideal"]


def table_of(content, columns=None, decimal=None, limits=LIMITS):
    read, file = (read_csv, io.BytesIO(content.encode())) if isinstance(content, str) else (read_parquet, content)
    with read(file, limits, ReadingChoice(columns=columns, decimal=decimal)) as table:
        blocks = list(table.blocks)
    return table, np.concatenate(blocks)


def refused(*args, **kwargs):
    with pytest.raises(DatasetInvalid) as error:
        table_of(*args, **kwargs)
    return error.value


def parquet(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    buffer.seek(0)
    return buffer


def diamonds(n=400, gaps=0.1):
    """A table as a data frame writes it: an index without a name, text, gaps."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        carat = "" if rng.random() < gaps else repr(round(float(rng.gamma(2, 0.4)), 2))
        cut = "" if rng.random() < gaps else str(rng.choice([*CUTS, "Odd, very"]))
        rows.append({"": str(i), "carat": carat, "cut": cut, "price": str(rng.integers(300, 9_000))})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue(), rows


CHOICES = [
    ColumnChoice(column="carat", missing="leave_out"),
    ColumnChoice(column="cut", kind="one_hot", values=CUTS, missing="fill", fill=0.0),
    "price",
]


def test_text_becomes_a_column_for_each_category_and_rows_with_gaps_go():
    text, rows = diamonds()
    kept = [(number, row) for number, row in enumerate(rows, start=1) if row["carat"]]
    by_hand = [[float(r["carat"]), *(float(r["cut"] == cut) for cut in CUTS), float(r["price"])] for _, r in kept]
    table, values = table_of(text, CHOICES)
    assert (table.names, table.dropped) == (["carat", "cut=Fair", "cut=Good", "cut=Ideal", "price"], ["column_1"])
    np.testing.assert_array_equal(values, by_hand)
    assert table.numbers.tolist() == [number for number, _ in kept]
    assert 0 < table.left_out == len(rows) - len(kept)
    sums = values[:, 1:4].sum(axis=1)  # what is not in the list is no category: all zeros
    assert {0.0, 1.0} == set(sums)


def test_codes_are_positions_in_the_list_from_1():
    content = "size\nM\n S \nXL\nL\nNA\n"
    choice = ColumnChoice(column="size", kind="codes", values=["S", "M", "L"], missing="fill", fill=-1.0)
    assert table_of(content, [choice])[1].ravel().tolist() == [2, 1, -1, 3, -1]
    fewer = table_of(content, [choice.model_copy(update={"missing": "leave_out", "fill": None})])
    assert (fewer[1].ravel().tolist(), fewer[0].numbers.tolist()) == ([2, 1, 3], [1, 2, 4])
    error = refused(content, [choice.model_copy(update={"missing": "refuse", "fill": None})])
    assert [(e["row"], e["count"]) for e in error.errors] == [(3, 2)]
    assert "no category" in error.errors[0]["message"]


def test_a_category_may_be_a_word_that_elsewhere_means_missing():
    choice = ColumnChoice(column="country", kind="one_hot", values=["NA", "DE"], missing="leave_out")
    table, values = table_of('country\nNA\nDE\n""\n', [choice])
    assert values.tolist() == [[1, 0], [0, 1]]
    assert table.numbers.tolist() == [1, 2]


DATES = {
    "iso": ("2024-02-29", ["2024-13-01", "29.02.2024", "2024-2-9", "20240229", "2023-02-29"]),
    "d.m.y": ("29.2.2024", ["2024-02-29", "29/2/2024", "30.2.2024", "29.2.24"]),
    "d/m/y": ("29/02/2024", ["02/29/2024", "29.2.2024"]),
    "m/d/y": ("02/29/2024", ["29/02/2024", "2-29-2024"]),
}


@pytest.mark.parametrize("text_format", DATES)
def test_dates_are_days_since_a_public_date(text_format):
    good, bad = DATES[text_format]
    choice = ColumnChoice(column="d", kind="date", date_format=text_format, since=date(2023, 12, 31))
    days = (datetime(2024, 2, 29, tzinfo=UTC) - datetime(2023, 12, 31, tzinfo=UTC)).days
    assert table_of(f"d\n{good}\n", [choice])[1].tolist() == [[days]] == [[60.0]]
    for text in bad:
        error = refused(f"d\n{good}\n{text}\n", [choice])
        assert error.errors == [
            {"message": "not a date of this format", "row": 2, "line": 3, "column": "d", "cell": text}
        ]


def test_a_time_of_day_is_a_fraction_and_a_zone_counts_in_utc():
    choice = ColumnChoice(column="d", kind="date")
    content = "d\n1970-01-02\n1970-01-02T06:00\n1970-01-02 12:00:00Z\n1970-01-02T01:00:00+01:00\n1969-12-31\n"
    assert table_of(content, [choice])[1].ravel().tolist() == [1.0, 1.25, 1.5, 1.0, -1.0]


def test_parquet_is_encoded_as_csv_is():
    columns = {
        "x": pa.array([1.5, None, math.nan, 4.0]),
        "cut": pa.array(["Good", "Ideal", None, "Good"]).dictionary_encode(),
        "day": pa.array([date(1970, 1, 3), None, date(1970, 1, 2), date(1969, 12, 31)]),
        "at": pa.array([datetime(1970, 1, 2, 12, tzinfo=UTC)] * 4, pa.timestamp("ns", "UTC")),
        "region": pa.array([7, 8, 7, 9], pa.int8()),
    }
    choices = [
        ColumnChoice(column="x", missing="fill", fill=9.0),
        ColumnChoice(column="cut", kind="one_hot", values=["Good", "Ideal"], missing="fill", fill=0.0),
        ColumnChoice(column="day", kind="date", missing="leave_out"),
        ColumnChoice(column="at", kind="date"),
        ColumnChoice(column="region", kind="codes", values=["9", "8", "7"]),
    ]
    table, values = table_of(parquet(**columns), choices)
    assert values.tolist() == [[1.5, 1, 0, 2, 1.5, 3], [9, 0, 0, 1, 1.5, 3], [4, 1, 0, -1, 1.5, 1]]
    assert table.numbers.tolist() == [1, 3, 4]


def test_a_row_that_is_left_out_is_no_row_of_its_person():
    content = "who,a\nx,1\nx,\ny,3\n,\n"
    persons = PersonColumn("who", b"k" * 32)
    columns = [ColumnChoice(column="a", missing="leave_out")]
    choice = ReadingChoice(columns=columns, person="who", rows_per_person=1)
    with read_csv(io.BytesIO(content.encode()), LIMITS, choice, persons) as t:
        assert np.concatenate(list(t.blocks)).tolist() == [[1], [3]]
    assert (len(persons.digests), t.numbers.tolist()) == (2, [1, 3])


def test_the_same_choices_read_the_same_numbers_again():
    text, _ = diamonds()
    first, second = table_of(text, CHOICES), table_of(text, CHOICES)
    again = table_of(text, first[0].reading.columns)  # what is stored of it is enough
    assert first[1].tobytes() == second[1].tobytes() == again[1].tobytes()
    assert first[0].reading == again[0].reading


# --- how German Excel writes, and others -------------------------------------------------------------


def test_semicolons_and_decimal_commas_are_detected():
    content = '\ufeffGröße;"Preis; €";n\r\n1,5;-2,25;1\r\n,5;1e3;2\r\n3;4,;3\r\n'
    table, values = table_of(content)
    assert (table.reading.separator, table.reading.decimal) == (";", ",")
    assert (table.names, values.tolist()) == (["Größe", "Preis; €", "n"], [[1.5, -2.25, 1], [0.5, 1000, 2], [3, 4, 3]])
    assert table_of("a\tb\n1.5\t2\n")[1].tolist() == [[1.5, 2]]


def test_a_point_among_decimal_commas_groups_thousands_or_is_refused():
    assert table_of("a;b\n1,5;1.234\n")[1].tolist() == [[1.5, 1234]]
    error = refused("a;b\n1,5;1.5\n")
    assert [e["column"] for e in error.errors] == ["b"]
    assert "decimal comma" in error.errors[0]["message"]


@pytest.mark.parametrize(("sign", "other"), [(",", "."), (".", ",")])
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_sign_before_three_digits_is_asked_back_unless_another_number_of_the_file_is_sure(sign, other, separator):
    """1,234 may be a thousand, or one and a bit: only the owner knows, or another column that is read as numbers."""
    text = f"a;b;c\n1{sign}234;2;1.25\n5;6;note\n7;8;9,50 or so\n".replace(";", separator)
    error = refused(text, ["a", "b"])
    cells = [{"cell": f"1{sign}234", "point": 1.234, "comma": 1234.0}]
    if sign == ",":
        cells[0] |= {"point": 1234.0, "comma": 1.234}
    assert (error.errors[0]["field"], error.errors[0]["readings"]) == ("decimal", cells)
    assert "234" not in str(error)
    assert survey(io.BytesIO(text.encode()), LIMITS, parquet=False).unsure == [CellReading(**cells[0])]
    for decimal, value in ((sign, 1.234), (other, 1234.0)):
        assert table_of(text, ["a", "b"], decimal=decimal)[1].tolist() == [[value, 2], [5, 6], [7, 8]]
        sure = text.replace(f"6{separator}", f"0{decimal}5{separator}")
        assert table_of(sure, ["a", "b"])[1].tolist() == [[value, 2], [5, 0.5], [7, 8]]
        assert not survey(io.BytesIO(sure.encode()), LIMITS, parquet=False).unsure


def test_the_chosen_columns_alone_say_the_decimal_sign():
    assert table_of("version;a\n1.5;2,25\n1.6;2.500\n", ["a"])[1].tolist() == [[2.25], [2500]]
    for other in ("8.30", "250.00", "1,5", "24.12"):
        assert refused(f"time;a\n{other};2.500\n{other};1.750\n", ["a"]).errors[0]["field"] == "decimal"
    refused_marker = ReadingChoice(missing_values=["-9.99"])
    with pytest.raises(DatasetInvalid, match="which sign"), read_csv(io.BytesIO(MARKED), LIMITS, refused_marker):
        pass


MARKED = b"a;b\n1.000;-9.99\n3.000;2.500\n"
"""A marker of gaps is no number."""


@pytest.mark.parametrize("more", ["", ";2.500"])
def test_sure_cells_that_contradict_each_other_decide_nothing(more):
    text = f"a;b{more and ';c'}\n1,5;1.25{more}\n2,5;2.25{more}\n"
    assert [each.cell for each in survey(io.BytesIO(text.encode()), LIMITS, parquet=False).unsure] == [
        each for each in [more[1:]] if each
    ]
    for decimal in (None, ".", ","):
        refused(text, decimal=decimal)


def test_a_file_of_one_column_is_asked_for_its_sign():
    assert [each["cell"] for each in refused("x\n1.000\n2.500\n").errors[0]["readings"]] == ["1.000", "2.500"]
    assert table_of("x\n1.000\n2.5\n")[1].tolist() == [[1.0], [2.5]]
    assert table_of("x,y\n1.000,1\n2.500,2\n")[1].tolist() == [[1.0, 1], [2.5, 2]]  # cells are cut at commas


def test_a_comma_in_a_text_column_is_no_decimal_comma():
    table, values = table_of("a;note\n1.5;3,5\n", ["a"])
    assert (table.reading.decimal, values.tolist()) == (".", [[1.5]])


def test_a_name_that_is_nearly_right_is_named():
    assert 'no column "tabel"; did you mean "table"? Nothing was stored.' in str(
        refused("table,b\n1,2\n", ["b", "tabel"])
    )


def test_a_file_of_which_no_row_is_left_is_refused():
    assert "no row is left" in str(refused("a,b\n,1\nNA,2\n", [ColumnChoice(column="a", missing="leave_out"), "b"]))


def test_choices_that_make_two_columns_of_one_name_or_too_many_are_refused():
    one_hot = ColumnChoice(column="a", kind="one_hot", values=["x"])
    assert "same name" in str(refused("a,a=x\nx,1\n", [one_hot, "a=x"]))
    many = ColumnChoice(column="a", kind="one_hot", values=[str(i) for i in range(51)])
    assert "at most 50" in str(refused("a\nx\n", [many]))


LISTS = (["x", " x"], [" "], [str(i) for i in range(101)])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"kind": "one_hot"}, {"values": ["x"]}, {"missing": "fill"}, {"fill": 1.0}, {"since": "2024-01-01"}),
        *({"kind": "codes", "values": values} for values in LISTS),
        {"kind": "one_hot", "values": ["x"], "missing": "fill", "fill": 2.0},
        {"kind": "date", "missing": "fill", "fill": math.inf},
    ],
)
def test_a_choice_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ValidationError):
        ColumnChoice.model_validate_json(json.dumps({"column": "a"} | wrong))


# --- what a change of category is in scaled units ------------------------------------------------------


@pytest.mark.parametrize("hidden", [None, 1.0, math.sqrt(2), 3.0])
def test_another_category_moves_a_record_by_the_square_root_of_two_hidden_changes(hidden):
    """Two columns move by 1 each: with the square root of 2 as hidden change, the whole change is one scaled unit."""
    choice = ColumnChoice(column="cut", kind="one_hot", values=CUTS, missing="fill", fill=0.0)
    _, values = table_of("cut\nFair\nGood\nIdeal\nOdd\n", [choice])
    features = [Feature(column=name, lower=0.0, upper=1.0, hidden_change=hidden) for name in choice.stored]
    rows = np.concatenate([b for _, b in ScaledRows(values, [0, 1, 2], features, np.arange(4)).blocks()])
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    assert distances[:3, :3].max() == pytest.approx(math.sqrt(2) / (hidden or 1.0))
    assert distances.max() == pytest.approx(distances[:3, :3].max())  # no category is nearer


def farthest(units):
    """The largest distance of two records that differ in a category alone: every pair of categories is tried."""
    rows = [*np.diag(1 / np.array(units)), np.zeros(len(units))]
    return max(float(np.linalg.norm(a - b)) for a in rows for b in rows)


@pytest.mark.parametrize("units", [[1.0], [1.0, 1.0, 1.0], [math.sqrt(2)] * 4, [1.0, 2.0, 5.0], [3.0, 1.5]])
def test_a_category_that_is_not_hidden_is_a_caution_and_one_that_is_hidden_is_none(units):
    moved = farthest(units)
    names = [f"cut={i}" for i in range(len(units))]
    features = [Feature(column=c, lower=0.0, upper=1.0, scale=u) for c, u in zip(names, units, strict=True)]
    for delta, is_hidden in ((moved * 1.000001, True), (moved * 0.999, False)):
        release = PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=delta)
        spec = a_study(release, features=[Feature(column="x", lower=0.0, upper=9.0), *features])
        cautions = of_categories(spec, {"cut": names, "other": ["other=1"]})
        assert [(c.code, c.field) for c in cautions] == [("category_not_hidden", "features.1")] * (not is_hidden)


# --- gzip ----------------------------------------------------------------------------------------------


def unpack(content, limit, folder):
    with unpacked(io.BytesIO(content), limit, folder) as file:
        return file.read()


def test_a_packed_file_is_unpacked_and_another_one_is_not(tmp_path):
    assert unpack(gzip.compress(b"a\n1\n"), 4, tmp_path) == b"a\n1\n"
    assert unpack(b"a\n1\n", 1, tmp_path) == b"a\n1\n"
    assert list(tmp_path.iterdir()) == []


def test_a_packed_file_may_hold_no_more_than_is_allowed(tmp_path):
    bomb = gzip.compress(bytes(20_000_000))
    assert len(bomb) < 50_000
    for content, why in ((bomb, "more than 1,000,000 bytes"), (bomb[:-9], "more than"), (b"\x1f\x8bx", "whole gzip")):
        with pytest.raises(DatasetInvalid, match=why):
            unpack(content, 1_000_000, tmp_path)
    with pytest.raises(DatasetInvalid, match="whole gzip"):
        unpack(gzip.compress(b"a\n1\n" * 100)[:-6], 1_000_000, tmp_path)


# --- what a survey sees ----------------------------------------------------------------------------------


def of(content):
    seen = survey(io.BytesIO(content.encode()), LIMITS, parquet=False)
    return seen, {column.name: column for column in seen.columns}


def test_a_survey_names_what_each_column_holds():
    text, rows = diamonds()
    seen, columns = of(text)
    assert (seen.rows, seen.separator, seen.decimal) == (400, ",", ".")
    holds = {"column_1": "number", "carat": "number", "cut": "text", "price": "number"}
    assert {name: column.holds for name, column in columns.items()} == holds
    assert [name for name, column in columns.items() if column.unnamed] == ["column_1"]
    assert columns["carat"].missing == sum(not row["carat"] for row in rows)
    assert columns["cut"].values == sorted({row["cut"] for row in rows} - {""})
    assert columns["cut"].wrong == sum(bool(row["cut"]) for row in rows)
    assert columns["price"].values is None


def test_a_survey_sees_dates_constants_empty_columns_and_typing_mistakes():
    content = "d,e,always,none,text,x\n1.2.2024,01/02/2024,7,,a,1\n3.4.2024,01/30/2024,7,NA,a,1.5\n,,7,,a,x1\n"
    _, columns = of(content)
    assert (columns["d"].holds, columns["d"].date_formats, columns["d"].missing) == ("date", ["d.m.y"], 1)
    assert columns["e"].date_formats == ["m/d/y"]
    assert [name for name, column in columns.items() if column.constant] == ["always", "text"]
    assert (columns["none"].holds, columns["none"].missing) == ("empty", 3)
    assert (columns["x"].holds, columns["x"].wrong, columns["x"].wrong_row) == ("text", 1, 3)


def test_a_survey_lists_no_more_than_100_values_and_no_long_ones():
    content = "few,many,long\n" + "".join(f"v{i % 100},w{i % 101},{'z' * 101}{i % 2}\n" for i in range(303))
    _, columns = of(content)
    assert len(columns["few"].values) == 100
    assert columns["many"].values is None
    assert columns["long"].values is None


@pytest.mark.parametrize("text", ["two\nlines", "two\u2028lines", "a\ttab"])
def test_a_survey_proposes_no_category_that_is_no_line(text):
    """Found by hand: two\\nlines was proposed as two categories, and its row was left out as if it had no value."""
    _, columns = of(f'note,x\n"{text}",1\nplain,2\n')
    assert (columns["note"].holds, columns["note"].values) == ("text", None)


def test_a_survey_of_parquet_knows_types():
    file = parquet(x=[1.0, None], t=["a", "b"], d=[date(2024, 1, 1)] * 2, flag=[True, False], odd=[[1.0], [2.0]])
    seen = survey(file, LIMITS, parquet=True)
    assert [c.holds for c in seen.columns] == ["number", "text", "date", "text", "other"]
    assert [c.values for c in seen.columns] == [None, ["a", "b"], None, ["False", "True"], None]


def test_a_survey_refuses_ragged_rows():
    with pytest.raises(DatasetInvalid) as error:
        of("a,b\n1,2\n3\n4\n")
    assert error.value.errors == [{"message": "1 cells where the header has 2", "row": 2, "line": 3, "count": 2}]


# --- files that are much larger than they look -----------------------------------------------------------


def bomb(cell, rows=10_000):
    """A file of a kilobyte: all rows hold the same long text."""
    return parquet(a=pa.array([cell], pa.string()).take(pa.array(np.zeros(rows, dtype=np.int64))))


def most_memory(read, file):
    """Bytes of Python's objects at most, and of Arrow's between two blocks."""
    arrow, before = [], pa.total_allocated_bytes()
    tracemalloc.start()
    for _ in read(file):
        arrow.append(pa.total_allocated_bytes() - before)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return max(python, max(arrow))


def blocks_of(file):
    with parquet_source(file, LARGE) as source:
        yield from source.blocks(["a"], Findings())


def lines_of(file):
    with csv_source(file, LARGE, ReadingChoice()) as source:
        yield from source.blocks(["a"], Findings())


LARGE = Limits(rows=20_000, columns=2)


def test_a_text_that_many_rows_of_parquet_share_is_held_once_and_blocks_are_cut_by_their_size():
    file = bomb("x" * 20_000)
    assert len(file.getvalue()) < 2_000
    assert most_memory(blocks_of, file) < 30e6  # of 200 MB
    rows = [block.rows for block in blocks_of(file)]
    assert max(map(len, rows)) * 20_000 < 2e7
    assert list(chain(*rows)) == list(range(1, 10_001))
    seen = survey(bomb("x" * 20_000), LARGE, parquet=True)
    assert (seen.rows, seen.columns[0].wrong) == (10_000, 10_000)


def test_a_block_of_csv_is_cut_by_its_size():
    file = io.BytesIO(b"a\n" + (b"x" * 100_000 + b"\n") * 500)
    assert most_memory(lines_of, file) < 4e6  # of 50 MB, which would be one block
    assert sum(len(block.rows) for block in lines_of(file)) == 500


def test_parquet_is_refused_for_what_it_holds_and_not_for_its_own_size():
    limits = Limits(rows=20_000, columns=2, unpacked=1_000_000)
    short, long = bomb("x" * 90), bomb("x" * 110)
    assert len(long.getvalue()) < 2_000
    assert survey(short, limits, parquet=True).rows == 10_000
    with pytest.raises(DatasetInvalid, match="holds more than 1,000,000 bytes when unpacked"):
        survey(long, limits, parquet=True)
    with pytest.raises(DatasetInvalid, match="column a: not a number"):  # its type says so: nothing of it is read
        table_of(long, ["a"], None, limits)
    packed = io.BytesIO()
    pq.write_table(pa.table({"a": ["x" * 110] * 10_000}), packed, compression="zstd", use_dictionary=False)
    assert packed.tell() < 10_000
    with pytest.raises(DatasetInvalid, match="holds more than"), parquet_source(packed, limits):
        pytest.fail("its own account of its size is enough")


def test_a_cell_of_parquet_is_as_long_as_one_of_csv_at_most():
    survey(parquet(a=["x", "x" * 131_072]), LIMITS, parquet=True)
    with pytest.raises(DatasetInvalid) as error:
        survey(parquet(a=["x", "x" * 131_073]), LIMITS, parquet=True)
    assert error.value.errors == [{"message": "a cell is longer than 131072 characters", "row": 2, "column": "a"}]
    survey(io.BytesIO(b"a\n" + b"x" * 131_072), LIMITS, parquet=False)
    with pytest.raises(DatasetInvalid, match="field larger than field limit"):
        survey(io.BytesIO(b"a\n" + b"x" * 131_073), LIMITS, parquet=False)


def test_a_column_of_parquet_that_cannot_be_used_is_not_read():
    """A list in one row may be longer than the memory."""
    file = parquet(a=[1.0, 2.0], b=pa.array([[1.0] * 1_000_000, None]))
    before, allocated = pa.total_allocated_bytes(), []
    with parquet_source(file, LIMITS) as source:
        for block in source.blocks(["b", "a"], Findings()):
            allocated.append(pa.total_allocated_bytes() - before)
            assert (block.columns[0], block.columns[1].values.tolist()) == (["", ""], [1.0, 2.0])
    assert max(allocated) < 1e6
    assert [c.holds for c in survey(file, LIMITS, parquet=True).columns] == ["number", "other"]


def test_shared_texts_come_back_with_their_gaps_in_every_group():
    rng = np.random.default_rng(0)
    texts = [None if i == 0 else f"text {i}" for i in rng.integers(0, 9, 1_000).tolist()]
    for column in (pa.array(texts), pa.array(texts, pa.large_string()), pa.array(texts).dictionary_encode()):
        file = io.BytesIO()
        pq.write_table(pa.table({"a": column}), file, row_group_size=300)
        assert list(chain(*(block.columns[0] for block in blocks_of(file)))) == [text or "" for text in texts]


# --- what the owner declares of the whole file -------------------------------------------------------


@given(st.data())
def test_declared_markers_are_gaps_of_the_file_or_of_one_column_and_nothing_else_is(data):
    """Markers that are drawn: words, signs, and numbers as they are written."""
    marker = data.draw(st.one_of(st.text("?.-<>#*xyz", min_size=1, max_size=6), st.integers(-999, -99).map(str)))
    rows = data.draw(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 9)), min_size=1, max_size=12))
    text = "a,b\n" + "".join(f"{marker if a else n},{marker if b else n}\n" for a, b, n in rows)
    gaps = {"missing": "fill", "fill": -1.0}
    columns = [ColumnChoice(column=name, **gaps) for name in "ab"]
    with read_csv(io.BytesIO(text.encode()), LIMITS, ReadingChoice(columns=columns, missing_values=[marker])) as table:
        values = np.concatenate(list(table.blocks))
    assert table.reading.missing_values == [marker]
    assert values.tolist() == [[-1.0 if a else n, -1.0 if b else n] for a, b, n in rows]
    of_one = [ColumnChoice(column="a", missing_values=[marker], **gaps), columns[1]]
    if any(b for _, b, _ in rows) and not marker.lstrip("-").isdecimal():  # the control: column b declares none
        assert "not a number" in str(refused(text, of_one))
    else:
        assert table_of(text, of_one)[1].tolist() == [[-1.0 if a else n, float(marker) if b else n] for a, b, n in rows]


def test_a_marker_is_no_category_and_a_gap_of_parquet_may_be_a_number():
    with pytest.raises(ValidationError, match="a gap or a category"):
        ColumnChoice(column="a", kind="codes", values=["x", "?"], missing_values=["?"])
    choice = ColumnChoice(column="a", missing="leave_out", missing_values=["-999"])
    assert table_of(parquet(a=[1.5, -999.0, 3.0]), [choice])[1].ravel().tolist() == [1.5, 3.0]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_declared_separator_and_encoding_are_taken_as_they_are(separator):
    """A name that has other separators in it says nothing: the declaration does."""
    choice = ReadingChoice(separator=separator, encoding="windows-1252")
    file = io.BytesIO(f'"ö;,|"{separator}b\n1{separator}2\n'.encode("cp1252"))
    with read_csv(file, LIMITS, choice) as table:
        assert (table.names, [block.tolist() for block in table.blocks]) == (["ö;,|", "b"], [[[1.0, 2.0]]])
    assert (table.reading.separator, table.reading.encoding) == (separator, "windows-1252")
    with pytest.raises(DatasetInvalid, match="say that it is Windows-1252"), read_csv(file, LIMITS) as table:
        pass
