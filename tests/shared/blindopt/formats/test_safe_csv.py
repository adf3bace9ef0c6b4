"""No cell that is written is a formula, whatever reads the file."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.formats.numbers import number_of
from blindopt.formats.safe_csv import harmless, plain

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
            run += [cell for cell in shown if cell.startswith(tuple(STARTS)) and number_of(cell) is None]
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
