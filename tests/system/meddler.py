"""A network between two parties that delays, refuses, cuts, truncates, repeats and reorders."""

import http.client
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Meddler:
    """A proxy that hands each whole request to ``fault``, which says what becomes of it."""

    def __init__(self, port: int, fault: Callable[["Meddler", Callable[[], Any]], Any]) -> None:
        self.seen: Counter[str] = Counter()
        self.random = random.Random(11)
        self.lock = threading.Lock()
        self.turn = threading.Condition()
        self.handled = 0
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
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(whole))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = handle_one  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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


@contextmanager
def between(curator: Any, fault: Callable[..., Any]) -> Iterator[Meddler]:
    net = Meddler(curator.port, fault)
    thread = threading.Thread(target=net.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield net
    net.server.shutdown()
    net.server.server_close()
