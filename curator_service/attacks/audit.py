"""A black-box audit of a study's own mechanisms: two neighbours made of public values, many draws of each, a bound.

What differential privacy promises about an event is compared with how often the event happens. Nothing here knows how
the noise is drawn: the mechanism is called as a release or a query calls it. The records are never read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Self

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.wire import StudyCreate
from curator_service.attacks.intervals import epsilon_bound
from curator_service.measurement.privatize import Measured, release, releases_mean
from curator_service.privacy.groups import GroupAnswers, steps
from curator_service.privacy.ledger import answers_add_up, is_groups
from curator_service.privacy.noise import OnProgress, ignore_progress
from curator_service.release.groups import Groups
from curator_service.release.mechanism import Mechanism
from curator_service.release.private_centres import PrivateCentres
from curator_service.scaling import ScaledRows

DRAWS = 20_000
"""Draws of each neighbour that judge. A quarter as many, before them, choose the event."""
DRAWS_MIN, DRAWS_MAX = 100, 10_000_000
CONFIDENCE = 0.999
LEARNT_MAX = 10_000
"""The most draws of each neighbour that choose the event."""
BATCH = 250
"""Draws that are held at once: memory does not depend on the number of draws."""
_ANCHORS = 4
"""Rows at each of two far corners, which tell how Z was turned or projected."""
_OTHER_PERSONS = 2
"""Whose measurements an answer averages with the person's, where each is another person's."""
_SHARES = np.concatenate([[0.002, 0.005], np.linspace(0.01, 0.99, 99), [0.995, 0.998]])

Draw = Callable[[bool, int], Matrix]
"""Scores (count, candidates) of so many draws: of the neighbour, if the flag is set."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a mechanism promises."""

    epsilon: Decimal
    delta: float = 0.0


@dataclass(frozen=True, slots=True)
class Audit:
    """A lower bound on the epsilon of a mechanism, from draws alone, beside its claim.

    ``most``: the bound if not one of so many draws had been mistaken; a loss above it is not seen. The bound is wrong,
    above the true epsilon, with probability 1 - ``confidence`` at most.
    """

    claim: Claim
    bound: float
    most: float
    draws: int
    confidence: float

    @property
    def exceeds(self) -> bool:
        """Whether the draws contradict the claim."""
        return self.bound > self.claim.epsilon


def audit_release(
    spec: StudyCreate,
    mechanism: Mechanism,
    claim: Claim,
    *,
    rows: int = 1,
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    on_progress: OnProgress = ignore_progress,
) -> Audit:
    """Audit a release mechanism on two datasets that differ in one person's ``rows``, each moved by Delta.

    The rows lie about the middle of the declared bounds and move along their diagonal; the others are at two corners,
    and the attacker knows them. The order of rows is taken as known. Raises as the mechanism does. Of groups it is the
    numbers of records in two of them: a person's are all in the first one, or all in the second one.
    """
    if isinstance(mechanism, Groups):
        return audit_of(lambda moved, count: _numbers(mechanism, moved, count), claim, draws, confidence, on_progress)
    neighbours = Neighbours.of(spec, mechanism, rows)
    return audit_of(neighbours.scores, claim, draws, confidence, on_progress)


def audit_answers(
    spec: StudyCreate,
    claim: Claim,
    *,
    draws: int = DRAWS,
    confidence: float = CONFIDENCE,
    on_progress: OnProgress = ignore_progress,
) -> Audit:
    """Audit the answers of a study on a person's measurement that is at one end of the clip or at the other.

    Where an answer is the mean of several people's measurements, the others' are in the middle. In a group are the
    person's records alone.
    """
    others = _OTHER_PERSONS if releases_mean(spec) and not answers_add_up(spec) else 0

    def scores(moved: bool, count: int) -> Matrix:
        low, high = _clip(spec)
        if is_groups(spec):
            mechanism, y = GroupAnswers.of(spec), np.full(spec.protected_rows, high if moved else low)
            total = steps(y, mechanism.answers)
            return np.array([[mechanism.draw(total, len(y))] for _ in range(count)])
        values = [high if moved else low, *[(low + high) / 2] * others]
        item = Measured(row=0, plays=list(range(1, len(values) + 1)), values=values)
        y = np.array([answer.y for answer in release([item] * count, spec)])
        return np.column_stack([y, np.abs(y - (low + high) / 2)])

    return audit_of(scores, claim, draws, confidence, on_progress)


def _numbers(mechanism: Groups, moved: bool, count: int) -> Matrix:
    """Scores (count, 3 or 6) of the noisy numbers of records in two groups, and of private centres if there are."""
    numbers = [0, mechanism.rows] if moved else [mechanism.rows, 0]
    noisy = np.array([mechanism.noisy(numbers) for _ in range(count)], dtype=float)
    scores = np.column_stack([noisy[:, 1] - noisy[:, 0], noisy])
    if mechanism.private is None:
        return scores
    rounds = np.array([_rounds(mechanism.private, moved) for _ in range(count)])
    return np.column_stack([scores, rounds])


def _rounds(private: PrivateCentres, moved: bool) -> list[float]:
    """Evidence of all rounds of private centres, from the numbers, from the sums, and from both: log likelihood ratios.

    A person's records are all at the lower corner, and those of the first of two centres, or all at the upper one, and
    those of the second.
    """
    sizes = private.rows * np.eye(2, dtype=np.int64)
    sums = np.stack([np.outer(sizes[0], -private.corner), np.outer(sizes[1], private.corner)])
    evidence = np.zeros(2)
    for _ in range(private.rounds):
        drawn = private.noisy((sizes[int(moved)], sums[int(moved)]))
        for i, (noisy, either, move) in enumerate(zip(drawn, (sizes, sums), private.moves, strict=True)):
            away = [float(np.abs(noisy - each).sum()) for each in either]
            evidence[i] += float(private.share) * (away[0] - away[1]) / move
    return [*evidence.tolist(), float(evidence.sum())]


