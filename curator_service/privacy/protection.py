"""How well a study protects the hidden change and a whole record: two epsilons, with answers, and one word.

With t the diagonal of the declared box in units of Delta, k records of a person, and noise of slope a for each record:

- Planar Laplace noise is a-private for a move by Delta, so by the triangle inequality k a t bounds k whole records.
  With the promise of one feature at a time t is the sum of the box's sides: all features may change at once.
- Gaussian noise: k moves by t Delta are one by sqrt(k) t Delta. The least e with delta_G(e; sqrt(k) t Delta / sd) =
  delta holds at the delta of the release. It grows faster than t.
- Groups hide whole records: both figures are equal.
- Second draws of the k records, pure and of slope b, add k b to the hidden change and k b t to a whole record.

What the caps leave for answers is added to both. A t below 1 counts as 1.
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from math import log, sqrt

import numpy as np

from blindopt import wire
from blindopt.arrays import Vector
from curator_service.privacy.calibration import (
    AXES_MAX,
    Concrete,
    gaussian_delta,
    gaussian_sd,
    of_axes,
    on_axes,
    projected_gaussian_sd,
    projected_length,
    slope_of_row,
)
from curator_service.privacy.prices import answers_add_up, exact
from curator_service.privacy.search_noise import diagonal

RANGES: tuple[tuple[Decimal, wire.Strength], ...] = (
    (Decimal(1), "strong"),
    (Decimal(3), "moderate"),
    (Decimal(6), "weak"),
)
"""The largest epsilon of each named range; above all of them it is nearly none."""
_UP = Context(prec=30, rounding=ROUND_CEILING)
_SHOWN = Context(prec=3, rounding=ROUND_CEILING)
_PLACES = Decimal("1e-12")  # of every amount that is typed
_HALVINGS = 200


def strength(epsilon: Decimal | None) -> wire.Strength:
    """The name of the range that epsilon is in. None: no epsilon bounds it."""
    if epsilon is None:
        return "without a bound"
    return next((name for most, name in RANGES if epsilon <= most), "nearly none")


@dataclass(frozen=True, slots=True)
class Protection:
    """Epsilon of the hidden change, and of a whole record, after all answers that the caps allow.

    None if nothing bounds the answers. With ``records`` of a person, both are the person's. ``release``: epsilon of the
    hidden change before any answer, with ``second`` for second draws.
    """

    hidden: Decimal | None
    whole: Decimal | None
    release: Decimal
    records: int = 1
    is_capped: bool = False
    """Whether a cap bounds all answers but corrections."""
    second: Decimal = Decimal(0)
    is_one_feature: bool = False
    """Whether the hidden change is of one feature at a time."""

    @property
    def word(self) -> wire.Strength:
        """The range of a whole record's epsilon."""
        return strength(self.whole)

    @property
    def figures(self) -> tuple[float | None, float | None]:
        """``hidden`` and ``whole`` as doubles."""
        if self.hidden is None or self.whole is None:
            return None, None
        return float(self.hidden), float(self.whole)

    @property
    def sentence(self) -> str:
        """Both figures, never less than they are, and the word at the end."""
        hidden = f"The hidden change{' of one feature' if self.is_one_feature else ''}"
        record = "A whole record" if self.records == 1 else f"A person with {self.records} whole records"
        if self.hidden is None or self.whole is None:
            no_bound = "of which corrections" if self.is_capped else "which"
            draw = ", with a second draw and" if self.second else ""
            return (
                f"{hidden}: epsilon {_shown(self.release)}{draw} before answers, {no_bound} have no bound. "
                f"{record}: {self.word}."
            )
        return (
            f"{hidden}: epsilon {_shown(self.hidden)} with answers. "
            f"{record}: epsilon {_shown(self.whole)}, {self.word}."
        )


def protection(spec: wire.StudyCreate, release: Concrete) -> Protection | None:
    """What a study with this release protects; None if the release promises nothing."""
    if isinstance(release, wire.IdentityRelease | wire.PoGpUcbRelease):
        return None
    first, is_one_feature = of_release(spec, release, 1.0), wire.hides_one_feature(release)
    second = Decimal(0) if spec.refine is None else spec.rows_per_person * wire.amount(spec.refine.epsilon)
    for_answers = _left_for_answers(spec, wire.amount(release.epsilon), second)
    if isinstance(release, wire.GroupsRelease):
        whole = first
    else:
        moves = diagonal(spec.features, is_sum=is_one_feature) / release.sensitivity
        whole = of_release(spec, release, moves)
        if second and for_answers is not None:  # a second draw is in what is left with its price for the hidden change
            whole = _UP.add(whole, _UP.multiply(min(second, for_answers), Decimal(max(moves, 1.0)) - 1))
    if for_answers is None:
        is_capped = spec.budget.queries is not None and not isinstance(spec.answers, wire.NoAnswerNoise)
        return Protection(None, None, _UP.add(first, second), spec.rows_per_person, is_capped, second, is_one_feature)
    if not answers_add_up(spec):  # a person is behind a record or behind an answer
        hidden, most = max(first, for_answers), max(whole, for_answers)
    else:
        hidden, most = _UP.add(first, for_answers), _UP.add(whole, for_answers)
    return Protection(hidden, most, first, spec.rows_per_person, is_one_feature=is_one_feature)


