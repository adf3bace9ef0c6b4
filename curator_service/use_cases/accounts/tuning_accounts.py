"""Accounts of tunings: one for each validation file, with caps that can be lowered and never raised."""

from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import BudgetExhausted, StateConflict
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
    """The account with a request's caps: the lowest that was ever declared counts."""
    epsilon, delta = Decimal(caps.epsilon), Decimal(repr(caps.delta))
    return replace(
        account,
        cap_epsilon=epsilon if account.cap_epsilon is None else min(epsilon, account.cap_epsilon),
        cap_delta=delta if account.cap_delta is None else min(delta, account.cap_delta),
    )


def spend(account: Account, epsilon: Decimal, delta: Decimal) -> Account:
    """The account after a charge. Raises BudgetExhausted if it would pass a cap."""
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
    """Charge a tuning, or record its refusal and return it, in the caller's transaction.

    Raises StateConflict for a closed account.
    """
    before, at = lowered(open_account(db, dataset), caps), stamp(context.clock())
    account = table.account_name(db, dataset)
    epsilon, delta = map(Decimal, cost)
    try:
        after = spend(before, epsilon, delta)
    except BudgetExhausted as refusal:
        # The caps of a refused tuning do not bind later ones.
        cap, unchanged = str(refusal.budget["cap"]).removeprefix("caps."), table.account_of(db, account)
        table.add(db, account, "refused", after=unchanged, at=at, epsilon=epsilon, delta=delta, cap=cap)
        details = {"account": account, "dataset_id": dataset.id, "epsilon": cost[0], "delta": cost[1], "cap": cap}
        audit_log.append(db, "tuning.refused", actor=request.principal.actor, now=context.clock(), details=details)
        return refusal
    table.add(db, account, "tuning", after=after, at=at, tuning_id=identity, epsilon=epsilon, delta=delta)
    notices.tuning_spent(db, context.outbox, account, after)
    return None


def open_account(db: Connection, dataset: Any) -> Account:
    """The account of a dataset's file. Raises StateConflict if it is closed."""
    account = table.account_of(db, table.account_name(db, dataset))
    if account.closed:
        raise StateConflict(CLOSED)
    return account


def close_all(db: Connection, context: ServiceContext) -> list[str]:
    """Close every account, after a restore; the names of those that were open."""
    closed = table.accounts(db)
    for account in closed:
        table.add(db, account, "closed", after=table.account_of(db, account), at=stamp(context.clock()))
    return closed


def ledger(db: Connection, dataset_id: str, after: int, limit: int) -> tuple[list[wire.TuningCharge], Account]:
    """Lines of the account of a dataset's file, and what it has spent."""
    account = table.account_name(db, store.find(db, store.datasets, dataset_id))
    rows = table.lines(db, account, after=after, limit=limit)
    return [_view(row) for row in rows], table.account_of(db, account)


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
    """The digest of a text for the log, salted so that a text cannot be guessed from it; None for None.

    >>> digest(None, "salt"), digest("a", "salt") == digest("a", "other salt")
    (None, False)
    """
    return None if text is None else sha256(f"{salt}{text}".encode())
