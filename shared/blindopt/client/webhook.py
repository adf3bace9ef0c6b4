"""A client of a receiver that its owner runs: signed requests, bounded in time and size."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self

import httpx

from blindopt.client.connection import REPLY_MAX_BYTES
from blindopt.client.deadlines import Sockets
from blindopt.client.transport import at_most, tls_context, transport_errors
from blindopt.errors import ProtocolViolated, Unreachable


@dataclass(frozen=True, slots=True, repr=False)
class Called:
    """What a system that was called answered; ``retry_after_s``: when it may be asked again, where it said so."""

    status: int
    body: bytes
    retry_after_s: float | None = None


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
        self._url = url
        self._secret = secret
        self._timeout_s = timeout_s
        self._reply_max_bytes = reply_max_bytes
        self._http = httpx.Client(
            headers={"Accept-Encoding": "identity"}, timeout=timeout_s, verify=tls_context(verify), trust_env=False
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
        called = self.call(body, key=key, at=at)
        if called.status in (408, 409, 425, 429) or called.status >= 500:
            raise Unreachable(f"the other party answered {called.status}")
        if called.status != 200:
            raise ProtocolViolated(f"the other party answered {called.status}, which asking again would not mend")
        return called.body

    def call(self, body: bytes, *, key: str, at: int) -> Called:
        """What is answered, whatever its status. Raises Unreachable where nothing is."""
        return self._posted(body, key, at)

    def status(self, body: bytes, *, key: str, at: int) -> int:
        """The status of a reply, of which nothing else is read. Raises Unreachable where none came."""
        return self._posted(body, key, at, read=False).status

    def _posted(self, body: bytes, key: str, at: int, *, read: bool = True) -> Called:
        """One reply, in time or not at all."""
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
            told = b"".join(at_most(response, self._reply_max_bytes)) if read else b""
            return Called(response.status_code, told, seconds_until(response.headers.get("Retry-After", "")))


def seconds_until(told: str) -> float | None:
    """What a Retry-After header says (RFC 9110, 10.2.3): seconds, or a date. None for anything else.

    >>> seconds_until("120"), seconds_until("soon"), seconds_until("Wed, 21 Oct 2015 07:28:00 GMT")
    (120.0, None, 0.0)
    """
    if re.fullmatch("[0-9]{1,6}", told):
        return float(told)
    try:
        at = parsedate_to_datetime(told[:100])
    except (ValueError, OverflowError):
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def webhook_signature(secret: bytes, body: bytes, at: int) -> str:
    """What who is called compares the signature of a body with, in constant time; ``at``: the t of its header."""
    return hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()
