"""Coordinates, updates and bounds of candidates as compiled loops, which are run where numba is installed.

Candidates are taken in tiles of consecutive rows. A tile's numbers stay in the cache while one loop computes its
covariances, subtracts what earlier observations explain, and brings its means, variances and bounds up to date. A
tile in which no bound can reach the largest waits (see ``Part`` for why that is safe); a new one, after a fit, waits
as soon as its first observations show that. Lanes of a loop are candidates, so that sums have one order, whatever the
width of the processor's registers.

Arrays: ``lifted`` (q + 2, n or more) holds candidates by columns, as ``Candidates`` does by rows; ``duals`` (t or
more, q + 2) the observed ones; ``whitened`` (capacity, n or more) the whitened rows by columns; ``deviation`` (n,) the
roots of variance + var_tol; ``counts`` (tiles,) with how many observations a tile of ``size`` rows is up to date;
``largest`` (3, tiles) its largest mean + deviation * growth when it was last computed, that growth, and its largest
deviation; ``tops`` (tiles,) its largest upper bound, or a larger number.

Importing this module imports numba: do it late. Machine code is kept beside this file (or where NUMBA_CACHE_DIR
says) and made once a machine. Raises ImportError where numba is absent, RuntimeError where it has nowhere to keep it.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any, TypeVar, cast

import numba
import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.gp.kernels import Kernel, Matern12, Matern32, Matern52, SquaredExponential

KINDS: dict[type[Kernel], int] = {SquaredExponential: 0, Matern12: 1, Matern32: 3, Matern52: 5}
"""The kernels that the loops compute, and their numbers (twice the order of a Matern kernel)."""

_FIRST = 8  # tiles of the largest bounds that are updated first: they rule out most others
_PAUSE = 2  # observations between two looks whether a tile can still win, while it is brought up to date
_LOWEST = float(np.finfo(np.float64).min)
_HIGHEST = -_LOWEST
_EPSILON = float(np.finfo(np.float64).eps)
_SMALLEST = -708.0  # exp of less is below 1e-307, and is taken as 0
_LOG2E, _SHIFT = 1.44269504088896338700, 6755399441055744.0  # 1.5 * 2^52: adding it rounds to whole numbers
_GROUP = 16  # candidates whose coordinates are written together: two lines of the cache in each column
_MAGNITUDE = (1 << 63) - 1  # bits of a number without its sign
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
Pair = tuple[float, float]
F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(function))


def _inlined(function: F) -> F:
    """A part of a loop: a call with arrays would take as long as the loop over a tile."""
    return cast(F, numba.njit(error_model="numpy", inline="always", fastmath={"contract"})(function))


def _compiled_without_nan(function: F) -> F:
    """For maxima: a loop over lanes needs to know that none is NaN."""
    flags = {"contract", "nnan", "nsz"}
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=flags)(function))


@numba.njit(cache=True, nogil=True, error_model="numpy")  # nothing is contracted: numpy rounds each operation
def write_columns(candidates: Matrix, order: Rows, units: Matrix, lifted: Matrix, positions: Rows) -> float:
    """Write ``Candidates.lifted`` by columns (q + 2, n and at least 16 more), with the coordinates of ``Lift.write``.

    Position i is that of candidate ``order[i]`` (n, q), and ``positions`` (n,) are the inverse. ``units`` (3, q) holds
    scales, centre and factor of each column. Returns the largest squared norm, or what is not finite among them.
    """
    n, q = candidates.shape
    numbers, norms, largest = candidates.reshape(n * q), np.empty(_GROUP), np.int64(0)
    own = np.empty(_GROUP, np.uint64)  # where a candidate's numbers begin; an index with a sign would be checked
    for start in range(0, n, _GROUP):
        for k in range(_GROUP):  # the last group is filled up with the last candidate, beyond what is read
            own[k], norms[k] = np.uint64(order[min(start + k, n - 1)] * q), 0.0
        for j in range(q):
            scale, centre, factor = units[0, j], units[1, j], units[2, j]
            column = lifted[j, start : start + _GROUP]
            for k in range(_GROUP):
                coordinate = (numbers[own[k] + np.uint64(j)] * scale - centre) * factor
                column[k] = coordinate
                norms[k] += coordinate * coordinate
        lifted[q, start : start + _GROUP], lifted[q + 1, start : start + _GROUP] = norms, 1.0
        bits = norms.view(np.int64)  # of numbers without a sign they have the same order; NaN is above infinity
        for k in range(_GROUP):
            largest = max(largest, bits[k] & _MAGNITUDE)
    for i in range(n):
        positions[order[i]] = i
    return np.int64(largest).view(np.float64)


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


@_inlined
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


@_inlined
def _add_to_both(
    column: Vector, other: Vector, rows: Matrix, start: int, sign: float, factors: Vector, others: Vector, count: int
) -> None:
    """``_add_products`` to two columns, each with its own factors: rows are read from memory once for both."""
    size, number, j = len(column), column.dtype.type, 0
    while j + 3 <= count:
        f0, f1, f2 = number(sign * factors[j]), number(sign * factors[j + 1]), number(sign * factors[j + 2])
        g0, g1, g2 = number(sign * others[j]), number(sign * others[j + 1]), number(sign * others[j + 2])
        r0, r1, r2 = rows[j, start : start + size], rows[j + 1, start : start + size], rows[j + 2, start : start + size]
        for i in range(size):
            column[i] += (f0 * r0[i] + f1 * r1[i]) + f2 * r2[i]
            other[i] += (g0 * r0[i] + g1 * r1[i]) + g2 * r2[i]
        j += 3
    while j < count:
        f0, g0, r0 = number(sign * factors[j]), number(sign * others[j]), rows[j, start : start + size]
        for i in range(size):
            column[i] += f0 * r0[i]
            other[i] += g0 * r0[i]
        j += 1


@_inlined
def _squared_distances(column: Vector, lifted: Matrix, start: int, dual: Vector, products: bool) -> None:
    """Squared distances of a tile from an observed candidate in the form of ``Candidates.dual``.

    With ``products``, what of them does not need the products of coordinates.
    """
    size, q = len(column), len(lifted) - 2
    if products:
        squared_norms, own_norm = lifted[q, start : start + size], dual[q + 1]
        for i in range(size):
            column[i] = squared_norms[i] + own_norm
        return
    for i in range(size):
        column[i] = 0.0
    for j in range(q):
        coordinates, doubled = lifted[j, start : start + size], dual[j]
        for i in range(size):
            difference = coordinates[i] + doubled / 2
            column[i] += difference * difference


@_inlined
def _covariances(column: Vector, kind: int, variance: float) -> None:
    """Covariances in place of squared distances."""
    size = len(column)
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


@_inlined
def _finish(
    column: Vector, step: int, start: int, rows: Rows, nugget: float, factor: Matrix, weights: Vector,
    mean: Vector, variance: Vector,
) -> None:  # fmt: skip
    """Divide a column of whitened rows by its pivot, and bring a tile's means and variances up to date with it."""
    if nugget > 0 and start <= rows[step] < start + len(column):
        column[rows[step] - start] += nugget
    inverse, weight = 1.0 / factor[step, step], weights[step]
    for i in range(len(column)):
        entry = column[i] * inverse
        column[i] = entry
        mean[i] += entry * weight
        variance[i] -= entry * entry


