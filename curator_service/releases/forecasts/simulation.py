"""The simulation: functions of a Gaussian process on public rows, or on the records, optimized through each Z.

The model: f is drawn from GP(0, kernel) at the scaled rows X, for each of the forecast's kernels. y = f + Gaussian
noise whose variance is the kernel's noise_variance (or the study's measurement.noise_variance, where the study declares
a kernel and that is larger), plus the variance of private answers at their level: their law and their clip are not
modelled. Z is drawn by the mechanism itself, anew for each function. The modeler is gp_ucb, unchanged: it averages the
kernel of f over the noise of Z where its law is known, knows the variance of y, and recommends the queried row of the
largest posterior mean. Where measured records leave again, it learns from the mean of both draws of each, weighted by
their precision. The baselines identity and random_rows have exact answers.

Groups that are all answered at once, for the same epsilon of a record, are a third baseline. The truth of a group is
the mean of f over its rows, and the modeler's model is at the centres.

Candidates of a study of groups are their centres, and f at a centre stands for the mean over the group. Rows say how
many records each group has. At each level these numbers have noise of the mechanism's law, and say what is a candidate.
An answer has the noise of a group with the median number.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.acquisition import UpperConfidenceBound, beta
from blindopt.gp.input_noise import noise_aware, refined
from blindopt.gp.kernels import Kernel, kernel_of
from blindopt.gp.posterior import Posterior
from blindopt.wire import ForecastCreate, ForecastPoint, GpUcb, LengthscaleRegret, NoiseLaw, StudyCreate
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.measurement.groups import COUNT_MOVE
from curator_service.privacy.noise import OnProgress
from curator_service.privacy.prices import exact
from curator_service.releases.forecasts.cells import ROWS_MIN, Cell, cells_of, groups_at_once, kernels_of
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.mechanism import Mechanism

PAIRS = 2_000
_LEAST_NOISE = 1e-6
"""Variance of an answer about a group without noise, as a share of that of f: a model without any would be singular."""
_FUNCTIONS, _NOISE, _TIES, _PAIRS = range(4)  # streams of the seed; 4 is that of the uniform rows
_NUMBERS = 5


def simulate(
    study: StudyCreate,
    forecast: ForecastCreate,
    rows: ScaledRows,
    *,
    seed: int,
    on_progress: OnProgress,
    records: int | None = None,
    total: str | None = None,
) -> list[ForecastPoint]:
    """The points of a forecast on ``rows`` (n, d), n >= 2: the baselines, then each mechanism at each level.

    All mechanisms get the same functions and the same noise of y, so their regrets are paired. ``seed`` determines
    these; the draws of the mechanisms have no seed. ``records``: the number of records that the rows stand for, if it
    is another one. ``total``: epsilon of a record, at which groups stand beside a search over records, if they do.
    Raises Invalid, ReleaseImpossible and NumericalFailure.
    """
    cells, kernels = cells_of(study, forecast), kernels_of(study, forecast)
    if rows.n < ROWS_MIN:
        raise Invalid("a forecast needs a dataset of two rows or more")
    worlds = [_World(kernel, study) for kernel in kernels]
    if isinstance(of_groups := cells[-1].mechanism, Groups):
        simulation: _Simulation = _GroupSimulation(worlds, forecast, rows, seed, of_groups, records or rows.n)
    else:
        simulation = _Simulation(worlds, forecast, rows, seed)
    mechanisms = [cell.on(rows) for cell in cells]  # before the long work, so that an impossible one is refused at once
    points: list[ForecastPoint] = []
    for cell, mechanism in zip(cells, mechanisms, strict=True):
        points.append(simulation.point(cell, mechanism, lambda share: on_progress((len(points) + share) / len(cells))))
    beside = [simulation.chance()]
    if total is not None:
        beside.append(simulation.at_once(groups_at_once(study, total, records or rows.n, rows.n), records or rows.n))
    return [points[0], *beside, *points[1:]]


class _World:
    """A kernel, and the variance of a measurement of a function that is drawn from it."""

    def __init__(self, kernel: wire.Kernel, study: StudyCreate) -> None:
        self.lengthscale = kernel.lengthscale
        self.kernel = kernel_of(kernel.kind, kernel.lengthscale, kernel.signal_variance)
        self.noise_variance = outcome_variance(study, kernel)


class _Simulation:
    """The rows, functions and noise that all mechanisms share."""

    def __init__(self, worlds: list[_World], forecast: ForecastCreate, rows: ScaledRows, seed: int) -> None:
        self._worlds = worlds
        self._rows = rows
        self._x: Matrix = np.vstack([block for _, block in rows.blocks()])
        self._queries = forecast.queries
        self._count = forecast.functions
        self._seed = seed
        # The same normal variables for each kernel: what differs between length-scales is the length-scale.
        self._f = [draw_functions(self._x, world.kernel, self._count, self._rng(_FUNCTIONS)) for world in worlds]
        self._chance = [np.array([chance_regret(f, forecast.queries) for f in functions]) for functions in self._f]
        self._noise = self._rng(_NOISE).standard_normal((self._count, forecast.queries))

    def _rng(self, stream: int, function: int = 0) -> np.random.Generator:
        return np.random.default_rng([self._seed, stream, function])

    def point(self, cell: Cell, mechanism: Mechanism, on_progress: OnProgress) -> ForecastPoint:
        """The point of a mechanism at a level, from a fresh Z for each function and a run of GP-UCB for each kernel."""
        n, d = self._rows.n, self._rows.d
        law, z = mechanism.noise(d), np.empty((n, mechanism.columns(d)))
        aware = [noise_aware(world.kernel, law, z.shape[1]) for world in self._worlds]
        sharp: list[Sharp | None] = [None] * len(aware)
        if cell.second is not None:
            sd, other, places = law.sd or 0.0, cell.second.noise(d).sd or 0.0, np.empty_like(z)
            both = sd * other / math.hypot(sd, other)
            sharp = [(places, refined(world.kernel, "planar_laplace", sd, both, d)) for world in self._worlds]
        regrets, errors = np.empty((len(self._worlds), self._count)), []
        for number in range(self._count):
            mechanism.draw(self._rows, z)
            if cell.second is not None:
                cell.second.draw(self._rows, places)
                places += (both / sd) ** 2 * (z - places)
            for i, (world, (kernel, nugget)) in enumerate(zip(self._worlds, aware, strict=True)):
                variance = world.noise_variance + cell.answer_variance
                noise = np.sqrt(variance) * self._noise[number]
                ties = self._rng(_TIES, number)
                f = self._f[i][number]
                regrets[i, number] = gp_ucb_regret(z, f, noise, kernel, variance, ties, nugget, sharp[i])
                on_progress((number + (i + 1) / len(self._worlds)) / self._count)
            pairs = draw_pairs(n, -(-PAIRS // self._count), self._rng(_PAIRS, number))
            errors.append(relative_errors(self._x, z, law, pairs))
        all_errors = np.concatenate(errors)
        error = float(np.median(all_errors)) if len(all_errors) else None
        point = self._point(cell.name, mechanism.name, cell.epsilon, law.sd, error, list(regrets))
        second = None if cell.second is None else exact(cell.second.epsilon)
        return point.model_copy(update={"answers_epsilon": cell.answers_epsilon, "refine_epsilon": second})

    def chance(self) -> ForecastPoint:
        """The baseline of a search that asks for random rows."""
        return self._point("random_rows", "random_rows", None, None, None, self._chance)

    def at_once(self, cell: Cell, records: int) -> ForecastPoint:
        """The baseline of groups of so many records that are all answered, once each."""
        mechanism, regrets = cell.mechanism, np.empty((len(self._worlds), self._count))
        assert isinstance(mechanism, Groups)
        assert cell.answers is not None
        there, of_rows, rows = np.unique(mechanism.parts_of(self._x), return_inverse=True, return_counts=True)
        sizes, centres = np.rint(rows * (records / len(self._x))).astype(np.int64), mechanism.centres()[there]
        for number in range(self._count):
            rng = self._rng(_NUMBERS, number)
            noisy = _noisy(mechanism, sizes, rng)
            offered = mechanism.chosen(noisy)
            private = np.array([cell.answers.variance(noisy[at]) for at in offered])
            errors = rng.standard_normal(len(offered))
            for i, world in enumerate(self._worlds):
                f = self._f[i][number]
                means = (np.bincount(of_rows, f) / rows)[offered]
                of_outcomes = world.noise_variance / sizes[offered]
                variance = np.maximum(private + of_outcomes, _LEAST_NOISE * world.kernel.variance)
                covariance = world.kernel(centres[offered], centres[offered])
                y = means + np.sqrt(variance) * errors
                predicted = covariance @ np.linalg.solve(covariance + np.diag(variance), y)
                regrets[i, number] = f.max() - means[predicted.argmax()]
        return self._point(cell.name, mechanism.name, cell.epsilon, None, None, list(regrets))

    def _point(
        self, name: str, runs_as: str, epsilon: str | None, sd: float | None, error: float | None, regrets: list[Vector]
    ) -> ForecastPoint:
        sds = np.sqrt([world.kernel.variance for world in self._worlds])
        means = [mean_regret(of_world / sd) for sd, of_world in zip(sds, regrets, strict=True)]
        better: list[bool | None] = [None] * len(means)
        is_better_in_all: bool | None = None
        if regrets is not self._chance:
            less = (np.array(regrets) - np.array(self._chance)) / sds[:, None]
            better = [mean_regret(of_world).high < 0 for of_world in less]
            # Together they tell apart what the functions of one length-scale, which are few, do not.
            is_better_in_all = mean_regret(less.mean(axis=0)).high < 0
        middle = means[len(means) // 2]
        return ForecastPoint(
            mechanism=name,
            runs_as=runs_as,
            epsilon=epsilon,
            noise_sd=sd,
            distance_error=error,
            regret=middle.value,
            low=middle.low,
            high=middle.high,
            better_than_chance=is_better_in_all,
            by_lengthscale=[
                LengthscaleRegret(
                    lengthscale=world.lengthscale,
                    regret=mean.value,
                    low=mean.low,
                    high=mean.high,
                    better_than_chance=is_better,
                )
                for world, mean, is_better in zip(self._worlds, means, better, strict=True)
            ],
        )


class _GroupSimulation(_Simulation):
    """Groups in place of rows: the centres of those that have records, and how many each has."""

    def __init__(
        self, worlds: list[_World], forecast: ForecastCreate, rows: ScaledRows, seed: int, of: Groups, records: int
    ) -> None:
        centres = of.centres() if of.private is None else of.private.start()
        cells = np.concatenate([of.parts_of(block, centres) for _, block in rows.blocks()])
        sizes = np.rint(np.bincount(cells, minlength=len(centres)) * (records / rows.n)).astype(np.int64)
        there = np.flatnonzero(sizes)
        if len(there) > forecast.rows_max:
            there = np.sort(np.random.default_rng([seed, _PAIRS]).choice(there, forecast.rows_max, replace=False))
        self._sizes = sizes[there]
        columns = list(range(len(of.features)))
        offered = ScaledRows(of.in_raw_units(centres[there]), columns, of.features, np.arange(len(there)))
        super().__init__(worlds, forecast, offered, seed)

    def point(self, cell: Cell, mechanism: Mechanism, on_progress: OnProgress) -> ForecastPoint:
        """The point of a level, from fresh numbers of records for each function and a run of GP-UCB for each kernel."""
        regrets = np.empty((len(self._worlds), self._count))
        for number in range(self._count):
            offered, variance = np.arange(len(self._x)), 0.0
            if isinstance(mechanism, Groups):
                assert cell.answers is not None
                noisy = _noisy(mechanism, self._sizes, self._rng(_NUMBERS, number))
                offered = mechanism.chosen(noisy)
                median = int(np.median(np.array(noisy)[offered]))
                variance = cell.answers.variance(median)
            for i, world in enumerate(self._worlds):
                f, of_y = self._f[i][number], max(variance, _LEAST_NOISE * world.kernel.variance)
                noise, ties = np.sqrt(of_y) * self._noise[number], self._rng(_TIES, number)
                regret = gp_ucb_regret(self._x[offered], f[offered], noise, world.kernel, of_y, ties)
                regrets[i, number] = regret + float(f.max() - f[offered].max())
            on_progress((number + 1) / self._count)
        return self._point(cell.name, mechanism.name, cell.epsilon, None, None, list(regrets))


def _noisy(mechanism: Groups, sizes: NDArray[np.int64], rng: np.random.Generator) -> list[int]:
    """Numbers of records with noise of the mechanism's law: a difference of two geometric variables."""
    p = -np.expm1(-float(mechanism.epsilon) / (COUNT_MOVE * mechanism.rows))
    first, second = rng.geometric(p, (2, len(sizes)))
    noisy: list[int] = (sizes + first - second).tolist()
    return noisy


