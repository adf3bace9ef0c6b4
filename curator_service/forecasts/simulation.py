"""The simulation: functions of the declared kernel on the real rows, found again through each mechanism's Z.

What is modelled. f is drawn from GP(0, kernel) at the scaled rows X. y = f + Gaussian noise whose variance is
the kernel's noise_variance (or the study's measurement.noise_variance, where that is larger), plus the
variance of the study's private answers, if it has them: their own law and their clip are not modelled. Z is
drawn by the mechanism itself, anew for each function. The modeler is gp_ucb as it is: it averages the declared
kernel over the noise of Z where its law is known, and knows the variance of y.
"""

from collections.abc import Callable, Collection

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
from curator_service.release.mechanism import Mechanism
from curator_service.scaling import ScaledRows

PAIRS = 2_000
_FUNCTIONS, _NOISE, _TIES, _PAIRS = range(4)  # streams of the seed


def simulate(
    study: StudyCreate,
    asked: ForecastCreate,
    rows: ScaledRows,
    *,
    seed: int,
    told: Callable[[float], None],
    withdrawn: Collection[str] = (),
) -> list[ForecastPoint]:
    """The points of a forecast on ``rows`` (n, d), n >= 2: the yardsticks, then each mechanism at each level.

    Every mechanism meets the same functions and the same noise of y, so their regrets are paired. ``seed``
    decides these; what the mechanisms draw has no seed. ``told`` hears the share that is done. Raises
    Invalid, ReleaseImpossible and NumericalFailure.
    """
    cells = cells_of(study, asked, withdrawn)
    if rows.n < ROWS_MIN:
        raise Invalid("a forecast needs a dataset of two rows or more")
    trial = _Trial(study, asked, rows, seed)
    mechanisms = [cell.on(rows) for cell in cells]  # before the long work: what cannot be made is told at once
    points: list[ForecastPoint] = []

    def tell(share: float) -> None:
        told((len(points) + share) / len(cells))

    for cell, mechanism in zip(cells, mechanisms, strict=True):
        points.append(trial.point(cell, mechanism, tell))
    return [points[0], trial.chance(), *points[1:]]


class _Trial:
    """What all mechanisms share: rows, functions, noise."""

    def __init__(self, study: StudyCreate, asked: ForecastCreate, rows: ScaledRows, seed: int) -> None:
        assert study.kernel is not None
        self._rows = rows
        self._x: Matrix = np.vstack([block for _, block in rows.blocks()])
        self._kernel = kernel_of(study.kernel.kind, study.kernel.lengthscale, study.kernel.signal_variance)
        self._noise_variance = outcome_variance(study)
        self._queries = asked.queries
        self._seed = seed
        self._f = draw_functions(self._x, self._kernel, asked.functions, self._rng(_FUNCTIONS))
        self._noise = np.sqrt(self._noise_variance) * self._rng(_NOISE).standard_normal(
            (asked.functions, asked.queries)
        )

    def _rng(self, stream: int, function: int = 0) -> np.random.Generator:
        return np.random.default_rng([self._seed, stream, function])

    def point(self, cell: Cell, mechanism: Mechanism, told: Callable[[float], None]) -> ForecastPoint:
        """One mechanism at one level: a fresh Z and a run of GP-UCB for each function."""
        count, n, d = len(self._f), self._rows.n, self._rows.d
        law, z = mechanism.noise(d), np.empty((n, mechanism.columns(d)))
        kernel, nugget = noise_aware(self._kernel, law, z.shape[1])
        regrets, errors = np.empty(count), []
        for place, (f, noise) in enumerate(zip(self._f, self._noise, strict=True)):
            mechanism.draw(self._rows, z)
            ties = self._rng(_TIES, place)
            regrets[place] = gp_ucb_regret(z, f, noise, kernel, self._noise_variance, ties, nugget)
            pairs = draw_pairs(n, -(-PAIRS // count), self._rng(_PAIRS, place))
            errors.append(relative_errors(self._x, z, law, pairs))
            told((place + 1) / count)
        found = np.concatenate(errors)
        error = float(np.median(found)) if len(found) else None
        return self._told(cell.name, mechanism.name, cell.epsilon, law.sd, error, regrets)

    def chance(self) -> ForecastPoint:
        """The other yardstick: rows at random, which look at nothing."""
        regrets = np.array([chance_regret(f, self._queries) for f in self._f])
        return self._told("random_rows", "random_rows", None, None, None, regrets)

    def _told(
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
