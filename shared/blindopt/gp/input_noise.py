"""The mean of a kernel over the noise that the candidates carry, and the nugget that this noise adds."""

from dataclasses import dataclass, field
from functools import lru_cache
from math import gamma, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.gp.kernels import SMALLEST, Kernel, Matern12, Matern32, Matern52, SquaredExponential
from blindopt.gp.single_thread_blas import product
from blindopt.wire.release import NoiseLaw

Law = Literal["gaussian", "planar_laplace"]
Draws = Literal[1, 2]
_ORDERS: dict[type[Kernel], float] = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}
_STEP = 0.35  # of the trapezoidal rule in a logarithm: its error is about e^(-pi^2 / step)
_SHARE_MIN = 1e-17  # parts of a mixture below this share of the largest are left out
_LIKELIHOOD_SHARE_MIN = 1e-12  # the same for a likelihood, which needs fewer digits
_NODES = 400  # of the splines of a likelihood
_CORRELATION_MIN = 1e-13  # correlations below this are taken as 0
_TABLE_SIZE = 1 << 19
_SCALES_MIN = 1e-6  # of two Gamma variables: less of one than this share of the other changes no digit of their sum
_BESSEL_MAX = 600.0  # arguments up to which a power series in them is a double


@dataclass(frozen=True, slots=True)
class Tabulated(Kernel):
    """A correlation given by its values at distances 0, h, 2h, ... lengthscales, linear in between, 0 beyond.

    ``steps`` has each value as its real part, and how much more the next one is as its imaginary part: both are read
    from one place of the memory. ``spacing`` is h.
    """

    steps: NDArray[np.complex128] = field(default_factory=lambda: np.ones(1, complex), repr=False, compare=False)
    spacing: float = 1.0

    def correlate(self, squared: Matrix) -> None:
        np.sqrt(squared, out=squared)
        squared *= 1.0 / self.spacing
        np.minimum(squared, len(self.steps) - 1, out=squared)
        index = squared.astype(np.intp)
        squared -= index
        steps = self.steps.take(index, mode="clip")
        squared *= steps.imag
        squared += steps.real


def noise_aware(kernel: Kernel, law: NoiseLaw, r: int) -> tuple[Kernel, float]:
    """Kernel and nugget for a release of ``r`` columns with this noise; the kernel itself and 0 without noise.

    Of ``gaussian_projection`` only the Gaussian noise is taken into account, not the projection.
    """
    noise = declared_noise(law)
    return (kernel, 0.0) if noise is None else averaged(kernel, *noise, r)


def declared_noise(law: NoiseLaw) -> tuple[Law, float] | None:
    """Law and standard deviation per coordinate of a release's noise; None if it declares no noise.

    Laplace noise in each column counts as planar noise of the same standard deviation.
    """
    if law.family in ("none", "random_projection") or not law.sd:
        return None
    return "planar_laplace" if law.family in ("planar_laplace", "laplace_each") else "gaussian", law.sd


@lru_cache(maxsize=2)
def averaged(kernel: Kernel, law: Law, sd: float, r: int, draws: Draws = 2) -> tuple[Kernel, float]:
    """The mean of ``kernel`` over the noise of two different candidates, and the nugget of each.

    With ``draws`` = 1 it is the mean over the noise of one candidate: its covariance with f at a known place.

    Candidates are z = x + u, u of ``law`` with standard deviation ``sd`` in each of the r coordinates. The second
    moment of f given all z is E k(|z - z' + w|), w = u' - u, for two rows and the full variance for one: the
    best linear predictor from z uses the first as its kernel and the difference to the second as a nugget that a
    row shares with itself alone. With a squared-exponential kernel and Gaussian noise it has a closed form:
    variance (l^2 / (l^2 + 2 sd^2))^(r/2), lengthscale sqrt(l^2 + 2 sd^2).

    The others are mixtures of that one, over a Gamma variable for each law that is not Gaussian: a Matern kernel of
    order v has l^2 H / v, H ~ Gamma(v), in the place of l^2 (its spectrum is Student's: Rasmussen & Williams 2006,
    section 4.2). Planar Laplace noise of density exp(-a |u|), a = sqrt(r + 1) / sd, has the characteristic function
    (1 + q^2 / a^2)^(-(r + 1)/2), so w is Gaussian with variance 2 G / a^2, G ~ Gamma(r + 1), and u with G ~
    Gamma((r + 1) / 2). Both are integrated by the trapezoidal rule in the logarithm, once, and tabulated.
    """
    square = kernel.lengthscale**2
    if isinstance(kernel, SquaredExponential) and law == "gaussian":
        wide = square + draws * sd**2
        between = max(kernel.variance * (square / wide) ** (r / 2), SMALLEST)
        return SquaredExponential(sqrt(wide), between), max(kernel.variance - between, 0.0)
    tabulated = _tabulated(kernel.variance, *_mixture(kernel, law, sd, r, draws))
    return tabulated, max(kernel.variance - tabulated.variance, 0.0)


