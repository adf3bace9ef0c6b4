"""One rule for numbers that people type or that spreadsheets write: in a page, a table of fields, or a file."""

import math
import re

from blindopt.formats.csv_files import LENGTH_MAX, decimal

_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]{1,3})?")
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?")
_GROUPED_BY_POINTS = re.compile(r"[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+,[0-9]+")


def readings(text: str) -> tuple[float, ...]:
    """The finite numbers that a text may mean: none, one, or two where a comma before three digits can mean both.

    A point is always a decimal point. A comma is a decimal comma or groups thousands.

    >>> readings("1.034"), readings("44,25"), readings("1,034"), readings("1,034.5"), readings("1.034,5"), readings("x")
    ((1.034,), (44.25,), (1.034, 1034.0), (1034.5,), (1034.5,), ())
    """
    if len(text) > LENGTH_MAX:
        return ()
    written = [text] if "," not in text else []
    if _DECIMAL_COMMA.fullmatch(text):
        written.append(text.replace(",", "."))
    if _GROUPED.fullmatch(text):
        written.append(text.replace(",", ""))
    if _GROUPED_BY_POINTS.fullmatch(text):
        written.append(text.replace(".", "").replace(",", "."))
    numbers = [decimal(candidate) for candidate in written if "," not in candidate]
    return tuple(number for number in numbers if number is not None and math.isfinite(number))


def grouped(value: float) -> str:
    """A number in full, with a comma for each thousand.

    >>> grouped(1034.0), grouped(1.034), grouped(1e-9)
    ('1,034', '1.034', '1e-09')
    """
    text = f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value!r}"
    whole, point, rest = text.partition(".")
    return f"{int(whole):,}{point}{rest}" if point and whole.lstrip("-").isdecimal() and abs(value) >= 1 else text
