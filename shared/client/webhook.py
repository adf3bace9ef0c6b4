"""A client of a receiver that its owner runs: signed requests, bounded in time and size."""

import hashlib
import hmac
import ssl
from types import TracebackType
from typing import Any, Self

import httpx

from shared.client.connection import REPLY_MAX_BYTES
from shared.client.deadlines import Sockets
from shared.client.transport import at_most, transport_errors
from shared.errors import ProtocolViolated, Unreachable


class WebhookClient:
    """A curator's view of a system in its owner's network, which it calls: one that scores, or one that measures.

    Each body is signed: ``Blindopt-Signature: t=<seconds since 1970>,v1=<HMAC-SHA256 of "<t>.<body>", in hex>``.
    Redirects are not followed; a reply has ``timeout_s`` until its last byte, and ``reply_max_bytes``. For one thread.
    """

    def __init__(
        self,
        url: str,
        secret: bytes,
        *,
        timeout_s: float,
        verify: str | bool = True,
        reply_max_bytes: int = REPLY_MAX_BYTES,
    ) -> None:
        context: ssl.SSLContext | bool = (
            ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
        )
        self._url = url
        self._secret = secret
        self._timeout_s = timeout_s
        self._reply_max_bytes = reply_max_bytes
        self._http = httpx.Client(
            headers={"Accept-Encoding": "identity"}, timeout=timeout_s, verify=context, trust_env=False
        )
        self._sockets = Sockets()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(self, body: bytes, *, key: str, at: int) -> bytes:
        """The body of a 200 reply. Raises Unreachable where another try may help, else ProtocolViolated."""
        told = self.ask_or_later(body, key=key, at=at, later=())
        assert told is not None
        return told

    def ask_or_later(self, body: bytes, *, key: str, at: int, later: tuple[int, ...] = (202,)) -> bytes | None:
        """The same; None for a reply that says that the answer comes ``later``."""
        status, received = self._posted(body, key, at)
        if status in (408, 409, 425, 429) or status >= 500:
            raise Unreachable(f"the other party answered {status}")
        if status in later:
            return None
        if status != 200:
            raise ProtocolViolated(f"the other party answered {status}, which asking again would not mend")
        return received

    def status(self, body: bytes, *, key: str, at: int) -> int:
        """The status of a reply, of which nothing else is read. Raises Unreachable where none came."""
        return self._posted(body, key, at, read=False)[0]

    def _posted(self, body: bytes, key: str, at: int, *, read: bool = True) -> tuple[int, bytes]:
        """Status and body of one reply, in time or not at all."""
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": key,
            "Blindopt-Signature": f"t={at},v1={webhook_signature(self._secret, body, at)}",
        }
        said: dict[str, Any] = {"content": body, "headers": headers, "extensions": {"trace": self._sockets.trace}}
        with (
            self._sockets.within(self._timeout_s),
            transport_errors(),
            self._http.stream("POST", self._url, **said) as response,
        ):
            return response.status_code, b"".join(at_most(response, self._reply_max_bytes)) if read else b""


def webhook_signature(secret: bytes, body: bytes, at: int) -> str:
    """What who is called compares the signature of a body with, in constant time; ``at``: the t of its header."""
    return hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()
