"""Read and check a file of records, a block of rows at a time: it may be larger than the memory."""

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.formats import numbers as rules
from blindopt.wire import LABEL_CHARACTERS_MAX, CellReading, ColumnChoice, DecimalSign, FileReading, ReadingChoice
from curator_service.datasets.columns import DETECTED, choose
from curator_service.datasets.csv_source import CsvSource, csv_source
from curator_service.datasets.parquet_source import ParquetSource, parquet_source
from curator_service.datasets.persons import PersonColumn
from curator_service.datasets.sources import Findings, Limits, Numbers, RawBlock, RawColumn, refuse

Source = CsvSource | ParquetSource
_EPOCH = date(1970, 1, 1)
Faults = list[tuple[int, str]]
_NO_PERSON = "missing person: say whose row it is, or leave the row out"


@dataclass(slots=True, repr=False)
class Table:
    """Numeric columns of a dataset while its file is read. The repr shows their number alone, for privacy.

    ``blocks`` can be iterated once. Each is (rows, columns) with at least one row, in the order of the file. The
    iteration raises DatasetInvalid for faults, at its end at the latest, so do not use any block before.
    """

    names: list[str]
    dropped: list[str]
    reading: FileReading
    source: Source
    blocks: Iterator[Matrix] = field(default_factory=lambda: iter(()))
    rows: int = 0
    """Number of rows of the file so far."""
    rounded: dict[str, int] = field(default_factory=dict)
    """How many numbers of a column so far are stored as another one than is written."""
    kept: int = 0
    """Number of rows so far that are kept."""
    _numbers: "array[int]" = field(default_factory=lambda: array("q"))
    _labels: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Table({len(self.names)} columns)"

    def taken_numbers(self) -> bytes:
        """The number in the file, from 1, of each row that was kept since the last call, as int64."""
        taken, self._numbers = self._numbers.tobytes(), array("q")
        return taken

    def taken_labels(self) -> bytes:
        """The labels of each row that was kept since the last call: a line for each, which is a JSON list of texts."""
        taken, self._labels = "".join(self._labels), []
        return taken.encode()

    @property
    def numbers(self) -> NDArray[np.int64]:
        return np.array(self._numbers, dtype=np.int64)

    @property
    def left_out(self) -> int:
        """Number of rows so far that were left out, for a missing value."""
        return self.rows + self.source.skipped - self.kept

    def keep(self, rows: Sequence[int], is_kept: NDArray[np.bool_], labels: Sequence[Sequence[str]] = ()) -> None:
        """Count the rows of a block, by their numbers, and those of them that are kept (m,), with their ``labels``."""
        self.rows += len(rows)
        self.kept += int(is_kept.sum())
        self._numbers.frombytes(np.asarray(rows, dtype=np.int64)[is_kept].tobytes())
        if labels:
            self._labels += [
                json.dumps([cells[i] for cells in labels]) + "\n" for i in np.flatnonzero(is_kept).tolist()
            ]


@contextmanager
def read_table(
    file: BinaryIO,
    limits: Limits,
    choice: ReadingChoice = DETECTED,
    persons: PersonColumn | None = None,
    *,
    parquet: bool,
) -> Iterator[Table]:
    """The numeric table of a CSV file with a header, or of a Parquet file, which needs the `parquet` extra.

    ``persons`` collects the digests of the column of persons, which is no column of the table, for each row that is
    kept while blocks are taken; none of its cells may be empty. Raises DatasetInvalid with the first row (1 after the
    header) and line of each kind of fault in each column, never with the value. Iterate the blocks inside the context;
    the file stays open after it.
    """
    with open_source(file, limits, choice, parquet=parquet) as source:
        selection = choose(source.names, choice, limits)
        if persons is not None and not source.names_persons(persons.name):
            raise refuse(f"the person column's type is {source.kind(persons.name)}: it must be text or numbers")
        numbers = [choice.column for choice in selection.choices if choice.kind == "number"]
        reading = FileReading(
            separator=source.separator,
            decimal=_decimal_of(source, choice, numbers),
            encoding=source.encoding,
            missing_values=choice.missing_values,
            columns=selection.choices,
            person_ids=None if persons is None else choice.person_ids or "folded_1",
        )
        table = Table(selection.stored, selection.dropped, reading, source)
        table.blocks = _blocks(source, selection.choices, table, persons)
        yield table


