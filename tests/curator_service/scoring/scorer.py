"""A scorer as an owner would write one, over real HTTP, and several that misbehave."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = scorer.take(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
            with suppress(BrokenPipeError, ConnectionResetError):  # it was slow: nobody waits any more
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scorer.url = f"http://127.0.0.1:{server.server_address[1]}/score"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield scorer
    finally:
        server.shutdown()
        server.server_close()
