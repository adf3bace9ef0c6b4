"""Read and check a file of records, a block of rows at a time: it may be larger than the memory."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import DatasetInvalid
from curator_service.persons import PersonColumn

ERRORS_SHOWN = 50
_BLOCK_ROWS, _BLOCK_CELLS = 10_000, 200_000
_BUFFER = 1 << 16
_LINE_MAX = 1 << 22
_NAME_MAX = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest size of a dataset."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True, repr=False)
class Table:
    """Numeric columns of a dataset while its file is read. The repr shows their number alone, for privacy.

    ``blocks`` can be iterated once. Each is (rows, columns) with at least one row, in the order of the file. The
    iteration raises DatasetInvalid for faults, at its end at the latest, so do not use any block before.
    """

    names: list[str]
    dropped: list[str]
    blocks: Iterator[Matrix]

    def __repr__(self) -> str:
        return f"Table({len(self.names)} columns)"


@dataclass(slots=True)
class _Findings:
    """Errors with row, line and column: the first ones, and the number of all."""

    kept: list[dict[str, object]] = field(default_factory=list)
    total: int = 0

    def add(self, message: str, **where: object) -> None:
        self.total += 1
        if len(self.kept) < ERRORS_SHOWN:
            self.kept.append({"message": message, **where})

    def raise_any(self) -> None:
        if self.total:
            shown = f" (the first {len(self.kept)} are listed)" if self.total > len(self.kept) else ""
            noun = "error" if self.total == 1 else "errors"
            raise DatasetInvalid(f"{self.total} {noun} in the file{shown}; nothing was stored", self.kept, self.total)


def refuse(message: str, **where: object) -> DatasetInvalid:
    """The error for a file with one fault that stops the reading."""
    return DatasetInvalid(f"{message}; nothing was stored", [{"message": message, **where}], 1)


@contextmanager
def read_csv(
    file: BinaryIO, limits: Limits, columns: Sequence[str] | None = None, persons: PersonColumn | None = None
) -> Iterator[Table]:
    """The numeric table of a UTF-8 CSV file with a header; other columns than ``columns``, if given, are ignored.

    ``persons`` collects the digests of its column, which is no column of the table, while blocks are taken; none of its
    cells may be empty. Every cell of the table must be a finite number. Raises DatasetInvalid with row (1 after the
    header), line and column of each fault, never with the value. Iterate the blocks inside the context; the file stays
    open after it.
    """
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        reader = csv.reader(_short_lines(text), strict=True)
        header = next(reader, None)
        names, chosen, dropped = _header(header, limits, columns, persons)
        yield Table(names, dropped, _blocks(reader, header or [], names, chosen, limits, persons))
    except UnicodeDecodeError:
        raise refuse("the file is not UTF-8 text: save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise refuse(f"the file is not well-formed CSV ({error})", line=reader.line_num) from None
    finally:
        text.detach()


def _rows_at_once(names: list[str]) -> int:
    return max(1, min(_BLOCK_ROWS, _BLOCK_CELLS // len(names)))


def _short_lines(text: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(text, start=1):
        if len(line) > _LINE_MAX:
            raise refuse(f"a line is longer than {_LINE_MAX} characters", line=number)
        if "\x00" in line:
            raise refuse("the file is not text: it holds a zero byte", line=number)
        yield line


def _header(
    header: list[str] | None, limits: Limits, columns: Sequence[str] | None, persons: PersonColumn | None
) -> tuple[list[str], list[int], list[str]]:
    """Names and positions of the columns to read, and the names that are dropped."""
    if not header:
        raise refuse("the file is empty: it needs a header line and one line per row")
    if len(header) > limits.columns:
        raise refuse(f"{len(header)} columns: at most {limits.columns} are allowed", line=1)
    header = [name.strip() for name in header]
    for number, name in enumerate(header, start=1):
        if not name or len(name) > _NAME_MAX or not name.isprintable():
            raise refuse(f"column {number} has no usable name (1 to {_NAME_MAX} printable characters)", line=1)
        if header.index(name) != number - 1:
            raise refuse(f"columns {header.index(name) + 1} and {number} have the same name", line=1)
        if _fault(name) is None:
            raise refuse(f"the name of column {number} is a number: the first line must be a header", line=1)
    return _chosen(header, columns, None if persons is None else persons.name)


def _chosen(
    header: list[str], columns: Sequence[str] | None, person: str | None
) -> tuple[list[str], list[int], list[str]]:
    if person is not None and person not in header:
        raise refuse("person names a column that the file does not have")
    names = [name for name in header if name != person] if columns is None else list(columns)
    if not names or len(set(names)) != len(names):
        raise refuse("columns must name at least one column, and none twice")
    for number, name in enumerate(names):
        if name not in header:
            raise refuse(f"columns.{number} names a column that the file does not have")
        if name == person:
            raise refuse(f"columns.{number} is the person column, which is never stored: leave it out of columns")
    return names, [header.index(name) for name in names], [name for name in header if name not in (*names, person)]


def _blocks(
    reader: Any,
    header: list[str],
    names: list[str],
    chosen: list[int],
    limits: Limits,
    persons: PersonColumn | None,
) -> Iterator[Matrix]:
    row, more, findings = 0, True, _Findings()
    person = None if persons is None else _position(header, persons)
    while more:
        whole, more = [], False
        for cells in islice(reader, _rows_at_once(names)):
            row, more = row + 1, True
            if row > limits.rows:
                raise refuse(f"more than {limits.rows} rows", row=row, line=reader.line_num)
            if len(cells) != len(header):
                findings.add(f"{len(cells)} cells where the header has {len(header)}", row=row, line=reader.line_num)
                continue
            whole.append((row, reader.line_num, [cells[column] for column in chosen]))
            if persons is not None and person is not None:
                _add_person(persons, cells[person], findings, row=row, line=reader.line_num)
        block = np.empty((len(whole), len(names)))
        for j, name in enumerate(names):
            block[:, j] = _numbers([cells[j] for _, _, cells in whole], name, whole, findings)
        if more and not findings.total:  # after a fault, read on to list the other ones
            yield block
    findings.raise_any()
    if row == 0:
        raise refuse("the file has a header but no rows")


def _position(header: list[str], persons: PersonColumn) -> int:
    return [name.strip() for name in header].index(persons.name)


def _add_person(persons: PersonColumn, cell: str, findings: _Findings, **where: object) -> None:
    if not cell.strip():
        findings.add("missing person: say whose row it is, or leave the row out", column=persons.name, **where)
    persons.add([cell])


def _numbers(cells: list[str], name: str, whole: list[tuple[int, int, list[str]]], findings: _Findings) -> Vector:
    """A column as floats; if that fails, cell by cell, to locate each fault."""
    joined = "".join(cells)
    if joined.isascii() and "_" not in joined:  # Python accepts 1_000 and other scripts' digits as numbers
        try:
            values = np.array([float(cell) for cell in cells])
        except ValueError:
            pass
        else:
            if np.isfinite(values).all():
                return values
    for (row, line, _), cell in zip(whole, cells, strict=True):
        if (fault := _fault(cell)) is not None:
            findings.add(fault, row=row, line=line, column=name)
    return np.zeros(len(cells))


def _fault(cell: str) -> str | None:
    if not cell.strip():
        return "missing value: fill it, or leave the row or the column out"
    if not cell.isascii() or "_" in cell:
        return "not a number"
    try:
        value = float(cell)
    except ValueError:
        return "not a number: correct it, or leave the column out (columns)"
    return None if np.isfinite(value) else "not finite (NaN or infinity)"


@contextmanager
def read_parquet(
    file: BinaryIO, limits: Limits, columns: Sequence[str] | None = None, persons: PersonColumn | None = None
) -> Iterator[Table]:
    """Like ``read_csv``, for a Parquet file. Needs the `parquet` extra."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise refuse("this curator reads CSV only: install blindopt-services[parquet] for Parquet") from None
    try:
        with _arrow_faults():
            source = pq.ParquetFile(
                file, buffer_size=_BUFFER, pre_buffer=False
            )  # else it reads a whole row group into memory
            header = list(source.schema_arrow.names)
        if source.metadata.num_rows > limits.rows:
            raise refuse(f"more than {limits.rows} rows")
        names, chosen, dropped = _header(header, limits, columns, persons)
        person = None if persons is None else header[_position(header, persons)]
        if source.metadata.num_rows == 0:
            raise refuse("the file has columns but no rows")
        chosen_names = [header[column] for column in chosen]
        yield Table(names, dropped, _arrow_blocks(source, chosen_names, names, limits, persons, person))
    finally:
        pa.default_memory_pool().release_unused()


