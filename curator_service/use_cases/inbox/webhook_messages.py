"""What the owner's system is asked of one measurement, and what it answers."""

import json
from typing import get_args

from blindopt import wire
from blindopt.errors import ProtocolViolated
from curator_service.use_cases.queries.measurement_entries import Told

_REASONS = get_args(wire.DeclineReason)


def body_of(item: wire.InboxItem) -> bytes:
    """The body of a call: the measurement, and of the record what the study shows."""
    said = {
        "measurement_id": item.id,
        "query_id": item.query_id,
        "study_id": item.study_id,
        "study": item.study,
        "record": item.record,
        "play": item.play,
        "shown": {one.column: one.value for one in item.shown},
        "unit": item.unit,
    }
    return json.dumps(said, allow_nan=False).encode()


def told_of(identity: str, reply: bytes) -> Told:
    """What a reply tells of a measurement. Raises ProtocolViolated, in words that do not quote it."""
    try:
        told = json.loads(reply)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or ("value" in told) == ("declined" in told):
        raise ProtocolViolated('the reply must be a JSON object with either "value" or "declined"')
    if "declined" in told:
        if told["declined"] not in _REASONS:
            raise ProtocolViolated(f'"declined" must be one of {", ".join(_REASONS)}')
        return Told(identity, reason=told["declined"])
    return Told(identity, value=_number(told["value"]))


def _number(told: object) -> float:
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise ProtocolViolated('"value" must be a number')
    try:
        return float(told)
    except OverflowError:
        raise ProtocolViolated('"value" must be a finite number') from None
