"""The arithmetic of both ledgers: the lines that a request adds, and whether the caps of study and file allow them.

Pure composition. A decision depends on the history of requests alone, never on the data.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from blindopt.errors import BudgetExhausted, StateConflict
from blindopt.values import value
from blindopt.wire import Refine, StudyCreate, TuningCaps
from blindopt.wire.base import GuaranteeKind
from curator_service.privacy.prices import Prices, RowsOfPerson, alone, exact, exact_sum, text, units

CEILING = "9000000"  # a total without a cap ends here, because larger ones do not fit the integers of the database
A_FILE = "file"
"""What a finding is about after which it is not known which studies are on a file: no account with a cap is charged."""

CLOSED = (
    "a backup was restored, and the charges of this file after it are not known: the curator refuses further releases "
    "and tunings of it; new records, in a new file, have an account of their own"
)


@value
class Balance:
    """What a study has spent: by its release (on every row) and in all; and its number of measurements."""

    release: int = 0
    total: int = 0
    plays: int = 0


@value
class RowBalance:
    """What the answers about one row have spent, and how many there were."""

    queries: int = 0
    plays: int = 0
    total: int = 0


@value
class Charge:
    """A line to add to the ledger: its cost and the balances after it. ``row`` is None for every row.

    ``used``: what the record or person behind the row has used after it, with the release; of groups, the one that
    lost most.
    """

    row: int | None
    plays: int
    cost: int
    after: Balance
    row_after: RowBalance = RowBalance()
    used: int = 0


def amount_text(amount: int | Decimal) -> str:
    """An epsilon, in the ledger's units, or a delta as it is stored and shown."""
    return text(amount) if isinstance(amount, int) else exact(amount)


def check(
    cap: str,
    limit: int | Decimal | None,
    used: int | Decimal,
    after: int | Decimal,
    requested: int | Decimal,
    row: int | None = None,
) -> None:
    """Raise BudgetExhausted if what is used ``after`` a charge passes a cap; None: no cap."""
    if limit is not None and after > limit:
        requested_text, spent, limit_text = map(amount_text, (requested, used, limit))
        raise BudgetExhausted(cap, requested=requested_text, spent=spent, limit=limit_text, row=row)


def _limit(cap: str | None) -> int | None:
    return None if cap is None else units(cap)


def charge_release(spec: StudyCreate, before: Balance) -> Charge:
    """The charge for the release, on every row. Raises BudgetExhausted."""
    cost = Prices.of(spec).release
    after = Balance(before.release + cost, before.total + cost, before.plays)
    check("epsilon_per_row", _limit(spec.budget.epsilon_per_row), before.release, after.release, cost)
    check("epsilon_total", _limit(spec.budget.epsilon_total), before.total, after.total, cost)
    return Charge(None, 0, cost, after, used=after.release)


def charge_answers(
    spec: StudyCreate,
    before: Balance,
    rows: Sequence[tuple[int, int]],
    balances: Mapping[int, RowBalance],
    rows_of_person: RowsOfPerson = alone,
    refined: Collection[int] = (),
) -> list[Charge]:
    """The charges for measuring ``rows`` (row, plays), a line for each. Raises BudgetExhausted, without a charge.

    ``balances`` has every row with earlier answers that is a requested one or of the same person; of groups, every one.
    Where measured records leave again, a line of each that is not among those ``refined`` before comes last.
    """
    budget, prices = spec.budget, Prices.of(spec)
    if budget.queries is not None and before.plays + (plays := sum(n for _, n in rows)) > budget.queries:
        used_text = str(before.plays)
        raise BudgetExhausted("queries", requested=str(plays), spent=used_text, limit=str(budget.queries))
    ordered = [(row, n, 1, prices.cost(n)) for row, n in rows]
    if spec.refine is not None:
        fresh = unrefined(rows, refined)
        _check_persons(spec.refine, fresh, refined, rows_of_person)
        ordered += [(row, 0, 0, prices.refine) for row in fresh]
    return _charge(spec, prices, before, ordered, balances, rows_of_person, again=0)


def unrefined(rows: Iterable[tuple[int, int]], refined: Collection[int]) -> list[int]:
    """The rows among ``rows`` (row, plays) that were not refined before, each once."""
    return [row for row in dict.fromkeys(row for row, _ in rows) if row not in refined]


