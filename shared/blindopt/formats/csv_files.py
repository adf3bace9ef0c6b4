"""CSV for people: read rows and numbers, and write texts that no spreadsheet runs as formulas."""

import csv
import io
import re
from collections.abc import Iterator

from blindopt.errors import Invalid

LENGTH_MAX = 100
"""Longer numbers are refused without parsing: no measurement has so many digits."""
ROW_MAX = 1 << 16
"""Most characters of a row, which may span several lines."""
CELLS_MAX = 2_000
# Unambiguous: a pattern that matches one text in two ways takes quadratic time to refuse a long one.
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Control, invisible and bidirectional characters."""
_RUN = r"[=+\-@\uff1d\uff0b\uff0d\uff20|%"
_SPACE = r"[^\S\t\r\n]"
_STARTS = re.compile(rf"{_SPACE}*+{_RUN}\t\r\n]")
# After a character that another reader takes for the end of a cell, where quotes may have another meaning. Not after a
# comma: within a cell it is inside our quotes, and a reader with another separator does not split at commas.
_PARTS = re.compile(rf"[;|\t\r\n](?=(?:{_SPACE}|\")*+{_RUN}])")


def decimal(text: str) -> float | None:
    """Parse a number with a decimal point; None for any other text, "nan" and "inf" included.

    >>> decimal("-0.5"), decimal("7."), decimal("1e-3"), decimal("1_000"), decimal("nan")
    (-0.5, 7.0, 0.001, None, None)
    """
    if len(text) > LENGTH_MAX or not _DECIMAL.fullmatch(text):
        return None
    return float(text)


def plain(text: str) -> str:
    """Escape a text so that no spreadsheet runs it or reverses its direction, whatever its separator.

    Source: OWASP, CSV injection.

    >>> plain("=1+1"), plain("half = 0.5"), plain("a;=1+1")
    ("'=1+1", 'half = 0.5', "a;'=1+1")
    """
    escaped = _PARTS.sub(r"\g<0>'", _UNSEEN.sub("", text))
    return f"'{escaped}" if _STARTS.match(escaped) else escaped


def harmless(cell: object) -> object:
    """Make any value safe as a cell: numbers stay, also as text; None is empty; other text is escaped."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return plain(cell) if isinstance(cell, str) and decimal(cell) is None else cell


def rows(body: bytes, delimiters: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Read the rows of a CSV file in UTF-8, each with the number of its last line.

    The separator is that of ``delimiters`` which is most frequent in the first line. Raises Invalid for any other
    file, and for a row that is too long, before its cells are in memory.
    """
    first = body[:ROW_MAX].partition(b"\n")[0].decode(errors="replace")
    lines = _Lines(body)
    reader = csv.reader(lines, strict=True, delimiter=max(delimiters, key=first.count))
    try:
        for cells in reader:
            if len(cells) > CELLS_MAX:
                raise Invalid(f"line {reader.line_num} has more than {CELLS_MAX} cells")
            yield reader.line_num, cells
            lines.taken = 0
    except (UnicodeDecodeError, csv.Error):
        raise Invalid("the body is not CSV in UTF-8") from None


class _Lines:
    """Lines for the CSV reader, which may take at most ROW_MAX characters for one row."""

    def __init__(self, body: bytes) -> None:
        self._file = io.TextIOWrapper(io.BytesIO(body), encoding="utf-8-sig", newline="")
        self.taken = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(ROW_MAX + 1 - self.taken)
        self.taken += len(line)
        if self.taken > ROW_MAX:
            raise Invalid(f"a row is longer than {ROW_MAX} characters")
        if not line:
            raise StopIteration
        return line
