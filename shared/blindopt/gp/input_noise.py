"""What a kernel is on average when the candidates carry noise of a known law."""

from dataclasses import dataclass, field
from math import log, sqrt
from typing import Literal

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.gp.kernels import SMALLEST, Kernel, Matern12, Matern32, Matern52, SquaredExponential
from blindopt.gp.single_thread_blas import product
from blindopt.wire.releases import NoiseLaw

Law = Literal["gaussian", "planar_laplace"]
_ORDERS: dict[type[Kernel], float] = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5}
_STEP = 0.35  # of the trapezoidal rule in a logarithm: its error is about e^(-pi^2 / step)
_TINY = 1e-17
_SMALL = 1e-12  # the same where a likelihood is looked at, which needs fewer digits
_NODES = 400
_FAR = 1e-13  # correlations below this are taken as nought
_TABLE = 1 << 19


@dataclass(frozen=True, slots=True)
class Tabulated(Kernel):
    """A correlation told by its values at distances 0, h, 2h, ... in lengthscales; linear in between, 0 beyond."""

    values: Vector = field(default_factory=lambda: np.ones(2), repr=False, compare=False)
    spacing: float = 1.0

    def correlate(self, squared: Matrix) -> None:
        """Interpolate."""
        np.sqrt(squared, out=squared)
        squared *= 1.0 / self.spacing
        np.minimum(squared, len(self.values) - 2, out=squared)
        place = squared.astype(np.intp)
        squared -= place
        squared *= self.values[place + 1] - self.values[place]
        squared += self.values[place]


def noise_aware(kernel: Kernel, law: NoiseLaw, r: int) -> tuple[Kernel, float]:
    """Kernel and nugget for a release of ``r`` columns with this noise; those of no noise where its law says none.

    Of ``gaussian_projection`` only the Gaussian noise is taken into account, not what the projection does.
    """
    known = known_noise(law)
    return (kernel, 0.0) if known is None else averaged(kernel, *known, r)


def known_noise(law: NoiseLaw) -> tuple[Law, float] | None:
    """Law and standard deviation of a release's noise per coordinate, where it tells of any."""
    if law.family in ("none", "random_projection") or not law.sd:
        return None
    return "planar_laplace" if law.family == "planar_laplace" else "gaussian", law.sd


def averaged(kernel: Kernel, law: Law, sd: float, r: int) -> tuple[Kernel, float]:
    """The mean of ``kernel`` over the noise of two different candidates, and the variance that is left to each alone.

    Candidates are z = x + u, u of ``law`` with standard deviation ``sd`` in each of the r coordinates. The second
    moment of f given all z is E k(|z - z' + w|), w = u' - u, for two rows and the full variance for one: the
    best linear predictor from z uses the first as its kernel and the difference to the second as a nugget that a
    row shares with itself alone. With a squared-exponential kernel and Gaussian noise it has a closed form:
    variance (l^2 / (l^2 + 2 sd^2))^(r/2), lengthscale sqrt(l^2 + 2 sd^2).

    The others are mixtures of that one, over a Gamma variable for each law that is not Gaussian: a Matern kernel of
    order v has l^2 H / v, H ~ Gamma(v), in the place of l^2 (its spectrum is Student's: Rasmussen & Williams 2006,
    section 4.2). Planar Laplace noise of density exp(-a |u|), a = sqrt(r + 1) / sd, has the characteristic function
    (1 + q^2 / a^2)^(-(r + 1)/2), so w is Gaussian with variance 2 G / a^2, G ~ Gamma(r + 1). Both are integrated by the
    trapezoidal rule in the logarithm, once, and tabulated.
    """
    square = kernel.lengthscale**2
    if isinstance(kernel, SquaredExponential) and law == "gaussian":
        wide = square + 2 * sd**2
        between = max(kernel.variance * (square / wide) ** (r / 2), SMALLEST)
        return SquaredExponential(sqrt(wide), between), max(kernel.variance - between, 0.0)
    shares, squares = _mixture(kernel, law, sd, r)
    lengthscale, total = float(np.sqrt(np.exp(shares @ np.log(squares) / shares.sum()))), float(shares.sum())
    between = max(kernel.variance * total, SMALLEST)

    def correlation(distance: Vector) -> Vector:
        told: Vector = np.exp(-0.5 * np.outer((distance * lengthscale) ** 2, 1.0 / squares)) @ (shares / total)
        return told

    end = 1.0
    while correlation(np.array([end]))[0] > _FAR and end < 1e6:
        end *= 1.25
    coarse = np.unique(np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 700) * end, np.linspace(0.0, end, 1_500)]))
    fine = np.linspace(0.0, end, _TABLE)
    values = _spline(coarse, correlation(coarse), fine)
    values[-2:] = 0.0
    told = Tabulated(lengthscale, between, values, float(fine[1]))
    return told, max(kernel.variance - between, 0.0)


