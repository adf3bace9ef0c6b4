"""Numbers, gaps and days as people and their programs write them: the rules for one cell, of every reader.

A file has one decimal sign, which ``DecimalSigns`` finds from the cells that can be read in one way only. One text
alone, as a person types it into a field, has its ``readings``.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal

from blindopt.wire import CellReading, DecimalSign

LENGTH_MAX = 100
"""Longer texts are no numbers with groups of digits: no measurement has so many digits."""
_FIRST_CELLS = 5
_LAST_SIGNS = frozenset("0123456789.,")
_OTHER: dict[DecimalSign, DecimalSign] = {".": ",", ",": "."}
# Unambiguous: a pattern that matches one text in two ways takes quadratic time to refuse a long one. Groups have three
# digits, with one mark throughout; in India only the last one has.
_GROUPED = {
    sign: re.compile(
        rf"(?P<whole>[+-]?(?:[1-9][0-9]{{0,2}}(?P<mark>[{_OTHER[sign]} '\u2019\u00a0\u2009\u202f])[0-9]{{3}}"
        rf"(?:(?P=mark)[0-9]{{3}})*{'|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}' if sign == '.' else ''}))"
        rf"(?:[{sign}](?P<decimals>[0-9]*))?"
    )
    for sign in _OTHER
}
_MARKS = re.compile("[., '\u2019\u00a0\u2009\u202f]")
LARGEST_INTEGER = 2.0**53
"""Beyond it not every integer is a double."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Cells that count as missing, without blanks around them, in any case."""
NOT_A_NUMBER = "not a number: correct it, leave the column out, or encode it"
WITH_A_UNIT = "not a number: it has a sign or a unit. Write the number alone, or declare such cells missing"
_WITH_A_UNIT = re.compile(r"(?=.*[^0-9.,+\-])[^\W\d]{0,4}[^\w.,]{0,3}[+-]?[0-9][0-9.,]*\s?[^\W\d]{0,10}[^\w.,:]{0,3}")
NOT_FINITE = "not finite (infinity)"
WITH_A_POINT = "not a number: it has a point, and other numbers of this file have a decimal comma"
WITH_A_COMMA = "not a number: it has a comma. Write numbers with a point, or say that the decimal sign is a comma"
WHICH_SIGN = (
    "which sign is decimal, a point or a comma? It may group thousands in these numbers, and no other number "
    "decides, or others contradict each other. Say which sign is decimal"
)
MISSING_VALUE = "missing value: fill it, or leave the row or the column out"
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
_WITH_NUMBERS = {
    "d.m.y": re.compile(r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})", re.ASCII),
    "d/m/y": re.compile(r"(?P<d>\d{1,2})/(?P<m>\d{1,2})/(?P<y>\d{4})", re.ASCII),
    "m/d/y": re.compile(r"(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})", re.ASCII),
}
_SECONDS_OF_DAY = 86_400.0


def number_of(cell: str, sign: DecimalSign = ".") -> float | None:
    """A cell as a number, which may be infinite; None for any other text, and for "nan".

    The other sign may group thousands, as a blank or an apostrophe may.

    >>> number_of("1.5"), number_of("1,5", ","), number_of("1.5", ","), number_of("1_000"), number_of("1'234.5")
    (1.5, 1.5, None, None, 1234.5)
    """
    written = cell.replace(",", ".", 1) if sign == "," else cell
    # Python accepts 1_000 and other scripts' digits as numbers.
    if not cell.isascii() or "_" in cell or (sign == "," and "." in cell):
        written = _plain(cell, sign)
    try:
        value = float(written)
    except ValueError:
        if not (plain := _plain(cell, sign)):
            return None
        value = float(plain)
    return None if math.isnan(value) else value


def _plain(cell: str, sign: DecimalSign) -> str:
    """A number as Python writes it, of one that has groups of digits or a minus of its own; no number for others."""
    cell = cell.strip()
    if len(cell) > LENGTH_MAX or cell[-1:] not in _LAST_SIGNS:
        return ""
    if cell.startswith("\u2212"):  # a minus, as some spreadsheets write it
        number = number_of("-" + cell[1:], sign)
        return "" if number is None or cell[1:2] in ("+", "-", "\u2212") else repr(number)
    if (matched := _GROUPED[sign].fullmatch(cell)) is None:
        return ""
    return f"{_MARKS.sub('', matched['whole'])}.{matched['decimals'] or ''}"


