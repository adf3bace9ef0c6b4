"""The mechanisms of answers: clip y, then randomize it in one of three ways, each epsilon-DP for one release.

Also the release of measurements: of y from a column, by play or as means.
"""

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from pydantic_core import to_json

from blindopt import wire
from blindopt.arrays import Vector
from blindopt.wire import NUMBER_MAX, Answer, ColumnMeasurement, NoAnswerNoise, NoisePassport, RowPlays, StudyCreate
from blindopt.wire.answer import BOUNDED_EPSILON_MAX
from curator_service.privacy import noise
from curator_service.privacy.noise import bounded
from curator_service.privacy.noise.laplace import add_laplace, laplace_scale, mean_reach
from curator_service.privacy.noise.lattice import check_finite
from curator_service.privacy.prices import answers_add_up


@dataclass(frozen=True, slots=True)
class AnswerMechanism:
    """Randomizes numbers within ``bound`` of ``centre``.

    Claims epsilon-DP for replacing a number by any other, because numbers are clipped first. ``centre`` is public, so
    subtracting and adding it costs no privacy.
    """

    noise: wire.PrivacyNoise
    centre: float
    bound: float
    draw: Callable[[Vector], Vector]
    """Randomizes offsets within ``bound`` of 0."""
    variance_at: Callable[[Vector], Vector]
    """The variance of the answer about each of such offsets: affine in their squares."""

    @property
    def clip(self) -> tuple[float, float]:
        """The bounds that y is clipped to, in units of y."""
        return self.centre - self.bound, self.centre + self.bound

    def clipped(self, values: Vector) -> Vector:
        """Clip ``values`` (m,) to offsets within ``bound`` of the centre. Raises NumericalFailure."""
        check_finite(values)
        offsets: Vector = np.clip(values - self.centre, -self.bound, self.bound)
        return offsets

    def release(self, offsets: Vector) -> Vector:
        return self.centre + self.draw(offsets)


@lru_cache(maxsize=1024)
def mechanism_of(answers: wire.Answers, persons: int = 1) -> AnswerMechanism | None:
    """The mechanism for the answers of a study; None where y is released as it was measured.

    ``persons``: how many different persons' numbers an answer is the mean of. It is then epsilon-DP for replacing one
    of these numbers, which needs less noise with laplace and one_bit; piecewise has the noise of one number.
    """
    match wire.concrete_answers(answers):
        case wire.NoAnswerNoise():
            return None
        case wire.LaplaceAnswers() as spec:
            bound, epsilon = spec.bound, wire.amount(spec.epsilon)
            scale = laplace_scale(mean_reach(bound, persons), epsilon)
            noise = wire.PrivacyNoise(family="laplace", scale=scale, bound=bound, variance=2 * scale**2)
            return AnswerMechanism(
                noise,
                spec.centre,
                bound,
                draw=lambda values: add_laplace(values, bound, epsilon, persons),
                variance_at=lambda values: np.full(len(values), 2 * scale**2),
            )
        case spec:
            law = _bounded_law(spec, persons)
            noise = wire.PrivacyNoise(family=spec.mechanism, scale=law.size, bound=spec.bound, variance=law.variance)
            return AnswerMechanism(noise, spec.centre, spec.bound, law.draw, law.variance_at)


def faults(answers: wire.Answers) -> list[dict[str, object]]:
    """Errors for answers of a draft that no mechanism can give."""
    if (
        isinstance(answers, wire.OneBitAnswers | wire.PiecewiseAnswers)
        and wire.amount(answers.epsilon) > BOUNDED_EPSILON_MAX
    ):
        message = (
            f"{answers.mechanism} answers take an epsilon of {BOUNDED_EPSILON_MAX} at most: choose laplace or auto"
        )
        return [{"field": "answers.epsilon", "message": message}]
    return []


def _bounded_law(
    answers: wire.OneBitAnswers | wire.PiecewiseAnswers, persons: int = 1
) -> bounded.OneBit | bounded.Piecewise:
    bound, epsilon = answers.bound, wire.amount(answers.epsilon)
    one_bit = isinstance(answers, wire.OneBitAnswers)
    return bounded.one_bit(bound, epsilon, persons) if one_bit else bounded.piecewise(bound, epsilon)


@dataclass(frozen=True, slots=True, repr=False)
class Measured:
    """The measurements of one item of a query: a row of Z, the plays that have a y, and these y, as measured."""

    row: int
    plays: list[int]
    values: list[float]


