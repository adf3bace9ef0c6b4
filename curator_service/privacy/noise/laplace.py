"""Laplace noise on a lattice, from exact discrete Laplace noise: integers k of weight exp(-|k| / s).

**The size.** Let q = exp(-1 / s), and let G be geometric: P(G = g) is proportional to q^g for g = 0, 1, ... Write
G = 2^m H + L with 0 <= L < 2^m. Since q^g is q^(2^m h) q^l, H and L are independent, and H is geometric itself: it is
at least h with probability q^(2^m h). The m bits of L may be any pattern, and q^l is the product of q^(2^i) over the
bits i that are 1. So they are independent coins, and bit i is 1 with probability

    p_i = q^(2^i) / (1 + q^(2^i)) = 1 / (1 + exp(2^i / s)).

H counts how often a coin of probability q^(2^m) = exp(-2^m / s) falls on 1 before it does not. With 2^m >= 64 s that
is once in e^64 draws.

**The sign** is one more bit. The negative 0 is rejected, and sign and size are drawn anew. What is kept is g or -g with
probability proportional to q^g / 2 for g > 0, and 0 to q^0 / 2: the law.

**The decision.** A coin falls on 1 where U < p, for a uniform U in [0, 1) with bits from the operating system. Its
first 53 bits u are compared with T = floor(2^53 p): u < T means U < p, and u > T the contrary. u = T, one in 2^53, is
decided by ``surely_below``: integers, correctly rounded decimals, and more bits. T is computed from decimals with a
bound on their error, with ever more digits until both ends of that interval have the same floor. That ends, because
2^53 p is no integer: s is a fraction, and exp of a fraction other than 0 is transcendental.
"""

import math
import os
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Vector
from blindopt.errors import NumericalFailure
from curator_service.privacy.noise.lattice import BITS, Integers, add_on_lattice, check_finite, lattice, surely_below

SCALE_MIN, SCALE_MAX = 2.0**-20, 2.0**57
_TAIL_BITS = 6
_DIGITS = 40
_TOGETHER = 1 << 12  # draws whose numbers stay in the cache
_REST, _HALF = np.uint64(64 - BITS), np.uint64(1 << 63)
_WEIGHTS = 1 << np.arange(63)


def integers(count: int, scale: float) -> Integers:
    """Draw ``count`` independent integers (count,) of the law, s = ``scale``. They have no bound.

    Raises ValueError for a scale outside [SCALE_MIN, SCALE_MAX].
    """
    if not SCALE_MIN <= scale <= SCALE_MAX:
        raise ValueError("noise needs a positive scale of at most 2^57 lattice steps")
    first = _signed(min(count, _TOGETHER), scale)
    if len(first) == count:
        return first
    batches = [first]
    while (missing := count - sum(map(len, batches))) > 0:
        batches.append(_signed(min(missing, _TOGETHER), scale))
    return np.concatenate(batches)


def _signed(count: int, scale: float) -> Integers:
    """Integers of the law, fewer than ``count`` where a negative 0 was drawn."""
    negative, size = proposals(count, scale)
    signed = np.where(negative, -size, size)
    rejected = negative & (size == 0)
    return signed[~rejected] if rejected.any() else signed


def proposals(count: int, scale: float) -> tuple[NDArray[np.bool_], Integers]:
    """Signs (whether negative) and sizes (count,)."""
    thresholds = _thresholds(scale)
    m = len(thresholds) - 1
    words = np.frombuffer(os.urandom(8 * count * (m + 2)), dtype=np.uint64).reshape(count, m + 2)
    first = words[:, :-1] >> _REST
    ones, ties = first < thresholds, first == thresholds
    if ties.any():
        for draw, coin in np.argwhere(ties).tolist():
            exactly = partial(probability, scale, m, coin)
            ones[draw, coin] = surely_below(int(first[draw, coin]), exactly)
    size: Integers = ones[:, :m] @ _WEIGHTS[:m]
    if ones[:, m].any():
        size = size.astype(object)
        for draw in np.flatnonzero(ones[:, m]).tolist():
            size[draw] += _blocks(scale, m) << m
    return words[:, -1] >= _HALF, size


def probability(scale: float, m: int, coin: int, digits: int) -> tuple[Fraction, Fraction]:
    """The p of a coin, computed with so many decimal digits n, and a bound on the error of its logarithm.

    Coin i < m is bit i of L, and coin m decides H. Decimal rounds each step by u = 5 10^-n of its result. The exponent
    x = 2^i / s errs by u x, and so does log p, whose slope in x is at most 1 in size; exp, the sum and the division
    add u each, to the second order. That is less than 2 u (x + 2).
    """
    over, under = scale.as_integer_ratio()
    exact = Context(prec=digits)
    exponent = exact.divide(Decimal(under << coin), Decimal(over))
    error = Fraction(10) ** (1 - digits) * (Fraction(exponent) + 2)
    if coin == m:
        return Fraction(exact.exp(exponent.copy_negate())), error
    return Fraction(exact.divide(Decimal(1), exact.add(Decimal(1), exact.exp(exponent)))), error


def _blocks(scale: float, m: int) -> int:
    """H, of which it is decided that it is 1 at least."""
    blocks = 1
    while surely_below(int.from_bytes(os.urandom(8)) >> 64 - BITS, partial(probability, scale, m, m)):
        blocks += 1
    return blocks


