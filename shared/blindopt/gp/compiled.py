"""Candidates in tiles of consecutive rows, brought up to date by compiled loops where these can be had."""

import logging
import sys
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.candidates import Points, by_columns
from blindopt.gp.kernels import Kernel
from blindopt.gp.observations import Loops

TILE = 256
"""Rows of a tile: many enough that what is done once a tile does not count, few enough that some tiles wait."""
_WORTH = 2_000  # candidates from which on compiled loops take less than what is interpreted around them
_PAYS = 3e9  # candidates times squared outcomes from which on one run gains more than loading takes (0.4 s)
_STRAIN_MAX = 1e12  # of a point: distances stay far from overflow, also in float32
_log = logging.getLogger(__name__)


@cache
def compiled() -> ModuleType | None:
    """The compiled loops; None without numba, or where it cannot work. The first call is slow."""
    try:
        from blindopt.gp import compiled_loops
    except ImportError:  # it is not there, or not for this numpy
        return None
    except RuntimeError:  # nowhere to keep machine code: compiling it in each process takes longer than runs do
        _log.warning("numba finds no directory for its cache and is not used: set NUMBA_CACHE_DIR to one")
        return None
    return compiled_loops


class Tiles:
    """The state of all candidates, tile by tile: a tile waits until one of its bounds may be the largest.

    Writes ``whitened`` (n, capacity), ``mean`` and ``variance`` (n,) of the posterior that it belongs to. ``slack``
    is what rounding may add to a variance. ``made`` says None where plain numpy is to do it all; so two runs that are
    alike may take either way, and choose the same.
    """

    def __init__(
        self,
        loops: ModuleType,
        points: Points,
        kernel: Kernel,
        nugget: float,
        whitened: Matrix,
        mean: Vector,
        variance: Vector,
        slack: float,
    ) -> None:
        n = len(mean)
        self._loops, self._size, self._mean, self._variance, self._slack = loops, TILE, mean, variance, slack
        self._deviation: Vector = np.sqrt(variance + slack)
        self._state: Rows = np.zeros(-(-n // self._size), dtype=np.intp)
        self._upper, self._tops, self._found = np.empty(n), np.empty(len(self._state)), np.empty(n, dtype=np.intp)
        law = points.by_products, loops.KINDS[type(kernel)], kernel.variance, nugget
        numbers = by_columns(whitened), mean, variance, self._deviation, self._state, slack
        self._fixed = (self._size, by_columns(points.kept), *law, *numbers)

    @staticmethod
    def suited(n: int, kernel: Kernel, capacity: int) -> ModuleType | None:
        """Loops for so many candidates and this kernel, if there are any, and they are loaded or it pays to do so."""
        if n < _WORTH or ("blindopt.gp.compiled_loops" not in sys.modules and n * capacity**2 < _PAYS):
            return None
        loops = compiled()
        return loops if loops is not None and type(kernel) in loops.KINDS else None

    @classmethod
    def made(
        cls,
        points: Points,
        kernel: Kernel,
        nugget: float,
        whitened: Matrix,
        mean: Vector,
        variance: Vector,
        slack: float,
    ) -> "Tiles | None":
        """Tiles, where there are candidates enough and loops for them."""
        loops = cls.suited(len(mean), kernel, whitened.shape[1])
        if loops is None or not points.strain <= _STRAIN_MAX:
            return None
        return cls(loops, points, kernel, nugget, whitened, mean, variance, slack)

    def refresh(self, outcomes: Loops) -> None:
        """Bring all up to date."""
        self._loops.refresh(*self._fixed, *outcomes)

    def close(
        self, outcomes: Loops, surprise: Vector, weight: float, shift: float, hides: NDArray[np.bool_]
    ) -> tuple[Rows, Vector]:
        """All candidates that may have the largest bound, in order; and what the bounds of all are at most."""
        count = self._loops.close(
            *self._fixed, *outcomes, surprise, weight, shift, hides, self._upper, self._tops, self._found
        )
        return self._found[:count].copy(), self._upper

    def knowing_more(self, count: int) -> Rows:
        """Who knows more than ``count`` outcomes."""
        return np.flatnonzero(np.repeat(self._state > count, self._size)[: len(self._mean)])

    def retract(self, count: int) -> None:
        """Means and variances have gone back to the first ``count`` outcomes."""
        np.minimum(self._state, count, out=self._state)
        np.sqrt(self._variance + self._slack, out=self._deviation)