def outcome_variance(study: StudyCreate, kernel: wire.Kernel) -> float:
    """Variance of a simulated measurement around f, in squared units of y."""
    declared = study.measurement.noise_variance if study.kernel is not None else 0.0
    return max(kernel.noise_variance, declared)


Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
Sharp = tuple[Matrix, tuple[Kernel, Kernel]]


def draw_pairs(n: int, count: int, rng: np.random.Generator) -> Pairs:
    """``count`` uniform random pairs of different rows of n >= 2."""
    first = rng.integers(n, size=count)
    return first, (first + rng.integers(1, n, size=count)) % n


def read_distances(z: Matrix, law: NoiseLaw, pairs: Pairs) -> Vector:
    """Estimate distances between rows of X from ``z`` (n, r): sqrt(max(|z_i - z_j|^2 - 2 r sd^2, 0)).

    The expected squared norm of the noise of a row is r sd^2. Where the law has no sd (random_projection: a map
    with E |z_i - z_j|^2 = |x_i - x_j|^2 where it does not lift) the estimate is |z_i - z_j|.
    """
    squared = _squared(z, pairs)
    if law.sd is not None:
        squared -= 2 * z.shape[1] * law.sd**2
    return np.sqrt(np.maximum(squared, 0.0))


def relative_errors(x: Matrix, z: Matrix, law: NoiseLaw, pairs: Pairs) -> Vector:
    """|estimated - true| / true distance, for those ``pairs`` of rows of ``x`` that differ."""
    true, estimated = np.sqrt(_squared(x, pairs)), read_distances(z, law, pairs)
    apart = true > 0
    return np.abs(estimated[apart] - true[apart]) / true[apart]


