"""Attacks on groups, by somebody who knows every record but one, and asks which group that one is in.

Sums and numbers without the unknown record are known, so what is seen is that record and the noise. The attacker
decides by the likelihoods, and no other rule decides better. All draws go through the mechanisms, and are thrown away.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Vector
from blindopt.display import counted
from blindopt.wire import Finding, StudyCreate
from curator_service.privacy.measurement.groups import COUNT_MOVE, LEVELS, GroupAnswers, steps
from curator_service.privacy.prices import Prices
from curator_service.releases.attacks import column_space, membership
from curator_service.releases.attacks.averaging import answers_about_a_row
from curator_service.releases.attacks.scene import epsilon_bound
from curator_service.releases.mechanisms.groups import Groups

ATTACKS = ("column_space", "membership", "averaging")
"""Those that apply to groups, in the order in which findings are listed."""
TRIALS = 400
ANSWERS_MAX = 10
"""Answers about one group that an attack uses, where the caps allow more or there are none."""


def one_by_one(
    spec: StudyCreate, mechanism: Groups, outcomes: Vector, rng: np.random.Generator
) -> Iterator[tuple[str, Finding]]:
    """Yield the name and finding of each attack but averaging. ``outcomes`` (n,): the measurement column."""
    about_each, about_one = Prices.of(spec).within(spec.budget)[1], answers_about_a_row(spec)
    both, single = (
        _Scene(mechanism, GroupAnswers.of(spec), ANSWERS_MAX if most is None else min(most, ANSWERS_MAX), whose)
        for most, whose in ((about_each, "each"), (about_one, "its"))
    )
    yield "column_space", _moved(both)
    yield "membership", _member(single, np.asarray(outcomes)[rng.integers(len(outcomes), size=TRIALS)])


@dataclass(frozen=True, slots=True)
class _Scene:
    mechanism: Groups
    answers: GroupAnswers
    queried: int
    whose: str
    """Whether both groups were queried, or that of the record alone: caps allow more answers about one."""

    def evidence(self, there: bool, value: int, groups: int) -> float:
        """Log of the likelihood that a record with y of ``value`` steps is in the first of two groups, over the other.

        ``there``: where it is. ``groups``: how many of the two are queried.
        """
        rate = float(self.mechanism.epsilon) / (COUNT_MOVE * self.mechanism.rows)
        first, second = self.mechanism.noisy([int(there), int(not there)])
        score = rate * (abs(first) - abs(first - 1) + abs(second - 1) - abs(second))
        rate = float(self.answers.answers.epsilon) / self.answers.move
        for group in range(groups):
            sign, total = (1, value * there) if group == 0 else (-1, value * (not there))
            for _ in range(self.queried):
                noisy = self.answers.total(total)
                score += sign * rate * (abs(noisy) - abs(noisy - value))
        return score

    @property
    def in_words(self) -> str:
        number = counted(self.queried, "answer")
        but = "" if self.mechanism.private is None else ", but not the centres,"
        return f"who knows all other records and sees the numbers of records and {number} about {self.whose} group{but}"


def _scores(scene: _Scene, values: NDArray[np.int64], groups: int) -> tuple[Vector, Vector]:
    """Evidence (m / 2,) where the record is in the first group, and where it is in the second."""
    half = len(values) // 2
    first = np.array([scene.evidence(True, int(value), groups) for value in values[:half]])
    return first, np.array([scene.evidence(False, int(value), groups) for value in values[half:]])


def _moved(scene: _Scene) -> Finding:
    first, second = _scores(scene, np.full(TRIALS, LEVELS), 2)
    hits, alarms = int(np.sum(first > 0)), int(np.sum(second > 0))
    bound = epsilon_bound(hits, len(first), alarms, len(second), 0.0)
    right = hits + len(second) - alarms
    sentence = (
        f"Shown two groups, one of which has a record with the largest outcome, an attacker {scene.in_words} "
        f"names the right one {right:,} times of {TRIALS:,}."
    )
    return column_space.finding(bound, right / TRIALS, "epsilon", sentence)


def _member(scene: _Scene, outcomes: Vector) -> Finding:
    values = np.array([steps(outcomes[i : i + 1], scene.answers.answers) for i in range(len(outcomes))])
    inside, outside = _scores(scene, values, 1)
    hits, alarms, judged = int(np.sum(inside > 0)), int(np.sum(outside > 0)), len(inside)
    sentence = (
        f"To the question whether a record is in its group an attacker {scene.in_words} says yes for "
        f"{100 * hits / judged:.3g} % of those that are and for {100 * alarms / judged:.3g} % of the others."
    )
    return membership.finding(hits, alarms, judged, sentence)
