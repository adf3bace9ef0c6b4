"""Charges: each checked against every cap, then written to the log, the ledger and the notices, in one transaction."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, Protocol

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import BudgetExhausted, Invalid, StateConflict
from blindopt.wire.base import GuaranteeKind
from curator_service import notices, store
from curator_service.budget import ledger, ledger_lines, overlaps, table
from curator_service.budget.file_use import FileUse, FileUses, cost_of_sharing, release_read_by, sharing
from curator_service.budget.ledger import A_FILE, NO_CHARGES, Account, Balance, Charge, Cost, RowBalance, is_raised
from curator_service.budget.people import People
from curator_service.privacy import prices
from curator_service.privacy.calibration import Concrete
from curator_service.privacy.prices import Prices, text, units
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.outbox import Outbox
from service_kit.identity.tokens import Principal
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection, noticed


class ReleasedStudy(Protocol):
    """What a charge for answers depends on."""

    @property
    def study_id(self) -> str: ...

    @property
    def id(self) -> str:
        """That of the release."""

    @property
    def spec(self) -> wire.StudyCreate: ...

    def rows_of_person(self, row: int) -> Sequence[int]:
        """The rows of the person behind a row, itself included."""

    def rows_of_persons(self, rows: Iterable[int]) -> set[int]:
        """The rows of all persons behind ``rows``."""


class FileBudget:
    """Each check is in the transaction of its charge. Without a cap nothing is read but the account's last line.

    Raises RecordChanged if a verification found the account or the dataset changed; where there is a cap, also for any
    other record about a use of the file.
    """

    def __init__(self, db: Connection, context: ServiceContext, uses: FileUses, dataset: Any, name: str) -> None:
        self._db, self._context, self._uses = db, context, uses
        self._dataset, self.name = dataset, name
        self._files, self.account = ledger_lines.files_and_account(db, dataset.id, name)
        context.audit_trail.check_unchanged(*self._files.values(), dataset.id)

    def _check_file(self) -> None:
        """Raise RecordChanged if a verification found any record about a use of the account changed."""
        for digest in self._files:
            used_by = (*store.registrations(self._db, digest), *ledger_lines.studies_of(self._db, digest))
            self._context.audit_trail.check_unchanged(A_FILE, *(row.id for row in used_by))

    # --- charges ------------------------------------------------------------------------------------------------

    def charge(
        self, kind: str, subject: str, cost: Cost, guarantee_kind: GuaranteeKind, caps: wire.TuningCaps | None = None
    ) -> FileUse | BudgetExhausted:
        """Charge every record of the file; what was used before, or the refusal at a cap, which is recorded.

        ``kind``: of the line, "tuning" or "bounds"; ``subject``: the id of what is charged. ``caps``: lower the
        account's; what has no bound in the worst case has caps on its own sum, beside them. Raises StateConflict for a
        closed account, and where a cap cannot hold; OverlapUndecided.
        """
        overlaps.check_decided(self._db, self._dataset.id)
        self.account.check_open()
        use, at = self._uses.read(self._db, self._dataset), stamp(self._context.clock())
        before = self.account.before(caps, guarantee_kind)
        if before.is_capped:
            self._check_file()
            use.check_bounded()
        try:
            if caps is not None and guarantee_kind != "worst_case":
                sum_before = before.on_average if guarantee_kind == "prior_average" else before.unproved
                NO_CHARGES.lowered(caps).check(sum_before, cost, caps="caps")
            named = "dataset" if caps is None else "caps"
            after = before.charge(cost, guarantee_kind, of_studies=use.of_studies, caps=named)
        except BudgetExhausted as refusal:
            # The caps of a refused tuning do not bind later ones.
            cap = str(refusal.budget["cap"]).rpartition(".")[2]
            table.add_to_account(self._db, self.name, "refused", after=self.account, at=at, cost=cost, cap=cap)
            return refusal
        line = partial(table.add_to_account, self._db, self.name, kind, after=after, at=at)
        line(subject=subject, cost=cost, guarantee_kind=guarantee_kind)
        note_file_caps(self._db, self._context.outbox, self.name, after, after.used + use.of_studies)
        return use

    def check_release(self, study_id: str, spec: wire.StudyCreate, ran: Concrete) -> None:
        """Check the release of a study. Raises as ``allow_release``, and OverlapUndecided."""
        overlaps.check_decided(self._db, self._dataset.id)
        if self.account.closed or self.account.is_capped:
            self._check_file()
            after = allow_release(self._uses.read(self._db, self._dataset, without=study_id), spec, ran)
            note_file_caps(self._db, self._context.outbox, self.name, self.account, after)

    def check_answers(self, released: ReleasedStudy, charges: list[Charge], again: int) -> None:
        """Check charges for answers before they are stored. Raises BudgetExhausted, also where no cap can hold.

        ``again``: how often the answer of these which was released most often will have been.
        """
        if not self.account.is_capped:
            return
        self._check_file()
        public = all(row.public for row in store.registrations(self._db, self._dataset.sha256))
        # Files that were used without a bound may have joined an account with a cap.
        joined = self._uses.read(self._db, self._dataset) if len(self._files) > 1 else None
        if prices.answers_are_unbounded(released.spec, public=public) or (joined is not None and not joined.is_bounded):
            caps = dict(zip(("dataset.epsilon", "dataset.delta"), self.account.cap_texts, strict=True))
            cap, limit = next((cap, limit) for cap, limit in caps.items() if limit is not None)
            raise BudgetExhausted(cap, requested=text(sum(charge.cost for charge in charges)), spent="0", limit=limit)
        if self.account.cap_epsilon is None:
            return
        if Prices.of(released.spec).by_record:
            most = self._check_units(released, charges, joined)
        else:
            most = self._check_everyone(released, charges, again)
        note_file_caps(self._db, self._context.outbox, self.name, self.account, most)

    def _check_units(self, released: ReleasedStudy, charges: list[Charge], joined: FileUse | None) -> Cost:
        """Check each record or person behind the charged rows; the largest amount that any of them will have used.

        ``joined``: the use of an account of several files.
        """
        db, dataset, uses = self._db, self._dataset, self._uses
        cost_at: Counter[int] = Counter()
        for charge in charges:
            assert charge.row is not None
            cost_at[charge.row] += charge.cost
        rows_of: dict[int, list[int]] = {}
        for row, unit in uses.units_at(db, dataset, released.study_id, released.id, cost_at).items():
            rows_of.setdefault(unit, []).append(row)
        most, everyone, totals = Cost(), 0, None
        if joined is not None:
            everyone, totals = joined.everyone, joined.of_kind(dataset.person_column)
            everyone += joined.of_other_units(dataset.person_column)
        else:
            everyone = self.account.used.epsilon + uses.by_everyone(db, dataset) + uses.of_other_units(db, dataset)
        for unit, rows in rows_of.items():
            of_unit = uses.answers_about(db, dataset, unit) if totals is None else int(totals[unit])
            used, cost = everyone + of_unit, sum(cost_at[row] for row in rows)
            after = self.account.check(Cost(used), Cost(cost), requested=cost_at[min(rows)], row=min(rows))
            most = max(most, after, key=lambda amount: amount.epsilon)
        return most

    def _check_everyone(self, released: ReleasedStudy, charges: list[Charge], again: int) -> Cost:
        """Check answers that anybody may be behind: the most often released one counts, or two groups' answers."""
        study_id, by_release = released.study_id, sharing(self._db, self._dataset.sha256)
        studies = by_release[release_read_by(study_id, released.spec)]
        cost = cost_of_sharing(self._db, studies, study_id, charges, again) - cost_of_sharing(self._db, studies)
        used = Cost(self._uses.read(self._db, self._dataset).used.epsilon)
        if cost <= 0:
            return used
        return self.account.check(used, Cost(cost), requested=sum(charge.cost for charge in charges))

    # --- changes of the caps ------------------------------------------------------------------------------------

    def change_caps(self, change: wire.DatasetCaps) -> dict[str, Any]:
        """Declare, lower or raise the caps of an account; the details for the log, of ``dataset.caps``.

        Raises Invalid for a raise without a reason; StateConflict for a raise that does not say so, for a cap below
        what is used, where a cap cannot hold, and for a closed account.
        """
        (before := self.account).check_open()
        after = before.with_caps(change.epsilon, None if change.delta is None else repr(change.delta))
        pairs = {"epsilon": (before.cap_epsilon, after.cap_epsilon), "delta": (before.cap_delta, after.cap_delta)}
        raised = [cap for cap, (old, new) in pairs.items() if is_raised(old, new)]
        if raised and not change.raise_caps:
            caps = " and ".join(f"on {cap}" for cap in raised)
            raise StateConflict(
                f"this would raise the cap {caps}: say so with raise_caps and a reason, which others see"
            )
        if raised and change.reason is None:
            raise Invalid.at("reason", "is missing: say why the cap is raised")
        if after.is_capped:
            self._check_file()
            files = self._uses.read_all(self._db, self._dataset)
            files[0].check_bounded()
            try:
                for file in files:
                    after.check(file.used, Cost())
            except BudgetExhausted as refusal:
                cap, used, limit = (refusal.budget[name] for name in ("cap", "spent", "limit"))
                cap = str(cap).rpartition(".")[2]
                raise StateConflict(f"{cap} {used} is used already: the cap cannot be {limit}") from None
        act = "raised" if raised else "lowered" if before.is_capped else "declared"
        if before == after:
            act = "unchanged"
        else:
            reason, at = change.reason if raised else None, stamp(self._context.clock())
            table.add_to_account(self._db, self.name, "cap", after=after, at=at, subject=reason, cap=act)
            for cap in raised:
                notices.cap_raised(self._db, self._context.outbox, cap, dataset_id=self.name)
        return {
            "account": self.name,
            "dataset_id": self._dataset.id,
            "act": act,
            "cap_epsilon": after.cap_texts[0],
            "cap_delta": after.cap_texts[1],
            "reason_sha256": sha256(change.reason.encode()) if raised and change.reason is not None else None,
        }


