"""The exact posterior of a Gaussian process at every candidate, and the candidate of the largest acquisition."""

from collections.abc import Callable

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp import engines
from blindopt.gp.acquisition import Acquisition, Choice, ExpectedImprovement, UpperConfidenceBound
from blindopt.gp.candidates import Frame, Lift, Precision, frame_of
from blindopt.gp.exact_gp import ExactGP
from blindopt.gp.kernels import Kernel
from blindopt.gp.part import Law
from blindopt.gp.partitioned import Partitioned
from blindopt.wire.run import Engine

_LEAST = 1e-16  # share of the prior variance: what is less is lost to rounding


class Posterior(ExactGP):
    """Posterior mean and variance of f at all n candidates, and the one to choose next.

    ``Part`` brings the moments of candidates up to date, and ``Partitioned`` says when candidates are equal by each
    version (``engine``). Choices depend on the observations alone, to the last bit: not on ``dtype``,
    restarts, earlier choices, or on ``parts``, the engine that holds the candidates in parts (one part in this
    process without it). Holds n (capacity + rank of Z + 7) numbers of ``dtype``: float32 takes half the memory.
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: Kernel,
        *,
        noise_variance: float,
        prior_mean: float = 0.0,
        nugget: float = 0.0,
        capacity: int,
        dtype: Precision = np.float64,
        frame: Frame | None = None,
        scales: Vector | None = None,
        engine: Engine = 2,
        parts: engines.Engine | None = None,
    ) -> None:
        super().__init__(
            candidates,
            kernel,
            noise_variance=noise_variance,
            prior_mean=prior_mean,
            nugget=nugget,
            capacity=capacity,
            scales=scales,
        )
        self.frame = frame_of(candidates) if frame is None else frame
        """Spares another posterior of the same candidates two passes over them."""
        lift = Lift.of(candidates, kernel, self.frame, scales)
        law = Law(kernel, nugget, self._prior_mean, capacity, dtype, lift)
        self.parts = parts or engines.LocalEngine()
        self.maximum = Partitioned(self.parts, candidates, law, self.observations, engine)
        self._hidden: Rows = np.empty(0, dtype=np.intp)

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Means and variances (m,) of candidates ``rows``."""
        return self.maximum.moments(rows)

    @property
    def mean(self) -> Vector:
        """Means of all candidates (n,)."""
        return self.maximum.moments()[0]

    @property
    def variance(self) -> Vector:
        """Variances of all candidates (n,)."""
        return self.maximum.moments()[1]

    def best(self, rows: Rows, weight: float = 0.0) -> tuple[int, float, float]:
        """The first of ``rows`` (rising, not empty) with the largest mean - sqrt(weight variance), and its moments."""
        return self.maximum.best(rows, weight, self.solve)

    def hide(self, rows: Rows) -> None:
        """Choose none of ``rows`` from now on, and any other; rows hidden before are shown again."""
        self._hidden = np.unique(rows)

    def choose(self, weight: float, rng: Callable[[], np.random.Generator]) -> Choice:
        """The row not hidden of largest mean + sqrt(weight variance); a draw from ``rng()`` breaks ties."""
        return self.maximize(UpperConfidenceBound(weight), rng)

    def maximize(self, acquisition: Acquisition, rng: Callable[[], np.random.Generator]) -> Choice:
        """The row not hidden of the largest ``acquisition``; a draw from ``rng()`` breaks ties."""
        if len(self._hidden) == self.n:
            raise IndexError("every row is hidden")
        return self.maximum.choose(acquisition, self._hidden, self.solve, rng)

    def improvement(self, optimism: float) -> ExpectedImprovement:
        """Expected improvement on the largest mean of the rows observed; on the prior mean before the first.

        ``optimism`` is the number of learnable standard deviations that are added to a mean.
        """
        observed = np.unique(self.observations.rows[: self.count])
        best = self.best(observed)[1] if len(observed) else self._prior_mean
        return ExpectedImprovement(best, optimism**2, self.nugget, _LEAST * self._prior_variance)
