"""Averaging: queries for y of one row, as many as the caps allow, whose mean has less noise than each answer."""

import time
from math import inf

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire import Finding, NoAnswerNoise, RowPlays, StudyCreate
from curator_service.attacks.intervals import ALPHA, median_interval
from curator_service.measurement.column import is_exact, measure
from curator_service.privacy.ledger import Prices, answers_add_up, text, units

ANSWERS_MAX = 1_000
ANSWERS_MIN = 100
"""So many answers are tried however long they take, where the caps allow as many."""
ROWS_MIN = 6
ROWS_MAX = 25


def attack(
    spec: StudyCreate,
    outcomes: Vector | None,
    rng: np.random.Generator,
    *,
    seconds: float = 1.0,
    answer_seconds: float | None = None,
) -> Finding | None:
    """The median error of the mean of all answers that the caps allow about one row, against the measurement (n,).

    Where y is not measured yet (None), values are drawn uniformly from the range that answers are clipped to, and each
    is the same every time that it is measured.

    The error is in units of C where answers are private. All draws are thrown away. Slow answers are tried fewer times
    than the caps allow, and the sentence says how many times. None where the caps allow no answer at all.
    ``answer_seconds`` is the time of one answer, which is measured unless given.
    """
    k = answers_about_a_row(spec)
    if k == 0:
        return None
    unknown = outcomes is None
    if outcomes is None:
        outcomes = _even_outcomes(spec, rng)
    draws = int(seconds / (answer_seconds or _answer_seconds(spec, float(outcomes[0]))))
    k = min(k, max(ANSWERS_MIN, draws // ROWS_MIN))
    private = not isinstance(spec.answers, NoAnswerNoise)
    rows = int(np.clip(draws // k, ROWS_MIN, ROWS_MAX))
    chosen = rng.integers(len(outcomes), size=rows)
    truths = np.asarray(outcomes)[chosen]
    errors = np.array([abs(_mean(spec, float(truth), k) - truth) for truth in truths])
    blind = False
    if isinstance(spec.answers, NoAnswerNoise):
        unit = "error of y, in its own unit"
    else:
        errors, unit = errors / spec.answers.bound, "error of y, in units of C"
        guesses = np.abs(truths - spec.answers.centre) / spec.answers.bound
        if blind := bool(np.median(guesses) <= np.median(errors)):  # the middle of the range is public
            errors = guesses
    error, low, high = median_interval(errors)
    cost = f", which cost epsilon {text(k * Prices.of(spec).answer)} together" if private else ""
    question = f"Who asks for y of one row {k:,} times" if k > 1 else "Who asks for y of one row once"
    if is_exact(spec):
        sentence = "Who asks for y of a row once gets it as it is: answers have no noise, and no finite epsilon."
    elif blind:
        sentence = (
            f"{question}{cost}, does no better than by guessing the middle: {_percent(error)} of C off in the median."
        )
    elif private:
        sentence = f"{question}{cost}, knows it to within {_percent(error)} of C in the median."
    else:
        sentence = f"{question} knows it to within {error:.2g} in the median; it has no finite epsilon."
    if unknown and not is_exact(spec):
        sentence += " (Tried on y spread evenly over the range: none is measured yet.)"
    return Finding(
        attack="averaging", figure=error, low=low, high=high, confidence=1 - ALPHA, unit=unit, sentence=sentence
    )


def answers_about_a_row(spec: StudyCreate) -> int:
    """The number of answers that the caps allow about one row if no other row is queried; ANSWERS_MAX at most.

    Counted as the ledger does, which charges the release first. 1 for exact answers, because they are all the same.
    """
    if is_exact(spec):
        return 1
    prices, budget = Prices.of(spec), spec.budget
    limits = [ANSWERS_MAX, budget.queries if budget.queries is not None else inf]
    if prices.answer:
        if budget.epsilon_total is not None:
            limits.append((units(budget.epsilon_total) - prices.release) // prices.answer)
        if budget.epsilon_per_row is not None and answers_add_up(spec):
            limits.append((units(budget.epsilon_per_row) - prices.release) // prices.answer)
    return max(0, int(min(limits)))


def _even_outcomes(spec: StudyCreate, rng: np.random.Generator) -> Vector:
    spread: Vector = rng.uniform(-1, 1, size=ROWS_MAX)
    if isinstance(spec.answers, NoAnswerNoise):
        return spread
    return spec.answers.centre + spec.answers.bound * spread


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _answer_seconds(spec: StudyCreate, y: float) -> float:
    _mean(spec, y, 2)  # the first draw loads the noise library
    begun = time.perf_counter()
    _mean(spec, y, 20)
    return (time.perf_counter() - begun) / 20


def _mean(spec: StudyCreate, truth: float, k: int) -> float:
    """The mean of ``k`` answers, each from a query of its own, clipped to the public range."""
    request = [RowPlays(row=0, plays=1)] * k
    mean = float(np.mean([answer.y for answer in measure(np.full(k, truth), request, spec)]))
    if isinstance(spec.answers, NoAnswerNoise):
        return mean
    centre, bound = spec.answers.centre, spec.answers.bound
    return float(np.clip(mean, centre - bound, centre + bound))