def _check_persons(refine: Refine, fresh: list[int], refined: Collection[int], rows_of_person: RowsOfPerson) -> None:
    """Raise BudgetExhausted if more persons would be refined than the owner's cap allows."""
    persons = {rows_of_person(row)[0] for row in refined}
    more = {rows_of_person(row)[0] for row in fresh} - persons
    if refine.persons is not None and len(persons) + len(more) > refine.persons:
        requested, used_text, limit_text = map(str, (len(more), len(persons), refine.persons))
        raise BudgetExhausted("refine.persons", requested=requested, spent=used_text, limit=limit_text)


def charge_corrections(
    spec: StudyCreate,
    before: Balance,
    rows: Sequence[tuple[int, int]],
    balances: Mapping[int, RowBalance],
    again: int,
    rows_of_person: RowsOfPerson = alone,
) -> list[Charge]:
    """The charges for releasing answers again, a line for each of ``rows`` (row, releases). Raises BudgetExhausted.

    The cap on queries does not count them, because they are no new measurements. ``again``: the largest number of times
    that any of these answers was released. Where each answer is another person's, an answer adds up with those that it
    replaces.
    """
    prices = Prices.of(spec)
    ordered = [(row, 0, 0, n * prices.answer) for row, n in rows]
    return _charge(spec, prices, before, ordered, balances, rows_of_person, again)


def _charge(
    spec: StudyCreate,
    prices: Prices,
    before: Balance,
    rows: Sequence[tuple[int, int, int, int]],
    balances: Mapping[int, RowBalance],
    rows_of_person: RowsOfPerson,
    again: int,
) -> list[Charge]:
    """The charges for ``rows`` (row, plays, queries, cost); what each row costs is checked at once, and names it."""
    cost_of_all = sum(cost for *_, cost in rows)
    limit = units(spec.budget.epsilon_total or CEILING)
    check("epsilon_total", limit, before.total, before.total + cost_of_all, cost_of_all)
    if (cap := _limit(spec.budget.epsilon_per_row)) is not None:
        totals = {row: old.total for row, old in balances.items()}
        of_row: defaultdict[int, int] = defaultdict(int)
        for row, _, _, cost in rows:
            of_row[row] += cost
        for row, cost in of_row.items():
            used = prices.used_at(before.release, totals, rows_of_person(row), again)
            totals[row] = totals.get(row, 0) + cost
            after_row = prices.used_at(before.release, totals, rows_of_person(row), again + 1)
            check("epsilon_per_row", cap, used, after_row, cost if prices.adds_up else prices.answer, row)
    row_balances, totals = dict(balances), {row: old.total for row, old in balances.items()}
    charges: list[Charge] = []
    after = before
    for row, plays, queries, cost in rows:
        old = row_balances.get(row, RowBalance())
        row_balances[row] = RowBalance(old.queries + queries, old.plays + plays, old.total + cost)
        totals[row] = old.total + cost
        after = Balance(after.release, after.total + cost, after.plays + plays)
        used = max(before.release, prices.used_at(before.release, totals, rows_of_person(row), again + 1))
        charges.append(Charge(row, plays, cost, after, row_balances[row], used))
    return charges


def faults(spec: StudyCreate) -> list[dict[str, object]]:
    """Errors for caps of a draft that cannot hold, or that allow no answer."""
    budget, prices = spec.budget, Prices.of(spec)
    least = prices.release + prices.answer + prices.refine
    problems: list[dict[str, object]] = []
    for name in ("epsilon_per_row", "epsilon_total"):
        cap, field = getattr(budget, name), f"budget.{name}"
        if cap is None:
            continue
        if not prices.release_bounded:
            problems.append(
                {"field": field, "message": "a refuted release has no finite epsilon: no cap on it can hold"}
            )
        elif not prices.answers_bounded:
            message = "answers without noise have no finite epsilon: no cap on it can hold; cap queries instead"
            problems.append({"field": field, "message": message})
        elif (least if name == "epsilon_total" or prices.adds_up else max(prices.release, prices.answer)) > units(cap):
            more = ", a second draw" if prices.refine else ""
            problems.append({"field": field, "message": f"the release{more} and one answer use more than this cap"})
    return problems


# --- accounts of files ----------------------------------------------------------------------------------------


@value
class Cost:
    """Epsilon in the ledger's units, and delta; both add up exactly."""

    epsilon: int = 0
    delta: Decimal = Decimal(0)

    @staticmethod
    def of(epsilon: str, delta: str) -> "Cost":
        return Cost(units(epsilon), Decimal(delta))

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.epsilon + other.epsilon, exact_sum(self.delta, other.delta))

    @property
    def texts(self) -> tuple[str, str]:
        return amount_text(self.epsilon), amount_text(self.delta)


