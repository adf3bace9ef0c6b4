"""Erasure of a dataset: its files, what was measured in its studies, and the replies that told it. For good.

The intention is a row and a record of the log, in the transaction that overwrites the tables. Files go after that
commit, and again at each start, so that a kill at any moment leaves either all of a dataset or a dataset that answers
nothing. Ids, sizes, charges, the ledger and both logs stay. Forecasts and notes are kept for so many days.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from blindopt import wire
from blindopt.errors import BlindoptError, Erased, StateConflict
from curator_service import store
from curator_service.budget.budgets import Budgets
from curator_service.datasets.datasets import named
from curator_service.datasets.uploads import Uploads
from curator_service.erasure import table as erasures
from curator_service.queries.table import BATCHES, digest
from curator_service.settings import Settings
from curator_service.studies.release_cache import ReleasedStudies
from curator_service.vault import Vault
from service_kit.background import Background
from service_kit.context import erased_list
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.context.retention import Sweep, common
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection, StoreFault
from service_kit.store.stored_replies import StoredReply, erased_marker

log = logging.getLogger("blindopt.erasure")
_AGAIN_SECONDS = 60.0


class Erasures:
    """Erases datasets. ``folder``: the data folder, where the list of what was erased is kept."""

    def __init__(
        self,
        context: ServiceContext,
        vault: Vault,
        released: ReleasedStudies,
        budgets: Budgets,
        uploads: Uploads,
        folder: Path,
    ) -> None:
        self._context, self._vault, self._released, self._uploads = context, vault, released, uploads
        self._budgets = budgets
        self._list = folder / erased_list.NAME

    def erase(self, request: RequestContext, dataset_id: str) -> StoredReply:
        """Erase an archived dataset. Raises NotFound, Erased, and StateConflict that names what is still under way."""

        def effect(db: Connection) -> Effect:
            row = store.find(db, store.datasets, dataset_id)
            _check(db, row)
            details = erase_in(db, dataset_id, stamp(self._context.clock()))
            return Effect(_reply(dataset_id, self._context.clock(), details), "dataset.erased", details, 200)

        reply = self._context.idempotency.once(request, effect)
        self._finish(dataset_id)
        return reply

    def finish(self) -> None:
        """At a start: forget what was erased, and finish what a crash interrupted."""
        with self._context.database.read() as db:
            gone = erasures.erased(db)
        for dataset_id in gone:
            self._finish(dataset_id)

    def _finish(self, dataset_id: str) -> None:
        with self._context.database.read() as db:
            names, studies = erasures.files_of(db, dataset_id), store.studies_on(db, dataset_id)
            gone, row = erasures.erased(db), store.registered(db, dataset_id)
        self._vault.forget(names)
        self._released.forget(row.id for row in studies)
        self._budgets.uses.forget()
        try:
            for name in names:
                self._vault.erase(name)
            if row is not None:
                self._uploads.erase(row.sha256, moment(row.erased_at))
            erased_list.add(self._list, gone)
            self._context.database.forget_old_pages()
        except (OSError, BlindoptError) as error:  # it is erased in the tables; the rest is tried again
            log.error("files of %s could not be erased: %s", dataset_id, type(error).__name__)
            Background("erasure", partial(self._finish_later, dataset_id), first_s=_AGAIN_SECONDS).start()

    def _finish_later(self, dataset_id: str) -> None:
        with suppress(BlindoptError, StoreFault):  # the service has ended: its next start finishes
            self._finish(dataset_id)


def erase_in(db: Connection, dataset_id: str, at: str) -> dict[str, Any]:
    """Overwrite a dataset in the tables; the details for the log. Its studies are closed from now on."""
    studies = [row.id for row in store.studies_on(db, dataset_id)]
    counts, reports = erasures.overwrite(db, dataset_id, at, erased_marker(dataset_id))
    return {"dataset_id": dataset_id, "studies": studies, **counts} | ({"reports": reports} if reports else {})


def erase_again(db: Connection, context: ServiceContext, dataset_ids: Iterable[str]) -> None:
    """Erase these datasets in a database that was restored from a backup, those that it has and did not erase."""
    for dataset_id in dataset_ids:
        with_id = store.registered(db, dataset_id)
        if with_id is not None and with_id.erased_at is None and with_id.deleted_at is None:
            erased_at = context.clock()
            details = erase_in(db, dataset_id, stamp(erased_at))
            audit_log.append(db, "dataset.erased", actor="cli", now=erased_at, details=details)


def _check(db: Connection, row: Any) -> None:
    if row.erased_at is not None:
        raise Erased(f"the dataset was erased already, at {moment(row.erased_at):%Y-%m-%d %H:%M} UTC")
    studies = store.studies_on(db, row.id)
    tunings = [row_of_use for row_of_use in store.tunings_on(db, row.id) if row_of_use.state == "running"]
    reasons = [
        f"{reason}: {', '.join(named(row_of_use) for row_of_use in under_way)}"
        for reason, under_way in (
            ("these studies are open (close them first)", [s for s in studies if s.state == "open"]),
            ("these releases are being drawn", [s for s in studies if s.state == "releasing"]),
            ("these tunings are under way", tunings),
        )
        if under_way
    ]
    if row.archived_at is None:
        reasons.append("it is not archived (archive it first)")
    if store.is_forecast_from(db, row.id) or any(store.count_running_jobs(db, store.forecasts, s.id) for s in studies):
        reasons.append("a forecast on it is under way: cancel it, or let it end")
    if reasons:
        raise StateConflict("the dataset cannot be erased: " + ". ".join(reasons))


def _reply(dataset_id: str, at: Any, details: dict[str, Any]) -> wire.DatasetErased:
    return wire.DatasetErased(
        id=dataset_id, erased_at=at, **{n: v for n, v in details.items() if n not in ("dataset_id", "reports")}
    )


def sweeps(settings: Settings) -> dict[str, tuple[int | None, Sweep]]:
    """What a curator sweeps, each with the days for which it is kept."""
    return common(settings) | {
        "forecasts": (settings.retention_forecasts_days, lambda db, before: (store.sweep_forecasts(db, before), {})),
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
