"""Digests of batches of entries about measurements, as the audit log has them. `audit verify` needs no more of them.

Nothing here loads numpy, so that a short command need not.
"""

import json
from collections.abc import Sequence
from typing import Any

from blindopt.audit.merkle_log import sha256

BATCHES = ("measurement.answered", "measurement.declined", "measurement.corrected", "measurement.overdue")
"""Kinds of the log's records that have the digest of a batch of entries."""


def digest(entries: Sequence[dict[str, Any]]) -> str:
    """Digest of stored entries. Each has a salt, so the digest reveals nothing about their values."""
    names = (
        *("measurement_id", "query_id", "kind", "version", "value", "reason", "note"),
        *("actor", "name", "salt", "created_at"),
    )
    lines = [[entry[name] if name != "value" else _hex(entry[name]) for name in names] for entry in entries]
    return sha256(json.dumps(lines, ensure_ascii=True, separators=(",", ":")).encode())


def _hex(value: float | None) -> str | None:
    return None if value is None else float(value).hex()
