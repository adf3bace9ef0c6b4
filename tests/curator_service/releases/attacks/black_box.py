"""A black-box audit of a study's mechanisms: two neighbours made of public values, many draws of each, a bound.

What differential privacy promises about an event is compared with how often the event happens. Nothing here knows how
the noise is drawn: the mechanism is called as a release or a query calls it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.wire import StudyCreate
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.answers import Measured, release, releases_mean
from curator_service.privacy.prices import answers_add_up
from curator_service.releases.attacks.scene import epsilon_bound
from curator_service.releases.mechanisms.mechanism import Mechanism

ALPHA = 0.001
"""A bound is above the true epsilon with this probability at most."""
_ANCHORS = 4
"""Rows at each of two far corners, which tell how Z was turned or projected."""
_OTHER_PERSONS = 2
"""Whose measurements an answer averages with the person's, where each is another person's."""
_SHARES = np.concatenate([[0.002, 0.005], np.linspace(0.01, 0.99, 99), [0.995, 0.998]])

Draw = Callable[[bool, int], Matrix]
"""Scores (count, candidates) of so many draws: of the neighbour, if the flag is set."""


def audit_release(spec: StudyCreate, mechanism: Mechanism, delta: float = 0.0, *, rows: int = 1, draws: int) -> float:
    """A lower bound on epsilon, from draws on two datasets that differ in one person's ``rows``, each moved by Delta.

    The rows lie about the middle of the declared bounds and move along their diagonal; the others are at two corners,
    and the attacker knows them. The order of rows is taken as known.
    """
    return bound_of(Neighbours.of(spec, mechanism, rows).scores, delta, draws)


def audit_answers(spec: StudyCreate, *, draws: int) -> float:
    """The same of answers on a person's measurement that is at one end of the clip or at the other.

    Where an answer is the mean of several people's measurements, the others' are in the middle.
    """
    others = _OTHER_PERSONS if releases_mean(spec) and not answers_add_up(spec) else 0

    def scores(moved: bool, count: int) -> Matrix:
        low, high = spec.answers.centre - spec.answers.bound, spec.answers.centre + spec.answers.bound
        values = [high if moved else low, *[(low + high) / 2] * others]
        item = Measured(row=0, plays=list(range(1, len(values) + 1)), values=values)
        y = np.array([answer.y for answer in release([item] * count, spec)])
        return np.column_stack([y, np.abs(y - (low + high) / 2)])

    return bound_of(scores, 0.0, draws)


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
        order = 1 if getattr(spec.release, "promise", None) == "one_feature" else 2
        share = min(getattr(spec.release, "sensitivity", 1.0) / 2 / float(np.linalg.norm(half, order)), 1.0)
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

    Of Gaussian noise, then of planar Laplace noise, then of Laplace noise in each coordinate.
    """
    norms = [np.linalg.norm(person + sign * shift, order, axis=2).sum(axis=1) for order in (2, 1) for sign in (1, -1)]
    return [(person * shift).sum(axis=(1, 2)), norms[0] - norms[1], norms[2] - norms[3]]


@dataclass(frozen=True, slots=True)
class _Event:
    """Candidate ``column`` above ``limit``; likelier under the neighbour, or where ``reverse`` under the first."""

    column: int
    limit: float
    reverse: bool

    def hits(self, scores: Matrix) -> int:
        return int(np.sum(scores[:, self.column] > self.limit))


def bound_of(draw: Draw, delta: float, draws: int, alpha: float = ALPHA) -> float:
    """A lower bound on epsilon: an event is chosen on a quarter as many draws, and judged on ``draws`` of each side."""
    count = max(50, draws // 4)
    first, second = (draw(moved, count) for moved in (False, True))
    events = [
        _Event(column, float(limit), reverse)
        for column in range(first.shape[1])
        for limit in np.unique(np.quantile(np.concatenate([first[:, column], second[:, column]]), _SHARES))
        for reverse in (False, True)
    ]
    event = max(events, key=lambda event: _implied(event, [event.hits(first), event.hits(second)], count, delta, alpha))
    return _implied(event, [event.hits(draw(moved, draws)) for moved in (False, True)], draws, delta, alpha)


def _implied(event: _Event, hits: list[int], count: int, delta: float, alpha: float) -> float:
    likely, unlikely = hits if event.reverse else reversed(hits)
    return epsilon_bound(likely, count, unlikely, count, delta, alpha)
