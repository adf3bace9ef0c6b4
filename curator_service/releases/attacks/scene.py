"""What an attacker sees, the maps that it fits, intervals that hold for any sample size, and texts for findings."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Feature, GroupsRelease, IdentityRelease, NoiseLaw, StudyCreate
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.mechanisms.mechanism import Mechanism

EXACT = 1e-6
"""Below this share of Delta a guess is exact up to rounding."""


HIDDEN = "the hidden change"
"""What sentences call the largest change of one record that a release hides."""


@dataclass(frozen=True, slots=True)
class Public:
    """The public parameters of a study: the mechanism's law, and Delta in scaled units (1 where there is none)."""

    law: NoiseLaw
    rotated: bool
    unit: float
    name: str
    epsilon: str | None
    delta: float
    mixed: bool = False
    """Whether columns of Z are axes of all features."""

    @classmethod
    def of(cls, spec: StudyCreate, mechanism: Mechanism) -> "Public":
        release, law = spec.release, mechanism.noise(len(spec.features))
        if isinstance(release, IdentityRelease | GroupsRelease):
            epsilon = getattr(release, "epsilon", None)
            return cls(law, rotated=False, unit=1.0, name="a scaled unit", epsilon=epsilon, delta=0.0)
        return cls(
            law,
            rotated=bool(getattr(release, "rotate", False)),
            unit=release.sensitivity,
            name=HIDDEN,
            epsilon=release.epsilon,
            # The mechanism's: a draft may grant a delta that its mechanism does without.
            delta=getattr(mechanism, "delta", None) or 0.0,
            mixed=mechanism.name == "axes",
        )

    @property
    def shows_x(self) -> bool:
        """Whether a row of Z is the row of X itself, with or without noise."""
        shown = ("none", "gaussian", "planar_laplace", "laplace_each")
        return self.law.family in shown and not (self.rotated or self.mixed)

    @property
    def noise_sd(self) -> float:
        """The standard deviation of the noise per coordinate; 0 without noise."""
        return self.law.sd or 0.0

    def off_by(self, distance: float) -> str:
        """The median error of guesses, in words."""
        return f"off by {self.times(distance)} in the median" if distance else "exact"

    def times(self, distance: float) -> str:
        """A distance in scaled units as a multiple of the hidden change, in words."""
        share = distance / self.unit
        multiple = f"{share:.1e}" if 0 < share < EXACT else f"{share:.2g}"
        return f"{multiple} times {HIDDEN}" if self.name == HIDDEN else f"{multiple} scaled units"


@dataclass(frozen=True, slots=True, repr=False)
class Scene:
    """Rows of X (m, d) to judge by, and the rows of Z (m, r) of the same records, which the attacker sees.

    They are a random part of the ``of`` rows of the study.
    """

    x: Matrix
    z: Matrix
    public: Public
    of: int

    def __repr__(self) -> str:
        return f"Scene({len(self.x)} rows)"

    @property
    def tried_on(self) -> str:
        """The end of the sentence of a finding that is based on a part of the rows; else an empty text."""
        return f" (Tried on {len(self.x):,} of the {self.of:,} records.)" if len(self.x) < self.of else ""


def percent(share: float) -> str:
    """A share in words, where nothing but 0 is rounded to none and nothing but 1 to all.

    >>> percent(0.0), percent(0.000412), percent(0.2134), percent(0.99999), percent(1.0)
    ('none', '0.041 %', '21.3 %', 'more than 99.9 %', '100 %')
    """
    if share in (0.0, 1.0):
        return "none" if share == 0 else "100 %"
    if share > 0.999:
        return "more than 99.9 %"
    return f"{100 * share:.3g} %" if share >= 0.01 else f"{100 * share:.2g} %"


def as_rows(x: Matrix) -> ScaledRows:
    """Rows (m, d) in scaled units, wrapped as a mechanism takes them."""
    wide = [Feature(column=f"x{j}", lower=-1e50, upper=1e50, scale=1.0) for j in range(x.shape[1])]
    return ScaledRows(x, list(range(x.shape[1])), wide, np.arange(len(x)))


def draw(mechanism: Mechanism, x: Matrix) -> Matrix:
    """A release (m, r) of rows in scaled units (m, d), to be thrown away."""
    z = np.empty((len(x), mechanism.columns(x.shape[1])))
    mechanism.draw(as_rows(x), z)
    return z


ALPHA = 0.05
"""The probability that the interval of a finding misses the true value."""


