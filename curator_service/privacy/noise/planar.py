"""Multivariate ("planar") Laplace noise: density proportional to exp(-epsilon |u|_2 / Delta), exact on a lattice.

**The law.** On the integer vectors v of d dimensions, L_d(v) is proportional to exp(-sqrt(d) |v|_2 / s). Moving the
centre by the integer vector w multiplies a probability by at most exp(sqrt(d) |w|_2 / s), by the triangle inequality,
and the normalizing sum stays what it is. With lattice step g, a row rounded to the lattice moves by at most
Delta / g + sqrt(d) steps where it moved by Delta before (each end rounds by sqrt(d) / 2 at most), so
s >= sqrt(d) (Delta / g + sqrt(d)) / epsilon makes v g + rounded row epsilon-differentially private: no delta, and
no approximation by a continuous law. What is done to the sum after that (writing it as a double) is post-processing.
The K-norm mechanism with the Euclidean norm: Hardt & Talwar (2010); in the plane: Andres et al. (2013).

With ``per_coordinate``, a vector of d independent L_1 has weight exp(-|v|_1 / s): the same argument with |w|_1 holds
for moves whose coordinates add up to Delta at most. Rounding adds a step to each coordinate's move, d to their sum, so
s >= (Delta / g + d) / epsilon is enough. In one dimension both laws are one.

**The draw.** L_1 is the discrete Laplace of scale s (``laplace.integers``). For d = a + b, two independent vectors
x ~ L_a and y ~ L_b are joined to v = (x, y) and kept with probability

    p = exp(-(sqrt(d) |v|_2 - sqrt(a) |x|_2 - sqrt(b) |y|_2) / s),

which is at most 1 by Cauchy and Schwarz, sqrt(a) |x| + sqrt(b) |y| <= sqrt(a + b) sqrt(|x|^2 + |y|^2), and the product
of the three densities is that of L_d. Done by halves. The kept share is c(d) / (c(a) c(b)) with c as in
``acceptance``: 0.79, 0.60, 0.21 and 0.05 at d = 2, 3, 7 and 12 if all d were joined at once, but by halves a row of
12 takes 35 discrete Laplace draws instead of 229.

**The decision.** A uniform U in [0, 1) with bits from the operating system is compared with p, without error: the first
53 bits u and p in doubles decide unless [u, u + 1] 2^-53 meets the interval that surely holds p. With unit
roundoff 2^-53, coordinates below 2^53 are exact, a sum of d squares has relative error d + 1 units, its root times
sqrt(d) at most d + 4, the differences and the division 4 more: (d + 8) 2^-53 of the sum of the three terms over s
bounds the error of the exponent. ``EXP_ERROR`` bounds that of exp itself, 2^-45 where 2^-50 would be ample. The rest,
one in 2^40 or so, is decided by ``surely_below``: integers, correctly rounded decimals, and more bits.
"""

import math
import os
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix
from curator_service.privacy.noise.laplace import SCALE_MAX, integers
from curator_service.privacy.noise.lattice import (
    BITS,
    EXACT,
    EXP_ERROR,
    LATTICE_BITS,
    Integers,
    add_integers,
    check_finite,
    surely_below,
)

PLANAR_FEATURES_MAX = 20
"""The most features: a row of 20 takes 74 draws, and Gaussian noise is mostly smaller."""


@dataclass(frozen=True, slots=True)
class PlanarLaplaceLaw:
    """Noise on the lattice 2^k in d dimensions, with ``scale`` s in lattice steps: L_d, or L_1 ``per_coordinate``."""

    d: int
    k: int
    scale: float
    per_coordinate: bool = False

    @classmethod
    def of(cls, sensitivity: float, epsilon: Decimal, d: int, *, per_coordinate: bool = False) -> "PlanarLaplaceLaw":
        """The noise that makes rows of d coordinates, moved by ``sensitivity`` at most, epsilon-private.

        The norm of a move is Euclidean, or with ``per_coordinate`` the sum of the coordinates' moves. Raises ValueError
        for more than PLANAR_FEATURES_MAX coordinates otherwise, or a number that is not positive and finite.
        """
        if not 1 <= d <= (d if per_coordinate else PLANAR_FEATURES_MAX):
            raise ValueError(f"planar Laplace noise is for 1 to {PLANAR_FEATURES_MAX} coordinates")
        if not (0 < sensitivity < math.inf and 0 < epsilon < math.inf):
            raise ValueError("noise needs a positive, finite sensitivity and epsilon")
        k = math.floor(math.log2(sensitivity / float(epsilon))) - LATTICE_BITS
        exact, digits = Context(prec=60), Decimal(d)
        root = Decimal(1) if per_coordinate else exact.sqrt(digits)
        steps = exact.divide(Decimal(sensitivity), exact.power(Decimal(2), k))
        scale = exact.divide(exact.fma(root, steps, digits), epsilon)  # rounding adds sqrt(d) steps to |w|, d to a sum
        law = cls(d, k, math.nextafter(float(scale), math.inf), per_coordinate)  # a double at least as large
        if not law.scale <= SCALE_MAX:
            raise ValueError("noise needs a scale of at most 2^57 lattice steps")
        return law

    @property
    def family(self) -> Literal["planar_laplace", "laplace_each"]:
        return "laplace_each" if self.per_coordinate else "planar_laplace"

    @property
    def sd(self) -> float:
        """Standard deviation per coordinate, sqrt(d + 1) times s g / sqrt(d); with ``per_coordinate`` that of d = 1."""
        return math.ldexp(self.scale, self.k) * math.sqrt(2.0 if self.per_coordinate else (self.d + 1) / self.d)

    @property
    def draws_per_row(self) -> float:
        """Expected number of discrete Laplace draws for one row."""
        return float(self.d) if self.per_coordinate else _draws(self.d)

    def add(self, block: Matrix) -> Matrix:
        """Round ``block`` (m, d) to the lattice and add independent noise to each row.

        Raises NumericalFailure for a value that is not finite.
        """
        if block.ndim != 2 or block.shape[1] != self.d:
            raise ValueError(f"this noise is for rows of {self.d}")
        check_finite(block)
        rounded = np.rint(np.ldexp(block, -self.k))  # a power of two divides exactly
        check_finite(rounded)
        draws = vectors(1, block.size, self.scale) if self.per_coordinate else vectors(self.d, len(block), self.scale)
        noisy: Matrix = np.ldexp(add_integers(rounded, draws.reshape(block.shape)), self.k)
        return noisy


