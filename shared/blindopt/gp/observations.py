"""Observations so far: the Cholesky factor of their covariance, and how well each follows from the others."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.errors import Invalid
from blindopt.gp.candidates import Candidates
from blindopt.gp.single_thread_blas import left_product

OUTCOME_MAX = 1e150  # its square is still a number
CAPACITY_MAX = 1_000_000
T = TypeVar("T", bound=np.generic)


class Observations:
    """t observations y at candidates, with noise each of its own variance.

    ``rows`` (t,) are the candidates observed, and ``inputs`` (t, r) their coordinates: those in ``places`` for
    candidates that are refined. ``factor`` L (t, t) is the
    Cholesky factor of the observations' covariance, ``inverse`` is L^-1, ``weights`` w (t,) are L^-1 (y - prior mean),
    and ``duals`` (t,) are L^-T w but for rounding. The arrays have room for more than t, at first for ``capacity`` at
    most: read the first ``count`` entries. ``serials`` (t,) differ for all observations that were ever made, also for
    those that were retracted.
    """

    def __init__(self, r: int, noise_variance: float, nugget: float, capacity: int) -> None:
        if not 0 <= nugget < np.inf:
            raise Invalid(f"nugget must be finite and not negative, not {nugget}")
        if not 0 <= capacity <= CAPACITY_MAX:
            raise Invalid(f"capacity must be from 0 to {CAPACITY_MAX:,}")
        self._noise_variance = _checked_noise(noise_variance)
        self.capacity = capacity
        self.count = 0
        self.rows: Rows = np.empty(0, dtype=np.intp)
        self.serials: Rows = np.empty(0, dtype=np.intp)
        self._next_serial = 0
        self.inputs: Matrix = np.empty((0, r))
        self.places: dict[int, Vector] = {}
        self.factor: Matrix = np.empty((0, 0))
        self.inverse: Matrix = np.empty((0, 0))
        self.weights: Vector = np.empty(0)
        self.duals: Vector = np.zeros(0)
        self.variance_max = 0.0
        """The largest prior variance of an observation so far, its noise included."""

    def next_noise(self, noise_variance: float | None) -> float:
        """Noise variance of the next observation: its own, or the usual one."""
        return self._noise_variance if noise_variance is None else _checked_noise(noise_variance)

    def is_refined(self, rows: Rows) -> Mask:
        """Which of some candidates (m,) are refined."""
        if not self.places:
            return np.zeros(len(rows), dtype=np.bool_)
        return np.isin(rows, list(self.places))

    def append(self, row: int, inputs: Vector, whitened: Vector, pivot: float, weight: float) -> None:
        """Add a row (``whitened``, ``pivot``) to L, and ``weight`` to w."""
        t = self.count
        if t == len(self.weights):
            size = max(16, 2 * t)
            self._grow(min(size, self.capacity) if t < self.capacity else size)
        self.rows[t], self.inputs[t] = row, inputs
        self.serials[t] = self._next_serial
        self._next_serial += 1
        self.factor[t, :t], self.factor[t, t] = whitened, pivot
        self.inverse[t, :t] = -combined_rows(whitened, self.inverse[:t, :t]) / pivot
        self.inverse[t, t] = 1.0 / pivot
        self.variance_max = max(self.variance_max, float(whitened @ whitened) + pivot**2)
        self.weights[t] = weight
        self.duals[: t + 1] += weight * self.inverse[t, : t + 1]
        self.count = t + 1

    def begin(self, rows: Rows, inputs: Matrix, factor: Matrix, inverse: Matrix, weights: Vector) -> None:
        """Take t observations as the first ones, with their L, L^-1 and w."""
        t = len(rows)
        self._grow(max(t, min(16, self.capacity)))
        self.rows[:t], self.inputs[:t] = rows, inputs
        self.serials[:t] = np.arange(self._next_serial, self._next_serial + t)
        self._next_serial += t
        self.factor[:t, :t], self.inverse[:t, :t], self.weights[:t] = factor, inverse, weights
        self.duals[:t] = left_product(weights, inverse)
        self.variance_max = float(np.einsum("ij,ij->i", factor, factor).max())
        self.count = t

    def common(self, serials: Rows) -> int:
        """How many of the first observations have these serials."""
        count = min(self.count, len(serials))
        if not count or serials[count - 1] == self.serials[count - 1]:  # what was before it was kept too
            return count
        other = np.flatnonzero(serials[:count] != self.serials[:count])
        return int(other[0]) if len(other) else count

    def retract(self, count: int) -> None:
        """Keep the first ``count`` observations; ValueError if there are fewer."""
        if not 0 <= count <= self.count:
            raise Invalid(f"there are {self.count} outcomes, not {count}")
        if self.weights[count : self.count].any():  # one that was only supposed has the weight 0
            self.duals[:count] = left_product(self.weights[:count], self.inverse[:count, :count])
            self.duals[count:] = 0.0
        self.count = count

    def _grow(self, size: int) -> None:
        self.rows, self.serials = _grown(self.rows, size), _grown(self.serials, size)
        self.weights, self.duals = _grown(self.weights, size), _grown(self.duals, size)
        self.inputs = _grown(self.inputs, size, self.inputs.shape[1])
        self.factor, self.inverse = _grown(self.factor, size, size), _grown(self.inverse, size, size)


class LocalObservations:
    """The observations as consecutive candidates, numbers ``own`` of all, see them.

    ``rows`` (t,) are the positions of the candidates observed among the own ones, -1 for others, and ``dual``
    (q + 2, t) is the form in which ``Candidates.covariance`` takes them. ``of_all`` are the observations that they are
    made from, whose other arrays are read as they are: they change before ``sync`` by what is appended or retracted.
    """

    def __init__(self, of_all: Observations, everything: Matrix, own: range, candidates: Candidates, nugget: float):
        self.of_all, self._everything, self._own, self._candidates = of_all, everything, own, candidates
        self._nugget, self.count = nugget, 0
        self.rows: Rows = np.empty(0, dtype=np.intp)
        self.dual: Matrix = np.empty((candidates.width, 0), candidates.extended.dtype)
        self._serials: Rows = np.empty(0, dtype=np.intp)
        self._is_refined: Mask = np.empty(0, dtype=np.bool_)

    def common(self) -> int:
        """How many of the first observations are still the same ones."""
        return self.of_all.common(self._serials[: self.count])

    def sync(self, since: int) -> None:
        """Take over the present observations, of which the first ``since`` are still the same ones."""
        t = self.of_all.count
        if since < t:
            if t > len(self.rows):
                size = len(self.of_all.rows)
                self.rows, self._serials = _grown(self.rows, size), _grown(self._serials, size)
                self._is_refined = _grown(self._is_refined, size)
                self.dual = _grown(self.dual, len(self.dual), size)
            rows, new = self.of_all.rows[since:t], slice(since, t)
            self._serials[new] = self.of_all.serials[new]
            is_own = (rows >= self._own.start) & (rows < self._own.stop)
            self.rows[new] = np.where(is_own, rows - self._own.start, -1)
            self.dual[:, new][:, is_own] = self._candidates.dual(self.rows[new][is_own])
            if not is_own.all():
                self.dual[:, new][:, ~is_own] = self._candidates.dual_of(self._everything[rows[~is_own]])
            self._is_refined[new] = is_refined = self.of_all.is_refined(rows)
            if is_refined.any():
                places = np.array([self.of_all.places[row] for row in rows[is_refined].tolist()])
                self.dual[:, new][:, is_refined] = self._candidates.dual_of(places)
        self.count = t

    def prior_covariance(self, rows: slice, since: int) -> Matrix:
        """Covariances (m, t - since) of own candidates with observations ``since`` .. t - 1, without the nugget."""
        new = slice(since, self.count)
        return self._candidates.covariance(rows, self.dual[:, new], self._is_refined[new])

    def covariance(self, rows: slice, since: int) -> Matrix:
        """Covariances (m, t - since), nugget included, of own candidates with observations ``since`` .. t - 1."""
        covariance: Matrix = self.prior_covariance(rows, since)
        if self._nugget:
            numbers = np.arange(rows.start, rows.stop)
            covariance += self._nugget * (numbers[:, None] == self.rows[since : self.count])
        return covariance


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Predictions of t answers, each from the t - 1 others, with the same hyper-parameters and mean.

    ``log_density`` is the mean log predictive density of an answer (nats, in units of the outcome), ``baseline`` that
    of a model without candidates, a normal with mean and variance of the other answers, and ``largest_residual`` the
    largest distance of an answer from its prediction, in predictive standard deviations, at answer ``worst``.
    """

    log_density: float
    baseline: float
    largest_residual: float
    worst: int


