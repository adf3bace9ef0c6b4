"""Reading a file of records: what comes in is what was sent, and every fault has its place but never its value."""

import csv
import decimal
import io
import math
import re
import traceback
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blindopt.errors import DatasetInvalid
from blindopt.wire import ReadingChoice
from curator_service.datasets.reading import read_table
from curator_service.datasets.sources import ERRORS_SHOWN, Limits
from curator_service.datasets.survey import survey

read_csv, read_parquet = (partial(read_table, parquet=parquet) for parquet in (False, True))
LIMITS = Limits(rows=1_000, columns=50)
CANARY = "483927.5517e3"  # what stands in a cell must stand in no error


@dataclass
class Read:
    """A table whose blocks were all taken."""

    names: list[str]
    dropped: list[str]
    values: np.ndarray


def whole(read, file, limits=LIMITS, columns=None) -> Read:
    with read(file, limits, ReadingChoice(columns=columns)) as table:
        blocks = list(table.blocks)
    assert all(len(block) for block in blocks)
    return Read(table.names, table.dropped, np.concatenate(blocks))


def csv_of(content: str | bytes, columns=None, limits=LIMITS) -> Read:
    return whole(read_csv, io.BytesIO(content if isinstance(content, bytes) else content.encode()), limits, columns)


def parquet_of(table: pa.Table | bytes, columns=None, limits=LIMITS) -> Read:
    buffer = io.BytesIO()
    if isinstance(table, bytes):
        buffer.write(table)
    else:
        pq.write_table(table, buffer)
    buffer.seek(0)
    return whole(read_parquet, buffer, limits, columns)


def refusal(read, *args, **kwargs) -> DatasetInvalid:
    with pytest.raises(DatasetInvalid) as refused:
        read(*args, **kwargs)
    return refused.value


def only_fault(error: DatasetInvalid) -> dict[str, object]:
    assert error.total == len(error.errors) == 1
    assert "count" not in error.errors[0]
    return {key: value for key, value in error.errors[0].items() if key != "message"}


# --- what comes in is what was sent ----------------------------------------------------------------


def is_number(name: str) -> bool:
    """A header made of numbers is a row of records, and is refused."""
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", name, re.ASCII) is not None


NAME = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
NAMES = st.lists(NAME.filter(lambda name: not is_number(name)), min_size=1, max_size=6, unique=True)


@st.composite
def tables(draw):
    names = draw(NAMES)
    rows = draw(st.integers(1, 20))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    return names, draw(hnp.arrays(np.float64, (rows, len(names)), elements=finite))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(tables(), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.booleans(), st.booleans())
def test_a_table_comes_back_from_csv_bit_for_bit(table, newline, bom, quoted, ends_with_newline):
    names, values = table
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=newline, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
    writer.writerow(names)
    writer.writerows([[repr(float(cell)) for cell in row] for row in values])
    content = text.getvalue() if ends_with_newline else text.getvalue().removesuffix(newline)
    read = csv_of(content.encode("utf-8-sig" if bom else "utf-8"))
    assert (read.names, read.dropped) == (names, [])
    assert read.values.tobytes() == values.tobytes()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables())
def test_a_table_comes_back_from_parquet_bit_for_bit(table):
    names, values = table
    read = parquet_of(pa.table(dict(zip(names, values.T, strict=True))))
    assert (read.names, read.dropped) == (names, [])
    assert read.values.tobytes() == np.ascontiguousarray(values).tobytes()


def test_more_rows_than_one_chunk_keep_their_order():
    content = "a,b\n" + "".join(f"{i},{-i}\n" for i in range(25_003))
    read = csv_of(content, limits=Limits(rows=30_000, columns=2))
    np.testing.assert_array_equal(read.values[:, 0], np.arange(25_003.0))
    np.testing.assert_array_equal(read.values[:, 1], -np.arange(25_003.0))


def test_more_rows_than_one_block_or_group_of_parquet_keep_their_order():
    buffer = io.BytesIO()
    up = np.arange(25_003.0)
    pq.write_table(pa.table({"a": up, "b": -up}), buffer, row_group_size=7_001)
    read = whole(read_parquet, buffer, Limits(rows=30_000, columns=2))
    np.testing.assert_array_equal(read.values, np.column_stack([up, -up]))


