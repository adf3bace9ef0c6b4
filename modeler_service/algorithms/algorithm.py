"""What every algorithm offers, and how one is made from a run's settings."""

from typing import Protocol

from modeler_service.algorithms.gp_ucb import GpUcb
from modeler_service.algorithms.random_rows import RandomRows
from shared import wire
from shared.acquisition import Choice
from shared.errors import Invalid
from shared.matrix import Matrix

NAMES = ("gp_ucb", "random")


class Algorithm(Protocol):
    """Chooses rows to maximize an outcome; a pure function of its settings and what it observed."""

    def choose(self, step: int) -> Choice | None:
        """The row to ask at ``step`` (from 1), or None when there is nothing left to ask."""
        ...

    def observe(self, row: int, outcome: float) -> None:
        """Take an outcome into account, in the direction of maximization."""
        ...


def algorithm_of(
    spec: wire.AlgorithmSpec, candidates: Matrix, kernel: wire.Kernel | None, *, sign: int, seed: int, capacity: int
) -> Algorithm:
    """The algorithm that a run asks for; ``sign`` is -1 for minimization.

    Raises Invalid if it needs a kernel and there is none.
    """
    match spec:
        case wire.RandomRows():
            return RandomRows(len(candidates), seed)
        case wire.GpUcb():
            if kernel is None:
                raise Invalid("gp_ucb needs a kernel: the study has none, so give one with the run")
            return GpUcb(candidates, kernel, spec.delta_ucb, sign=sign, seed=seed, capacity=capacity)
