"""The private scores of hyper-parameters, checked and clipped: the only module that they enter by."""

import math
from dataclasses import dataclass, field

import numpy as np

from blindopt.errors import TuningFailed
from curator_service.privacy.noise import OnProgress
from curator_service.tuning.methods.problem import Evaluate, Problem


@dataclass(slots=True)
class Objective:
    """Evaluates each hyper-parameter once and caches its score, unless evaluations are ``repeated``."""

    problem: Problem
    evaluate: Evaluate = field(repr=False)
    on_progress: OnProgress = field(repr=False)
    planned: int
    """The number of evaluations in the plan."""
    repeated: bool = False
    done: int = 0
    clipped: int = field(default=0, repr=False)
    _cache: dict[int, float] = field(default_factory=dict, repr=False)

    def offset(self, index: int) -> float:
        """The score of a hyper-parameter less the middle of the range: within half its width of 0."""
        value = self._cache.get(index)
        if value is None or self.repeated:
            value = self._cache[index] = self._score(index)
        self.done += 1
        self.on_progress(self.done / self.planned)
        return value

    def _score(self, index: int) -> float:
        problem = self.problem
        reply = self.evaluate(index)
        try:
            scores = np.asarray(reply, dtype=np.float64)
        except (TypeError, ValueError):  # whose text would quote it
            raise TuningFailed("the scorer returned something that is not a number: nothing was released") from None
        if scores.shape != ((problem.m,) if problem.records in ("computed", "scored") else ()):
            raise TuningFailed("the scorer did not return what the problem says: one score, or one for each record")
        if not np.isfinite(scores).all():  # the message does not say which score, because that depends on the data
            raise TuningFailed("the scorer returned something that is not a finite number: nothing was released")
        half = problem.width / 2
        with np.errstate(over="ignore"):  # infinity is clipped like the rest
            offsets = scores - problem.middle
        self.clipped += int(np.count_nonzero((scores < problem.lower) | (scores > problem.upper)))
        inside = np.clip(offsets, -half, half)
        # fsum rounds once, so the order of the records does not add to the effect of one of them on the mean.
        return math.fsum(inside.tolist()) / problem.m if scores.ndim else float(inside)
