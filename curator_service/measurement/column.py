"""Measurements that are a column of the dataset, with the paper's measurement noise and the answers' privacy."""

import math

import numpy as np

from curator_service.privacy import noise
from curator_service.privacy.answers import mechanism_of
from shared.matrix import Vector
from shared.wire import Answer, NoAnswerNoise, NoisePassport, RowPlays, StudyCreate


def is_exact(spec: StudyCreate) -> bool:
    """Whether nothing is drawn for an answer."""
    return spec.measurement.noise_variance == 0 and spec.answers.mechanism == "none"


def releases_mean(spec: StudyCreate) -> bool:
    """Whether the plays of a row in one query are released once, as their mean."""
    return not isinstance(spec.answers, NoAnswerNoise) and spec.answers.plays == "mean"


def measure(outcomes: Vector, asked: list[RowPlays], spec: StudyCreate) -> list[Answer]:
    """Measure y = f(row) + N(0, noise_variance) for each play, then clip and randomize if y is private.

    One answer per play, each with randomness of its own; or, where the study releases means, one per item of
    ``asked``: the mean of its clipped measurements. A mean lies within the clip like a measurement does, so
    one release of it is epsilon-DP for replacing all of them. ``outcomes`` (rows of ``asked``, in order) are
    exact. Sources: Kharkovskii et al. (2020), section 2; Zhou & Tan (2021), Algorithm CTL, the curator's part.
    """
    counts = [item.plays for item in asked]
    values = np.repeat(outcomes, counts)
    if spec.measurement.noise_variance > 0:
        values = noise.add_gaussian(values, math.sqrt(spec.measurement.noise_variance))
    if mean := releases_mean(spec):
        told = [(item.row, 1, item.plays) for item in asked]
    else:
        told = [(item.row, play, 1) for item in asked for play in range(1, item.plays + 1)]
    if (mechanism := mechanism_of(spec.answers)) is not None:
        values = mechanism.clipped(values)
        values = mechanism.release(_means(values, counts) if mean else values)
    passports = {plays: passport_of(spec, plays) for plays in {plays for *_, plays in told}}
    return [
        Answer(row=row, play=play, plays=plays, y=float(y), passport=passports[plays])
        for (row, play, plays), y in zip(told, values, strict=True)
    ]


def _means(values: Vector, counts: list[int]) -> Vector:
    parts = np.split(values, np.cumsum(counts)[:-1])
    return np.array([math.fsum(part) / len(part) for part in parts])


def passport_of(spec: StudyCreate, plays: int = 1) -> NoisePassport:
    """What is done to a y of a study that is the mean of ``plays`` measurements: public."""
    variance = spec.measurement.noise_variance / plays
    if (mechanism := mechanism_of(spec.answers)) is None:
        return NoisePassport(measurement_variance=variance)
    return NoisePassport(privacy=mechanism.noise, clip=mechanism.clip, measurement_variance=variance)
