"""Averaging: queries for y of one row, as many as the caps allow, whose mean has less noise than each answer.

Nothing here depends on the machine: the number of answers is that of the caps, whatever a draw takes. Few answers are
drawn through the path that measures; of many the law of the mean is used, which is that of a normal variable to well
within the interval of the finding.
"""

from math import sqrt

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire import Finding, NoAnswerNoise, RowPlays, StudyCreate
from curator_service.privacy.answers import added_variance, is_exact, measure, mechanism_of
from curator_service.privacy.measurement.groups import LEVELS, GroupAnswers, steps
from curator_service.privacy.prices import Prices, is_groups, text
from curator_service.releases.attacks.scene import ALPHA, median_interval

DRAWN_MAX = 100
"""Up to so many answers about a row are drawn; of more, the law of their mean is used."""
DRAWN_ROWS = 25
LAW_ROWS = 1_000
ENDLESS = "often enough knows its outcome as exactly as it likes, because no cap limits the answers"
"""What the sentence of a finding says where no cap ends answers in noise."""
_EXAMPLE = 1_000
"""The number of answers that a sentence gives as an example where no cap ends them."""


def attack(spec: StudyCreate, outcomes: Vector | None, rng: np.random.Generator) -> Finding | None:
    """The median error of the mean of all answers that the caps allow about one row, against the measurement (n,).

    Where y is not measured yet (None), values are drawn uniformly from the range that answers are clipped to, and each
    is the same every time that it is measured.

    The error is in units of the outcome. All draws are thrown away. Without a cap it is what no number
    of answers takes away: 0, but for values outside of the range. None where the caps allow no answer at all.
    """
    k = answers_about_a_row(spec)
    if k == 0:
        return None
    rows = DRAWN_ROWS if k is not None and k <= DRAWN_MAX else LAW_ROWS
    if outcomes is None:
        truths = _even_outcomes(spec, rows, rng)
    else:
        truths = np.asarray(outcomes)[rng.integers(len(outcomes), size=rows)]
    errors, sentence = _unlimited(spec, truths, rng) if k is None else _limited(spec, truths, k, rng)
    if outcomes is None and not is_exact(spec):
        sentence += " (Tried on values spread evenly over the range, not on measured ones.)"
    error, low, high = median_interval(errors)
    return Finding(
        attack="averaging",
        figure=error,
        low=low,
        high=high,
        confidence=1 - ALPHA,
        success=_success(error, _blind_error(spec, truths)),
        blind=0.0,
        unit=f"error of the outcome, in {_unit(spec) or 'its own unit'}",
        sentence=sentence,
    )


def _blind_error(spec: StudyCreate, truths: Vector) -> float:
    """Median error of a guess without answers: the middle of the range, or the median."""
    if isinstance(spec.answers, NoAnswerNoise):
        return float(np.median(np.abs(truths - np.median(truths))))
    return float(np.median(np.abs(truths - spec.answers.centre)))


def _success(error: float, blind: float) -> float:
    """The share of the error of a blind guess that answers take away."""
    if error == 0:
        return 1.0
    return max(0.0, 1 - error / blind) if blind > 0 else 0.0


def answers_about_a_row(spec: StudyCreate) -> int | None:
    """The number of answers that the caps allow about one row if no other row is queried; None where no cap ends them.

    Counted as the ledger does, which charges the release first. 1 for exact answers, because they are all the same.
    """
    if is_exact(spec):
        return 1
    return Prices.of(spec).about_one(spec.budget)


def law_of_mean(spec: StudyCreate, truths: Vector, k: int) -> tuple[Vector, Vector]:
    """Mean and standard deviation of the mean of ``k`` answers about each of ``truths`` (m,), in units of y.

    Each answer is one of a query of its own: y with the measurement noise that the curator adds, clipped, randomized.
    """
    variance, mechanism = added_variance(spec), mechanism_of(spec.answers)
    if mechanism is None:
        return truths, np.full(len(truths), sqrt(variance / k))
    mean, second = _clipped_normal(truths - mechanism.centre, sqrt(variance), mechanism.bound)
    # The variance of an answer is affine in the square of its offset, so its mean is that at the root mean square.
    spread = mechanism.variance_at(np.sqrt(second)) + np.maximum(second - mean**2, 0)
    return mechanism.centre + mean, np.sqrt(spread / k)


