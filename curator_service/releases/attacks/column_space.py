"""Which of two neighbours was released? The attack that differential privacy bounds for every attacker.

The attacker knows everything but which of two datasets was released. They differ in one row, moved by Delta. Where
noise is drawn for each row by itself, only that row depends on the answer, and the ratio of the two densities is the
best test (Neyman & Pearson). Where a secret projection is shared by all rows, Z is compared with the column space of
each candidate: proposition 1 of docs/privacy.md, and with noise the profile likelihood.
"""

import time
from collections.abc import Callable
from math import ceil, inf, log10, sqrt

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Finding
from curator_service.releases.attacks.scene import ALPHA, Public, draw, epsilon_bound
from curator_service.releases.mechanisms.mechanism import Mechanism

RUNS = 1_000
"""Runs per side where every run needs a release of its own, unless time is up before."""
RUNS_MIN = 50
RUNS_MIN_NOISY = 10
"""So many runs are made however long they take. Noise is slow to draw, so fewer are made with it."""
_WIDE = 50
"""With more features than this, a run without noise is slow, too."""
RUNS_OF_A_ROW = 10_000
_THRESHOLDS = 40


def attack(
    x: Matrix,
    mechanism: Mechanism,
    public: Public,
    rng: np.random.Generator,
    *,
    runs_of_a_row: int = RUNS_OF_A_ROW,
    least: int | None = None,
    seconds: float = 1.0,
    alpha: float = ALPHA,
) -> Finding | None:
    """A lower bound on epsilon, at level ``alpha``, from attacks on releases of rows (m, d); None for too few rows.

    The releases are thrown away. ``least``: the fewest runs where every run needs a release of its own. Raises
    ReleaseImpossible like the mechanism.
    """
    if public.shows_x:
        scores = score_copies(x, mechanism, public, rng, runs_of_a_row)
    elif len(x) >= x.shape[1] + 2:
        least = least or (RUNS_MIN_NOISY if public.noise_sd or x.shape[1] > _WIDE else RUNS_MIN)
        scores = neighbours(x, mechanism, public.unit, rng, least=least, seconds=seconds)
    else:
        return None
    fair = 0.0
    if public.noise_sd:  # another threshold may prove more: choose it on half of the runs, judge it on the others
        learnt, scores = [s[::2] for s in scores], (scores[0][1::2], scores[1][1::2])
        fair = threshold(learnt[0], learnt[1], public.delta, alpha)
    bound = implied(scores[0], scores[1], fair, public.delta, alpha)
    right, runs = int(np.sum(scores[0] <= 0) + np.sum(scores[1] > 0)), len(scores[0]) + len(scores[1])
    sentence = (
        f"Shown a release and the two datasets it may come from, one record moved by {public.name}, an attacker names "
        f"the right one {right:,} times of {runs:,}: {_meaning(bound, runs, public, x.shape[1], alpha)}."
    )
    return finding(bound, right / runs, f"epsilon at delta = {public.delta:g}", sentence, alpha)


def finding(bound: float, success: float, unit: str, sentence: str, alpha: float = ALPHA) -> Finding:
    """The finding of an attacker who tells two neighbours apart, and so proves a ``bound`` on epsilon."""
    return Finding(
        attack="column_space",
        figure=bound,
        low=bound,
        high=None,
        confidence=1 - alpha,
        success=success,
        blind=0.5,
        unit=f"{unit}: no smaller one allows what the attacker did",
        sentence=sentence,
    )


