"""Charges: each checked against every cap, then written to the log, the ledger and the notices, in one transaction."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service import notices
from curator_service.budget import ledger, ledger_lines, table
from curator_service.budget.file_budget import FileBudget
from curator_service.budget.file_use import FileUse, FileUses
from curator_service.budget.ledger import Balance, Charge, Cost, RowBalance
from curator_service.privacy.calibration import Concrete
from curator_service.privacy.prices import Prices, text, units
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.outbox import Outbox
from service_kit.identity.tokens import Principal
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection


class ReleasedStudy(Protocol):
    """What a charge for answers depends on."""

    @property
    def id(self) -> str:
        """That of the release."""

    @property
    def spec(self) -> wire.StudyCreate: ...

    def rows_of_person(self, row: int) -> Sequence[int]:
        """The rows of the person behind a row, itself included."""

    def rows_of_persons(self, rows: Iterable[int]) -> set[int]:
        """The rows of all persons behind ``rows``."""


class Budgets:
    """Charges studies and the accounts of files. ``uses``: what files have used, cached here alone."""

    def __init__(self, context: ServiceContext, vault: Vault) -> None:
        self._context = context
        self.uses = FileUses(vault)

    def of_file(self, db: Connection, dataset_id: str) -> FileBudget:
        """The account of a dataset's file. Raises RecordChanged."""
        return FileBudget(db, self._context, self.uses, dataset_id)

    def charge_file(
        self,
        db: Connection,
        actor: str,
        dataset_id: str,
        kind: str,
        subject: str,
        cost: Cost,
        caps: wire.TuningCaps | None = None,
    ) -> FileUse | BudgetExhausted:
        """Charge every record of a dataset's file, as ``FileBudget.charge``; a refusal is logged.

        The caller logs ``<kind>.started`` in the same transaction, with account, epsilon and delta (and the caps of a
        tuning).
        """
        file = self.of_file(db, dataset_id)
        charged = file.charge(kind, subject, cost, caps)
        if isinstance(charged, BudgetExhausted):
            cap, (epsilon, delta) = str(charged.budget["cap"]).rpartition(".")[2], cost.texts
            details = {"account": file.name, "dataset_id": dataset_id, "epsilon": epsilon, "delta": delta, "cap": cap}
            audit_log.append(db, f"{kind}.refused", actor=actor, now=self._context.clock(), details=details)
        return charged

    def charge_release(self, db: Connection, actor: str, study_id: str, spec: wire.StudyCreate, ran: Concrete) -> None:
        """Charge a release to every row, once: one that a crash left half drawn was never published.

        Raises BudgetExhausted and StateConflict, and then the caller records the refusal.
        """
        self.of_file(db, spec.dataset_id).check_release(study_id, spec, ran)
        if ledger_lines.charged_at(db, study_id) is None:
            charge = ledger.charge_release(spec, ledger_lines.balance(db, study_id))
            self._add(db, actor, study_id, spec, "release", [charge], {"rows": "all"})

    def charge_answers(
        self,
        db: Connection,
        grant: Principal,
        study_id: str,
        released: ReleasedStudy,
        rows: Sequence[tuple[int, int]],
        query_id: str,
    ) -> str | BudgetExhausted:
        """Charge a query of ``rows`` (row, plays); when it was, or the refusal for its grant, which is recorded."""
        spec = released.spec
        try:
            before, balances = _before(db, study_id, released, rows)
            charges = ledger.charge_answers(spec, before, rows, balances, released.rows_of_person)
            self._check_answers(db, study_id, released, charges, 1)
        except BudgetExhausted as refusal:
            self.refuse(db, grant.actor, study_id, spec, refusal, rows)
            return refusal_for_grant(db, study_id, grant.id, spec, rows)
        details = {"query_id": query_id, "rows": [list(row) for row in rows]}
        return self._add(db, grant.actor, study_id, spec, "answers", charges, details).at

    def charge_correction(
        self,
        db: Connection,
        actor: str,
        study_id: str,
        released: ReleasedStudy,
        rows: Sequence[tuple[int, int]],
        again: int,
        version: Mapping[str, object],
    ) -> str:
        """Charge answers that are released again, ``rows`` (row, releases); what that costs. Raises BudgetExhausted.

        ``again``: the largest number of times that any of them was released. ``version``: query_id and version.
        """
        self._context.audit_trail.check_unchanged(study_id)
        before, balances = _before(db, study_id, released, rows)
        charges = ledger.charge_corrections(released.spec, before, rows, balances, again, released.rows_of_person)
        self._check_answers(db, study_id, released, charges, again + 1)
        details = {**version, "rows": [list(row) for row in rows]}
        self._add(db, actor, study_id, released.spec, "correction", charges, details)
        return text(sum(charge.cost for charge in charges))

    def refuse(
        self,
        db: Connection,
        actor: str,
        study_id: str,
        spec: wire.StudyCreate,
        refusal: BudgetExhausted,
        rows: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Record the refusal of a query of ``rows`` (row, plays), or of the release (None): it costs nothing."""
        prices, row = Prices.of(spec), refusal.row
        requested = [] if rows is None else [plays for other, plays in rows if row in (None, other)]
        cost = prices.release if rows is None else sum(map(prices.cost, requested))
        row_balance = (
            RowBalance() if row is None else ledger_lines.row_balances(db, study_id, [row]).get(row, RowBalance())
        )
        line = Charge(row, sum(requested), cost, ledger_lines.balance(db, study_id), row_balance)
        shown = "all" if rows is None else [list(row) for row in rows]
        details = {"study_id": study_id, **refusal.budget, "rows": shown}
        at = audit_log.append(db, "charge.refused", actor=actor, now=self._context.clock(), details=details).at
        table.add(db, study_id, "refused", [line], at=at, cap=str(refusal.budget["cap"]))

    def _check_answers(
        self, db: Connection, study_id: str, released: ReleasedStudy, charges: list[Charge], again: int
    ) -> None:
        file = self.of_file(db, released.spec.dataset_id)
        file.check_answers(study_id, released.spec, released.id, charges, again)

    def _add(
        self,
        db: Connection,
        actor: str,
        study_id: str,
        spec: wire.StudyCreate,
        kind: str,
        charges: list[Charge],
        details: Mapping[str, Any],
    ) -> audit_log.Appended:
        """Write charges that passed every cap to the log, the ledger and the notices."""
        logged = {"study_id": study_id, "epsilon": text(sum(charge.cost for charge in charges)), **details}
        appended = audit_log.append(db, "charge", actor=actor, now=self._context.clock(), details=logged)
        table.add(db, study_id, kind, charges, query_id=details.get("query_id"), at=appended.at)
        note_caps(db, self._context.outbox, study_id, spec, charges)
        return appended


def close_all(db: Connection, context: ServiceContext) -> list[str]:
    """Close every account of a file, after a restore; the names of those that were open."""
    closed = ledger_lines.open_accounts(db)
    for account in closed:
        after = ledger_lines.account_of(db, account)
        table.add_to_account(db, account, "closed", after=after, at=stamp(context.clock()))
    return closed


def note_caps(db: Connection, outbox: Outbox, study_id: str, spec: wire.StudyCreate, charges: Sequence[Charge]) -> None:
    """Charges were added: write a notice for each cap of the study that is 80 % spent, once, and again once it rose.

    If answers compose by person, the notice of epsilon_per_row is for the first person who spends so much; it names
    nobody.
    """
    if "budget_80" not in outbox.events or not charges:
        return
    budget, after = spec.budget, charges[-1].after
    epsilon_caps = [None if cap is None else units(cap) for cap in (budget.epsilon_per_row, budget.epsilon_total)]
    for cap, amount, limit in (
        ("epsilon_per_row", max(charge.used for charge in charges), epsilon_caps[0]),
        ("epsilon_total", after.total, epsilon_caps[1]),
        ("queries", after.plays, budget.queries),
    ):
        notices.near_cap(db, outbox, cap, amount, limit, f" {limit}", study_id=study_id)


def _before(
    db: Connection, study_id: str, released: ReleasedStudy, rows: Sequence[tuple[int, int]]
) -> tuple[Balance, dict[int, RowBalance]]:
    """What a study has used, in all and by each row that a charge for ``rows`` depends on."""
    of_persons = released.rows_of_persons(row for row, _ in rows)
    if Prices.of(released.spec).of_pairs:  # any two of its groups may be the ones that cost most
        of_persons |= ledger_lines.row_totals(db, study_id).keys()
    return ledger_lines.balance(db, study_id), ledger_lines.row_balances(db, study_id, of_persons)


def refusal_for_grant(
    db: Connection, study_id: str, grant_id: str, spec: wire.StudyCreate, rows: Sequence[tuple[int, int]]
) -> BudgetExhausted:
    """The refusal of a query of ``rows`` (row, plays), from the release and this grant's own spending alone.

    A refusal costs nothing, so it must not say what other grants queried: it is the same whatever that was. Where the
    grant's own spending leaves room for the query, it names no cap. Rows are counted one by one, so that it does not
    show either which rows have the same person.
    """
    prices, plays = Prices.of(spec), sum(n for _, n in rows)
    of_cap = None if prices.of_pairs else [row for row, _ in rows]
    of_grant, of_rows = ledger_lines.of_grant(db, study_id, grant_id, of_cap)
    try:
        ledger.charge_answers(spec, of_grant, rows, of_rows)
    except BudgetExhausted as refusal:
        cap, spent, limit = (str(refusal.budget[name]) for name in ("cap", "spent", "limit"))
        after = units(spent) + (units("1") if cap == "queries" else prices.answer)
        return BudgetExhausted(
            cap,
            requested=str(refusal.budget["requested"]),
            spent=spent,
            limit=limit,
            row=refusal.row,
            remaining="some" if after <= units(limit) else "none",
        )
    requested, spent = str(plays), str(of_grant.plays)
    if prices.answers_bounded:
        requested, spent = text(sum(prices.cost(n) for _, n in rows)), text(of_grant.total)
    return BudgetExhausted(
        None, requested=requested, spent=spent, limit=None, row=None, remaining="some" if plays > 1 else "none"
    )
