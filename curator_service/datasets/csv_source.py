"""A CSV file as blocks of raw columns, read in parts of whole lines: a line without an end is never read whole.

A part without a quote has a row on each line, and is cut at once; where all columns are wanted as numbers, numpy reads
it. Whatever is not as it should be is read again row by row and cell by cell, which finds the place of each fault.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, BinaryIO, Literal, get_args

import numpy as np

from blindopt.arrays import Matrix
from curator_service.datasets.cells import LARGEST_INTEGER, Decimal, has_decimal_comma
from curator_service.datasets.columns import names_of
from curator_service.datasets.findings import Findings, Limits, refuse
from curator_service.datasets.sources import CELL_MAX, Numbers, RawBlock, RawColumn

_PART_BYTES = 1 << 17
_LINE_BYTES_MAX = 1 << 20
_BLOCK_ROWS, _BLOCK_CHARACTERS = 10_000, 1 << 20
_BLANK_MAX = 10_000
"""So many blank lines at the end of a file are no rows."""
_BOM = b"\xef\xbb\xbf"
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
"""How a workbook of Excel or OpenDocument begins: a ZIP archive, or a compound file of before 2007."""
_OF_NUMBERS = b"0123456789+-.eE,;\t \n"
_MAY_BE_TINY = re.compile(r"[eE]|[0-9.]{300}")
Separator = Literal[",", ";", "\t"]


@contextmanager
def csv_source(file: BinaryIO, limits: Limits) -> Iterator["CsvSource"]:
    """A UTF-8 CSV file with a header, whose cells are separated by commas, semicolons or tabs. Stays open after it."""
    source = CsvSource(file, limits, max(1, file.seek(0, io.SEEK_END)))
    file.seek(0)
    if file.read(8).startswith(_WORKBOOKS):
        raise refuse("the file is a workbook of a spreadsheet, or an archive: save the sheet as CSV in UTF-8")
    try:
        source.open()
        yield source
    except UnicodeDecodeError:
        raise refuse("the file is not UTF-8 text: save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise refuse(f"the file is not well-formed CSV ({error})", line=source.line) from None


@dataclass(frozen=True, slots=True, repr=False)
class _Part:
    """Whole lines of the file, and the number of the first."""

    text: str
    line: int

    @property
    def is_quoted(self) -> bool:
        return '"' in self.text


@dataclass(frozen=True, slots=True, repr=False)
class _Rows:
    """Consecutive rows of cells, with the line on which each ends."""

    cells: list[list[str]]
    lines: Sequence[int]

    def cut(self, start: int, end: int | None = None) -> "_Rows":
        return _Rows(self.cells[start:end], self.lines[start:end])

    def __add__(self, other: "_Rows") -> "_Rows":
        return _Rows(self.cells + other.cells, [*self.lines, *other.lines]) if self.cells else other


@dataclass(slots=True, repr=False)
class CsvSource:
    """See ``csv_source``."""

    file: BinaryIO
    limits: Limits
    size: int
    names: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    separator: Separator = ","
    progress: float = 0.0
    """The share of the file that was read."""
    _reader: Any = None
    _first_line: int = 1

    @property
    def line(self) -> int:
        """The line that was read last."""
        return self._first_line - 1 + int(self._reader.line_num)

    def kind(self, name: str) -> None:
        """CSV states no types."""

    def is_text(self, name: str) -> bool:
        """Every column has texts."""
        return True

    names_persons = is_text

    def open(self) -> None:
        """Find the separator, and read the header."""
        first = next(self._parts(), None)
        if first is None or not first.text.strip("\r\n"):
            raise refuse("the file is empty: it needs a header line and one line per row")
        if first.text[0] in "\r\n":
            raise refuse("the first line is blank: it must be the header", line=1)
        self.separator = self._separator(first)
        header = next(self._read(first.text, 1), None)
        self.names = names_of(header, self.limits)
        self.unnamed = [name for name, cell in zip(self.names, header or [], strict=True) if not cell.strip()]

    def _read(self, lines: str | Iterator[str], first_line: int) -> Iterator[list[str]]:
        """The rows of lines; ``line`` counts from the first of them."""
        source = io.StringIO(lines, newline="") if isinstance(lines, str) else lines
        self._reader, self._first_line = csv.reader(source, strict=True, delimiter=self.separator), first_line
        reader: Iterator[list[str]] = self._reader
        return reader

    def _separator(self, first: _Part) -> Separator:
        """The one that cuts the header into most cells, and the first row into as many."""
        counts: dict[Separator, tuple[int, int]] = {}
        for separator in get_args(Separator):
            self.separator, counts[separator] = separator, (0, -1)
            with suppress(csv.Error):
                rows = self._read(first.text, 1)
                header = next(rows, [])
                counts[separator] = len(header), -1
                counts[separator] = len(header), len(next(rows, header))
        fitting = [each for each, (cells, row) in counts.items() if cells == row and (cells > 1 or each == ",")]
        return max(fitting or counts, key=lambda each: counts[each][0])

    def blocks(
        self,
        wanted: Sequence[str],
        findings: Findings,
        as_text: Sequence[str] = (),
        decimal: Decimal | None = None,
    ) -> Iterator[RawBlock]:
        """Blocks of these columns. A row with another number of cells than the header is a finding, and left out.

        ``decimal``: columns may come as Numbers, written with this sign. Blank lines at the end are no rows.
        """
        sign = decimal if set(wanted) == set(self.names) and not as_text else None
        row, blank = 0, _Rows([], [])
        for part in self._bodies():
            if isinstance(part, _Part):
                if not blank.cells and (columns := self._at_once(part.text, sign)) is not None:
                    lines = range(part.line, part.line + _length(columns[0]))
                    self._check_rows(row, lines)
                    rows_of = range(row + 1, row + len(lines) + 1)
                    yield RawBlock(rows_of, lines, [columns[self.names.index(name)] for name in wanted])
                    row += len(lines)
                    continue
                cells = list(self._read(part.text, part.line))
                rows = _Rows(cells, range(part.line, part.line + len(cells)))
            else:
                rows = part
            end = len(rows.cells)
            while end and not any(rows.cells[end - 1]):
                end -= 1
            if end or len(blank.cells) > _BLANK_MAX:
                rows, blank = blank + rows.cut(0, end), rows.cut(end)
                self._check_rows(row, rows.lines)
                if (block := self._block(rows, row, wanted, findings)) is not None:
                    yield block
                row += len(rows.cells)
            else:
                blank += rows
        if len(blank.cells) > _BLANK_MAX:
            self._block(blank, row, wanted, findings)
        if row == 0:
            raise refuse("the file has a header but no rows")

    def _check_rows(self, before: int, lines: Sequence[int]) -> None:
        if before + len(lines) > self.limits.rows:
            first = self.limits.rows - before
            raise refuse(f"more than {self.limits.rows} rows", row=self.limits.rows + 1, line=lines[first])

    def _block(self, rows: _Rows, before: int, wanted: Sequence[str], findings: Findings) -> RawBlock | None:
        """The rows as columns; None if none has as many cells as the header."""
        width, cells, lines = len(self.names), rows.cells, rows.lines
        numbers: Sequence[int] = range(before + 1, before + len(cells) + 1)
        if set(map(len, cells)) - {width}:
            fitting = []
            for i, each in enumerate(cells):
                if len(each) == width:
                    fitting.append(i)
                else:
                    message = f"{len(each)} cells where the header has {width}"
                    findings.add(message + self._cut_by, row=numbers[i], line=lines[i])
            cells, lines = [cells[i] for i in fitting], [lines[i] for i in fitting]
            numbers = [numbers[i] for i in fitting]
        if not cells:
            return None
        columns = list(zip(*cells, strict=True))
        return RawBlock(numbers, lines, [list(columns[self.names.index(name)]) for name in wanted])

    @property
    def _cut_by(self) -> str:
        """What separates the cells, where it is no comma: somebody may not have meant it to."""
        return {",": "", ";": ", cut at semicolons", "\t": ", cut at tabs"}[self.separator]

    def decimal(self, wanted: Sequence[str]) -> Decimal:
        """The decimal sign of these columns: a comma where the separator is none and a number surely has one."""
        if self.separator != ",":
            for block in self.blocks(wanted, Findings()):
                texts = (column for column in block.columns if isinstance(column, list))
                if any("," in cell and has_decimal_comma(cell) for column in texts for cell in column):
                    return ","
        return "."

    # --- parts --------------------------------------------------------------------------------------------

    def _at_once(self, text: str, sign: Decimal | None) -> list[RawColumn] | None:
        """The columns of a part whose rows all have one line and the right number of cells; None for any other.

        With a ``sign`` of decimals they are numbers, where numpy surely reads the part as the rules for a cell do.
        """
        text = text.replace("\r\n", "\n")
        if "\r" in text or not text.strip():
            return None
        if sign is not None and (values := self._numbers(text, sign)) is not None:
            return [Numbers(column, np.zeros(len(values), dtype=bool)) for column in values.T]
        text = text.removesuffix("\n")
        width, lines = len(self.names), text.split("\n")
        if set(map(str.count, lines, repeat(self.separator))) != {width - 1} or not lines[-1].strip(self.separator):
            return None
        cells = text.replace("\n", self.separator).split(self.separator)
        return None if max(map(len, cells)) > CELL_MAX else [cells[j::width] for j in range(width)]

    def _numbers(self, text: str, sign: Decimal) -> Matrix | None:
        if sign == ",":
            if "." in text or self.separator == ",":
                return None
            text = text.replace(",", ".")
        if text.encode().translate(None, _OF_NUMBERS):  # numpy takes more kinds of blanks, and other words
            return None
        try:
            values = np.loadtxt(io.StringIO(text), delimiter=self.separator, comments=None, ndmin=2)
        except ValueError:
            return None
        lines = text.count("\n") + (not text.endswith("\n"))
        if values.shape != (lines, len(self.names)) or not (np.abs(values) <= LARGEST_INTEGER / 2).all():
            return None
        return None if not values.all() and _MAY_BE_TINY.search(text) else values

    def _bodies(self) -> Iterator[_Part | _Rows]:
        """The file after its header: parts up to the first that has a quote, then rows."""
        parts = self._parts()
        first = next(parts)
        if first.is_quoted:
            yield from self._quoted(chain([first], parts), has_header=True)
            return
        header = re.search(r"\r\n|\r|\n", first.text)
        if header is not None and header.end() < len(first.text):
            yield _Part(first.text[header.end() :], 2)
        for part in parts:
            if part.is_quoted:
                yield from self._quoted(chain([part], parts), has_header=False)
                return
            yield part

    def _quoted(self, parts: Iterator[_Part], *, has_header: bool) -> Iterator[_Rows]:
        """Rows that may take several lines: as many at a time as a part has characters."""
        characters, first = 0, next(parts)

        def lines() -> Iterator[str]:
            nonlocal characters
            for part in chain([first], parts):
                for line in io.StringIO(part.text, newline=""):
                    characters += len(line)
                    yield line

        rows = self._read(lines(), first.line)
        if has_header:
            next(rows)
        cells: list[list[str]] = []
        ends: list[int] = []
        for row in rows:
            cells.append(row)
            ends.append(self.line)
            if len(cells) >= _BLOCK_ROWS or characters > _BLOCK_CHARACTERS:
                yield _Rows(cells, ends)
                cells, ends, characters = [], [], 0
        if cells:
            yield _Rows(cells, ends)

    def _parts(self) -> Iterator[_Part]:
        """The file from its beginning. Raises DatasetInvalid for a line that is too long, or no text."""
        self.file.seek(0)
        line, rest = 1, b""
        while True:
            read = self.file.read(_PART_BYTES)
            rest += read
            end = _end_of_lines(rest) if read else len(rest)
            if len(rest) > _LINE_BYTES_MAX and (end == 0 or _end_of_first_line(rest) > _LINE_BYTES_MAX):
                raise refuse(f"a line is longer than {_LINE_BYTES_MAX:,} bytes", line=line)
            whole, rest = rest[:end], rest[end:]
            self.progress = min(1.0, self.file.tell() / self.size)
            if whole:
                text = whole.removeprefix(_BOM if line == 1 else b"").decode()
                if (at := whole.find(b"\x00")) >= 0:
                    raise refuse("the file is not text: it holds a zero byte", line=line + _line_ends(whole[:at]))
                if text:
                    yield _Part(text, line)
                line += _line_ends(whole)
            if not read:
                return


def _end_of_lines(data: bytes) -> int:
    """Where the last whole line ends; a return at the very end may be the first half of a line end."""
    return data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, len(data) - 1) + 1


def _end_of_first_line(data: bytes) -> int:
    ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
    return min(ends, default=len(data))


def _line_ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def _length(column: RawColumn) -> int:
    return len(column.values if isinstance(column, Numbers) else column)