@_inlined
def _largest(values: Vector) -> float:
    """The largest of numbers that are not negative. Their bits have the same order, and are compared lane by lane."""
    bits = values.view(np.int64)
    largest = np.int64(0)
    for i in range(len(bits)):
        largest = max(largest, bits[i])
    return np.int64(largest).view(np.float64)


@_compiled
def _update(
    start: int, end: int, s: int, t: int, lifted: Matrix, duals: Matrix, products: bool, kind: int, signal: float,
    nugget: float, rows: Rows, factor: Matrix, weights: Vector, whitened: Matrix, mean: Vector, variance: Vector,
    deviation: Vector, var_tol: float,
) -> float:  # fmt: skip
    """Bring a tile from s observations to t, by forward substitution, one observation at a time.

    Two observations are added together, so that what was before them is read once. Return the largest deviation.
    """
    means, variances, deviations = mean[start:end], variance[start:end], deviation[start:end]
    step = s
    while step < t:
        column = whitened[step, start:end]
        _squared_distances(column, lifted, start, duals[step], products)
        if step + 1 == t:
            if products:
                _add_products(column, lifted, start, 1.0, duals[step], len(lifted) - 2)
            _covariances(column, kind, signal)
            _add_products(column, whitened, start, -1.0, factor[step], step)
        else:
            other = whitened[step + 1, start:end]
            _squared_distances(other, lifted, start, duals[step + 1], products)
            if products:
                _add_to_both(column, other, lifted, start, 1.0, duals[step], duals[step + 1], len(lifted) - 2)
            _covariances(column, kind, signal)
            _covariances(other, kind, signal)
            _add_to_both(column, other, whitened, start, -1.0, factor[step], factor[step + 1], step)
            _finish(column, step, start, rows, nugget, factor, weights, means, variances)
            entry = whitened.dtype.type(factor[step + 1, step])
            for i in range(end - start):
                other[i] -= entry * column[i]
            column, step = other, step + 1
        _finish(column, step, start, rows, nugget, factor, weights, means, variances)
        step += 1
    for i in range(end - start):
        variances[i] = max(variances[i], 0.0)
        deviations[i] = sqrt(variances[i] + var_tol)
    return _largest(deviations)


