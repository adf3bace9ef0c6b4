"""Cells: what is a number, what a spreadsheet would run, and rows that are refused before they are taken apart."""

import csv
import io
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.errors import Invalid
from blindopt.formats.csv_files import CELLS_MAX, LENGTH_MAX, ROW_MAX, decimal, harmless, plain, rows

_AMBIGUOUS = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
"""The same language, written ambiguously: digits may match before or after an absent point."""


@given(st.text("0123456789.eE+-_ x", max_size=20))
def test_a_decimal_is_what_the_plain_pattern_says_and_float_reads(text):
    number = decimal(text)
    assert (number is not None) == bool(_AMBIGUOUS.fullmatch(text))
    assert number is None or number == float(text)


def test_a_cell_of_a_hundred_thousand_digits_is_refused_by_its_length():
    assert decimal("0" * 100_000 + "1") is None
    assert decimal("1" * LENGTH_MAX) == float("1" * LENGTH_MAX)
    assert decimal("0" * LENGTH_MAX + "1") is None


# --- what is written ----------------------------------------------------------------------------------

READERS = ",;\t|"
STARTS = "=+-@\uff1d\uff0b\uff0d\uff20"
HOSTILE = [
    *(
        "=1+1",
        "+1+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        " =1+1",
        "\u00a0=1",
        "\u3000=1",
        "\uff1d1+1",
        "\uff0d1",
    ),
    *(
        "\u200b=1",
        "\ufeff=1",
        "\u202e=1",
        "|calc",
        "%x",
        "a;=HYPERLINK(1)",
        "a\t=1",
        "a|=1",
        "a\n=1",
        ";=1",
        "a; \u200b=1",
    ),
    *('a";=1', 'a"\n=1', "a;b;\t-cmd", ",;=1"),
]


def formulas(cell):
    """What a spreadsheet would run of a file with this cell, whichever character it takes to part cells."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["x", cell, "y"], [cell, "y"]])
    run = []
    for delimiter in READERS:
        for row in csv.reader(io.StringIO(text.getvalue(), newline=""), delimiter=delimiter):
            shown = ("".join(c for c in cell if c.isprintable() or c.isspace()).strip() for cell in row)
            run += [cell for cell in shown if cell.startswith(tuple(STARTS)) and decimal(cell) is None]
    return run


@pytest.mark.parametrize("cell", HOSTILE)
def test_no_cell_is_a_formula_whichever_separator_the_reader_takes(cell):
    assert formulas(harmless(cell)) == []
    assert formulas(plain(cell)) == []


def test_the_check_sees_formulas_that_a_rule_about_the_first_character_lets_through():
    """The control: the rule that the consoles had."""

    def first_escaped(cell):
        return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r", "|", "%")) else cell

    assert formulas("=1+1")
    assert formulas(first_escaped("=1+1")) == []
    assert sum(bool(formulas(first_escaped(cell))) for cell in HOSTILE) >= 12


@given(st.text('a=+-@;|,"\t\r\n \u00a0\u200b\ufeff\uff1d1', max_size=12))
@settings(max_examples=400)
def test_no_text_at_all_is_a_formula_and_what_is_harmless_stays_as_it_is(text):
    assert formulas(plain(text)) == []
    assert plain(plain(text)) == plain(text)


@pytest.mark.parametrize("cell", ["-1.5e-7", "+3", -1.5, -3, 0, "initial", "2026-01-01", "", "half = 0.5", "1, -3"])
def test_numbers_and_other_text_stay_as_they_are(cell):
    assert harmless(cell) == cell


def test_nothing_is_empty_and_truth_is_in_words():
    assert [harmless(cell) for cell in (None, True, False)] == ["", "true", "false"]


# --- what is read -------------------------------------------------------------------------------------


def test_rows_come_with_the_numbers_of_their_lines():
    assert list(rows(b'\xef\xbb\xbfa;b\r\n"x\ny";1,5\r\n\r\n', ",;")) == [
        (1, ["a", "b"]),
        (3, ["x\ny", "1,5"]),
        (4, []),
    ]
    assert next(rows(b"a," + b"b" * (ROW_MAX - 2)))[1][1] == "b" * (ROW_MAX - 2)


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
            list(rows(LONG[kind]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000
