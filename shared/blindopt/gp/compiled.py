"""Moments of candidates brought up to date by compiled loops, tile by tile, where numba is installed."""

import logging
from functools import cache
from types import ModuleType

import numpy as np

from blindopt.arrays import Mask, Matrix, Rows, Vector
from blindopt.gp.acquisition import Acquisition, plain_weight
from blindopt.gp.candidates import Candidates, padded_columns
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import LocalObservations
from blindopt.gp.updates import Contenders, Floor, Moments, compared

NORM_MAX = 1e12
"""``cov_rounding`` up to which squared distances stay far from overflow, also in float32."""
_log = logging.getLogger("blindopt.gp")


@cache
def compiled() -> ModuleType | None:
    """The module of compiled loops, or None where numba is absent or cannot work. The first call is slow."""
    try:
        from blindopt.gp import compiled_loops
    except ImportError:  # numba is not installed, or not for this numpy
        return None
    except RuntimeError:  # there is nowhere to keep machine code, and compiling it anew takes longer than runs do
        _log.warning("numba finds no directory for its cache and is not used: set NUMBA_CACHE_DIR to one")
        return None
    return compiled_loops


def loops_for(kernel: Kernel) -> ModuleType | None:
    """The compiled loops, if there are any for this kernel."""
    loops = compiled()
    return loops if loops is not None and type(kernel) in loops.KINDS else None


class CompiledUpdates:
    """Tiles of consecutive candidates: a tile waits until one of its bounds may be the largest.

    Reads candidates that are ``column_major``, writes ``moments`` whose whitened rows are padded columns.
    """

    def __init__(
        self,
        candidates: Candidates,
        kernel: Kernel,
        nugget: float,
        observations: LocalObservations,
        moments: Moments,
        tile: int,
    ) -> None:
        loops = loops_for(kernel)
        assert loops is not None
        n = len(moments.mean)
        self._loops, self._observations, self._moments, self._tile = loops, observations, moments, tile
        self._deviation: Vector = np.sqrt(moments.variance + moments.var_tol)
        self._synced_counts: Rows = np.zeros(-(-n // tile), dtype=np.intp)
        """With how many observations each tile is up to date."""
        self._largest: Matrix = np.empty((3, len(self._synced_counts)))
        """Of each tile: a bound when it was last computed, the growth then, and the largest deviation."""
        self._note_largest()
        self._upper, self._tops, self._rows = np.empty(n), np.empty(len(self._synced_counts)), np.empty(n, np.intp)
        self._none_hidden: Mask = np.zeros(0, dtype=np.bool_)
        law = candidates.by_products, loops.KINDS[type(kernel)], kernel.variance, nugget
        state = padded_columns(moments.whitened), moments.mean, moments.variance, self._deviation, self._synced_counts
        self._fixed = (tile, padded_columns(candidates.lifted), *law, *state, self._largest, moments.var_tol)

    def _note_largest(self) -> None:
        """Forget the bounds."""
        edges = np.arange(0, len(self._deviation), self._tile)
        self._largest[0], self._largest[1] = np.finfo(np.float64).max, 0.0
        np.maximum.reduceat(self._deviation, edges, out=self._largest[2])

    def refresh(self, rows: Rows | None = None) -> None:
        """Bring all candidates up to date."""
        if self._observations.count:  # an empty array has another layout, for which all loops would be compiled anew
            self._loops.refresh(*self._fixed, *self._observations.loop_arguments())

    def ahead_of(self, count: int) -> Rows:
        """Candidates that are up to date with more than the first ``count`` observations."""
        return np.flatnonzero(np.repeat(self._synced_counts > count, self._tile)[: len(self._upper)])

    def retract(self, count: int) -> None:
        """Moments are those of at most the first ``count`` observations again."""
        np.minimum(self._synced_counts, count, out=self._synced_counts)
        np.sqrt(self._moments.variance + self._moments.var_tol, out=self._deviation)
        self._note_largest()

    def contenders(self, acquisition: Acquisition, mean_tol: float, hidden: Mask | None, floor: Floor) -> Contenders:
        """Bring tiles up to date, the most promising ones first, until none that waits can hold the largest bound.

        For another acquisition than the plain bound, all tiles are brought up to date.
        """
        if (weight := plain_weight(acquisition)) is None:
            self.refresh()
            return compared(self._moments, acquisition, mean_tol, hidden, self._upper, floor)
        observed, cumsum = self._observations.loop_arguments(), self._observations.weight_sq_cumsum
        buffers = self._none_hidden if hidden is None else hidden, self._upper, self._tops, self._rows
        count = self._loops.contenders(*self._fixed, *observed, cumsum, weight, mean_tol + acquisition.slack, *buffers)
        rows = self._rows[:count].copy()
        return Contenders(rows, self._moments.mean[rows], self._moments.variance[rows])
