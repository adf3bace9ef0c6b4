"""Gaussian noise: the discrete Gaussian, exact on a lattice.

**The law.** On the integers x, N_Z(s) is proportional to exp(-x^2 / (2 s^2)). Moved by w lattice steps it costs what
the continuous law of the same scale costs in zero-concentrated privacy, w^2 / (2 s^2) (Canonne, Kamath & Steinke 2020,
theorem 4). What is done to the sum of rounded value and noise after that (writing it as a double) is post-processing.

**The draw.** Let W = 2^m be a power of two, at least sqrt(2 ln 2) s. Propose a sign, a block b >= 0 with probability
2^-(b + 1), and u uniform on 0, ..., W - 1: all of them whole bits from the operating system. Let x = b W + u. Reject
the negative 0, and keep the rest with probability

    p = 2^b exp(-x^2 / (2 s^2)).

p is at most 1: x >= b W, so that x^2 / (2 s^2) >= b^2 ln 2 >= b ln 2. An integer other than 0 is proposed in one way,
by its sign, block and u, with probability 2^-(b + 2) / W, and 0 with that of b = 0. So what is kept has probability
proportional to 2^-(b + 2) / W times p, which is exp(-x^2 / (2 s^2)) / (4 W): N_Z(s). Proposals are independent, and so
are those that are kept. A share of 0.27 to 0.54 is kept where s is large.

**The decision.** It is that of the planar law (``planar``): a uniform U, of which the first 53 bits u are drawn, is
compared with p in doubles, which decide unless [u, u + 1] 2^-53 meets the interval that surely holds p. With unit
roundoff 2^-53, x is exact, x / s has an error of 1 unit, its square of 3, b ln 2 of 2 units, and the difference one
more: 4 units of the sum of both terms, and 8 are allowed for. ``EXP_ERROR`` bounds that of exp. The rest, one in 2^43
or so, is decided by ``surely_below``: integers, correctly rounded decimals, and more bits.
"""

import math
import os
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure
from curator_service.privacy.noise.lattice import (
    BITS,
    EXACT,
    EXP_ERROR,
    Integers,
    add_on_lattice,
    check_finite,
    lattice,
    surely_below,
)

_BLOCK_MIN = 1.1775  # standard deviations in a block at least: sqrt(2 ln 2) is 1.17741
_TOGETHER = 1 << 14  # proposals whose numbers stay in the cache


@dataclass(frozen=True, slots=True)
class GaussianLaw:
    """Independent noise N(0, sd^2) in each of ``d`` coordinates of each row."""

    d: int
    sd: float
    family: ClassVar[Literal["gaussian"]] = "gaussian"

    @property
    def draws_per_row(self) -> float:
        return float(self.d)

    def add(self, block: Matrix) -> Matrix:
        """Return ``block`` (m, d) with noise, on the lattice of ``add_gaussian``."""
        return add_gaussian(block.ravel(), self.sd).reshape(block.shape)


def add_gaussian(values: Vector, sd: float) -> Vector:
    """Round ``values`` (m,) to the lattice 2^k, k = floor(log2 sd) - 40, and add discrete Gaussian noise on it.

    docs/privacy.md bounds the difference to the continuous law. Raises NumericalFailure for a value that is not finite,
    and for an sd from 2^1011 on: the largest doubles would be rounded to infinity, which no noise moves.
    """
    check_finite(values)
    k = lattice(sd)
    return add_on_lattice(values, k, lambda count: integers(count, math.ldexp(sd, -k)))


def integers(count: int, scale: float) -> Integers:
    """Draw ``count`` independent integers of the law N_Z(scale), scale below 2^50."""
    width = 0  # m
    while 2.0**width < _BLOCK_MIN * scale:
        width += 1
    batches: list[Integers] = [np.empty(0, np.int64)]
    missing = count
    while missing > 0:
        # Those that are kept are independent, so it does not matter how many are proposed at once.
        negative, block, size = proposals(min(4 * missing + 8, _TOGETHER), width)
        accepted = keep(block, size, scale) & ~(negative & (size == 0))
        batches.append(np.where(negative, -size, size)[accepted][:missing])
        missing -= len(batches[-1])
    noise = np.concatenate(batches)
    if noise.size and max(noise.max(), -noise.min()) >= EXACT:  # 2^12 standard deviations: a chance of exp(-2^23)
        raise NumericalFailure("noise beyond the range of integers: nothing was drawn")
    return noise


def proposals(count: int, width: int) -> tuple[NDArray[np.bool_], Integers, Integers]:
    """Signs (whether negative), blocks b and sizes x (count,) for blocks of 2^``width`` integers."""
    geometric, uniform = _words(2 * count).reshape(2, count)
    # The number of zeros below the lowest one: a power of two in a double has it as its exponent.
    block = np.frexp((geometric & (~geometric + np.uint64(1))).astype(np.float64))[1].astype(np.int64) - 1
    for index in np.flatnonzero(geometric == 0):
        block[index] = _zeros()
    size = (uniform & np.uint64((1 << width) - 1)).astype(np.int64) + (block << width)
    return (uniform >> np.uint64(63)).astype(np.bool_), block, size


def keep(block: Integers, size: Integers, scale: float) -> NDArray[np.bool_]:
    """Whether to keep each proposal (m,)."""
    real = size.astype(np.float64) / scale
    real *= 0.5 * real
    doubled = block * math.log(2.0)
    error = 8 * 2.0**-BITS * (real + doubled) + EXP_ERROR
    exponent = doubled - real
    low, high = np.exp(exponent - error), np.exp(exponent + error) + EXP_ERROR
    words = _words(len(size)) >> np.uint64(64 - BITS)
    uniform = words.astype(np.float64) * 2.0**-BITS
    accepted = uniform + 2.0**-BITS <= low
    for index in np.flatnonzero(~accepted & (uniform < high) | (size >= EXACT)):
        exactly = partial(probability, int(block[index]), int(size[index]), scale)
        accepted[index] = surely_below(int(words[index]), exactly)
    return np.asarray(accepted)


def probability(block: int, size: int, scale: float, digits: int) -> tuple[Fraction, Fraction]:
    """The p of a proposal, computed with so many decimal digits n, and a bound on the error of its logarithm.

    ``scale`` is a fraction, so that x^2 / (2 s^2) is one of integers; the division rounds it by u = 5 10^-n of itself,
    and exp by u of its result: less than 10^(1 - n) of the exponent and one in the logarithm. 2^b is exact.
    """
    over, under = scale.as_integer_ratio()
    exact = Context(prec=digits)
    exponent = exact.divide(Decimal(size * size * under * under), Decimal(2 * over * over))
    error = Fraction(10) ** (1 - digits) * (Fraction(exponent) + 1)
    return Fraction(exact.exp(exponent.copy_negate())) * (1 << block), error


def _words(count: int) -> NDArray[np.uint64]:
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def _zeros() -> int:
    """The number of zeros before the first one, where 64 are known."""
    zeros = 64
    while not (word := int.from_bytes(os.urandom(8))):
        zeros += 64
    return zeros + (word & -word).bit_length() - 1