def _clip(spec: StudyCreate) -> tuple[float, float]:
    centre, bound = getattr(spec.answers, "centre", 0.0), getattr(spec.answers, "bound", 1.0)
    return centre - bound, centre + bound


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two raw datasets (m, d), and where the ``moved`` rows are in scaled units: at ``-shift`` and at ``shift``.

    ``share``: the length of ``shift`` over that of the way from the middle to a corner.
    """

    mechanism: Mechanism
    spec: StudyCreate
    datasets: tuple[Matrix, Matrix]
    moved: int
    shift: Vector
    share: float

    @classmethod
    def of(cls, spec: StudyCreate, mechanism: Mechanism, moved: int) -> Self:
        lower, upper = (np.array([getattr(f, end) for f in spec.features]) for end in ("lower", "upper"))
        unit = np.array([f.unit for f in spec.features])
        half = (upper - lower) / 2 / unit
        share = min(getattr(spec.release, "sensitivity", 1.0) / 2 / float(np.linalg.norm(half)), 1.0)
        shift = share * half
        corners = np.vstack([np.tile(upper, (_ANCHORS, 1)), np.tile(lower, (_ANCHORS, 1))])
        first, second = (
            np.vstack([np.tile(np.clip((lower + upper) / 2 + sign * shift * unit, lower, upper), (moved, 1)), corners])
            for sign in (-1, 1)
        )
        return cls(mechanism, spec, (first, second), moved, shift, share)

    def scores(self, moved: bool, count: int) -> Matrix:
        """Scores (count, candidates) of so many releases; a large score is evidence for the second dataset, or none."""
        values = self.datasets[1 if moved else 0]
        d = values.shape[1]
        rows = ScaledRows(values, list(range(d)), self.spec.features, np.arange(len(values)))
        z = np.empty((count, len(values), self.mechanism.columns(d)))
        for out in z:
            self.mechanism.draw(rows, out)
        person, up, down = np.split(z, [self.moved, self.moved + _ANCHORS], axis=1)
        # Where Z may be turned or projected, corners that are known say where the two positions went.
        towards = (up.mean(axis=1) - down.mean(axis=1)) / 2 * self.share
        scores = [*_evidence(person, towards[:, None]), (person**2).sum(axis=(1, 2))]
        if z.shape[2] == d:
            scores += _evidence(person, self.shift)
            scores += _evidence(person - up[:, :1], self.shift)[:1]
        return np.column_stack(scores)


def _evidence(person: Matrix, shift: Matrix) -> list[Vector]:
    """Log likelihood ratios (count,), but for a factor, of rows (count, k, r) at ``shift`` against -``shift``.

    Of Gaussian noise, then of planar Laplace noise.
    """
    away = [np.linalg.norm(person + sign * shift, axis=2).sum(axis=1) for sign in (1, -1)]
    return [(person * shift).sum(axis=(1, 2)), away[0] - away[1]]


@dataclass(frozen=True, slots=True)
class _Event:
    """Candidate ``column`` above ``limit``; likelier under the neighbour, or where ``reverse`` under the first."""

    column: int
    limit: float
    reverse: bool

    def hits(self, scores: Matrix) -> int:
        return int(np.sum(scores[:, self.column] > self.limit))


def audit_of(draw: Draw, claim: Claim, draws: int, confidence: float, on_progress: OnProgress) -> Audit:
    """Test ``claim``: an event is chosen on scores of its own, and judged on ``draws`` of each side.

    Raises ValueError for a number of draws or a confidence out of range.
    """
    if not (DRAWS_MIN <= draws <= DRAWS_MAX and 0 < confidence < 1):
        raise ValueError(f"an audit takes {DRAWS_MIN} to {DRAWS_MAX} draws, and a confidence between 0 and 1")
    alpha, learnt = 1 - confidence, min(max(DRAWS_MIN // 2, draws // 4), LEARNT_MAX)
    whole, done = 2 * (learnt + draws), 0

    def batches(moved: bool, total: int) -> Iterator[Matrix]:
        nonlocal done
        for start in range(0, total, BATCH):
            count = min(BATCH, total - start)
            yield draw(moved, count)
            done += count
            on_progress(done / whole)

    first, second = (np.concatenate(list(batches(moved, learnt))) for moved in (False, True))
    event = _best(first, second, claim.delta, alpha)
    hits = [sum(event.hits(scores) for scores in batches(moved, draws)) for moved in (False, True)]
    bound = _implied(event, hits, draws, claim.delta, alpha)
    return Audit(claim, bound, epsilon_bound(draws, draws, 0, draws, claim.delta, alpha), draws, confidence)


def _best(first: Matrix, second: Matrix, delta: float, alpha: float) -> _Event:
    """The event that implies the largest epsilon on these scores, by shares. To be judged on other scores."""
    count = len(first)
    events = [
        _Event(column, float(limit), reverse)
        for column in range(first.shape[1])
        for limit in np.unique(np.quantile(np.concatenate([first[:, column], second[:, column]]), _SHARES))
        for reverse in (False, True)
    ]
    return max(events, key=lambda event: _implied(event, [event.hits(first), event.hits(second)], count, delta, alpha))


def _implied(event: _Event, hits: list[int], count: int, delta: float, alpha: float) -> float:
    likely, unlikely = hits if event.reverse else reversed(hits)
    return epsilon_bound(likely, count, unlikely, count, delta, alpha)
