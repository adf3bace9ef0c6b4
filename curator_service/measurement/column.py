"""Measurements that are a column of the dataset, with the paper's measurement noise if asked for."""

import math

import numpy as np

from curator_service.privacy import noise
from shared.matrix import Vector
from shared.wire import Answer, Measurement, NoisePassport, RowPlays


def measure(outcomes: Vector, asked: list[RowPlays], measurement: Measurement) -> list[Answer]:
    """One answer per play: y = f(row) + N(0, noise_variance), each play with noise of its own.

    ``outcomes`` (rows of ``asked``, in order) are exact. Source: Kharkovskii et al. (2020), section 2.
    """
    plays = [(item.row, play) for item in asked for play in range(1, item.plays + 1)]
    exact = np.repeat(outcomes, [item.plays for item in asked])
    if measurement.noise_variance > 0:
        exact = noise.add_gaussian(exact, math.sqrt(measurement.noise_variance))
    passport = NoisePassport(measurement_variance=measurement.noise_variance)
    return [
        Answer(row=row, play=play, y=float(y), passport=passport) for (row, play), y in zip(plays, exact, strict=True)
    ]
