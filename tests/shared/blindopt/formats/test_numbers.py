"""The one rule for numbers that people type: what is clear is read, and what is not is asked back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindopt.formats.numbers import LENGTH_MAX, decimal, grouped, readings

CLEAR = {
    "1.034": 1.034, "44,25": 44.25, "-0,5": -0.5, ",5": 0.5, "0,250": 0.25, "1234,567": 1234.567, "1,034.5": 1034.5,
    "1,034,567": 1034567.0, "1.034,25": 1034.25, "1e-5": 1e-5, "1,5e3": 1500.0, "+7": 7.0,
}  # fmt: skip


@pytest.mark.parametrize("text", CLEAR)
def test_what_is_clear_has_one_reading(text):
    assert readings(text) == (CLEAR[text],)


@pytest.mark.parametrize(("text", "small", "large"), [("1,034", 1.034, 1034.0), ("-12,000", -12.0, -12000.0)])
def test_a_comma_before_three_digits_has_two(text, small, large):
    assert readings(text) == (small, large)


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "1,03,4", "1_000", "nan", "inf", "1e400", "0x1", "1 000", "--1", "1" * 200]
)
def test_what_is_no_number_has_none(text):
    assert readings(text) == ()


@pytest.mark.parametrize("value", [1034.0, 1.034, -12345.5, 1e-9, 1e20, 0.0, 999.25])
def test_a_grouped_number_is_read_as_what_it_is(value):
    assert float(grouped(value).replace(",", "")) == value


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
