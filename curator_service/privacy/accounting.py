"""The privacy cost of a study: its price before anything is spent, and a report of what it has spent.

Both give two figures: the sum of pure composition, which the ledger enforces, and the tight figure at a delta. Both
depend on public values and on the history of requests alone. The sum holds however queries are chosen (a
privacy filter, Rogers et al. 2016). The tight figure is proved for a number of answers fixed in advance: that of
a price, at the cap, holds for every way to stay below it; that of a report is for the number of answers so far.

The tight figure is an upper bound on epsilon: the smaller of two counts. The privacy loss distribution (Koskela et al.
2020; Doroshenko et al. 2022, "connect the dots") is the tighter one, but is convolved by Fourier transforms in doubles,
which err by about 1e-15 of probability: it is used only where that is small against delta. Renyi divergences (Mironov
2017) are closed forms, good at any delta and for any number of pairs, and a few per cent looser.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from blindopt import wire
from curator_service.privacy.calibration import Concrete, concrete, failure, gaussian_sd, slope_of_row
from curator_service.privacy.loading import load
from curator_service.privacy.noise import LATTICE_BITS
from curator_service.privacy.prices import (
    ONE_FEATURE,
    GroupPrices,
    Prices,
    answers_add_up,
    exact,
    group_delta,
    is_groups,
    text,
    units,
)

FOURIER_ERROR = 1e-11
"""Error of a distribution convolved 10,000 times, in probability: more than ten times what tests measure."""
SINGLE_ERROR = 1e-15
"""Error of a distribution that is not convolved, in probability: differences of doubles near 1/2."""
_TRUNCATED = 1e-13  # tails cut off in a long composition, which count as an infinite loss
_WHOLE = 1 << 13  # compositions of fewer cells keep their tails, which is faster than to find where to cut
_CELLS = 200_000  # of a discretised distribution: about a second's work
_SIZE_MAX = 300.0  # e^size must be a double, with room to spare
_ORDERS = 1 + np.geomspace(1e-3, 1e7, 1_000)


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of laws that dominates the privacy loss of one release, and how often there was such a release.

    gaussian: N(0, 1) against N(size, 1), so ``size`` is sensitivity / sd. laplace: Laplace(0, 1) against
    Laplace(size, 1), so ``size`` is sensitivity / scale, and epsilon. pure: randomized response with
    epsilon ``size``, which dominates every epsilon-DP mechanism (Kairouz et al. 2015, Theorem 3.1).
    """

    kind: Literal["gaussian", "laplace", "pure"]
    size: float
    times: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.size < math.inf and self.times >= 1):
            raise ValueError("a pair needs a positive, finite size, and is released at least once")


def tight_epsilon(pairs: Iterable[Pair], delta: float) -> float:
    """An epsilon such that all ``pairs`` together are (epsilon, delta)-DP; 0 for no pairs."""
    if not 0 < delta < 1:
        raise ValueError("delta must lie between 0 and 1")
    counted: dict[tuple[str, float], int] = {}
    for pair in pairs:
        counted[pair.kind, pair.size] = counted.get((pair.kind, pair.size), 0) + pair.times
    return _tight(tuple(sorted(counted.items())), delta)


@lru_cache(maxsize=4096)
def _tight(counted: tuple[tuple[tuple[Any, float], int], ...], delta: float) -> float:
    pairs = [Pair(kind, size, times) for (kind, size), times in counted]
    if not pairs:
        return 0.0
    pure = math.inf if any(pair.kind == "gaussian" for pair in pairs) else sum(p.size * p.times for p in pairs)
    return max(0.0, min(pure, renyi_epsilon(pairs, delta), distribution_epsilon(pairs, delta)))


# --- Renyi divergences ----------------------------------------------------------------------------