@_compiled_without_nan
def _top(mean: Vector, deviation: Vector, hidden: Mask, growth: float, mean_tol: float) -> float:
    """The largest upper bound of a tile, the lowest number if all rows are hidden."""
    top = _LOWEST
    if len(hidden):
        for i in range(len(mean)):
            top = max(top, _LOWEST if hidden[i] else mean[i] + deviation[i] * growth + mean_tol)
    else:
        for i in range(len(mean)):
            top = max(top, mean[i] + deviation[i] * growth + mean_tol)
    return top


@_compiled_without_nan
def _upper_bounds(
    mean: Vector, deviation: Vector, hidden: Mask, growth: float, mean_tol: float, upper: Vector
) -> float:
    """Write upper bounds of a tile into ``upper``, the lowest number for hidden rows. Return the largest."""
    top = _LOWEST
    for i in range(len(mean)):
        upper[i] = mean[i] + deviation[i] * growth + mean_tol
    if len(hidden):
        for i in range(len(mean)):
            upper[i] = _LOWEST if hidden[i] else upper[i]
    for i in range(len(mean)):
        top = max(top, upper[i])
    return top


@_compiled
def _lower_bound(upper: Vector, top: float, mean: Vector, variance: Vector, growth: float, tols: Pair) -> float:
    """Lower bound of the largest bound in a tile that is up to date: that of a row with the largest upper bound."""
    i = 0
    while i < len(upper) and upper[i] != top:
        i += 1
    if i == len(upper) or top == _LOWEST:
        return _LOWEST
    bound: float = mean[i] - tols[0] + growth * sqrt(max(variance[i] - tols[1], 0.0))
    return bound


@_compiled
def refresh(
    size: int, lifted: Matrix, products: bool, kind: int, signal: float, nugget: float, whitened: Matrix, mean: Vector,
    variance: Vector, deviation: Vector, counts: Rows, largest: Matrix, var_tol: float, duals: Matrix, rows: Rows,
    factor: Matrix, weights: Vector, t: int,
) -> None:  # fmt: skip
    """Bring all tiles up to date with t observations."""
    for tile in range(len(counts)):
        if counts[tile] < t:
            start, end = tile * size, min((tile + 1) * size, len(mean))
            largest[0, tile], largest[2, tile] = _HIGHEST, _update(
                start, end, counts[tile], t, lifted, duals, products, kind, signal, nugget, rows, factor, weights,
                whitened, mean, variance, deviation, var_tol,
            )  # fmt: skip
            counts[tile] = t