def clopper_pearson(hits: int, trials: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Two-sided interval for a share, with alpha / 2 on each side (Clopper & Pearson 1934).

    >>> low, high = clopper_pearson(50, 50, 1e-6)
    >>> round(low, 3), high
    (0.748, 1.0)
    """
    from scipy.special import betaincinv

    low = float(betaincinv(hits, trials - hits + 1, alpha / 2)) if hits else 0.0
    high = 1 - float(betaincinv(trials - hits, hits + 1, alpha / 2)) if hits < trials else 1.0
    return low, high


def median_interval(values: Vector, alpha: float = ALPHA) -> tuple[float, float, float]:
    """Sample median, and two order statistics with the true median between them (David & Nagaraja 2003, 7.1).

    For independent values of any law, ties included. Raises ValueError for too few values.

    >>> median_interval(np.arange(1.0, 22.0))
    (11.0, 6.0, 16.0)
    """
    from scipy.special import bdtr

    n, ordered = len(values), np.sort(values)
    # The k-th smallest is above the median with probability P(Binomial(n, 1/2) < k), on each side.
    k = 0
    while bdtr(k, n, 0.5) <= alpha / 2:
        k += 1
    if k == 0:
        raise ValueError(f"{n} values are too few for an interval of their median")
    return float(np.median(ordered)), float(ordered[k - 1]), float(ordered[n - k])


def epsilon_bound(
    true_hits: int, true_trials: int, false_hits: int, false_trials: int, delta: float, alpha: float = ALPHA
) -> float:
    """A lower bound on epsilon at ``delta`` from the counts of an attacker who tells two neighbours apart.

    An event of probability p under one dataset and q under its neighbour needs p <= e^epsilon q + delta, and
    1 - q <= e^epsilon (1 - p) + delta; p and q are replaced by ends of their intervals, alpha / 2 each. The bound
    is wrong with probability alpha at most.

    >>> round(epsilon_bound(50, 50, 0, 50, 1e-5, 1e-6), 2)
    1.09
    """
    p, _ = clopper_pearson(true_hits, true_trials, alpha)
    _, q = clopper_pearson(false_hits, false_trials, alpha)
    epsilon = 0.0
    for likely, unlikely in ((p, q), (1 - q, 1 - p)):
        if likely > delta:
            epsilon = max(epsilon, log((likely - delta) / unlikely) if unlikely > 0 else inf)
    return epsilon


Map = Callable[[Matrix], Matrix]
_RANK = 1e-12
"""Below this share of the largest, a singular value of the known rows is rounding error."""


def affine(source: Matrix, target: Matrix, penalty: float = 0.0) -> Map:
    """The affine map from ``source`` (k, p) to ``target`` (k, q) by least squares.

    Where several fit equally well, the one with the smallest slope. ``penalty`` is that of ridge regression, in
    squared units of the source: k times the noise's variance keeps the map from fitting noise.
    """
    mean, to = source.mean(axis=0), target.mean(axis=0)
    u, s, vt = np.linalg.svd(source - mean, full_matrices=False)
    informative = s > _RANK * s.max(initial=0.0)
    gain = np.divide(s, s**2 + penalty, out=np.zeros_like(s), where=informative)
    slope = (vt.T * gain) @ (u.T @ (target - to))
    return lambda rows: to + (rows - mean) @ slope


def turned(source: Matrix, target: Matrix) -> Map:
    """The rotation or reflection about the origin that fits best (orthogonal Procrustes, Schoenemann 1966)."""
    u, _, vt = np.linalg.svd(source.T @ target)
    rotation = u @ vt
    return lambda rows: rows @ rotation


def shrunk(noisy: Matrix, sd: float) -> Matrix:
    """The best linear guess of rows (m, d) behind noise of known ``sd``: the noisy rows, shrunk towards their mean.

    Mean and covariance are estimated from the noisy rows themselves, so the attacker needs no other knowledge.
    """
    mean = noisy.mean(axis=0)
    centred = noisy - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / max(len(noisy) - 1, 1))
    gain = np.divide(np.maximum(values - sd**2, 0.0), values, out=np.zeros_like(values), where=values > 0)
    guess: Matrix = mean + (centred @ vectors * gain) @ vectors.T
    return guess


def forward(x: Matrix, z: Matrix, *, shows_x: bool, rotated: bool) -> dict[str, Map]:
    """Maps of records into Z, by name, from known pairs of rows (k, d), (k, r): the attacker tries each."""
    ways: dict[str, Map] = {}
    if len(x):
        ways["affine"] = affine(x, z)
    if len(x) and rotated:
        ways["turned"] = turned(x, z)
    if shows_x:
        ways["read"] = lambda rows: rows
    return ways
