"""Updates and bounds of candidates as compiled loops: what ``Posterior`` runs where numba is installed.

Candidates are taken in tiles of consecutive rows. A tile's numbers stay in the cache while one loop makes its
covariances, takes off what earlier outcomes explain, and brings its means, variances and bounds up to date; and a
tile in which no bound can reach the largest waits (see ``Posterior`` for why that is safe). Lanes of a loop are
candidates, so that sums have one order, whatever the width of the processor's registers.

Arrays: ``kept`` (q + 2, n or more) holds candidates by columns, as ``Points`` does by rows; ``whitened`` (capacity, n
or more) the whitened rows by columns; ``state`` (tiles,) how many outcomes a tile of ``size`` rows knows; ``tops``
(tiles,) its largest bound.

Importing this module imports numba: do it late. Machine code is kept beside this file (or where NUMBA_CACHE_DIR
says) and made once a machine; ImportError or RuntimeError where numba is absent or has no place for it.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.gp.kernels import Kernel, Matern12, Matern32, Matern52, SquaredExponential

KINDS: dict[type[Kernel], int] = {SquaredExponential: 0, Matern12: 1, Matern32: 3, Matern52: 5}
"""Which kernels the loops know, and by what number (a Matern's is twice its order)."""

Rows = NDArray[np.intp]
_FIRST = 8  # tiles of the largest bounds that come before the others: they tell what others must reach
_LOWEST = float(np.finfo(np.float64).min)
_EPSILON = float(np.finfo(np.float64).eps)
_SMALLEST = -708.0  # below, exp is 1e-308: nought
_LOG2E, _SHIFT = 1.44269504088896338700, 6755399441055744.0  # 1.5 * 2^52: adding it rounds to whole numbers
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function))


def _compiled_without_nan(function: F) -> F:
    """For maxima: a loop over lanes needs to know that none is NaN."""
    flags = {"contract", "nnan", "nsz"}
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=flags)(function))


