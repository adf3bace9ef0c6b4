"""Z = X: the baseline without protection."""

from dataclasses import dataclass
from typing import ClassVar

from blindopt.arrays import Matrix
from blindopt.wire import NoiseLaw, Status
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.releases.mechanisms.mechanism import Assessment, Mechanism


@dataclass(frozen=True, slots=True)
class Identity(Mechanism):
    """Publishes the scaled rows. Claims nothing: only for a dataset that its owner declares public."""

    name: ClassVar[str] = "identity"
    version: ClassVar[int] = 1
    status: ClassVar[Status] = "unprotected"
    claim: ClassVar[str] = "No protection; for datasets declared public."

    def noise(self, d: int) -> NoiseLaw:
        """The law of a release without noise."""
        return NoiseLaw(family="none")

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Fill ``out`` (n, d) with the scaled rows."""
        for index, block in rows.blocks():
            out[index] = block
            on_progress(index.stop / rows.n)
        return Assessment()
