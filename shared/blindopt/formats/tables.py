"""Tables that people hand in as text: from bytes to rows of cells, in parts of whole lines, for files of any size.

Every reader of such text begins here: files of records, sheets of measurements, pasted bounds, past measurements.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

from blindopt.errors import Invalid
from blindopt.formats.numbers import readings
from blindopt.wire import Encoding, Separator

SEPARATORS: tuple[Separator, ...] = (",", ";", "\t", "|")
CELLS_MAX = 2_000
ROW_MAX = 1 << 16
"""Most cells, and most characters, of a row of a sheet."""
_PART_BYTES = 1 << 17
_LINE_BYTES_MAX = 1 << 20
_BEYOND_ASCII = re.compile(rb"[A-Za-z\x80-\xff]*[\x80-\xff][A-Za-z\x80-\xff]*")
_SAMPLES, _SAMPLE_MAX = 5, 40
_SEPARATOR_LINE = re.compile(r'"?sep=(?P<sign>[^\r\n])"?[ ]*(?:\r\n|\r|\n|$)', re.IGNORECASE)
"""A first line as Excel reads it, which is no header."""
_TWO_SEPARATORS = "two signs cut all lines into equally many cells: write sep=; (or , or |) as a first line,"
_BOM = b"\xef\xbb\xbf"
_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
"""How a workbook of Excel or OpenDocument begins: a ZIP archive, or a compound file of before 2007."""


class Malformed(Exception):
    """What is wrong with a text that is no table, and on which ``line`` (from 1; None: with all of it)."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """Whole lines of a file, and the number of the first."""

    text: str
    line: int

    @property
    def is_quoted(self) -> bool:
        """Whether a row may take several of its lines."""
        return '"' in self.text


@dataclass(slots=True, repr=False)
class TextTable:
    """A text whose cells are separated by one of ``separators``; strict about quotes.

    ``row_max``: most characters of a row, if there is a limit; a line has 1 MiB at most in any case. Iterate inside
    ``checked``, which raises Malformed.
    """

    file: BinaryIO
    separators: Sequence[Separator] = SEPARATORS
    row_max: int | None = None
    encoding: Encoding = "utf-8"
    separator: Separator = ","
    progress: float = 0.0
    """The share of the file that was read."""
    _size: int = 0
    _reader: Any = None
    _first_line: int = 1

    @property
    def line(self) -> int:
        return self._first_line - 1 + int(self._reader.line_num)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Raise Malformed for what is no text, and for broken quotes."""
        try:
            yield
        except UnicodeDecodeError:
            what_else = "" if self.encoding != "utf-8" else ", or say that it is Windows-1252"
            raise Malformed(
                f"the file is not {self.encoding.upper()} text: save it as CSV in UTF-8{what_else}"
            ) from None
        except csv.Error as error:
            raise Malformed(f"the file is not well-formed CSV ({error})", self.line) from None

    def open(self) -> Part | None:
        """Find the separator; the first lines, None for an empty file."""
        self._size = max(1, self.file.seek(0, io.SEEK_END))
        self.file.seek(0)
        if self.file.read(8).startswith(_WORKBOOKS):
            raise Malformed("the file is a workbook of a spreadsheet, or an archive: save the sheet as CSV in UTF-8")
        first = next(self.parts(), None)
        if first is not None:
            self.separator = self._separator_of(first)
        return first

    def _name_separator(self, sign: str) -> None:
        """Take the separator of a first line ``sep=;``, unless one was declared."""
        if len(self.separators) > 1:
            self.separators = [separator for separator in self.separators if separator == sign]
        if not self.separators:
            raise Malformed(
                "the first line names a separator that is not known: use commas, semicolons, tabs or bars", 1
            )

    def _separator_of(self, first: Part) -> Separator:
        """The one that cuts the first two rows into as many cells, else the most frequent one of the first line.

        Of several it is the one that cuts each row of ``first`` alike and leaves most digits in numbers.
        """
        cells: dict[Separator, int] = {}
        for separator in self.separators:
            rows = self._first_rows(first, separator)
            header = next(rows, [])
            if len(header) == len(next(rows, header)) and (len(header) > 1 or separator == ","):
                cells[separator] = len(header)
        first_line = first.text.splitlines()[0] if first.text else ""
        if not cells:
            return max(self.separators, key=first_line.count)
        if sum(width > 1 for width in cells.values()) > 1:
            cells = self._likeliest(first, cells)
        return max(cells, key=lambda sign: cells[sign])

    def _first_rows(self, first: Part, separator: Separator) -> Iterator[list[str]]:
        """The rows of a part, up to one with a broken quote."""
        self.separator = separator
        with suppress(csv.Error):
            yield from self.read(first.text[: self.row_max], 1)

    def _likeliest(self, first: Part, cells: dict[Separator, int]) -> dict[Separator, int]:
        """Of separators that cut the first two rows alike, those that may be meant. Raises Malformed if any may be."""
        digits: dict[Separator, int] = {}
        for separator, width in cells.items():
            rows = [row for row in self._first_rows(first, separator) if row]
            if self.row_max is not None and len(first.text) > self.row_max:
                del rows[-1]  # it may be cut
            if {len(row) for row in rows} == {width} and width > 1:
                numbers = "".join(cell for row in rows for cell in row if readings(cell))
                digits[separator] = sum(map(str.isdigit, numbers))
        most = max(digits.values(), default=0)
        likely = {separator: cells[separator] for separator, number in digits.items() if number == most}
        if most and len(likely) > 1:
            raise Malformed(f"{_TWO_SEPARATORS} or say what separates them", 1)
        return likely or cells

    def read(self, lines: str | Iterator[str], first_line: int) -> Iterator[list[str]]:
        """The rows of lines; ``line`` counts from the first of them."""
        source = io.StringIO(lines, newline="") if isinstance(lines, str) else lines
        self._reader, self._first_line = csv.reader(source, strict=True, delimiter=self.separator), first_line
        reader: Iterator[list[str]] = self._reader
        return reader

    def rows(self, parts: Iterator[Part]) -> Iterator[tuple[int, list[str]]]:
        """Rows that may take several lines, each with the line on which it ends."""
        of_row, first = 0, next(parts, None)
        if first is None:
            return

        def lines() -> Iterator[str]:
            nonlocal of_row
            for part in chain([first], parts):
                for line in io.StringIO(part.text, newline=""):
                    of_row += len(line)
                    if self.row_max is not None and of_row > self.row_max:
                        raise Malformed(f"a row is longer than {self.row_max:,} characters", self.line + 1)
                    yield line

        for row in self.read(lines(), first.line):
            of_row = 0
            yield self.line, row

    def parts(self) -> Iterator[Part]:
        self.file.seek(0)
        line, remainder = 1, b""
        while True:
            read = self.file.read(_PART_BYTES)
            remainder += read
            end = _end_of_lines(remainder) if read else len(remainder)
            if len(remainder) > _LINE_BYTES_MAX and (end == 0 or _end_of_first_line(remainder) > _LINE_BYTES_MAX):
                raise Malformed(f"a line is longer than {_LINE_BYTES_MAX:,} bytes", line)
            whole, remainder = remainder[:end], remainder[end:]
            self.progress = min(1.0, self.file.tell() / self._size)
            if whole:
                text = whole.removeprefix(_BOM if line == 1 else b"").decode(self.encoding)
                if (at := whole.find(b"\x00")) >= 0:
                    raise Malformed("the file is not text: it holds a zero byte", line + _line_ends(whole[:at]))
                named = _SEPARATOR_LINE.match(text) if line == 1 else None
                if named is not None:
                    self._name_separator(named["sign"])
                    text = text[named.end() :]
                if text:
                    yield Part(text, line + (named is not None))
                line += _line_ends(whole)
            if not read:
                return


