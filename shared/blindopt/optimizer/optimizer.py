"""The product's optimizer without a server: the caller queries, the optimizer chooses."""

import math
import operator
import secrets
from typing import Any, Literal, NamedTuple, SupportsIndex, get_args

import numpy as np

from blindopt import display, wire
from blindopt.arrays import Matrix, Vector
from blindopt.errors import Invalid, LoopEnded, NumericalFailure
from blindopt.optimizer.chooser import Over, Proposal, RowChooser, points_of, recommendation_of
from blindopt.optimizer.defaults import PublicCandidates, Study, plan_of_run
from blindopt.wire.base import parsed
from blindopt.wire.run import NEWEST, Engine

_NOWHERE = {"curator_url": "http://localhost", "study_id": f"std_{'0' * 16}"}
"""Where a run would send its queries: settings are those of a run, and are checked as these are."""


class Moments(NamedTuple):
    """Posterior mean and standard deviation of f at some candidates (m,), in units of the measurement.

    >>> Moments(np.zeros(2), np.ones(2)).sd
    array([1., 1.])
    """

    mean: Vector
    sd: Vector


class Optimizer:
    """Chooses which candidate to query next, as a run of the modeler does: ``ask``, measure, ``tell``, and again.

    ``candidates``: (n, r), one row each, finite. ``noise`` is the law of their noise, None for exact ones; ``kernel``
    (a ``wire.Kernel`` or its fields) is fitted to the answers if it is None. ``algorithm`` is a name, such as "ei", or
    a type of ``blindopt.wire``; "auto" takes what suits the candidates, and ``plan`` says why. ``iterations`` is the
    number of queries after the initial ones. ``maximize``: whether the largest outcome is the best. With the same
    ``seed`` and answers it makes the same choices, to the last bit; without one it draws a seed.

    With ``study``, a curator's view of a study, the choices are those of a run of that study: noise, kernel and
    direction are then the study's. ``settings`` are further ones of a run, such as ``initial_rows`` or ``stop``. With
    ``batch_size``, ``ask_batch`` has the candidates that a run queries together: report them in its order. ``engine``
    is the version of the rules, as in ``plan`` (None: the newest): an earlier history goes on as it began.

    Raises Invalid for settings or candidates that no algorithm has.

    >>> optimizer = Optimizer(np.linspace(0.0, 1.0, 21)[:, None], seed=1, iterations=10)
    >>> for _ in range(15):
    ...     i = optimizer.ask()
    ...     optimizer.tell(i, -((i / 20 - 0.3) ** 2))
    >>> optimizer.recommendation().row
    6
    """

    def __init__(
        self,
        candidates: Matrix,
        *,
        noise: wire.NoiseLaw | None = None,
        kernel: wire.Kernel | dict[str, Any] | None = None,
        maximize: bool = True,
        seed: int | None = None,
        algorithm: str | wire.AlgorithmChoice = "auto",
        iterations: int = 50,
        study: wire.StudyView | None = None,
        engine: Engine | None = None,
        **settings: Any,
    ) -> None:
        self.candidates = _matrix(candidates)
        self.seed = secrets.randbelow(2**32) if seed is None else seed
        named = {"name": algorithm} if isinstance(algorithm, str) else algorithm
        fields = {"kernel": kernel, "seed": self.seed, "algorithm": named, "iterations": iterations} | settings
        spec = parsed(wire.RunSpec, _NOWHERE | fields, {"algorithm.name": "algorithm"})
        n, r = self.candidates.shape
        direction: Literal["maximize", "minimize"] = "maximize" if maximize else "minimize"
        public = PublicCandidates(
            n=n, r=r, direction=direction, kernel=None, noise=noise or wire.NoiseLaw(family="none")
        )
        about: Study = study or public
        if (about.n, about.r) != (n, r):
            raise Invalid(f"the candidates are {n} x {r}, those of the study {about.n} x {about.r}")
        versions = get_args(Engine)
        if engine not in (None, *versions):
            raise Invalid(f"engine must be one of {versions}, or None for the newest")
        plan = plan_of_run(spec, about, [], engine=engine or NEWEST)
        self._chooser = RowChooser(spec, about, self.candidates, plan=plan)
        self._pending: list[Proposal] = []  # of the last batch, and not reported yet
        self.history: list[tuple[int, float | None]] = []
        """Every candidate with its outcome, in order; None for one that was not measured."""

    @property
    def plan(self) -> wire.Plan:
        """The settings, and why those that were left open are as they are."""
        return self._chooser.plan

    @property
    def fitted(self) -> wire.Fitted | None:
        """The last fit of the kernel; None if there is none."""
        return self._chooser.fitted

    @property
    def warnings(self) -> list[str]:
        """What the answers so far say against the model, in words."""
        return self._chooser.warnings

    def propose(self) -> Proposal | None:
        """Return the next candidate with the values that led to its choice; None when the loop has ended."""
        self._pending = self._pending or self._chooser.next()
        return next(iter(self._pending), None)

    def ask(self) -> int:
        """Return the number of the candidate to query next: the same one until ``tell``.

        Raises LoopEnded when all iterations are used up, no candidate remains, or a stop rule holds.
        """
        return self.ask_batch()[0]

    def ask_batch(self) -> list[int]:
        """Return the candidates to query together, ``batch_size`` or fewer: those of a batch that are not reported yet.

        Raises LoopEnded as ``ask`` does.
        """
        if self.propose() is None:
            raise LoopEnded(str(self._chooser.ended_because), len(self.history))
        return [proposal.row for proposal in self._pending]

    def tell(
        self, i: int, y: float, *, variance: float | None = None, passport: wire.NoisePassport | None = None
    ) -> None:
        """Report the outcome ``y`` of candidate ``i``, of its own accord or as ``ask`` chose it.

        ``variance`` is that of its noise, if it is known; ``passport`` is the noise description of a curator's answer.
        """
        if variance is not None and passport is not None:
            raise Invalid("give variance or passport, not both: the passport states the noise")
        try:
            is_finite = math.isfinite(y)
        except (TypeError, ValueError, OverflowError):  # no number, an array of several, an integer beyond the doubles
            is_finite = False
        if not is_finite:
            raise Invalid("y must be a finite number")
        if variance is not None:
            measured = {"measurement_variance": variance}
            passport = parsed(wire.NoisePassport, measured, {"measurement_variance": "variance"})
        row = candidate_number(i, len(self.candidates))
        self._chooser.observe(row, float(y), passport)
        self._report(row)
        self.history.append((row, float(y)))

    def decline(self, i: int) -> None:
        """Report that candidate ``i`` was not measured: it is not chosen again."""
        row = candidate_number(i, len(self.candidates))
        self._chooser.decline(row)
        self._report(row)
        self.history.append((row, None))

    def _report(self, row: int) -> None:
        """Take a candidate from the batch; after one of the caller's own, the next batch is chosen anew."""
        position = next((k for k, proposal in enumerate(self._pending) if proposal.row == row), None)
        self._pending = [] if position is None else self._pending[:position] + self._pending[position + 1 :]

    def recommendation(self, over: Over = "asked") -> wire.Recommendation | None:
        """Return the best ``over`` the queried candidates ("asked") or "all"; None before the first outcome."""
        return recommendation_of(self._chooser, over)

    def posterior(self, rows: Any = None) -> Moments:
        """Return the posterior of f at ``rows`` (m,), all candidates if None. Raises Invalid without a model."""
        n = len(self.candidates)
        numbers = np.arange(n) if rows is None else np.array([candidate_number(i, n) for i in rows], dtype=np.intp)
        points = points_of(self._chooser, numbers)
        return Moments(np.array([point.mean for point in points]), np.array([point.sd for point in points]))

    def __repr__(self) -> str:
        n, r = self.candidates.shape
        return f"Optimizer({n} x {r}, {self.plan.algorithm.name}, seed {self.seed}, {len(self.history)} outcomes)"

    def _repr_html_(self) -> str:
        best = self.recommendation()
        values: dict[str, object] = {
            "Algorithm": self.plan.algorithm.name,
            "Seed": self.seed,
            "Outcomes": len(self.history),
        }
        shown = {} if best is None else {"Recommended candidate": best.row, "Mean": best.mean, "sd": best.sd}
        return display.facts(values | shown, caption="Optimizer")


def _matrix(candidates: Matrix) -> Matrix:
    try:
        matrix = np.ascontiguousarray(candidates, dtype=np.float64)
    except (TypeError, ValueError):
        raise Invalid("candidates must be numbers: a row for each candidate") from None
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise Invalid(f"candidates must be a matrix with a row for each candidate, not {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise NumericalFailure("candidates must be finite numbers")
    return matrix


def candidate_number(candidate: SupportsIndex, n: int) -> int:
    """Return the number of one of ``n`` candidates. Raises Invalid for what is no whole number from 0 to n - 1."""
    try:
        number = operator.index(candidate)
    except TypeError:
        number = -1
    if not 0 <= number < n:
        raise Invalid(f"a candidate is a whole number from 0 to {n - 1}")
    return number
