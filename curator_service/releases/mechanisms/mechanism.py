"""The interface of every release mechanism, and Z = X: the baseline without protection."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.noise import OnProgress, ignore_progress

_BLOCK = 1 << 20


def largest_move(sensitivity: float, rounding: float) -> float:
    """A double that is not below ``sensitivity`` + ``rounding``: a sum of doubles is rounded to the nearest one.

    Noise that is calibrated to less than a row can move keeps less than it promises, be it by one part in 10^17.
    """
    return math.nextafter(sensitivity + rounding, math.inf)


@dataclass(frozen=True, slots=True)
class Assessment:
    """Properties of a release, computed from the data. They are for the owner alone."""

    sigma_min: float | None = None
    omega: float | None = None
    branch: Literal["project", "lift"] | None = None
    largest_r: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Drawn:
    """What a release has drawn beside Z; it never leaves the curator but for ``counts``."""

    assessment: Assessment
    records: NDArray[np.int64]
    """The record of each candidate; of groups the candidate of each stored record."""
    counts: list[int] | None = None
    """Of groups, the noisy numbers of their records."""
    mechanism: "Mechanism | None" = None
    """The mechanism as it ran, where it found out more before the draw."""


class Mechanism(ABC):
    """Makes Z (n, r) from scaled rows X (n, d). Immutable; each ``draw`` uses fresh secrets."""

    __slots__ = ()

    name: ClassVar[str]
    version: ClassVar[int]
    status: ClassVar[Status]
    claim: ClassVar[str]
    whole_records: ClassVar[bool] = False
    """Whether it hides every change of a record that the bounds allow."""

    def columns(self, d: int) -> int:
        """The number of columns r of Z, for d features."""
        return d

    def candidates(self, records: int) -> int:
        return records

    @abstractmethod
    def noise(self, d: int) -> NoiseLaw:
        """The public law of Z given X, which the modeler needs to estimate distances."""

    def assess(self, rows: ScaledRows) -> Assessment:
        """Compute the properties of a draw, without one. Raises ReleaseImpossible where a draw would fail."""
        return Assessment()

    def prepare(self, rows: ScaledRows) -> "Mechanism":
        """The mechanism as ``draw`` needs it, for many draws of these rows. Point of no return, as ``draw``."""
        return self

    @abstractmethod
    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Fill ``out`` (n, r), a piece at a time, and report the share of the rows that are done.

        Point of no return: charge the release before.
        """

    def release(self, rows: ScaledRows, new_file: Callable[[int, int], Matrix], on_progress: OnProgress) -> Drawn:
        """Draw the candidates into a new file of so many rows and columns. Point of no return, as ``draw``."""
        return Drawn(self.draw(rows, new_file(rows.n, self.columns(rows.d)), on_progress), rows.order)

    def holds(self, drawn: NDArray[np.int64], records: list[int]) -> bool:
        """Whether one of these records is behind a candidate of the ``records`` of a draw, which is read by blocks."""
        blocks = range(0, len(drawn), _BLOCK) if records else ()
        return any(np.isin(drawn[start : start + _BLOCK], records).any() for start in blocks)


@dataclass(frozen=True, slots=True)
class Identity(Mechanism):
    """Publishes the scaled rows. Claims nothing: only for a dataset that its owner declares public."""

    name: ClassVar[str] = "identity"
    version: ClassVar[int] = 1
    status: ClassVar[Status] = "unprotected"
    claim: ClassVar[str] = "No protection; for datasets declared public."

    def noise(self, d: int) -> NoiseLaw:
        return NoiseLaw(family="none")

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        for index, block in rows.blocks():
            out[index] = block
            on_progress(index.stop / rows.n)
        return Assessment()
