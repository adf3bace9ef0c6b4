"""Rate limits: token buckets in the memory of one process. The privacy budget is the real limit."""

import math
import time
from collections.abc import Callable

from blindopt.errors import RateLimited

_NAMES_MAX = 10_000


class Buckets:
    """``burst`` requests at once and ``per_second`` in the long run, for each name."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def _now(self, name: str) -> tuple[float, float]:
        """What is left for ``name`` now, and now."""
        now = self._clock()
        left, then = self._left.get(name, (float(self._burst), now))
        return min(float(self._burst), left + (now - then) * self._per_second), now

    def check(self, name: str) -> None:
        """RateLimited if nothing is left for ``name``."""
        left, _ = self._now(name)
        if left < 1:
            raise RateLimited(math.ceil((1 - left) / self._per_second))

    def take(self, name: str) -> None:
        """Use one up. RateLimited if nothing is left."""
        self.check(name)
        if name not in self._left and len(self._left) >= _NAMES_MAX:
            # Full buckets say nothing; where all are in use, the oldest goes.
            self._left = {n: state for n, state in self._left.items() if self._now(n)[0] < self._burst}
            while len(self._left) >= _NAMES_MAX:
                del self._left[next(iter(self._left))]
        left, now = self._now(name)
        self._left[name] = (left - 1, now)
