"""Answers about groups: the sum of y over a group's records with Laplace noise, over their noisy number.

Everything is counted in whole steps of C / LEVELS, so that sums and noise are exact integers.
"""

import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Vector
from curator_service.privacy.noise import add_integer_laplace
from curator_service.privacy.noise.lattice import check_finite

COUNT_MOVE = 2
"""A record that is replaced leaves one group and enters another: so much the numbers of records move, in all."""
LEVELS = 2**30
"""Steps between the centre and either end of the clip."""


def numbers_epsilon(release: wire.GroupsRelease) -> Decimal:
    """Epsilon of the numbers of records: what private centres leave of the release's."""
    cells = release.cells
    return wire.amount(release.epsilon) - (wire.amount(cells.epsilon) if isinstance(cells, wire.PrivateCells) else 0)


def steps(values: Vector, answers: wire.LaplaceAnswers) -> int:
    """The sum of ``values`` (m,) about the centre, each clipped to C, in whole steps. Raises NumericalFailure."""
    return int(_in_steps(values, answers).sum())


def sums_of_groups(
    values: Vector, groups: NDArray[np.int64], count: int, answers: wire.LaplaceAnswers
) -> NDArray[np.int64]:
    """``steps`` of each of ``count`` groups; ``groups`` (m,): the group of each value, below 0 for none."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, groups[groups >= 0], _in_steps(values, answers)[groups >= 0])
    return sums


def _in_steps(values: Vector, answers: wire.LaplaceAnswers) -> NDArray[np.int64]:
    check_finite(values)
    offsets = np.clip(values - answers.centre, -answers.bound, answers.bound)
    rounded: Vector = np.clip(np.rint(offsets / answers.bound * LEVELS), -LEVELS, LEVELS)
    return rounded.astype(np.int64)


@dataclass(frozen=True, slots=True)
class GroupAnswers:
    """The mechanism of a study's answers about groups.

    A record changes the sum of its group by 2C at most, and leaves or enters one by C at most. So each answer is
    epsilon-DP for a record, or all ``rows`` of a person, that stays in the group, and epsilon / 2 for one that leaves
    or enters it (docs/privacy.md). The number that divides the sum is released already.
    """

    answers: wire.LaplaceAnswers
    release: wire.GroupsRelease
    rows: int

    @classmethod
    def of(cls, spec: wire.StudyCreate) -> "GroupAnswers":
        assert isinstance(spec.answers, wire.LaplaceAnswers)
        assert isinstance(spec.release, wire.GroupsRelease)
        return cls(spec.answers, spec.release, spec.protected_rows)

    @property
    def move(self) -> int:
        """How far a record, or a person's records, move a sum at most, in steps."""
        return 2 * LEVELS * self.rows

    def draw(self, total: int, count: int) -> float:
        """One private mean: of a sum in steps, and a released number of records. Charge it before."""
        return self.answers.centre + self.total(total) / LEVELS * self.answers.bound / divisor(count)

    def total(self, total: int) -> int:
        return add_integer_laplace([total], self.move, wire.amount(self.answers.epsilon))[0]

    def passport(self, count: int) -> wire.NoisePassport:
        """The noise description of an answer, from public values and the released number of records.

        The measurement variance bounds what the mean of so few records, and their noisy number, err by: S^2 / count
        + B^2 v / count^2, with v the variance of the noise in the number. B bounds a group's mean, as the owner
        declares, and S a y about it: the noise bound, or C where none is declared, which is far too much as a rule and
        is said not to be known.
        """
        answers, n, scale = self.answers, divisor(count), self._scale(count)
        bound, spread = answers.bound, answers.noise_bound or answers.bound
        return wire.NoisePassport(
            privacy=wire.PrivacyNoise(family="laplace", scale=scale, bound=bound, variance=2 * scale**2),
            clip=(answers.centre - bound, answers.centre + bound),
            measurement_variance=spread**2 / n + self.number_variance(count),
            measurement_variance_known=answers.noise_bound > 0,
        )

    def _scale(self, count: int) -> float:
        return self.rows * 2 * self.answers.bound / float(wire.amount(self.answers.epsilon)) / divisor(count)

    def variance(self, count: int) -> float:
        """Variance of an answer about the mean of a group with so many records, by noise in the sum and the number."""
        return 2 * self._scale(count) ** 2 + self.number_variance(count)

    def number_variance(self, count: int) -> float:
        """Variance that the noise in a number of records adds to an answer about them: B^2 v / count^2."""
        of_number = 2 * (COUNT_MOVE * self.rows / float(numbers_epsilon(self.release))) ** 2
        return self.answers.value_bound**2 * of_number / divisor(count) ** 2


def divisor(count: int) -> int:
    """What a sum is divided by: the noisy number of records, or 1 where noise left none."""
    return max(count, 1)


def measure_groups(
    sums: list[int], counts: list[int], request: list[wire.RowPlays], spec: wire.StudyCreate
) -> list[wire.Answer]:
    """Private means of the groups of ``request``: one for each play, each a draw of its own.

    ``sums``: of each group's outcomes, in steps; ``counts``: their released numbers.
    """
    mechanism = GroupAnswers.of(spec)
    answers: list[wire.Answer] = []
    for item, total, count in zip(request, sums, counts, strict=True):
        answers += [
            wire.Answer(row=item.row, play=play, y=mechanism.draw(total, count), passport=mechanism.passport(count))
            for play in range(1, item.plays + 1)
        ]
    return answers


def clipped_mean(values: Vector, answers: wire.LaplaceAnswers) -> float | None:
    """The exact mean of clipped y, for the owner alone; None without any."""
    if not len(values):
        return None
    low, high = answers.centre - answers.bound, answers.centre + answers.bound
    return math.fsum(np.clip(values, low, high).tolist()) / len(values)