def _squared(rows: Matrix, pairs: Pairs) -> Vector:
    difference = rows[pairs[0]] - rows[pairs[1]]
    squared: Vector = np.einsum("ij,ij->i", difference, difference)
    return squared


_JITTERS = tuple(10.0**-power for power in range(10, 3, -1))


def draw_functions(points: Matrix, kernel: Kernel, count: int, rng: np.random.Generator) -> Matrix:
    """Draw ``count`` independent functions f ~ GP(0, kernel) at ``points`` (n, d), as a (count, n) matrix.

    Exact up to a jitter on the diagonal, of at most 1e-4 and mostly 1e-10 of the variance: points that
    coincide make the covariance singular. O(n^3) time, n^2 numbers twice over. NumericalFailure where
    even the largest jitter does not make it positive definite. Source: Rasmussen & Williams (2006), A.2.
    """
    from scipy.linalg import cholesky

    covariance, diagonal = kernel(points, points), np.arange(len(points))
    for jitter in _JITTERS:
        covariance[diagonal, diagonal] = kernel.variance * (1 + jitter)
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            continue
        functions: Matrix = (factor @ rng.standard_normal((len(points), count))).T
        return np.ascontiguousarray(functions)
    raise NumericalFailure("the kernel matrix of the records cannot be factorized: check the kernel's lengthscale")


