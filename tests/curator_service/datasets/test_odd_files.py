"""Odd files, as a table: taken with these numbers, or refused at this position, by what the reading process runs.

The review that tried 166 files kept no copies, so these are written anew from its list. What depends on sizes is in
``tests/system/hostile_load.py``.
"""

import gzip
import io
import math
import struct
import tempfile
import zipfile
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from blindopt.wire import ColumnChoice, ReadingChoice
from curator_service.datasets.sources import Limits
from curator_service.datasets.worker import Job, Reply, read
from service_kit import runner

LIMITS = Limits(rows=50, columns=1_000, unpacked=1 << 20)


def sent(content, columns=None, *, parquet=False, limits=LIMITS):
    """The reply of a reading process, and the numbers that it wrote."""
    with tempfile.TemporaryFile() as values:
        job = Job(
            file=0, parquet=parquet, limits=limits, reading=ReadingChoice(columns=columns), values=values.fileno()
        )
        reply = read(job, io.BytesIO(content), runner.Sender(Reply, io.BytesIO()))
        values.seek(0)
        written = values.read()
    if reply.problem is not None:
        return reply, None
    return reply, np.load(io.BytesIO(written), allow_pickle=False)


def table(*cells, header=b"a,b\n", end=b"\n"):
    return header + b"".join(cell + end for cell in cells)


WIDE = ",".join(f"c{i}" for i in range(1_000)) + "\n" + ",".join("1" for _ in range(1_000)) + "\n"
TAKEN = {
    "byte order mark": (b"\xef\xbb\xbfa,b\n1,2\n", [[1, 2]]),
    "CR": (b"a,b\r1,2\r3,4\r", [[1, 2], [3, 4]]),
    "CRLF": (b"a,b\r\n1,2\r\n3,4\r\n", [[1, 2], [3, 4]]),
    "mixed ends": (b"a,b\n1,2\r\n3,4\r5,6\n", [[1, 2], [3, 4], [5, 6]]),
    "no last newline": (b"a,b\n1,2", [[1, 2]]),
    "blank lines at the end": (b"a,b\n1,2\n\n\n\r\n", [[1, 2]]),
    "blank lines within": (b"a,b\n1,2\n\n3,4\r\n\n\n5,6\n", [[1, 2], [3, 4], [5, 6]]),
    "blank lines among quotes": (b'a,b\n"1",2\n\n3,4\n', [[1, 2], [3, 4]]),
    "bars": (b"a|b\n1|2\n3|4\n", [[1, 2], [3, 4]]),
    "a line that names the separator": (b"sep=;\r\na;b\r\n1,5;2\r\n", [[1.5, 2]]),
    "such a line after a mark, in quotes": (b'\xef\xbb\xbf"SEP=|"\na|b\n1|"2"\n', [[1, 2]]),
    "quoted numbers": (b'"a","b"\n"1","2"\n', [[1, 2]]),
    "signs and zeros": (table(b"+1,007", b"-0.0,1."), [[1, 7], [-0.0, 1]]),
    "subnormal and large": (table(b"5e-324,1e308"), [[5e-324, 1e308]]),
    "4,500 decimals": (table(b"0." + b"1" * 4_500 + b",2"), [[1 / 9, 2]]),
    "1,000 columns": (WIDE.encode(), [[1.0] * 1_000]),
    "blanks around": (table(b" 1 ,\t2"), [[1, 2]]),
    "groups of three": (table(b"1 000,2'345.5", "\u22121\u00a0234,1".encode()), [[1000, 2345.5], [-1234, 1]]),
    "groups in quotes": (table(b'"1,000",0.5', b'"12,34,567.5","2,000"'), [[1000, 0.5], [1234567.5, 2000]]),
    "decimal commas in quotes": (table(b'"1,5","1.000"'), [[1.5, 1000]]),
    "beyond 2^53": (table(b"9007199254740993,1"), [[9007199254740992, 1]]),
    "too small": (table(b"1e-400,1"), [[0, 1]]),
    "semicolons and decimal commas": (b"a;b\n1,5;2\n", [[1.5, 2]]),
    "tabs": (b"a\tb\n1\t2\n", [[1, 2]]),
}
ROW_2 = {"row": 2, "line": 3}
CELLS = {
    "missing": [
        "", " ", '""', '" "', "\t", "\u00a0", "nan", "NaN", "NA", "na", "N/A", "n/a", "null",
        "NULL", " NULL ", "None", "none",
    ],
    "not a number": [
        "10 00", "1'00", '"1,5,5"', "1_000", "0x1p3", "0x10", "0o7", "\u0663", "\uff13", "\u2212-1", "\u221e",
        "1\u00a0", "1\u00a000", "2026-11-23", "23.11.2026", "12:30", "5%", "$5", "5 €", "=1+1", "--1", "1.2.3", "e5",
        "1e", "1j", "true", "high", "-", "?", ".",
    ],
    "not finite": ["inf", "-inf", "Infinity", "-Infinity", "INF", "-nan", "1e400", "-1e999"],
}  # fmt: skip
MISSING = "missing value: fill it, or leave the row or the column out"
AT_A_LINE = {
    "a row too short": (table(b"1,2", b"3"), ROW_2 | {"message": "1 cells where the header has 2"}),
    "a row too long": (table(b"1,2", b"3,4,5"), ROW_2 | {"message": "3 cells where the header has 2"}),
    "a trailing comma": (table(b"1,2", b"3,4,"), ROW_2 | {"message": "3 cells where the header has 2"}),
    "a quote around both": (table(b"1,2", b'"3,4"'), ROW_2 | {"message": "1 cells where the header has 2"}),
    "nothing but a comma": (b"a,b\n1,2\n,\n3,4\n", ROW_2 | {"column": "a", "message": MISSING}),
    "cut at semicolons": (b"a;b\n1;2\n3\n", ROW_2 | {"message": "1 cells where the header has 2, cut at semicolons"}),
    "cut at tabs": (b"a\tb\n1\t2\n3\n", ROW_2 | {"message": "1 cells where the header has 2, cut at tabs"}),
    "one row too many": (table(*[b"1,2"] * 51), {"row": 51, "line": 52}),
}


