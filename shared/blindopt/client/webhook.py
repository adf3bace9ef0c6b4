"""A client of a receiver that its owner runs: signed requests, bounded in time and size."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from blindopt.client.transport import REPLY_MAX_BYTES, Connection, transport_errors
from blindopt.errors import ProtocolViolated, Unreachable


@dataclass(frozen=True, slots=True, repr=False)
class WebhookReply:
    """A receiver's reply; ``retry_after_s`` is its Retry-After header, if any."""

    status: int
    body: bytes
    retry_after_s: float | None = None


class WebhookClient(Connection):
    """A client of a system in the owner's network that scores, measures or receives notices.

    Each body is signed: ``Blindopt-Signature: t=<seconds since 1970>,v1=<HMAC-SHA256 of "<t>.<body>", in hex>``.
    Redirects are not followed; ``timeout_s`` and ``reply_max_bytes`` bound the whole reply.
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
        super().__init__(timeout_s=timeout_s, verify=verify, reply_max_bytes=reply_max_bytes)
        self._url = url
        self._secret = secret

    def ask(self, body: bytes, *, key: str, at: int) -> bytes:
        """Post ``body`` and return the body of a 200 reply.

        Raises Unreachable for a status that a retry may change, ProtocolViolated for any other.
        """
        reply = self.call(body, key=key, at=at)
        if reply.status in (408, 409, 425, 429) or reply.status >= 500:
            raise Unreachable(f"the other party answered {reply.status}")
        if reply.status != 200:
            raise ProtocolViolated(f"the other party answered {reply.status}, which asking again would not mend")
        return reply.body

    def call(self, body: bytes, *, key: str, at: int) -> WebhookReply:
        """Post ``body`` and return the reply, whatever its status. Raises Unreachable without a reply in time."""
        return self._post(body, key, at)

    def status(self, body: bytes, *, key: str, at: int) -> int:
        """Post ``body`` and return the status alone; the reply's body is not read. Raises Unreachable without one."""
        return self._post(body, key, at, read=False).status

    def _post(self, body: bytes, key: str, at: int, *, read: bool = True) -> WebhookReply:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": key,
            "Blindopt-Signature": f"t={at},v1={webhook_signature(self._secret, body, at)}",
        }
        options: dict[str, Any] = {"content": body, "headers": headers, "extensions": {"trace": self._sockets.trace}}
        with (
            self._sockets.within(self._timeout_s),
            transport_errors(),
            self._http.stream("POST", self._url, **options) as response,
        ):
            received = self._body(response) if read else b""
            return WebhookReply(response.status_code, received, seconds_until(response.headers.get("Retry-After", "")))


def seconds_until(header: str) -> float | None:
    """Parse a Retry-After header (RFC 9110, 10.2.3), seconds or a date, into seconds from now. None for other text.

    >>> seconds_until("120"), seconds_until("soon"), seconds_until("Wed, 21 Oct 2015 07:28:00 GMT")
    (120.0, None, 0.0)
    """
    if re.fullmatch("[0-9]{1,6}", header):
        return float(header)
    try:
        at = parsedate_to_datetime(header[:100])
    except (ValueError, OverflowError):
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def webhook_signature(secret: bytes, body: bytes, at: int) -> str:
    """Return the signature of a body at time ``at``, the t of its header. Receivers compare it in constant time."""
    return hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()
