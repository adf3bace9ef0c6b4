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

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator_service.datasets import Limits
from curator_service.datasets.worker import Job, Reply, read
from service_kit import runner

LIMITS = Limits(rows=50, columns=1_000, unpacked=1 << 20)


def sent(content, columns=None, *, parquet=False, limits=LIMITS):
    """The reply of a reading process, and the numbers that it wrote."""
    with tempfile.TemporaryFile() as values:
        job = Job(file=0, parquet=parquet, limits=limits, columns=columns, values=values.fileno())
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
    "quoted numbers": (b'"a","b"\n"1","2"\n', [[1, 2]]),
    "signs and zeros": (table(b"+1,007", b"-0.0,1."), [[1, 7], [-0.0, 1]]),
    "subnormal and large": (table(b"5e-324,1e308"), [[5e-324, 1e308]]),
    "4,500 decimals": (table(b"0." + b"1" * 4_500 + b",2"), [[1 / 9, 2]]),
    "1,000 columns": (WIDE.encode(), [[1.0] * 1_000]),
    "blanks around": (table(b" 1 ,\t2"), [[1, 2]]),
    "beyond 2^53": (table(b"9007199254740993,1"), [[9007199254740992, 1]]),
    "too small": (table(b"1e-400,1"), [[0, 1]]),
    "semicolons and decimal commas": (b"a;b\n1,5;2\n", [[1.5, 2]]),
    "tabs": (b"a\tb\n1\t2\n", [[1, 2]]),
}
ROW_2 = {"row": 2, "line": 3}
WORDS = [
    "NA",
    "N/A",
    "na",
    "NaN",
    "nan",
    "null",
    "NULL",
    "None",
    "none",
    "-",
    "?",
    ".",
    "inf",
    "-inf",
    "Infinity",
    "INF",
]
CELLS = {
    "missing": "",
    "blank": "  ",
    "a thousand by blank": "1 000",
    "a thousand by apostrophe": "1'000",
    "a thousand by comma": '"1,000"',
    "underscore": "1_000",
    "hex float": "0x1p3",
    "hex": "0x10",
    "octal": "0o7",
    "Arabic digits": "\u0663",
    "full-width digits": "\uff13",
    "Unicode minus": "\u22121",
    "no-break space": "1\u00a0000",
    "date": "2026-11-23",
    "German date": "23.11.2026",
    "time": "12:30",
    "per cent": "5%",
    "dollars": "$5",
    "euros": "5 €",
    "formula": "=1+1",
    "two signs": "--1",
    "two points": "1.2.3",
    "no mantissa": "e5",
    "no exponent": "1e",
    "too large": "1e400",
    "complex": "1j",
    "logical": "true",
    "word": "high",
} | dict(zip(WORDS, WORDS, strict=True))
AT_A_LINE = {
    "a row too short": (table(b"1,2", b"3"), ROW_2),
    "a row too long": (table(b"1,2", b"3,4,5"), ROW_2),
    "a trailing comma": (table(b"1,2", b"3,4,"), ROW_2),
    "a blank line within": (b"a,b\n1,2\n\n3,4\n", {"row": 2, "line": 3}),
    "one row too many": (table(*[b"1,2"] * 51), {"row": 51, "line": 52}),
}


def parquet(**columns):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def packed(content, name="a.csv"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


GOOD = parquet(a=[1.0, 2.0], b=[3.0, 4.0])
AS_A_WHOLE = {
    "nothing": b"",
    "a header alone": b"a,b\n",
    "a blank first line": b"\na,b\n1,2\n",
    "NUL": b"a,b\n1,\0\n",
    "UTF-16": "a,b\n1,2\n".encode("utf-16"),
    "UTF-32": "a,b\n1,2\n".encode("utf-32"),
    "Latin-1": "ä,b\n1,2\n".encode("latin-1"),
    "zip": packed("a,b\n1,2\n"),
    "xlsx": packed("<worksheet/>", "xl/worksheets/sheet1.xml"),
    "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
    "gzip twice": gzip.compress(gzip.compress(b"a,b\n1,2\n")),
    "random bytes": np.random.default_rng(0).bytes(2_000),
    "Parquet that is called CSV": GOOD,
    "an unclosed quote": b'a,b\n1,"2\n3,4\n',
    "two equal names": b"a,a\n1,2\n",
    "names that differ in case": b"a,A\n1,2\n",
    "names that differ in form": "é,e\u0301\n1,2\n".encode(),
    "a header of numbers": b"1,2\n3,4\n",
    "1,001 columns": WIDE.replace("c0,", "c0,more,").replace("\n1,", "\n1,1,").encode(),
}
PARQUET = {
    "truncated": GOOD[:-20],
    "no footer": GOOD[: len(GOOD) // 2],
    "a length beyond the file": GOOD[:-8] + struct.pack("<i", 1 << 30) + b"PAR1",
    "nested": parquet(a=[[1.0], [2.0]]),
    "timestamps": parquet(a=pa.array([0, 1], pa.timestamp("us"))),
    "logical": parquet(a=[True, False]),
    "text": parquet(a=["x", "y"]),
    "NULL": parquet(a=[1.0, None]),
    "NaN": parquet(a=[1.0, math.nan]),
    "infinite": parquet(a=[1.0, math.inf]),
    "CSV": b"a,b\n1,2\n",
}


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_taken_and_holds_these_numbers(name):
    content, expected = TAKEN[name]
    reply, values = sent(content)
    assert reply.problem is None, reply.errors
    assert (reply.rows, values.tobytes()) == (len(expected), np.array(expected, dtype=float).tobytes())
    rounded = sum(column.rounded for column in reply.columns)
    assert rounded == (name in ("beyond 2^53", "too small"))


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_is_no_plain_number_is_refused_at_its_place_and_not_repeated(name):
    reply, _ = sent(table(b"1,2", f"3,{CELLS[name]}".encode(), b"5,6"))
    assert reply.problem is not None
    (fault,) = reply.errors
    assert {key: fault[key] for key in ("row", "line", "column")} == ROW_2 | {"column": "b"}
    assert len(CELLS[name].strip()) < 4 or CELLS[name] not in f"{reply.problem} {fault['message']}"


@pytest.mark.parametrize("name", AT_A_LINE)
def test_a_row_that_does_not_fit_is_refused_at_its_line(name):
    content, position = AT_A_LINE[name]
    reply, _ = sent(content)
    assert reply.problem is not None
    assert position.items() <= reply.errors[0].items(), reply.errors


@pytest.mark.parametrize("name", AS_A_WHOLE)
def test_what_is_no_such_table_is_refused_in_words(name):
    reply, _ = sent(AS_A_WHOLE[name])
    assert reply.problem
    assert reply.errno is None


@pytest.mark.parametrize("name", PARQUET)
def test_what_is_no_such_parquet_file_is_refused_in_words(name):
    reply, _ = sent(PARQUET[name], parquet=True)
    assert reply.problem
    assert reply.errno is None


@pytest.mark.parametrize("seed", range(20))
def test_a_parquet_file_with_a_flipped_bit_is_refused_or_its_numbers_are_written(seed):
    damaged, at = bytearray(GOOD), int(np.random.default_rng(seed).integers(len(GOOD) * 8))
    damaged[at // 8] ^= 1 << at % 8
    reply, values = sent(bytes(damaged), parquet=True)
    assert (reply.problem is None) == (values is not None)
    assert values is None or np.isfinite(values).all()


def test_the_control_is_taken():
    assert sent(GOOD, parquet=True)[1].tolist() == [[1.0, 3.0], [2.0, 4.0]]
