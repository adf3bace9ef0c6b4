"""A CSV file of records as blocks of raw columns, with the rows and lines of its faults.

A part without a quote has a row on each line, and is cut at once; where all columns are wanted as numbers, numpy reads
it. Whatever is not as it should be is read again row by row and cell by cell, which finds the place of each fault.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import BinaryIO

import numpy as np

from blindopt.arrays import Matrix
from blindopt.formats.numbers import LARGEST_INTEGER, DecimalSigns, is_missing, readings
from blindopt.formats.tables import SEPARATORS, Malformed, Part, TextTable
from blindopt.wire import DecimalSign, Encoding, ReadingChoice, Separator
from curator_service.datasets.columns import names_of, unnamed
from curator_service.datasets.sources import CELL_MAX, Findings, Limits, Numbers, RawBlock, RawColumn, refuse

_BLOCK_ROWS, _BLOCK_CHARACTERS = 10_000, 1 << 20
_BLANK_MAX = 10_000
"""So many blank lines at the end of a file are no rows."""
_OF_NUMBERS = b"0123456789+-.eE,;\t| \n"
_COMMA_IN_QUOTES = re.compile(r'"[^",\n]*[0-9],[0-9]')
_CUT_BY = {",": "", ";": ", cut at semicolons", "\t": ", cut at tabs", "|": ", cut at bars"}
"""What separates the cells, where it is no comma: somebody may not have meant it to."""
_MAY_BE_TINY = re.compile(r"[eE]|[0-9.]{300}")


@contextmanager
def csv_source(file: BinaryIO, limits: Limits, choice: ReadingChoice) -> Iterator["CsvSource"]:
    """A CSV file with a header, whose cells are separated by commas, semicolons, tabs or bars. Stays open after it."""
    separators = SEPARATORS if choice.separator is None else (choice.separator,)
    source = CsvSource(TextTable(file, separators, encoding=choice.encoding or "utf-8"), limits)
    try:
        with source.table.checked():
            source.open()
            yield source
    except Malformed as fault:
        raise refuse(str(fault), **({} if fault.line is None else {"line": fault.line})) from None


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

    table: TextTable
    limits: Limits
    names: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    skipped: int = 0
    """Number of empty lines among the rows that were read last: each is a row without a value, and left out."""

    @property
    def separator(self) -> Separator:
        return self.table.separator

    @property
    def encoding(self) -> Encoding:
        return self.table.encoding

    @property
    def progress(self) -> float:
        return self.table.progress

    def kind(self, name: str) -> None:
        """CSV states no types."""

    def is_text(self, name: str) -> bool:
        return True

    names_persons = is_text

    def open(self) -> None:
        first = self.table.open()
        if first is None or not first.text.strip("\r\n"):
            raise refuse("the file is empty: it needs a header line and one line per row")
        if first.text[0] in "\r\n":
            raise refuse("the first line is blank: it must be the header", line=1)
        header = next(self.table.read(first.text, first.line), None)
        self.names = names_of(header, self.limits)
        self.unnamed = unnamed(self.names, header or [])

    def blocks(
        self,
        requested: Sequence[str],
        findings: Findings,
        as_text: Sequence[str] = (),
        decimal: DecimalSign | None = None,
    ) -> Iterator[RawBlock]:
        """Blocks of these columns. A row with another number of cells than the header is a finding, and left out.

        An empty line is skipped.

        ``decimal``: columns may come as Numbers, written with this sign. Blank lines at the end are no rows.
        """
        self.skipped = 0
        sign = decimal if set(requested) == set(self.names) and not as_text else None
        row, blank = 0, _Rows([], [])
        for part in self._bodies():
            if isinstance(part, Part):
                if not blank.cells and (columns := self._at_once(part.text, sign)) is not None:
                    lines = range(part.line, part.line + _length(columns[0]))
                    self._check_rows(row, lines)
                    rows_of = range(row + 1, row + len(lines) + 1)
                    yield RawBlock(rows_of, lines, [columns[self.names.index(name)] for name in requested])
                    row += len(lines)
                    continue
                cells = list(self.table.read(part.text, part.line))
                rows = _Rows(cells, range(part.line, part.line + len(cells)))
            else:
                rows = part
            end = len(rows.cells)
            while end and not any(rows.cells[end - 1]):
                end -= 1
            if end or len(blank.cells) > _BLANK_MAX:
                rows, blank = blank + rows.cut(0, end), rows.cut(end)
                self._check_rows(row, rows.lines)
                if (block := self._block(rows, row, requested, findings)) is not None:
                    yield block
                row += len(rows.cells)
            else:
                blank += rows
        if len(blank.cells) > _BLANK_MAX:
            self._block(blank, row, requested, findings)
        if row == 0:
            raise refuse("the file has a header but no rows")

    def _check_rows(self, before: int, lines: Sequence[int]) -> None:
        if before + len(lines) > self.limits.rows:
            first = self.limits.rows - before
            raise refuse(f"more than {self.limits.rows} rows", row=self.limits.rows + 1, line=lines[first])

    def _block(self, rows: _Rows, before: int, requested: Sequence[str], findings: Findings) -> RawBlock | None:
        """The rows as columns; None if none has as many cells as the header."""
        width, cells, lines = len(self.names), rows.cells, rows.lines
        numbers: Sequence[int] = range(before + 1, before + len(cells) + 1)
        if set(map(len, cells)) - {width}:
            fitting = []
            for i, each in enumerate(cells):
                if len(each) == width:
                    fitting.append(i)
                elif not each:
                    self.skipped += 1
                else:
                    message = f"{len(each)} cells where the header has {width}"
                    findings.add(message + _CUT_BY[self.separator], row=numbers[i], line=lines[i])
            cells, lines = [cells[i] for i in fitting], [lines[i] for i in fitting]
            numbers = [numbers[i] for i in fitting]
        if not cells:
            return None
        columns = list(zip(*cells, strict=True))
        return RawBlock(numbers, lines, [list(columns[self.names.index(name)]) for name in requested])

    def decimal_signs(self, requested: Sequence[str], markers: frozenset[str], *, is_survey: bool) -> DecimalSigns:
        """What the cells of these columns say about the decimal sign, but for ``markers`` of gaps.

        They are read up to the first sure cells. In a survey columns that are mostly text say nothing. Cells that are
        cut at commas have a comma in quotes alone.
        """
        signs = DecimalSigns()
        quoted = (_COMMA_IN_QUOTES.search(part.text) for part in self.table.parts())
        if self.separator == "," and len(self.names) > 1 and not any(quoted):
            return signs
        for block in self.blocks(requested, Findings()):
            for column in block.columns:
                if not isinstance(column, list) or not any("." in cell or "," in cell for cell in column):
                    continue
                cells = [cell for cell in column if cell.strip() not in markers] if markers else column
                if not is_survey or _is_of_numbers(cells):
                    signs.add(cells)
            if signs.is_sure:
                break
        return signs

    # --- parts --------------------------------------------------------------------------------------------

    def _at_once(self, content: str, sign: DecimalSign | None) -> list[RawColumn] | None:
        """The columns of a part whose rows all have one line and the right number of cells; None for any other.

        With a ``sign`` of decimals they are numbers, where numpy surely reads the part as the rules for a cell do.
        """
        content = content.replace("\r\n", "\n")
        if "\r" in content or not content.strip():
            return None
        if sign is not None and (values := self._numbers(content, sign)) is not None:
            return [Numbers(column, np.zeros(len(values), dtype=bool)) for column in values.T]
        content = content.removesuffix("\n")
        width, lines = len(self.names), content.split("\n")
        if set(map(str.count, lines, repeat(self.separator))) != {width - 1} or not lines[-1].strip(self.separator):
            return None
        cells = content.replace("\n", self.separator).split(self.separator)
        return None if max(map(len, cells)) > CELL_MAX else [cells[j::width] for j in range(width)]

    def _numbers(self, content: str, sign: DecimalSign) -> Matrix | None:
        if sign == ",":
            if "." in content or self.separator == ",":
                return None
            content = content.replace(",", ".")
        if content.encode().translate(None, _OF_NUMBERS):  # numpy takes more kinds of blanks, and other words
            return None
        try:
            values = np.loadtxt(io.StringIO(content), delimiter=self.separator, comments=None, ndmin=2)
        except ValueError:
            return None
        lines = content.count("\n") + (not content.endswith("\n"))
        if values.shape != (lines, len(self.names)) or not (np.abs(values) <= LARGEST_INTEGER / 2).all():
            return None
        return None if not values.all() and _MAY_BE_TINY.search(content) else values

    def _bodies(self) -> Iterator[Part | _Rows]:
        """The file after its header: parts up to the first that has a quote, then rows."""
        parts = self.table.parts()
        first = next(parts)
        if first.is_quoted:
            yield from self._quoted(chain([first], parts), has_header=True)
            return
        header = re.search(r"\r\n|\r|\n", first.text)
        if header is not None and header.end() < len(first.text):
            yield Part(first.text[header.end() :], first.line + 1)
        for part in parts:
            if part.is_quoted:
                yield from self._quoted(chain([part], parts), has_header=False)
                return
            yield part

    def _quoted(self, parts: Iterator[Part], *, has_header: bool) -> Iterator[_Rows]:
        """Rows that may take several lines: as many at a time as a part has characters."""
        rows, characters = self.table.rows(parts), 0
        if has_header:
            next(rows)
        cells: list[list[str]] = []
        ends: list[int] = []
        for line, row in rows:
            cells.append(row)
            ends.append(line)
            characters += sum(map(len, row))
            if len(cells) >= _BLOCK_ROWS or characters > _BLOCK_CHARACTERS:
                yield _Rows(cells, ends)
                cells, ends, characters = [], [], 0
        if cells:
            yield _Rows(cells, ends)


def _is_of_numbers(cells: list[str]) -> bool:
    filled = [cell for cell in cells if not is_missing(cell)]
    return 2 * sum(not readings(cell) for cell in filled) < len(filled)


def _length(column: RawColumn) -> int:
    return len(column.values if isinstance(column, Numbers) else column)
