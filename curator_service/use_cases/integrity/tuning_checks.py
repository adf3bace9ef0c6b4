"""Check tunings and the lines of dataset accounts against the audit log: part of `audit verify`."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import BudgetExhausted, LogBroken
from curator_service import store
from curator_service.privacy.ledger import exact
from curator_service.store import dataset_accounts, jobs
from curator_service.store.dataset_accounts import Account
from curator_service.use_cases.integrity.erasure_checks import ErasureLogSummary
from curator_service.use_cases.studies.dataset_caps import is_raised, lowered, spend
from curator_service.use_cases.studies.salted_digests import salted_digest
from service_kit.store.database import Connection


class TuningLogSummary:
    """Tunings, and the lines of dataset accounts, as the log describes them."""

    def __init__(self, erased: ErasureLogSummary) -> None:
        self._erased = erased
        self._accounts: dict[str, Account] = {}
        self._lines: list[tuple[Any, ...]] = []
        self._tunings: dict[str, tuple[str, str, str | None]] = {}

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken for a charge beyond a cap."""
        kind, details = record["kind"], record.get("details", {})
        if kind == "tuning.started":
            self._start(details)
        elif kind == "bounds.started":
            account = self._accounts.get(details["account"], Account())
            self._charge("bounds", details["bounds_id"], account, details)
        elif kind in ("tuning.refused", "bounds.refused"):
            self._add(details["account"], "refused", None, details["epsilon"], details["delta"], details["cap"])
        elif kind == "dataset.caps" and details["act"] != "unchanged":
            self._change_caps(details)
        elif kind in ("tuning.ended", "tuning.cancelled"):
            if (started := self._tunings.get(details["tuning_id"])) is None:
                raise LogBroken(f"tuning {details['tuning_id']} has ended in the log and was never started there")
            state = details.get("state", "cancelled")
            self._tunings[details["tuning_id"]] = started[0], state, details.get("outcome_sha256")
        elif kind == "log.restored":
            for account in details.get("closed_accounts", []):
                self._add(account, "closed", None, "0", "0", None)

    def _start(self, details: Json) -> None:
        account = details["account"]
        delta = None if details["cap_delta"] is None else float(details["cap_delta"])
        caps = wire.TuningCaps(epsilon=details["cap_epsilon"], delta=delta)
        before = lowered(self._accounts.get(account, Account()), caps)
        self._charge("tuning", details["tuning_id"], before, details)
        self._tunings[details["tuning_id"]] = details["spec_sha256"], "running", None

    def _charge(self, kind: str, identity: str, before: Account, details: Json) -> None:
        account = details["account"]
        try:
            self._accounts[account] = spend(before, Decimal(details["epsilon"]), Decimal(details["delta"]))
        except BudgetExhausted:
            raise LogBroken(f"{kind} {identity} was charged beyond a cap") from None
        self._add(account, kind, identity, details["epsilon"], details["delta"], None)

    def _change_caps(self, details: Json) -> None:
        name, old = details["account"], self._accounts.get(details["account"], Account())
        caps = [None if cap is None else Decimal(cap) for cap in (details["cap_epsilon"], details["cap_delta"])]
        raised = is_raised(old.cap_epsilon, caps[0]) or is_raised(old.cap_delta, caps[1])
        if raised != (details["act"] == "raised") or raised != (details["reason_sha256"] is not None):
            raise LogBroken(f"a cap of {name} was raised, and the log does not say so and why")
        self._accounts[name] = replace(old, cap_epsilon=caps[0], cap_delta=caps[1])
        self._add(name, "cap", details["reason_sha256"], "0", "0", details["act"])

    def _add(self, name: str, kind: str, subject: str | None, epsilon: str, delta: str, cap: str | None) -> None:
        account = self._accounts.get(name, Account())
        caps = [None if cap is None else exact(cap) for cap in (account.cap_epsilon, account.cap_delta)]
        self._lines.append(
            (name, kind, subject, epsilon, delta, cap, *caps, exact(account.epsilon), exact(account.delta))
        )

    def check(self, db: Connection) -> None:
        """Raise LogBroken if a tuning or a line of the ledger differs from the log."""
        lines = iter(self._lines)
        for row in store.every(db, dataset_accounts.account_lines):
            # The log has the digest of a reason.
            subject = sha256(row.subject.encode()) if row.kind == "cap" and row.subject is not None else row.subject
            charge = row.account, row.kind, subject, row.epsilon, row.delta, row.cap
            if next(lines, None) != (*charge, row.cap_epsilon, row.cap_delta, row.total_epsilon, row.total_delta):
                raise LogBroken(f"line {row.seq} of the accounts of datasets is not what the log says")
        if next(lines, None) is not None:
            raise LogBroken("the accounts of datasets lack lines that are in the log")
        stored, gone = {}, set()
        for row in store.every(db, jobs.tunings):
            stored[row.id] = salted_digest(row.spec, row.salt), row.state, salted_digest(row.outcome, row.salt)
            if row.dataset_id in self._erased.datasets:  # the salt is erased, too
                stored[row.id] = None, row.state, None
                gone.add(row.id)
        logged = {name: (None, t[1], None) if name in gone else t for name, t in self._tunings.items()}
        check_rows("tuning", stored, logged)


def check_rows(what: str, stored: Mapping[str, object], logged: Mapping[str, object]) -> None:
    """Raise LogBroken unless the rows of a table, by id, have the contents that the log records."""
    for name, content in stored.items():
        if logged.get(name) != content:
            raise LogBroken(f"{what} {name} is not what the log says: it was changed, or is not in the log")
    for name in logged:
        if name not in stored:
            raise LogBroken(f"{what} {name} is missing")
