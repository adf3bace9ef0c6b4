"""What tunings spend: an account for each validation file, with caps that can be lowered and never raised."""

from collections.abc import Iterable
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import BudgetExhausted, LogBroken, StateConflict
from curator_service import store
from curator_service.privacy.ledger import exact
from curator_service.store import tunings as table
from curator_service.store.tunings import Account
from curator_service.use_cases import notices
from service_kit.context.context import ServiceContext
from service_kit.context.request import RequestContext
from service_kit.store import audit_log
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection

_SUM = Context(prec=400, rounding=ROUND_CEILING)  # more digits than two amounts have: sums are exact
CLOSED = (
    "a backup was restored, and what tunings on this file spent after it is not known: nothing more is tuned on it; "
    "new records, in a new file, have an account of their own"
)


def lowered(account: Account, caps: wire.TuningCaps) -> Account:
    """The account with a request's caps: the lowest that was declared counts."""
    epsilon, delta = Decimal(caps.epsilon), Decimal(repr(caps.delta))
    return replace(
        account,
        cap_epsilon=epsilon if account.cap_epsilon is None else min(epsilon, account.cap_epsilon),
        cap_delta=delta if account.cap_delta is None else min(delta, account.cap_delta),
    )


def spend(account: Account, epsilon: Decimal, delta: Decimal) -> Account:
    """The account after a charge. Raises BudgetExhausted where it would pass a cap."""
    after = replace(account, epsilon=_SUM.add(account.epsilon, epsilon), delta=_SUM.add(account.delta, delta))
    for cap, cost in (("epsilon", epsilon), ("delta", delta)):
        limit = getattr(account, f"cap_{cap}")
        if limit is not None and getattr(after, cap) > limit:
            spent = exact(getattr(account, cap))
            raise BudgetExhausted(f"caps.{cap}", requested=exact(cost), spent=spent, limit=exact(limit))
    return after


def charge(
    db: Connection,
    context: ServiceContext,
    request: RequestContext,
    dataset: Any,
    identity: str,
    caps: wire.TuningCaps,
    cost: tuple[str, str],
) -> BudgetExhausted | None:
    """Charge a tuning, or record why not, in the caller's transaction. Raises StateConflict for a closed account."""
    before, at = lowered(open_account(db, dataset), caps), stamp(context.clock())
    account = table.account_name(db, dataset)
    epsilon, delta = map(Decimal, cost)
    try:
        after = spend(before, epsilon, delta)
    except BudgetExhausted as refusal:
        # Its caps are not those of a tuning that was made: they bind nothing.
        cap, known = str(refusal.budget["cap"]).removeprefix("caps."), table.account_of(db, account)
        table.add(db, account, "refused", after=known, at=at, epsilon=epsilon, delta=delta, cap=cap)
        told = {"account": account, "dataset_id": dataset.id, "epsilon": cost[0], "delta": cost[1], "cap": cap}
        audit_log.append(db, "tuning.refused", actor=request.principal.actor, now=context.clock(), details=told)
        return refusal
    table.add(db, account, "tuning", after=after, at=at, tuning_id=identity, epsilon=epsilon, delta=delta)
    notices.tuning_spent(db, context.outbox, account, after)
    return None


def open_account(db: Connection, dataset: Any) -> Account:
    """The account of a dataset's file. Raises StateConflict where it is closed."""
    account = table.account_of(db, table.account_name(db, dataset))
    if account.closed:
        raise StateConflict(CLOSED)
    return account


def close_all(db: Connection, context: ServiceContext) -> list[str]:
    """Close every account: after a restore. Which."""
    closed = table.accounts(db)
    for account in closed:
        table.add(db, account, "closed", after=table.account_of(db, account), at=stamp(context.clock()))
    return closed


def ledger(db: Connection, dataset_id: str, after: int, limit: int) -> tuple[list[wire.TuningCharge], Account]:
    """Lines of the account of a dataset's file, and what it has spent."""
    account = table.account_name(db, store.find(db, store.datasets, dataset_id))
    found = table.lines(db, account, after=after, limit=limit)
    return [_view(row) for row in found], table.account_of(db, account)


