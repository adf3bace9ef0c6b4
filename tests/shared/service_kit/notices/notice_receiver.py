"""A receiver of notices as an operator would write one, over real HTTP, and several that misbehave."""

import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from blindopt import wire
from tests.http_receiver import Answer, receiving

KEY = b"a secret of thirty-two characters"
DOCUMENT = Path(__file__).parents[4] / "docs" / "howto" / "notices.md"


@cache
def documented_check() -> Callable[..., bool]:
    """The check of a webhook's signature as the documents print it: it shares no code with what signs."""
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    check: Callable[..., bool] = names["is_genuine"]
    return check


@dataclass
class Got:
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def notice(self) -> wire.Notice:
        return wire.Notice.model_validate_json(self.body)

    @property
    def genuine(self) -> bool:
        return documented_check()(self.headers["Blindopt-Signature"], self.body, KEY)


@dataclass
class Listener:
    """Keeps what it got; answers the n-th request (from 1) with ``status(n)``."""

    status: Callable[[int], int] = lambda number: 200
    url: str = ""
    got: list[Got] = field(default_factory=list)
    moved_to: str = ""

    @property
    def notices(self) -> list[wire.Notice]:
        return [got.notice for got in self.got]

    @property
    def ids(self) -> list[str]:
        return [notice.id for notice in self.notices]

    @property
    def events(self) -> list[str]:
        return [notice.event for notice in self.notices]


@contextmanager
def listening(
    status: Callable[[int], int] = lambda number: 200,
    *,
    port: int = 0,
    act: Callable[[BaseHTTPRequestHandler], None] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Listener]:
    """A receiver at ``port``, or at one of its own. ``act`` answers in its place."""
    listener = Listener(status)

    def answer(request: BaseHTTPRequestHandler, body: bytes) -> Answer | None:
        listener.got.append(Got(dict(request.headers), body))
        if act is not None:
            return act(request)
        return listener.status(len(listener.got)), b"", {"Location": listener.moved_to} if listener.moved_to else {}

    with receiving(answer, port, tls) as receiver:
        listener.url = receiver.url
        yield listener
