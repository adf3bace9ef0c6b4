"""Errors of peers: counted by kind, and logged once a minute for each peer and kind. `fault` is ours alone."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, get_args

log = logging.getLogger("blindopt.peers")
Kind = Literal["disconnected", "not_allowed", "unreachable", "protocol_violated"]
LOGGED_EVERY_S = 60.0
_LOGGED_MAX = 10_000


class PeerGone(ConnectionAbortedError):
    """The peer takes the reply no more."""


class PeerErrors:
    """What peers did wrong. Peers are addresses and links, and no label of the metric."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.counts: Counter[Kind] = Counter(dict.fromkeys(get_args(Kind), 0))
        self._logged_at: dict[tuple[str, Kind], float] = {}

    def note(self, kind: Kind, peer: str, **fields: object) -> None:
        """Count an error, and log it unless the same was logged less than ``LOGGED_EVERY_S`` ago."""
        self.counts[kind] += 1
        now = self._clock()
        if now - self._logged_at.get((peer, kind), -LOGGED_EVERY_S) >= LOGGED_EVERY_S:
            if len(self._logged_at) >= _LOGGED_MAX:
                self._logged_at.clear()
            self._logged_at[peer, kind] = now
            log.warning("peer", extra={"fields": {"peer": peer, "code": kind, **fields}})
