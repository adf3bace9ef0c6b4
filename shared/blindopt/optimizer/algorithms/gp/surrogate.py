"""The law that an algorithm assumes of the outcomes: a posterior with given or fitted hyper-parameters."""

from contextlib import suppress
from dataclasses import dataclass, replace
from math import exp, hypot, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.candidates import Span, column_scales
from blindopt.gp.fitting import (
    ANSWERS_MAX,
    ANSWERS_MIN,
    AVERAGES_RATIO,
    FitProblem,
    FitResult,
    fit,
    suggest_hyper,
    typical_distance,
    typical_distances,
)
from blindopt.gp.hyper_draws import Mixture, hyper_draws
from blindopt.gp.input_noise import declared_noise, noise_aware, refined
from blindopt.gp.kernel_check import KernelCheck, block_log_density, rival_log_density
from blindopt.gp.kernels import Kernel, Kind, kernel_of
from blindopt.gp.marginal_likelihood import Evidence, Hyper, MarginalLikelihood
from blindopt.gp.observations import LeaveOneOut
from blindopt.gp.posterior import Posterior
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from blindopt.wire.run import NEWEST, Engine

_SHARE = 4
_NEVER = -(1 << 62)  # a number of outcomes that no fit has


@dataclass(frozen=True, slots=True)
class OutcomeUnit:
    """Outcomes y as numbers z = (y / largest - centre) / spread.

    The largest size is divided out first, because its square may be no double.

    >>> OutcomeUnit.of(np.array([1e300, 3e300])).inner(3e300)
    1.0
    """

    largest: float = 1.0
    centre: float = 0.0
    spread: float = 1.0

    @classmethod
    def of(cls, outcomes: Vector) -> "OutcomeUnit":
        """The unit in which ``outcomes`` have a mean of 0, and a standard deviation of 1 if they differ."""
        largest = float(np.abs(outcomes).max(initial=0.0)) or 1.0
        shares = outcomes / largest
        spread = float(np.std(shares)) if len(shares) and np.ptp(shares) > 0 else 1.0
        return cls(largest, float(np.mean(shares)) if len(shares) else 0.0, spread)

    @classmethod
    def of_prior(cls, mean: float, variance: float) -> "OutcomeUnit":
        """The unit in which a prior has a mean of 0 and a variance of 1."""
        return cls(sqrt(variance), mean / sqrt(variance))

    @property
    def sd(self) -> float:
        """One unit, in units of the outcome."""
        return self.largest * self.spread

    def inner(self, y: float) -> float:
        """An outcome in this unit."""
        return (y / self.largest - self.centre) / self.spread

    def inner_variance(self, variance: float) -> float:
        """A variance in this unit."""
        return variance / self.largest / self.largest / self.spread**2

    def outer(self, z: float) -> float:
        """A value of this unit in units of the outcome."""
        return self.largest * (self.centre + self.spread * z)

    def outer_all(self, z: Vector) -> Vector:
        """Values of this unit in units of the outcome."""
        return self.largest * (self.centre + self.spread * z)


