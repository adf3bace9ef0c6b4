"""Blocks of raw columns, as a source makes them of a file: nothing is decided here about what they mean."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Vector

CELL_MAX = 131_072  # as csv has it


@dataclass(frozen=True, slots=True, repr=False)
class Numbers:
    """A column of numbers (m,), which of them are missing (m,), and how many were rounded to be stored."""

    values: Vector
    missing: NDArray[np.bool_]
    rounded: int = 0


RawColumn = list[str] | Numbers


@dataclass(frozen=True, slots=True, repr=False)
class RawBlock:
    """Consecutive rows of the columns that were requested, with the number of each row from 1, and its line in CSV."""

    rows: Sequence[int]
    lines: Sequence[int] | None
    columns: list[RawColumn]

    def at(self, index: int) -> dict[str, object]:
        """The place of a row, for a fault."""
        where: dict[str, object] = {"row": self.rows[index]}
        return where if self.lines is None else where | {"line": self.lines[index]}
