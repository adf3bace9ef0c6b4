"""Discrete Laplace noise, exact: integers k with a probability proportional to exp(-|k| / s).

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
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from curator_service.privacy.noise.lattice import BITS, Integers, surely_below

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
    drawn = _signed(min(count, _TOGETHER), scale)
    if len(drawn) == count:
        return drawn
    parts = [drawn]
    while (missing := count - sum(map(len, parts))) > 0:
        parts.append(_signed(min(missing, _TOGETHER), scale))
    return np.concatenate(parts)


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
