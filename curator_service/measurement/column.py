"""Measurements that are a column of the dataset, with the paper's measurement noise and the answers' privacy."""

import math

import numpy as np

from curator_service.privacy import noise
from shared.matrix import Vector
from shared.wire import Answer, LaplaceAnswers, NoisePassport, PrivacyNoise, RowPlays, StudyCreate, amount


def is_exact(spec: StudyCreate) -> bool:
    """Whether nothing is drawn for an answer."""
    return spec.measurement.noise_variance == 0 and spec.answers.mechanism == "none"


def measure(outcomes: Vector, asked: list[RowPlays], spec: StudyCreate) -> list[Answer]:
    """One answer per play: y = f(row) + N(0, noise_variance), then clip and noise if y is private.

    Each play has noise of its own. ``outcomes`` (rows of ``asked``, in order) are exact. Sources:
    Kharkovskii et al. (2020), section 2; Zhou & Tan (2021), Algorithm CTL, the curator's part.
    """
    plays = [(item.row, play) for item in asked for play in range(1, item.plays + 1)]
    values = np.repeat(outcomes, [item.plays for item in asked])
    if spec.measurement.noise_variance > 0:
        values = noise.add_gaussian(values, math.sqrt(spec.measurement.noise_variance))
    if isinstance(spec.answers, LaplaceAnswers):
        values = noise.add_laplace(values, spec.answers.bound, amount(spec.answers.epsilon))
    passport = passport_of(spec)
    return [
        Answer(row=row, play=play, y=float(y), passport=passport) for (row, play), y in zip(plays, values, strict=True)
    ]


def passport_of(spec: StudyCreate) -> NoisePassport:
    """What is done to every y of a study: public."""
    variance = spec.measurement.noise_variance
    if not isinstance(spec.answers, LaplaceAnswers):
        return NoisePassport(measurement_variance=variance)
    bound = spec.answers.bound
    scale = noise.laplace_scale(bound, amount(spec.answers.epsilon))
    privacy = PrivacyNoise(family="laplace", scale=scale, bound=bound)
    return NoisePassport(privacy=privacy, clip=(-bound, bound), measurement_variance=variance)