def decimal_sign(
    source: Source, choice: ReadingChoice, numbers: Sequence[str], *, is_survey: bool = False
) -> tuple[DecimalSign | None, list[CellReading]]:
    """The decimal sign of a file, None for Parquet; and if it has to be asked for, the first cells of ``numbers``.

    ``is_survey``: it is not decided yet which columns are read as numbers, so that those of numbers count.
    """
    if choice.decimal is not None or not isinstance(source, CsvSource):
        return (choice.decimal if isinstance(source, CsvSource) else None), []
    of_columns = [column.missing_values for column in choice.columns or [] if not isinstance(column, str)]
    markers = frozenset(marker.strip() for listed in (choice.missing_values, *of_columns) for marker in listed)
    signs = source.decimal_signs(numbers, markers, is_survey=is_survey)
    if (sign := signs.of_file(source.separator if len(source.names) > 1 else None)) is not None:
        return sign, []
    return ("." if source.separator == "," else ","), signs.unsure


def _decimal_of(source: Source, choice: ReadingChoice, numbers: Sequence[str]) -> DecimalSign | None:
    sign, unsure = decimal_sign(source, choice, numbers)
    if unsure:
        readings = [reading.model_dump() for reading in unsure]
        raise refuse(rules.WHICH_SIGN, field="decimal", readings=readings)
    return sign


def markers_in(reading: FileReading | ReadingChoice, column: ColumnChoice | None) -> frozenset[str]:
    """The further cells that count as missing in a column; a category of the column is none."""
    markers = frozenset(map(str.strip, reading.missing_values))
    if column is None:
        return markers
    return (markers - {value.strip() for value in column.values or ()}) | set(map(str.strip, column.missing_values))


def _without(markers: frozenset[str], column: RawColumn) -> RawColumn:
    if not markers:
        return column
    if isinstance(column, Numbers):
        return replace(column, missing=missing_numbers(column, markers))
    return ["" if cell.strip() in markers else cell for cell in column]


def missing_numbers(column: Numbers, markers: frozenset[str]) -> NDArray[np.bool_]:
    """Which numbers of a column are missing (m,): also those that a marker writes."""
    gaps = [number for marker in markers if (number := rules.number_of(marker)) is not None]
    missing: NDArray[np.bool_] = column.missing | np.isnan(column.values) | np.isin(column.values, gaps)
    return missing


def _unfit(source: Source, choices: list[ColumnChoice]) -> dict[str, str]:
    """Why columns of these types cannot be read as they were chosen, by name."""
    unfit = {}
    for name, is_number in ((choice.column, choice.kind == "number") for choice in choices):
        kind = source.kind(name)
        if is_number and kind is not None:
            unfit[name] = f"not a number: the column's type is {kind}. Leave it out, or encode it"
        elif not is_number and not source.is_text(name):
            unfit[name] = f"the column's type {kind or 'of numbers'} cannot be encoded: leave it out"
    return unfit


