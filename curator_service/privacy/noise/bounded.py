"""Answers in a bounded range: one bit (Duchi et al. 2018), and a piecewise constant law (Wang et al. 2019)."""

import math
import secrets
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire.answer import BOUNDED_EPSILON_MAX
from curator_service.privacy.noise.lattice import check_finite, untrusted

GRID_HALF = 2**45
"""Half the grid of piecewise answers, which has the points -GRID_HALF to GRID_HALF."""
_EXACT = Context(prec=60)
_STEPS = 64


@dataclass(frozen=True, slots=True)
class OneBit:
    """y in [-bound, bound] becomes ``size`` or ``-size``, without bias: Duchi, Jordan & Wainwright (2018), eq. 23.

    First y is rounded to one bit, up with probability (1 + y / bound) / 2. Then the bit is released as it is with
    probability ``prob``, else flipped. That is randomized response, epsilon-DP for any two bits, hence for any two y,
    whatever the rounding does: by OpenDP's own map, and checked here in fractions against a lower bound of e^epsilon.
    The two values are public.

    A mean of k values, each within the bound: one of them moves y / bound by 2 / k at most, and with it the probability
    of a bit by (2 prob - 1) / k, from no less than 1 - prob. That multiplies it by at most
    1 + (2 prob - 1) / (k (1 - prob)), which ``one_bit`` compares with e^epsilon, so that a larger prob will do.

    Mean: size (2 prob - 1) y / bound = y, but for rounding y / bound to 53 bits. Variance: size^2 - y^2.
    """

    bound: float
    prob: float

    @property
    def size(self) -> float:
        """The size of answers, bound (e^epsilon + 1) / (e^epsilon - 1), for the actual probability."""
        return self.bound / (2 * self.prob - 1)  # 2 prob - 1 is exact in doubles

    @property
    def variance(self) -> float:
        """The variance of an answer at y = 0, where it is largest."""
        return self.size**2

    def variance_at(self, values: Vector) -> Vector:
        """The variances of answers about ``values`` (m,) within the bound."""
        variances: Vector = self.size**2 - values**2
        return variances

    def draw(self, values: Vector) -> Vector:
        """Draw an answer for each of ``values`` (m,). Raises NumericalFailure for a value that is not finite."""
        check_finite(values)
        toss = coin(self.prob)
        shares = (np.clip(values, -self.bound, self.bound) / self.bound + 1) / 2
        bits = (secrets.randbits(53) < int(math.ldexp(share, 53)) for share in shares.tolist())
        return np.array([self.size if toss(bit) else -self.size for bit in bits])


@dataclass(frozen=True, slots=True)
class Piecewise:
    """y in [-bound, bound] becomes a value of a bounded interval, likelier near y: Wang et al. (2019), Algorithm 2.

    On integers: y is rounded to the centre w of a window of m = 2 ``half`` + 1 of the N points -H to H, with w
    from -W to W = H - half, so that the window lies on the grid. A coin of probability p (``prob``, exact, by
    OpenDP) says whether the answer is uniform on the window, or uniform on the N - m other points.

    Privacy: a point has probability p / m or (1 - p) / (N - m), whatever y is, so that no answer is more than
    p (N - m) / ((1 - p) m) times likelier under one y than under another. ``piecewise`` compares this number
    with a lower bound of e^epsilon, in fractions. Of the rounding it needs only that w lies in its range.

    Mean: all points sum to 0 and the window to m w, so the answer's mean is w (p - (1 - p) m / (N - m)) = k w
    points. With a point worth bound / (k W) it is bound w / W: y up to bound / (2 W), which is less than
    2^-44 bound. Variance, in points: p (w^2 + (m^2 - 1) / 12)
    + (1 - p) (H (H + 1) (2 H + 1) / 3 - m w^2 - m (m^2 - 1) / 12) / (N - m) - k^2 w^2. As w^2 comes with
    k - k^2 > 0, it is largest at |w| = W; there it is 4 s / (3 (s - 1)^2) bound^2 with s = e^(epsilon / 2), but
    for the grid.
    """

    bound: float
    half: int
    prob: float
    grid_half: int = GRID_HALF
    """H."""

    @property
    def _points(self) -> int:
        return 2 * self.grid_half + 1

    @property
    def _window(self) -> int:
        return 2 * self.half + 1

    @property
    def _furthest(self) -> int:
        return self.grid_half - self.half

    @property
    def loss(self) -> Fraction:
        """The largest ratio of probabilities of an answer under two values of y, exact."""
        p, m = Fraction(self.prob), self._window
        return p * (self._points - m) / ((1 - p) * m)

    @property
    def _slope(self) -> Fraction:
        p, m = Fraction(self.prob), self._window
        return p - (1 - p) * m / (self._points - m)

    @property
    def point(self) -> float:
        """The value of one point, in units of y."""
        return float(Fraction(self.bound) / (self._slope * self._furthest))

    @property
    def size(self) -> float:
        """The largest absolute value of an answer."""
        return self.point * self.grid_half

    @property
    def variance(self) -> float:
        """The variance of an answer at |y| = bound, where it is largest."""
        # Square last, because a point may be worth as little as 1e-65.
        return (self.point * math.sqrt(self._squared_points(self._furthest**2))) ** 2

    def variance_at(self, values: Vector) -> Vector:
        """The variances of answers about ``values`` (m,) within the bound."""
        centre, edge = (math.sqrt(self._squared_points(square)) for square in (0, self._furthest**2))
        shares = (values / self.bound) ** 2  # affine in the square of the value, as in ``variance``
        variances: Vector = (self.point * centre) ** 2 * (1 - shares) + (self.point * edge) ** 2 * shares
        return variances

    def _squared_points(self, square: int) -> Fraction:
        """The variance in squared points of a window whose centre w has this ``square``."""
        p, m, h = Fraction(self.prob), self._window, self.grid_half
        inside = Fraction(m * m - 1, 12)
        outside = Fraction(h * (h + 1) * self._points, 3) - m * square - m * inside
        return p * (square + inside) + (1 - p) * outside / (self._points - m) - self._slope**2 * square

    def draw(self, values: Vector) -> Vector:
        """Draw an answer for each of ``values`` (m,). Raises NumericalFailure for a value that is not finite."""
        check_finite(values)
        is_inside, point = coin(self.prob), self.point
        shares = np.clip(values, -self.bound, self.bound) / self.bound
        return np.array([point * self._point_of(self._centre(share), is_inside(True)) for share in shares.tolist()])

    def _centre(self, share: float) -> int:
        """The centre of the window of y = share * bound."""
        return max(-self._furthest, min(self._furthest, round(share * self._furthest)))

    def _point_of(self, centre: int, is_inside: bool) -> int:
        # Both are drawn and computed always: a number of more points takes longer, and would tell which one it is.
        inside = centre - self.half + secrets.randbelow(self._window)
        outside = secrets.randbelow(self._points - self._window) - self.grid_half
        outside += self._window * (outside >= centre - self.half)
        return (outside, inside)[is_inside]


