"""How long commits take."""

from bisect import bisect_left
from itertools import accumulate

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0)
"""Upper ends of the buckets, in seconds."""


class Durations:
    """Counts durations by bucket. For one thread at a time."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration, to the millisecond: what is finer might depend on what was written."""
        rounded = round(seconds, 3)
        self._counts[bisect_left(BOUNDS, rounded)] += 1
        self.total_s += rounded

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Each upper end, and how many durations reach it at most; as Prometheus writes them.

        >>> durations = Durations()
        >>> durations.add(0.0021), durations.add(0.7), durations.add(9.0)
        (None, None, None)
        >>> [count for _, count in durations.buckets]
        [0, 1, 1, 1, 1, 1, 1, 2, 3]
        """
        return list(zip([*map(str, BOUNDS), "+Inf"], accumulate(self._counts), strict=True))