def readings(text: str) -> tuple[float, ...]:
    """The finite numbers that a text may mean: none, one, or two where its sign may be decimal or group thousands.

    >>> readings("1.5"), readings("44,25"), readings("1,034"), readings("2.500"), readings("1.034,5"), readings("x")
    ((1.5,), (44.25,), (1.034, 1034.0), (2.5, 2500.0), (1034.5,), ())
    """
    numbers = {number_of(text, sign) for sign in _OTHER}
    return tuple(sorted((number for number in numbers if number is not None and math.isfinite(number)), key=abs))


def either(reading: CellReading) -> str:
    """The fault of a text alone that has two readings.

    >>> either(CellReading(cell="2.500", point=2.5, comma=2500.0))
    '2.500 is 2.5 or 2500: write it so that it can be read in one way'
    """
    numbers = " or ".join(f"{value:.15g}" for value in sorted((reading.point, reading.comma), key=abs))
    return f"{reading.cell} is {numbers}: write it so that it can be read in one way"


class DecimalSigns:
    """Finds the decimal sign of a file from its sure cells: those that have one reading.

    >>> signs = DecimalSigns(["2.500", "875"])
    >>> signs.of_file(";"), signs.unsure
    (None, [CellReading(cell='2.500', point=2.5, comma=2500.0)])
    >>> signs.add(["1,5"])
    >>> signs.of_file(";")
    ','
    """

    def __init__(self, cells: Iterable[str] = ()) -> None:
        self._sure: Counter[DecimalSign] = Counter()
        self.unsure: list[CellReading] = []
        """The first five different cells that have two readings."""
        self._has_comma = False
        self.add(cells)

    def add(self, cells: Iterable[str]) -> None:
        """Look at cells; those that are no numbers, and whole numbers, say nothing."""
        for cell in cells:
            if "." in cell or "," in cell:
                point, comma = number_of(cell, "."), number_of(cell, ",")
                if point is not None and comma is not None:
                    self._has_comma |= "," in cell
                    reading = CellReading(cell=cell.strip(), point=point, comma=comma)
                    if len(self.unsure) < _FIRST_CELLS and reading not in self.unsure:
                        self.unsure.append(reading)
                elif point is not None or comma is not None:
                    self._sure["." if comma is None else ","] += 1

    @property
    def is_sure(self) -> bool:
        return bool(self._sure)

    def of_file(self, separator: str | None) -> DecimalSign | None:
        """The sign that most sure cells have; None if the sign has to be asked for.

        That is so if cells have two readings, and sure ones contradict each other or there is none. But without a sure
        cell a file with commas between its cells (``separator``) has points, if it has no other sign.
        """
        if self._sure:
            if len(self._sure) > 1 and self.unsure:
                return None
            return "," if self._sure[","] >= self._sure["."] else "."
        is_asked = self.unsure and (separator != "," or self._has_comma)
        return None if is_asked else "."


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


def fault_of(cell: str, sign: DecimalSign = ".") -> str | None:
    """Why a cell that is not missing is no finite number; None if it is one."""
    if (value := number_of(cell, sign)) is not None:
        return None if math.isfinite(value) else NOT_FINITE
    if cell.strip().casefold() in ("-nan", "+nan"):
        return "not finite (NaN)"
    if number_of(cell, _OTHER[sign]) is None:
        return WITH_A_UNIT if _WITH_A_UNIT.fullmatch(cell.strip()) else NOT_A_NUMBER
    return WITH_A_COMMA if sign == "." else WITH_A_POINT


def is_rounded(cell: str, value: float, sign: DecimalSign) -> bool:
    """Whether a number is no longer what was written.

    >>> is_rounded("9007199254740993", 2.0**53, "."), is_rounded("9007199254740992", 2.0**53, ".")
    (True, False)
    """
    if value == 0.0:
        return any(digit in cell.lower().partition("e")[0] for digit in "123456789")
    whole, _, decimals = cell.partition(sign)
    digits = f"{_MARKS.sub('', whole)}.{decimals.strip()}".replace("\u2212", "-")
    return re.fullmatch(r"[+-]?[0-9]+\.[0-9]*", digits) is not None and Decimal(digits) != Decimal(value)


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