def draws_nothing(spec: StudyCreate) -> bool:
    """Whether measurements are released as they are."""
    return spec.answers.mechanism == "none"


def releases_mean(spec: StudyCreate) -> bool:
    """Whether the plays of a row in one query are released once, as their mean."""
    return not isinstance(spec.answers, NoAnswerNoise) and spec.answers.plays == "mean"


def mechanism_for(spec: StudyCreate, plays: int) -> AnswerMechanism | None:
    """The mechanism for a released number that is the mean of ``plays`` measurements; None where y has no noise.

    Where each measurement is another person's, it is for a move of one of them. Where they are one record's, or where
    the record's stored value is behind them all, it is for all of them.
    """
    return mechanism_of(spec.answers, 1 if answers_add_up(spec) else plays)


def release(measured: list[Measured], spec: StudyCreate) -> list[Answer]:
    """Clip and randomize measurements if y is private; else release them as they are.

    One answer per play, each with independent randomness; or, where the study releases means, one per item: the mean
    of its clipped measurements. A mean lies within the clip like a measurement, so one release of it is
    epsilon-DP for replacing all of them; where each is another person's, its noise is for replacing one of them. Items
    without a measurement have no answer. Source: Zhou & Tan (2021), Algorithm CTL, the curator's part.
    """
    items = [item for item in measured if item.plays]
    counts = [len(item.plays) for item in items]
    values: Vector | list[float] = [value for item in items for value in item.values]
    if mean := releases_mean(spec):
        released = [(item.row, 1, len(item.plays)) for item in items]
    else:
        released = [(item.row, play, 1) for item in items for play in item.plays]
    if not released:
        return []
    if (mechanism := mechanism_of(spec.answers)) is not None:
        offsets = mechanism.clipped(np.array(values))
        values = (_released_means(offsets, counts, spec) if mean else mechanism.release(offsets)).tolist()
    passports = {plays: passport_of(spec, plays) for plays in (set(counts) if mean else (1,))}
    return [
        Answer(row=row, play=play, plays=plays, y=y, passport=passports[plays])
        for (row, play, plays), y in zip(released, values, strict=True)
    ]


def _released_means(offsets: Vector, counts: list[int], spec: StudyCreate) -> Vector:
    """The randomized means of the first ``counts[0]`` clipped offsets, of the next ``counts[1]``, and so on."""
    by_item = np.split(offsets, np.cumsum(counts)[:-1])
    means = np.array([math.fsum(of_item) / len(of_item) for of_item in by_item])
    # One draw for all means that have the same noise.
    shares = np.ones(len(counts)) if answers_add_up(spec) else np.array(counts)
    for share in sorted(set(shares.tolist())):
        mechanism, same = mechanism_for(spec, int(share)), np.flatnonzero(shares == share)
        assert mechanism is not None
        for index, y in zip(same, mechanism.release(means[same]), strict=True):
            means[index] = y
    return means


def passport_of(spec: StudyCreate, plays: int = 1) -> NoisePassport:
    """The public noise description of a y that is the mean of ``plays`` measurements.

    The variance of measurement noise is known where the curator adds it to a column, or where the owner declared it.
    """
    is_column = isinstance(spec.measurement, ColumnMeasurement)
    return _passport(mechanism_for(spec, plays), spec.measurement.noise_variance / plays, is_column)


@lru_cache(maxsize=1024)
def _passport(mechanism: AnswerMechanism | None, variance: float, is_column: bool) -> NoisePassport:
    is_known = is_column or variance > 0
    if mechanism is None:
        return NoisePassport(measurement_variance=variance, measurement_variance_known=is_known)
    return NoisePassport(
        privacy=mechanism.noise, clip=mechanism.clip, measurement_variance=variance, measurement_variance_known=is_known
    )


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


def reply_salt(numbers: Iterable[float]) -> str:
    """A random text of 32 characters, and as many more as the numbers of the reply are shorter than their longest form.

    So the length of a reply, which a network sees through TLS, says nothing about its numbers.

    >>> len(reply_salt([0.5])) - len(reply_salt([-0.5]))
    1
    """
    length = 32 + sum(NUMBER_MAX - len(to_json(number)) for number in numbers)
    return secrets.token_hex(-(-length // 2))[:length]