@lru_cache(maxsize=1024)
def one_bit(bound: float, epsilon: Decimal, k: int = 1) -> OneBit:
    """The law of one-bit answers that are epsilon-DP for replacing one of the ``k`` values that each is the mean of.

    Raises NumericalFailure if that cannot be shown.
    """
    _check(bound, epsilon)
    if k > 1:
        return _one_bit_of_mean(bound, epsilon, k)
    most = exp_below(epsilon)
    prob = below(most / (1 + most))
    for _ in range(_STEPS):  # OpenDP rounds its epsilon up
        if coin(prob).map(1) <= epsilon:
            break
        prob = math.nextafter(prob, 0)
    exact = Fraction(prob)
    if not (0.5 * float(epsilon) < coin(prob).map(1) <= epsilon and exact <= most * (1 - exact) and prob > 0.5):
        raise untrusted()
    return OneBit(bound, prob)


def _one_bit_of_mean(bound: float, epsilon: Decimal, k: int) -> OneBit:
    """The law for a mean of ``k`` > 1: prob / (1 - prob) = 1 + (e^epsilon - 1) / move, ``move`` being 1 / k.

    A mean of doubles errs by 2^-52 of the bound, its share of the range by 2^-51, and the coin's first stage takes 53
    bits of that: for two means that makes less than 2^-48, which is added to the move.
    """
    move = Fraction(1, k) + Fraction(1, 2**48)
    most = 1 + (exp_below(epsilon) - 1) / move
    prob = below(most / (1 + most))
    exact, spent = Fraction(prob), Fraction(math.log1p(float(most) - 1))
    # Tripwire for upgrades: the library's own account of the coin is that of ``most``, but for its rounding.
    sound = exact < 1 and move * (2 * exact - 1) <= (exp_below(epsilon) - 1) * (1 - exact)
    if not (sound and prob > 0.5 and 0.5 * spent < coin(prob).map(1) <= spent * (1 + Fraction(1, 10**9))):
        raise untrusted()
    return OneBit(bound, prob)


@lru_cache(maxsize=64)
def piecewise(bound: float, epsilon: Decimal, grid_half: int = GRID_HALF) -> Piecewise:
    """The law of piecewise answers that are epsilon-DP. Raises NumericalFailure if that cannot be shown.

    The window is N / (e^(epsilon / 2) + 1) points, as in the paper, rounded; the probability is the largest double that
    the bound on the loss then allows.
    """
    _check(bound, epsilon)
    most = exp_below(epsilon)
    half = round(grid_half / (math.exp(float(epsilon) / 2) + 1))
    odds = most * (2 * half + 1) / (2 * grid_half - 2 * half)
    law = Piecewise(bound, half, below(odds / (1 + odds)), grid_half)
    if not (law.prob < 1 and 1 + (most - 1) / 2 < law.loss <= most and 0 < half < grid_half):
        raise untrusted()
    return law


def _check(bound: float, epsilon: Decimal) -> None:
    if not (0 < bound < math.inf and 0 < epsilon < math.inf):
        raise ValueError("noise needs a positive, finite bound and epsilon")
    if epsilon > BOUNDED_EPSILON_MAX:
        raise ValueError(f"epsilon of a bounded answer is at most {BOUNDED_EPSILON_MAX}")


def exp_below(epsilon: Decimal) -> Fraction:
    """A number below e^epsilon, by less than 10^-58 of it: ``Decimal.exp`` rounds correctly."""
    return Fraction(_EXACT.next_minus(_EXACT.exp(epsilon)))


def below(exact: Fraction) -> float:
    """The largest double that is not above ``exact``."""
    near = float(exact)
    return near if Fraction(near) <= exact else math.nextafter(near, -math.inf)


@lru_cache(maxsize=1024)
def coin(prob: float) -> Any:
    """OpenDP's randomized response: a bit is kept with probability ``prob``, exactly, else flipped."""
    from opendp import measurements, mod  # its prelude takes a second, and twice the memory

    mod.enable_features("contrib")
    return measurements.make_randomized_response_bool(prob, constant_time=True)
