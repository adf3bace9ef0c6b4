"""The built-in score: L2-regularised logistic regression, trained on public records, scored on private ones.

O(w) = lambda/2 |w|^2 + (1/n) sum log(1 + exp(-y <w, x>)), without an intercept, |x| <= 1, y in {-1, 1};
f(lambda) = -(1/m) sum g(y <w_lambda, x>) over the m validation records, g a bounded loss. Replacing a validation
record moves f by at most g*/m. Source: Kusner et al. (2015), section 5, where the training set is public too.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import Invalid, TuningImpossible
from curator_service.datasets.scaling import ScaledRows

MISSING = (
    "this curator has no trainer for logistic regression: in a checkout of blindopt, pip install ./shared '.[tuning]', "
    "or use an http scorer"
)
DISTANCE_MAX = 1e-8
"""The largest distance of trained weights from the minimiser, by their gradient: |w - w*| <= |gradient| / lambda."""
_NEWTON_STEPS = 50


@dataclass(frozen=True, slots=True, repr=False)
class Records:
    """Rows x (n, d) with |x| <= 1 and labels y (n,) in {-1, 1}. The repr shows their shape alone, for privacy."""

    x: Matrix
    y: Vector

    def __repr__(self) -> str:
        return f"Records({len(self.x)} x {self.x.shape[1]})"

    @classmethod
    def of(cls, rows: ScaledRows, labels: Vector, threshold: float) -> "Records":
        """Records from scaled rows, shortened to the unit ball; a label above ``threshold`` becomes +1."""
        x = np.empty((rows.n, rows.d))
        for index, block in rows.blocks():
            x[index] = in_unit_ball(block)
        return cls(x, np.where(np.asarray(labels) > threshold, 1.0, -1.0))


def in_unit_ball(x: Matrix) -> Matrix:
    """Rows (n, d), each shortened to norm 1 if it is longer.

    >>> in_unit_ball(np.array([[3.0, 4.0], [0.3, 0.4]]))
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    shortened: Matrix = x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None]
    return shortened


def check_trainer() -> None:
    """Raise Invalid where scikit-learn is not installed."""
    try:
        import sklearn.linear_model  # noqa: F401
    except ImportError:
        raise Invalid.at("score.kind", MISSING) from None


def train(records: Records, penalty: float) -> Vector:
    """The weights w (d,) that minimise O for lambda = ``penalty``.

    Raises TuningImpossible where they are not within DISTANCE_MAX of the minimiser, because the sensitivity bounds of
    Theorem 7 hold for the minimiser alone.
    """
    from sklearn.linear_model import LogisticRegression

    n = len(records.x)
    trainer = LogisticRegression(C=1.0 / (n * penalty), fit_intercept=False, solver="newton-cholesky", tol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the check below finds out whether it converged
        fitted = trainer.fit(records.x, records.y)
    w = _polished(fitted.coef_[0], records, penalty)
    distance = float(np.linalg.norm(gradient(w, records, penalty))) / penalty
    if not distance <= DISTANCE_MAX:  # NaN too
        raise TuningImpossible(
            f"training at lambda = {penalty:g} did not reach the optimum (within {distance:.1e}, {DISTANCE_MAX:g} is "
            "needed): use larger values of lambda",
            "grid.0.values",
        )
    return w


def gradient(w: Vector, records: Records, penalty: float) -> Vector:
    """The gradient (d,) of O at w (d,)."""
    from scipy.special import expit

    pull = expit(-records.y * (records.x @ w)) * records.y
    slope: Vector = penalty * w - records.x.T @ pull / len(records.x)
    return slope


def _polished(w: Vector, records: Records, penalty: float) -> Vector:
    """Improve w by Newton steps, because the trainer's stopping rule is relative to the size of the loss."""
    from scipy.special import expit

    for _ in range(_NEWTON_STEPS):
        slope = gradient(w, records, penalty)
        if np.linalg.norm(slope) <= DISTANCE_MAX * penalty / 10:
            break
        p = expit(records.x @ w)
        hessian = (records.x * (p * (1 - p))[:, None]).T @ records.x / len(records.x)
        w = w - np.linalg.solve(hessian + penalty * np.eye(len(w)), slope)
    return w


# --- bounded losses of one record by its margin y <w, x> ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """g(margin) with 0 <= g <= ``bound`` (g*), ``lipschitz`` (L) in the margin; None where there is no such constant.

    With |x| <= 1 it is L-Lipschitz in w too. Source: Kusner et al. (2015), section 5.
    """

    name: str
    bound: float
    lipschitz: float | None
    of: Callable[[Vector], Vector]

    def __call__(self, margins: Vector) -> Vector:
        """The losses of margins (m,), clipped to [0, bound], so that the bound holds for doubles too."""
        return np.clip(self.of(margins), 0.0, self.bound)


def _zero_one(margins: Vector) -> Vector:
    """A margin of 0 counts as an error, because the class would be arbitrary."""
    return (margins <= 0).astype(np.float64)


def _ramp(margins: Vector) -> Vector:
    return (1.0 - margins) / 2


def _logistic(margins: Vector) -> Vector:
    return np.logaddexp(0.0, -margins)


def loss_of(name: str, clip: float) -> Loss:
    """The loss with this name; ``clip`` is the bound of the logistic loss, which is unbounded by itself.

    >>> loss_of("ramp", 1.0)(np.array([-3.0, 0.0, 0.5, 2.0]))
    array([1.  , 0.5 , 0.25, 0.  ])
    """
    if name == "zero_one":
        return Loss(name, 1.0, None, _zero_one)
    if name == "ramp":
        return Loss(name, 1.0, 0.5, _ramp)
    if name == "clipped_logistic":
        # The slope at margin t is 1/(1 + e^t), steepest where the clip begins: where 1 + e^-t = e^clip.
        return Loss(name, clip, 1.0 - exp(-clip), _logistic)
    raise ValueError(f"there is no loss of the name {name!r}")
