"""Means of a function of the place over the noise of candidates: on cells for few columns, by draws for more."""

from functools import lru_cache
from math import ceil, prod

import numpy as np

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.deblurred import Deblurred
from blindopt.gp.input_noise import Law
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.progress import NO_TICK, Tick

CELLS_MAX = 1 << 15
"""Most cells; where more are needed, draws are used."""
COLUMNS_MAX = 3
"""Most columns of Z for cells."""
DRAWS = 64
_PER_LENGTHSCALE = 4.0  # cells in a lengthscale of what was blurred once
_PER_BOX = 16.0  # cells along the longest side of the box, at least
_MARGIN = 3.0  # standard deviations of the noise, and
_MARGIN_CELLS = 2.0  # more cells, from the box to the outermost cells: a Fourier series joins these
_LOG_CUT = 10.0
_DENSITY_STEPS = 10  # more fit the noise
_DENSITY_MIN = 1e-9
_BLOCK = 2_048  # places whose covariances are computed together


def noise_means(candidates: Matrix, belief: Deblurred, tick: Tick = NO_TICK) -> "NoiseMeans":
    """Cells for candidates (n, r) of few columns, if they are few enough; draws otherwise."""
    if belief.r <= COLUMNS_MAX and prod(cells_of(candidates, belief)[0]) <= CELLS_MAX:
        return Cells(candidates, belief)
    return Draws(candidates, belief, tick)


class Cells:
    """Cells over the box of all candidates (n, r) and a margin, with means over the noise by Fourier transforms.

    The mean over the noise is a convolution: in the Fourier series, a product with the noise's characteristic
    function. Cubic splines interpolate it at candidates. Holds a number for each cell and outcome.

    Where records are refined, places are weighted by a density of the true ones, which explains where all candidates
    lie: without it a search spends itself on candidates whose noise puts them where no record is.
    """

    def __init__(self, candidates: Matrix, belief: Deblurred) -> None:
        self._belief, self._candidates = belief, candidates
        self._shape, self._step = cells_of(candidates, belief)
        low, high = candidates.min(axis=0), candidates.max(axis=0)
        self._origin = (low + high - self._step * (np.array(self._shape) - 1)) / 2
        grid = np.meshgrid(*map(np.arange, self._shape), indexing="ij")
        self._places = self._origin + self._step * np.stack([axis.ravel() for axis in grid], axis=1)
        waves = [np.fft.fftfreq(size, self._step) for size in self._shape[:-1]]
        waves.append(np.fft.rfftfreq(self._shape[-1], self._step))
        squared = sum(wave**2 for wave in np.meshgrid(*waves, indexing="ij", sparse=True))
        squared = (2 * np.pi) ** 2 * np.asarray(squared)
        self._blurs = [characteristic(belief.law, sd, belief.r, squared) for sd in (belief.sd, belief.sharper or 0.0)]
        self._cross = np.empty((0, len(self._places)))
        self._nearest = np.ravel_multi_index(tuple(self._at(candidates).T.round().astype(np.intp)), self._shape)
        self._density, self._mass = np.ones(len(self._places)), np.ones(len(candidates))
        if belief.sharper is not None:
            self._density = self._fit_density()
            self._mass = self._mean_at(candidates, self._density)

    def _fit_density(self) -> Vector:
        """The density of true places at the cells, relative to its mean: from a flat one by few steps of EM."""
        counts, density = np.bincount(self._nearest, minlength=len(self._places)), np.ones(len(self._places))
        for _ in range(_DENSITY_STEPS):
            expected = np.maximum(self._blurred(density), _DENSITY_MIN)
            density = np.maximum(density * self._blurred(counts / expected), 0.0)
        relative: Vector = density / density.mean() + _DENSITY_MIN
        return relative

    def adapt(self) -> None:
        """Adapt the belief's variance of each outcome to the present posterior."""
        mean, variance = self.moments()
        first, second, third = (self._mean_at_outcomes(values) for values in (mean, mean**2, variance))
        self._belief.adapt(np.maximum(second - first**2, 0.0), third)

    def moments(self, rows: Rows | None = None) -> tuple[Vector, Vector]:
        """Means and variances of f at all cells."""
        if self._belief.count > (since := len(self._cross)):
            self._cross = np.vstack([self._cross, self._belief.covariances(self._places, since)])
        return self._belief.moments(self._cross)

    def mean_at(self, rows: Rows, values: Vector) -> Vector:
        """Means (m,) over the noise of candidates ``rows`` of a function with these ``values`` at the cells."""
        return self._mean_at(self._candidates[rows], values * self._density) / self._mass[rows]

    def log_mean_at(self, rows: Rows, logs: Vector) -> Vector:
        """Logarithms (m,) of the means of a positive function, from its logarithms at the cells.

        Values far above all those at the candidates' own coordinates, in corners that no candidate reaches, are cut:
        rounding errors of a Fourier series are a share of its largest value.
        """
        top = logs[self._nearest[rows]].max()
        means = self.mean_at(rows, np.exp(np.minimum(logs - top, _LOG_CUT)))
        logarithms: Vector = top + np.log(np.maximum(means, np.finfo(np.float64).tiny))
        return logarithms

    def _mean_at_outcomes(self, values: Vector) -> Vector:
        """Means (t,) over the noise of each candidate with an outcome, of a function with these values at the cells."""
        means, is_refined = self._mean_at(self._belief.inputs, values), self._belief.is_refined
        if is_refined.any():
            means[is_refined] = self._mean_at(self._belief.inputs[is_refined], values, self._blurs[1])
        return means

    def _mean_at(self, centres: Matrix, values: Vector, blur: Matrix | None = None) -> Vector:
        from scipy.ndimage import map_coordinates  # late, for a fast start

        blurred = self._blurred(values, blur).reshape(self._shape)
        means: Vector = map_coordinates(blurred, self._at(centres).T, order=3, mode="grid-wrap")
        return means

    def _blurred(self, values: Vector, blur: Matrix | None = None) -> Vector:
        series = (self._blurs[0] if blur is None else blur) * np.fft.rfftn(values.reshape(self._shape))
        blurred: Vector = np.fft.irfftn(series, self._shape, axes=range(len(self._shape))).ravel()
        return blurred

    def _at(self, centres: Matrix) -> Matrix:
        """Coordinates (m, r) in cells."""
        in_cells: Matrix = (centres - self._origin) / self._step
        return in_cells