@_compiled
def contenders(
    size: int, lifted: Matrix, products: bool, kind: int, signal: float, nugget: float, whitened: Matrix, mean: Vector,
    variance: Vector, deviation: Vector, counts: Rows, largest: Matrix, var_tol: float, duals: Matrix, rows: Rows,
    factor: Matrix, weights: Vector, t: int, weight_sq_cumsum: Vector, weight: float,
    mean_tol: float, hidden: Mask, upper: Vector, tops: Vector, contender_rows: Rows,
) -> int:  # fmt: skip
    """Write the candidates that may have the largest bound into ``contender_rows`` (n,), in order. Return their number.

    ``hidden`` (n,) says which candidates are left out; it is empty where none is. Bounds of tiles that may have the
    largest are left in ``upper`` (n,).
    ``weight_sq_cumsum`` (t + 1 or more,) holds the sums of squared weights of the first s = 0 .. t observations.
    """
    n, tiles, best, exact = len(mean), len(counts), _LOWEST, sqrt(weight)
    rounding = 4 * _EPSILON * t * weight_sq_cumsum[t]  # what the sums may have lost
    most = weight + weight_sq_cumsum[t] + rounding
    for tile in range(tiles):
        growth = exact if counts[tile] == t else sqrt(most - weight_sq_cumsum[counts[tile]])
        more = max(growth - largest[1, tile], 0.0)
        tops[tile] = largest[0, tile] + largest[2, tile] * more + mean_tol
    is_exact, pause = np.zeros(tiles, np.bool_), 0
    for turn in range(min(_FIRST, tiles) + tiles):
        tile = turn - min(_FIRST, tiles)
        if tile < 0:
            tile = int(tops.argmax())
        if tops[tile] < best or is_exact[tile]:
            continue
        start, end = tile * size, min((tile + 1) * size, n)
        is_new = counts[tile] == 0  # otherwise what is added is little, and a tile that stops is soon needed again
        while counts[tile] < t:
            growth = sqrt(most - weight_sq_cumsum[counts[tile]])
            tops[tile] = _top(mean[start:end], deviation[start:end], hidden[start:end], growth, mean_tol)
            largest[0, tile], largest[1, tile] = _HIGHEST if len(hidden) else tops[tile] - mean_tol, growth
            if tops[tile] < best:
                break
            # What is added ends about where it ruled out the tile before: neighbours have similar bounds.
            s, until = counts[tile], max(counts[tile] + _PAUSE, pause)
            counts[tile] = until if is_new and best > _LOWEST and until + _PAUSE <= t else t
            largest[2, tile] = _update(
                start, end, s, counts[tile], lifted, duals, products, kind, signal, nugget, rows, factor, weights,
                whitened, mean, variance, deviation, var_tol,
            )  # fmt: skip
            pause = counts[tile] - _PAUSE
        if tops[tile] < best:
            continue
        is_exact[tile] = True
        tops[tile] = top = _upper_bounds(
            mean[start:end], deviation[start:end], hidden[start:end], exact, mean_tol, upper[start:end]
        )
        largest[0, tile], largest[1, tile] = _HIGHEST if len(hidden) else top - mean_tol, exact
        tols = mean_tol, var_tol
        best = max(best, _lower_bound(upper[start:end], top, mean[start:end], variance[start:end], exact, tols))
    count = 0
    for tile in range(tiles):
        if tops[tile] >= best:
            for i in range(tile * size, min((tile + 1) * size, n)):
                if upper[i] >= best and not (len(hidden) and hidden[i]):
                    contender_rows[count] = i
                    count += 1
    return count
