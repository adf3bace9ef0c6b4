"""What a study's release and answers cost, and how that adds up for a record: one class for each way.

Answers about a record add up with its release, or a record may be behind any two groups, or each answer is another
person's. Amounts are integer multiples of 1e-12, because with binary floats ten charges of 0.1 do not fit under 1.0.
All depends on a study's settings and on the history of requests alone, never on the data.

The account of a file is basic composition for each record (or each person, where the dataset has a person column): its
studies, tunings and bounds are mechanisms on the same record, each chosen with what the earlier ones released. Sums of
pure epsilons, and of deltas, hold under such adaptive choices, and a cap on them is a privacy filter (Rogers et al.
2016). The secret row orders are not relied on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from blindopt import wire
from blindopt.values import value

if TYPE_CHECKING:
    from curator_service.privacy.calibration import Concrete

UNITS = 10**12
ONE_FEATURE = (
    "Epsilon is for a change of one feature. If m features change by their hidden changes at once, releases and second "
    "draws use m times as much."
)
"""Said with every epsilon of a release that hides one feature at a time."""
RowsOfPerson = Callable[[int], Sequence[int]]
"""The rows of the person behind a row, itself included. The cap on a person counts answers about all of them."""


def alone(row: int) -> Sequence[int]:
    """The rows of a person who has one."""
    return (row,)


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


@lru_cache(maxsize=1024)
def text(amount: int) -> str:
    """The decimal string of an amount, without an exponent.

    >>> text(units("0.30")), text(0)
    ('0.3', '0')
    """
    whole, fraction = divmod(amount, UNITS)
    return f"{whole}.{fraction:012d}".rstrip("0") if fraction else str(whole)


def exact(amount: Decimal) -> str:
    """The text of an amount: no exponent, no zeros at its end.

    >>> exact(Decimal("1e-6")), exact(Decimal("2.50")), exact(Decimal(0))
    ('0.000001', '2.5', '0')
    """
    digits = f"{amount:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


EXACT = Context(prec=400, rounding=ROUND_CEILING)
"""More digits than deltas and their sums have."""


def exact_sum(first: Decimal, second: Decimal) -> Decimal:
    """The sum of two deltas, without rounding."""
    return EXACT.add(first, second)


def answers_add_up(spec: wire.StudyCreate) -> bool:
    """Whether all answers about a record are about one person, so that what they cost adds up with the release.

    Where y is a column, one stored value is behind every answer about its record, whoever the study says they are
    about.
    """
    return spec.privacy_unit == "row" or isinstance(spec.measurement, wire.ColumnMeasurement)


def is_groups(spec: wire.StudyCreate) -> bool:
    """Whether candidates are groups, so that any record may be behind any of them."""
    return isinstance(spec.release, wire.GroupsRelease)


@value
class Prices(ABC):
    """The prices of a study, fixed by its draft before the first query."""

    release: int
    answer: int
    release_bounded: bool
    answers_bounded: bool
    of_means: bool = False
    """Whether the plays of a row in one query are released once, as their mean."""
    centres: int = 0
    """What the private centres of groups cost, as a part of the release."""
    refine: int = 0
    """What the second draw of a record costs, once, where measured records leave again."""
    refined_rows: int = 0
    """The most rows that may have a second draw: those of as many persons as the owner allows."""

    adds_up: ClassVar[bool] = True
    """Whether all answers about a record are about one person."""
    by_record: ClassVar[bool] = False
    """Whether answers are charged to the record behind their candidate; else to everyone."""
    of_pairs: ClassVar[bool] = False
    """Whether any two candidates may be those that cost most, so that a charge depends on all of them."""

    @staticmethod
    def of(spec: wire.StudyCreate) -> "Prices":
        """The prices of a draft.

        A release of public records costs nothing, because it claims no privacy. A refuted release and an answer without
        noise have no finite price, and are counted at 0.
        """
        kind: type[Prices] = RecordPrices if answers_add_up(spec) else AnswerPrices
        if is_groups(spec):
            kind = GroupPrices
        release, answers = spec.release, spec.answers
        cells = release.cells if isinstance(release, wire.GroupsRelease) else None
        return kind(
            release=units(release.epsilon) if isinstance(release, wire.SoundRelease) else 0,
            answer=0 if isinstance(answers, wire.NoAnswerNoise) else units(answers.epsilon),
            release_bounded=not isinstance(release, wire.PoGpUcbRelease),
            answers_bounded=not isinstance(answers, wire.NoAnswerNoise),
            of_means=not isinstance(answers, wire.NoAnswerNoise) and answers.plays == "mean",
            centres=units(cells.epsilon) if isinstance(cells, wire.PrivateCells) else 0,
            refine=0 if spec.refine is None else units(spec.refine.epsilon),
            refined_rows=0 if spec.refine is None else (spec.refine.persons or 0) * spec.protected_rows,
        )

    def releases(self, plays: int) -> int:
        """How many numbers are released for a row with ``plays`` measurements in one query."""
        return 1 if self.of_means else plays

    def cost(self, plays: int) -> int:
        """The cost of a row with ``plays`` measurements in one query."""
        return self.releases(plays) * self.answer

    def within(self, budget: wire.Budget) -> tuple[int | None, int | None]:
        """How many answers the caps allow about the study, and about one row, after the release; None without a cap."""

        def fit(cap: str | None) -> list[int]:
            used = self.release + self.refine
            return [max(0, units(cap) - used) // self.answer] if cap is not None and self.answer else []

        of_study = fit(budget.epsilon_total) + ([] if budget.queries is None else [budget.queries])
        of_row = fit(budget.epsilon_per_row) if self.adds_up else []
        return min(of_study, default=None), min(of_study + of_row, default=None)

    def about_one(self, budget: wire.Budget) -> int | None:
        """How many answers the caps allow about one row if no other is queried, after the release; None: any number."""
        return self.within(budget)[1]

    @abstractmethod
    def used(self, release: int, own: int, other: int = 0, again: int = 1) -> int:
        """What a record has used by a release that cost ``release``, and answers about it that cost ``own``.

        ``other``: what the answers about another group cost. ``again``: how often its most released answer was
        released.
        """

    @abstractmethod
    def used_at(self, release: int, totals: Mapping[int, int], person: Sequence[int], again: int) -> int:
        """What counts towards the cap on a record when a row of the ``person`` with these rows is queried.

        ``totals``: what the answers about each row cost. ``again``: how often the answer was released before.
        """


class RecordPrices(Prices):
    """Answers about a record, or about all rows of a person, add up with the release."""

    __slots__ = ()
    by_record = True

    def used(self, release: int, own: int, other: int = 0, again: int = 1) -> int:
        return release + own

    def used_at(self, release: int, totals: Mapping[int, int], person: Sequence[int], again: int) -> int:
        return release + sum(totals.get(row, 0) for row in person)


class GroupPrices(Prices):
    """A record stays in its group, or moves between two (docs/privacy.md, Theorem C).

    One that stays loses the private centres and the answers about its group. One that moves loses the release and half
    of the answers about both. Amounts are rounded up.
    """

    __slots__ = ()
    of_pairs = True

    def used(self, release: int, own: int, other: int = 0, again: int = 1) -> int:
        return max(self.centres + own, release + (own + other + 1) // 2)

    def worst(self, totals: Iterable[int]) -> int:
        """What the release and answers about groups, which cost so much each, cost the record that loses most."""
        first, second, *_ = (*sorted(totals, reverse=True)[:2], 0, 0)
        return self.used(self.release, first, second)

    def used_at(self, release: int, totals: Mapping[int, int], person: Sequence[int], again: int) -> int:
        """What the record that loses most has used; that may be one of another group."""
        return self.worst(totals.values())

    def about_one(self, budget: wire.Budget) -> int | None:
        of_study, of_row = self.within(budget)
        if budget.epsilon_per_row is None:
            return of_row
        of_group = max(0, self.allowed(units(budget.epsilon_per_row)))
        return of_group if of_study is None else min(of_study, of_group)

    def allowed(self, cap: int) -> int:
        """How many answers about one group a cap on a record allows if no other is queried, after the release.

        Each has Laplace noise, and so a price above 0.
        """
        # (x + 1) // 2 <= y holds where x <= 2 y: half a unit is rounded up.
        return min((cap - self.centres) // self.answer, 2 * (cap - self.release) // self.answer)

    def most(self, cap: int, answers: int | None) -> int:
        """What the release and answers cost at most the record that loses most, within a cap on a record.

        ``answers``: so many are allowed in total; None: without a limit. A record that stays loses most by answers
        about its group alone; one that moves by as many answers as there can be, which two groups share evenly.
        """
        both = 2 * (cap - self.release) // self.answer
        both = both if answers is None else min(both, answers)
        single = min(both, self.allowed(cap))
        splits = [(single, 0), *((n - n // 2, n // 2) for n in (both, both - 1) if n > 0)]
        costs = [self.used(self.release, own * self.answer, other * self.answer) for own, other in splits]
        return max(cost for cost in costs if cost <= cap)


class AnswerPrices(Prices):
    """Each answer is another person's, who has used the release or that answer, with its corrections."""

    __slots__ = ()
    adds_up = False

    def used(self, release: int, own: int, other: int = 0, again: int = 1) -> int:
        return max(release, again * self.answer) if own else release

    def used_at(self, release: int, totals: Mapping[int, int], person: Sequence[int], again: int) -> int:
        return again * self.answer