class Draws:
    """The same quasi-random draws of the noise for all candidates (n, r): they come in pairs u, -u."""

    def __init__(self, candidates: Matrix, belief: Deblurred, tick: Tick = NO_TICK) -> None:
        self._belief, self._candidates, self._tick = belief, candidates, tick
        self._noise = belief.sd * unit_draws(belief.law, belief.r)

    def adapt(self) -> None:
        noise, belief = self._noise, self._belief
        if belief.sharper is not None and belief.is_refined.any():
            noise = np.where(belief.is_refined[:, None, None], belief.sharper / belief.sd * noise, noise)
        mean, variance = self._moments(belief.inputs, noise)
        self._belief.adapt(mean.reshape(-1, DRAWS).var(axis=1), variance.reshape(-1, DRAWS).mean(axis=1))

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Means and variances (64 m,) of f at the draws about candidates ``rows``."""
        return self._moments(self._candidates[rows], self._noise)

    def mean_at(self, rows: Rows, values: Vector) -> Vector:
        """Means (m,) of ``values`` (64 m,) for each candidate of ``rows``."""
        means: Vector = values.reshape(len(rows), DRAWS).mean(axis=1)
        return means

    def log_mean_at(self, rows: Rows, logs: Vector) -> Vector:
        """Logarithms (m,) of the means of a positive function, from its logarithms (64 m,)."""
        logs = logs.reshape(len(rows), DRAWS)
        top = logs.max(axis=1)
        logarithms: Vector = top + np.log(np.exp(logs - top[:, None]).mean(axis=1))
        return logarithms

    def _moments(self, centres: Matrix, noise: Matrix) -> tuple[Vector, Vector]:
        places = (centres[:, None] + noise).reshape(-1, self._belief.r)
        mean, variance = np.empty(len(places)), np.empty(len(places))
        for start in range(0, len(places), _BLOCK):
            self._tick()
            block = slice(start, start + _BLOCK)
            mean[block], variance[block] = self._belief.moments(self._belief.covariances(places[block]))
        return mean, variance


NoiseMeans = Cells | Draws
"""Places where a belief about f is evaluated, and means over the noise of functions with values there."""


def cells_of(candidates: Matrix, belief: Deblurred) -> tuple[tuple[int, ...], float]:
    """Number of cells along each column, and the side of a cell: the box of the candidates with room for the noise.

    What was blurred once varies over sqrt(l^2 + sd^2), but with bends of size sd if the kernel has them.
    """
    from scipy.fft import next_fast_len  # late, for a fast start

    with np.errstate(over="ignore"):
        length = np.ptp(candidates, axis=0) + 2 * _MARGIN * belief.sd
    narrow = min(belief.single.lengthscale, belief.sharp_single.lengthscale)
    step = min(narrow / _PER_LENGTHSCALE, float(length.max()) / _PER_BOX)
    if not isinstance(belief.kernel, SquaredExponential):
        step = min(step, belief.sd)
    least = [ceil(min(size / step + 2 * _MARGIN_CELLS, 2.0 * CELLS_MAX)) + 1 for size in length.tolist()]
    return tuple(next_fast_len(size, real=True) for size in least), step


def characteristic(law: Law, sd: float, r: int, squared: Matrix) -> Matrix:
    """E exp(i q.u) at squared frequencies |q|^2 of noise u with standard deviation ``sd`` in each of r coordinates."""
    scaled = sd**2 * squared
    if law == "gaussian":
        return np.exp(-0.5 * scaled)
    curve: Matrix = (1.0 + scaled / (r + 1)) ** (-0.5 * (r + 1))
    return curve


@lru_cache(maxsize=4)
def unit_draws(law: Law, r: int) -> Matrix:
    """64 quasi-random draws (64, r) of noise with standard deviation 1 in each coordinate, in pairs u, -u.

    Scrambled Sobol points with a fixed seed: normal quantiles give the Gaussian law, or the direction of the planar
    law, whose length has the law Gamma(r) / a, a = sqrt(r + 1).
    """
    from scipy.special import gammaincinv, ndtri  # late, for a fast start
    from scipy.stats import qmc

    planar = law == "planar_laplace"
    uniform = qmc.Sobol(r + planar, seed=0).random(DRAWS // 2)
    noise: Matrix = ndtri(uniform[:, :r])
    if planar:
        lengths = gammaincinv(r, uniform[:, r]) / np.sqrt(r + 1)
        noise *= (lengths / np.linalg.norm(noise, axis=1))[:, None]
    both = np.concatenate([noise, -noise])
    both.setflags(write=False)
    return both
