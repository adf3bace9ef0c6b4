"""Pools of candidates on which the rules are judged: functions of a process, test functions, and tables of packages.

Each run draws its pool: a new function, or a random share of the records. Records are divided by their standard
deviations (those of property are in kilometres), centred, and scaled to a root mean square norm of 12.5, so that
Delta = 1 is the same share of the spread everywhere; norms above 25, of the few outliers, are clipped. Outcomes are
those of the records, without added noise, of variance 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

from benchmarks.papers import sources, synthetic
from benchmarks.papers.records import branin, properties
from benchmarks.papers.search import NORM
from blindopt.arrays import Mask, Matrix, Vector
from blindopt.gp.kernels import SquaredExponential

SHARE = 0.8
"""Share of a table's records in the pool of a run."""
SPREAD = 12.5
"""Root mean square norm of the records."""
WHOLE = 100
"""``side`` of the full form: smaller ones shrink every pool."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates x (n, d) of largest norm 25, and their outcomes y (n,), to be maximized."""

    x: Matrix
    y: Vector

    @property
    def top(self) -> Mask:
        """Whether a record is in the top 1 %: (n,)."""
        good: Mask = self.y >= np.quantile(self.y, 0.99, method="higher")
        return good


Draw = Callable[[np.random.Generator, int], Pool]


def _prepared(x: Matrix, y: Vector, *, has_units: bool = False) -> Pool:
    x = x - x.mean(axis=0)
    if not has_units:
        x = x / x.std(axis=0)
    return Pool(_scaled(x), (y - y.mean()) / y.std())


def _scaled(x: Matrix) -> Matrix:
    squares = np.einsum("ij,ij->i", x, x)
    x = x * (SPREAD / sqrt(squares.mean()))
    # One part in 10^12 below the largest norm, to stay within the bounds after rounding.
    scaled: Matrix = x * np.minimum(1.0, NORM * (1 - 1e-12) / np.maximum(np.linalg.norm(x, axis=1), 1.0))[:, None]
    return scaled


def _share(pool: Pool, rng: np.random.Generator, side: int, share: float = SHARE) -> Pool:
    n = max(20, int(share * len(pool.y) * min(1.0, side / WHOLE)))
    rows = rng.choice(len(pool.y), min(n, len(pool.y)), replace=False)
    return Pool(pool.x[rows], pool.y[rows])


def _grid(rng: np.random.Generator, side: int) -> Pool:
    return Pool(synthetic.domain(side).x, synthetic.draw(side, rng))


@lru_cache(maxsize=2)
def _scattered(kind: str, n: int) -> tuple[Matrix, Matrix]:
    """Candidates (n, d), and a root (n, n) of the covariance of f at them."""
    rng = np.random.default_rng([8, n])
    if kind == "clustered":  # 20 clusters in three dimensions
        centres = rng.uniform(-1.0, 1.0, (20, 3))
        x, lengthscale = centres[rng.integers(20, size=n)] + 0.08 * rng.standard_normal((n, 3)), 0.5
    else:
        x, lengthscale = rng.uniform(-1.0, 1.0, (n, 5)), 1.0
    covariance = SquaredExponential(lengthscale)(x, x)
    return _scaled(x), np.asarray(np.linalg.cholesky(covariance + 1e-8 * np.eye(n)), dtype=np.float64)


def _process(kind: str) -> Draw:
    def draw(rng: np.random.Generator, side: int) -> Pool:
        x, root = _scattered(kind, 20 * side)
        return Pool(x, root @ rng.standard_normal(len(x)))

    return draw


_HARTMANN_A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
_HARTMANN_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann(x: Matrix) -> Vector:
    """Minus the Hartmann function of six variables at ``x`` (n, 6) in the unit cube: its maximum is 3.32237."""
    distance = (_HARTMANN_A * (x[:, None, :] - _HARTMANN_P) ** 2).sum(axis=2)
    value: Vector = np.exp(-distance) @ np.array([1.0, 1.2, 3.0, 3.2])
    return value


def _hartmann(rng: np.random.Generator, side: int) -> Pool:
    x = rng.uniform(size=(100 * side, 6))
    return _prepared(x, hartmann(x), has_units=True)


def _branin(rng: np.random.Generator, side: int) -> Pool:
    return _share(_prepared(*branin(side), has_units=True), rng, WHOLE)


def _table(load: Callable[[], tuple[Matrix, Vector]], *, has_units: bool = False) -> Draw:
    @lru_cache(maxsize=1)
    def prepared() -> Pool:
        return _prepared(*load(), has_units=has_units)

    return lambda rng, side: _share(prepared(), rng, side)


def _houses() -> tuple[Matrix, Vector]:
    """Place and living area of 6,250 sales, drawn once; the logarithm of the price is to be maximized."""
    sales = sources.houses()
    rows = np.random.default_rng(9).choice(len(sales["long"]), 6_250, replace=False)
    return np.column_stack([sales[name][rows] for name in ("long", "lat", "log10_living_m2")]), sales["log10_price"][
        rows
    ]


def diabetes() -> tuple[Matrix, Vector]:
    """Ten measurements of 442 patients, and the progression of the disease a year later."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    return x, y


POOLS: dict[str, Draw] = {
    "process, grid": _grid,
    "process, clusters": _process("clustered"),
    "process, scattered": _process("dispersed"),
    "Branin": _branin,
    "Hartmann 6": _hartmann,
    "property": _table(lambda: properties(WHOLE), has_units=True),
    "houses": _table(_houses),
    "loans": _table(sources.loans),
    "diabetes": _table(diabetes),
    "concrete": _table(sources.concrete),
    "Ames": _table(sources.ames),
}
"""By name: how the pool of a run is drawn. The sizes are in ``facts`` of the part."""


def pool(name: str, run: int, side: int) -> Pool:
    """The pool of a run."""
    return POOLS[name](np.random.default_rng([10, run]), side)