_EXP = Context(prec=30)
_DIGITS = Context(prec=6, rounding=ROUND_CEILING)
_EXPONENT_MAX = 10_000


def release_delta(release: "Concrete") -> Decimal:
    """The failure probability of a release, in every record's account; 0 where it promises nothing or pure epsilon."""
    from curator_service.privacy.calibration import failure  # late: it loads numpy, which no command of the shell needs

    delta = failure(release)
    return Decimal(repr(delta)) if delta else Decimal(0)


def group_delta(epsilon: Decimal, delta: Decimal, k: int) -> Decimal:
    """The delta of an (epsilon, delta) mechanism for ``k`` records that change together, rounded up; 1 at most.

    It is k e^((k - 1) epsilon) delta, with k epsilon (Dwork & Roth 2014, Theorem 2.2; Vadhan 2017, Lemma 2.2).

    >>> group_delta(Decimal("0.5"), Decimal("0.00001"), 3)
    Decimal('0.0000815485')
    """
    exponent = (k - 1) * epsilon
    if k == 1 or delta == 0:
        return delta
    if exponent > _EXPONENT_MAX:
        return Decimal(1)
    return min(Decimal(1), _DIGITS.multiply(EXACT.multiply(k, delta), exponent.exp(_EXP).next_plus(_EXP)))


def release_is_unbounded(release: "Concrete", *, public: bool) -> str | None:
    """Why no finite epsilon bounds what a release costs, or None. ``public``: every registration of the file is."""
    if isinstance(release, wire.PoGpUcbRelease):
        return "its release by po_gp_ucb is refuted and has no finite epsilon"
    if isinstance(release, wire.IdentityRelease) and not public:
        return "it released the records as they are, and the same file is registered as private too"
    return None


def answers_are_unbounded(spec: wire.StudyCreate, *, public: bool) -> str | None:
    """Why no finite epsilon bounds what the answers of a study cost, or None."""
    if isinstance(spec.answers, wire.NoAnswerNoise) and not public:
        features = ""
        if spec.refine is not None:
            most = text(Prices.of(spec).release + units(spec.refine.epsilon))
            features = (
                f"; its features use epsilon {most} of the {spec.refine.persons} persons at most who are measured"
            )
        return f"its answers have no noise and no finite epsilon{features}"
    return None