class Counted(io.BytesIO):
    """Knows how many of its bytes were read."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(size)
        self.taken += len(part)
        return part


@pytest.mark.parametrize("groups", [300_000, 10_000])
def test_parquet_is_read_as_its_blocks_are_taken(groups):
    """However large a row group is: a file may be larger than the memory."""
    file = Counted()
    table = pa.table({name: np.random.default_rng(0).random(300_000) for name in "abc"})
    pq.write_table(table, file, row_group_size=groups, use_dictionary=False, data_page_size=1 << 16)
    size, file.taken = file.tell(), 0
    with read_parquet(file, Limits(rows=10**6, columns=3)) as read:
        next(read.blocks)
        assert 0 < file.taken < size / 8
        assert sum(len(block) for block in read.blocks) == 290_000
    assert file.taken >= 0.99 * size


def test_only_the_chosen_columns_are_looked_at():
    """In the order in which they were named; what is dropped may hold anything that is CSV."""
    content = f'id,a,note,b\nx,1,"{CANARY}\n, and more",2\n,3,nan,4\n'
    read = csv_of(content, ["b", "a"])
    assert (read.names, read.dropped) == (["b", "a"], ["id", "note"])
    assert read.values.tolist() == [[2.0, 1.0], [4.0, 3.0]]


def test_only_the_chosen_columns_of_parquet_are_looked_at():
    table = pa.table({"id": ["x", None], "a": [1.0, 3.0], "n": pa.array([None, math.nan]), "b": [2, 4]})
    read = parquet_of(table, ["b", "a"])
    assert (read.names, read.dropped) == (["b", "a"], ["id", "n"])
    assert read.values.tolist() == [[2.0, 1.0], [4.0, 3.0]]


def test_names_lose_the_blanks_around_them():
    assert csv_of(" a , b\n1,2\n", ["b"]).names == ["b"]
    assert parquet_of(pa.table({" a ": [1.0], "b": [2.0]}), ["a"]).values.tolist() == [[1.0]]


def test_a_dot_in_a_parquet_name_is_no_path():
    table = pa.table({"a": [1.0, 2.0], "a.b": ["x", "y"], "c.d": [5.0, 6.0]})
    assert parquet_of(table, ["a", "c.d"]).values.tolist() == [[1.0, 5.0], [2.0, 6.0]]


ARROW_NUMBERS = [
    *(pa.array([1, 2], kind) for kind in (pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64())),
    pa.array(np.array([1.0, 2.0], np.float16)),
    *(
        pa.array([decimal.Decimal(1), decimal.Decimal(2)], kind)
        for kind in (pa.decimal128(10, 2), pa.decimal256(60, 3))
    ),
    pa.chunked_array([pa.array([1.0]), pa.array([2.0])]),
]


@pytest.mark.parametrize("column", ARROW_NUMBERS, ids=lambda column: str(column.type))
def test_every_kind_of_number_in_parquet_is_read(column):
    assert parquet_of(pa.table({"a": column})).values.tolist() == [[1.0], [2.0]]


def test_the_repr_of_a_table_shows_its_shape_alone():
    with read_csv(io.BytesIO(f"a,b\n{CANARY},2\n".encode()), LIMITS) as table:
        assert repr(table) == "Table(2 columns)"


def test_the_file_stays_open_for_its_digest():
    file = io.BytesIO(b"a\n1\n")
    whole(read_csv, file)
    assert file.seek(0) == 0
    broken = io.BytesIO(b"a\nx\n")
    refusal(whole, read_csv, broken)
    assert broken.seek(0) == 0


# --- one fault, in its place -----------------------------------------------------------------------


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_are_counted_through_quoted_newlines(newline):
    """Rows 1 and 2 spread over three and two lines: row 3 stands on line 7."""
    lines = ["note,a", '"one', "two", 'three",1', '"one', 'two",2', "four,x", "five,4"]
    error = refusal(csv_of, newline.join(lines), ["a"])
    assert only_fault(error) == {"row": 3, "line": 7, "column": "a", "cell": "x"}


def test_a_dropped_column_does_not_excuse_a_ragged_row():
    assert only_fault(refusal(csv_of, "id,a\nx,1\ny\n", ["a"])) == {"row": 2, "line": 3}


def test_faults_beyond_the_first_chunk_have_their_place():
    content = "a\n" + "1\n" * 10_500 + "x\n"
    error = refusal(csv_of, content, limits=Limits(rows=20_000, columns=2))
    assert only_fault(error) == {"row": 10_501, "line": 10_502, "column": "a", "cell": "x"}


@pytest.mark.parametrize("faults", [2, 50, 51, 400])
def test_faults_of_one_kind_in_a_column_are_one_entry_with_their_number(faults):
    error = refusal(csv_of, "a,b,c\n" + "1,2,3\n" + "1,x,\n" * faults + "1,2,3\n" * 10)
    where = {"row": 2, "line": 3, "count": faults}
    assert [{k: v for k, v in e.items() if k != "message"} for e in error.errors] == [
        where | {"column": "b", "cell": "x"},
        where | {"column": "c"},
    ]
    assert error.extra()["errors_total"] == error.total == 2 * faults
    assert str(error).startswith(f"column b, row 3 of the file: {error.errors[0]['message']} ({faults} times); ")
    assert len(str(error)) < 200


def test_the_message_is_the_first_fault_and_counts_the_others():
    """Found by hand: the summary said "leave them out", and the fault "write numbers with a point"."""
    error = refusal(csv_of, 'a,b\n"1,2,3",x\nw,y\n')
    first = error.errors[0]["message"]
    assert (
        str(error)
        == f"column a, row 2 of the file: {first} (2 times); 4 errors of 2 kinds in the file; nothing was stored"
    )
    assert [e["column"] for e in error.errors] == ["a", "b"]


def test_the_first_kinds_of_faults_are_listed_and_all_faults_are_counted():
    limits, names = Limits(10, ERRORS_SHOWN + 7), [f"c{i}" for i in range(ERRORS_SHOWN + 7)]
    error = refusal(csv_of, ",".join(names) + "\n" + ",".join("x" for _ in names), limits=limits)
    assert [e["column"] for e in error.errors] == names[:ERRORS_SHOWN]
    assert error.total == len(names)


def test_faults_of_every_kind_are_counted_together():
    error = refusal(csv_of, "a,b,c\nx,1,inf\n1,2\n,,\n1,2,3\n")
    assert error.total == 6
    assert sorted((e["row"], e.get("column", "")) for e in error.errors) == [
        *((1, "a"), (1, "c"), (2, "")),
        *((3, "a"), (3, "b"), (3, "c")),
    ]


def test_faults_beyond_the_first_block_of_parquet_have_their_place():
    values = np.ones(25_000)
    values[20_000] = math.inf
    column = pa.array(values, mask=np.arange(25_000) == 10_000)
    text = pa.array(["x"] * 25_000)
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": column, "b": text}), buffer)
    error = refusal(whole, read_parquet, buffer, Limits(rows=30_000, columns=2))
    places = [{key: value for key, value in fault.items() if key != "message"} for fault in error.errors]
    assert sorted(places, key=str) == [{"column": "b"}, {"row": 10_001, "column": "a"}, {"row": 20_001, "column": "a"}]
    assert error.total == 3


def test_what_comes_after_a_fault_is_read_for_its_faults_alone():
    content = "a\n" + "1\n" * 150_000 + "x\n" + "1\n" * 200_000 + "y\n"
    with read_csv(io.BytesIO(content.encode()), Limits(rows=400_000, columns=1)) as table:
        assert 0 < len(next(table.blocks)) < 150_000
        error = refusal(list, table.blocks)
    assert [(fault["row"], fault["count"]) for fault in error.errors] == [(150_001, 2)]


# --- files that are refused whole ------------------------------------------------------------------


def test_as_many_rows_and_columns_as_allowed_are_read():
    assert csv_of("a\n" + "1\n" * 1_000).values.shape == (1_000, 1)
    header = ",".join(f"c{i}" for i in range(50))
    assert csv_of(f"{header}\n{','.join('1' * 50)}\n").values.shape == (1, 50)


@pytest.mark.parametrize("read", [csv_of, parquet_of])
@pytest.mark.parametrize(
    ("columns", "why"),
    [([], "at least one"), (["a", "a"], "none twice"), (["a", "zebra"], "no column of the file has this name")],
)
def test_a_choice_of_columns_that_does_not_fit_is_refused(read, columns, why):
    content = "a,b\n1,2\n" if read is csv_of else pa.table({"a": [1.0], "b": [2.0]})
    assert why in str(refusal(read, content, columns))


def test_a_damaged_parquet_file_is_refused_or_read_but_never_a_surprise():
    """600 files with a few random bytes changed or the tail cut."""
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": rng.normal(size=200), "b": rng.normal(size=200)}), buffer)
    good = buffer.getvalue()
    refused = 0
    for i in range(600):
        damaged = bytearray(good)
        for position in rng.integers(len(good) - 900 if i % 2 else 0, len(good), size=rng.integers(1, 4)):
            damaged[position] = rng.integers(256)
        if i % 3 == 0:
            damaged = damaged[: rng.integers(len(damaged))]
        try:
            assert parquet_of(bytes(damaged)).values.dtype == np.float64
        except DatasetInvalid:
            refused += 1
    assert 200 < refused < 600


def test_no_byte_of_a_parquet_file_s_own_account_ends_the_process_when_it_is_wrong():
    """pyarrow ends it where the account of one column of a row group is looked up, and is damaged."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": ["u", "u"]}), buffer, store_schema=False)
    good, refused = buffer.getvalue(), 0
    footer = int.from_bytes(good[-8:-4], "little")
    for position in range(len(good) - 8 - footer, len(good)):
        for bit in (1, 2, 16):
            damaged = bytearray(good)
            damaged[position] ^= bit
            try:
                survey(io.BytesIO(bytes(damaged)), LIMITS, parquet=True)
            except DatasetInvalid:
                refused += 1
    assert 0 < refused < 3 * footer


