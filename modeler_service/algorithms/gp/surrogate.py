"""What an algorithm takes for the law of the outcomes: a posterior whose hyper-parameters are told, or fitted."""

from dataclasses import dataclass, replace

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.candidates import Frame
from blindopt.gp.input_noise import noise_aware
from blindopt.gp.kernels import Kind, kernel_of
from blindopt.gp.marginal_likelihood import (
    ANSWERS_MAX,
    ANSWERS_MIN,
    Evidence,
    Found,
    Hyper,
    fit,
    suggested,
    typical_distance,
)
from blindopt.gp.posterior import Posterior
from blindopt.gp.progress import NO_TICK, Tick

NO_NOISE = wire.NoiseLaw(family="none")
_STREAM = 3  # of the draws of a fit, apart from those of initial rows, ties and normals


@dataclass(frozen=True, slots=True)
class _Outcome:
    """``measured`` is the noise variance of the measurement and ``private`` that of its protection, as declared."""

    row: int
    value: float
    measured: float
    private: float
    is_known: bool
    """Whether the passport declares the noise of the measurement."""


class Surrogate:
    """The posterior of f given all outcomes, in the direction of maximization.

    Without ``fit`` its hyper-parameters are those of ``kernel``, which must be told. An outcome then counts with the
    kernel's noise variance, or that of its passport where it is larger, plus the variance of what protects it.

    With ``fit`` they are those of largest marginal likelihood given the first c outcomes, for the last c in
    first, initial + every, initial + 2 every, ...; before, those of the kernel, or what candidates and outcomes
    suggest. The noise variance of an outcome is that of its passport where it declares one, and fitted where not.
    Each fit starts from the same values and draws of ``seed``, so that what is chosen after some outcomes depends on
    them alone, and not on which fits were made before. One that fails leaves the values of the one before, and says so.

    Where ``noise`` tells the law of the release's noise, the kernel is averaged over it.
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: wire.Kernel | None,
        *,
        sign: int,
        seed: int,
        capacity: int,
        noise: wire.NoiseLaw = NO_NOISE,
        fit: wire.Fit | None = None,
        initial: int = 0,
        precision: wire.Precision = "double",
        tick: Tick = NO_TICK,
    ) -> None:
        if kernel is None and fit is None:
            raise Invalid("there is no kernel: the study has none, so give one with the run, or have it fitted")
        self._candidates, self._noise, self._sign, self._seed = np.asarray(candidates), noise, sign, seed
        self._capacity, self._fit, self._initial, self._tick = capacity, fit, initial, tick
        self._dtype = np.float64 if precision == "double" else np.float32
        self._frame: Frame | None = None
        self._kind: Kind = kernel.kind if kernel is not None else "squared_exponential"
        self._told: Hyper | None = None
        if kernel is not None:
            self._told = Hyper(kernel.lengthscale, kernel.signal_variance, kernel.noise_variance, sign * kernel.mean)
        self._distance = typical_distance(self._candidates, noise) if fit is not None else 0.0
        self._outcomes: list[_Outcome] = []
        self._hyper, self._of = self._start(0), 0  # of which fit the values are
        self._posterior: Posterior | None = None
        self.fitted: wire.Fitted | None = None
        """The last fit that was due, in units of the measurement; null before the first."""

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Take an outcome into account. Raises NumericalFailure, and changes nothing, for one that is no number."""
        measured, private, is_known = 0.0, 0.0, False
        if passport is not None:
            measured, private = passport.measurement_variance, passport.privacy.variance or 0.0
            is_known = passport.measurement_variance_known and measured > 0
        told = _Outcome(row, outcome, measured, private, is_known)
        self._absorb(self._made(), told)
        self._outcomes.append(told)

    @property
    def posterior(self) -> Posterior:
        """Given all outcomes, under the hyper-parameters that are due."""
        if self._fit is not None and self._of != (due := self._due(len(self._outcomes))):
            self._refit(due)
        return self._made()

    def _made(self) -> Posterior:
        if self._posterior is None:
            self._posterior = self._built(len(self._outcomes))
        return self._posterior

    def _built(self, count: int) -> Posterior:
        """The posterior given the first outcomes, under the hyper-parameters that hold."""
        hyper = self._hyper
        try:
            plain = kernel_of(self._kind, hyper.lengthscale, hyper.signal_variance)
            model, nugget = noise_aware(plain, self._noise, self._candidates.shape[1])
        except ValueError:
            raise NumericalFailure(
                "kernel and noise of the release are too large or small to be computed with"
            ) from None
        made = Posterior(
            self._candidates,
            model,
            nugget=nugget,
            noise_variance=hyper.noise_variance,
            prior_mean=hyper.mean,
            capacity=self._capacity,
            dtype=self._dtype,
            frame=self._frame,
        )
        self._frame = made.frame
        for outcome in self._outcomes[:count]:
            self._tick()
            self._absorb(made, outcome)
        return made

    def _absorb(self, posterior: Posterior, told: _Outcome) -> None:
        posterior.observe(told.row, told.value, self._variance_of(told))

    def _variance_of(self, told: _Outcome) -> float:
        """With what noise variance an outcome counts."""
        measured = max(self._hyper.noise_variance, told.measured)
        if self._fit is not None:
            measured = told.measured if told.is_known else self._hyper.noise_variance
        return measured + told.private

    @property
    def pending_variance(self) -> float:
        """With what noise variance an outcome counts that is still to come: as the last one, if there was one."""
        return self._variance_of(self._outcomes[-1]) if self._outcomes else self._hyper.noise_variance

    # --- fits -------------------------------------------------------------------------------------

    def _due(self, count: int) -> int:
        """After how many outcomes the fit is made that holds for ``count``; 0 or less before the first.

        Without a kernel, -count then: what is suggested changes with each outcome.
        """
        assert self._fit is not None
        first, every = self._first, self._fit.every
        if count < first:
            return 0 if self._told is not None else -count
        return max(first, self._initial + (min(count, ANSWERS_MAX) - self._initial) // every * every)

    def _before(self, due: int) -> int:
        """The fit before one; 0 if it is the first."""
        assert self._fit is not None
        return 0 if due == self._first else max(self._first, due - self._fit.every)

    @property
    def _first(self) -> int:
        return max(self._initial, ANSWERS_MIN)

    def _start(self, count: int) -> Hyper:
        """What is known without a fit, after some outcomes."""
        if self._told is not None:
            return self._told
        hyper = suggested(np.array([outcome.value for outcome in self._outcomes[:count]]), self._distance)
        assert self._fit is not None
        return hyper if self._fit.mean == "fitted" else replace(hyper, mean=0.0)

    def _refit(self, due: int) -> None:
        """Take the hyper-parameters of a fit, or those of before where it fails."""
        self._posterior, self._of, problem = None, due, None
        if due <= 0:
            self._hyper = self._start(-due)
            return
        at, found = due, None
        while found is None and at > 0:
            try:
                found = self._found(at)
                self._hyper = found.hyper
                self._posterior = self._built(at)
            except NumericalFailure as error:
                problem = problem or f"no fit after {due} answers, earlier values were kept: {error}"
                self._posterior, found, at = None, None, self._before(at)
        if found is None:
            self._hyper = self._start(due)
        else:
            for outcome in self._outcomes[at:]:
                self._absorb(self._made(), outcome)
        self.fitted = self._view(due, found if at == due else None, problem)

    def _found(self, count: int) -> Found:
        """The fit to the first outcomes. Raises NumericalFailure."""
        assert self._fit is not None
        some = self._outcomes[:count]
        rows = np.array([outcome.row for outcome in some], dtype=np.intp)
        evidence = Evidence(
            points=self._candidates[rows],
            rows=rows,
            outcomes=np.array([outcome.value for outcome in some]),
            known=np.array([outcome.private + (outcome.measured if outcome.is_known else 0.0) for outcome in some]),
            has_unknown=np.array([not outcome.is_known for outcome in some]),
        )
        return fit(
            evidence,
            self._kind,
            self._noise,
            self._start(count),
            self._fit,
            distance=self._distance,
            seed=[self._seed, count, _STREAM],
            is_told=self._told is not None,
            tick=self._tick,
        )

    def _view(self, due: int, found: Found | None, problem: str | None) -> wire.Fitted:
        hyper = self._hyper
        return wire.Fitted(
            answers=due,
            lengthscale=hyper.lengthscale,
            signal_variance=hyper.signal_variance,
            noise_variance=hyper.noise_variance,
            mean=self._sign * hyper.mean,
            log_likelihood=found.log_likelihood if found else None,
            at_bounds=list(found.at_bounds) if found else [],
            problem=problem,
        )
