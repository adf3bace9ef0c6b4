"""Messages between curator and the owner's system about one measurement: the call and its reply."""

import json
from typing import get_args

from blindopt import wire
from blindopt.errors import ProtocolViolated
from curator_service.use_cases.queries.measurement_entries import MeasurementEntry

_REASONS = get_args(wire.DeclineReason)


def body_of(item: wire.InboxItem) -> bytes:
    """The body of a call: the measurement, and the shown columns of its record."""
    body = {
        "measurement_id": item.id,
        "query_id": item.query_id,
        "study_id": item.study_id,
        "study": item.study,
        "record": item.record,
        "play": item.play,
        "shown": {cell.column: cell.value for cell in item.shown},
        "unit": item.unit,
    }
    return json.dumps(body, allow_nan=False).encode()


def read_reply(identity: str, body: bytes) -> MeasurementEntry:
    """The entry that a reply makes about a measurement. Raises ProtocolViolated, which does not quote the reply."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict) or ("value" in reply) == ("declined" in reply):
        raise ProtocolViolated('the reply must be a JSON object with either "value" or "declined"')
    if "declined" in reply:
        if reply["declined"] not in _REASONS:
            raise ProtocolViolated(f'"declined" must be one of {", ".join(_REASONS)}')
        return MeasurementEntry(identity, reason=reply["declined"])
    return MeasurementEntry(identity, value=_number(reply["value"]))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProtocolViolated('"value" must be a number')
    try:
        return float(value)
    except OverflowError:
        raise ProtocolViolated('"value" must be a finite number') from None
