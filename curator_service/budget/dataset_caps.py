"""The account of a dataset's file: its caps, and the checks of every charge against them.

Each check is in the transaction of its charge. Without a cap nothing is read but the account's last line.
"""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import BudgetExhausted, Invalid, StateConflict
from curator_service import notices, store
from curator_service.budget import account_table as table
from curator_service.budget import table as lines
from curator_service.budget.account_table import A_FILE, Account
from curator_service.budget.dataset_losses import DatasetLosses, FileLosses
from curator_service.budget.ledger import Charge
from curator_service.budget.repeated_releases import cost_for_everyone
from curator_service.privacy import amounts, dataset_account
from curator_service.privacy.choice import Concrete
from curator_service.privacy.prices import Prices, exact, text
from service_kit.context.context import ServiceContext
from service_kit.context.request import RequestContext
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection

EPSILON, DELTA = "dataset.epsilon", "dataset.delta"
CLOSED = (
    "a backup was restored, and what was spent on this file after it is not known: nothing more is released of it or "
    "tuned on it; new records, in a new file, have an account of their own"
)


def open_account(db: Connection, dataset: Any) -> Account:
    """The account of a dataset's file. Raises StateConflict if it is closed."""
    account = table.account_of(db, table.account_name(db, dataset))
    if account.closed:
        raise StateConflict(CLOSED)
    return account


def _checked(db: Connection, context: ServiceContext, dataset: Any) -> tuple[str, Account]:
    """The account of a dataset's file and its name. Raises RecordChanged if a verification found either changed."""
    account = table.account_of(db, name := table.account_name(db, dataset))
    context.audit_trail.check_unchanged(name, dataset.id)
    return name, account


def _check_file(db: Connection, context: ServiceContext, dataset: Any) -> None:
    """Raise RecordChanged if a verification found any record about a use of a dataset's file changed."""
    registered = store.registrations(db, dataset.sha256)
    studies = table.studies_of(db, dataset.sha256)
    context.audit_trail.check_unchanged(A_FILE, *(row.id for row in (*registered, *studies)))


def close_all(db: Connection, context: ServiceContext) -> list[str]:
    """Close every account, after a restore; the names of those that were open."""
    closed = table.accounts(db)
    for account in closed:
        table.add(db, account, "closed", after=table.account_of(db, account), at=stamp(context.clock()))
    return closed


# --- charges to every record: tunings and bounds ------------------------------------------------------------


def charge_everyone(
    db: Connection,
    context: ServiceContext,
    request: RequestContext,
    losses: DatasetLosses,
    dataset: Any,
    kind: str,
    identity: str,
    cost: tuple[str, str],
    caps: wire.TuningCaps | None = None,
) -> BudgetExhausted | None:
    """Charge (epsilon, delta) to every record of a dataset's file, or record the refusal and return it.

    ``kind``: of the line, "tuning" or "bounds"; ``identity``: the id of what is charged. The caller logs
    ``<kind>.started`` in the same transaction, with account, epsilon and delta (and the caps of a tuning). ``caps``:
    lower the account's. Raises StateConflict for a closed account, and where a cap cannot hold.
    """
    (account, unchanged), at = _checked(db, context, dataset), stamp(context.clock())
    if unchanged.closed:
        raise StateConflict(CLOSED)
    before = unchanged if caps is None else unchanged.lowered(caps)
    epsilon, delta = map(Decimal, cost)
    file = losses.read(db, dataset)
    if before.is_capped:
        _check_file(db, context, dataset)
        check_bounded(file)
    of_studies = file.of_studies
    try:
        after = before.spend(epsilon, delta, of_studies=of_studies, caps="dataset" if caps is None else "caps")
    except BudgetExhausted as refusal:
        # The caps of a refused tuning do not bind later ones.
        cap = str(refusal.budget["cap"]).rpartition(".")[2]
        table.add(db, account, "refused", after=unchanged, at=at, epsilon=epsilon, delta=delta, cap=cap)
        details = {"account": account, "dataset_id": dataset.id, "epsilon": cost[0], "delta": cost[1], "cap": cap}
        audit_log.append(db, f"{kind}.refused", actor=request.principal.actor, now=context.clock(), details=details)
        return refusal
    table.add(db, account, kind, after=after, at=at, subject=identity, epsilon=epsilon, delta=delta)
    spent = amounts.add(after.epsilon, of_studies[0]), amounts.add(after.delta, of_studies[1])
    notices.dataset_spent(db, context.outbox, account, after, *spent)
    return None


