"""A secret rotation of what was noised: free, and no part of any claim."""

from collections.abc import Callable

from blindopt.arrays import Matrix
from curator_service.privacy import entropy


def turn(d: int, rotate: bool) -> Callable[[Matrix], Matrix]:
    """Turns blocks (m, d) by one uniform orthogonal matrix, drawn here and known to nobody; or leaves them.

    Distances stay what they are but for rounding, so a kernel of distances reads Z as before.
    """
    if not rotate:
        return lambda block: block
    secret = entropy.orthonormal(d, d)
    return lambda block: block @ secret
