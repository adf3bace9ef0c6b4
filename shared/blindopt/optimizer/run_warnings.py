"""Warnings about a run under way: what its answers say against its model, or against its settings.

A pure function of what the run knows: settings and answers. A replay of the record derives the same.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from blindopt import wire
from blindopt.answer_worth import FEW, law_of
from blindopt.gp.observations import leave_one_out
from blindopt.gp.single_thread_blas import left_product
from blindopt.optimizer.algorithms.gp.surrogate import Surrogate

Code = Literal["answers_impossible", "answer_far_off", "model_explains_nothing", "queries_repeat", "outcomes_failed"]
ANSWERS_CHECKED_MIN = 5
"""Answers from which on they are checked against the model."""
LAST = 10
"""Trials among which repeats are counted."""
ANSWERS_MIN = 30
"""Answers from which on a model should explain something."""
GAIN_MIN = 3.0
"""Nats by which a model should predict all answers, each from the others, better than their mean does."""
FAR_OFF = 8.0
"""Standard deviations from the prediction by all other answers that no answer should lie away."""
_LEVEL = 1e-9  # probability of such answers under the given kernel, or larger ones

_IMPOSSIBLE = (
    "The answers are impossible under the given kernel: they lie {factor:.2g} times as far from its predictions as it "
    "expects. Set fit to auto, or correct the kernel's mean, variances and length-scale."
)
_FAR_OFF = (
    "The answer for candidate {row} is impossible under the fitted model: it lies {factor:.2g} standard deviations "
    "from what all other answers predict. Check it. If it is right, the outcome jumps where the model cannot follow."
)
_NOTHING = (
    "The model explains nothing so far: it predicts the answers no better than their mean does. If that stays so, "
    "{advice}"
)
_SET_FIT = "set fit to auto, or correct the kernel."
_ASK_OWNER = (
    "expect no more than random candidates would give: ask the owner for a release with less noise, or with other "
    "features."
)
_ASK_ANSWERS = (
    "the reason is the noise of the answers: ask the owner for answers with a larger epsilon, or for more measurements."
)
_SAME_AGAIN = (
    "At least half of the last {last} trials repeat a candidate, whose answer is the same each time. Set repeats to "
    "never."
)
_AGAIN = (
    "At least half of the last {last} trials repeat a candidate. Where a second answer teaches little, set repeats to "
    "after_all."
)


class RunWarning(NamedTuple):
    """A warning with its code, which a notice carries in place of the text."""

    code: Code
    text: str


def repeat_warnings(repeated: Iterable[bool], *, exact: bool) -> list[RunWarning]:
    """The warning that half of the last trials repeat a candidate, if they do."""
    if 2 * sum(repeated) < LAST:
        return []
    return [RunWarning("queries_repeat", (_SAME_AGAIN if exact else _AGAIN).format(last=LAST))]


def failure_warnings(outcomes: list[float], sign: int) -> list[RunWarning]:
    """The warning that ``outcomes`` count as declined, because they are far on the bad side of the others."""
    if not outcomes:
        return []
    count, number = len(outcomes), max if sign > 0 else min
    values = f"{number(outcomes):.4g}{'' if len(set(outcomes)) == 1 else ' or worse'}"
    many = f"{count} outcomes of {values} lie" if count > 1 else f"An outcome of {values} lies"
    side = "below" if sign > 0 else "above"
    text = f"{many} far {side} the others, and the search counts them as declined: if they are failures, decline them."
    return [RunWarning("outcomes_failed", text)]


def model_warnings(surrogate: Surrogate, answers: wire.Answers) -> list[RunWarning]:
    """Warnings of the model after all answers, with the hyper-parameters of the next choice."""
    from scipy.special import chdtrc  # late, for a fast start of the services

    observed = surrogate.posterior.observations
    if (count := observed.count) < ANSWERS_CHECKED_MIN:
        return []
    white, warnings = observed.weights[:count], []
    squares = float(white @ white)
    if surrogate.keeps_kernel and chdtrc(count, squares) < _LEVEL:
        factor = float(np.sqrt(squares / count))
        return [RunWarning("answers_impossible", _IMPOSSIBLE.format(factor=factor))]
    root, values = observed.inverse[:count, :count], np.array([value for _, value, _ in surrogate.outcomes])
    if np.ptp(values) == 0:
        return []  # equal answers say nothing of a model
    check = leave_one_out(root, left_product(white, root), values)
    if not surrogate.keeps_kernel and check.largest_residual > FAR_OFF:
        row = surrogate.outcomes[check.worst][0]
        warnings.append(RunWarning("answer_far_off", _FAR_OFF.format(row=row, factor=check.largest_residual)))
    if count >= ANSWERS_MIN and not count * (check.log_density - check.baseline) >= GAIN_MIN:
        advice = _SET_FIT if surrogate.keeps_kernel else _ASK_OWNER
        if (law := law_of(answers)) is not None and law.worth(count) < FEW:
            advice = _ASK_ANSWERS
        warnings.append(RunWarning("model_explains_nothing", _NOTHING.format(advice=advice)))
    return warnings