def of_release(spec: wire.StudyCreate, release: Concrete, moves: float, columns: int | None = None) -> Decimal:
    """Epsilon of a person by the release alone, at its delta, if each record moves by ``moves`` times Delta.

    ``columns``: those of the release, where they are not the features.
    """
    assert not isinstance(release, wire.IdentityRelease | wire.PoGpUcbRelease)
    epsilon, d = wire.amount(release.epsilon), columns or len(spec.features)
    k, protected = spec.rows_per_person, spec.protected_rows
    if isinstance(release, wire.GroupsRelease):
        return epsilon * (k // protected)
    if moves <= 1 and k == protected:
        return epsilon
    moves = max(moves, 1.0)
    if isinstance(release, wire.AxesRelease):  # a row moves no further along axes
        if release.r is None and release.axes == "private":  # if too few axes are found, all features get noise
            outcomes = (release.model_copy(update={"r": r}) for r in (min(AXES_MAX, d), d))
            return max(of_release(spec, each, moves) for each in outcomes)
        r = release.r or min(AXES_MAX, d)
        of_rows = of_release(spec, on_axes(release, r, protected), moves, r)
        of_gram, delta = of_axes(release)
        if not of_gram:
            return max(epsilon, of_rows)
        shift = k / protected * max(moves, 1.0) / gaussian_sd(of_gram, delta, 1.0, 1)
        return max(epsilon, _UP.add(of_rows, Decimal(gaussian_epsilon(delta, np.array([shift]), np.ones(1)))))
    if isinstance(release, wire.PlanarLaplaceRelease):
        slope = slope_of_row(epsilon, release.delta, d, protected) if moves > 1 else epsilon
        return max(epsilon, _UP.multiply(k * slope, Decimal(moves)))
    assert not isinstance(release, wire.AutoRelease)
    delta, together = release.delta, sqrt(k) * moves
    if isinstance(release, wire.GaussianRelease):
        shifts, weights = np.array([together / gaussian_sd(epsilon, delta, 1.0, d, protected)]), np.ones(1)
    else:
        sizes, weights = projected_length(d, release.r) if k == 1 else (np.ones(1), np.ones(1))
        shifts = together * sqrt(d / release.r) * sizes / projected_gaussian_sd(epsilon, delta, 1.0, d, release.r)
    return max(epsilon, Decimal(gaussian_epsilon(delta, shifts, weights)))


def gaussian_epsilon(delta: float, shifts: Vector, weights: Vector) -> float:
    """The least epsilon at ``delta`` of Gaussian noise whose mean moves by ``shifts`` (m,) standard deviations.

    Each with the probability in ``weights`` (m,), which the attacker sees. By bisection, rounded up.
    """
    shifts = shifts * (1 + 1e-9)  # lattice and double precision
    largest = float(shifts.max())
    low, high = 0.0, largest**2 / 2 + largest * sqrt(2 * log(1 / delta))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if float(weights @ gaussian_delta(middle, shifts)) <= delta else (middle, high)
    return high


def _left_for_answers(spec: wire.StudyCreate, release: Decimal, second: Decimal) -> Decimal | None:
    """The most that answers and second draws about a person may use under the caps; None if they have no bound."""
    answers, budget, persons = (
        wire.concrete_answers(spec.answers),
        spec.budget,
        spec.rows_per_person // spec.protected_rows,
    )
    if isinstance(answers, wire.NoAnswerNoise):
        return None
    if not answers_add_up(spec):
        caps = [cap for cap in (budget.epsilon_per_row, budget.epsilon_total) if cap is not None]
        return min(map(wire.amount, caps), default=None)  # each correction is a further answer about a person
    lefts = []
    if budget.epsilon_per_row is not None:
        lefts.append(persons * (wire.amount(budget.epsilon_per_row) - release))
    if budget.epsilon_total is not None:
        lefts.append(wire.amount(budget.epsilon_total) - release)
    if budget.queries is not None and isinstance(spec.measurement, wire.ColumnMeasurement):  # no corrections
        lefts.append(budget.queries * wire.amount(answers.epsilon) + second)
    return max(min(lefts), Decimal(0)) if lefts else None


def _shown(epsilon: Decimal) -> str:
    return exact(epsilon if epsilon == epsilon.quantize(_PLACES) else _SHOWN.plus(epsilon))