@contextmanager
def _arrow_faults() -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise refuse("the file is not a readable Parquet file") from None


def _arrow_blocks(
    source: Any, columns: list[str], names: list[str], limits: Limits, persons: PersonColumn | None, person: str | None
) -> Iterator[Matrix]:
    row, findings = 0, _Findings()
    with _arrow_faults():
        kinds = [source.schema_arrow.field(name).type for name in columns]
        read = columns if person is None else [*columns, person]
        batches = source.iter_batches(_rows_at_once(names), columns=read, use_threads=False)
        if person is not None and not _names_persons(kind := source.schema_arrow.field(person).type):
            raise refuse(f"the person column's type is {kind}: it must be text or whole numbers")
    numeric = [_is_numeric(kind) for kind in kinds]
    for name, kind, fits in zip(names, kinds, numeric, strict=True):
        if not fits:
            findings.add(f"the column's type is {kind}, not a number: leave it out (columns)", column=name)
    while True:
        with _arrow_faults():
            if (batch := next(batches, None)) is None:
                break
            block = np.zeros((batch.num_rows, len(names)))
            for j, name in enumerate(names):
                if numeric[j]:
                    block[:, j] = _arrow_numbers(batch.column(columns[j]), name, row, findings)
            if persons is not None and person is not None:
                for index, cell in enumerate(batch.column(person).to_pylist(), start=row + 1):
                    _add_person(persons, "" if cell is None else str(cell), findings, row=index)
        row += len(block)
        if row > limits.rows:  # the number in the header may be wrong
            raise refuse(f"more than {limits.rows} rows")
        if len(block) and not findings.total:
            yield block
    findings.raise_any()
    if row == 0:
        raise refuse("the file has columns but no rows")


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _names_persons(kind: Any) -> bool:
    """Whether a column of this type may name persons: decimals are left out, for 1.0 and 1.00 would be two of them."""
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _arrow_numbers(column: Any, name: str, start: int, findings: _Findings) -> Vector:
    """A column of a batch as floats; the batch begins after ``start`` rows."""
    import pyarrow as pa

    missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
    for row in missing:
        findings.add(
            "missing value: fill it, or leave the row or the column out", row=start + int(row) + 1, column=name
        )
    values: Vector = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    for row in np.setdiff1d(np.flatnonzero(~np.isfinite(values)), missing):
        findings.add("not finite (NaN or infinity)", row=start + int(row) + 1, column=name)
    return values
