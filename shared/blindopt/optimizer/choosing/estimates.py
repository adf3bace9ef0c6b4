"""What a chooser estimates after the answers so far: its recommendation, and posterior moments."""

from typing import Literal

from blindopt import wire
from blindopt.arrays import Rows
from blindopt.errors import Invalid
from blindopt.optimizer.algorithms.factory import Learner
from blindopt.optimizer.choosing.chooser import RowChooser

QUANTILE = 1.959963984540054  # of a normal, for 95 %
Over = Literal["asked", "all"]


def recommendation_of(chooser: RowChooser, over: Over) -> wire.Recommendation | None:
    """Return the row of the best mean; None before the first outcome, and if the algorithm has no estimate."""
    if (best := chooser.best(over)) is None:
        return None
    by: Literal["posterior", "estimate", "observed"] = "posterior"
    if chooser.learner is None:
        by = "observed"
    elif chooser.few_arms:
        by = "estimate"
    reach = None if best.sd is None else QUANTILE * best.sd
    return wire.Recommendation(
        row=best.row,
        over=over,
        by=by,
        mean=best.mean,
        sd=best.sd,
        interval=None if reach is None else [best.mean - reach, best.mean + reach],
        outcomes=chooser.outcomes,
    )


def learner_of(chooser: RowChooser) -> Learner:
    """Return the algorithm of a run, which estimates f. Raises Invalid if it does not."""
    if chooser.learner is None:
        raise Invalid("the algorithm of this run estimates nothing")
    return chooser.learner


def points_of(chooser: RowChooser, rows: Rows) -> list[wire.PosteriorPoint]:
    """Return posterior moments of f at some rows, in units of the measurement. Raises Invalid without estimates."""
    mean, variance = learner_of(chooser).moments(rows)
    return [
        wire.PosteriorPoint(row=int(row), mean=float(chooser.sign * m), sd=float(v) ** 0.5)
        for row, m, v in zip(rows, mean, variance, strict=True)
    ]
