"""From a raw column to numbers, as its owner chose: deterministic, a row at a time, and from public choices alone."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.formats import numbers as rules
from blindopt.formats.numbers import DecimalSign
from blindopt.wire import ColumnChoice
from curator_service.datasets.sources import Numbers, RawColumn

_EPOCH = date(1970, 1, 1)
Faults = list[tuple[int, str]]


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
    rounded = _rounded(column, values) if choice.kind == "number" else 0
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


def _rounded(column: RawColumn, values: Matrix) -> int:
    return column.rounded if isinstance(column, Numbers) else rules.rounded(column, values[:, 0])


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


def _stored(column: Numbers) -> tuple[Vector, NDArray[np.bool_], Faults]:
    missing = column.missing | np.isnan(column.values)
    faults = [(int(i), rules.NOT_FINITE) for i in np.flatnonzero(np.isinf(column.values) & ~missing)]
    return np.where(missing, 0.0, column.values), missing, faults


def _numbers(column: list[str], decimal: DecimalSign) -> tuple[Vector, NDArray[np.bool_], Faults]:
    """Numbers of cells: all at once; if that fails, cell by cell."""
    missing = np.zeros(len(column), dtype=bool)
    if (values := rules.all_numbers(column, decimal)) is not None:
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