def _clipped_normal(means: Vector, sd: float, bound: float) -> tuple[Vector, Vector]:
    """First and second moment of normal variables that are clipped to [-bound, bound]."""
    from scipy.special import ndtr

    if sd == 0:
        clipped = np.clip(means, -bound, bound)
        return clipped, clipped**2
    low, high = (-bound - means) / sd, (bound - means) / sd
    below, above, inside = ndtr(low), ndtr(-high), ndtr(high) - ndtr(low)
    dense_low, dense_high = (np.exp(-(at**2) / 2) / sqrt(2 * np.pi) for at in (low, high))
    first = bound * (above - below) + means * inside - sd * (dense_high - dense_low)
    second = bound**2 * (above + below) + (means**2 + sd**2) * inside
    second -= sd**2 * (high * dense_high - low * dense_low) + 2 * means * sd * (dense_high - dense_low)
    return first, second


def _limited(spec: StudyCreate, truths: Vector, k: int, rng: np.random.Generator) -> tuple[Vector, str]:
    """Errors (m,) of the mean of ``k`` answers, and the sentence."""
    errors = np.abs(means_of(spec, truths, k, rng) - truths)
    question = f"A vendor that queries one record {k:,} times" if k > 1 else "A vendor that queries one record once"
    if is_exact(spec):
        return errors, "One query reveals the exact outcome of a record: answers have no noise, and no finite epsilon."
    if isinstance(spec.answers, NoAnswerNoise):
        return (
            errors,
            f"{question} knows its outcome to within {np.median(errors):.2g} in the median, without a finite epsilon.",
        )
    cost = _cost(spec, k)
    guesses = np.abs(truths - spec.answers.centre)
    if np.median(guesses) <= np.median(errors):  # the middle of the range is public
        off = _off(spec, guesses)
        return guesses, f"{question}{cost}, does no better than by guessing the middle, {off} off in the median."
    return errors, f"{question}{cost}, knows its outcome to within {_off(spec, errors)} in the median."


def _unlimited(spec: StudyCreate, truths: Vector, rng: np.random.Generator) -> tuple[Vector, str]:
    """Errors (m,) that no number of answers takes away, and the sentence."""
    off = _off(spec, np.abs(means_of(spec, truths, _EXAMPLE, rng) - truths))
    start = f"A vendor that queries one record {ENDLESS}."
    if isinstance(spec.answers, NoAnswerNoise):
        sentence = (
            f"{start} {_EXAMPLE:,} answers reveal its outcome to within {off} in the median, at no finite epsilon."
        )
        return np.zeros(len(truths)), sentence
    centre, bound = spec.answers.centre, spec.answers.bound
    sentence = f"{start} {_EXAMPLE:,} answers{_cost(spec, _EXAMPLE)}, reveal its outcome to within {off} in the median."
    return np.maximum(np.abs(truths - centre) - bound, 0), sentence


def means_of(spec: StudyCreate, truths: Vector, k: int, rng: np.random.Generator) -> Vector:
    """Means (m,) of ``k`` answers about each of ``truths``, clipped to the public range."""
    if is_groups(spec):
        means = _of_group(GroupAnswers.of(spec), truths, k, rng)
    elif k <= DRAWN_MAX:
        requested = [RowPlays(row=0, plays=1)] * k  # each is a query of its own
        drawn_answers = [measure([float(truth)] * k, requested, spec) for truth in truths]
        means = np.array([np.mean([answer.y for answer in answers]) for answers in drawn_answers])
    else:
        centres, sds = law_of_mean(spec, truths, k)
        means = rng.normal(centres, sds)
    if isinstance(spec.answers, NoAnswerNoise):
        return means
    centre, bound = spec.answers.centre, spec.answers.bound
    return np.asarray(np.clip(means, centre - bound, centre + bound))


def _of_group(mechanism: GroupAnswers, truths: Vector, k: int, rng: np.random.Generator) -> Vector:
    """Means (m,) of ``k`` answers about the group of each of ``truths``, for somebody who knows the other records."""
    totals = [steps(np.array([truth]), mechanism.answers) for truth in truths.tolist()]
    if k <= DRAWN_MAX:
        return np.array([np.mean([mechanism.draw(total, 1) for _ in range(k)]) for total in totals])
    exact = mechanism.answers.centre + np.array(totals) / LEVELS * mechanism.answers.bound
    means: Vector = rng.normal(exact, sqrt(mechanism.passport(1).privacy.variance or 0.0) / sqrt(k))
    return means


def _cost(spec: StudyCreate, k: int) -> str:
    return f", with epsilon {text(k * Prices.of(spec).answer)} in total"


def _even_outcomes(spec: StudyCreate, rows: int, rng: np.random.Generator) -> Vector:
    spread: Vector = rng.uniform(-1, 1, size=rows)
    if isinstance(spec.answers, NoAnswerNoise):
        return spread
    return spec.answers.centre + spec.answers.bound * spread


def _unit(spec: StudyCreate) -> str:
    return getattr(spec.measurement, "unit", None) or ""


def _off(spec: StudyCreate, errors: Vector) -> str:
    return f"{np.median(errors):.2g} {_unit(spec)}".rstrip()