@_compiled
def exponential(x: float) -> float:
    """exp(x) for x <= 0 to two units in the last place, 0 below -708: unlike libm's, it is computed lane by lane.

    x = k ln 2 + r with |r| <= ln 2 / 2; Taylor's polynomial of degree 13 in r, whose remainder is below 1e-17.
    """
    bounded = x if x > _SMALLEST else _SMALLEST
    shifted = bounded * _LOG2E + _SHIFT
    k = shifted - _SHIFT
    r = (bounded - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1.6059043836821613e-10
    p = p * r + 2.0876756987868099e-09
    p = p * r + 2.5052108385441720e-08
    p = p * r + 2.7557319223985893e-07
    p = p * r + 2.7557319223985888e-06
    p = p * r + 2.4801587301587302e-05
    p = p * r + 1.9841269841269841e-04
    p = p * r + 1.3888888888888889e-03
    p = p * r + 8.3333333333333332e-03
    p = p * r + 4.1666666666666664e-02
    p = p * r + 1.6666666666666666e-01
    p = p * r + 0.5
    p = p * r * r + r + 1.0
    # k stands in the last bits of the shifted number; moved to where the exponent is, it is 2^k.
    power = np.int64((np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)).view(np.float64)
    return p * power if x > _SMALLEST else 0.0


@_compiled
def _add_products(column: Vector, rows: Matrix, start: int, sign: float, factors: Vector, count: int) -> None:
    """Add to a column: sign times the first ``count`` rows, from ``start`` on, times their factors; four at a time."""
    size, number, j = len(column), column.dtype.type, 0
    while j + 4 <= count:
        f0, f1 = number(sign * factors[j]), number(sign * factors[j + 1])
        f2, f3 = number(sign * factors[j + 2]), number(sign * factors[j + 3])
        r0, r1 = rows[j, start : start + size], rows[j + 1, start : start + size]
        r2, r3 = rows[j + 2, start : start + size], rows[j + 3, start : start + size]
        for i in range(size):
            column[i] += (f0 * r0[i] + f1 * r1[i]) + (f2 * r2[i] + f3 * r3[i])
        j += 4
    while j < count:
        f0, r0 = number(sign * factors[j]), rows[j, start : start + size]
        for i in range(size):
            column[i] += f0 * r0[i]
        j += 1


@_compiled
def _covariances(
    column: Vector, kept: Matrix, start: int, query: Vector, products: bool, kind: int, variance: float
) -> None:
    """Covariances of a tile with an asked row, told as ``Points.queries`` does."""
    size, q = len(column), len(kept) - 2
    if products:
        squares, own = kept[q, start : start + size], query[q + 1]
        for i in range(size):
            column[i] = squares[i] + own
        _add_products(column, kept, start, 1.0, query, q)
    else:
        for i in range(size):
            column[i] = 0.0
        for j in range(q):
            at, own = kept[j, start : start + size], query[j]
            for i in range(size):
                difference = at[i] + own / 2
                column[i] += difference * difference
    if kind == 0:
        for i in range(size):
            column[i] = variance * exponential(-0.5 * max(column[i], 0.0))
    elif kind == 1:
        for i in range(size):
            column[i] = variance * exponential(-sqrt(max(column[i], 0.0)))
    elif kind == 3:
        for i in range(size):
            u = sqrt(3.0 * max(column[i], 0.0))
            column[i] = variance * (1.0 + u) * exponential(-u)
    else:
        for i in range(size):
            u = sqrt(5.0 * max(column[i], 0.0))
            column[i] = variance * (1.0 + u + u * u / 3.0) * exponential(-u)


@_compiled
def _update(
    start: int,
    end: int,
    s: int,
    t: int,
    kept: Matrix,
    queries: Matrix,
    products: bool,
    kind: int,
    signal: float,
    nugget: float,
    asked: Rows,
    factor: Matrix,
    weights: Vector,
    whitened: Matrix,
    mean: Vector,
    variance: Vector,
    deviation: Vector,
    slack: float,
) -> None:
    """Bring a tile that knows s outcomes up to date with t: by forward substitution, an outcome at a time."""
    means, variances, deviations = mean[start:end], variance[start:end], deviation[start:end]
    for step in range(s, t):
        column = whitened[step, start:end]
        _covariances(column, kept, start, queries[step], products, kind, signal)
        if nugget > 0 and start <= asked[step] < end:
            column[asked[step] - start] += nugget
        _add_products(column, whitened, start, -1.0, factor[step], step)
        inverse, weight = 1.0 / factor[step, step], weights[step]
        for i in range(end - start):
            told = column[i] * inverse
            column[i] = told
            means[i] += told * weight
            variances[i] -= told * told
    for i in range(end - start):
        variances[i] = max(variances[i], 0.0)
        deviations[i] = sqrt(variances[i] + slack)


@_compiled_without_nan
def _bounds(
    mean: Vector, deviation: Vector, hides: NDArray[np.bool_], growth: float, shift: float, upper: Vector
) -> float:
    """What the bounds of a tile are at most, into ``upper``; the largest of them. Hidden ones have the lowest."""
    top = _LOWEST
    for i in range(len(mean)):
        told = mean[i] + deviation[i] * growth + shift
        told = _LOWEST if hides[i] else told
        upper[i] = told
        top = max(top, told)
    return top


@_compiled_without_nan
def _reached(
    mean: Vector, variance: Vector, hides: NDArray[np.bool_], growth: float, shift: float, slack: float
) -> float:
    """What the largest bound of a tile that is up to date is at least."""
    top = _LOWEST
    for i in range(len(mean)):
        told = mean[i] - shift + growth * sqrt(max(variance[i] - slack, 0.0))
        top = max(top, _LOWEST if hides[i] else told)
    return top


@_compiled
def refresh(
    size: int,
    kept: Matrix,
    products: bool,
    kind: int,
    signal: float,
    nugget: float,
    whitened: Matrix,
    mean: Vector,
    variance: Vector,
    deviation: Vector,
    state: Rows,
    slack: float,
    queries: Matrix,
    asked: Rows,
    factor: Matrix,
    weights: Vector,
    t: int,
) -> None:
    """Bring all tiles up to date with t outcomes."""
    for tile in range(len(state)):
        if state[tile] < t:
            start, end = tile * size, min((tile + 1) * size, len(mean))
            _update(
                start, end, state[tile], t, kept, queries, products, kind, signal, nugget, asked, factor, weights,
                whitened, mean, variance, deviation, slack,
            )  # fmt: skip
            state[tile] = t


@_compiled
def close(
    size: int,
    kept: Matrix,
    products: bool,
    kind: int,
    signal: float,
    nugget: float,
    whitened: Matrix,
    mean: Vector,
    variance: Vector,
    deviation: Vector,
    state: Rows,
    slack: float,
    queries: Matrix,
    asked: Rows,
    factor: Matrix,
    weights: Vector,
    t: int,
    surprise: Vector,
    weight: float,
    shift: float,
    hides: NDArray[np.bool_],
    upper: Vector,
    tops: Vector,
    found: Rows,
) -> int:
    """How many candidates may have the largest bound; they come into ``found`` (n,), in order.

    ``surprise`` (t + 1 or more,) are the sums of squared weights of the first s = 0 .. t outcomes.
    """
    n, tiles, best, exact = len(mean), len(state), _LOWEST, sqrt(weight)
    most = weight + surprise[t] + 4 * _EPSILON * t * surprise[t]  # the last is what the sums may have lost
    for tile in range(tiles):
        start, end = tile * size, min((tile + 1) * size, n)
        growth = exact if state[tile] == t else sqrt(most - surprise[state[tile]])
        tops[tile] = _bounds(mean[start:end], deviation[start:end], hides[start:end], growth, shift, upper[start:end])
    for turn in range(min(_FIRST, tiles) + tiles):
        tile = turn - min(_FIRST, tiles)
        if tile < 0:
            tile = int(tops.argmax())
            if state[tile] == t and turn > 0:
                continue
        if tops[tile] < best:
            continue
        start, end = tile * size, min((tile + 1) * size, n)
        if state[tile] < t:
            _update(
                start, end, state[tile], t, kept, queries, products, kind, signal, nugget, asked, factor, weights,
                whitened, mean, variance, deviation, slack,
            )  # fmt: skip
            state[tile] = t
            tops[tile] = _bounds(
                mean[start:end], deviation[start:end], hides[start:end], exact, shift, upper[start:end]
            )
        best = max(best, _reached(mean[start:end], variance[start:end], hides[start:end], exact, shift, slack))
    count = 0
    for tile in range(tiles):
        if tops[tile] >= best:
            for i in range(tile * size, min((tile + 1) * size, n)):
                if upper[i] >= best and not hides[i]:
                    found[count] = i
                    count += 1
    return count