def _spline(nodes: Vector, values: Matrix, at: Vector) -> Matrix:
    """Values ``at`` other places of the cubic splines through ``values`` (m,) or (m, k), which start out level."""
    from scipy.interpolate import CubicSpline  # late: half a second, which neither service need wait for at its start

    told: Matrix = CubicSpline(nodes, values, bc_type=((1, np.zeros(values.shape[1:])), "not-a-knot"))(at)
    return told


def _mixture(kernel: Kernel, law: Law, sd: float, r: int) -> tuple[Vector, Vector]:
    """Shares p and squared lengthscales s of E k = variance * sum of p exp(-d^2 / (2 s))."""
    shares, _, wide = _parts(kernel, law, sd, r, _TINY)
    return shares, wide


def _parts(kernel: Kernel, law: Law, sd: float, r: int, tiny: float) -> tuple[Vector, Vector, Vector]:
    """The same with what the kernel has in s; shares below ``tiny`` of the largest are left out."""
    part, scale = np.ones(1), np.ones(1)
    if type(kernel) in _ORDERS:
        order = _ORDERS[type(kernel)]
        part, scale = _gamma(order)
        scale = scale / order
    elif not isinstance(kernel, SquaredExponential):
        raise TypeError(f"no average is known of {type(kernel).__name__}")
    noise_part, spread = np.ones(1), np.array([2 * sd**2])
    if law == "planar_laplace":
        noise_part, spread = _gamma(r + 1.0)
        spread = spread * (2 * sd**2 / (r + 1))
    plain = kernel.lengthscale**2 * scale[:, None]
    wide = plain + spread
    shares = (part[:, None] * noise_part * (plain / wide) ** (r / 2)).ravel()
    kept = shares > tiny * shares.max()
    return shares[kept], np.broadcast_to(plain, wide.shape).ravel()[kept], wide.ravel()[kept]


def correlations(kernel: Kernel, noise: tuple[Law, float] | None, r: int, squared: Vector) -> tuple[Vector, Vector]:
    """Mean correlations of two candidates at squared distances (m,), and their derivatives in log lengthscale.

    ``noise`` is its law and standard deviation per coordinate, or None. With p and s of the mixture, s = a + b, a the
    kernel's part: p exp(-d^2 / (2 s)) has the derivative p exp(-d^2 / (2 s)) (r b / s + a d^2 / s^2).
    Exact to about 1e-8; many distances are interpolated from few.
    """
    if noise is None:
        scaled = squared / kernel.lengthscale**2
        slopes = kernel.slope(scaled)
        kernel.correlate(scaled)
        return scaled, slopes
    shares, plain, wide = _parts(kernel, *noise, r, _SMALL)
    parts = np.stack([shares, shares * (r * (1.0 - plain / wide)), shares * plain / wide**2], axis=1)

    def mixed(at: Vector) -> Matrix:
        sums = product(np.exp(-0.5 * np.outer(at, 1.0 / wide)), parts)
        return np.stack([sums[:, 0], sums[:, 1] + at * sums[:, 2]], axis=1)

    end = float(np.sqrt(squared.max(initial=0.0)))
    if len(squared) <= _NODES or len(wide) == 1 or end == 0.0:
        told = mixed(squared)
    else:
        nodes = end * np.linspace(0.0, 1.0, _NODES) ** 2  # closer near nought, where a sharp kernel bends
        told = _spline(nodes, mixed(nodes**2), np.sqrt(squared))
    return told[:, 0], told[:, 1]


def _gamma(order: float) -> tuple[Vector, Vector]:
    """Weights and nodes of the mean over Gamma(order, 1), in log H: e^(order v - e^v) dv."""
    v = np.arange(log(_TINY) / order - 5.0, 5.0 + log(order + 1.0), _STEP)
    weights = np.exp(order * v - np.exp(v) - (order * log(order) - order))
    weights /= weights.sum()
    return weights, np.exp(v)
