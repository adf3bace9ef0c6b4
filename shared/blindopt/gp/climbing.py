"""The largest value of a smooth function in a box, by a quasi-Newton method of one thread."""

from collections.abc import Callable

import numpy as np

from blindopt.arrays import Mask, Matrix, Vector
from blindopt.gp.single_thread_blas import inverse_factor, left_product, right_product

_STEP_MAX = 2.0  # of one coordinate in one step: for logarithms a factor of 7
_ARMIJO, _SHORTER, _SHORTEST = 1e-4, 0.5, 0.1
_CURVATURE_MIN = 0.1  # of the update, in the curvature that the matrix predicts (Powell's damping)
_GRADIENT_TOL, _VALUE_TOL = 1e-7, 1e-13
_EVALUATIONS_MAX = 500


def minimize(function: Callable[[Vector], tuple[float, Vector]], start: Vector, low: Vector, high: Vector) -> Vector:
    """A point (p,) of a box where no step along the gradient descends, starting from one in it.

    ``function`` returns the value and its gradient (p,). BFGS with damped updates (Nocedal & Wright, 2006, procedure
    18.2), begun with the unit matrix, on the coordinates that are not held by a bound, and a projected line search
    (Bertsekas, 1982). The same arguments give the same point, whatever the number of threads: libraries solve these
    small systems by several.
    """
    x = np.clip(start, low, high)
    value, gradient = function(x)
    hessian: Matrix = np.eye(len(x))
    for _ in range(_EVALUATIONS_MAX):
        free = ~((x <= low) & (gradient > 0) | (x >= high) & (gradient < 0))
        if not free.any() or np.abs(x - np.clip(x - gradient, low, high)).max() <= _GRADIENT_TOL:
            break
        direction = _direction(hessian, gradient, free)
        before, slope, share = value, gradient, 1.0
        while True:
            point = np.clip(x + share * direction, low, high)
            step = point - x
            value, gradient = function(point)
            descent = float(slope @ step)
            if value <= before + _ARMIJO * descent or not step.any():
                break
            # The minimum of the parabola through both values and the first slope, within limits.
            best = -0.5 * descent / max(value - before - descent, 1e-300)
            share *= min(max(best, _SHORTEST), _SHORTER)
            if share < 1e-10:
                return x
        hessian = _updated(hessian, step, gradient - slope)
        x = point
        if before - value <= _VALUE_TOL * max(abs(before), abs(value), 1.0):
            break
    return x


def _direction(hessian: Matrix, gradient: Vector, free: Mask) -> Vector:
    """A descent, 0 where a bound holds the coordinate, and limited in each coordinate."""
    direction = np.where(free, -gradient, 0.0)
    inverse = inverse_factor(hessian if free.all() else hessian[np.ix_(free, free)])
    direction[free] = left_product(right_product(inverse, direction[free]), inverse)
    return direction * min(1.0, _STEP_MAX / float(np.abs(direction).max()))


def _updated(hessian: Matrix, step: Vector, change: Vector) -> Matrix:
    """The approximate second derivatives after a step that changed the gradient."""
    curvature = float(step @ change)
    product = right_product(hessian, step)
    predicted = float(step @ product)
    if not predicted > 0:
        return hessian
    if curvature < _CURVATURE_MIN * predicted:
        share = (1.0 - _CURVATURE_MIN) * predicted / (predicted - curvature)
        change = share * change + (1.0 - share) * product
        curvature = float(step @ change)
    updated: Matrix = hessian + change[:, None] * change / curvature - product[:, None] * product / predicted
    return updated