def leave_one_out(root: Matrix, solved: Vector, outcomes: Vector) -> LeaveOneOut:
    """Check outcomes y (t,), t >= 3, given W with W K W^T = I and ``solved`` = K^-1 (y - mean).

    Without answer i, the prediction is y_i - solved_i / [K^-1]_ii with variance 1 / [K^-1]_ii: Rasmussen & Williams
    (2006), eqs. 5.10 to 5.12.
    """
    precision = np.einsum("ij,ij->j", root, root)  # the diagonal of W^T W
    residuals = solved / np.sqrt(precision)
    densities = -0.5 * (residuals**2 - np.log(precision) + np.log(2 * np.pi))
    worst = int(np.abs(residuals).argmax())
    return LeaveOneOut(float(densities.mean()), _baseline(outcomes), float(abs(residuals[worst])), worst)


def _baseline(outcomes: Vector) -> float:
    """Mean log density of each outcome under a normal with mean and variance (of t - 2 degrees) of the others."""
    t, off = len(outcomes), outcomes - outcomes.mean()
    squares = float(off @ off)
    residual = off * (t / (t - 1))  # from the mean of the others
    variance = (squares - off**2 * (t / (t - 1))) / (t - 2) * (t / (t - 1))
    variance = np.maximum(variance, 1e-12 * squares / t)
    return float(-0.5 * np.mean(residual**2 / variance + np.log(2 * np.pi * variance)))