def _meaning(bound: float, runs: int, public: Public, d: int, alpha: float) -> str:
    """What ``runs`` guesses on both sides together imply, in words; where little, how many would imply more."""
    distance = public.unit / public.noise_sd if public.noise_sd else inf
    needed = 2 * to_differ_from_a_coin(best_share(public.law.family, distance, d), public.delta, alpha)
    if bound == 0:
        if runs < needed:
            return f"too few trials to tell; with {about(needed)} the best attacker would stand out from a coin"
        return "a coin might have done as well, which says nothing of other attackers"
    if public.epsilon is None:
        return f"no claim of an epsilon below {bound:.2g} could be true"
    clause = f"that takes an epsilon of at least {bound:.2g}, where {public.epsilon} is claimed"
    to_refute = 2 * to_contradict(float(public.epsilon), public.delta, alpha)
    if bound <= float(public.epsilon) and runs < to_refute:
        clause += f"; too few trials to tell more: it takes {about(to_refute)} without a fault to contradict the claim"
    return clause


def implied(first: Vector, second: Vector, fair: float, delta: float, alpha: float = ALPHA) -> float:
    """The epsilon that scores under two neighbours imply, where the attacker guesses the second above ``fair``."""
    hits, alarms = int(np.sum(second > fair)), int(np.sum(first > fair))
    return epsilon_bound(hits, len(second), alarms, len(first), delta, alpha)


def threshold(first: Vector, second: Vector, delta: float, alpha: float = ALPHA) -> float:
    """The threshold that implies the largest epsilon on these scores. Judge it on other scores."""
    tried = np.quantile(np.concatenate([first, second]), np.linspace(0, 1, _THRESHOLDS + 2)[1:-1])
    return float(max(tried, key=lambda fair: implied(first, second, fair, delta, alpha)))


def _moved(row: Vector, by: float, rng: np.random.Generator, *, along_axis: bool = False) -> Vector:
    """The row moved by this distance in a random direction, or in one feature: all of them are alike to these laws."""
    direction = np.eye(len(row))[rng.integers(len(row))] if along_axis else rng.normal(size=len(row))
    moved: Vector = row + by * direction / np.linalg.norm(direction)
    return moved


def score_copies(
    x: Matrix, mechanism: Mechanism, public: Public, rng: np.random.Generator, runs: int
) -> tuple[Vector, Vector]:
    """Scores of ``runs`` releases of one row, and of as many of its neighbour: multiples of log likelihood ratios.

    A score above 0 is evidence for the neighbour.
    """
    row, family = x[rng.integers(len(x))], public.law.family
    other = _moved(row, public.unit, rng, along_axis=family == "laplace_each")
    power = 1 if family in ("planar_laplace", "laplace_each") else 2
    order = 1 if family == "laplace_each" else 2

    def score(z: Matrix) -> Vector:
        away = [np.linalg.norm(z - candidate, ord=order, axis=1) ** power for candidate in (row, other)]
        ratio: Vector = away[0] - away[1]
        return ratio

    # Rows are drawn independently of each other: a release of copies is as many releases of one row.
    first, second = (score(draw(mechanism, np.tile(candidate, (runs, 1)))) for candidate in (row, other))
    return first, second


def neighbours(
    x: Matrix,
    mechanism: Mechanism,
    by: float,
    rng: np.random.Generator,
    *,
    runs: int = RUNS,
    least: int = RUNS_MIN,
    seconds: float = inf,
) -> tuple[Vector, Vector]:
    """Scores of releases of x (m, d), and of a neighbour with one row moved by ``by``.

    A score is the squared distance of Z from the column space of x, less that from the neighbour's: above 0 it is
    evidence for the neighbour. Makes ``runs`` on each side, or what ``seconds`` allow, but ``least`` at least.
    """
    neighbour = x.copy()
    moved = rng.integers(len(x))
    neighbour[moved] = _moved(x[moved], by, rng)
    outside = [_outside(candidate) for candidate in (x, neighbour)]
    scores: tuple[list[float], list[float]] = [], []
    until = time.monotonic() + seconds
    while len(scores[1]) < runs and (len(scores[1]) < least or time.monotonic() < until):
        for candidate, candidate_scores in zip((x, neighbour), scores, strict=True):
            z = draw(mechanism, candidate)
            candidate_scores.append(outside[0](z) - outside[1](z))
    return np.array(scores[0]), np.array(scores[1])