@lru_cache(maxsize=1)
def refined(kernel: Kernel, law: Law, sd: float, sharper: float, r: int) -> tuple[Kernel, Kernel]:
    """The mean of ``kernel`` over the noise of a candidate and of a refined one, and over that of two refined ones.

    The noise of a refined candidate has the standard deviation ``sharper``. For two laws of planar noise the sum of
    their Gamma variables has a density with a Bessel function. Distances are in units of the length-scale that
    ``averaged`` gives.
    """
    size = averaged(kernel, law, sd, r)[0].lengthscale
    mixtures = _mixture(kernel, law, sd, r, other=sharper), _mixture(kernel, law, sharper, r)
    cross, between = (_tabulated(kernel.variance, *mixture, size) for mixture in mixtures)
    return cross, between


def _tabulated(variance: float, shares: Vector, squares: Vector, size: float | None = None) -> Tabulated:
    """The kernel variance * sum of shares exp(-d^2 / (2 squares)), in units of a length-scale (None: its own)."""
    total = float(shares.sum())
    lengthscale = size or float(np.sqrt(np.exp(shares @ np.log(squares) / total)))
    between = max(variance * total, SMALLEST)

    def correlation(distance: Vector) -> Vector:
        values: Vector = np.exp(-0.5 * np.outer((distance * lengthscale) ** 2, 1.0 / squares)) @ (shares / total)
        return values

    end = 1.0
    while correlation(np.array([end]))[0] > _CORRELATION_MIN and end < 1e6:
        end *= 1.25
    coarse = np.unique(np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 700) * end, np.linspace(0.0, end, 1_500)]))
    fine = np.linspace(0.0, end, _TABLE_SIZE)
    values = _spline(coarse, correlation(coarse), fine)
    values[-2:] = 0.0
    steps = np.empty(len(values) - 1, complex)
    steps.real, steps.imag = values[:-1], np.diff(values)
    return Tabulated(lengthscale, between, steps, float(fine[1]))


def _spline(nodes: Vector, values: Matrix, at: Vector) -> Matrix:
    """Cubic splines through ``values`` (m,) or (m, k) at ``nodes``, level at the first node, evaluated at ``at``."""
    from scipy.interpolate import CubicSpline  # late: it takes half a second of a service's start

    spline = CubicSpline(nodes, values, bc_type=((1, np.zeros(values.shape[1:])), "not-a-knot"))
    evaluated: Matrix = spline(at)
    return evaluated


def _mixture(
    kernel: Kernel, law: Law, sd: float, r: int, draws: Draws = 2, other: float | None = None
) -> tuple[Vector, Vector]:
    """Shares p and squared lengthscales s with E k = variance * sum of p exp(-d^2 / (2 s))."""
    shares, _, wide = _parts(kernel, law, sd, r, draws, _SHARE_MIN, other)
    return shares, wide


