"""Measurements of groups from a column of the dataset: private means over their records."""

import math

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire import Answer, LaplaceAnswers, RowPlays, StudyCreate
from curator_service.privacy.groups import GroupAnswers, steps


def measure_groups(values: list[Vector], counts: list[int], request: list[RowPlays], spec: StudyCreate) -> list[Answer]:
    """Private means of the groups of ``request``: one for each play, each a draw of its own.

    ``values``: y of each group's records; ``counts``: their released numbers.
    """
    mechanism = GroupAnswers.of(spec)
    answers: list[Answer] = []
    for item, y, count in zip(request, values, counts, strict=True):
        total = steps(y, mechanism.answers)
        answers += [
            Answer(row=item.row, play=play, y=mechanism.draw(total, count), passport=mechanism.passport(count))
            for play in range(1, item.plays + 1)
        ]
    return answers


def clipped_mean(values: Vector, answers: LaplaceAnswers) -> float | None:
    """The exact mean of clipped y, for the owner alone; None without any."""
    if not len(values):
        return None
    low, high = answers.centre - answers.bound, answers.centre + answers.bound
    return math.fsum(np.clip(values, low, high).tolist()) / len(values)
