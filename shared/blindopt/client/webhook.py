"""A client of a receiver that its owner runs: signed requests, bounded in time and size."""

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from blindopt.client.transport import REPLY_MAX_BYTES, Connection, transport_errors


@dataclass(frozen=True, slots=True, repr=False)
class WebhookReply:
    """A receiver's reply; ``retry_after_s`` is the wait that its Retry-After header requests, or 0."""

    status: int
    body: bytes
    retry_after_s: float


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

    def post(self, body: bytes, *, key: str, reads: bool = True) -> WebhookReply:
        """Post ``body`` and return the reply, whatever its status; ``reads``: with its body.

        Raises Unreachable without a reply in time, ProtocolViolated for one that is too long.
        """
        at = int(time.time())
        signature = hmac.new(self._secret, b"%d." % at + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": key,
            "Blindopt-Signature": f"t={at},v1={signature}",
        }
        options: dict[str, Any] = {"content": body, "headers": headers, "extensions": {"trace": self.sockets.trace}}
        with (
            self.sockets.within(self.timeout_s),
            transport_errors(),
            self.http.stream("POST", self._url, **options) as response,
        ):
            received = self.body_of(response) if reads else b""
            return WebhookReply(response.status_code, received, seconds_until(response.headers.get("Retry-After", "")))


def seconds_until(header: str) -> float:
    """Parse a Retry-After header (RFC 9110, 10.2.3), seconds or a date, into seconds from now. 0 for other text.

    >>> seconds_until("120"), seconds_until("soon"), seconds_until("Wed, 21 Oct 2015 07:28:00 GMT")
    (120.0, 0.0, 0.0)
    """
    if re.fullmatch("[0-9]{1,6}", header):
        return float(header)
    try:
        at = parsedate_to_datetime(header[:100])
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