def renyi_epsilon(pairs: Iterable[Pair], delta: float) -> float:
    """Epsilon at ``delta`` from the sum of Renyi divergences, at the best of many orders.

    Conversion: Canonne, Kamath & Steinke (2020), Proposition 12:
    epsilon = D_alpha + ln(1 - 1/alpha) - ln(alpha delta) / (alpha - 1).
    """
    total = sum((pair.times * _renyi(pair) for pair in pairs), np.zeros_like(_ORDERS))
    epsilon = total + np.log1p(-1 / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
    return max(0.0, float(np.nanmin(epsilon)))


def _renyi(pair: Pair) -> Any:
    """The Renyi divergence of one release at each order (Mironov 2017, Table II), rounding errors added."""
    alpha, size = _ORDERS, pair.size
    if pair.kind == "gaussian":
        return alpha * size**2 / 2 * (1 + 1e-12)
    if pair.kind == "laplace":
        likely, unlikely = np.log(alpha / (2 * alpha - 1)), np.log((alpha - 1) / (2 * alpha - 1))
        log_moment, largest = np.logaddexp(likely + (alpha - 1) * size, unlikely - alpha * size), size
    else:
        largest = 1 + size  # alpha times the rounding error of a logarithm of a half, too
        true, false = -np.logaddexp(0.0, -size), -np.logaddexp(0.0, size)
        log_moment = np.logaddexp(alpha * true + (1 - alpha) * false, alpha * false + (1 - alpha) * true)
    rounding = 1e-15 * (10 + alpha * largest)
    return np.minimum((log_moment + rounding) / (alpha - 1), size)


# --- privacy loss distributions -------------------------------------------------------------------


def distribution_epsilon(pairs: Iterable[Pair], delta: float) -> float:
    """Epsilon at ``delta`` from the composed privacy loss distribution; infinity where that would not be sound."""
    pairs = list(pairs)
    composed = len(pairs) > 1 or pairs[0].times > 1
    error = FOURIER_ERROR * max(1.0, sum(pair.times for pair in pairs) / 10_000)
    if not composed:  # the masses of a Gaussian release are accurate in their tails, those of others near 1/2
        error = max(1e-9 * delta, 0.0 if pairs[0].kind == "gaussian" else SINGLE_ERROR)
    if delta < 100 * error:  # then only Renyi divergences give a bound
        return math.inf
    step = max(min(_step(pair) for pair in pairs), sum(_span(pair) for pair in pairs) / _CELLS)
    sizes = [pair.size for pair in pairs]
    if step > min(sizes) or max(sizes) > _SIZE_MAX:  # too coarse to be of use, or out of a double's range
        return math.inf
    whole: Any = None
    for pair in pairs:
        single = _single(pair.kind, pair.size, step)
        repeated = single.self_compose(pair.times, _cut(pair, step)) if pair.times > 1 else single
        whole = repeated if whole is None else whole.compose(repeated)
    with np.errstate(over="ignore"):  # a loss of hundreds divides by a mass near 0; infinity compares rightly
        return float(whole.get_epsilon_for_delta(delta - error)) * (1 + 1e-12)


def _step(pair: Pair) -> float:
    """The step of the discretisation. The error of connecting the dots is of the order of its square."""
    return pair.size / 20 if pair.kind != "gaussian" else min(pair.size, 1.0) / 100


def _span(pair: Pair) -> float:
    """About the width of the distribution of the loss of all releases of a pair: mean and ten sd, twice."""
    if pair.kind == "gaussian":
        return pair.times * pair.size**2 + 20 * pair.size * math.sqrt(pair.times)
    mean = pair.times * pair.size * math.tanh(pair.size / 2)
    return min(2 * pair.times * pair.size, 2 * mean + 20 * pair.size * math.sqrt(pair.times))


def _cut(pair: Pair, step: float) -> float:
    """The probability of the tails that are cut off where all releases of a pair are composed."""
    whole = pair.kind != "gaussian" and pair.times * (2 * pair.size / step + 2) <= _WHOLE
    return 0.0 if whole else _TRUNCATED


@lru_cache(maxsize=64)
def _single(kind: str, size: float, step: float) -> Any:
    load()
    from dp_accounting.pld import privacy_loss_distribution as pld

    # The library's accountant does not take Laplace mechanisms for replaced rows, so use its lower level.
    if kind == "gaussian":
        return pld.from_gaussian_mechanism(1 / size, value_discretization_interval=step)
    if kind == "laplace":
        return pld.from_laplace_mechanism(1 / size, value_discretization_interval=step)
    return _randomized_response(size, step)


def _randomized_response(epsilon: float, step: float) -> Any:
    """Truth with probability e^epsilon / (1 + e^epsilon); its losses of +-epsilon fall between grid points."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    ends = (-epsilon / step, epsilon / step)
    grid = np.array(sorted({round_(end) for end in ends for round_ in (math.floor, math.ceil)}))
    at, lie = grid * step, math.exp(-np.logaddexp(0.0, epsilon))
    with np.errstate(over="ignore"):
        inside = lie * np.exp(at) * np.expm1(epsilon - at)  # = truth - e^at lie, without cancellation
    # Rounding may leave [0, 1] by some units in the last place, which the library refuses.
    hockey_stick = np.where(at <= -epsilon, -np.expm1(np.minimum(at, 0.0)), np.clip(inside, 0.0, 1.0))
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(step, grid, hockey_stick))


DELTA = 1e-6
"""The delta of a report where a study has none of its own."""
_DIGITS = Context(prec=4, rounding=ROUND_CEILING)
NONE_REFINED: Mapping[tuple[int, int], int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one release and one answer of a study, in the ledger's units and as dominating pairs.

    ``failure`` is the release's own delta where it has one: its pure epsilon holds at no smaller delta.
    ``black_box``: nothing is proved for the release but (epsilon, failure). ``centres``: the part of ``release`` for
    private centres of groups. ``refine``: of a second draw of a record, pure.
    """

    release: int | None
    answer: int | None
    release_pair: Pair | None = None
    answer_pair: Pair | None = None
    failure: float = 0.0
    black_box: bool = False
    centres: int = 0
    refine: int = 0

    @classmethod
    def of(cls, spec: wire.StudyCreate, release: Concrete | None = None) -> "Costs":
        """The costs of a study; None if no bound holds. ``release``: the one that ran, or a refuted one."""
        prices, release = Prices.of(spec), release or concrete(spec)[0]
        return cls(
            release=None if isinstance(release, wire.PoGpUcbRelease) else prices.release,
            answer=prices.answer if prices.answers_bounded else None,
            release_pair=_release_pair(release, len(spec.features), spec.protected_rows),
            answer_pair=_answer_pair(spec),
            failure=failure(release),
            black_box=isinstance(release, wire.GaussianProjectionRelease | wire.AxesRelease),
            centres=prices.centres,
            refine=prices.refine,
        )

    def loss(self, answers: int, delta: float, *, alone: bool = False, again: int = 1, refined: int = 0) -> wire.Loss:
        """The loss by the release, this many answers about one person, and second draws of so many of her records.

        ``alone``: each answer is another person's, who loses by the release or by the answer, but not by both.
        ``again``: how often that answer was released, corrections included.
        """
        if alone and answers:
            return _larger(self.loss(0, delta), self.loss_of(0, min(again, answers), delta))
        return self.loss_of(1, answers, delta, refined)

    def loss_of(self, releases: int, answers: int, delta: float, refined: int = 0) -> wire.Loss:
        """The loss by so many releases, answers and second draws together."""
        if (releases and self.release is None) or (answers and self.answer is None):
            return wire.Loss(epsilon=None, tight_epsilon=None)
        pure = releases * (self.release or 0) + answers * (self.answer or 0) + refined * self.refine
        return wire.Loss(epsilon=text(pure), tight_epsilon=self._tight(releases, answers, pure, delta, refined))

    def loss_in_group(self, answers: int, others: int, delta: float) -> wire.Loss:
        """The loss of a record by answers about its group, and ``others`` about the other one answered most often.

        It stays in its group, or moves between the two: then each answer costs half (docs/privacy.md, Theorem C).
        """
        if self.release is None or self.answer is None or self.answer_pair is None:
            return wire.Loss(epsilon=None, tight_epsilon=None)
        stays, moves = self.centres + answers * self.answer, self.release + ((answers + others) * self.answer + 1) // 2
        centres = Pair("pure", float(Decimal(text(self.centres)))) if self.centres else None
        half = Pair(self.answer_pair.kind, self.answer_pair.size / 2)
        staying = replace(self, release_pair=centres)._tight(1, answers, stays, delta)
        moving = replace(self, answer_pair=half)._tight(1, answers + others, moves, delta)
        return _larger(*(wire.Loss(epsilon=text(e), tight_epsilon=t) for e, t in ((stays, staying), (moves, moving))))

    def _tight(self, releases: int, answers: int, pure: int, delta: float, refined: int = 0) -> float | None:
        releases = releases if self.release_pair is not None else 0  # a release of public records has no noise
        failure = self.failure if releases else 0.0
        # Pure composition holds at the release's own delta, so the tight figure never exceeds the sum there.
        sum_ = float(Decimal(text(pure))) if failure <= delta else math.inf
        remaining = delta - failure if releases and self.black_box else delta
        pairs = [self.release_pair] if releases and self.release_pair is not None else []
        if answers and self.answer_pair is not None:
            pairs.append(Pair(self.answer_pair.kind, self.answer_pair.size, answers))
        if refined:
            pairs.append(Pair("pure", float(Decimal(text(self.refine))), refined))
        if not pairs:  # nothing but a release of public records
            return 0.0
        # Discrete Laplace noise is that of a rounded continuous variable but for a factor of e^(2^-42) (docs).
        lattice = (releases + answers) * 2.0**-LATTICE_BITS
        remaining *= 1 - lattice
        bound = tight_epsilon(pairs, remaining) + lattice if remaining > 0 else math.inf
        return None if math.isinf(least := min(sum_, bound)) else least


def _larger(first: wire.Loss, second: wire.Loss) -> wire.Loss:
    """The larger of two losses, of each figure; None: no bound."""
    pure, tight = (first.epsilon, second.epsilon), (first.tight_epsilon, second.tight_epsilon)
    return wire.Loss(
        epsilon=None if None in pure else text(max(units(loss) for loss in pure if loss is not None)),
        tight_epsilon=None if None in tight else max(loss for loss in tight if loss is not None),
    )


def _release_pair(release: Concrete, d: int, k: int) -> Pair | None:
    """The dominating pair of a release, for a person with ``k`` rows; its epsilon and delta are the person's.

    For a Gaussian release sensitivity and noise both grow by sqrt(k), so that their ratio is that of one row.
    """
    match release:
        case wire.GaussianRelease():
            return Pair("gaussian", 1 / _noise_per_sensitivity(wire.amount(release.epsilon), release.delta))
        case wire.PlanarLaplaceRelease():
            # One row in one dimension is a Laplace mechanism; else nothing better is used than that noise of slope a is
            # a-private without a delta, whether or not the release has one.
            pure = k * float(slope_of_row(wire.amount(release.epsilon), release.delta, d, k)) * (1 + 2.0**-50)
            return Pair(
                "laplace" if d == k == 1 else "pure", pure if release.delta else float(wire.amount(release.epsilon))
            )
        case wire.GroupsRelease():
            return Pair("pure", float(wire.amount(release.epsilon)))
        case wire.GaussianProjectionRelease() | wire.AxesRelease():
            # Renyi divergences of the first are infinite from some order on, so it is treated as a black box. Axes are
            # for simplicity: private ones are two mechanisms.
            return Pair("pure", float(wire.amount(release.epsilon)))
        case wire.IdentityRelease() | wire.PoGpUcbRelease():
            return None


def _noise_per_sensitivity(epsilon: Decimal, delta: float) -> float:
    """Standard deviation over the largest move of a row: Delta, and the rounding of scaling and of the lattice."""
    sd = gaussian_sd(epsilon, delta, 1.0, 1)
    return sd / (1 + 2 * sd * 2.0**-LATTICE_BITS)


def _answer_pair(spec: wire.StudyCreate) -> Pair | None:
    """The dominating pair of one released y.

    Laplace: on the lattice, it is nearly a rounded Laplace variable whose scale is at least (2C + a lattice
    step) / epsilon (docs/privacy.md). One bit is randomized response itself; piecewise is epsilon-DP, and is
    dominated by it. An answer about a group costs epsilon where a record stays in it; each of two answers costs half of
    it where a record moves, and those two together are epsilon-DP: so randomized response dominates both cases.
    """
    kind = wire.concrete_answers(spec.answers)
    if isinstance(kind, wire.NoAnswerNoise):
        return None
    is_laplace = isinstance(kind, wire.LaplaceAnswers) and not is_groups(spec)
    return Pair("laplace" if is_laplace else "pure", float(wire.amount(kind.epsilon)))


# --- before ---------------------------------------------------------------------------------------


def price(spec: wire.StudyCreate, release: Concrete | None = None) -> wire.Price:
    """The price of a study: what its release and answers cost, and how many answers its caps allow."""
    costs, prices = Costs.of(spec, release), Prices.of(spec)
    alone = not answers_add_up(spec)
    of_study, of_row = prices.within(spec.budget)
    bounded = costs.release is not None and costs.answer is not None
    full = None
    delta = getattr(spec.release, "delta", None) if bounded else None
    if bounded and (of_row is not None or alone):
        answers = 1 if of_row is None else of_row
        refined = min(answers, spec.protected_rows) if prices.refine else 0
        full = costs.loss(answers, delta or DELTA, alone=alone, refined=refined)
        if refined > 1 and (cap := spec.budget.epsilon_per_row) is not None:  # they do not all fit beside the answers
            full = full.model_copy(update={"epsilon": text(min(units(cap), units(full.epsilon or "0")))})
        if isinstance(prices, GroupPrices) and (cap := spec.budget.epsilon_per_row) is not None:
            most = max(units(full.epsilon or "0"), prices.most(units(cap), of_study))  # more fit about one or two
            full = full.model_copy(update={"epsilon": text(most)})
    return wire.Price(
        release_epsilon=None if costs.release is None else text(costs.release),
        answer_epsilon=None if costs.answer is None else text(costs.answer),
        answers_per_row=of_row,
        answers=of_study,
        row_epsilon=full.epsilon if full else None,
        tight_row_epsilon=full.tight_epsilon if full and delta is not None else None,
        tight_delta=delta,
        sentence=_price_in_words(spec, costs, of_row, of_study),
    )


def current_price(spec: wire.StudyCreate, release: Concrete, before: wire.Price) -> wire.Price:
    """The price of a released study with its caps of now. ``before``: that of its release, kept where it holds."""
    is_refuted = isinstance(release, wire.PoGpUcbRelease)
    if not is_refuted and Prices.of(spec).within(spec.budget) == (before.answers, before.answers_per_row):
        return before
    return price(spec, release)


def _price_in_words(spec: wire.StudyCreate, costs: Costs, of_row: int | None, of_study: int | None) -> str:
    unit = _unit(spec)
    if costs.release is None:
        release = f"The release has no finite epsilon, so no sum bounds the epsilon of a {unit}."
    elif isinstance(spec.release, wire.IdentityRelease):
        release = "The release uses no epsilon: its records are declared public."
    else:
        release = f"The release uses epsilon {_with_delta(text(costs.release), costs.failure)} for each {unit}."
    mean = getattr(spec.answers, "plays", "each") == "mean"
    subject = "The mean of a query's measurements of a record" if mean else "Each answer"
    whose = "" if answers_add_up(spec) else ", of another person each time"
    if costs.answer is None:
        answer = "Answers are exact, so epsilon cannot count them."
    elif is_groups(spec):
        answer = _group_in_words(costs.release, costs.answer, of_row, of_study)
    else:
        answer = f"{subject} uses epsilon {text(costs.answer)}{whose}."
    about, of_one = ("group", Prices.of(spec).about_one(spec.budget)) if is_groups(spec) else (unit, of_row)
    second = "" if spec.refine is None else f" {second_draw_in_words(spec, spec.refine)}"
    sentence, k = f"{release} {answer}{second} {_allowed(of_row, of_study, about, of_one)}", spec.rows_per_person
    if costs.answer and _corrections_cost_more(spec, of_row):
        sentence += " Each correction of an answer uses as much again, which is not counted here."
    if wire.hides_one_feature(spec.release):
        sentence += f" {ONE_FEATURE}"
    if k > 1 and not spec.person_column:  # declared, not enforced
        sentence += (
            f" These figures are per record: a person with {k} records, as declared, uses {k} times each epsilon"
        )
        if costs.failure and costs.release is not None:
            delta = group_delta(Decimal(text(costs.release)), Decimal(repr(costs.failure)), k)
            sentence += f", and the release's delta is {delta} for this person"
        sentence += "."
    return sentence


def second_draw_in_words(spec: wire.StudyCreate, refine: wire.Refine) -> str:
    """What a second draw uses, and what the features of each record and of a measured one use in total."""
    release, each = Prices.of(spec).release, ""
    if spec.protected_rows > 1:
        each = " for each of their records that is measured"
    most = text(release + units(refine.epsilon))
    return (
        f"A measured record leaves again, less blurred, which uses epsilon {refine.epsilon}. So the features use "
        f"epsilon {text(release)} of everybody, and {most} of the {refine.persons} persons who may be measured{each}."
    )


def _corrections_cost_more(spec: wire.StudyCreate, of_row: int | None) -> bool:
    """Whether corrections can cost a person more than her answers that the caps allow: they are no further queries."""
    if isinstance(spec.measurement, wire.ColumnMeasurement):
        return False
    prices, uncounted = Prices.of(spec), spec.budget.model_copy(update={"queries": None})
    return not prices.adds_up or prices.within(uncounted)[1] != of_row


def _allowed(of_row: int | None, of_study: int | None, unit: str, of_one: int | None) -> str:
    """How many answers the caps allow, in words: about each unit, in total, and about one if no other is queried.

    ``of_row`` is ``of_study`` at most, where both are counted.
    """
    if of_row is None and of_study is None:
        return "No cap limits the answers."
    total = None if of_study is None else f"{_answers(of_study, '')} in total"
    if of_row is None or of_row == of_study:
        return f"The caps allow {total}."
    about_each = f"{_answers(of_row, '')} about each {unit}"
    if of_one is not None and of_one > of_row:
        about_each += f" ({of_one} about one, if no other is queried)"
    return f"The caps allow {about_each}{'' if total is None else f', and {total}'}."


def _group_in_words(release: int | None, answer: int, of_row: int | None, of_study: int | None) -> str:
    """What answers about groups cost: those about different groups cost no more than those about one of them."""
    about = f"Each answer uses epsilon {text(answer)} for the records of its group."
    if release is None:
        return about
    most = 1 if of_row is None else min(of_row, 1)
    first = text(release + most * answer)
    number = "" if of_study is None else f"{of_study} "
    return (
        f"{about} A record is in one group: {number}answers about different groups use epsilon {first} of the record "
        "in total, with the release."
    )


def _with_delta(epsilon: str, failure: float) -> str:
    """A cost in words, with the release's own delta if it has one."""
    return f"{epsilon} and delta {failure!r}" if failure else epsilon


def _unit(spec: wire.StudyCreate) -> str:
    """Whose loss the figures are: a person's, where the dataset says which rows are hers."""
    return "person" if spec.person_column else "record"


def _answers(number: int, more: str) -> str:
    return f"{number} {more}answer" + ("" if number == 1 else "s")


# --- after ----------------------------------------------------------------------------------------


def report(
    spec: wire.StudyCreate,
    rows: Mapping[int, int],
    total: int,
    delta: float,
    *,
    released: bool = True,
    release: Concrete | None = None,
    again: int = 1,
    refined: Mapping[tuple[int, int], int] = NONE_REFINED,
) -> wire.Accounting:
    """The privacy loss of a study so far, by pure composition and tightly at ``delta``.

    ``rows``: the number of rows with each number of released answers. ``total``: all released answers. ``released``:
    whether the release was charged. ``release``: as in ``Costs.of``. ``again``: the largest number of times that any
    answer was released, where each answer is another person's. ``refined``: the number of rows, or persons, with each
    number of answers and of second draws; they are not in ``rows``.
    """
    costs = Costs.of(spec, release)
    if not released:
        nothing = wire.Loss(epsilon="0", tight_epsilon=0.0)
        losses, study = [wire.RowsLoss(answers=k, rows=n, **dict(nothing)) for k, n in sorted(rows.items())], nothing
    else:
        losses = [
            wire.RowsLoss(answers=k, rows=n, **dict(_loss_of_rows(spec, costs, rows, k, delta, again)))
            for k, n in sorted(rows.items())
        ]
        ordered = sorted(refined, key=lambda each: each[0] * (costs.answer or 0) + each[1] * costs.refine)
        losses += [
            wire.RowsLoss(answers=k, rows=refined[k, m], refined=m, **dict(costs.loss(k, delta, refined=m)))
            for k, m in ordered
        ]
        study = costs.loss(total, delta, refined=sum(m * refined[k, m] for k, m in ordered))
    failure = costs.failure if released else 0.0
    k = 1 if spec.person_column else spec.rows_per_person
    declared = (
        f" (per record: for a person with {k} records, as declared, epsilon may be {k} times that, and a delta more)"
        if k > 1
        else ""
    )
    sentence = _report_in_words(losses, study, delta, failure, _unit(spec), declared)
    if refined and costs.release is not None:
        count, most = sum(refined.values()), text(costs.release + max(m for _, m in refined) * costs.refine)
        of_refined = f"{count} measured {_unit(spec)}{'' if count == 1 else 's'}"
        sentence += f" The features have used epsilon {text(costs.release)} of everybody, and {most} of {of_refined}."
    if released and wire.hides_one_feature(spec.release):
        sentence += f" {ONE_FEATURE}"
    return wire.Accounting(delta=delta, rows=losses, study=study, sentence=sentence)


def _loss_of_rows(
    spec: wire.StudyCreate, costs: Costs, rows: Mapping[int, int], answers: int, delta: float, again: int
) -> wire.Loss:
    """The loss of the records with this many answers; of groups, beside the other one that was answered most often."""
    if not is_groups(spec):
        return costs.loss(answers, delta, alone=not answers_add_up(spec), again=again)
    others = max((k for k, n in rows.items() if n > (k == answers)), default=0)
    return costs.loss_in_group(answers, others, delta)


def _report_in_words(
    rows: list[wire.RowsLoss], study: wire.Loss, delta: float, failure: float, unit: str, declared: str
) -> str:
    if not rows:
        return "There are no records."
    worst, whole = rows[-1], _loss_in_words(study, delta, failure)
    return (
        f"The {unit} that was queried most has used {_loss_in_words(worst, delta, failure)} "
        f"by {_answers(worst.answers, '')}{declared}. The study has used {whole} in total. The sum holds for every way "
        "to choose queries. The tight figure assumes that the numbers of answers were fixed before."
    )


def _loss_in_words(loss: wire.Loss, delta: float, failure: float) -> str:
    if loss.epsilon is None:
        return "without a bound"
    tight = "no bound" if loss.tight_epsilon is None else _rounded_up(loss.tight_epsilon, Decimal(loss.epsilon))
    of_release = f" and delta {failure!r}" if failure else ""
    return f"epsilon {loss.epsilon}{of_release} by the sum, {tight} at delta {delta!r}"


def _rounded_up(tight: float, sum_: Decimal) -> str:
    """A tight figure to four digits, never less than it is. The sum as it is, where that is less and holds as well."""
    rounded = _DIGITS.create_decimal(repr(tight))
    return exact(min(rounded, sum_) if tight <= float(sum_) else rounded)
