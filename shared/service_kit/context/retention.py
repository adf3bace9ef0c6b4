"""Retention: what its operator keeps for so many days and no longer. One sweep a day, one record of it with counts.

The ledger, the logs, receipts and stored replies are never swept. The log may be archived (``LogArchive``).
"""

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from blindopt.errors import BlindoptError, StateConflict
from service_kit.background import Background
from service_kit.context.context import ServiceContext
from service_kit.context.log_archive import LogArchive
from service_kit.settings import ServiceSettings
from service_kit.store import audit_log, notices, sessions
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection, StoreFault

log = logging.getLogger("blindopt.retention")
KIND = "retention.swept"
_DAY = timedelta(days=1)
_LOOK_SECONDS = 3_600.0
Sweep = Callable[[Connection, str], tuple[int, dict[str, Any]]]
"""Deletes what ended before a time; returns how many, and details for the log."""


def common(settings: ServiceSettings) -> dict[str, tuple[int | None, Sweep]]:
    """What both services sweep, each with the days for which it is kept (None: for ever)."""
    return {
        "sessions": (settings.retention_sessions_days, lambda db, before: (sessions.sweep(db, before), {})),
        "notices": (settings.retention_notices_days, lambda db, before: (notices.sweep(db, before), {})),
    }


class Retention(Background):
    """A thread that sweeps at the start and then daily; there is none where everything is kept."""

    def __init__(
        self,
        context: ServiceContext,
        sweeps: Mapping[str, tuple[int | None, Sweep]],
        archive: LogArchive | None = None,
    ) -> None:
        self._context, self._archive = context, archive
        self._sweeps = {name: (days, sweep) for name, (days, sweep) in sweeps.items() if days is not None}
        super().__init__("retention", self._look, every_s=_LOOK_SECONDS)

    def start(self) -> None:
        """Start the thread, if anything is swept or archived."""
        if self._sweeps or self._archive:
            super().start()

    def _look(self) -> None:
        acts: list[Callable[[], object]] = [self.sweep] if self._sweeps else []
        for act in [*acts, self._archive.seal_all] if self._archive else acts:
            try:
                act()
            except (BlindoptError, StoreFault, OSError) as error:  # the next look tries again
                words = str(error) if isinstance(error, StateConflict) else type(error).__name__
                log.warning("nothing was swept or archived: %s", words)

    def sweep(self) -> bool:
        """Sweep, unless that was done within a day; whether it was done now."""
        return self._context.database.write(self._sweep)

    def _sweep(self, db: Connection) -> bool:
        self._context.audit_trail.check_sound()
        now = self._context.clock()
        last = list(audit_log.of_kind(db, KIND))[-1:]
        if last and timedelta(0) <= now - moment(last[0]["time"]) < _DAY:  # a later time: the clock was set back
            return False
        details: dict[str, Any] = {}
        for name, (days, sweep) in self._sweeps.items():
            details[name], more = sweep(db, stamp(now - timedelta(days=days)))
            details |= more
        audit_log.append(db, KIND, actor="retention", now=now, details=details)
        return True
