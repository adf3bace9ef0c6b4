"""A Parquet file as blocks of raw columns."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Vector
from blindopt.formats.numbers import LARGEST_INTEGER
from blindopt.wire import DecimalSign
from curator_service.datasets.columns import names_of, unnamed
from curator_service.datasets.sources import CELL_MAX, Findings, Limits, Numbers, RawBlock, RawColumn, refuse, too_large

_BLOCK_ROWS, _BLOCK_CELLS, _BLOCK_CHARACTERS = 10_000, 200_000, 1 << 22
_EXPANSION = 10
_BUFFER = 1 << 16
_CELL_BYTES = 2
"""What the shortest cell takes in CSV."""


def import_arrow() -> None:
    """Load pyarrow, without threads of its own. Raises DatasetInvalid where it is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise refuse(
            "this curator reads CSV only: for Parquet, pip install ./shared '.[parquet]' in a checkout"
        ) from None
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    pa.set_memory_pool(pa.system_memory_pool())  # it gives memory back at once


@contextmanager
def parquet_source(file: BinaryIO, limits: Limits) -> Iterator["ParquetSource"]:
    """A Parquet file. Needs the `parquet` extra."""
    import_arrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with _arrow_faults():
            # With pre_buffer it would read a whole row group into memory.
            opened = pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
            schema, header = opened.schema_arrow, list(opened.schema_arrow.names)
        if opened.metadata.num_rows > limits.rows:
            raise refuse(f"more than {limits.rows} rows")
        names = names_of(header, limits)
        if opened.metadata.num_rows == 0:
            raise refuse("the file has columns but no rows")
        limits = replace(limits, unpacked=max(limits.unpacked, _EXPANSION * file.seek(0, io.SEEK_END)))
        with _arrow_faults():
            # A file of a kilobyte may say of each of its rows that it holds the same long text.
            # Which columns do is not looked up: pyarrow ends the process where that part of a file is damaged.
            texts = [name for name in header if schema.field(name).type in (pa.string(), pa.large_string())]
            groups = [opened.metadata.row_group(i) for i in range(opened.metadata.num_row_groups)]
            opened = pq.ParquetFile(
                file, metadata=opened.metadata, buffer_size=_BUFFER, pre_buffer=False, read_dictionary=texts
            )
        cells = opened.metadata.num_rows * len(names)  # of one number, all of them take no bytes
        if max(sum(group.total_byte_size for group in groups), cells * _CELL_BYTES) > limits.unpacked:
            raise too_large(limits.unpacked)
        widest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
        yield ParquetSource(
            opened, schema, limits, names, unnamed(names, header), dict(zip(names, header, strict=True)), widest
        )
    finally:
        pa.default_memory_pool().release_unused()


@contextmanager
def _arrow_faults() -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except MemoryError:  # some are ArrowExceptions, too
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError):  # the last two: a date that Python has not
        raise refuse("the file is not a readable Parquet file") from None


