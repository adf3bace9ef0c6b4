"""Ledger, exposure of rows and privacy accounting of a study, for its owner and for auditors."""

from collections import Counter
from typing import Any

from blindopt import wire
from curator_service import store
from curator_service.privacy import accounting
from curator_service.privacy.ledger import Prices, answers_add_up, text
from curator_service.store import ledger as lines
from curator_service.use_cases.studies.advisories import release_status
from curator_service.use_cases.studies.repeated_releases import most_by_row
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.store.base import moment
from service_kit.store.database import Connection


class Accounts:
    """Reads ledger, exposure and accounting of a study."""

    def __init__(self, context: ServiceContext, vault: Vault) -> None:
        self._context = context
        self._vault = vault

    def ledger(self, study_id: str, after: int, limit: int) -> tuple[list[wire.LedgerEntry], wire.LedgerPage]:
        """Lines of the ledger, and a page without lines that has the balances."""
        with self._context.database.read() as db:
            prices = _prices(db, study_id)
            entries = [_entry(row, prices) for row in lines.page(db, study_id, after=after, limit=limit)]
            now = lines.balance(db, study_id)
        total = text(now.total) if prices.release_bounded and prices.answers_bounded else None
        release = text(now.release) if prices.release_bounded else None
        return entries, wire.LedgerPage(
            entries=[], release_epsilon=release, total_epsilon=total, total_plays=now.plays, next_page_token=None
        )

    def exposure(
        self, study_id: str, after: int, limit: int, *, with_records: bool
    ) -> tuple[list[wire.RowExposure], str | None]:
        """The rows that were queried, and the epsilon of the release, which every row has spent.

        ``with_records`` adds the record of each row. That reveals the secret order, so it is for the owner alone.
        """
        with self._context.database.read() as db:
            prices = _prices(db, study_id)
            spec = wire.StudyCreate.model_validate_json(store.find(db, store.studies, study_id).spec)
            page = lines.exposure(db, study_id, after=after, limit=limit)
            now, release = lines.balance(db, study_id), store.release_of(db, study_id)
            again = most_by_row(db, study_id)
        order = self._vault.order(release.id) if with_records and release is not None else None
        bounded = prices.release_bounded and prices.answers_bounded

        def spent(row: Any) -> str | None:
            if not bounded:
                return None
            if answers_add_up(spec):
                return text(now.release + row.row_total)
            return text(max(now.release, again.get(row.row, 1) * prices.answer))

        rows = [
            wire.RowExposure(
                row=row.row,
                record=None if order is None else int(order[row.row]) + 1,
                queries=row.row_queries,
                plays=row.row_plays,
                epsilon=text(row.row_total) if prices.answers_bounded else None,
                spent=spent(row),
            )
            for row in page
        ]
        return rows, text(now.release) if prices.release_bounded else None

    def accounting(self, study_id: str, delta: float | None) -> wire.Accounting:
        """The privacy cost of a study so far, by two accountants; ``delta``: the study's own if None.

        Depends on the queries, never on a value. Takes seconds for thousands of answers.
        """
        with self._context.database.read() as db:
            row = store.find(db, store.studies, study_id)
            spec = wire.StudyCreate.model_validate_json(row.spec)
            n = int(store.find(db, store.datasets, row.dataset_id).rows)
            current = release_status(db, spec, _report(db, study_id))
            charged, queried = lines.is_released(db, study_id), lines.queried_rows(db, study_id)
            again = max(most_by_row(db, study_id).values(), default=1)
        price = Prices.of(spec).answer
        rows: Counter[int] = Counter()
        for spent, plays, many in queried:
            rows[spent // price if price else plays] += many  # a mean is one release of several plays
        total = sum(answers * many for answers, many in rows.items())
        if never_queried := n - sum(rows.values()):
            rows[0] += never_queried
        at = delta if delta is not None else getattr(spec.release, "delta", None) or accounting.DELTA
        withdrawn = current.withdrawn is not None
        return accounting.report(
            spec, rows, total, at, released=charged, release=current.release, withdrawn=withdrawn, again=again
        )


def _prices(db: Connection, study_id: str) -> Prices:
    """The prices of a study today: once its mechanism is withdrawn, they bound nothing."""
    spec = wire.StudyCreate.model_validate_json(store.find(db, store.studies, study_id).spec)
    return Prices.of(spec, withdrawn=release_status(db, spec, _report(db, study_id)).withdrawn is not None)


def _report(db: Connection, study_id: str) -> wire.ReleaseReport | None:
    release = store.release_of(db, study_id)
    return wire.ReleaseReport.model_validate_json(release.report) if release is not None else None


def _entry(row: Any, prices: Prices) -> wire.LedgerEntry:
    bounded = prices.release_bounded if row.kind == "release" else prices.answers_bounded
    return wire.LedgerEntry(
        seq=row.seq,
        kind=row.kind,
        query_id=row.query_id,
        row=row.row,
        plays=row.plays,
        epsilon=row.cost if bounded else None,
        row_epsilon=text(row.row_total) if prices.answers_bounded else None,
        total_epsilon=text(row.total) if prices.answers_bounded and prices.release_bounded else None,
        total_plays=row.total_plays,
        cap=row.cap,
        created_at=moment(row.created_at),
    )
