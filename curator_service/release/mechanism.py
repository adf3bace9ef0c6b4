"""The interface of every release mechanism."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.scaling import ScaledRows


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


class Mechanism(Protocol):
    """Makes Z (n, r) from scaled rows X (n, d). Immutable; each ``draw`` uses fresh secrets."""

    name: ClassVar[str]
    version: ClassVar[int]
    status: ClassVar[Status]
    claim: ClassVar[str]

    def columns(self, d: int) -> int:
        """The number of columns r of Z, for d features."""
        ...

    def noise(self, d: int) -> NoiseLaw:
        """The public law of Z given X."""
        ...

    def assess(self, rows: ScaledRows) -> Assessment:
        """Compute the properties of a draw, without one. Raises ReleaseImpossible where a draw would fail."""
        ...

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Fill ``out`` (n, r) and report the share of the rows that are done.

        Point of no return: charge the release before.
        """
        ...