def _blocks(
    source: Source, choices: list[ColumnChoice], table: Table, persons: PersonColumn | None
) -> Iterator[Matrix]:
    findings, unfit = Findings(), _unfit(source, choices)
    for name, message in unfit.items():
        findings.add(message, column=name)
    choices = [choice for choice in choices if choice.column not in unfit]
    if not choices:
        findings.raise_any()
    choices.sort(key=lambda choice: choice.kind == "label")  # labels follow what is encoded
    encoded = [choice for choice in choices if choice.kind != "label"]
    requested = [choice.column for choice in choices]
    texts = [choice.column for choice in choices if choice.kind != "number"]
    if persons is not None:
        requested, texts = [*requested, persons.name], [*texts, persons.name]
    decimal = table.reading.decimal or "."
    markers = [markers_in(table.reading, choice) for choice in encoded]
    as_numbers = None if any(markers) else decimal  # a marker such as -999 is compared as text
    for block in source.blocks(requested, findings, texts, as_numbers):
        values, is_kept = _encoded(block, encoded, markers, decimal, findings, table.rounded)
        labels = [_labels(block, i, choices[i].column, findings) for i in range(len(encoded), len(choices))]
        if persons is not None:
            _add_persons(persons, block, is_kept, markers_in(table.reading, None), findings)
        if not findings.total:  # after a fault, read on to list the other ones
            table.keep(block.rows, is_kept, labels)
            if is_kept.any():
                yield values if is_kept.all() else values[is_kept]
    findings.raise_any()
    if not table.kept:
        raise refuse("every row has a missing value, so no row is left")


def _labels(block: RawBlock, position: int, name: str, findings: Findings) -> list[str]:
    cells = block.columns[position]
    assert isinstance(cells, list)
    labels = list(map(label_of, cells))
    for index in [index for index, label in enumerate(labels) if len(label) > LABEL_CHARACTERS_MAX]:
        findings.add(f"a label has {LABEL_CHARACTERS_MAX} characters at most", **block.at(index), column=name)
    return labels


def label_of(cell: str) -> str:
    """A label as it is kept and compared: as it is written, without blanks at its ends and on one line."""
    return " ".join(cell.split())


def _encoded(
    block: RawBlock,
    choices: list[ColumnChoice],
    markers: list[frozenset[str]],
    decimal: DecimalSign,
    findings: Findings,
    rounded: dict[str, int],
) -> tuple[Matrix, NDArray[np.bool_]]:
    """The numbers of a block, and which of its rows are kept."""
    columns: list[Matrix] = []
    is_kept = np.ones(len(block.rows), dtype=bool)
    for choice, gaps, column in zip(choices, markers, block.columns, strict=False):  # labels and persons come last
        encoded = encode(choice, _without(gaps, column), decimal)
        for index, fault in encoded.faults:
            findings.add(fault, **block.at(index), column=choice.column, **_quoted(column, index))
        if encoded.rounded:
            rounded[choice.column] = rounded.get(choice.column, 0) + encoded.rounded
        is_kept &= ~encoded.leave_out
        columns.append(encoded.values)
    return np.concatenate(columns, axis=1), is_kept


def _quoted(column: RawColumn, index: int) -> dict[str, object]:
    """The cell of a fault, for the owner; none if it is empty, or of a column of numbers."""
    cell = "" if isinstance(column, Numbers) else column[index].strip()[: rules.LENGTH_MAX]
    return {"cell": cell} if cell else {}


def _add_persons(
    persons: PersonColumn, block: RawBlock, is_kept: NDArray[np.bool_], markers: frozenset[str], findings: Findings
) -> None:
    cells = block.columns[-1]
    assert isinstance(cells, list)
    of_kept = [cells[index] for index in np.flatnonzero(is_kept).tolist()]
    for index, cell in zip(np.flatnonzero(is_kept).tolist(), of_kept, strict=True):
        if rules.is_missing(cell) or cell.strip() in markers:
            findings.add(_NO_PERSON, **block.at(index), column=persons.name)
    if not findings.total:
        persons.add(of_kept)


@dataclass(frozen=True, slots=True, repr=False)
class Encoded:
    """The numbers (m, stored columns) of a column, which rows to leave out (m,), and the faults by index.

    ``rounded``: how many numbers are stored as another one than is written.
    """

    values: Matrix
    leave_out: NDArray[np.bool_]
    faults: Faults
    rounded: int


