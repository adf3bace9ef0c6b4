"""A secret rotation of noisy rows, and their rounding. Both cost no privacy, and no claim rests on them."""

from collections.abc import Callable

from blindopt.arrays import Matrix
from curator_service.privacy import entropy
from curator_service.release.grid import PublicGrid


def random_rotation(d: int, rotate: bool, grid: PublicGrid) -> Callable[[Matrix], Matrix]:
    """A map of blocks (m, d) to the public ``grid``, where ``rotate`` after a fresh, secret, uniform rotation.

    A rotation (or reflection) preserves distances but for rounding, so a kernel of distances does not change.
    """
    if not rotate:
        return grid.round
    secret = entropy.orthonormal(d, d)
    return lambda block: grid.round(block @ secret)