def _view(row: Any) -> wire.TuningCharge:
    return wire.TuningCharge(
        seq=row.seq,
        kind=row.kind,
        tuning_id=row.tuning_id,
        epsilon=row.epsilon,
        delta=row.delta,
        cap=row.cap,
        cap_epsilon=row.cap_epsilon,
        cap_delta=row.cap_delta,
        total_epsilon=row.total_epsilon,
        total_delta=row.total_delta,
        created_at=moment(row.created_at),
    )


def digest(text: str | None, salt: str) -> str | None:
    """What the log tells of a text: salted, so that it tells nothing of one that can be guessed. None for none.

    >>> digest(None, "salt"), digest("a", "salt") == digest("a", "other salt")
    (None, False)
    """
    return None if text is None else sha256(f"{salt}{text}".encode())


class Told:
    """The ledger of tunings as the log tells it, and the tunings: for `audit verify`."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._lines: list[tuple[Any, ...]] = []
        self._tunings: dict[str, tuple[str, str, str | None]] = {}

    def follow(self, record: Json) -> None:
        """Take what a record tells of."""
        kind, details = record["kind"], record.get("details", {})
        if kind == "tuning.started":
            self._start(details)
        elif kind == "tuning.refused":
            self._refuse(details)
        elif kind in ("tuning.ended", "tuning.cancelled"):
            spec, _, _ = self._tunings[details["tuning_id"]]
            state = details.get("state", "cancelled")
            self._tunings[details["tuning_id"]] = spec, state, details.get("outcome_sha256")
        elif kind == "log.restored":
            for account in details.get("closed_accounts", []):
                self._add(account, "closed", None, "0", "0", None)

    def _start(self, details: Json) -> None:
        account = details["account"]
        caps = wire.TuningCaps(epsilon=details["cap_epsilon"], delta=float(details["cap_delta"]))
        before = lowered(self._accounts.get(account, Account()), caps)
        try:
            self._accounts[account] = spend(before, Decimal(details["epsilon"]), Decimal(details["delta"]))
        except BudgetExhausted:
            raise LogBroken(f"tuning {details['tuning_id']} was charged beyond a cap") from None
        self._tunings[details["tuning_id"]] = details["spec_sha256"], "running", None
        self._add(account, "tuning", details["tuning_id"], details["epsilon"], details["delta"], None)

    def _refuse(self, details: Json) -> None:
        self._add(details["account"], "refused", None, details["epsilon"], details["delta"], details["cap"])

    def _add(self, account: str, kind: str, tuning: str | None, epsilon: str, delta: str, cap: str | None) -> None:
        self._lines.append((account, kind, tuning, epsilon, delta, cap, *_balance(self._accounts.get(account))))

    def check(self, db: Connection) -> None:
        """Raises LogBroken where a table tells otherwise."""
        self._check_lines(table.all_lines(db))
        left = dict(self._tunings)
        for row in table.every(db):
            if left.pop(row.id, None) != (digest(row.spec, row.salt), row.state, digest(row.outcome, row.salt)):
                raise LogBroken(f"tuning {row.id} is not what the log tells: it was changed, or was never started")
        for name in left:
            raise LogBroken(f"tuning {name} is missing")

    def _check_lines(self, rows: Iterable[Any]) -> None:
        left = iter(self._lines)
        for row in rows:
            caps = row.cap_epsilon, row.cap_delta
            found = (row.account, row.kind, row.tuning_id, row.epsilon, row.delta, row.cap, *caps)
            if next(left, None) != (*found, row.total_epsilon, row.total_delta):
                raise LogBroken(f"line {row.seq} of the ledger of tunings is not what the log tells")
        if next(left, None) is not None:
            raise LogBroken("the ledger of tunings lacks lines that the log tells")


def _balance(account: Account | None) -> tuple[str | None, ...]:
    account = account or Account()
    caps = [None if cap is None else exact(cap) for cap in (account.cap_epsilon, account.cap_delta)]
    return *caps, exact(account.epsilon), exact(account.delta)