def encode(choice: ColumnChoice, column: RawColumn, decimal: DecimalSign) -> Encoded:
    """Encode a block of a column (m cells). Missing cells are refused, left out with their rows, or filled."""
    values, missing, faults = _parsed(choice, column, decimal)
    rounded = 0
    if choice.kind == "number":
        rounded = column.rounded if isinstance(column, Numbers) else rounded_cells(column, values[:, 0], decimal)
    none = np.zeros(len(values), dtype=bool)
    if not missing.any():
        return Encoded(values, none, faults, rounded)
    match choice.missing:
        case "leave_out":
            return Encoded(values, missing, faults, rounded)
        case "fill":
            values[missing] = choice.fill
            return Encoded(values, none, faults, rounded)
        case _:
            said = rules.MISSING_VALUE if choice.values is None else f"{rules.MISSING_VALUE}, or no category"
            return Encoded(values, none, [*faults, *((int(i), said) for i in np.flatnonzero(missing))], rounded)


def _parsed(choice: ColumnChoice, column: RawColumn, decimal: DecimalSign) -> tuple[Matrix, NDArray[np.bool_], Faults]:
    if choice.kind == "number":
        values, missing, faults = _stored(column) if isinstance(column, Numbers) else _numbers(column, decimal)
        return values[:, None], missing, faults
    assert isinstance(column, list)
    if choice.kind == "date":
        values, missing, faults = _days(column, rules.days_of(choice.date_format or "iso", choice.since or _EPOCH))
        return values[:, None], missing, faults
    assert choice.values is not None
    position = {value.strip(): index for index, value in enumerate(choice.values)}
    places = np.array([position.get(cell.strip(), -1) for cell in column], dtype=np.int64)
    missing = places < 0
    if choice.kind == "codes":
        return (1 + places).astype(np.float64)[:, None], missing, []
    one_hot = np.zeros((len(column), len(position)))
    one_hot[~missing, places[~missing]] = 1.0
    return one_hot, missing, []


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


def rounded_cells(cells: Sequence[str], values: Vector, sign: DecimalSign = ".") -> int:
    """How many cells are no longer what was written: digits beyond 2^53, and numbers so small that 0 is stored."""
    suspects = np.flatnonzero((np.abs(values) > rules.LARGEST_INTEGER / 2) | (values == 0.0))
    return sum(rules.is_rounded(cells[i], float(values[i]), sign) for i in suspects.tolist() if cells[i] != "0")


def _stored(column: Numbers) -> tuple[Vector, NDArray[np.bool_], Faults]:
    missing = missing_numbers(column, frozenset())
    faults = [(int(i), rules.NOT_FINITE) for i in np.flatnonzero(np.isinf(column.values) & ~missing)]
    return np.where(missing, 0.0, column.values), missing, faults


def _numbers(column: list[str], decimal: DecimalSign) -> tuple[Vector, NDArray[np.bool_], Faults]:
    """Numbers of cells: all at once; if that fails, cell by cell."""
    missing = np.zeros(len(column), dtype=bool)
    if (values := all_numbers(column, decimal)) is not None:
        return values, missing, []
    values, faults = np.zeros(len(column)), []
    for index, cell in enumerate(column):
        if rules.is_missing(cell):
            missing[index] = True
        elif (fault := rules.fault_of(cell, decimal)) is not None:
            faults.append((index, fault))
        else:
            values[index] = rules.number_of(cell, decimal)
    return values, missing, faults


def _days(column: list[str], to_days: Callable[[str], float | None]) -> tuple[Vector, NDArray[np.bool_], Faults]:
    values, missing, faults = np.zeros(len(column)), np.zeros(len(column), dtype=bool), []
    for index, cell in enumerate(column):
        if (days := to_days(cell.strip())) is not None:
            values[index] = days
        elif rules.is_missing(cell):
            missing[index] = True
        else:
            faults.append((index, "not a date of this format"))
    return values, missing, faults


def open_source(
    file: BinaryIO, limits: Limits, choice: ReadingChoice, *, parquet: bool
) -> AbstractContextManager[Source]:
    return parquet_source(file, limits) if parquet else csv_source(file, limits, choice)
