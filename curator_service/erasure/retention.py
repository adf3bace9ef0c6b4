"""What a curator keeps for so many days: forecasts that ended, and notes at measurements that were made."""

from typing import Any

from curator_service.erasure import table as erasures
from curator_service.queries.table import BATCHES, digest
from curator_service.settings import Settings
from curator_service.store import jobs
from service_kit.context.retention import Sweep, common
from service_kit.store import audit_log
from service_kit.store.database import Connection


def sweeps(settings: Settings) -> dict[str, tuple[int | None, Sweep]]:
    """What a curator sweeps, each with the days for which it is kept."""
    return common(settings) | {
        "forecasts": (settings.retention_forecasts_days, lambda db, before: (jobs.sweep_forecasts(db, before), {})),
        "notes": (settings.retention_notes_days, _sweep_notes),
    }


def _sweep_notes(db: Connection, before: str) -> tuple[int, dict[str, Any]]:
    """Delete the notes of entries; the log gets a new digest of each batch that had one."""
    swept = erasures.sweep_notes(db, before)
    digests = []
    for record in list(audit_log.of_kind(db, *BATCHES)) if swept else ():
        first, last = record["details"]["first"], record["details"]["last"]
        if any(first <= seq <= last for seq in swept):
            digests.append([last, digest(erasures.batch(db, first, last))])
    return len(swept), {"batches": digests} if digests else {}
