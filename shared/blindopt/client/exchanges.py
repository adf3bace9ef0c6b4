"""An exchange as this side tells it, with the other side's receipt."""

import base64
import re

import httpx

from blindopt.audit.checkpoints import unverified
from blindopt.audit.merkle_log import RECEIPT_HEADER, Exchange
from blindopt.errors import LogBroken

GRANT = re.compile("grt_[0-9a-f]{16}")


def exchange_of(
    response: httpx.Response, path: str, study_id: str, key: str | None, sent: str, received: str
) -> tuple[Exchange, str | None]:
    """The exchange as this side tells it, and the other side's signed note about its place."""
    request = response.request
    grant_id, position, note = _receipt(response.headers.get(RECEIPT_HEADER, ""))
    exchange = Exchange(
        study_id=study_id,
        grant_id=grant_id,
        position=position,
        request_id=request.headers["X-Request-ID"],
        method=request.method,
        path=path,  # without what a proxy in front of the other party adds
        idempotency_key=key,
        request_sha256=sent,
        status=response.status_code,
        reply_sha256=received,
        replayed=response.headers.get("Idempotency-Replayed") == "true",
    )
    return exchange, note


def _receipt(told: str) -> tuple[str | None, int | None, str | None]:
    """Grant, position and note of a receipt; nothing of what is none. Whether it is true is the witness's."""
    position, _, encoded = told.partition(" ")
    try:
        note = base64.b64decode(encoded, validate=True).decode()
        checkpoint = unverified(note)
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
