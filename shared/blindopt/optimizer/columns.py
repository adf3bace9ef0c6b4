"""Candidates of any kind as numbers: columns of text or categories become columns of 0 and 1."""

from numbers import Real
from typing import Any

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import Invalid, NumericalFailure

EXACT = 2**53
"""Whole numbers up to this size are exact as doubles."""
INDEX_COLUMNS = ("Unnamed: 0", "__index_level_0__")
"""What pandas calls the column of an index that it reads from a CSV or a Parquet file."""
VALUES_MAX = 50
"""Values of a column of text, each of which becomes a column."""


def numbers_of(candidates: Any) -> tuple[Matrix, list[str]]:
    """Return candidates (n, r) as numbers, and which of their columns became others, in words.

    A column is one of numbers if it can be read so and is no pandas or polars category. Of any other, each value
    becomes a column: 1 where a candidate has it and 0 elsewhere; two values are one column. Raises Invalid for more
    than VALUES_MAX values, for a gap, and for what is no table, and NumericalFailure for a number that is not finite.
    """
    if hasattr(candidates, "columns") and not callable(candidates.columns):
        names = [str(name) for name in candidates.columns]
        if index := next((name for name in names if name in INDEX_COLUMNS), None):
            raise Invalid(f"column {index} is the index of a frame that was saved: leave it out, or rename a feature")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise Invalid(f"candidates have two columns of one name: {repeated[0]}")
        named = {str(name): candidates[name] for name in candidates.columns}
    else:
        table = _array(candidates)
        if table.ndim != 2 or 0 in table.shape:
            raise Invalid(f"candidates must be a matrix with a row for each candidate, not {table.shape}")
        if table.dtype == np.float64:
            return _finite(np.ascontiguousarray(table)), []
        named = {str(number): column for number, column in enumerate(table.T)}
    if not named or not len(next(iter(named.values()))):
        raise Invalid("candidates must be a matrix with a row for each candidate: the frame is empty")
    columns, reasons = [], []
    for name, column in named.items():
        if (values := _as_numbers(name, column)) is not None:
            columns.append(values[:, None])
            continue
        levels, of_each = _levels(name, column)
        columns.append((of_each[:, None] == np.arange(len(levels))[1 if len(levels) == 2 else 0 :]).astype(np.float64))
        count = columns[-1].shape[1]
        reasons.append(f"Column {name} has {len(levels)} values, which are {count} columns of 0 and 1.")
    return _finite(np.hstack(columns)), reasons


def _array(candidates: Any) -> Any:
    _check_plain("candidates", candidates)
    try:
        return np.asarray(candidates, dtype=np.float64)
    except (TypeError, ValueError):
        return np.array(candidates, dtype=object)
    except OverflowError:  # an integer beyond the doubles
        raise NumericalFailure("candidates must be finite numbers") from None


def _check_plain(name: str, values: Any) -> None:
    """Raise Invalid for what a conversion to numbers would drop or ignore."""
    kind = getattr(getattr(values, "dtype", None), "kind", "O")
    lost = {"c": "complex numbers", "M": "dates", "m": "times", "V": "fields of several types"}.get(kind)
    if np.ma.isMaskedArray(values) and np.ma.is_masked(values):
        lost = "masked cells"
    elif hasattr(values, "unit") or hasattr(values, "units"):
        lost = "units"
    elif kind in "iu" and values.size and not -EXACT <= int(values.min()) <= int(values.max()) <= EXACT:
        lost = "whole numbers beyond 2^53"
    if lost is not None:
        raise Invalid(f"{name} has {lost}, which no candidate keeps: write them as plain numbers")


def _as_numbers(name: str, column: Any) -> Vector | None:
    if _is_category(column):
        return None
    _check_plain(f"column {name}", column)
    try:
        return np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        raise NumericalFailure(f"column {name} must have finite numbers") from None


def _is_category(column: Any) -> bool:
    return str(column.dtype).partition("(")[0].lower() in ("category", "categorical", "enum")


def _levels(name: str, column: Any) -> tuple[list[str], Any]:
    values = np.asarray(column, dtype=object).tolist()
    if any(value is None or type(value).__name__ in ("NAType", "NaTType") or value != value for value in values):
        raise Invalid(f"column {name} has gaps: fill them, or leave out these candidates")
    if not (_is_category(column) or all(isinstance(value, str | Real) for value in values)):
        raise Invalid(f"column {name} has values that are neither numbers nor text: write them as one of both")
    levels, of_each = np.unique([str(value) for value in values], return_inverse=True)
    if len(levels) > VALUES_MAX:
        raise Invalid(
            f"candidates must be numbers, or text of at most {VALUES_MAX} values: column {name} has {len(levels):,}"
        )
    return levels.tolist(), of_each


def _finite(matrix: Matrix) -> Matrix:
    if not np.isfinite(matrix).all():
        raise NumericalFailure("candidates must be finite numbers")
    return matrix