class SmallTable:
    """The rows of a small table, each with the number of its last line: ``for line, cells in SmallTable(body)``.

    A row has ``ROW_MAX`` characters and ``CELLS_MAX`` cells at most. Raises Invalid for text that is no such table.
    """

    def __init__(self, body: bytes, separators: Sequence[Separator] = SEPARATORS) -> None:
        self._table = TextTable(io.BytesIO(body), separators, ROW_MAX)
        with _refused(self._table):
            self._table.open()
        self.separator = self._table.separator

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        with _refused(self._table):
            for line, cells in self._table.rows(self._table.parts()):
                if len(cells) > CELLS_MAX:
                    raise Malformed(f"has more than {CELLS_MAX:,} cells", line)
                yield line, cells


@contextmanager
def _refused(table: TextTable) -> Iterator[None]:
    try:
        with table.checked():
            yield
    except Malformed as fault:
        raise Invalid.of([{"line": fault.line, "message": str(fault)}]) from None


def words_beyond_utf8(file: BinaryIO) -> list[str]:
    """Up to five words of a file that is not UTF-8, as Windows-1252 reads them; none of a file that is UTF-8."""
    decoder, is_utf8, words = codecs.getincrementaldecoder("utf-8")(), True, dict[str, None]()
    file.seek(0)
    while chunk := file.read(_PART_BYTES):
        try:
            if is_utf8:
                decoder.decode(chunk)
        except UnicodeDecodeError:
            is_utf8 = False
        for word in _BEYOND_ASCII.findall(chunk) if len(words) < _SAMPLES else ():
            words[word[:_SAMPLE_MAX].decode("windows-1252", "replace")] = None
        if not is_utf8 and len(words) >= _SAMPLES:
            break
    file.seek(0)
    return [] if is_utf8 else list(words)[:_SAMPLES]


def _end_of_lines(data: bytes) -> int:
    """Where the last whole line ends; a return at the very end may be the first half of a line end."""
    return data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, len(data) - 1) + 1


def _end_of_first_line(data: bytes) -> int:
    ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
    return min(ends, default=len(data))


def _line_ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")