@lru_cache(maxsize=1024)
def _thresholds(scale: float) -> NDArray[np.uint64]:
    """T of every coin (m + 1,)."""
    m = max(0, math.ceil(math.log2(scale)) + _TAIL_BITS)
    floors = np.array([_floor(partial(probability, scale, m, coin)) for coin in range(m + 1)], dtype=np.uint64)
    floors.flags.writeable = False
    return floors


def _floor(exactly: partial[tuple[Fraction, Fraction]]) -> int:
    digits = _DIGITS
    while True:
        p, error = exactly(digits)
        low, high = (math.floor((1 << BITS) * p * (1 + sign * 2 * error)) for sign in (-1, 1))
        if low == high:
            return low
        digits += 20


def laplace_scale(bound: float, epsilon: Decimal) -> float:
    """Scale of the noise that makes an answer in [-bound, bound] epsilon-DP: slightly more than 2 bound / epsilon.

    The excess pays for rounding answers to the lattice (docs/privacy.md).
    """
    if not (0 < bound < math.inf and 0 < epsilon < math.inf):
        raise ValueError("noise needs a positive, finite bound and epsilon")
    return 2 * bound / float(epsilon) * (1 + 2.0**-38 * max(1.0, 1 / float(epsilon)))


def sensitivity_scale(sensitivity: float, epsilon: Decimal) -> float:
    """Scale of the noise for a number that moves by ``sensitivity`` at most, in any range."""
    return laplace_scale(sensitivity / 2, epsilon)


def mean_reach(bound: float, k: int) -> float:
    """Half of what one of ``k`` values in [-bound, bound] can move their mean by, for ``laplace_scale``.

    bound / k, and bound for k = 1. Each of two means of doubles errs by 2^-52 of the bound at most, which is added.
    """
    return bound if k == 1 else math.nextafter(bound / k * (1 + k * 2.0**-51), math.inf)


def add_laplace(values: Vector, bound: float, epsilon: Decimal, k: int = 1) -> Vector:
    """Clip ``values`` (m,) to [-bound, bound] and add independent Laplace noise of ``laplace_scale``.

    Each is epsilon-DP by itself, whatever the value; where it is the mean of ``k`` values in that range, for replacing
    one of them. Raises NumericalFailure for a value that is not finite.
    """
    check_finite(values)
    return _add(np.clip(values, -bound, bound), mean_reach(bound, k), epsilon)


def add_laplace_to_number(value: float, sensitivity: float, epsilon: Decimal) -> float:
    """Add Laplace noise of ``sensitivity_scale`` to ``value``, without clipping.

    epsilon-DP where neighbours' values lie within ``sensitivity``. Raises NumericalFailure if it is not finite.
    """
    values = np.array([value])
    check_finite(values)
    return float(_add(values, sensitivity / 2, epsilon)[0])  # halving is exact, so the distance is the sensitivity


def add_integer_laplace(values: list[int], sensitivity: int, epsilon: Decimal) -> list[int]:
    """Add independent, exact discrete Laplace noise of scale ``sensitivity`` / ``epsilon`` to integers.

    epsilon-DP where neighbours' values differ by ``sensitivity`` in all; a difference of a share of it costs that share
    of epsilon. Sums end at the ends of 64 bits. Raises ValueError where the scale exceeds ``SCALE_MAX``: they would
    often end there, which is as private, but has another variance.
    """
    noise = integers(len(values), _integer_scale(sensitivity, epsilon)).tolist()
    return [max(-(1 << 63), min(value + size, (1 << 63) - 1)) for value, size in zip(values, noise, strict=True)]


def least_epsilon(sensitivity: int) -> Decimal:
    """The least epsilon, in 12 decimals, of integer noise whose scale is ``SCALE_MAX`` at most.

    Values below 2^62 leave 64 bits then with a probability below e^-32.
    """
    return (sensitivity / Decimal(SCALE_MAX)).quantize(Decimal("1e-12"), ROUND_CEILING)


@lru_cache(maxsize=1024)
def _integer_scale(sensitivity: int, epsilon: Decimal) -> float:
    """``sensitivity`` / ``epsilon``, rounded up: the noise then costs epsilon at most."""
    if not (sensitivity > 0 and 0 < epsilon < math.inf):
        raise ValueError("noise needs a positive sensitivity, and a positive, finite epsilon")
    if epsilon < least_epsilon(sensitivity):
        raise ValueError("noise for so small an epsilon does not fit 64 bits")
    exact = Fraction(sensitivity) / Fraction(epsilon)
    scale = float(exact)
    return max(scale if Fraction(scale) >= exact else math.nextafter(scale, math.inf), SCALE_MIN)


def _add(values: Vector, bound: float, epsilon: Decimal) -> Vector:
    k, scale = _law(bound, epsilon)
    return add_on_lattice(values, k, lambda count: integers(count, scale))


@lru_cache(maxsize=1024)
def _law(bound: float, epsilon: Decimal) -> tuple[int, float]:
    """The lattice 2^k, and the scale of the noise in steps of it.

    Raises NumericalFailure if it costs more than epsilon, or less than half: the tripwire for a scale of 0, which would
    release the exact value. Two values differ by 2 bound, and each is rounded by half a step.
    """
    scale = laplace_scale(bound, epsilon)
    k = lattice(scale)
    cost = (2 * Fraction(bound) + Fraction(2) ** k) / Fraction(scale)
    if not Fraction(epsilon) / 2 < cost <= Fraction(epsilon):
        raise NumericalFailure("the noise does not cost what it should: nothing was drawn")
    return k, math.ldexp(scale, -k)
