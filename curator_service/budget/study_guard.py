"""What a study or a file may spend by, compared with the audit log before it spends: state, spec, release and balances.

The tables are what requests are answered from; the log is what is signed. A row that was changed outside of the service
is noticed here before anything is done by it, whenever the next verification of everything is.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken, RecordChanged
from curator_service import store
from curator_service.budget import account_table
from curator_service.budget import table as ledger
from curator_service.budget.ledger import Balance, RowBalance
from curator_service.integrity.logged_accounts import ACCOUNT_KINDS, AccountLogSummary
from curator_service.integrity.logged_studies import STUDY_KINDS, Account, StudyLogSummary
from curator_service.privacy.prices import Prices
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log
from service_kit.store.database import Connection

_CHARGE, _REFUSED = "charge", 300
_FOLLOWED = {*STUDY_KINDS, *ACCOUNT_KINDS}
_TAKEN = {*_FOLLOWED, _CHARGE}


class CachedRelease(Protocol):
    """Digests of a release and its study as they were read from the tables."""

    @property
    def sha256(self) -> str: ...
    @property
    def spec_sha256(self) -> str: ...
    @property
    def report_sha256(self) -> str: ...


class StudyGuard:
    """Follows the log as it grows, so that a check costs one statement; the first one of a study reads its charges.

    Checks belong into write transactions, which see every record of the log; ``load`` into any.
    """

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._logged = StudyLogSummary()
        self._files = AccountLogSummary()
        self._accounts: dict[str, Account] = {}
        self._behind: dict[str, int] = {}
        """Studies whose charges were read up to this position alone, by another view of the database."""
        self._seq, self._leaf = -1, b""

    def is_loaded(self, study_id: str) -> bool:
        """Whether the charges of a study have been read."""
        return study_id in self._accounts

    def load(self, study_id: str) -> None:
        """Read the charges of a study, which may take seconds for a long log, outside of a write transaction.

        Where a cap on the account of its file binds, also those of the other studies on it.
        """
        with self._context.database.read() as db:
            self._read(db, study_id)
            dataset = store.find(db, store.datasets, store.spec_of(db, study_id).dataset_id)
            if account_table.account_of(db, account_table.account_name(db, dataset)).is_capped:
                for row in account_table.studies_of(db, dataset.sha256):
                    if not self.is_loaded(row.id):
                        self._read(db, row.id)

    def _read(self, db: Connection, study_id: str) -> None:
        size = audit_log.head(db).size
        account = Account(Prices.of(store.spec_of(db, study_id)))
        self._charge(db, account, study_id, -1)
        with self._lock:
            self._accounts[study_id], self._behind[study_id] = account, size - 1

    @staticmethod
    def _charge(db: Connection, account: Account, study_id: str, after: int) -> None:
        for record in audit_log.of_kind(db, _CHARGE, after=after, about=study_id):
            if record["details"]["study_id"] == study_id:
                account.take(record["details"])

    def check(self, db: Connection, study_id: str) -> None:
        """Raise RecordChanged unless state, spec and release of a study are those of the log; NotFound without one."""
        self._context.audit_trail.check_unchanged(study_id)
        self._twice(study_id, lambda: self._fault(db, study_id))

    def check_cached(self, db: Connection, study_id: str, released: CachedRelease, state: str) -> None:
        """Raise RecordChanged unless a release that is cached, and the stored state, are those of the log."""
        self._context.audit_trail.check_unchanged(study_id)
        self._twice(study_id, lambda: self._cached_fault(db, study_id, released, state))

    def _twice(self, study_id: str, fault_of: Callable[[], str | None]) -> None:
        """Refuse for a fault that remains after the log was read again: this follower is not what differs."""
        if fault_of() is not None:
            self._forget()
            if (fault := fault_of()) is not None:
                self._context.audit_trail.report(LogBroken(fault, about=study_id))
                raise RecordChanged(
                    "a stored record about this study or dataset differs from the audit log: nothing was done"
                )

    def _fault(self, db: Connection, study_id: str) -> str | None:
        self._follow(db)
        if (logged := self._logged.studies.get(study_id)) is None:
            store.find(db, store.studies, study_id)  # one that neither has is not found
            return f"study {study_id} is not in the log"
        return logged.fault(store.find(db, store.studies, study_id), store.release_of(db, study_id))

    def _cached_fault(self, db: Connection, study_id: str, released: CachedRelease, state: str) -> str | None:
        self._follow(db)
        if (logged := self._logged.studies.get(study_id)) is None:
            return f"study {study_id} is not in the log"
        if state != ("closed" if logged.closed else "open"):
            return f"study {study_id} is {state}, and the log does not say so"
        if released.spec_sha256 not in logged.specs or released.sha256 != logged.release_sha256:
            return f"study {study_id} was changed: its spec or release is not the one in the log"
        if logged.report_sha256 not in (None, released.report_sha256):
            return f"the report of the release of study {study_id} was changed"
        return None

    def check_balances(
        self, db: Connection, study_id: str, balance: Balance, rows: Iterable[int], spent: Mapping[int, RowBalance]
    ) -> None:
        """Raise RecordChanged unless a study, and each of ``rows`` (``spent``), have spent what the log says."""
        self._twice(study_id, lambda: self._balance_fault(db, study_id, balance, rows, spent))

    def _balance_fault(
        self, db: Connection, study_id: str, balance: Balance, rows: Iterable[int], spent: Mapping[int, RowBalance]
    ) -> str | None:
        self._follow(db)
        if study_id not in self._accounts:
            self._read(db, study_id)
        with self._lock:
            account, behind = self._accounts[study_id], self._behind.pop(study_id, None)
        if behind is not None:
            self._charge(db, account, study_id, behind)
        if account.balance != balance:
            return f"the ledger of {study_id} has another total than the log: a line was changed, or is missing"
        for row in rows:
            if account.rows.get(row) != spent.get(row):
                return f"the ledger of {study_id} has another amount of row {row} than the log"
        return None

    def check_unanswered(self, db: Connection, study_id: str, grant_id: str, key: str) -> None:
        """Raise RecordChanged if the log has a reply to a query that was charged and has none: it would be drawn again.

        It reads the whole log: without an edit, only a crash or a fault before the answer leaves such a query.
        """
        replies = (record["exchange"] for record in audit_log.exchanges_under(db, key))
        posted = (reply for reply in replies if (reply["grant_id"], reply["method"]) == (grant_id, "POST"))
        if any(reply["status"] < _REFUSED for reply in posted):
            self._context.audit_trail.report(LogBroken(f"the stored answer under key {key} is missing", about=study_id))
            raise RecordChanged(
                "the stored answer to this request is missing, and the audit log has it: nothing was done"
            )

    def check_account(
        self, db: Connection, dataset: Any, name: str, account: account_table.Account, *, followed: bool = False
    ) -> None:
        """Raise RecordChanged unless a dataset, and the account of its file with this name, are those of the log.

        ``followed``: another check came before it in the same transaction.
        """
        self._context.audit_trail.check_unchanged(name, dataset.id)

        def fault() -> str | None:
            if not followed or self._seq < 0:
                self._follow(db)
            if account != self._files.account(name):
                return f"the account of dataset {name} is not what the log says: a line was changed, or is missing"
            return self._files.fault(dataset, name)

        self._twice(name, fault)

    def check_file(self, db: Connection, dataset: Any, name: str, *, rows: bool = True) -> None:
        """Raise RecordChanged unless what all studies on a dataset's file have spent is what the log says.

        Without ``rows``, the totals of the studies alone.
        """
        self._twice(name, partial(self._file_fault, db, store.registrations(db, dataset.sha256), name))
        for row in account_table.studies_of(db, dataset.sha256):
            self._context.audit_trail.check_unchanged(row.id)
            self._twice(row.id, partial(self._study_fault, db, row, rows=rows))

    def _file_fault(self, db: Connection, datasets: Collection[Any], name: str) -> str | None:
        self._follow(db)
        return self._files.file_fault(datasets, name)

    def _study_fault(self, db: Connection, row: Any, *, rows: bool) -> str | None:
        self._follow(db)
        logged = self._logged.studies.get(row.id)
        if logged is None or sha256(row.spec.encode()) != logged.spec_sha256:
            return f"study {row.id} was changed: its spec is not the one in the log"
        balance = ledger.balance(db, row.id)
        fault = self._balance_fault(db, row.id, balance, (), {})
        if fault is not None or not rows:
            return fault
        spent = {at: RowBalance(*of_row) for at, *of_row in ledger.rows_queried(db, row.id)}
        return self._balance_fault(db, row.id, balance, {*spent, *self._accounts[row.id].rows}, spent)

    def _follow(self, db: Connection) -> None:
        """Take the records since the last call. A record of a commit that failed is no longer there: begin anew."""
        appended = audit_log.appended_since(db, self._seq, self._leaf)
        if appended is not None:  # by this process, and nothing was undone since
            for added in appended:
                if added.kind in _TAKEN:
                    self._take(added.kind, {"kind": added.kind, "details": added.details})
                self._seq, self._leaf = added.seq, added.leaf
            return
        rows = audit_log.since(db, self._seq)
        if self._seq >= 0 and (not rows or rows[0].leaf != self._leaf):
            self._forget()
            rows = []
        if self._seq < 0:
            for record in audit_log.of_kind(db, *_FOLLOWED):
                self._record(record)
            rows = audit_log.since(db, audit_log.head(db).size - 1)
        for row in rows if self._seq < 0 else rows[1:]:
            if self._seq >= 0 and row.kind in _TAKEN:
                self._take(row.kind, audit_log.record_of(row))
            self._seq, self._leaf = row.seq, row.leaf

    def _take(self, kind: str, record: Json) -> None:
        if kind in _FOLLOWED:
            self._record(record)
        else:
            details = record["details"]
            with self._lock:
                if (study_id := details["study_id"]) in self._accounts and study_id not in self._behind:
                    self._accounts[study_id].take(details)

    def _record(self, record: Json) -> None:
        self._logged.follow(record)
        self._files.follow(record)
        if record["kind"] == "study.changed":  # a draft, which may have other prices now
            with self._lock:
                for cached in (self._accounts, self._behind):
                    cached.pop(record["details"]["study_id"], None)
