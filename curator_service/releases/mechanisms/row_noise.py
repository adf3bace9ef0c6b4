"""Noise for each row by itself, then a secret rotation, and rounding. No claim rests on the last two."""

from blindopt.arrays import Matrix
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import entropy, noise
from curator_service.privacy.noise import OnProgress
from curator_service.releases.mechanisms.grid import PublicGrid


def draw_rows(
    law: noise.Law, grid: PublicGrid, rows: ScaledRows, out: Matrix, on_progress: OnProgress, *, rotate: bool
) -> None:
    """Fill ``out`` (n, d) with ``rows`` and noise of ``law``, rounded to the public ``grid``, a piece at a time.

    ``rotate``: all rows are turned alike before they are rounded, by a fresh, secret, uniform rotation or reflection.
    It preserves distances but for rounding, so a kernel of distances does not change.
    """
    rotation = entropy.orthonormal(rows.d, rows.d) if rotate else None

    def finish(block: Matrix) -> Matrix:
        return grid.round(block if rotation is None else block @ rotation)

    noise.apply(law, rows.blocks(), out, on_progress, rows.n, finish=finish)
