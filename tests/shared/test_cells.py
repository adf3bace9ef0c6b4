"""Numbers as they are written into cells: what is one, and what is none however long it is."""

import re

from hypothesis import given
from hypothesis import strategies as st

from shared.cells import LENGTH_MAX, decimal

_AMBIGUOUS = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
"""Says the same in another way: digits may be read before or after a point that is not there."""


@given(st.text("0123456789.eE+-_ x", max_size=20))
def test_a_decimal_is_what_the_plain_pattern_says_and_float_reads(text):
    found = decimal(text)
    assert (found is not None) == bool(_AMBIGUOUS.fullmatch(text))
    assert found is None or found == float(text)


def test_a_number_of_more_digits_than_any_measurement_has_is_none():
    assert decimal("1" * LENGTH_MAX) == float("1" * LENGTH_MAX)
    assert decimal("0" * LENGTH_MAX + "1") is None
