"""A secret rotation of noisy rows. It costs no privacy, and no claim rests on it."""

from collections.abc import Callable

from blindopt.arrays import Matrix
from curator_service.privacy import entropy


def random_rotation(d: int, rotate: bool) -> Callable[[Matrix], Matrix]:
    """A map of blocks (m, d): multiplication with a fresh, secret, uniform orthogonal matrix, or the identity.

    It preserves distances but for rounding, so a kernel of distances does not change.
    """
    if not rotate:
        return lambda block: block
    secret = entropy.orthonormal(d, d)
    return lambda block: block @ secret
