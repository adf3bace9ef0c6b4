"""A scorer as an owner would write one, over real HTTP, and several that misbehave."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.http_receiver import receiving
from tests.shared.service_kit.notices.notice_receiver import documented_check

KEY = "a secret of thirty-two characters"


@dataclass
class Scorer:
    """Answers with what ``reply`` (status, body) makes of a request; counts and keeps what it was asked."""

    reply: Callable[[dict[str, Any], int], tuple[int, bytes]]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    forged: int = 0

    def take(self, headers: Any, body: bytes) -> tuple[int, bytes]:
        if not documented_check()(headers["Blindopt-Signature"], body, KEY.encode()):
            self.forged += 1
            return 401, b""
        self.requests.append(json.loads(body))
        self.keys.append(headers["Idempotency-Key"])
        return self.reply(self.requests[-1], len(self.requests))


@contextmanager
def serving(reply: Callable[[dict[str, Any], int], tuple[int, bytes]]) -> Iterator[Scorer]:
    """A scorer on a port of its own."""
    scorer = Scorer(reply)
    with receiving(lambda request, body: (*scorer.take(request.headers, body), {})) as receiver:
        scorer.url = receiver.url
        yield scorer
