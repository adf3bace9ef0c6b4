"""Noise for each row by itself, then a secret rotation, and rounding. No claim rests on the last two."""

from collections.abc import Callable
from dataclasses import dataclass

from blindopt.arrays import Matrix
from curator_service.privacy import entropy, noise
from curator_service.privacy.noise import OnProgress
from curator_service.release.grid import PublicGrid
from curator_service.scaling import ScaledRows


@dataclass(frozen=True, slots=True)
class RowNoise:
    """Adds noise of ``law`` to each row, turns all rows at random where ``rotate``, and rounds to the public ``grid``.

    What happens to a row depends on no other one: rows may be drawn apart from each other, by several processes.
    """

    law: noise.Law
    grid: PublicGrid
    rotate: bool

    def new_rotation(self, d: int) -> Matrix | None:
        """A fresh, secret, uniform rotation or reflection (d, d); None unless ``rotate``.

        It preserves distances but for rounding, so a kernel of distances does not change.
        """
        return entropy.orthonormal(d, d) if self.rotate else None

    def finish(self, rotation: Matrix | None) -> Callable[[Matrix], Matrix]:
        """A map of noisy rows (m, d) to the public grid, after the rotation."""
        return self.grid.round if rotation is None else lambda block: self.grid.round(block @ rotation)

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress) -> None:
        """Fill ``out`` (n, d) with noisy rows, a piece at a time."""
        finish = self.finish(self.new_rotation(rows.d))
        noise.apply(self.law, rows.blocks(), out, on_progress, rows.n, finish=finish)