def allow_release(use: FileUse, spec: wire.StudyCreate, ran: Concrete) -> Cost:
    """What a file has used after the release of a further study.

    Raises BudgetExhausted at a cap. Raises StateConflict if the account is closed, or if it has a cap and has no bound
    in the worst case, or would have none with what the study would release.
    """
    cost = release_cost(spec, ran)
    if use.public and cost.epsilon == 0:  # nobody in it needs protection
        return use.used + cost
    use.account.check_open()
    why = prices.release_is_unbounded(ran, public=use.public)
    why = why or prices.answers_are_unbounded(spec, public=use.public)
    if use.account.is_capped:
        if why:
            raise StateConflict(f"this dataset has a cap, which cannot hold with this study: {why}")
        use.check_bounded()
    # What costs nothing passes no cap, also if a record that may have been corrected counts as more than the cap.
    return use.account.check(use.used, cost) if cost != Cost() else use.used


def release_cost(spec: wire.StudyCreate, ran: Concrete) -> Cost:
    """What the release of a study adds to the account of its file: nothing if it reads one that is counted there."""
    return Cost() if spec.release_of is not None else Cost(Prices.of(spec).release, prices.release_delta(ran))


def note_file_caps(db: Connection, outbox: Outbox, account_name: str, account: Account, used: Cost) -> None:
    """A record of a file has used so much: write a notice for each cap of its account that is 80 % spent, once.

    A cap that was changed since has a notice of its own.
    """
    if "budget_80" not in outbox.events:
        return
    amounts, caps = (used.epsilon, used.delta), (account.cap_epsilon, account.cap_delta)
    for cap, amount, limit, limit_text in zip(("epsilon", "delta"), amounts, caps, account.cap_texts, strict=True):
        at = "" if limit_text is None else f" {Decimal(limit_text)}"
        notices.near_cap(db, outbox, cap, amount, limit, at, dataset_id=account_name)