@pytest.mark.parametrize("columns", [None, ["b"]])
def test_a_parquet_name_that_is_no_text_is_refused(columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"aaaa": [1.0], "b": [2.0]}), buffer, store_schema=False)
    refusal(parquet_of, buffer.getvalue().replace(b"aaaa", b"\xff\xfe\xfd\xfc"), columns)


# --- never with the value --------------------------------------------------------------------------

LEAKS = {
    "not a number": f"a,b\n1,{CANARY}x\n",
    "an underscore": f"a,b\n1,{CANARY}_1\n",
    "other digits": f"a,b\n1,{CANARY}\u0661\n",
    "not finite": f"a,b\n1,{CANARY}99999\n",
    "a ragged row": f"a,b\n1,2,{CANARY}\n",
    "no header": f"a,{CANARY}\n1,2\n",
    "a header twice": f"{CANARY}x,{CANARY}x\n1,2\n",
    "an open quote": f'a,b\n1,"{CANARY}\n',
    "a broken quote": f'a,b\n1,"{CANARY}"{CANARY}\n',
    "a zero byte": f"a,b\n1,{CANARY}\x00\n",
    "not UTF-8": f"a,b\n1,{CANARY}".encode() + b"\xff\n",
    "a huge cell": f'a,b\n1,"{CANARY}' + " " * 200_000 + '"\n',
    "rows": "a\n" + f"{CANARY}\n" * 1_001,
}


