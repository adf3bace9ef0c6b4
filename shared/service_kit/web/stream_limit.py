"""Places for what goes on for long, such as streams: so many in all, and so many for each principal."""

from collections import Counter

from blindopt.errors import RateLimited

ALL = 64
EACH = 8
_SECONDS = 5


class Places:
    """Those of one service. For the event loop's thread."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def take(self, who: str) -> "Place":
        """A place, held until it is given back or forgotten. Raises RateLimited where there is none."""
        if self._held.total() >= ALL or self._held[who] >= EACH:
            raise RateLimited(_SECONDS)
        self._held[who] += 1
        return Place(self._held, who)


class Place:
    """One that is held. A stream that was never begun gives it back by being forgotten."""

    def __init__(self, held: Counter[str], who: str) -> None:
        self._held = held
        self._who: str | None = who

    def give_back(self) -> None:
        """Free it; again changes nothing."""
        who, self._who = self._who, None
        if who is not None:
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]

    def __del__(self) -> None:
        self.give_back()