def check_bounded(file: FileLosses) -> None:
    """Raise StateConflict if any use of the file has no finite bound: no cap on it can hold."""
    for study in file.unbounded:
        raise StateConflict(f"no cap on this dataset can hold: study {study.id}: {study.unbounded}")


# --- charges of studies -------------------------------------------------------------------------------------


def check_release(
    db: Connection,
    context: ServiceContext,
    losses: DatasetLosses,
    identity: str,
    spec: wire.StudyCreate,
    ran: Concrete,
) -> None:
    """Check the release of a study against its dataset's account. Raises as ``allow_release``."""
    dataset = store.find(db, store.datasets, spec.dataset_id)
    name, account = _checked(db, context, dataset)
    if not (account.closed or account.is_capped):
        return
    _check_file(db, context, dataset)
    file = losses.read(db, dataset, without=identity)
    after = allow_release(file, spec, ran)
    notices.dataset_spent(db, context.outbox, name, account, *after)


def allow_release(file: FileLosses, spec: wire.StudyCreate, ran: Concrete) -> tuple[Decimal, Decimal]:
    """Epsilon and delta of a file after the release of a further study.

    Raises BudgetExhausted at a cap. Raises StateConflict if the account is closed, or if it has a cap and what the
    study would release has no finite bound.
    """
    account, price, delta = file.account, Prices.of(spec).release, dataset_account.release_delta(ran)
    epsilon_after = amounts.add(file.epsilon, amounts.decimal(price))
    delta_after = amounts.add(file.delta, delta)
    if file.public and price == 0:  # nobody in it needs protection
        return epsilon_after, delta_after
    if account.closed:
        raise StateConflict(CLOSED)
    why = dataset_account.release_is_unbounded(ran, public=file.public)
    why = why or dataset_account.answers_are_unbounded(spec, public=file.public)
    if why and account.is_capped:
        raise StateConflict(f"this dataset has a cap, which cannot hold with this study: {why}")
    if account.cap_epsilon is not None and epsilon_after > account.cap_epsilon:
        raise _refusal(EPSILON, text(price), file.epsilon, account.cap_epsilon)
    if account.cap_delta is not None and delta_after > account.cap_delta:
        raise _refusal(DELTA, exact(delta), file.delta, account.cap_delta)
    return epsilon_after, delta_after


def check_answers(
    db: Connection,
    context: ServiceContext,
    losses: DatasetLosses,
    study_id: str,
    spec: wire.StudyCreate,
    release_id: str,
    charges: list[Charge],
    again: int = 1,
) -> None:
    """Check charges for answers, before they are stored, against the account of the study's dataset.

    ``again``: how often the answer of these which was released most often will have been. Raises BudgetExhausted.
    """
    dataset = losses.dataset(db, spec.dataset_id)
    account = table.account_of(db, name := losses.account_name(db, dataset))
    context.audit_trail.check_unchanged(name, dataset.id)
    if not account.is_capped:
        return
    _check_file(db, context, dataset)
    public = all(row.public for row in store.registrations(db, dataset.sha256))
    if dataset_account.answers_are_unbounded(spec, public=public):
        cap, limit = (EPSILON, account.cap_epsilon) if account.cap_epsilon is not None else (DELTA, account.cap_delta)
        assert limit is not None
        raise _refusal(cap, text(sum(charge.cost for charge in charges)), Decimal(0), limit)
    if account.cap_epsilon is None:
        return
    if Prices.of(spec).by_record:
        most = _check_units(db, losses, dataset, account.cap_epsilon, release_id, charges)
    else:
        most = _check_everyone(db, losses, dataset, account.cap_epsilon, study_id, spec, charges, again)
    notices.dataset_spent(db, context.outbox, name, account, most)