def _outside(x: Matrix) -> Callable[[Matrix], float]:
    """The squared distance of a release (m, r) from the column space of a centred candidate (m, d), as a function."""
    basis, values, _ = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    space = basis[:, values > 1e-12 * values.max(initial=0.0)]

    def squared(z: Matrix) -> float:
        z = z - z.mean(axis=0)
        return float(np.sum((z - space @ (space.T @ z)) ** 2))

    return squared


TRIALS_MAX = 10**9
"""The largest number of trials per side that is computed."""
_POWER = 1.2816
"""Standard deviations below the mean: on each side a record is that poor one time in ten."""


def to_differ_from_a_coin(right: float, delta: float, alpha: float = ALPHA) -> float:
    """Trials per side from which an attacker with a share ``right`` of right guesses mostly beats a coin provably.

    The smallest n for which a record that is poorer than nine of ten, on each side, implies an epsilon above 0;
    inf beyond TRIALS_MAX.

    >>> to_differ_from_a_coin(1.0, 0.0), to_differ_from_a_coin(0.5, 0.0)
    (6.0, inf)
    """

    def differs(n: int) -> bool:
        hits = max(0, int(n * right - _POWER * sqrt(n * right * (1 - right))))
        return epsilon_bound(hits, n, n - hits, n, delta, alpha) > 0

    return _smallest(differs)


def to_contradict(epsilon: float, delta: float, alpha: float = ALPHA) -> float:
    """Trials per side from which a record without an error implies more than ``epsilon``; inf beyond TRIALS_MAX.

    With fewer trials not even a release without any noise contradicts its claim.

    >>> to_contradict(1.0, 1e-5, 1e-6)
    47.0
    """
    return _smallest(lambda n: epsilon_bound(n, n, 0, n, delta, alpha) > epsilon)


def best_share(family: str, distance: float, d: int) -> float:
    """The share of right guesses of the best attacker between two means behind noise in ``d`` dimensions.

    ``distance`` is that between the means, in the noise's standard deviations per coordinate. The best guess is the
    nearer mean (Neyman & Pearson). It is right while the noise along the line between them is less than half of the
    distance. Noise that is not Laplace is treated as normal.

    >>> round(best_share("gaussian", 2.0, 3), 3), round(best_share("planar_laplace", 2.0, 3), 3)
    (0.841, 0.865)
    """
    from scipy.special import betainc, gammaincinv, ndtr

    if family not in ("planar_laplace", "laplace_each"):
        return float(ndtr(distance / 2))
    d = 1 if family == "laplace_each" else d  # the means differ in one coordinate
    # Radius Gamma(d) in units of sd / sqrt(d + 1), by its quantiles; the cosine of its angle has a Beta law.
    radius = gammaincinv(d, (np.arange(2_000) + 0.5) / 2_000)
    cosine = np.minimum(distance / 2 * sqrt(d + 1) / radius, 1.0)
    half = (d - 1) / 2
    below = betainc(half, half, (1 + cosine) / 2) if d > 1 else np.where(cosine < 1, 0.5, 1.0)
    return float(below.mean())


def about(trials: float) -> str:
    """A number of trials in words, rounded up to two digits.

    >>> about(7), about(4213), about(inf)
    ('about 7', 'about 4,300', 'more than 1,000,000,000')
    """
    if trials > TRIALS_MAX:
        return f"more than {TRIALS_MAX:,}"
    unit = 10 ** max(0, int(log10(trials)) - 1)
    return f"about {unit * ceil(trials / unit):,}"


def _smallest(enough: Callable[[int], bool]) -> float:
    """The smallest number that is ``enough``, by doubling and bisection; off by one or two where rounding wavers."""
    above = 1
    while not enough(above):
        above *= 2
        if above > TRIALS_MAX:
            return inf
    below = above // 2
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if enough(middle) else (middle, above)
    return float(above)