class Budgets:
    """Charges studies and the accounts of files. ``uses``: what files have used, cached here alone."""

    def __init__(self, context: ServiceContext, vault: Vault, people: People) -> None:
        self._context = context
        self.uses = FileUses(vault, people)
        self._accounts: dict[tuple[int, str], tuple[Any, str]] = {}

    def account(self, db: Connection, dataset_id: str) -> tuple[Any, str]:
        """The id, digest and person column of a dataset, and the name of its account: they never change."""
        key = noticed(db), dataset_id
        if key not in self._accounts:
            dataset = store.find(db, store.datasets, dataset_id)
            self._accounts[key] = dataset, ledger_lines.account_name(db, dataset)
        return self._accounts[key]

    def of_file(self, db: Connection, dataset_id: str) -> FileBudget:
        """The account of a dataset's file. Raises RecordChanged."""
        return FileBudget(db, self._context, self.uses, *self.account(db, dataset_id))

    def charge_file(
        self,
        db: Connection,
        actor: str,
        dataset_id: str,
        kind: str,
        subject: str,
        cost: Cost,
        guarantee_kind: GuaranteeKind,
        caps: wire.TuningCaps | None = None,
    ) -> FileUse | BudgetExhausted:
        """Charge every record of a dataset's file, as ``FileBudget.charge``; a refusal is logged.

        The caller logs ``<kind>.started`` in the same transaction, with account, epsilon, delta and guarantee_kind
        (and the caps of a tuning).
        """
        file = self.of_file(db, dataset_id)
        charged = file.charge(kind, subject, cost, guarantee_kind, caps)
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
        released: ReleasedStudy,
        rows: Sequence[tuple[int, int]],
        query: Mapping[str, object],
        reserved: int,
    ) -> str | BudgetExhausted:
        """Charge a query of ``rows`` (row, plays); when it was, or the refusal for its grant, which is recorded.

        ``rows`` are those that may be measured. A query of none is charged nothing, and recorded. ``query``: its id
        as query_id, and what else the log says of it. ``reserved`` bytes of the grant's log quota are counted for the
        answer. An owner, who queries all groups, gets the refusal itself. Raises RecordChanged.
        """
        spec, file = released.spec, self.of_file(db, released.spec.dataset_id)
        refined = ledger_lines.refined_rows(db, released.study_id) if spec.refine is not None else ()
        try:
            before, balances = _before(db, released, rows)
            charges = ledger.charge_answers(spec, before, rows, balances, released.rows_of_person, refined)
            if charges:
                file.check_answers(released, charges, 1)
        except BudgetExhausted as refusal:
            refused = self.refuse(db, grant.actor, released.study_id, spec, refusal, rows, refined)
            self._context.audit_trail.quotas.add(db, grant.id, refused.size)
            return refusal if grant.role == "owner" else refusal_for_grant(db, released.study_id, grant.id, spec, rows)
        details: dict[str, Any] = {**query, "rows": [list(row) for row in rows]}
        if fresh := [charge.row for charge in charges[len(rows) :]]:
            details["refined"] = fresh
            persons = {released.rows_of_person(row)[0] for row in (*refined, *fresh)}
            cap = "refine.persons", len(persons), spec.refine and spec.refine.persons
            notices.near_cap(db, self._context.outbox, *cap, study_id=released.study_id)
        charged = self._add(db, grant.actor, released.study_id, spec, "answers", charges, details)
        self._context.audit_trail.quotas.add(db, grant.id, charged.size + reserved)
        return charged.at

    def charge_correction(
        self,
        db: Connection,
        actor: str,
        released: ReleasedStudy,
        rows: Sequence[tuple[int, int]],
        again: int,
        version: Mapping[str, object],
    ) -> str:
        """Charge answers that are released again, ``rows`` (row, releases); what that costs. Raises BudgetExhausted.

        ``again``: the largest number of times that any of them was released. ``version``: query_id and version.
        """
        self._context.audit_trail.check_unchanged(released.study_id)
        before, balances = _before(db, released, rows)
        charges = ledger.charge_corrections(released.spec, before, rows, balances, again, released.rows_of_person)
        self.of_file(db, released.spec.dataset_id).check_answers(released, charges, again + 1)
        details = {**version, "rows": [list(row) for row in rows]}
        self._add(db, actor, released.study_id, released.spec, "correction", charges, details)
        return text(sum(charge.cost for charge in charges))

    def refuse(
        self,
        db: Connection,
        actor: str,
        study_id: str,
        spec: wire.StudyCreate,
        refusal: BudgetExhausted,
        rows: Sequence[tuple[int, int]] | None = None,
        refined: Collection[int] = (),
    ) -> audit_log.Appended:
        """Record the refusal of a query of ``rows`` (row, plays), or of the release (None): it costs nothing.

        ``refined``: the rows that were refined before.
        """
        prices, row = Prices.of(spec), refusal.row
        of_cap = [item for item in rows or () if row in (None, item[0])]
        requested = [plays for _, plays in of_cap]
        cost = prices.release if rows is None else sum(map(prices.cost, requested))
        cost += prices.refine and prices.refine * len(ledger.unrefined(of_cap, refined))
        row_balance = (
            RowBalance() if row is None else ledger_lines.row_balances(db, study_id, [row]).get(row, RowBalance())
        )
        line = Charge(row, sum(requested), cost, ledger_lines.balance(db, study_id), row_balance)
        shown = "all" if rows is None else [list(row) for row in rows]
        details = {"study_id": study_id, **refusal.budget, "rows": shown}
        refused = audit_log.append(db, "charge.refused", actor=actor, now=self._context.clock(), details=details)
        table.add(db, study_id, "refused", [line], at=refused.at, cap=str(refusal.budget["cap"]))
        return refused

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
        query_id, of_kind = details.get("query_id"), len(charges) - len(details.get("refined", ()))
        table.add(db, study_id, kind, charges[:of_kind], query_id=query_id, at=appended.at)
        table.add(db, study_id, "refine", charges[of_kind:], query_id=query_id, at=appended.at)
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
    db: Connection, released: ReleasedStudy, rows: Sequence[tuple[int, int]]
) -> tuple[Balance, dict[int, RowBalance]]:
    """What a study has used, in all and by each row that a charge for ``rows`` depends on."""
    study_id, of_persons = released.study_id, released.rows_of_persons(row for row, _ in rows)
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
    of_cap = None if prices.of_pairs or prices.refine else [row for row, _ in rows]
    of_grant, of_rows = ledger_lines.of_grant(db, study_id, grant_id, of_cap)
    if prices.refine:  # as if it had paid the second draw of each record that it queried
        of_rows = {row: replace(old, total=old.total + prices.refine) for row, old in of_rows.items()}
        of_grant = replace(of_grant, total=of_grant.total + prices.refine * len(of_rows))
    try:
        ledger.charge_answers(spec, of_grant, rows, of_rows, refined=of_rows.keys())
    except BudgetExhausted as refusal:
        cap, grant_used, limit = (str(refusal.budget[name]) for name in ("cap", "spent", "limit"))
        after = units(grant_used) + (units("1") if cap in ("queries", "refine.persons") else prices.answer)
        return BudgetExhausted(
            cap,
            requested=str(refusal.budget["requested"]),
            spent=grant_used,
            limit=limit,
            row=refusal.row,
            remaining="some" if after <= units(limit) else "none",
        )
    requested, grant_used = str(plays), str(of_grant.plays)
    if prices.answers_bounded:
        requested, grant_used = text(sum(prices.cost(n) for _, n in rows)), text(of_grant.total)
    return BudgetExhausted(
        None, requested=requested, spent=grant_used, limit=None, row=None, remaining="some" if plays > 1 else "none"
    )