DELTA_PRIME = GpUcb(name="gp_ucb").delta_ucb / 2


def gp_ucb_regret(
    candidates: Matrix,
    f: Vector,
    noise: Vector,
    kernel: Kernel,
    noise_variance: float,
    rng: np.random.Generator,
    nugget: float = 0.0,
    sharp: Sharp | None = None,
) -> float:
    """The gap max f - f of the recommended row, after one query for each number in ``noise`` (queries,).

    Simulates a modeler's gp_ucb on ``candidates`` (n, r) with its default settings, maximizing: it observes
    f + noise, models f by ``kernel`` and ``nugget`` on the candidates and ``noise_variance``, and may query a row
    again. ``sharp``: where queried rows lie by both draws, if there are two, and the kernels of those places.
    ``rng`` breaks ties, such as that of the first row, and nothing else. The modeler recommends the queried row
    of the largest posterior mean. In units of f.
    """
    n, rows = len(f), list[int]()
    places, kernels = (candidates, None) if sharp is None else sharp
    posterior = Posterior(
        candidates, kernel, noise_variance=noise_variance, nugget=nugget, capacity=len(noise), refined=kernels
    )
    for step, error in enumerate(noise, start=1):
        row = posterior.argmax(UpperConfidenceBound(beta(n, step, DELTA_PRIME)), lambda: rng).row
        if kernels is not None and row not in rows:
            posterior.refine(row, places[row])
        rows.append(row)
        posterior.observe(row, float(f[row] + error))
    recommended = max(rows, key=posterior.mean.__getitem__)
    return float(f.max() - f[recommended])


def chance_regret(f: Vector, queries: int) -> float:
    """Expected simple regret of ``queries`` uniform random rows without repetition; every row where there are fewer.

    Exact: the row of rank k (0 is the best of n) is the best of q with probability C(n-1-k, q-1) / C(n, q).
    """
    n, falling = len(f), np.sort(f)[::-1]
    q = min(queries, n)
    k = np.arange(n - q)
    probability = q / n * np.cumprod(np.concatenate([[1.0], (n - q - k) / (n - 1 - k)]))
    return float(falling[0] - probability @ falling[: n - q + 1])


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


def mean_regret(regrets: Vector) -> Mean:
    """The mean of independent regrets (m,), m >= 2, with Student's interval, cut at 0: no regret is less."""
    from scipy.special import stdtrit

    m = len(regrets)
    value = math.fsum(regrets) / m
    half = float(stdtrit(m - 1, 0.975)) * float(np.std(regrets, ddof=1)) / math.sqrt(m)
    return Mean(value, max(value - half, 0.0), value + half)
