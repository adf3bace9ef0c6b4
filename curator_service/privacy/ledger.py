"""The arithmetic of the ledger: what a request costs, and whether a study's caps allow it.

Pure composition, in integer multiples of 1e-12, because with binary floats ten charges of 0.1 do not fit under 1.0.
A decision depends on the history of requests alone, never on the data.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache

from blindopt.errors import BudgetExhausted
from blindopt.values import value
from blindopt.wire import (
    ColumnMeasurement,
    GroupsRelease,
    NoAnswerNoise,
    PoGpUcbRelease,
    PrivateCells,
    SoundRelease,
    StudyCreate,
)

UNITS = 10**12
CEILING = "9000000"  # a total without a cap ends here, because larger ones do not fit the integers of the database


@lru_cache(maxsize=1024)
def units(epsilon: str) -> int:
    """The integer amount of a decimal string.

    >>> 10 * units("0.1") == units("1.0")
    True
    """
    exact = Decimal(epsilon) * UNITS
    if exact != int(exact):
        raise ValueError("an amount has at most twelve decimals")
    return int(exact)


def text(amount: int) -> str:
    """The decimal string of an amount, without an exponent.

    >>> text(units("0.30")), text(0)
    ('0.3', '0')
    """
    whole, part = divmod(amount, UNITS)
    return f"{whole}.{part:012d}".rstrip("0") if part else str(whole)


def exact(amount: Decimal) -> str:
    """The text of an amount: no exponent, no zeros at its end.

    >>> exact(Decimal("1e-6")), exact(Decimal("2.50")), exact(Decimal(0))
    ('0.000001', '2.5', '0')
    """
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def answers_add_up(spec: StudyCreate) -> bool:
    """Whether all answers about a record are about one person, so that what they cost adds up with the release.

    Where y is a column, one stored value is behind every answer about its record, whoever the study says they are
    about.
    """
    return spec.privacy_unit == "row" or isinstance(spec.measurement, ColumnMeasurement)


def is_groups(spec: StudyCreate) -> bool:
    """Whether candidates are groups, so that any record may be behind any of them."""
    return isinstance(spec.release, GroupsRelease)


def answers_by_record(spec: StudyCreate) -> bool:
    """Whether answers are charged to the record behind their candidate; those about groups are charged to everyone."""
    return answers_add_up(spec) and not is_groups(spec)


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


RowsOfPerson = Callable[[int], Sequence[int]]
"""The rows of the person behind a row, itself included. The cap on a person counts answers about all of them."""


def alone(row: int) -> Sequence[int]:
    """The rows of a person who has one."""
    return (row,)


@value
class Charge:
    """A line to add to the ledger: its cost and the balances after it. ``row`` is None for every row.

    ``person_total``: what answers about all rows of the person have spent, after it; of groups, what a record that lost
    most has spent beside the release.
    """

    row: int | None
    plays: int
    cost: int
    after: Balance
    row_after: RowBalance = RowBalance()
    person_total: int = 0


@value
class Prices:
    """The prices of a study, fixed by its draft before the first query."""

    release: int
    answer: int
    release_bounded: bool
    answers_bounded: bool
    of_means: bool = False
    """Whether the plays of a row in one query are released once, as their mean."""

    @classmethod
    def of(cls, spec: StudyCreate) -> "Prices":
        """The prices of a draft.

        A release of public records costs nothing, because it claims no privacy. A refuted release and an answer without
        noise have no finite price, and are counted at 0.
        """
        release = units(spec.release.epsilon) if isinstance(spec.release, SoundRelease) else 0
        answer = 0 if isinstance(spec.answers, NoAnswerNoise) else units(spec.answers.epsilon)
        return cls(
            release=release,
            answer=answer,
            release_bounded=not isinstance(spec.release, PoGpUcbRelease),
            answers_bounded=not isinstance(spec.answers, NoAnswerNoise),
            of_means=not isinstance(spec.answers, NoAnswerNoise) and spec.answers.plays == "mean",
        )

    def releases(self, plays: int) -> int:
        """How many numbers are released for a row with ``plays`` measurements in one query."""
        return 1 if self.of_means else plays

    def cost(self, plays: int) -> int:
        """The cost of a row with ``plays`` measurements in one query."""
        return self.releases(plays) * self.answer


def centres_cost(spec: StudyCreate) -> int:
    """What the private centres of groups cost, as a part of the release; 0 without them."""
    cells = spec.release.cells if isinstance(spec.release, GroupsRelease) else None
    return units(cells.epsilon) if isinstance(cells, PrivateCells) else 0


def group_cost(spec: StudyCreate, own: int, other: int) -> int:
    """What a record of a group may have lost, in the ledger's units, rounded up (docs/privacy.md, Theorem C).

    Answers about its group cost ``own`` in all, those about another one ``other``. A record that stays in its group
    loses the first; one that moves between the two loses the numbers of records, and half of both. Either loses the
    centres.
    """
    centres, release = centres_cost(spec), Prices.of(spec).release
    return max(centres + own, release + (own + other + 1) // 2)


def worst_pair(spec: StudyCreate, costs: Iterable[int]) -> int:
    """What the release and the answers about groups, which cost so much each, cost the record that loses most."""
    first, second, *_ = (*sorted(costs, reverse=True)[:2], 0, 0)
    return group_cost(spec, first, second)


def answers_about_one_group(spec: StudyCreate, cap: int) -> int:
    """How many answers about one group a cap on a record allows where no other is queried, after the release."""
    prices = Prices.of(spec)
    # (x + 1) // 2 <= y holds where x <= 2 y: half a unit is rounded up.
    return min((cap - centres_cost(spec)) // prices.answer, 2 * (cap - prices.release) // prices.answer)


def most_in_groups(spec: StudyCreate, cap: int, answers: int | None) -> int:
    """What the release and answers about groups cost at most the record that loses most, within a cap on a record.

    ``answers``: so many in all are allowed; None: without a limit. A record that stays loses most by answers about its
    group alone; one that moves by as many answers as there can be, which two groups share evenly (docs/privacy.md,
    Theorem C).
    """
    prices = Prices.of(spec)
    both = 2 * (cap - prices.release) // prices.answer
    both = both if answers is None else min(both, answers)
    single = min(both, answers_about_one_group(spec, cap))
    splits = [(single, 0), *((n - n // 2, n // 2) for n in (both, both - 1) if n > 0)]
    costs = [group_cost(spec, own * prices.answer, other * prices.answer) for own, other in splits]
    return max(cost for cost in costs if cost <= cap)


def charge_release(spec: StudyCreate, before: Balance) -> Charge:
    """The charge for the release, on every row. Raises BudgetExhausted."""
    cost = Prices.of(spec).release
    _check("epsilon_per_row", spec.budget.epsilon_per_row, cost, before.release)
    _check("epsilon_total", spec.budget.epsilon_total, cost, before.total)
    return Charge(None, 0, cost, Balance(before.release + cost, before.total + cost, before.plays))


class _Persons:
    """What answers about each person have spent: those before, and those that are charged now."""

    def __init__(self, balances: Mapping[int, RowBalance], rows_of_person: RowsOfPerson) -> None:
        self._balances = balances
        self._rows = rows_of_person
        self._added: defaultdict[int, int] = defaultdict(int)

    def total(self, row: int) -> int:
        """The amount of the person behind a row."""
        return self._total(row, self._rows(row))

    def _total(self, row: int, rows: Sequence[int]) -> int:
        if len(rows) == 1:
            before = self._balances.get(row)
            return (before.total if before is not None else 0) + self._added[row]
        return sum(self._balances[r].total for r in rows if r in self._balances) + self._added[rows[0]]

    def add(self, row: int, cost: int) -> int:
        """Add a cost to the person behind a row, and return the amount."""
        rows = self._rows(row)
        self._added[rows[0]] += cost
        return self._total(row, rows)


def charge_answers(
    spec: StudyCreate,
    before: Balance,
    rows: Sequence[tuple[int, int]],
    balances: Mapping[int, RowBalance],
    rows_of_person: RowsOfPerson = alone,
) -> list[Charge]:
    """The charges for measuring ``rows`` (row, plays), a line for each. Raises BudgetExhausted, without a charge.

    ``balances`` has every row with earlier answers that is a requested one or of the same person; of groups, every one.
    """
    budget, prices = spec.budget, Prices.of(spec)
    if budget.queries is not None and before.plays + (plays := sum(n for _, n in rows)) > budget.queries:
        spent = str(before.plays)
        raise BudgetExhausted("queries", requested=str(plays), spent=spent, limit=str(budget.queries))
    costs = [prices.cost(n) for _, n in rows]
    _check("epsilon_total", budget.epsilon_total or CEILING, sum(costs), before.total)
    row_balances = dict(balances)
    of_row: defaultdict[int, int] = defaultdict(int)
    for (row, _), cost in zip(rows, costs, strict=True):
        of_row[row] += cost
    if is_groups(spec):
        _check_groups(spec, of_row, balances)
    elif answers_add_up(spec):
        _check_persons(budget.epsilon_per_row, of_row, before, _Persons(balances, rows_of_person))
    else:  # each answer is about another person, who has no other cost
        for row in of_row:
            _check("epsilon_per_row", budget.epsilon_per_row, prices.answer, 0, row)
    charges: list[Charge] = []
    after, persons = before, _Persons(balances, rows_of_person)
    for (row, n), cost in zip(rows, costs, strict=True):
        old = row_balances.get(row, RowBalance())
        row_balances[row] = RowBalance(old.queries + 1, old.plays + n, old.total + cost)
        after = Balance(after.release, after.total + cost, after.plays + n)
        of_person = persons.add(row, cost)
        if is_groups(spec):
            of_person = worst_pair(spec, [balance.total for balance in row_balances.values()]) - before.release
        charges.append(Charge(row, n, cost, after, row_balances[row], of_person))
    return charges


def _check_groups(spec: StudyCreate, of_row: Mapping[int, int], balances: Mapping[int, RowBalance]) -> None:
    """Check what answers about each group cost the record that loses most; that may be one of another group."""
    costs = {row: balance.total for row, balance in balances.items()}
    for row, cost in of_row.items():
        before, cap = worst_pair(spec, costs.values()), spec.budget.epsilon_per_row
        costs[row] = costs.get(row, 0) + cost
        if cap is not None and worst_pair(spec, costs.values()) > units(cap):
            raise BudgetExhausted(
                "epsilon_per_row", requested=text(cost), spent=text(before), limit=text(units(cap)), row=row
            )


def _check_persons(cap: str | None, of_row: Mapping[int, int], before: Balance, persons: _Persons) -> None:
    """Check what each row costs its person, one row after the other, so that a refusal names a row and its cost."""
    for row, cost in of_row.items():
        _check("epsilon_per_row", cap, cost, before.release + persons.total(row), row)
        persons.add(row, cost)


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
    budget, price = spec.budget, Prices.of(spec).answer
    _check("epsilon_total", budget.epsilon_total or CEILING, sum(n for _, n in rows) * price, before.total)
    row_balances = dict(balances)
    of_row: defaultdict[int, int] = defaultdict(int)
    for row, n in rows:
        of_row[row] += n * price
    if answers_add_up(spec):
        _check_persons(budget.epsilon_per_row, of_row, before, _Persons(balances, rows_of_person))
    else:
        for row in of_row:
            _check("epsilon_per_row", budget.epsilon_per_row, price, again * price, row)
    charges: list[Charge] = []
    after, persons = before, _Persons(balances, rows_of_person)
    for row, n in rows:
        old, cost = row_balances.get(row, RowBalance()), n * price
        row_balances[row] = RowBalance(old.queries, old.plays, old.total + cost)
        after = Balance(after.release, after.total + cost, after.plays)
        charges.append(Charge(row, 0, cost, after, row_balances[row], persons.add(row, cost)))
    return charges


def _check(cap: str, limit: str | None, cost: int, spent: int, row: int | None = None) -> None:
    if limit is not None and spent + cost > units(limit):
        raise BudgetExhausted(cap, requested=text(cost), spent=text(spent), limit=text(units(limit)), row=row)


def _least(spec: StudyCreate, cap: str, prices: Prices) -> int:
    """What a study spends of a cap by its release and one answer."""
    if cap == "epsilon_per_row" and not answers_add_up(spec):
        return max(prices.release, prices.answer)
    return prices.release + prices.answer


def faults(spec: StudyCreate) -> list[dict[str, object]]:
    """Errors for caps of a draft that cannot hold, or that allow no answer."""
    budget, prices = spec.budget, Prices.of(spec)
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
        elif _least(spec, name, prices) > units(cap):
            problems.append({"field": field, "message": "the release and one answer cost more than this cap"})
    return problems
