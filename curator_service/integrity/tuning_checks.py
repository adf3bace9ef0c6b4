"""Check tunings and the lines of dataset accounts against the audit log: part of `audit verify`."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken
from curator_service import store
from curator_service.budget import account_table
from curator_service.budget.account_table import A_FILE
from curator_service.integrity.erasure_checks import ErasureLogSummary
from curator_service.integrity.logged_accounts import ACCOUNT_KINDS, AccountLogSummary
from curator_service.privacy.prices import exact
from curator_service.salted_digests import salted_digest
from curator_service.store import jobs
from service_kit.store.database import Connection


class TuningLogSummary(AccountLogSummary):
    """Tunings, and the lines of dataset accounts, as the log describes them."""

    kinds = (*ACCOUNT_KINDS, "tuning.ended", "tuning.cancelled")

    def __init__(self, erased: ErasureLogSummary) -> None:
        super().__init__()
        self._erased = erased
        self._lines: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        """By account."""
        self._tunings: dict[str, tuple[str, str, str | None]] = {}

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken as for accounts, and for an end without a start."""
        super().follow(record)
        kind, details = record["kind"], record.get("details", {})
        if kind == "tuning.started":
            self._tunings[details["tuning_id"]] = details["spec_sha256"], "running", None
        elif kind in ("tuning.ended", "tuning.cancelled"):
            if (started := self._tunings.get(details["tuning_id"])) is None:
                raise LogBroken(
                    f"tuning {details['tuning_id']} has ended in the log and was never started there",
                    about=details["tuning_id"],
                )
            state = details.get("state", "cancelled")
            self._tunings[details["tuning_id"]] = started[0], state, details.get("outcome_sha256")

    def _add(self, name: str, kind: str, subject: str | None, epsilon: str, delta: str, cap: str | None) -> None:
        after = self.account(name)
        caps = [None if cap is None else exact(cap) for cap in (after.cap_epsilon, after.cap_delta)]
        totals = exact(after.epsilon), exact(after.delta)
        self._lines[name].append((kind, subject, epsilon, delta, cap, *caps, *totals))

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in a tuning, or in a line of the ledger, from the log."""
        counts: Counter[str] = Counter()
        for row in store.every(db, account_table.account_lines):
            # The log has the digest of a reason.
            subject = sha256(row.subject.encode()) if row.kind == "cap" and row.subject is not None else row.subject
            charge = row.kind, subject, row.epsilon, row.delta, row.cap
            line = (*charge, row.cap_epsilon, row.cap_delta, row.total_epsilon, row.total_delta)
            if self._lines[row.account][counts[row.account] :][:1] != [line]:
                yield LogBroken(
                    f"line {row.seq} of the accounts of datasets is not what the log says", about=row.account
                )
            counts[row.account] += 1
        for account, lines in self._lines.items():
            if counts[account] < len(lines):
                yield LogBroken("the accounts of datasets lack lines that are in the log", about=account)
        stored, gone = {}, set()
        for row in store.every(db, jobs.tunings):
            stored[row.id] = salted_digest(row.spec, row.salt), row.state, salted_digest(row.outcome, row.salt)
            if row.dataset_id in self._erased.datasets:  # the salt is erased, too
                stored[row.id] = None, row.state, None
                gone.add(row.id)
        logged = {name: (None, t[1], None) if name in gone else t for name, t in self._tunings.items()}
        yield from check_rows("tuning", stored, logged)


def check_rows(what: str, stored: Mapping[str, object], logged: Mapping[str, object]) -> Iterator[LogBroken]:
    """Yield what differs in the rows of a table, by id, from the contents that the log records."""
    for name in sorted(stored.keys() | logged.keys()):
        if stored.get(name) != logged.get(name):
            fault = "is not what the log says: it was changed, or is not in the log" if name in stored else "is missing"
            yield LogBroken(f"{what} {name} {fault}", about=name, others=[A_FILE])