def acceptance(d: int) -> float:
    """c(d): the mass of exp(-sqrt(d) |u|_2) over that of exp(-|u|_1), 2^d.

    >>> [round(acceptance(d), 2) for d in (1, 2, 3, 7, 12)]
    [1.0, 0.79, 0.6, 0.21, 0.05]
    """
    sphere = 2 * math.pow(math.pi, d / 2) / math.gamma(d / 2)
    return sphere * math.gamma(d) / math.pow(d, d / 2) / 2.0**d


def vectors(d: int, count: int, scale: float) -> Integers:
    """Draw ``count`` independent vectors (count, d) of the law L_d."""
    if d == 1:
        return integers(count, scale).reshape(count, 1)
    a, b = d // 2, d - d // 2
    share = acceptance(d) / (acceptance(a) * acceptance(b))
    blocks: list[Integers] = []
    missing = count
    while missing > 0:
        # Kept pairs are independent, so it does not matter how many are proposed at once.
        proposed = math.ceil(1.05 * missing / share) + 4
        pairs = np.hstack([vectors(a, proposed, scale), vectors(b, proposed, scale)])
        accepted = pairs[keep(pairs, a, scale)][:missing]
        blocks.append(accepted)
        missing -= len(accepted)
    return np.concatenate(blocks) if blocks else np.empty((0, d), np.int64)


def keep(pairs: Integers, a: int, scale: float) -> NDArray[np.bool_]:
    """Whether to keep each vector (m, d), joined from its first ``a`` coordinates and the rest."""
    d = pairs.shape[1]
    real = pairs.astype(np.float64)
    first, second = (real[:, :a] ** 2).sum(axis=1), (real[:, a:] ** 2).sum(axis=1)
    whole, halves = np.sqrt(d * (first + second)), np.sqrt(a * first) + np.sqrt((d - a) * second)
    error = (d + 8) * 2.0**-BITS * (whole + halves) / scale + EXP_ERROR
    exponent = (halves - whole) / scale
    low, high = np.exp(exponent - error), np.exp(exponent + error) + EXP_ERROR
    words = np.frombuffer(os.urandom(8 * len(pairs)), dtype=np.uint64) >> np.uint64(64 - BITS)
    uniform = words.astype(np.float64) * 2.0**-BITS
    accepted = uniform + 2.0**-BITS <= low
    unsure = ~accepted & (uniform < high) | (np.abs(real).max(axis=1) >= EXACT)
    for index in np.flatnonzero(unsure):
        accepted[index] = surely_below(int(words[index]), partial(probability, pairs[index].tolist(), a, scale))
    return np.asarray(accepted)


def probability(pair: list[int], a: int, scale: float, digits: int) -> tuple[Fraction, Fraction]:
    """The p of ``keep`` for a vector, computed with so many decimal digits, and a bound on the error of its logarithm.

    Decimal rounds every step to the nearest number of n digits, so that each errs by at most u = 5 10^-n of its result
    (the integers and ``scale`` are exact). With W and P the exact whole and parts, and p = e^((P - W) / s):

    - W has one root: it errs by u W. P has two roots and their sum: (2u + u^2) P.
    - The difference and the division err by u each: 2u + u^2 of (W - P) / s, and of what came before.
    - The exponent errs by ((2u + u^2) P + u W)(1 + u)^2 / s + (2u + u^2)(W - P) / s. The terms in P nearly cancel:
      this is less than 3u (1 + 2u)(P + W) / s. exp errs by u of its result, so by less than u (1 + u) in the logarithm.

    Twice 10^(1-n) = 4u times ((P + W) / s + 1) is more than the sum of both, also with P + W as it was computed, which
    is off by 4u of itself at most.
    """
    d, exact = len(pair), Context(prec=digits)
    first, second = sum(x * x for x in pair[:a]), sum(x * x for x in pair[a:])
    whole = exact.sqrt(Decimal(d * (first + second)))
    halves = exact.add(exact.sqrt(Decimal(a * first)), exact.sqrt(Decimal((d - a) * second)))
    exponent = exact.divide(exact.subtract(halves, whole), Decimal(scale))
    error = 2 * Fraction(10) ** (1 - digits) * (Fraction(exact.add(halves, whole)) / Fraction(scale) + 1)
    return Fraction(exact.exp(exponent)), error


@lru_cache(maxsize=32)
def _draws(d: int) -> float:
    if d == 1:
        return 1.0
    a, b = d // 2, d - d // 2
    return (_draws(a) + _draws(b)) * acceptance(a) * acceptance(b) / acceptance(d)