@dataclass(slots=True, repr=False)
class ParquetSource:
    """See ``parquet_source``. Columns of numbers come as Numbers, all others as texts."""

    opened: Any
    schema: Any
    limits: Limits
    names: list[str]
    unnamed: list[str]
    _own: dict[str, str]
    _row_bytes: int
    progress: float = 0.0
    """The share of the rows that was read."""
    separator: None = None
    skipped: int = 0
    encoding: None = None

    def kind(self, name: str) -> str | None:
        """The type of a column that does not store numbers."""
        from pyarrow import types

        kind = self._type(name)
        is_numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        return None if is_numeric else str(kind)

    def _type(self, name: str) -> Any:
        with _arrow_faults():
            return self.schema.field(self._own[name]).type

    def is_text(self, name: str) -> bool:
        """Whether a column has texts, dates or flags, which are written in one way."""
        from pyarrow import types

        kind = self._type(name)
        kind = kind.value_type if types.is_dictionary(kind) else kind
        checks = (types.is_string, types.is_large_string, types.is_boolean, types.is_date, types.is_timestamp)
        return any(check(kind) for check in (*checks, types.is_null, types.is_integer))

    def names_persons(self, name: str) -> bool:
        import pyarrow as pa

        kind = self._type(name)
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        checks = ("integer", "floating", "decimal", "string", "large_string")
        return any(getattr(pa.types, f"is_{check}")(kind) for check in checks)

    def blocks(
        self,
        requested: Sequence[str],
        findings: Findings,
        as_text: Sequence[str] = (),
        decimal: DecimalSign | None = None,
    ) -> Iterator[RawBlock]:
        """Blocks of these columns; those ``as_text`` come as texts even where they are numbers."""
        row = characters = 0
        with _arrow_faults():
            # Others are not read: a list in one row may be longer than the memory.
            read = [name for name in requested if self.kind(name) is None or self.is_text(name)]
            size = max(
                1,
                min(_BLOCK_ROWS, _BLOCK_CELLS // max(1, len(requested)), _BLOCK_CHARACTERS // max(1, self._row_bytes)),
            )
            batches = self.opened.iter_batches(size, columns=[self._own[name] for name in read], use_threads=False)
        while (block := self._next(batches, row, requested, read, as_text)) is not None:
            sizes = _sizes(block, requested)
            characters += int(sizes.sum())
            if characters > self.limits.unpacked:
                raise too_large(self.limits.unpacked)
            row += len(block.rows)
            self.progress = min(1.0, row / self.opened.metadata.num_rows)
            if row > self.limits.rows:  # the number in the header may be wrong
                raise refuse(f"more than {self.limits.rows} rows")
            yield from _cut(block, sizes)
        if row == 0:
            raise refuse("the file has columns but no rows")

    def _next(
        self, batches: Iterator[Any], row: int, requested: Sequence[str], read: Sequence[str], as_text: Sequence[str]
    ) -> RawBlock | None:
        with _arrow_faults():
            if (batch := next(batches, None)) is None:
                return None
            columns: list[RawColumn] = []
            for name in requested:
                if name not in read:
                    columns.append([""] * batch.num_rows)  # its type is a fault of its own
                    continue
                column = batch.column(self._own[name])
                is_number = self.kind(name) is None and name not in as_text
                columns.append(_numbers(column) if is_number else _texts(column))
        return RawBlock(range(row + 1, row + batch.num_rows + 1), None, columns)


def _sizes(block: RawBlock, names: Sequence[str]) -> NDArray[np.int64]:
    """How many characters each row of a block has (m,). Raises DatasetInvalid for a cell that is too long."""
    sizes = np.zeros(len(block.rows), dtype=np.int64)
    for name, column in zip(names, block.columns, strict=True):
        if not isinstance(column, Numbers):
            lengths = np.fromiter(map(len, column), dtype=np.int64, count=len(column))
            if (lengths > CELL_MAX).any():
                row = block.rows[int(np.argmax(lengths > CELL_MAX))]
                raise refuse(f"a cell is longer than {CELL_MAX} characters", row=row, column=name)
            sizes += lengths
    return sizes


def _cut(block: RawBlock, sizes: NDArray[np.int64]) -> Iterator[RawBlock]:
    """A block in parts that are not much too large: equal texts of a batch are one text, and not so after it."""
    numbers = np.cumsum(sizes) // _BLOCK_CHARACTERS
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(block.rows)]
    for start, end in pairwise(cuts):
        if start < end:
            piece = slice(start, end)
            columns: list[RawColumn] = [
                Numbers(column.values[piece], column.missing[piece], column.rounded if start == 0 else 0)
                if isinstance(column, Numbers)
                else column[piece]
                for column in block.columns
            ]
            yield RawBlock(block.rows[piece], None, columns)


def _numbers(column: Any) -> Numbers:
    import pyarrow as pa

    missing = column.is_null().to_numpy(zero_copy_only=False)
    values: Vector = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    missing = missing.astype(bool)
    large = (
        np.flatnonzero(~missing & (np.abs(values) > LARGEST_INTEGER / 2)) if pa.types.is_integer(column.type) else ()
    )
    rounded = sum(column[i].as_py() != int(values[i]) for i in large)
    return Numbers(values, missing, rounded)


def _texts(column: Any) -> list[str]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        places = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        used, positions = np.unique(places, return_inverse=True)
        texts = _texts(column.dictionary.take(pa.array(used[used >= 0])))
        if len(texts) < len(used):
            texts = ["", *texts]
        return [texts[position] for position in positions.tolist()]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    cells = column.to_pylist()
    return ["" if cell is None else cell.isoformat() if hasattr(cell, "isoformat") else str(cell) for cell in cells]