def _check_units(
    db: Connection,
    losses: DatasetLosses,
    dataset: Any,
    cap: Decimal,
    release_id: str,
    charges: list[Charge],
) -> Decimal:
    """Check each record or person behind the charged rows; the largest amount that any of them will have lost."""
    cost_at: Counter[int] = Counter()
    for charge in charges:
        assert charge.row is not None
        cost_at[charge.row] += charge.cost
    rows_of: dict[int, list[int]] = {}
    for row, unit in losses.units_at(db, dataset, release_id, cost_at).items():
        rows_of.setdefault(unit, []).append(row)
    everyone = amounts.add(losses.everyone(db, dataset), losses.of_other_units(db, dataset))
    most = Decimal(0)
    for unit, rows in rows_of.items():
        spent = amounts.add(everyone, amounts.decimal(losses.answers_about(db, dataset, unit)))
        after = amounts.add(spent, amounts.decimal(sum(cost_at[row] for row in rows)))
        if after > cap:
            raise _refusal(EPSILON, text(cost_at[min(rows)]), spent, cap, min(rows))
        most = max(most, after)
    return most


def _check_everyone(
    db: Connection,
    losses: DatasetLosses,
    dataset: Any,
    cap: Decimal,
    study_id: str,
    spec: wire.StudyCreate,
    charges: list[Charge],
    again: int,
) -> Decimal:
    """Check answers that anybody may be behind: the one that was released most often counts, or two groups' answers."""
    before = lines.balance(db, study_id)
    now = cost_for_everyone(db, study_id, spec, before)
    then = cost_for_everyone(db, study_id, spec, before, charges, again)
    spent = losses.read(db, dataset).epsilon
    after = amounts.add(spent, amounts.decimal(then - now))
    if then > now and after > cap:
        raise _refusal(EPSILON, text(sum(charge.cost for charge in charges)), spent, cap)
    return after


def _refusal(cap: str, requested: str, spent: Decimal, limit: Decimal, row: int | None = None) -> BudgetExhausted:
    return BudgetExhausted(cap, requested=requested, spent=exact(spent), limit=exact(limit), row=row)


# --- changes of the caps --------------------------------------------------------------------------------------


def change_caps(
    db: Connection,
    context: ServiceContext,
    losses: DatasetLosses,
    dataset: Any,
    change: wire.DatasetCaps,
) -> dict[str, Any]:
    """Declare, lower or raise the caps of an account; the details for the log, of ``dataset.caps``.

    Raises Invalid for a raise without a reason; StateConflict for a raise that does not say so, for a cap below what is
    spent, where a cap cannot hold, and for a closed account.
    """
    name, before = _checked(db, context, dataset)
    if before.closed:
        raise StateConflict(CLOSED)
    epsilon = None if change.epsilon is None else Decimal(change.epsilon)
    delta = None if change.delta is None else Decimal(repr(change.delta))
    after = replace(before, cap_epsilon=epsilon, cap_delta=delta)
    pairs = {"epsilon": (before.cap_epsilon, epsilon), "delta": (before.cap_delta, delta)}
    raised = [cap for cap, (old, new) in pairs.items() if table.is_raised(old, new)]
    if raised and not change.raise_caps:
        caps = " and ".join(f"on {cap}" for cap in raised)
        raise StateConflict(f"this would raise the cap {caps}: say so with raise_caps and a reason, which others see")
    if raised and change.reason is None:
        raise Invalid("a raised cap needs a reason", [{"field": "reason", "message": "say why the cap is raised"}])
    if after.is_capped:
        _check_file(db, context, dataset)
        file = losses.read(db, dataset)
        check_bounded(file)
        for cap, spent in (("epsilon", file.epsilon), ("delta", file.delta)):
            new = pairs[cap][1]
            if new is not None and new < spent:
                raise StateConflict(f"{cap} {exact(spent)} is spent already: the cap cannot be {exact(new)}")
    act = "raised" if raised else "lowered" if before.is_capped else "declared"
    if before == after:
        act = "unchanged"
    else:
        reason = change.reason if raised else None
        table.add(db, name, "cap", after=after, at=stamp(context.clock()), subject=reason, cap=act)
        for cap in raised:
            notices.cap_raised(db, context.outbox, cap, dataset_id=name)
    return {
        "account": name,
        "dataset_id": dataset.id,
        "act": act,
        "cap_epsilon": None if epsilon is None else exact(epsilon),
        "cap_delta": None if delta is None else exact(delta),
        "reason_sha256": sha256(change.reason.encode()) if raised and change.reason is not None else None,
    }
