"""A CSV or Parquet file as blocks of raw columns: nothing is decided here about what they mean."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Vector
from curator_service.datasets.cells import Decimal, has_decimal_comma
from curator_service.datasets.columns import names_of
from curator_service.datasets.findings import Findings, Limits, refuse

_BLOCK_ROWS, _BLOCK_CELLS = 10_000, 200_000
_BUFFER = 1 << 16
_LINE_MAX = 1 << 22
_SEPARATORS = ",;\t"


@dataclass(frozen=True, slots=True, repr=False)
class Numbers:
    """A column that the file itself stores as numbers (m,), and which of them are missing (m,)."""

    values: Vector
    missing: NDArray[np.bool_]


RawColumn = list[str] | Numbers


@dataclass(frozen=True, slots=True, repr=False)
class RawBlock:
    """Consecutive rows of the columns that were asked for, with the number of each row from 1, and its line in CSV."""

    rows: list[int]
    lines: list[int] | None
    columns: list[RawColumn]

    def at(self, index: int) -> dict[str, object]:
        """The place of a row, for a fault."""
        where: dict[str, object] = {"row": self.rows[index]}
        return where if self.lines is None else where | {"line": self.lines[index]}


# --- CSV ----------------------------------------------------------------------------------------------


@contextmanager
def csv_source(file: BinaryIO, limits: Limits) -> Iterator["CsvSource"]:
    """A UTF-8 CSV file with a header, whose cells are separated by commas, semicolons or tabs. Stays open after it."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    source = CsvSource(text, limits)
    try:
        source.open()
        yield source
    except UnicodeDecodeError:
        raise refuse("the file is not UTF-8 text: save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise refuse(f"the file is not well-formed CSV ({error})", line=source.line) from None
    finally:
        text.detach()


@dataclass(slots=True, repr=False)
class CsvSource:
    """See ``csv_source``."""

    text: io.TextIOWrapper
    limits: Limits
    names: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    separator: str = ","
    _reader: Any = None

    @property
    def line(self) -> int:
        """The line that was read last."""
        return int(self._reader.line_num)

    def kind(self, name: str) -> None:
        """CSV states no types."""

    def open(self) -> None:
        """Find the separator, and read the header."""
        self.separator = self._separator()
        header = self._again()
        self.names = names_of(header, self.limits)
        self.unnamed = [name for name, cell in zip(self.names, header or [], strict=True) if not cell.strip()]

    def _again(self) -> list[str] | None:
        """Read the header, from the beginning."""
        self.text.seek(0)
        self._reader = csv.reader(_short_lines(self.text), strict=True, delimiter=self.separator)
        header: list[str] | None = next(self._reader, None)
        return header

    def _separator(self) -> str:
        """The one that cuts the header into most cells, and the first row into as many."""
        counts: dict[str, tuple[int, int]] = {}
        for separator in _SEPARATORS:
            self.separator, counts[separator] = separator, (0, -1)
            with suppress(csv.Error):
                header = self._again() or []
                counts[separator] = len(header), -1
                counts[separator] = len(header), len(next(self._reader, header))
        fitting = [each for each, (cells, row) in counts.items() if cells == row and (cells > 1 or each == ",")]
        return max(fitting or counts, key=lambda each: counts[each][0])

    def blocks(self, wanted: Sequence[str], findings: Findings, as_text: Sequence[str] = ()) -> Iterator[RawBlock]:
        """Blocks of these columns. A row with another number of cells than the header is a finding, and left out."""
        self._again()
        chosen, row, more = [self.names.index(name) for name in wanted], 0, True
        size = max(1, min(_BLOCK_ROWS, _BLOCK_CELLS // max(1, len(chosen))))
        while more:
            rows: list[int] = []
            lines: list[int] = []
            whole: list[list[str]] = []
            more = False
            for cells in islice(self._reader, size):
                row, more = row + 1, True
                if row > self.limits.rows:
                    raise refuse(f"more than {self.limits.rows} rows", row=row, line=self.line)
                if len(cells) != len(self.names):
                    message = f"{len(cells)} cells where the header has {len(self.names)}"
                    findings.add(message, row=row, line=self.line)
                    continue
                rows.append(row)
                lines.append(self.line)
                whole.append([cells[column] for column in chosen])
            if rows:
                yield RawBlock(rows, lines, [[cells[j] for cells in whole] for j in range(len(chosen))])
        if row == 0:
            raise refuse("the file has a header but no rows")

    def decimal(self, wanted: Sequence[str]) -> Decimal:
        """The decimal sign of these columns: a comma where the separator is none and a number surely has one."""
        if self.separator != ",":
            for block in self.blocks(wanted, Findings()):
                if any(has_decimal_comma(cell) for column in block.columns for cell in column):  # type: ignore[union-attr]
                    return ","
        return "."


def _short_lines(text: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(text, start=1):
        if len(line) > _LINE_MAX:
            raise refuse(f"a line is longer than {_LINE_MAX} characters", line=number)
        if "\x00" in line:
            raise refuse("the file is not text: it holds a zero byte", line=number)
        yield line


# --- Parquet ------------------------------------------------------------------------------------------


@contextmanager
def parquet_source(file: BinaryIO, limits: Limits) -> Iterator["ParquetSource"]:
    """A Parquet file. Needs the `parquet` extra."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise refuse("this curator reads CSV only: install blindopt-services[parquet] for Parquet") from None
    try:
        with _arrow_faults():
            # With pre_buffer it would read a whole row group into memory.
            opened = pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
            header = list(opened.schema_arrow.names)
        if opened.metadata.num_rows > limits.rows:
            raise refuse(f"more than {limits.rows} rows")
        names = names_of(header, limits)
        if opened.metadata.num_rows == 0:
            raise refuse("the file has columns but no rows")
        unnamed = [name for name, own in zip(names, header, strict=True) if not own.strip()]
        yield ParquetSource(opened, limits, names, unnamed, dict(zip(names, header, strict=True)))
    finally:
        pa.default_memory_pool().release_unused()


@contextmanager
def _arrow_faults() -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError):  # the last two: a date that Python has not
        raise refuse("the file is not a readable Parquet file") from None


@dataclass(frozen=True, slots=True, repr=False)
class ParquetSource:
    """See ``parquet_source``. Columns of numbers come as Numbers, all others as texts."""

    opened: Any
    limits: Limits
    names: list[str]
    unnamed: list[str]
    _own: dict[str, str]
    separator: None = None

    def kind(self, name: str) -> str | None:
        """The type of a column that does not store numbers."""
        kind = self._type(name)
        return None if _is_numeric(kind) else str(kind)

    def _type(self, name: str) -> Any:
        with _arrow_faults():
            return self.opened.schema_arrow.field(self._own[name]).type

    def is_text(self, name: str) -> bool:
        """Whether a column has texts, dates or flags, which are written in one way."""
        return _is_text(self._type(name))

    def names_persons(self, name: str) -> bool:
        """Whether a column may name persons: of decimals 1.0 and 1.00 would be two."""
        import pyarrow as pa

        kind = self._type(name)
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))

    def blocks(self, wanted: Sequence[str], findings: Findings, as_text: Sequence[str] = ()) -> Iterator[RawBlock]:
        """Blocks of these columns; those ``as_text`` come as texts even where they are numbers."""
        row = 0
        with _arrow_faults():
            own = [self._own[name] for name in wanted]
            size = max(1, min(_BLOCK_ROWS, _BLOCK_CELLS // max(1, len(own))))
            batches = self.opened.iter_batches(size, columns=own, use_threads=False)
        numeric = [self.kind(name) is None and name not in as_text for name in wanted]
        while True:
            with _arrow_faults():
                if (batch := next(batches, None)) is None:
                    break
                columns = [
                    _numbers(batch.column(each)) if is_number else _texts(batch.column(each))
                    for each, is_number in zip(own, numeric, strict=True)
                ]
            count = batch.num_rows
            if row + count > self.limits.rows:  # the number in the header may be wrong
                raise refuse(f"more than {self.limits.rows} rows")
            if count:
                yield RawBlock(list(range(row + 1, row + count + 1)), None, columns)
            row += count
        if row == 0:
            raise refuse("the file has columns but no rows")


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    checks = (types.is_string, types.is_large_string, types.is_boolean, types.is_date, types.is_timestamp)
    return any(check(kind) for check in (*checks, types.is_null, types.is_integer))


def _numbers(column: Any) -> Numbers:
    import pyarrow as pa

    missing = column.is_null().to_numpy(zero_copy_only=False)
    values: Vector = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return Numbers(values, missing.astype(bool))


def _texts(column: Any) -> list[str]:
    import pyarrow as pa

    if not _is_text(column.type):
        return [""] * len(column)  # its type is a fault of its own
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    cells = column.to_pylist()
    return ["" if cell is None else cell.isoformat() if hasattr(cell, "isoformat") else str(cell) for cell in cells]