@dataclass(frozen=True, slots=True)
class FitSchedule:
    """A fit after the ``initial`` outcomes (ANSWERS_MIN at least), and then again, up to ANSWERS_MAX outcomes.

    Each fit has a quarter more outcomes than the one before it, rounded down, but 1 more at least and ``every`` at
    most: a fit to few outcomes costs little, and the next outcome changes it most. By version 1 of the ``engine`` fits
    come after initial + every, initial + 2 every, ... outcomes, as checks do by both.
    """

    initial: int
    every: int
    engine: Engine = NEWEST

    @property
    def first(self) -> int:
        """The number of outcomes of the first fit, and of the first check."""
        return max(self.initial, ANSWERS_MIN)

    def last(self, count: int) -> int:
        """The number of outcomes of the last fit that is due after ``count`` outcomes; 0 before the first."""
        if count < self.first:
            return 0
        count = min(count, ANSWERS_MAX)
        if self.engine == 1:
            return max(self.first, self.initial + (count - self.initial) // self.every * self.every)
        due = self.first
        while (later := due + min(max(due // _SHARE, 1), self.every)) <= count:
            due = later
        return due

    def before(self, due: int) -> int:
        """The number of outcomes of the fit before one; 0 if it is the first."""
        return self.last(due - 1)

    def is_check_due(self, check: int, count: int) -> bool:
        """Whether a check of ``check`` outcomes is due after ``count``."""
        return check <= count and check <= max(self.first, ANSWERS_MAX)

    def next_check(self, check: int) -> int:
        """The number of outcomes of the check after one."""
        return self.initial + ((check - self.initial) // self.every + 1) * self.every


_STREAM = 3  # of the draws of a fit, apart from those of initial rows, ties and normals
_AVERAGES_STREAM = 4  # of draws of hyper-parameters
_DEGREES_MIN = 4  # of freedom, of few outcomes with many hyper-parameters
OWN_MAX: dict[Engine, int] = {1: 20, 2: 20, 3: 100}
"""Columns that have length-scales of their own, at most."""
OWN_NUMBERS_MAX = 1 << 24
"""Numbers of the candidates whose columns have them, at most."""
_JITTER = 1e-8  # noise variance of an exact answer, as a share of the prior variance: keeps covariances positive


@dataclass(frozen=True, slots=True)
class _Outcome:
    """An outcome with the noise variances that its passport declares, in squared units of the outcome."""

    row: int
    value: float
    measurement_variance: float
    privacy_variance: float
    is_declared: bool
    """Whether the passport declares the noise of the measurement."""


class Prior(NamedTuple):
    """What is assumed of f before the outcomes, in the direction of maximization and units of the outcome."""

    kernel: Kernel
    """Covariance of f, not averaged over the noise of the release."""
    mean: float
    residual: float
    """Variance that exact answers have beyond f."""
    since: int
    """Number of outcomes that it may have been made from."""


class Averaged(NamedTuple):
    """What is expected of a queried row, averaged over hyper-parameters."""

    row: int
    mean: float
    outcome: Mixture
    """Of the row's mean outcome."""
    next_outcome: Mixture
    """Of another measurement, with the noise of the last one, and without that of a private answer."""


class Surrogate:
    """The posterior of f given all outcomes, in the direction of maximization.

    Without ``fit`` the hyper-parameters are those of ``kernel``. The noise variance of an outcome is then that of the
    kernel, or of its passport where that is larger, plus the variance of the privacy noise.

    With ``fit`` they have the largest marginal likelihood given the first c outcomes, for the last c that is due
    (``FitSchedule``); before the first fit, they are those of the kernel, or a guess from candidates and outcomes. The
    noise variance of an outcome is that of its passport where it declares one, and fitted
    otherwise. Each fit starts from the same values and draws of ``seed``, so that a choice depends on the outcomes
    alone, and not on which fits were made before. A fit that fails keeps the values of the fit before it, and reports
    the problem. To be fitted when the kernel is a misfit, it is checked every few outcomes (``KernelCheck``);
    from the first check that it fails on, fits are made as without a kernel, of the same kind.

    Where ``noise`` gives the law of the release's noise, the kernel is averaged over it. The mean of both draws of a
    refined candidate is taken as one draw of the same law, with less noise. Where answers are ``exact``,
    what would be their noise is part of f instead, a nugget besides that of the release: a queried row has
    next to no variance, and all others have at least the nugget. The same value again changes nothing.

    From version 3 of the engine on, fits do not depend on units. Outcomes are reckoned in units of the ``unit``: that
    of a given kernel, or of the outcomes that are fitted. Columns without noise are divided by their standard
    deviations. Posterior, prior and outcomes are in these units; what is ``fitted`` is in those of the measurement.
    """

    def __init__(self, candidates: Matrix, settings: AlgorithmSettings) -> None:
        if settings.kernel is None and settings.fit is None:
            raise Invalid("there is no kernel: the study has none, so give one with the run, or have it fitted")
        self._candidates, self._settings = np.asarray(candidates), settings
        self._fit = wire.Fit() if settings.fit == "auto" else settings.fit
        self._dtype = np.float64 if settings.precision == "double" else np.float32
        self._span: Span | None = None
        self._kind: Kind = "squared_exponential"
        self._given: Hyper | None = None
        self.unit = OutcomeUnit()
        """The unit of posterior, prior and outcomes."""
        if (kernel := settings.kernel) is not None:
            self._kind, mean = kernel.kind, settings.sign * kernel.mean
            self._given = Hyper(kernel.lengthscale, kernel.signal_variance, kernel.noise_variance, mean)
            if settings.engine >= 3:
                self.unit = OutcomeUnit.of_prior(mean, kernel.signal_variance)
                self._given = Hyper(kernel.lengthscale, 1.0, self.unit.inner_variance(kernel.noise_variance))
        self._distance: float | Vector = 0.0
        self._scales: Vector | None = None  # of the columns that fits see
        if self._fit is not None:
            n, r = self._candidates.shape
            if is_scaled := settings.engine >= 3 and self._fit.ard == "auto" and settings.noise.family == "none":
                self._scales = column_scales(self._candidates)
                r = max(1, int(np.count_nonzero(self._scales)))
            has_own = self._fit.ard == "auto" and has_own_lengthscales(n, r, settings.noise, settings.engine)
            if is_scaled:
                self._distance = np.full(r if has_own else 1, sqrt(2 * r))
            elif has_own:
                self._distance = typical_distances(self._candidates)
            else:
                self._distance = typical_distance(self._candidates, settings.noise)
        waits = settings.fit == "auto" or settings.fit_when == "misfit"
        self._fits = self._fit is not None and (not waits or self._given is None)
        self._schedule = FitSchedule(settings.initial, (self._fit or wire.Fit()).every, settings.engine)
        self._check, self._next_check, self._checked = KernelCheck(), self._schedule.first, 0
        self._rival: Hyper | None = None  # the fit at the last check
        self._reason: str | None = None
        self._outcomes: list[_Outcome] = []
        self.places: dict[int, Vector] = {}
        """Where the outcomes of refined candidates lie: the mean of both draws, weighted by their precision."""
        self.sharper = sharper_sd(settings)
        """The standard deviation of the noise there; None if no candidate is refined."""
        self._jitter = 0.0  # of the last posterior that was built
        self._hyper, self._fitted_to = self._start(0), 0
        self._posterior: Posterior | None = None
        self.fitted: wire.Fitted | None = None
        """The last fit that was due, in units of the measurement; None before the first."""
        self._averaged: tuple[int, Averaged | None] = 0, None  # the number of outcomes that it is of

    def refine(self, row: int, z: Vector) -> None:
        """Take the second draw of a candidate into account, which comes before its outcome or with a later one."""
        if self.sharper is None:
            return
        assert self._settings.noise.sd is not None, "a release that is refined declares its noise"
        share = (self.sharper / self._settings.noise.sd) ** 2  # of the first draw
        centre = share * np.asarray(self._candidates[row]) + (1.0 - share) * z
        if np.array_equal(self.places.get(row, ()), centre):
            return
        self.places[row] = centre
        if row in [outcome.row for outcome in self._outcomes]:
            self._posterior, self._fitted_to = None, _NEVER if self._fits else self._fitted_to
        elif self._posterior is not None:
            self._posterior.refine(row, centre)

    def observe(self, row: int, value: float, passport: wire.NoisePassport | None = None) -> None:
        """Take an outcome into account. Raises NumericalFailure, and changes nothing, if it is not finite."""
        measurement, privacy, is_declared = 0.0, 0.0, False
        if passport is not None:
            measurement, privacy = passport.measurement_variance, passport.privacy.variance or 0.0
            is_declared = passport.measurement_variance_known and measurement > 0
        outcome = _Outcome(row, value, measurement, privacy, is_declared)
        if self._settings.exact and not is_declared and outcome in self._outcomes:
            return
        if not isfinite(value):
            raise NumericalFailure(f"outcome {len(self._outcomes) + 1} cannot be absorbed: check its value")
        if self._settings.engine >= 3 and self._fits and self._fitted_to != self._due(len(self._outcomes) + 1):
            self._posterior = None  # a fit comes first, in a unit that follows from this outcome too
        else:
            self._condition(self._current(), outcome)
        self._outcomes.append(outcome)

    @property
    def posterior(self) -> Posterior:
        """The posterior given all outcomes, after the fit that is due."""
        if self._fit is not None and not self._fits:
            self._check_kernel()
        if self._fits and self._fitted_to != (due := self._due(len(self._outcomes))):
            self._refit(due)
        return self._current()

    @property
    def prior(self) -> Prior:
        """What is assumed of f, after the fit that is due."""
        _, hyper, settings = self.posterior, self._hyper, self._settings
        kernel = kernel_of(self._kind, hyper.lengthscale, hyper.signal_variance)
        since = max(abs(self._fitted_to), settings.initial)
        return Prior(kernel, hyper.mean, hyper.noise_variance if settings.exact else 0.0, since)

    @property
    def keeps_kernel(self) -> bool:
        """Whether hyper-parameters are those of the given kernel, whatever the answers are."""
        return self._fit is None

    @property
    def outcomes(self) -> list[tuple[int, float, float]]:
        """Rows, values and noise variances of all outcomes, in the unit of the posterior."""
        return [(o.row, self.unit.inner(o.value), self._variance_of(o)) for o in self._outcomes]

    def averaged(self) -> Averaged | None:
        """The queried row of the largest mean, averaged over the posterior of hyper-parameters given all outcomes.

        None if hyper-parameters are those of a given kernel, if a version of the ``engine`` before 3 plugs in the
        fitted ones, or for more than ANSWERS_MAX outcomes.
        """
        count, _ = len(self._outcomes), self.posterior
        if self._averaged[0] != count:
            self._averaged = count, None
            # Beyond these sizes no double holds a variance.
            has_variances = 1e-140 < self.unit.sd < 1e140
            if self._fits and self._settings.engine > 2 and ANSWERS_MIN <= count <= ANSWERS_MAX and has_variances:
                with suppress(NumericalFailure):  # without a finite density there are only the plugged-in values
                    self._averaged = count, self._average()
        return self._averaged[1]

    def _average(self) -> Averaged:
        count, hyper, unit = len(self._outcomes), self._hyper, self.unit
        problem, size = self._problem(count, self._given)
        self.unit, unit = unit, self.unit  # the posterior keeps its own; the search is in that of all outcomes
        ratio = (self.unit.sd / unit.sd) ** 2
        evidence, posterior = problem.evidence, replace(problem, ratio=AVERAGES_RATIO).log_posterior()
        common = problem.start.lengthscale if hyper is self._given else hyper.lengthscale / size
        sizes = hyper.lengthscales or np.full(len(problem.distances), common)
        begin = np.log([*sizes, ratio * hyper.signal_variance, ratio * hyper.noise_variance])
        seed = [self._settings.seed, count, _AVERAGES_STREAM]
        draws = hyper_draws(posterior, begin, seed, self._settings.tick)
        means = np.mean([posterior.likelihood.moments(logs)[0] for logs in draws], axis=0)
        best = int(means.argmax())
        # What others do not explain of an outcome is noise in half of the draws, and in the others a share of it stays
        # with the candidate: outcomes of different candidates cannot tell them apart.
        # Outcomes of one candidate can: then all of it is noise.
        is_alone = int(np.count_nonzero(evidence.rows == evidence.rows[best])) == 1
        shares = np.random.default_rng([*seed, 1]).uniform(size=len(draws)) * (np.arange(len(draws)) % 2) * is_alone
        laws = [posterior.likelihood.moments(logs, share) for logs, share in zip(draws, shares, strict=True)]
        mean, variance, noise = np.array(laws).swapaxes(0, 1)
        mean, variance, noise = unit.outer_all(mean), unit.sd**2 * variance, unit.sd**2 * noise
        row, degrees = int(evidence.rows[best]), max(count - len(begin), _DEGREES_MIN)
        last = int(np.flatnonzero(evidence.rows == row)[-1])
        outcome = Mixture(mean[:, best], variance[:, best], degrees)
        of_measurement = np.maximum(noise[:, last] - self._outcomes[last].privacy_variance, 0.0)
        following = Mixture(outcome.means, outcome.variances + of_measurement, degrees)
        return Averaged(row, unit.outer(float(means[best])), outcome, following)

    def _current(self) -> Posterior:
        """The posterior given all outcomes, with the present hyper-parameters."""
        if self._posterior is None:
            self._posterior = self._build(len(self._outcomes))
        return self._posterior

    def _build(self, count: int) -> Posterior:
        """The posterior given the first ``count`` outcomes, with the present hyper-parameters."""
        hyper, settings, scales, span = self._hyper, self._settings, None, self._span
        size = hyper.lengthscale
        if self._scales is not None and hyper is not self._given:
            scales, size, span = self._scales.copy(), 1.0, None
            scales[scales > 0] /= np.array(hyper.lengthscales or [hyper.lengthscale])
        elif hyper.lengthscales:
            scales = hyper.lengthscale / np.array(hyper.lengthscales)
        try:
            plain = kernel_of(self._kind, size, hyper.signal_variance)
            kernel, nugget = noise_aware(plain, settings.noise, self._candidates.shape[1])
            sharp = None
            if self.sharper is not None and (noise := declared_noise(settings.noise)) is not None:
                sharp = refined(plain, *noise, self.sharper, self._candidates.shape[1])
        except (ValueError, Invalid):
            raise NumericalFailure(
                "kernel and noise of the release are too large or small to be computed with"
            ) from None
        if settings.exact:
            nugget += hyper.noise_variance
            self._jitter = _JITTER * (kernel.variance + nugget)
        posterior = Posterior(
            self._candidates,
            kernel,
            nugget=nugget,
            noise_variance=self._jitter if settings.exact else hyper.noise_variance,
            prior_mean=hyper.mean,
            capacity=settings.capacity,
            dtype=self._dtype,
            span=span,
            scales=scales,
            engine=settings.engine,
            executor=settings.executor,
            refined=sharp,
        )
        for row, centre in self.places.items():
            posterior.refine(row, centre)
        self._span = posterior.span or self._span
        outcomes = self._outcomes[:count]
        if settings.engine == 1 or not outcomes:
            for outcome in outcomes:
                settings.tick()
                self._condition(posterior, outcome)
            return posterior
        settings.tick()
        values = np.array([[self.unit.inner(o.value), self._variance_of(o)] for o in outcomes])
        posterior.begin(np.array([outcome.row for outcome in outcomes]), values[:, 0], values[:, 1])
        return posterior

    def _condition(self, posterior: Posterior, outcome: _Outcome) -> None:
        posterior.observe(outcome.row, self.unit.inner(outcome.value), self._variance_of(outcome))

    def _variance_of(self, outcome: _Outcome) -> float:
        """The noise variance of an outcome in the posterior."""
        declared, privacy = map(self.unit.inner_variance, (outcome.measurement_variance, outcome.privacy_variance))
        if self._settings.exact:
            return (declared if outcome.is_declared else self._jitter) + privacy
        variance = max(self._hyper.noise_variance, declared)
        if self._fits:
            variance = declared if outcome.is_declared else self._hyper.noise_variance
        return variance + privacy

    @property
    def pending_variance(self) -> float:
        """The noise variance assumed of a pending outcome: that of the last outcome, or of the kernel without one."""
        if self._outcomes:
            return self._variance_of(self._outcomes[-1])
        return self._jitter if self._settings.exact else self._hyper.noise_variance

    # --- fits -------------------------------------------------------------------------------------

    def _due(self, count: int) -> int:
        """The number of outcomes of the fit that is due after ``count`` outcomes; 0 or less before the first fit.

        Without a kernel it is then -count: the guess changes with each outcome.
        """
        return self._schedule.last(count) or (0 if self._given is not None else -count)

    def _start(self, count: int) -> Hyper:
        """Hyper-parameters without a fit: those of the kernel, or a guess from the first ``count`` outcomes."""
        return self._given if self._given is not None else self._guess(count)

    def _guess(self, count: int) -> Hyper:
        """From the first ``count`` outcomes, in whose unit it reckons from then on unless a kernel is given."""
        assert self._fit is not None
        if self._settings.engine >= 3 and self._given is None:
            self.unit = OutcomeUnit.of(np.array([outcome.value for outcome in self._outcomes[:count]]))
        distance = exp(float(np.mean(np.log(self._distance))))
        hyper = suggest_hyper(np.array([self.unit.inner(o.value) for o in self._outcomes[:count]]), distance)
        return hyper if self._fit.mean == "fitted" else replace(hyper, mean=self.unit.inner(0.0))

    def _refit(self, due: int) -> None:
        """Take the hyper-parameters of the fit that is due, or of the last one before it that succeeds."""
        self._posterior, self._fitted_to, problem = None, due, None
        if due <= 0:
            self._hyper = self._start(-due)
            return
        count, result = due, None  # how many outcomes a posterior begins with must not depend on when it is built
        while result is None and count > 0:
            try:
                result = self._fit_to(count, self._given)
                self._hyper = result.hyper
                self._posterior = self._build(count)
            except NumericalFailure as error:
                problem = problem or f"no fit after {due} answers, earlier values were kept: {error}"
                self._posterior, result, count = None, None, self._schedule.before(count)
        if result is None:
            self._hyper, count = self._start(due), due
            self._posterior = self._build(count)
        for outcome in self._outcomes[count:]:
            self._condition(self._current(), outcome)
        self.fitted = self._view(due, result if count == due else None, problem)

    def _problem(self, count: int, kernel: Hyper | None) -> tuple[FitProblem, float]:
        """The fit to the first ``count`` outcomes, from a kernel if there is one; and one unit of its length-scales.

        The unit is in those of the release. From version 3 on the fit is in units of the candidates: it takes the same
        steps in any.
        """
        assert self._fit is not None
        engine, law, start = self._settings.engine, self._settings.noise, kernel or self._guess(count)
        evidence, has_kernel = self.evidence(count), kernel is not None
        problem = FitProblem(
            evidence, self._kind, law, start, self._fit, self._distance, has_kernel=has_kernel, engine=engine
        )
        if engine < 3:
            return problem, 1.0
        variance = self.unit.inner_variance(1.0)
        if self._scales is not None:
            columns = self._scales[self._scales > 0]
            middle = np.exp(np.mean(np.log(columns), keepdims=True)) if len(columns) else np.ones(1)
            if kernel is not None:
                start = replace(start, lengthscale=start.lengthscale * float(middle[0]))
            columns = columns if np.size(self._distance) == len(columns) else middle
            return replace(problem, start=start, units=np.array([*columns, variance, variance])), 1.0
        size = float(self._distance)
        law = law if law.sd is None else law.model_copy(update={"sd": law.sd / size})
        sharper = None if evidence.sharper is None else evidence.sharper / size
        evidence = replace(evidence, points=evidence.points / size, sharper=sharper)
        start = replace(start, lengthscale=start.lengthscale / size)
        units = np.array([1.0 / size, variance, variance])
        return replace(problem, evidence=evidence, law=law, start=start, distance=1.0, units=units), size

    def _fit_to(self, count: int, kernel: Hyper | None) -> FitResult:
        """The fit to the first ``count`` outcomes, from a kernel if there is one. Raises NumericalFailure."""
        problem, size = self._problem(count, kernel)
        result = fit(problem, [self._settings.seed, count, _STREAM], self._settings.tick)
        return replace(result, hyper=replace(result.hyper, lengthscale=result.hyper.lengthscale * size))

    def _check_kernel(self) -> None:
        """Check the given kernel after every few answers; from the first check that it fails on, fit."""
        while not self._fits and self._schedule.is_check_due(self._next_check, len(self._outcomes)):
            count = self._next_check
            if (problem := self._misfit(count)) is not None:
                self._reason = f"after {count} answers the given kernel does not fit: {problem}"
                self._fits, self._given, self._posterior, self._fitted_to = True, None, None, 0
            self._checked = count
            self._next_check = self._schedule.next_check(count)

    def _misfit(self, count: int) -> str | None:
        """Why the given kernel does not fit the first ``count`` outcomes, in words; None if it may."""
        observed, since = self._current().observations, self._checked
        white, pivots = observed.weights[:count], observed.factor.diagonal()[:count]
        problem = self._check.surprise(white)
        try:
            if problem is None and self._rival is not None:
                whole, before = (self._likelihood(number, self._rival) for number in (count, since))
                rival = rival_log_density(whole, before, self._rival)
                problem = self._check.loses(block_log_density(white[since:], pivots[since:]), rival)
            self._rival = None
            if problem is None:
                self._rival = self._fit_to(count, None).hyper
        except NumericalFailure:
            pass  # a fit that fails is no rival
        return problem

    def _likelihood(self, count: int, hyper: Hyper) -> MarginalLikelihood:
        law, scales = self._settings.noise, max(1, len(hyper.lengthscales))
        return MarginalLikelihood(self.evidence(count), self._kind, law, hyper.mean, scales)

    def evidence(self, count: int) -> Evidence:
        """The first ``count`` outcomes, as hyper-parameters are fitted to them."""
        outcomes = self._outcomes[:count]
        rows = np.array([outcome.row for outcome in outcomes], dtype=np.intp)
        declared = [o.privacy_variance + (o.measurement_variance if o.is_declared else 0.0) for o in outcomes]
        points = np.asarray(self._candidates[rows])
        is_refined = np.isin(rows, list(self.places))
        if is_refined.any():
            points = points.copy()
            points[is_refined] = [self.places[row] for row in rows[is_refined].tolist()]
        if self._scales is not None:
            points = (points * self._scales)[:, self._scales > 0]
        return Evidence(
            points=points,
            rows=rows,
            outcomes=np.array([self.unit.inner(outcome.value) for outcome in outcomes]),
            declared_noise=np.array([self.unit.inner_variance(variance) for variance in declared]),
            has_fitted_noise=np.array([not outcome.is_declared for outcome in outcomes]),
            exact=self._settings.exact,
            is_refined=is_refined if is_refined.any() else None,
            sharper=self.sharper,
        )

    def _view(self, due: int, result: FitResult | None, problem: str | None) -> wire.Fitted:
        hyper, unit = self._hyper, self.unit
        size, sizes = hyper.lengthscale, list(hyper.lengthscales)
        if self._scales is not None and hyper is not self._given:
            of_columns = np.full(len(self._scales), np.nan)
            of_columns[self._scales > 0] = np.array(sizes or [size]) / self._scales[self._scales > 0]
            size = exp(float(np.nanmean(np.log(of_columns)))) if self._scales.any() else size
            of_columns[np.isnan(of_columns)] = size
            sizes = of_columns.tolist() if len(of_columns) > 1 else []
        check, shift = None, log(unit.sd)
        if result is not None:
            check = _check_view(result.check, self._outcomes[result.check.worst].row, shift)
        return wire.Fitted(
            answers=due,
            lengthscale=size,
            lengthscales=sizes or None,
            signal_variance=_finite(unit.sd * unit.sd * hyper.signal_variance),
            noise_variance=_finite(unit.sd * unit.sd * hyper.noise_variance),
            signal_sd=unit.sd * sqrt(hyper.signal_variance),
            noise_sd=unit.sd * sqrt(hyper.noise_variance),
            mean=self._settings.sign * unit.outer(hyper.mean),
            log_likelihood=result.log_likelihood - min(due, ANSWERS_MAX) * shift if result else None,
            at_bounds=list(result.at_bounds) if result else [],
            problem=problem,
            check=check,
            reason=self._reason,
        )


def sharper_sd(settings: AlgorithmSettings) -> float | None:
    """The noise of the mean of both draws of a refined candidate, weighted by their precision; None without draws."""
    noise = declared_noise(settings.noise)
    if noise is None or settings.refine_sd is None:
        return None
    return 1.0 / hypot(1.0 / noise[1], 1.0 / settings.refine_sd)


def has_own_lengthscales(n: int, r: int, noise: wire.NoiseLaw, engine: Engine) -> bool:
    """Whether each coordinate has a length-scale of its own: noise, and a secret projection, are the same in all."""
    return noise.family == "none" and 2 <= r <= OWN_MAX[engine] and n * r <= OWN_NUMBERS_MAX


def _check_view(check: LeaveOneOut, row: int, shift: float) -> wire.FitCheck:
    values = (check.log_density - shift, check.baseline - shift, check.largest_residual)
    density, baseline, residual = (float(f"{value:.3e}") for value in values)
    return wire.FitCheck(log_density=density, baseline=baseline, largest_residual=residual, row=row)


def _finite(variance: float) -> float | None:
    """None for a variance that no double holds."""
    return variance if 0 < variance < np.inf else None
