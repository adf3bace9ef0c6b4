"""The record of an exchange on this side, with the other side's receipt."""

import base64
import logging
import re
import time

import httpx

from blindopt.audit.checkpoints import parse_unverified
from blindopt.audit.merkle_log import RECEIPT_HEADER, Exchange
from blindopt.errors import LogBroken

log = logging.getLogger("blindopt.exchanges")
_ID = re.compile("[a-z]{1,4}_[0-9a-f]{16}")
GRANT = re.compile("grt_[0-9a-f]{16}")


def exchange_of(
    response: httpx.Response, path: str, study_id: str, key: str | None, sent: str, received: str
) -> tuple[Exchange, str | None]:
    """Return this side's record of the exchange, and the other side's receipt: a signed note of its position."""
    request = response.request
    grant_id, position, note = _receipt(response.headers.get(RECEIPT_HEADER, ""))
    exchange = Exchange(
        study_id=study_id,
        grant_id=grant_id,
        position=position,
        request_id=request.headers["X-Request-ID"],
        method=request.method,
        path=path,  # without a prefix that a proxy in front of the other party adds
        idempotency_key=key,
        request_sha256=sent,
        status=response.status_code,
        reply_sha256=received,
        replayed=response.headers.get("Idempotency-Replayed") == "true",
    )
    return exchange, note


def log_exchange(headers: dict[str, str], method: str, path: str, status: int, began: float) -> None:
    """Log an exchange that this side began, as the other side's access log does, under the same request id.

    ``status`` is 0 without a reply; ``began`` is of ``perf_counter``. Ids in the path are left out.
    """
    ms = round((time.perf_counter() - began) * 1000, 2)
    of = {"request_id": headers["X-Request-ID"], "method": method, "route": _ID.sub("*", path)}
    log.info("exchange", extra={"fields": {**of, "status": status, "ms": ms}})


def _receipt(header: str) -> tuple[str | None, int | None, str | None]:
    """Return grant, position and note of a receipt; None for each if it is malformed. Signatures are not checked."""
    position, _, encoded = header.partition(" ")
    try:
        note = base64.b64decode(encoded, validate=True).decode()
        checkpoint = parse_unverified(note)
    except (ValueError, LogBroken):
        return None, None, None
    grant = checkpoint.origin.rpartition("/")[2]
    if (
        not re.fullmatch("[0-9]{1,15}", position)
        or checkpoint.head.size != int(position) + 1
        or not GRANT.fullmatch(grant)
    ):
        return None, None, None
    return grant, int(position), note
