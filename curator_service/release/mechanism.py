"""What every release mechanism offers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.scaling import ScaledRows

Told = Callable[[float], None]
"""Hears the share of the rows that are done."""


def ignore(share: float) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a release would be, computed from the data: for the owner's eyes only."""

    sigma_min: float | None = None
    omega: float | None = None
    branch: Literal["project", "lift"] | None = None
    largest_r: int | None = None


class Mechanism(Protocol):
    """Makes Z (n, r) from scaled rows X (n, d). Frozen; draws fresh secrets at each ``draw``."""

    name: ClassVar[str]
    version: ClassVar[int]
    status: ClassVar[Status]
    claim: ClassVar[str]

    def columns(self, d: int) -> int:
        """r, for d features."""
        ...

    def noise(self, d: int) -> NoiseLaw:
        """The public law of Z given X."""
        ...

    def assess(self, rows: ScaledRows) -> Assessment:
        """What the draw would do. Draws nothing. Raises ReleaseImpossible where it would fail."""
        ...

    def draw(self, rows: ScaledRows, out: Matrix, told: Told = ignore) -> Assessment:
        """Fill ``out`` (n, r), telling how far it is. Point of no return: charge the release before."""
        ...