def parquet(whole=None, **columns):
    file = io.BytesIO()
    pq.write_table(whole or pa.table(columns), file)
    return file.getvalue()


def packed(content, name="a.csv"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


GOOD = parquet(a=[1.0, 2.0], b=[3.0, 4.0])
UTF_8 = "not UTF-8 text: save it as CSV in UTF-8"
WORKBOOK = "a workbook of a spreadsheet, or an archive: save the sheet as CSV in UTF-8"
IN_CASE = "columns 1 and 2 differ only in case, or in how a letter is composed"
NO_NAME = "column 2 has no usable name"
AS_A_WHOLE = {
    "nothing": (b"", "the file is empty"),
    "a byte order mark alone": (b"\xef\xbb\xbf", "the file is empty"),
    "a header alone": (b"a,b\n", "a header but no rows"),
    "a header alone, unended": (b"a,b", "a header but no rows"),
    "a blank first line": (b"\na,b\n1,2\n", "the first line is blank", 1),
    "NUL": (b"a,b\n1,\0\n", "it holds a zero byte", 2),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), UTF_8),
    "UTF-32": ("a,b\n1,2\n".encode("utf-32"), UTF_8),
    "Latin-1": ("ä,b\n1,2\n".encode("latin-1"), UTF_8),
    "Latin-1 far down": (b"a\n" + b"1\n" * 900 + b"\xe9\n", UTF_8),
    "zip": (packed("a,b\n1,2\n"), WORKBOOK),
    "xlsx": (packed("<worksheet/>", "xl/worksheets/sheet1.xml"), WORKBOOK),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504), "save the sheet as CSV"),
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", UTF_8),
    "gzip twice": (gzip.compress(gzip.compress(b"a,b\n1,2\n")), UTF_8),
    "random bytes": (np.random.default_rng(0).bytes(2_000), UTF_8),
    "Parquet that is called CSV": (GOOD, UTF_8),
    "an unclosed quote": (b'a,b\n1,"2\n3,4\n', "not well-formed CSV", 3),
    "a quote inside a cell": (b'a,b\n1,"2"3\n', "not well-formed CSV"),
    "a line without end": (b"a,b\n1," + b" " * (1 << 22) + b"2\n", "a line is longer than"),
    "a huge cell": (b'a,b\n1,"' + b" " * 200_000 + b'2"\n', "field limit"),
    "two equal names": (b"a,b,a\n1,2,3\n", "columns 1 and 3 have the same name", 1),
    "names alike but for blanks": (b"a, a\n1,2\n", "columns 1 and 2 have the same name", 1),
    "a name that a column without one has": (b"a,,column_2\n1,2,3\n", "columns 2 and 3 have the same name", 1),
    "names that differ in case": (b"a,A\n1,2\n", IN_CASE, 1),
    "names that differ in form": ("é,e\u0301\n1,2\n".encode(), IN_CASE, 1),
    "a name that cannot be printed": (b"a,b\x07\n1,2\n", NO_NAME, 1),
    "a name too long": (b"a," + b"n" * 201 + b"\n1,2\n", NO_NAME, 1),
    "a header of numbers": (b"1.5,2\n3,4\n", "column 1 is a number", 1),
    "a number among the names": (b"a,1e3\n1,2\n", "column 2 is a number", 1),
    "1,001 columns": (WIDE.replace("c0,", "c0,more,").replace("\n1,", "\n1,1,").encode(), "1001 columns", 1),
    "one row too many": (table(*[b"1,2"] * 51), "more than 50 rows", 52),
}  # fmt: skip
UNREADABLE, OF_TYPE = "not a readable Parquet file", "not a number: the column's type is "
IN_ROW_2 = {"row": 2, "column": "a"}
PARQUET = {
    "empty": (b"", UNREADABLE),
    "zeros": (b"PAR1" + b"\0" * 100 + b"PAR1", UNREADABLE),
    "truncated": (GOOD[:-20], UNREADABLE),
    "no footer": (GOOD[: len(GOOD) // 2], UNREADABLE),
    "a length beyond the file": (GOOD[:-8] + struct.pack("<i", 1 << 30) + b"PAR1", UNREADABLE),
    "CSV": (b"a,b\n1,2\n", UNREADABLE),
    "no rows": (parquet(a=pa.array([], pa.float64())), "no rows"),
    "no columns": (parquet(), "empty"),
    "a row too many": (parquet(a=np.zeros(51)), "more than 50 rows"),
    "a column too many": (parquet(**{f"c{i}": [1.0] for i in range(1_001)}), "1001 columns", {"line": 1}),
    "two equal names": (parquet(pa.Table.from_arrays([pa.array([1.0])] * 2, ["a", "a"])), "same name", {"line": 1}),
    "a name that cannot be printed": (parquet(**{"\x07": [1.0]}), "no usable name", {"line": 1}),
    "a list": (parquet(a=[[1.0], [2.0]]), OF_TYPE + "list", {"column": "a"}),
    "a struct": (parquet(a=[{"x": 1.0}, {"x": 2.0}]), OF_TYPE + "struct", {"column": "a"}),
    "timestamps": (parquet(a=pa.array([0, 1], pa.timestamp("us"))), OF_TYPE + "timestamp", {"column": "a"}),
    "logical": (parquet(a=[True, False]), OF_TYPE + "bool", {"column": "a"}),
    "text": (parquet(a=["1", "2"]), OF_TYPE + "string", {"column": "a"}),
    "a dictionary": (parquet(a=pa.array(["u", "v"]).dictionary_encode()), OF_TYPE + "dictionary", {"column": "a"}),
    "nothing but NULL": (parquet(a=pa.nulls(2)), OF_TYPE + "null", {"column": "a"}),
    "NULL": (parquet(a=[1.0, None]), "missing value", IN_ROW_2),
    "NULL among whole numbers": (parquet(a=[1, None]), "missing value", IN_ROW_2),
    "NaN": (parquet(a=[1.0, math.nan]), "missing value", IN_ROW_2),
    "infinite": (parquet(a=[1.0, -math.inf]), "not finite", IN_ROW_2),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_and_holds_these_numbers(name):
    content, expected = TAKEN[name]
    reply, values = sent(content)
    assert reply.problem is None, reply.errors
    assert (reply.rows, values.tobytes()) == (len(expected), np.array(expected, dtype=float).tobytes())
    rounded = sum(column.rounded for column in reply.columns)
    assert rounded == (name in ("beyond 2^53", "too small"))


@pytest.mark.parametrize(("kind", "cell"), [(kind, cell) for kind in CELLS for cell in CELLS[kind]])
def test_a_cell_that_is_no_plain_number_is_refused_at_its_place_and_not_repeated(kind, cell):
    reply, _ = sent(table(b"1,2", f"3,{cell}".encode(), b"5,6"))
    assert reply.problem is not None
    (fault,) = reply.errors
    assert {key: fault[key] for key in ("row", "line", "column")} == ROW_2 | {"column": "b"}
    assert fault["message"].startswith(kind)
    if kind == "not a number":  # the cell is shown beside the message, to whoever sent the file
        assert fault["cell"] == cell.strip('" ').strip()
    assert len(cell.strip()) < 4 or cell not in f"{reply.problem} {fault['message']}"


@pytest.mark.parametrize("name", AT_A_LINE)
def test_a_row_that_does_not_fit_is_refused_at_its_line(name):
    content, position = AT_A_LINE[name]
    reply, _ = sent(content)
    assert reply.problem is not None
    assert position.items() <= reply.errors[0].items(), reply.errors


@pytest.mark.parametrize(("content", "why", "line"), [(*odd, None)[:3] for odd in AS_A_WHOLE.values()], ids=AS_A_WHOLE)
def test_what_is_no_such_table_is_refused_in_words(content, why, line):
    reply, _ = sent(content)
    assert why in reply.problem
    assert (reply.errors_total, reply.errno) == (1, None)
    assert line in (None, reply.errors[0].get("line"))


@pytest.mark.parametrize(("content", "why", "position"), [(*odd, {})[:3] for odd in PARQUET.values()], ids=PARQUET)
def test_what_is_no_such_parquet_file_is_refused_in_words(content, why, position):
    reply, _ = sent(content, parquet=True)
    (fault,) = reply.errors
    assert why in reply.problem + fault["message"]
    assert {key: value for key, value in fault.items() if key != "message"} == position
    assert (reply.errors_total, reply.errno) == (1, None)


@pytest.mark.parametrize("seed", range(20))
def test_a_parquet_file_with_a_flipped_bit_is_refused_or_its_numbers_are_written(seed):
    damaged, at = bytearray(GOOD), int(np.random.default_rng(seed).integers(len(GOOD) * 8))
    damaged[at // 8] ^= 1 << at % 8
    reply, values = sent(bytes(damaged), parquet=True)
    assert (reply.problem is None) == (values is not None)
    assert values is None or np.isfinite(values).all()


def test_the_control_is_taken():
    assert sent(GOOD, parquet=True)[1].tolist() == [[1.0, 3.0], [2.0, 4.0]]


@pytest.mark.parametrize("sign", "~:x")
def test_a_line_that_names_another_separator_is_refused_and_a_declared_one_counts(sign):
    content = f"sep={sign}\na;b\n1;2\n".encode()
    reply, _ = sent(content)
    assert (reply.errors[0]["line"], "names a separator" in reply.problem) == (1, True)
    with tempfile.TemporaryFile() as values:
        choice = ReadingChoice(separator=";")
        job = Job(file=0, parquet=False, limits=LIMITS, reading=choice, values=values.fileno())
        assert read(job, io.BytesIO(content), runner.Sender(Reply, io.BytesIO())).rows == 1


def test_empty_lines_within_are_counted_with_the_rows_that_are_left_out_and_keep_their_numbers():
    with tempfile.TemporaryFile() as values, tempfile.TemporaryFile() as numbers:
        files = {"values": values.fileno(), "numbers": numbers.fileno()}
        content = b"a,b\n1,2\n\n3,4\n\n"
        reply = read(Job(file=0, parquet=False, limits=LIMITS, **files), io.BytesIO(content), silent())
        numbers.seek(0)
        assert (reply.rows, reply.left_out, np.frombuffer(numbers.read(), np.int64).tolist()) == (2, 1, [1, 3])


def silent():
    return runner.Sender(Reply, io.BytesIO())


ONE_OF_EACH = {
    "whole": pa.array([1, -2, None], pa.int32()),
    "large": pa.array([2**53 + 1, 2**62, None], pa.int64()),
    "real": pa.array([1.5, -1e-300, None], pa.float64()),
    "single": pa.array([0.25, 1e10, None], pa.float32()),
    "decimal": pa.array([Decimal("1.50"), Decimal("-0.25"), None], pa.decimal128(9, 2)),
    "text": pa.array(["x", "y", None]),
    "category": pa.array(["x", "y", None]).dictionary_encode(),
    "flag": pa.array([True, False, None]),
    "day": pa.array([date(2024, 2, 29), date(1969, 7, 20), None]),
    "day64": pa.array([date(2024, 2, 29), date(1969, 7, 20), None], pa.date64()),
    **{
        f"moment in {unit}{zone or ''}": pa.array([1_700_000_000 * scale, -scale, None], pa.timestamp(unit, zone))
        for unit, scale in (("s", 1), ("ms", 10**3 + 1), ("us", 10**6 + 1), ("ns", 10**9 + 1_000))
        for zone in (None, "UTC", "+05:30")
    },
}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_frame_is_the_same_dataset_in_csv_and_in_parquet(name):
    """A column of each type; CSV as pyarrow writes it, and as a data frame does with the text of its values."""
    column = ONE_OF_EACH[name]
    listed = {"text": ["x", "y"], "category": ["x", "y"], "flag": ["False", "True"]}
    kind = "date" if "day" in name or "moment" in name else "one_hot" if name in listed else "number"
    choice = ColumnChoice(column="a", kind=kind, values=listed.get(name), missing="leave_out")
    texts = ["" if value is None else str(value) for value in column.to_pylist()]
    csvs = ["\n".join(["b,a", *(f"{i},{text}" for i, text in enumerate(texts))]).encode()]
    if name != "category":
        written = io.BytesIO()
        pa_csv.write_csv(pa.table({"b": [0, 1, 2], "a": column}), written)
        if name != "flag":  # pyarrow writes true and false, a data frame True and False
            csvs.append(written.getvalue())
    reply, values = sent(parquet(pa.table({"b": [0, 1, 2], "a": column})), ["b", choice], parquet=True)
    assert (reply.problem, reply.rows, reply.left_out) == (None, 2, 1)
    for content in csvs:
        other, of_csv = sent(content, ["b", choice])
        assert (other.problem, other.left_out) == (None, 1)
        assert [column.rounded for column in other.columns] == [column.rounded for column in reply.columns]
        np.testing.assert_array_equal(of_csv, values)
