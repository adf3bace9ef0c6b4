"""A network between two parties that delays, refuses, cuts, truncates, repeats and reorders, and answers itself."""

import gzip
import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a party that has closed its connection."""


class Meddler:
    """A proxy that hands each whole request to ``fault``, which says what becomes of it."""

    def __init__(self, port: int, fault: Callable[["Meddler", Callable[[], Any]], Any]) -> None:
        self.seen: Counter[str] = Counter()
        self.random = random.Random(11)
        self.lock = threading.Lock()
        self.turn = threading.Condition()
        self.handled = 0
        self.turns = 0
        self.before: Any = None
        """The last reply, which a cache may give once more."""
        self.truncates = False
        """Whether the next reply breaks off in its middle."""
        meddler = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))

                def forward() -> tuple[int, list[tuple[str, str]], bytes]:
                    server = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                    try:
                        server.request(self.command, self.path, body, dict(self.headers))
                        reply = server.getresponse()
                        return reply.status, reply.getheaders(), reply.read()
                    finally:
                        server.close()
                        with meddler.turn:
                            meddler.handled += 1
                            meddler.turn.notify_all()

                verdict = fault(meddler, forward)
                if verdict is None:  # nothing comes back
                    self.close_connection = True
                    return
                status, headers, content = verdict
                whole = len(content)
                if meddler.truncates:
                    meddler.truncates = False
                    content, self.close_connection = content[: whole // 2], True
                self.send_response_only(status)
                for name, value in headers if status != 204 else ():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(whole))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = handle_one  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def chance(self, name: str, share: float) -> bool:
        """True in this share of cases, counted."""
        with self.lock:
            happens = self.random.random() < share
            self.seen[name] += happens
        return happens


def late(net: Meddler, forward: Callable[[], Any]) -> Any:
    if net.chance("late", 0.5):
        with net.turn:
            net.turn.wait(net.random.uniform(0.01, 0.15))
    return forward()


def refused(net: Meddler, forward: Callable[[], Any]) -> Any:
    return None if net.chance("refused", 0.3) else forward()


def cut(net: Meddler, forward: Callable[[], Any]) -> Any:
    """The curator has handled it, and its reply is lost."""
    reply = forward()
    return None if net.chance("cut", 0.3) else reply


def repeated(net: Meddler, forward: Callable[[], Any]) -> Any:
    """The curator gets it twice, one after the other or both at once."""
    if net.chance("repeated", 0.4):
        other = threading.Thread(target=forward)
        other.start()
        if net.chance("one after the other", 0.5):
            other.join()
        reply = forward()
        other.join()
        return reply
    return forward()


def reordered(net: Meddler, forward: Callable[[], Any]) -> Any:
    """It is held back until others that came later were handled."""
    if net.chance("reordered", 0.4):
        with net.turn:
            passed = net.handled
            net.turn.wait_for(lambda: net.handled >= passed + 2, timeout=0.3)
    return forward()


def truncated(net: Meddler, forward: Callable[[], Any]) -> Any:
    """The curator has handled it, and its reply breaks off."""
    reply = forward()
    net.truncates = net.chance("truncated", 0.3)
    return reply


# --- middleboxes: each answers itself, or changes a reply, in a share of cases -------------------------------

Parts = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and body of a reply."""


def _without(headers: list[tuple[str, str]], *names: str) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in names]


def _page(status: int) -> Callable[[Parts], Parts]:
    page = b"<!doctype html><title>Log in</title><p>Your session has ended."
    return lambda reply: (status, [("Content-Type", "text/html; charset=utf-8")], page)


MIDDLEBOXES: dict[str, Callable[[Parts], Parts]] = {
    "web page": _page(200),
    "error page": _page(502),
    "blocking page": _page(403),
    "redirect": lambda reply: (302, [("Location", "https://login.example/")], b""),
    "json of its own": lambda reply: (200, [("Content-Type", "application/json")], b'{"error": "log in"}'),
    "cut JSON": lambda reply: (reply[0], reply[1], reply[2][: len(reply[2]) // 2] + b" " * (len(reply[2]) // 2)),
    "without receipt": lambda reply: (reply[0], _without(reply[1], "blindopt-receipt"), reply[2]),
    "without headers": lambda reply: (reply[0], [("Content-Type", "application/json")], reply[2]),
    "nothing": lambda reply: (204, [], b""),
    "compressed": lambda reply: (reply[0], [*reply[1], ("Content-Encoding", "gzip")], gzip.compress(reply[2])),
    "garbled": lambda reply: (reply[0], reply[1], gzip.compress(reply[2])),
    "another type": lambda reply: (reply[0], [*_without(reply[1], "content-type"), ("Content-Type", "text/plain")],
                                   reply[2]),
}  # fmt: skip
"""What becomes of a reply, by kind."""


def middlebox(kind: str, share: float = 0.4) -> Callable[[Meddler, Callable[[], Any]], Any]:
    """A fault of that kind. ``reply of before``: the reply to an earlier request with the same method."""

    def fault(net: Meddler, forward: Callable[[], Any]) -> Any:
        reply = forward()
        if kind != "reply of before":
            return MIDDLEBOXES[kind](reply) if net.chance(kind, share) else reply
        with net.lock:
            before, net.before = net.before, reply
        return before if before is not None and net.chance(kind, share) else reply

    return fault


def in_turn(net: Meddler, forward: Callable[[], Any]) -> Any:
    """Every other reply meets a middlebox, each kind in its turn."""
    reply = forward()
    with net.lock:
        net.turns += 1
        if net.turns % 2:
            return reply
        kind = list(MIDDLEBOXES)[net.turns // 2 % len(MIDDLEBOXES)]
        net.seen[kind] += 1
    return MIDDLEBOXES[kind](reply)


@contextmanager
def between(curator: Any, fault: Callable[..., Any]) -> Iterator[Meddler]:
    net = Meddler(curator.port, fault)
    thread = threading.Thread(target=net.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield net
    net.server.shutdown()
    net.server.server_close()
