"""Text becomes rows with the numbers of their lines, and a row that is too long is refused before it is in memory."""

import tracemalloc

import pytest

from blindopt.errors import Invalid
from blindopt.formats.tables import CELLS_MAX, ROW_MAX, SmallTable


def test_rows_come_with_the_numbers_of_their_lines():
    assert list(SmallTable(b'\xef\xbb\xbfa;b\r\n"x\ny";1,5\r\n\r\n')) == [
        (1, ["a", "b"]),
        (3, ["x\ny", "1,5"]),
        (4, []),
    ]
    assert next(iter(SmallTable(b"a," + b"b" * (ROW_MAX - 2))))[1][1] == "b" * (ROW_MAX - 2)


LONG = {
    "a first line": b"a," + b"x," * 50 * ROW_MAX,
    "a later line": b"a,b\n" + b"x," * 50 * ROW_MAX,
    "a row over many lines": b"a,b\n" + b'"\n",' * 50 * ROW_MAX,
    "a cell without an end": b'a,"' + b"x\n" * 50 * ROW_MAX,
    "many cells": b"a," * (CELLS_MAX + 1) + b"\n",
}


@pytest.mark.parametrize("kind", LONG)
def test_a_row_that_is_too_long_is_refused_before_it_is_in_memory(kind):
    """A cell of one character takes about 64 bytes, so the whole row would take 6 MB at least."""
    tracemalloc.start()
    try:
        with pytest.raises(Invalid):
            list(SmallTable(LONG[kind]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


READINGS = {
    b"a;b\n1,5;2\n": (";", [["a", "b"], ["1,5", "2"]]),
    b"a\tb\n1;5\t2\n": ("\t", [["a", "b"], ["1;5", "2"]]),
    b"a,b\r1,2\r": (",", [["a", "b"], ["1", "2"]]),
    b'"a,b";c\n"1,2";3\n': (";", [["a,b", "c"], ["1,2", "3"]]),
    b"x, cm;y, kg\n180,5;75,5\n181,5;80,25\n": (";", [["x, cm", "y, kg"], ["180,5", "75,5"], ["181,5", "80,25"]]),
    b"x;y, net\nA;1,50\nB;22,75\n": (";", [["x", "y, net"], ["A", "1,50"], ["B", "22,75"]]),
    b"x, m\ty, m\n1,5\t2,5\n": ("\t", [["x, m", "y, m"], ["1,5", "2,5"]]),
    b"x, m;y\n1,5;2\n15;2\n": (";", [["x, m", "y"], ["1,5", "2"], ["15", "2"]]),
    b"x,why; when\n1,a; b\n2,c; d\n": (",", [["x", "why; when"], ["1", "a; b"], ["2", "c; d"]]),
    b"": (",", []),
}


@pytest.mark.parametrize("body", READINGS)
def test_the_separator_is_the_one_that_cuts_both_first_rows_alike(body):
    table = SmallTable(body)
    assert (table.separator, [cells for _, cells in table]) == READINGS[body]


def test_two_signs_that_may_both_separate_are_asked_back_and_a_first_line_answers():
    body = b"a;b,c\n1;x,2\n3;y,4\n"
    with pytest.raises(Invalid, match="two signs cut all lines"):
        SmallTable(body)
    assert SmallTable(body, [";"]).separator == SmallTable(b"sep=;\n" + body).separator == ";"
    assert SmallTable(body.replace(b"3;y,4", b"3;y")).separator == ";"  # the control: commas cut this line otherwise


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"a,b\n1,2\n\xff,3\n", None),
        (b'a,b\n1,"2\n', 2),
        (b'a,b\n1,"2"3\n', 2),
        (b"a,b\n1,2\n\x00", 3),
        (b"PK\x03\x04", None),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(body, line):
    with pytest.raises(Invalid) as refused:
        list(SmallTable(body))
    assert refused.value.errors[0].get("line") == line