def _parts(
    kernel: Kernel, law: Law, sd: float, r: int, draws: Draws, share_min: float, other: float | None = None
) -> tuple[Vector, Vector, Vector]:
    """Shares p, the kernel's part of s, and s; without shares below ``share_min`` of the largest.

    ``other`` is the standard deviation of the noise of the second candidate, if it differs.
    """
    part, scale = np.ones(1), np.ones(1)
    if type(kernel) in _ORDERS:
        order = _ORDERS[type(kernel)]
        part, scale = _gamma(order)
        scale = scale / order
    elif not isinstance(kernel, SquaredExponential):
        raise TypeError(f"{type(kernel).__name__} has no average over noise")
    noise_part, spread = np.ones(1), np.array([draws * sd**2])
    if law == "planar_laplace":
        noise_part, spread = _gamma(draws * (r + 1) / 2)
        spread = spread * (2 * sd**2 / (r + 1))
    if other is not None:
        noise_part, spread = np.ones(1), np.array([sd**2 + other**2])
        if law == "planar_laplace":
            noise_part, spread = _two_gammas((r + 1) / 2, *sorted(2 * size**2 / (r + 1) for size in (sd, other)))
    plain = kernel.lengthscale**2 * scale[:, None]
    wide = plain + spread
    shares = (part[:, None] * noise_part * (plain / wide) ** (r / 2)).ravel()
    kept = shares > share_min * shares.max()
    return shares[kept], np.broadcast_to(plain, wide.shape).ravel()[kept], wide.ravel()[kept]


def correlations(
    kernel: Kernel, noise: tuple[Law, float] | None, r: int, squared: Vector, other: float | None = None
) -> tuple[Vector, Vector]:
    """Mean correlations of two candidates at squared distances (m,), and their derivatives in log lengthscale.

    ``noise`` is its law and standard deviation per coordinate, or None; ``other`` is that of the second candidate, if
    it differs. With p and s of the mixture, and a the kernel's part of s = a + b, the derivative of p exp(-d^2 / (2 s))
    is p exp(-d^2 / (2 s)) (r b / s + a d^2 / s^2).
    Exact to about 1e-8: values at many distances are interpolated from those at few.
    """
    if noise is None:
        scaled = squared / kernel.lengthscale**2
        slopes = kernel.slope(scaled)
        kernel.correlate(scaled)
        return scaled, slopes
    shares, plain, wide = _parts(kernel, *noise, r, 2, _LIKELIHOOD_SHARE_MIN, other)
    parts = np.stack([shares, shares * (r * (1.0 - plain / wide)), shares * plain / wide**2], axis=1)

    def mixed(at: Vector) -> Matrix:
        sums = product(np.exp(-0.5 * np.outer(at, 1.0 / wide)), parts)
        return np.stack([sums[:, 0], sums[:, 1] + at * sums[:, 2]], axis=1)

    end = float(np.sqrt(squared.max(initial=0.0)))
    if len(squared) <= _NODES or len(wide) == 1 or end == 0.0:
        values = mixed(squared)
    else:
        nodes = end * np.linspace(0.0, 1.0, _NODES) ** 2  # denser near zero, where a sharp kernel bends
        values = _spline(nodes, mixed(nodes**2), np.sqrt(squared))
    return values[:, 0], values[:, 1]


def _gamma(order: float) -> tuple[Vector, Vector]:
    """Weights and nodes of the mean over H ~ Gamma(order, 1), by integrating e^(order v - e^v) over v = log H."""
    v = np.arange(log(_SHARE_MIN) / order - 5.0, 5.0 + log(order + 1.0), _STEP)
    weights = np.exp(order * v - np.exp(v) - (order * log(order) - order))
    weights /= weights.sum()
    return weights, np.exp(v)


def _two_gammas(order: float, small: float, large: float) -> tuple[Vector, Vector]:
    """Weights and nodes of the mean over the sum v of Gamma(order) variables of two scales.

    With x = v (1 / small - 1 / large) / 2 and I the modified Bessel function of order - 1/2, its density is a constant
    times v^(2 order - 1) e^(-v / large) e^(-x) I(x) x^(1/2 - order).
    """
    from scipy.special import hyp0f1, ive  # late, for a fast start of the services

    degree, small = order - 0.5, max(small, _SCALES_MIN * large)
    v = np.arange(log(_SHARE_MIN) / order - 5.0, 5.0 + log(2 * order + 1.0), _STEP / 2)
    nodes = large * np.exp(v)
    x = nodes * (1.0 / small - 1.0 / large) / 2
    near = np.minimum(x, _BESSEL_MAX)
    series = np.exp(-near) * hyp0f1(degree + 1.0, near**2 / 4) / (2**degree * gamma(degree + 1.0))
    bessel = np.where(x <= _BESSEL_MAX, series, ive(degree, x) * np.maximum(x, 1.0) ** -degree)
    weights = np.exp(2 * order * v - np.exp(v)) * bessel
    return weights / weights.sum(), nodes
