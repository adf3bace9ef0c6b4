"""Check tunings, private bounds and the lines of dataset accounts against the audit log: part of `audit verify`."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import BudgetExhausted, LogBroken
from curator_service import store
from curator_service.budget.ledger import A_FILE, NO_CHARGES, Account, Cost, is_raised
from curator_service.budget.table import account_lines
from curator_service.datasets.table import bounds
from curator_service.integrity.erasure_checks import ErasureLogSummary
from curator_service.salted_digests import salted_digest
from curator_service.store import jobs
from service_kit.store.database import Connection


class TuningLogSummary:
    """Tunings, private bounds, and the lines of dataset accounts, as the log describes them."""

    kinds = (
        "dataset.caps",
        "dataset.decided",
        "tuning.started",
        "tuning.refused",
        "tuning.ended",
        "tuning.cancelled",
        "bounds.started",
        "bounds.refused",
        "log.restored",
    )

    def __init__(self, erased: ErasureLogSummary) -> None:
        self._erased = erased
        self._accounts: dict[str, Account] = {}
        self._lines: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        """By account."""
        self._joined: dict[str, list[str]] = {}
        """By name, all files of an account that several have become."""
        self._tunings: dict[str, tuple[str, str, str | None]] = {}
        self._prices: dict[str, tuple[str, str, str]] = {}
        """Dataset, epsilon and delta of each tuning, and of private bounds."""

    def follow(self, record: Json) -> None:
        """Take the next record of the log.

        Raises LogBroken for a charge beyond a cap, a hidden raise, and an end without a start.
        """
        kind, details = record["kind"], record.get("details", {})
        if kind == "tuning.started":
            delta = None if details["cap_delta"] is None else float(details["cap_delta"])
            caps = wire.TuningCaps(epsilon=details["cap_epsilon"], delta=delta)
            # Earlier versions counted every tuning against the caps, and said no kind.
            before, kind = self._account(details["account"]), details.get("guarantee_kind", "worst_case")
            before = before.lowered(caps) if kind == "worst_case" else before
            self._tunings[details["tuning_id"]] = details["spec_sha256"], "running", None
            self._charge("tuning", details["tuning_id"], before, details)
        elif kind == "bounds.started":
            self._charge("bounds", details["bounds_id"], self._account(details["account"]), details)
        elif kind in ("tuning.refused", "bounds.refused"):
            self._add(details["account"], "refused", None, details["epsilon"], details["delta"], details["cap"])
        elif kind in ("tuning.ended", "tuning.cancelled"):
            if (started := self._tunings.get(details["tuning_id"])) is None:
                what = f"tuning {details['tuning_id']} has ended in the log and was never started there"
                raise LogBroken(what, about=details["tuning_id"])
            state = details.get("state", "cancelled")
            self._tunings[details["tuning_id"]] = started[0], state, details.get("outcome_sha256")
        elif kind == "dataset.caps" and details["act"] != "unchanged":
            self._change_caps(details)
        elif kind == "dataset.decided" and details["files"]:
            self._join(details)
        elif kind == "log.restored":
            for name in details.get("closed_accounts", []):
                self._accounts[name] = replace(self._account(name), closed=True)
                self._add(name, "closed", None, "0", "0", None)

    def _charge(self, kind: str, identity: str, before: Account, details: Json) -> None:
        name = details["account"]
        self._prices[identity] = details["dataset_id"], details["epsilon"], details["delta"]
        guarantee_kind = details.get("guarantee_kind")
        cost = Cost.of(details["epsilon"], details["delta"])
        try:
            self._set(name, before.charge(cost, guarantee_kind or "worst_case"))
        except BudgetExhausted:
            raise LogBroken(f"{kind} {identity} was charged beyond a cap", about=name) from None
        self._add(name, kind, identity, details["epsilon"], details["delta"], None, guarantee_kind)

    def _change_caps(self, details: Json) -> None:
        name, old = details["account"], self._account(details["account"])
        new = old.with_caps(details["cap_epsilon"], details["cap_delta"])
        raised = is_raised(old.cap_epsilon, new.cap_epsilon) or is_raised(old.cap_delta, new.cap_delta)
        if raised != (details["act"] == "raised") or raised != (details["reason_sha256"] is not None):
            raise LogBroken(f"a cap of {name} was raised, and the log does not say so and why", about=name)
        self._set(name, new)
        self._add(name, "cap", details["reason_sha256"], "0", "0", details["act"])

    def _join(self, details: Json) -> None:
        """Several accounts become one, with the lowest caps."""
        name, files = details["account"], details["files"]
        lowest = self._account(name).with_lowest(map(self._account, files))
        if lowest.cap_texts != (details["cap_epsilon"], details["cap_delta"]):
            raise LogBroken(f"accounts became that of {files[0]}, and not with the lowest caps", about=name)
        self._joined |= dict.fromkeys(files, files)
        self._set(name, lowest)
        self._add(name, "cap", None, "0", "0", "continued")

    def _set(self, name: str, account: Account) -> None:
        """The account of a file is this one, and its caps are those of all files in it."""
        for other in self._joined.get(name, ()):
            self._accounts[other] = self._account(other).with_caps(*account.cap_texts)
        self._accounts[name] = account

    def _account(self, name: str) -> Account:
        return self._accounts.get(name, NO_CHARGES)

    def _add(
        self,
        name: str,
        kind: str,
        subject: str | None,
        epsilon: str,
        delta: str,
        cap: str | None,
        guarantee_kind: str | None = None,
    ) -> None:
        after = self._account(name)
        costs, totals = Cost.of(epsilon, delta).texts, after.total.texts
        self._lines[name].append((kind, subject, *costs, cap, *after.cap_texts, *totals, guarantee_kind))

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in a tuning, or in a line of the ledger, from the log."""
        counts: Counter[str] = Counter()
        for row in store.every(db, account_lines):
            # The log has the digest of a reason.
            subject = sha256(row.subject.encode()) if row.kind == "cap" and row.subject is not None else row.subject
            charge = row.kind, subject, row.epsilon, row.delta, row.cap
            caps, totals = (row.cap_epsilon, row.cap_delta), (row.total_epsilon, row.total_delta)
            line = (*charge, *caps, *totals, row.guarantee_kind)
            if self._lines[row.account][counts[row.account] :][:1] != [line]:
                yield LogBroken(
                    f"line {row.seq} of the accounts of datasets is not what the log says", about=row.account
                )
            counts[row.account] += 1
        for account, lines in self._lines.items():
            if counts[account] < len(lines):
                yield LogBroken("the accounts of datasets lack lines that are in the log", about=account)
        stored: dict[str, tuple[str | None, str, str | None] | None] = {}
        gone = set()
        for row in store.every(db, jobs.tunings):
            stored[row.id] = salted_digest(row.spec, row.salt), row.state, salted_digest(row.outcome, row.salt)
            if row.dataset_id in self._erased.datasets:  # the salt is erased, too
                stored[row.id] = None, row.state, None
                gone.add(row.id)
            report = json.loads(row.report)
            if self._prices.get(row.id, ()) != (row.dataset_id, report["epsilon"], report["delta"]):
                stored[row.id] = None
        logged = {name: (None, t[1], None) if name in gone else t for name, t in self._tunings.items()}
        yield from check_rows("tuning", stored, logged)
        datasets = store.every(db, store.datasets)
        records = {row.id: 1 if row.person_column is None else row.rows_per_person for row in datasets}
        priced = {}
        for row in store.every(db, bounds):
            spec = json.loads(row.spec)
            price = row.dataset_id, *Cost.of(spec["wanted"]["epsilon"], "0").texts
            priced[row.id] = price if spec["records"] == records.get(row.dataset_id) else None
        # Version 0.2.0 logged epsilon as it was typed.
        charged = {
            name: (dataset, *Cost.of(epsilon, delta).texts)
            for name, (dataset, epsilon, delta) in self._prices.items()
            if name not in self._tunings
        }
        yield from check_rows("bounds", priced, charged)


def check_rows(what: str, stored: Mapping[str, object], logged: Mapping[str, object]) -> Iterator[LogBroken]:
    """Yield what differs in the rows of a table, by id, from the contents that the log records."""
    for name in sorted(stored.keys() | logged.keys()):
        if stored.get(name) != logged.get(name):
            fault = "is not what the log says: it was changed, or is not in the log" if name in stored else "is missing"
            yield LogBroken(f"{what} {name} {fault}", about=name, others=[A_FILE])