def everything_told(error: DatasetInvalid) -> str:
    """All but the cells, which a reply alone shows to whoever sent the file: a log has texts and tracebacks."""
    faults = [{name: value for name, value in fault.items() if name != "cell"} for fault in error.errors]
    texts = [str(error), repr(error), repr(faults), repr(error.extra() | {"errors": faults}), repr(error.args)]
    return "".join([*texts, *traceback.format_exception(error)])


@pytest.mark.parametrize("content", list(LEAKS.values()), ids=list(LEAKS))
def test_no_error_tells_the_value(content):
    assert CANARY not in everything_told(refusal(csv_of, content))


@pytest.mark.parametrize("column", [[CANARY, "x"], [CANARY.encode(), b"x"]])
def test_no_error_of_parquet_tells_the_value(column):
    assert CANARY not in everything_told(refusal(parquet_of, pa.table({"a": column})))
    assert "483927" not in everything_told(refusal(parquet_of, pa.table({"a": [float(CANARY), math.inf]})))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(["", '"', ",", "\n", "\x00", "\ufeff"]),
)
def test_whatever_stands_in_a_cell_is_read_or_refused_without_telling_it(noise, sign):
    content = f"a,b\n1,{CANARY}{sign}{noise}\n3,4\n"
    try:
        read = csv_of(content)
    except DatasetInvalid as refused:
        error = refused
    else:
        assert np.isfinite(read.values).all()
        return
    assert CANARY not in everything_told(error)
    assert error.total >= len(error.errors) >= 1


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_whatever_bytes_come_they_are_a_table_or_refused(content):
    for read in (csv_of, parquet_of):
        try:
            table = read(content)
        except DatasetInvalid:
            continue
        assert np.isfinite(table.values).all()
        assert len(table.names) == table.values.shape[1]