def _grown(old: NDArray[T], *shape: int) -> NDArray[T]:
    new = np.zeros(shape, old.dtype)
    new[tuple(slice(length) for length in old.shape)] = old
    return new


def _checked_noise(variance: float) -> float:
    if not 0 < variance < np.inf:  # refuses NaN too
        raise Invalid(f"noise_variance must be positive and finite, not {variance}")
    return variance


# --- products with a lower triangular matrix ------------------------------------------------------
#
# They read its zeros only near the diagonal. Each entry is summed by ``einsum`` without BLAS in the order in which it
# sums the whole product, whose terms that are left out are zeros at the end or at the beginning of a sum: so all bits
# are those of the whole product.

_STEP = 256
"""Rows that are taken together: whole registers, however wide and however many a loop takes at once."""


def times_transposed(rows: Matrix, lower: Matrix) -> Matrix:
    """``rows`` (m, t) times the transposed ``lower`` (t, t)."""
    t = len(lower)
    if t <= _STEP:
        whole: Matrix = np.einsum("ij,kj->ik", rows, lower)
        return whole
    result: Matrix = np.empty((len(rows), t))
    for start in range(0, t, _STEP):
        stop = min(start + _STEP, t)
        result[:, start:stop] = np.einsum("ij,kj->ik", rows[:, :stop], lower[start:stop, :stop])
    return result


def combined_rows(weights: Vector, lower: Matrix) -> Vector:
    """The sum (t,) of the rows of ``lower`` (t, t), each times its weight (t,)."""
    t = len(lower)
    if t <= _STEP:
        whole: Vector = np.einsum("j,jk->k", weights, lower)
        return whole
    columns = [slice(start, min(start + _STEP, t)) for start in range(0, t, _STEP)]
    return np.concatenate([np.einsum("j,jk->k", weights[of.start :], lower[of.start :, of]) for of in columns])
