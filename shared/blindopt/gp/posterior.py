"""The exact Gaussian-process posterior at every candidate, and the row with the largest bound, found lazily."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.acquisition import Choice, choose_maximum, upper_confidence_bound
from blindopt.gp.candidates import Frame, Points, Precision, columns
from blindopt.gp.compiled import Tiles
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import Outcomes

_SCAN = 1 << 16  # candidates whose bounds are looked at together
_CELLS = 1 << 17  # numbers of a temporary while candidates are brought up to date: it stays in the cache
_SOLVED = 1 << 12  # candidates that are solved for exactly together
_EPSILON = float(np.finfo(np.float64).eps)
_LEADERS = 64  # candidates that are brought up to date first, all over the rows: they tell what others must reach
_FEW = 50_000  # candidates that are brought up to date all together, not each when it is needed
_LITTLE = 16_000  # of which so many all are each time: that takes less than telling which
_SHARE = 16  # one in so many may be ahead of the others: then it is their turn
_LOWEST = float(np.finfo(np.float64).min)  # below every bound but that of a hidden row
_FIRST = 1 << 10  # most of those left over that come next


class Posterior:
    """Posterior mean and variance of f at all n candidates, after each outcome.

    Equals eq. (1) of Kharkovskii et al. (2020) (Rasmussen & Williams 2006, eqs. 2.25-2.26). With L the Cholesky
    factor of the covariance of the t outcomes, w = L^-1 (y - prior mean) and the whitened row
    v_i = L^-1 k(Z_asked, z_i) of a candidate: mean_i = prior mean + v_i . w, variance_i = k(z_i, z_i) - |v_i|^2.
    An outcome appends one number to each v_i, and one to w.

    **Lazy.** Let candidate i be up to date with the first s outcomes. By Cauchy-Schwarz on what v_i will gain,

        mean_i(t) + sqrt(beta variance_i(t)) <= mean_i(s) + sqrt(variance_i(s) (beta + w_s^2 + ... + w_(t-1)^2)),

    so whoever's right-hand side is below a bound already reached cannot be the maximum, and is left as it is. Those
    left over are brought up to date many outcomes at a time, with matrix products. At worst, when nobody can be
    left out, a step costs O(n (t + r)), as if each were updated at each outcome.

    **Choices depend on the outcomes alone.** What is left at the end, some few candidates within rounding of the
    maximum, is computed once more in float64 and in an order of operations that depends on nothing but row and
    outcomes. So neither a restart, nor how often one chose before, nor ``dtype`` changes the row that is chosen.

    **Compiled.** Where numba is installed (the extra ``fast``), 2,000 to 16,000 candidates are left to compiled loops,
    in which they wait tile by tile (see ``blindopt.gp.compiled_loops``), once a run was large enough to load these.
    All else is the same, and the choices are.

    In plain numpy, few candidates (up to 50,000) are brought up to date all together: up to 16,000 at each choice,
    which takes less than telling which could be left out; more of them when many outcomes have gathered, and until then
    only those near the maximum go ahead, in arrays of their own.

    Holds n (capacity + rank of Z + 7) numbers of ``dtype`` (float64, or float32 for half of it). A row may be observed
    again. ``noise_variance`` is in squared units of the outcome and must be positive. ``nugget`` is the variance
    of a part of f that each row has for itself, uncorrelated with all others (see ``averaging``).
    """

    def __init__(
        self,
        candidates: Matrix,
        kernel: Kernel,
        *,
        noise_variance: float,
        prior_mean: float = 0.0,
        nugget: float = 0.0,
        capacity: int,
        dtype: Precision = np.float64,
        frame: Frame | None = None,
    ) -> None:
        if not 0 < noise_variance < np.inf:
            raise ValueError(f"noise_variance must be positive and finite, not {noise_variance}")
        if not 0 <= nugget < np.inf:
            raise ValueError(f"nugget must be finite and not negative, not {nugget}")
        n = len(candidates)
        self._nugget, self._prior_mean = nugget, float(prior_mean)
        self._prior_variance = kernel.variance + nugget
        self.n = n
        tiled = n <= _LITTLE and Tiles.suited(n, kernel, capacity) is not None
        self._points = Points(candidates, kernel, dtype, apart=tiled, frame=frame)
        # A few grow by columns, all together; many by rows, each when it is needed.
        order: Literal["C", "F"] = "F" if n <= _FEW else "C"
        self._whitened: Matrix = columns(n, capacity, dtype) if tiled else np.empty((n, capacity), dtype, order=order)
        self._mean: Vector = np.full(n, self._prior_mean)
        self._variance: Vector = np.full(n, self._prior_variance)
        self._state: Rows = np.zeros(n, dtype=np.intp)  # how many outcomes mean and variance know
        self._everybody = 0  # with how many outcomes all of them are up to date alike; -1: some know more
        self._bounds: Vector = np.empty(n)
        self._deviation: Vector = np.empty(0)  # roots of all variances, where some may be ahead
        self._ahead: _Ahead | None = None
        self._stripes = min(n, _LEADERS)
        self._tolerance = 64.0 * float(np.finfo(dtype).eps) * (1 + self._points.strain)
        self._slack = self._tolerance * self._prior_variance  # what rounding may hide of a variance
        self._tiles: Tiles | None = None
        if tiled:
            moments = self._mean, self._variance
            self._tiles = Tiles.made(self._points, kernel, nugget, self._whitened, *moments, self._slack)
        self._hidden: Rows = np.empty(0, dtype=np.intp)
        self._hides: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)
        self._outcomes = Outcomes(
            self._points,
            candidates,
            kernel,
            noise_variance=noise_variance,
            prior_mean=self._prior_mean,
            nugget=nugget,
            capacity=capacity,
            dtype=dtype,
        )

    @property
    def frame(self) -> Frame:
        """What it found of the candidates alone: saves the next one of the same a pass over them."""
        return self._points.frame

    @property
    def count(self) -> int:
        """Outcomes that it knows."""
        return self._outcomes.count

    # --- outcomes ---------------------------------------------------------------------------------

    def observe(self, row: int, outcome: float, noise_variance: float | None = None) -> None:
        """Condition on ``outcome`` at candidate ``row``; ``noise_variance`` is its own, or null: everybody's.

        Raises NumericalFailure, and changes nothing, if the outcome is not finite or the
        factorization has lost its positive pivot; IndexError past n or past the capacity.
        """
        self._outcomes.observe(row, outcome, noise_variance)

    def suppose(self, row: int, noise_variance: float | None = None) -> None:
        """Condition on an outcome at ``row`` that is not known yet, as if it were the posterior mean there.

        Means stay as they are, variances fall as they will whatever the outcome: hallucinated feedback of Desautels
        et al. (2014), section 4. ``retract`` takes it back.
        """
        self._outcomes.suppose(row, noise_variance)

    def retract(self, count: int) -> None:
        """Go back to the first ``count`` outcomes, as if the later ones had never been."""
        if count == self.count:
            return
        self._outcomes.retract(count)
        w = self._outcomes.weights[:count].astype(self._whitened.dtype, copy=False)
        know = np.flatnonzero(self._state > count) if self._tiles is None else self._tiles.knowing_more(count)
        size = max(_LEADERS, _CELLS // max(1, count))
        for start in range(0, len(know), size):
            rows = know[start : start + size]
            old = self._whitened[rows, :count]
            self._mean[rows] = self._prior_mean + old @ w
            self._variance[rows] = np.maximum(self._prior_variance - np.einsum("ij,ij->i", old, old), 0.0)
            self._state[rows] = count
        if self._tiles is not None:
            self._tiles.retract(count)
        self._ahead = None
        if self._everybody > count:
            self._everybody, self._deviation = count, np.empty(0)

    def hide(self, rows: Rows) -> None:
        """Choose none of ``rows`` from now on, and any other; those that were hidden before are shown again."""
        self._hides[self._hidden] = False
        self._hidden = np.asarray(rows, dtype=np.intp)
        self._hides[self._hidden] = True

    # --- moments ----------------------------------------------------------------------------------

    @property
    def mean(self) -> Vector:
        """Posterior means (n,), after bringing every candidate up to date."""
        self._refresh_all()
        return self._mean

    @property
    def variance(self) -> Vector:
        """Posterior variances (n,), after bringing every candidate up to date."""
        self._refresh_all()
        return self._variance

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Posterior means and variances of some candidates, after bringing them up to date."""
        if self.n <= _FEW:
            self._refresh_all()
        else:
            self._refresh(rows[self._state[rows] < self.count])
        return self._mean[rows], self._variance[rows]

    def best(self, rows: Rows, weight: float = 0.0) -> tuple[int, float, float]:
        """The first of ``rows`` (in rising order, not none) with the largest mean - sqrt(weight variance).

        With its mean and variance, in float64: like a choice, they depend on the outcomes alone.
        """
        mean, variance = self.moments(rows)
        slack = self._slack
        shift = self._tolerance * float(np.sqrt(self._prior_variance * self._outcomes.surprise[self.count]))
        low = mean - np.sqrt(weight * (variance + slack)) - shift
        high = mean - np.sqrt(weight * np.maximum(variance - slack, 0.0)) + shift
        near = rows[high >= low.max()][:_SOLVED]  # very many are equal: far from all outcomes, say
        _, mean, variance = self._outcomes.solve(near)
        place = int((mean - np.sqrt(weight * variance)).argmax())
        return int(near[place]), float(mean[place]), float(variance[place])

    def _refresh(self, rows: Rows) -> None:
        """Bring candidates up to date, as many together as stay in the cache."""
        if not len(rows):
            return
        size = max(_LEADERS, _CELLS // self.count)
        if len(rows) > size:
            rows = rows[np.argsort(self._state[rows], kind="stable")]  # equally late ones together
        for start in range(0, len(rows), size):
            self._extend(rows[start : start + size])

    def _refresh_all(self) -> None:
        if self._tiles is not None:
            self._tiles.refresh(self._outcomes.loops())
        elif len(self._mean) <= _FEW and self._everybody < self.count:
            self._extend_all()
            self._deviation, self._ahead = np.empty(0), None
        elif self._everybody < self.count:
            late = np.flatnonzero(self._state < self.count)
            for start in range(0, len(late), _SCAN):
                self._refresh(late[start : start + _SCAN])
        self._everybody = self.count

    def _extend_all(self) -> None:
        """The same for everybody: a block of rows at a time, in place."""
        s = self._everybody
        if s < self.count - 1:
            size = max(_LEADERS, _CELLS // self.count)
            for start in range(0, len(self._mean), size):
                part = slice(start, min(start + size, len(self._mean)))
                rows = np.arange(part.start, part.stop)
                new, self._mean[part], self._variance[part] = self._appended(
                    rows, part, self._whitened[part], self._mean[part], self._variance[part], s
                )
                self._whitened[part, s : self.count] = new
            self._state.fill(self.count)
            return
        factor = self._outcomes.factor[s, : s + 1].astype(self._whitened.dtype, copy=False)
        size = min(_SCAN, len(self._mean))
        for start in range(0, len(self._mean), size):
            part = slice(start, start + size)
            column = self._points.covariance(part, self._outcomes.queries[:, s : s + 1])[:, 0]
            if self._nugget and start <= self._outcomes.rows[s] < start + size:
                column[self._outcomes.rows[s] - start] += self._nugget
            if s:
                column -= self._whitened[part, :s] @ factor[:s]
            new = np.divide(column, factor[s], out=self._whitened[part, s])
            self._mean[part] += np.multiply(new, self._outcomes.weights[s], out=column)
            self._variance[part] -= np.multiply(new, new, out=column)
        np.maximum(self._variance, 0.0, out=self._variance)
        self._state.fill(self.count)

    def _appended(
        self, rows: Rows, place: Rows | slice, old: Matrix, mean: Vector, variance: Vector, s: int
    ) -> tuple[Matrix, Vector, Vector]:
        """What candidates that know s outcomes gain by the later ones: columns; and their means and variances then."""
        t, dtype = self.count, self._whitened.dtype
        new = self._outcomes.covariance(place, rows, s)
        if s:
            new -= old[:, :s] @ self._outcomes.factor[s:t, :s].T.astype(dtype, copy=False)
        new = new @ self._outcomes.inverse[s:t, s:t].T.astype(dtype, copy=False)
        gained = np.einsum("ij,ij->i", new, new)
        w = self._outcomes.weights[s:t].astype(dtype, copy=False)
        return new, mean + new @ w, np.maximum(variance - gained, 0.0)

    def _extend(self, rows: Rows) -> None:
        """Append to whitened rows what they lack: (K - V L_old^T) L_new^-T, for the columns that any of them lacks.

        The block of L^-1 is the inverse of the block of L; one product is eight times as fast as a substitution.
        """
        t, s = self.count, int(self._state[rows].min())
        if self._everybody < t:
            self._everybody = -1
        w = self._outcomes.weights[:t].astype(self._whitened.dtype, copy=False)
        new = self._outcomes.covariance(rows, rows, s)
        factor = self._outcomes.factor[s:t, :t].astype(self._whitened.dtype, copy=False)
        mean = np.full(len(rows), self._prior_mean)
        variance = np.full(len(rows), self._prior_variance)
        if s:
            old = self._whitened[rows, :s]
            new -= old @ factor[:, :s].T
            mean += old @ w[:s]
            variance -= np.einsum("ij,ij->i", old, old)
        new = new @ self._outcomes.inverse[s:t, s:t].T.astype(self._whitened.dtype, copy=False)
        self._whitened[rows, s:t] = new
        mean += new @ w[s:]
        variance -= np.einsum("ij,ij->i", new, new)
        self._mean[rows], self._variance[rows] = mean, np.maximum(variance, 0.0)
        self._state[rows] = t

    # --- choices ----------------------------------------------------------------------------------

    def choose(self, weight: float, rng: Callable[[], np.random.Generator]) -> Choice:
        """The row of largest mean + sqrt(weight * variance); exact ties are broken by a draw from ``rng()``.

        Of those that are not hidden: IndexError where none is left.
        """
        if len(self._hidden) and self._hides.all():
            raise IndexError("every row is hidden")
        if self.count == 0:
            bound = upper_confidence_bound(self._mean, self._variance, weight)
            bound[self._hidden] = -np.inf
            return choose_maximum(bound, self._mean, self._variance, rng)
        rows = self._close(weight)
        found = [self._outcomes.solve(rows[:_SOLVED])]
        for start in range(_SOLVED, len(rows), _SOLVED):
            found.append((np.empty((0, 0)), *self._outcomes.solve(rows[start : start + _SOLVED])[1:]))
        mean, variance = np.concatenate([f[1] for f in found]), np.concatenate([f[2] for f in found])
        choice = choose_maximum(upper_confidence_bound(mean, variance, weight), mean, variance, rng)
        row = int(rows[choice.row])
        if len(found) == 1:
            whitened = found[0][0][choice.row]
            self._outcomes.remember(row, whitened, float(mean[choice.row]), float(variance[choice.row]))
        return Choice(row, choice.mean, choice.sd, choice.acquisition, choice.ties)

    def _close(self, weight: float) -> Rows:
        """All candidates that may have the largest bound, in order."""
        slack = self._slack
        # What rounding may hide of a mean: it is an inner product with the weights.
        shift = self._tolerance * float(np.sqrt(self._prior_variance * self._outcomes.surprise[self.count]))
        if self._tiles is not None:
            rows, upper = self._tiles.close(self._outcomes.loops(), self._outcomes.surprise, weight, shift, self._hides)
        elif len(self._mean) > _FEW:
            rows, upper = self._late(weight, slack, shift)
        elif self._may_go_ahead() and (near := self._near(weight, slack, shift)) is not None:
            rows, upper = near
        else:
            self._refresh_all()
            upper = np.add(self._variance, slack, out=self._bounds)
            upper *= weight
            np.sqrt(upper, out=upper)
            upper += self._mean
            upper += shift
            if len(self._hidden):
                upper[self._hidden] = -np.inf
            best = int(upper.argmax())
            low = max(self._variance[best] - slack, 0.0)
            rows = np.flatnonzero(upper >= self._mean[best] - shift + np.sqrt(weight * low))
        if len(rows) > _LEADERS:
            _, mean, variance = self._outcomes.solve(rows[[int(upper[rows].argmax())]])
            reached = min(upper[rows].max(), upper_confidence_bound(mean, variance, weight)[0])
            rows = rows[upper[rows] >= reached]
        return rows

    def _may_go_ahead(self) -> bool:
        """Not where rows are hidden: those near the maximum are too often among them."""
        return len(self._mean) > _LITTLE and not len(self._hidden)

    def _near(self, weight: float, slack: float, shift: float) -> tuple[Rows, Vector] | None:
        """The same where some candidates are ahead of all others; None when too many would have to be."""
        t, s = self.count, self._everybody
        if s in (0, t):
            return None
        if not len(self._deviation):
            self._deviation = np.sqrt(self._variance + slack)
        growth = weight + (1 + 4 * _EPSILON * t) * float(self._outcomes.surprise[t]) - float(self._outcomes.surprise[s])
        upper = np.multiply(self._deviation, np.sqrt(growth), out=self._bounds)
        upper += self._mean
        upper += shift
        ahead = self._ahead
        if ahead is None:
            stripes = upper[: len(upper) // self._stripes * self._stripes].reshape(self._stripes, -1)
            ahead = self._joined(None, np.arange(self._stripes) * stripes.shape[1] + stripes.argmax(axis=1))
        elif ahead.count < t:
            new, mean, variance = self._appended(
                ahead.rows, ahead.rows, ahead.whitened, ahead.mean, ahead.variance, ahead.count
            )
            ahead = _Ahead(ahead.rows, np.concatenate([ahead.whitened, new], axis=1), mean, variance, t)
        upper[ahead.rows], limit = -np.inf, _LEADERS
        late = np.flatnonzero(upper >= ahead.reached(weight, slack, shift))
        while len(late):
            some = late
            if len(late) > limit:
                some = late[np.argpartition(upper[late], -limit)[-limit:]]
            if len(some) + len(ahead.rows) > len(upper) // _SHARE:
                return None
            ahead, limit = self._joined(ahead, some), limit * 8
            upper[some] = -np.inf
            late = late[upper[late] >= ahead.reached(weight, slack, shift)]
        self._ahead = ahead
        upper[ahead.rows] = ahead.upper(weight, slack, shift)
        return np.sort(ahead.rows[upper[ahead.rows] >= ahead.reached(weight, slack, shift)]), upper

    def _joined(self, ahead: "_Ahead | None", rows: Rows) -> "_Ahead":
        """With some rows more, which were up to date like everybody."""
        s = self._everybody
        old = self._whitened[rows, :s]
        new, mean, variance = self._appended(rows, rows, old, self._mean[rows], self._variance[rows], s)
        more = _Ahead(rows, np.concatenate([old, new], axis=1), mean, variance, self.count)
        if ahead is None:
            return more
        return _Ahead(
            np.concatenate([ahead.rows, rows]),
            np.concatenate([ahead.whitened, more.whitened]),
            np.concatenate([ahead.mean, mean]),
            np.concatenate([ahead.variance, variance]),
            self.count,
        )

    def _late(self, weight: float, slack: float, shift: float) -> tuple[Rows, Vector]:
        """The same without bringing everybody up to date; and what the bounds are at most."""
        t = self.count
        growth = weight + (self._outcomes.surprise[t] - self._outcomes.surprise[: t + 1])
        growth += 4 * _EPSILON * t * self._outcomes.surprise[t]  # what the difference may have lost
        upper = self._bounds
        for start in range(0, len(upper), _SCAN):
            part, told = slice(start, start + _SCAN), upper[start : start + _SCAN]
            growth.take(self._state[part], out=told, mode="clip")
            told *= self._variance[part] + slack
            np.sqrt(told, out=told)
            told += self._mean[part]
            told += shift
        upper[self._hidden] = -np.inf

        def settle(rows: Rows) -> float:
            """Bring rows up to date and put down their bounds; what the best of them has at least."""
            best = _LOWEST
            rows = rows[~self._hides[rows]]
            for some in (rows[start : start + _SCAN] for start in range(0, len(rows), _SCAN)):
                self._refresh(some)
                mean, variance = self._mean[some], self._variance[some]
                upper[some] = mean + shift + np.sqrt(weight * (variance + slack))
                low = mean - shift + np.sqrt(weight * np.maximum(variance - slack, 0.0))
                best = max(best, float(low.max()))
            return best

        stripes = upper[: len(upper) // self._stripes * self._stripes].reshape(self._stripes, -1)
        reached = settle(np.arange(self._stripes) * stripes.shape[1] + stripes.argmax(axis=1))
        rows, limit = np.flatnonzero(upper >= reached), _FIRST
        while len(late := rows[self._state[rows] < t]):
            if limit < len(late) < len(upper) // 2:
                late = np.sort(late[np.argpartition(upper[late], -limit)[-limit:]])
            reached, limit = max(reached, settle(late)), limit * 8
            rows = rows[upper[rows] >= reached]
        return rows, upper


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Candidates that know ``count`` outcomes, more than the others: whitened rows (m, count), means, variances."""

    rows: Rows
    whitened: Matrix
    mean: Vector
    variance: Vector
    count: int

    def upper(self, weight: float, slack: float, shift: float) -> Vector:
        """Their bounds at most."""
        told: Vector = self.mean + shift + np.sqrt(weight * (self.variance + slack))
        return told

    def reached(self, weight: float, slack: float, shift: float) -> float:
        """What the largest bound is at least."""
        return float((self.mean - shift + np.sqrt(weight * np.maximum(self.variance - slack, 0.0))).max())
