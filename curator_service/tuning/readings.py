"""What evaluate tells, checked and clipped: the one place where private scores come in."""

import math
from dataclasses import dataclass, field

import numpy as np

from blindopt.errors import TuningFailed
from curator_service.privacy.noise import add_gaussian
from curator_service.tuning.problem import Evaluate, Problem, Progress


@dataclass(slots=True)
class Readings:
    """Asks for scores, at most once for each hyper-parameter unless they are ``fresh`` each time."""

    problem: Problem
    evaluate: Evaluate = field(repr=False)
    progress: Progress = field(repr=False)
    planned: int
    """How many will be asked for."""
    fresh: bool = False
    done: int = 0
    clipped: int = field(default=0, repr=False)
    _known: dict[int, float] = field(default_factory=dict, repr=False)

    def offset(self, index: int) -> float:
        """The score of a hyper-parameter, less the middle of the range: within half its width of 0."""
        value = self._known.get(index)
        if value is None or self.fresh:
            value = self._known[index] = self._asked(index)
        self.done += 1
        self.progress(self.done / self.planned)
        return value

    def _asked(self, index: int) -> float:
        problem = self.problem
        said = self.evaluate(index)
        try:
            told = np.asarray(said, dtype=np.float64)
        except (TypeError, ValueError):  # whose text would quote it
            raise TuningFailed("the scorer returned something that is not a number: nothing was released") from None
        if told.shape != ((problem.m,) if problem.records in ("computed", "scored") else ()):
            raise TuningFailed("the scorer did not return what the problem says: one score, or one for each record")
        if not np.isfinite(told).all():  # which one is not told: it depends on the data
            raise TuningFailed("the scorer returned something that is not a finite number: nothing was released")
        half = problem.width / 2
        with np.errstate(over="ignore"):  # infinity is clipped like the rest
            offsets = told - problem.middle
        self.clipped += int(np.count_nonzero((told < problem.lower) | (told > problem.upper)))
        inside = np.clip(offsets, -half, half)
        # fsum rounds once, so that no order of the records adds to how far one of them moves the mean.
        return math.fsum(inside.tolist()) / problem.m if told.ndim else float(inside)


def with_noise(value: float, sd: float) -> float:
    """``value`` plus fresh Gaussian noise, drawn as privacy noise is."""
    return float(add_gaussian(np.array([value]), sd)[0])
