"""Accounts of files as the audit log describes them: for checks of the tables."""

from collections.abc import Collection
from dataclasses import replace
from decimal import Decimal
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json
from blindopt.errors import BudgetExhausted, LogBroken
from curator_service.budget.account_table import NO_CHARGES, Account, is_raised

ACCOUNT_KINDS = (
    "dataset.registered",
    "dataset.deleted",
    "dataset.caps",
    "tuning.started",
    "tuning.refused",
    "bounds.started",
    "bounds.refused",
    "log.restored",
)


class AccountLogSummary:
    """Registrations of files, and what was charged to every record of each, with its caps."""

    kinds: Collection[str] = ACCOUNT_KINDS

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.registered: dict[str, Json] = {}
        """Details of ``dataset.registered`` by dataset."""

    def account(self, name: str) -> Account:
        """An account by its name."""
        return self.accounts.get(name, NO_CHARGES)

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken for a charge beyond a cap, and for a hidden raise."""
        kind, details = record["kind"], record.get("details", {})
        if kind == "dataset.registered":
            self.registered[details["dataset_id"]] = details
        elif kind == "dataset.deleted" and not details["kept_for_account"]:
            self.registered.pop(details["dataset_id"], None)
        elif kind == "tuning.started":
            delta = None if details["cap_delta"] is None else float(details["cap_delta"])
            caps = wire.TuningCaps(epsilon=details["cap_epsilon"], delta=delta)
            before = self.account(details["account"]).lowered(caps)
            self._charge("tuning", details["tuning_id"], before, details)
        elif kind == "bounds.started":
            self._charge("bounds", details["bounds_id"], self.account(details["account"]), details)
        elif kind in ("tuning.refused", "bounds.refused"):
            self._add(details["account"], "refused", None, details["epsilon"], details["delta"], details["cap"])
        elif kind == "dataset.caps" and details["act"] != "unchanged":
            self._change_caps(details)
        elif kind == "log.restored":
            for name in details.get("closed_accounts", []):
                self.accounts[name] = replace(self.account(name), closed=True)
                self._add(name, "closed", None, "0", "0", None)

    def _charge(self, kind: str, identity: str, before: Account, details: Json) -> None:
        name = details["account"]
        try:
            self.accounts[name] = before.spend(Decimal(details["epsilon"]), Decimal(details["delta"]))
        except BudgetExhausted:
            raise LogBroken(f"{kind} {identity} was charged beyond a cap", about=name) from None
        self._add(name, kind, identity, details["epsilon"], details["delta"], None)

    def _change_caps(self, details: Json) -> None:
        name, old = details["account"], self.account(details["account"])
        caps = [None if cap is None else Decimal(cap) for cap in (details["cap_epsilon"], details["cap_delta"])]
        raised = is_raised(old.cap_epsilon, caps[0]) or is_raised(old.cap_delta, caps[1])
        if raised != (details["act"] == "raised") or raised != (details["reason_sha256"] is not None):
            raise LogBroken(f"a cap of {name} was raised, and the log does not say so and why", about=name)
        self.accounts[name] = replace(old, cap_epsilon=caps[0], cap_delta=caps[1])
        self._add(name, "cap", details["reason_sha256"], "0", "0", details["act"])

    def _add(self, name: str, kind: str, subject: str | None, epsilon: str, delta: str, cap: str | None) -> None:
        """Take a line of the ledger of accounts, for those who hold its lines."""

    def fault(self, dataset: Any, name: str) -> str | None:
        """What differs in a dataset, or in the ``name`` of its file's account; None if nothing does."""
        logged = self.registered.get(dataset.id)
        if logged is None:
            return f"dataset {dataset.id} is not in the log"
        # The first two were recorded in part, before version 0.3.
        stored = {"public": bool(dataset.public), "account": name, "rows_per_person": dataset.rows_per_person}
        if not stored.items() <= {**stored, **logged}.items():
            return f"dataset {dataset.id} was changed: its file, or whether it is public, is not what the log says"
        return None
