"""Measurements from a column of the dataset, with the paper's measurement noise and the answers' privacy."""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from blindopt.wire import Answer, ColumnMeasurement, RowPlays, StudyCreate
from curator_service.privacy import noise
from curator_service.privacy.measurement.privatize import Measured, draws_nothing, release


def is_exact(spec: StudyCreate) -> bool:
    """Whether answers have no randomness at all."""
    return draws_nothing(spec) and added_variance(spec) == 0


def added_variance(spec: StudyCreate) -> float:
    """Variance of the measurement noise that the curator adds: 0 for measurements from outside."""
    measurement = spec.measurement
    return measurement.noise_variance if isinstance(measurement, ColumnMeasurement) else 0.0


def measure(outcomes: Sequence[float], request: list[RowPlays], spec: StudyCreate) -> list[Answer]:
    """Measure y = f(row) + N(0, noise_variance) for each play, then release it by the study's answer mechanism.

    ``outcomes`` are the exact f of the rows of ``request``, in order. Source: Kharkovskii et al. (2020), section 2.
    """
    return release(measured(outcomes, request, spec), spec)


def measured(outcomes: Sequence[float], request: list[RowPlays], spec: StudyCreate) -> list[Measured]:
    """The measurements before release: each play with independent noise."""
    counts = [item.plays for item in request]
    numbers = [y for y, plays in zip(outcomes, counts, strict=True) for _ in range(plays)]
    if (variance := added_variance(spec)) > 0:
        numbers = noise.add_gaussian(np.array(numbers), math.sqrt(variance)).tolist()
    ends = accumulate(counts)
    return [
        Measured(item.row, list(range(1, item.plays + 1)), numbers[end - item.plays : end])
        for item, end in zip(request, ends, strict=True)
    ]
