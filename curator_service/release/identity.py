"""Z = X: the yardstick without protection."""

from dataclasses import dataclass
from typing import ClassVar

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.release.mechanism import Assessment, Told, ignore
from curator_service.scaling import ScaledRows


@dataclass(frozen=True, slots=True)
class Identity:
    """Publishes the scaled rows. Claims nothing: only for a dataset that its owner declares public."""

    name: ClassVar[str] = "identity"
    version: ClassVar[int] = 1
    status: ClassVar[Status] = "unprotected"
    claim: ClassVar[str] = "No protection; for datasets declared public."

    def columns(self, d: int) -> int:
        """R = d."""
        return d

    def noise(self, d: int) -> NoiseLaw:
        """No noise."""
        return NoiseLaw(family="none")

    def assess(self, rows: ScaledRows) -> Assessment:
        """Nothing to assess."""
        return Assessment()

    def draw(self, rows: ScaledRows, out: Matrix, told: Told = ignore) -> Assessment:
        """Copy the rows."""
        for place, block in rows.blocks():
            out[place] = block
            told(place.stop / rows.n)
        return Assessment()
