"""Rate limits: token buckets in the memory of one process. They bound load; the privacy budget bounds disclosure."""

import math
import time
from collections.abc import Callable

from blindopt.errors import RateLimited

_NAMES_MAX = 10_000


class RateLimit:
    """A token bucket for each name: ``burst`` requests at once, and ``per_second`` in the long run."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """By name: the tokens in the bucket, and when they were counted."""

    def _count(self, name: str) -> tuple[float, float]:
        """The tokens that ``name`` has now, and the time."""
        now = self._clock()
        tokens, counted_at = self._buckets.get(name, (float(self._burst), now))
        return min(float(self._burst), tokens + (now - counted_at) * self._per_second), now

    def check(self, name: str) -> None:
        """Raise RateLimited if ``name`` has no token."""
        self._counted(name)

    def _counted(self, name: str) -> tuple[float, float]:
        tokens, now = self._count(name)
        if tokens < 1:
            raise RateLimited(math.ceil((1 - tokens) / self._per_second))
        return tokens, now

    def take(self, name: str) -> None:
        """Take a token of ``name``. Raises RateLimited if it has none."""
        tokens, now = self._counted(name)
        if name not in self._buckets and len(self._buckets) >= _NAMES_MAX:
            # A full bucket holds no information. If none is full, the oldest is dropped.
            self._buckets = {n: bucket for n, bucket in self._buckets.items() if self._count(n)[0] < self._burst}
            while len(self._buckets) >= _NAMES_MAX:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = (tokens - 1, now)