@value
class Account:
    """What tunings and bounds were charged to every record of a file, and the caps on the whole account.

    ``used`` has a bound for each pair of neighbours, and caps count it alone. ``on_average`` holds on average over
    priors, and ``unproved`` holds for nothing: a sum with either bounds nothing. Studies have ledgers of their own. A
    cap of None is no cap.
    """

    used: Cost = Cost()
    on_average: Cost = Cost()
    unproved: Cost = Cost()
    averages: int = 0
    """The number of charges ``on_average``."""
    unproved_charges: int = 0
    cap_epsilon: int | None = None
    cap_delta: Decimal | None = None
    closed: bool = False

    @property
    def total(self) -> Cost:
        """The sum of all charges, as lines have it."""
        return self.used + self.on_average + self.unproved

    @property
    def is_capped(self) -> bool:
        return self.cap_epsilon is not None or self.cap_delta is not None

    @property
    def cap_texts(self) -> tuple[str | None, str | None]:
        epsilon, delta = (None if cap is None else amount_text(cap) for cap in (self.cap_epsilon, self.cap_delta))
        return epsilon, delta

    def check_open(self) -> None:
        if self.closed:
            raise StateConflict(CLOSED)

    def check_worst_case(self) -> None:
        """Raise StateConflict if any charge has no bound in the worst case: no cap can hold."""
        for count, promise in (
            (self.unproved_charges, "without any guarantee"),
            (self.averages, "private on average over its prior, and not in the worst case"),
        ):
            if count:
                noun = "1 tuning is" if count == 1 else f"{count} tunings are"
                raise StateConflict(f"no cap on this dataset can hold: {noun} {promise}")

    def with_caps(self, epsilon: str | None, delta: str | None) -> "Account":
        cap_epsilon = None if epsilon is None else units(epsilon)
        return replace(self, cap_epsilon=cap_epsilon, cap_delta=None if delta is None else Decimal(delta))

    def before(self, caps: TuningCaps | None, kind: GuaranteeKind) -> "Account":
        """The account whose caps a charge is checked against. Raises StateConflict if these cannot hold with it."""
        if kind == "worst_case":
            return self if caps is None else self.lowered(caps)
        if self.is_capped:
            self.added(Cost(), kind).check_worst_case()
        return self

    def lowered(self, caps: TuningCaps) -> "Account":
        """The account with the caps of a tuning: the lowest counts, until the owner raises it."""
        tuning = self.with_caps(caps.epsilon, None if caps.delta is None else repr(caps.delta))
        return self.with_lowest([tuning, self])

    def with_lowest(self, accounts: "Iterable[Account]") -> "Account":
        every = list(accounts)
        epsilons = [account.cap_epsilon for account in every if account.cap_epsilon is not None]
        deltas = [account.cap_delta for account in every if account.cap_delta is not None]
        return replace(self, cap_epsilon=min(epsilons, default=None), cap_delta=min(deltas, default=None))

    def check(
        self, used: Cost, cost: Cost, *, caps: str = "dataset", requested: int | None = None, row: int | None = None
    ) -> Cost:
        """What a record has used after a cost on top of what it has ``used``. Raises BudgetExhausted at a cap.

        ``caps``: what the refusal calls the caps. ``requested``: the epsilon that it says was requested, if other than
        the cost. ``row``: which it names.
        """
        after, epsilon = used + cost, cost.epsilon if requested is None else requested
        check(f"{caps}.epsilon", self.cap_epsilon, used.epsilon, after.epsilon, epsilon, row)
        check(f"{caps}.delta", self.cap_delta, used.delta, after.delta, cost.delta, row)
        return after

    def charge(
        self, cost: Cost, kind: GuaranteeKind = "worst_case", *, of_studies: Cost = Cost(), caps: str = "dataset"
    ) -> "Account":
        """The account after a charge to every record. Raises BudgetExhausted at a cap.

        ``of_studies``: what the record which lost most has lost by studies.
        """
        if kind == "worst_case":
            self.check(self.used + of_studies, cost, caps=caps)
        return self.added(cost, kind)

    def added(self, cost: Cost, kind: GuaranteeKind) -> "Account":
        """The account after a charge that was checked."""
        if kind == "worst_case":
            return replace(self, used=self.used + cost)
        if kind == "prior_average":
            return replace(self, on_average=self.on_average + cost, averages=self.averages + 1)
        return replace(self, unproved=self.unproved + cost, unproved_charges=self.unproved_charges + 1)


NO_CHARGES = Account()
"""The account of a file to whose every record nothing was charged."""


def is_raised(old: int | Decimal | None, new: int | Decimal | None) -> bool:
    """Whether a cap allows more than before; None: no cap."""
    return old is not None and (new is None or new > old)
