"""The simulation: functions of the declared kernel on the real rows, optimized through each mechanism's Z.

The model: f is drawn from GP(0, kernel) at the scaled rows X. y = f + Gaussian noise whose variance is
the kernel's noise_variance (or the study's measurement.noise_variance, where that is larger), plus the
variance of the study's private answers, if it has them: their law and their clip are not modelled. Z is
drawn by the mechanism itself, anew for each function. The modeler is gp_ucb, unchanged: it averages the declared
kernel over the noise of Z where its law is known, and knows the variance of y.
"""

from collections.abc import Collection

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import Invalid
from blindopt.gp.input_noise import noise_aware
from blindopt.gp.kernels import kernel_of
from blindopt.wire import ForecastCreate, ForecastPoint, StudyCreate
from curator_service.forecasts.cells import ROWS_MIN, Cell, cells_of
from curator_service.forecasts.distances import draw_pairs, relative_errors
from curator_service.forecasts.functions import draw_functions
from curator_service.forecasts.regret import chance_regret, gp_ucb_regret, mean_regret
from curator_service.measurement.privatize import passport_of
from curator_service.privacy.noise import OnProgress
from curator_service.release.mechanism import Mechanism
from curator_service.scaling import ScaledRows

PAIRS = 2_000
_FUNCTIONS, _NOISE, _TIES, _PAIRS = range(4)  # streams of the seed


def simulate(
    study: StudyCreate,
    forecast: ForecastCreate,
    rows: ScaledRows,
    *,
    seed: int,
    on_progress: OnProgress,
    withdrawn: Collection[str] = (),
) -> list[ForecastPoint]:
    """The points of a forecast on ``rows`` (n, d), n >= 2: the two baselines, then each mechanism at each level.

    All mechanisms get the same functions and the same noise of y, so their regrets are paired. ``seed`` determines
    these; the draws of the mechanisms have no seed. Raises Invalid, ReleaseImpossible and NumericalFailure.
    """
    cells = cells_of(study, forecast, withdrawn)
    if rows.n < ROWS_MIN:
        raise Invalid("a forecast needs a dataset of two rows or more")
    simulation = _Simulation(study, forecast, rows, seed)
    mechanisms = [cell.on(rows) for cell in cells]  # before the long work, so that an impossible one is refused at once
    points: list[ForecastPoint] = []

    def progress_of_cell(share: float) -> None:
        on_progress((len(points) + share) / len(cells))

    for cell, mechanism in zip(cells, mechanisms, strict=True):
        points.append(simulation.point(cell, mechanism, progress_of_cell))
    return [points[0], simulation.chance(), *points[1:]]


class _Simulation:
    """The rows, functions and noise that all mechanisms share."""

    def __init__(self, study: StudyCreate, forecast: ForecastCreate, rows: ScaledRows, seed: int) -> None:
        assert study.kernel is not None
        self._rows = rows
        self._x: Matrix = np.vstack([block for _, block in rows.blocks()])
        self._kernel = kernel_of(study.kernel.kind, study.kernel.lengthscale, study.kernel.signal_variance)
        self._noise_variance = outcome_variance(study)
        self._queries = forecast.queries
        self._seed = seed
        self._f = draw_functions(self._x, self._kernel, forecast.functions, self._rng(_FUNCTIONS))
        self._noise = np.sqrt(self._noise_variance) * self._rng(_NOISE).standard_normal(
            (forecast.functions, forecast.queries)
        )

    def _rng(self, stream: int, function: int = 0) -> np.random.Generator:
        return np.random.default_rng([self._seed, stream, function])

    def point(self, cell: Cell, mechanism: Mechanism, on_progress: OnProgress) -> ForecastPoint:
        """The point of a mechanism at a level, from a fresh Z and a run of GP-UCB for each function."""
        count, n, d = len(self._f), self._rows.n, self._rows.d
        law, z = mechanism.noise(d), np.empty((n, mechanism.columns(d)))
        kernel, nugget = noise_aware(self._kernel, law, z.shape[1])
        regrets, errors = np.empty(count), []
        for number, (f, noise) in enumerate(zip(self._f, self._noise, strict=True)):
            mechanism.draw(self._rows, z)
            ties = self._rng(_TIES, number)
            regrets[number] = gp_ucb_regret(z, f, noise, kernel, self._noise_variance, ties, nugget)
            pairs = draw_pairs(n, -(-PAIRS // count), self._rng(_PAIRS, number))
            errors.append(relative_errors(self._x, z, law, pairs))
            on_progress((number + 1) / count)
        all_errors = np.concatenate(errors)
        error = float(np.median(all_errors)) if len(all_errors) else None
        return self._point(cell.name, mechanism.name, cell.epsilon, law.sd, error, regrets)

    def chance(self) -> ForecastPoint:
        """The baseline of a search that asks for random rows."""
        regrets = np.array([chance_regret(f, self._queries) for f in self._f])
        return self._point("random_rows", "random_rows", None, None, None, regrets)

    def _point(
        self, name: str, runs_as: str, epsilon: str | None, sd: float | None, error: float | None, regrets: Vector
    ) -> ForecastPoint:
        mean = mean_regret(regrets / np.sqrt(self._kernel.variance))
        return ForecastPoint(
            mechanism=name,
            runs_as=runs_as,
            epsilon=epsilon,
            noise_sd=sd,
            distance_error=error,
            regret=mean.value,
            low=mean.low,
            high=mean.high,
        )


def outcome_variance(study: StudyCreate) -> float:
    """Variance of a simulated y around f, in squared units of y."""
    assert study.kernel is not None
    return max(study.kernel.noise_variance, study.measurement.noise_variance) + (
        passport_of(study).privacy.variance or 0.0
    )
