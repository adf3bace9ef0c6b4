"""The one rule for numbers that people type: what is clear is read, and what is not is asked back."""

import pytest

from blindopt.formats.numbers import grouped, readings

CLEAR = {
    "44,25": 44.25, "-0,5": -0.5, ",5": 0.5, "0,250": 0.25, "1234,567": 1234.567, "1,034.5": 1034.5,
    "1,034,567": 1034567.0, "1.034,25": 1034.25, "1e-5": 1e-5, "1,5e3": 1500.0, "+7": 7.0,
}  # fmt: skip


@pytest.mark.parametrize("text", CLEAR)
def test_what_is_clear_has_one_reading(text):
    assert readings(text) == (CLEAR[text],)


@pytest.mark.parametrize(
    ("text", "small", "large"), [("1,034", 1.034, 1034.0), ("-12,000", -12.0, -12000.0), ("2.500", 2.5, 2500.0)]
)
def test_a_sign_before_three_digits_has_two(text, small, large):
    assert readings(text) == (small, large)


@pytest.mark.parametrize(
    "text", ["", ",", "1,03,4", "1_000", "nan", "inf", "1e400", "0x1", "10 00", "--1", "1 000'000", "1" * 400]
)
def test_what_is_no_number_has_none(text):
    assert readings(text) == ()


@pytest.mark.parametrize("value", [1034.0, 1.034, -12345.5, 1e-9, 1e20, 0.0, 999.25])
def test_a_grouped_number_is_read_as_what_it_is(value):
    assert float(grouped(value).replace(",", "")) == value


def test_a_text_of_a_hundred_thousand_digits_has_no_groups_and_is_refused_in_time():
    assert readings("1" * 400) == ()
    assert readings("1." + "234." * 25_000) == ()
    assert readings("1," * 50_000) == ()
