"""Numbers, gaps and days as people and their programs write them: the rules for one cell, of every reader.

Nothing here depends on other cells, rows or places. What people type into a page or a sheet is read by ``readings``;
a column of a file has one decimal sign, a ``DecimalSign``, which its reader finds.
"""

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire import DecimalSign

LENGTH_MAX = 100
"""Longer numbers are refused without parsing: no measurement has so many digits."""
# Unambiguous: a pattern that matches one text in two ways takes quadratic time to refuse a long one.
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]{1,3})?")
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?")
_GROUPED_BY_POINTS = re.compile(r"[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+,[0-9]+")
LARGEST_INTEGER = 2.0**53
"""Beyond it not every integer is a double."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Cells that count as missing, without blanks around them, in any case."""
NOT_A_NUMBER = "not a number: correct it, leave the column out, or encode it"
NOT_FINITE = "not finite (infinity)"
WITH_A_POINT = "not a number: it has a point, and other numbers of this file have a decimal comma"
WITH_A_COMMA = "not a number: it has a comma. Write numbers with a point, or say that the decimal sign is a comma"
MISSING_VALUE = "missing value: fill it, or leave the row or the column out"
_WITH_COMMA = re.compile(r"[+-]?([0-9]+,[0-9]*|,[0-9]+)([eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"\s*([+-]?)0*([0-9]+)\s*")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
_WITH_NUMBERS = {
    "d.m.y": re.compile(r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})", re.ASCII),
    "d/m/y": re.compile(r"(?P<d>\d{1,2})/(?P<m>\d{1,2})/(?P<y>\d{4})", re.ASCII),
    "m/d/y": re.compile(r"(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})", re.ASCII),
}
_SECONDS_OF_DAY = 86_400.0


def decimal(text: str) -> float | None:
    """Parse a number with a decimal point; None for any other text, "nan" and "inf" included.

    >>> decimal("-0.5"), decimal("7."), decimal("1e-3"), decimal("1_000"), decimal("nan")
    (-0.5, 7.0, 0.001, None, None)
    """
    if len(text) > LENGTH_MAX or not _DECIMAL.fullmatch(text):
        return None
    return float(text)


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
    digits = f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value!r}"
    whole, point, decimals = digits.partition(".")
    return f"{int(whole):,}{point}{decimals}" if point and whole.lstrip("-").isdecimal() and abs(value) >= 1 else digits


def is_missing(cell: str) -> bool:
    """Whether a cell says that there is no value.

    >>> is_missing(" NA "), is_missing("0")
    (True, False)
    """
    return cell.strip().casefold() in MISSING


def number_of(cell: str, sign: DecimalSign = ".") -> float | None:
    """A cell as a number, which may be infinite; None for any other text, and for "nan".

    >>> number_of("1.5"), number_of("1,5", ","), number_of("1.5", ","), number_of("1_000")
    (1.5, 1.5, None, None)
    """
    if not cell.isascii() or "_" in cell:  # Python accepts 1_000 and other scripts' digits as numbers
        return None
    if sign == ",":
        if "." in cell:
            return None
        cell = cell.replace(",", ".", 1)
    try:
        value = float(cell)
    except ValueError:
        return None
    return None if np.isnan(value) else value


def has_decimal_comma(cell: str) -> bool:
    """Whether a cell is surely a number with a decimal comma: three digits after a comma may be thousands.

    >>> has_decimal_comma("-1,5"), has_decimal_comma("1,234"), has_decimal_comma("0,234"), has_decimal_comma("15")
    (True, False, True, False)
    """
    cell = cell.strip()
    return _WITH_COMMA.fullmatch(cell) is not None and _THOUSANDS.fullmatch(cell) is None


def fault_of(cell: str, sign: DecimalSign = ".") -> str | None:
    """Why a cell that is not missing is no finite number; None if it is one."""
    if (value := number_of(cell, sign)) is not None:
        return None if np.isfinite(value) else NOT_FINITE
    if cell.strip().casefold() in ("-nan", "+nan"):
        return "not finite (NaN)"
    if sign == "," and number_of(cell) is not None:
        return WITH_A_POINT
    if sign == "." and _WITH_COMMA.fullmatch(cell.strip()):
        return WITH_A_COMMA
    return NOT_A_NUMBER


def all_numbers(cells: Sequence[str], sign: DecimalSign = ".") -> Vector | None:
    """A column at once (m,), if every cell is a finite number; else None, and each cell has to be looked at."""
    joined = "".join(cells)
    if not joined.isascii() or "_" in joined:
        return None
    if sign == ",":
        if "." in joined:
            return None
        cells = [cell.replace(",", ".", 1) for cell in cells]
    try:
        values = np.array(list(map(float, cells)))
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def rounded(cells: Sequence[str], values: Vector) -> int:
    """How many cells are no longer what was written: integers beyond 2^53, and numbers so small that 0 is stored.

    >>> rounded(["9007199254740993", "9007199254740992", "1e-400", "0"], np.array([2.0**53, 2.0**53, 0, 0]))
    2
    """
    suspects = np.flatnonzero((np.abs(values) > LARGEST_INTEGER / 2) | (values == 0.0))
    return sum(_is_rounded(cells[i], float(values[i])) for i in suspects.tolist() if cells[i] != "0")


def _is_rounded(cell: str, value: float) -> bool:
    if value == 0.0:
        return any(digit in cell.lower().partition("e")[0] for digit in "123456789")
    matched = _INTEGER.fullmatch(cell)
    return matched is not None and int(matched[1] + matched[2]) != int(value)


def days_of(text_format: str, since: date) -> Callable[[str], float | None]:
    """The function from a cell to days since ``since``, with a fraction for the time of day; None: no such date.

    A time with a zone counts in UTC, one without as it is written.

    >>> to_days = days_of("d.m.y", date(2024, 1, 1))
    >>> to_days("31.1.2024"), to_days("1.13.2024")
    (30.0, None)
    """

    def iso(cell: str) -> float | None:
        if (matched := _DATE.fullmatch(cell)) is None:
            return None
        try:
            if matched.end(1) == len(cell):
                return float((date.fromisoformat(cell) - since).days)
            moment = datetime.fromisoformat(cell)
        except ValueError:
            return None
        if moment.tzinfo is not None:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
        return (moment - datetime.combine(since, time())).total_seconds() / _SECONDS_OF_DAY

    def numbered(cell: str) -> float | None:
        if (matched := _WITH_NUMBERS[text_format].fullmatch(cell)) is None:
            return None
        try:
            return float((date(int(matched["y"]), int(matched["m"]), int(matched["d"])) - since).days)
        except ValueError:
            return None

    return iso if text_format == "iso" else numbered
