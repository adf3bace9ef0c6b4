"""An HTTP server in this process that answers each POST with what a test makes of it."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""


class Receiver(ThreadingHTTPServer):
    """Listens on 127.0.0.1 until it is closed. ``answer`` returns None where it has answered by itself."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(
        self,
        answer: Callable[[BaseHTTPRequestHandler, bytes], Answer | None],
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with suppress(BrokenPipeError, ConnectionResetError):  # the caller has gone
                    if (reply := answer(self, body)) is None:
                        return
                    status, content, headers = reply
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(content))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *arguments: Any) -> None:
                pass

        super().__init__(("127.0.0.1", port), Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.port: int = self.server_address[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, *arguments: Any) -> None:
        """Print nothing: some tests break connections."""

    def close(self) -> None:
        """Refuse connections."""
        self.shutdown()
        self.server_close()


@contextmanager
def receiving(
    answer: Callable[[BaseHTTPRequestHandler, bytes], Answer | None], port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """A receiver for the time of a test."""
    receiver = Receiver(answer, port, tls)
    try:
        yield receiver
    finally:
        receiver.close()
