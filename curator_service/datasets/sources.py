"""What sources of files share: limits, blocks of raw columns, of which nothing is decided here, and the faults found.

Faults are kept by column and kind: where the first is, and how many there are. Never a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Vector
from blindopt.errors import DatasetInvalid, sentence

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
        where: dict[str, object] = {"row": self.rows[index]}
        return where if self.lines is None else where | {"line": self.lines[index]}


ERRORS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest size of a dataset, and how many bytes its file may hold when it is unpacked."""

    rows: int
    columns: int
    unpacked: int = 1 << 30


@dataclass(slots=True)
class Findings:
    """The faults of a file: for each kind in each column the place of the first, and their number if it is not 1."""

    kept: dict[tuple[object, str], dict[str, object]] = field(default_factory=dict)
    total: int = 0

    def add(self, message: str, **where: object) -> None:
        self.total += 1
        kind = (where.get("column"), message)
        if kind in self.kept:
            self.kept[kind]["count"] = int(str(self.kept[kind].get("count", 1))) + 1
        elif len(self.kept) < ERRORS_SHOWN:
            self.kept[kind] = {"message": message, **where}

    def raise_any(self) -> None:
        """Raise DatasetInvalid if there is any fault."""
        if self.total:
            errors = list(self.kept.values())
            kinds = f" of {len(errors)} kinds" if 1 < len(errors) < self.total else ""
            more = f"; {self.total} errors{kinds} in the file" if self.total > 1 else ""
            raise DatasetInvalid(f"{sentence(errors[0])}{more}; nothing was stored", errors, self.total)


def refuse(message: str, **where: object) -> DatasetInvalid:
    """The error for a file with one fault that stops the reading."""
    end = " Nothing was stored." if message.endswith("?") else "; nothing was stored"
    return DatasetInvalid(f"{message}{end}", [{"message": message, **where}], 1)


def too_large(limit: int) -> DatasetInvalid:
    return refuse(f"the file holds more than {limit:,} bytes when unpacked")
