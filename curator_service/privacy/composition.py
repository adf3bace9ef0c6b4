"""Tight composition of all releases about one person: privacy loss distributions, and Renyi divergences.

Every figure is an upper bound on epsilon at a given delta. Two bounds are computed, and the smaller one
counts. The privacy loss distribution (Koskela et al. 2020; Doroshenko et al. 2022, "connect the dots") is the
tighter one, but is convolved by Fourier transforms in doubles, which err by about 1e-15 of probability:
it is used only where that is small against delta. Renyi divergences (Mironov 2017) are closed forms, good
at any delta and for any number of pairs, and a few per cent looser.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from curator_service.privacy.loading import load

FOURIER_ERROR = 1e-11
"""Error of a distribution convolved 10,000 times, in probability: more than ten times what tests measure."""
SINGLE_ERROR = 1e-15
"""Error of a distribution that is not convolved, in probability: differences of doubles near 1/2."""
_TRUNCATED = 1e-13  # tails cut off in a long composition, which count as an infinite loss
_WHOLE = 1 << 13  # compositions of fewer cells keep their tails, which is faster than to find where to cut
_CELLS = 200_000  # of a discretised distribution: about a second's work
_SIZE_MAX = 300.0  # e^size must be a double, with room to spare
_ORDERS = 1 + np.geomspace(1e-3, 1e7, 1_000)


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of laws that dominates the privacy loss of one release, and how often there was such a release.

    gaussian: N(0, 1) against N(size, 1), so ``size`` is sensitivity / sd. laplace: Laplace(0, 1) against
    Laplace(size, 1), so ``size`` is sensitivity / scale, and epsilon. pure: randomized response with
    epsilon ``size``, which dominates every epsilon-DP mechanism (Kairouz et al. 2015, Theorem 3.1).
    """

    kind: Literal["gaussian", "laplace", "pure"]
    size: float
    times: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.size < math.inf and self.times >= 1):
            raise ValueError("a pair needs a positive, finite size, and is released at least once")


def tight_epsilon(pairs: Iterable[Pair], delta: float) -> float:
    """An epsilon such that all ``pairs`` together are (epsilon, delta)-DP; 0 for no pairs."""
    if not 0 < delta < 1:
        raise ValueError("delta must lie between 0 and 1")
    counted: dict[tuple[str, float], int] = {}
    for pair in pairs:
        counted[pair.kind, pair.size] = counted.get((pair.kind, pair.size), 0) + pair.times
    return _tight(tuple(sorted(counted.items())), delta)


@lru_cache(maxsize=4096)
def _tight(counted: tuple[tuple[tuple[Any, float], int], ...], delta: float) -> float:
    pairs = [Pair(kind, size, times) for (kind, size), times in counted]
    if not pairs:
        return 0.0
    pure = math.inf if any(pair.kind == "gaussian" for pair in pairs) else sum(p.size * p.times for p in pairs)
    return max(0.0, min(pure, renyi_epsilon(pairs, delta), distribution_epsilon(pairs, delta)))


# --- Renyi divergences ----------------------------------------------------------------------------


def renyi_epsilon(pairs: Iterable[Pair], delta: float) -> float:
    """Epsilon at ``delta`` from the sum of Renyi divergences, at the best of many orders.

    Conversion: Canonne, Kamath & Steinke (2020), Proposition 12:
    epsilon = D_alpha + ln(1 - 1/alpha) - ln(alpha delta) / (alpha - 1).
    """
    total = sum((pair.times * _renyi(pair) for pair in pairs), np.zeros_like(_ORDERS))
    epsilon = total + np.log1p(-1 / _ORDERS) - (math.log(delta) + np.log(_ORDERS)) / (_ORDERS - 1)
    return max(0.0, float(np.nanmin(epsilon)))


def _renyi(pair: Pair) -> Any:
    """The Renyi divergence of one release at each order (Mironov 2017, Table II), rounding errors added."""
    alpha, size = _ORDERS, pair.size
    if pair.kind == "gaussian":
        return alpha * size**2 / 2 * (1 + 1e-12)
    if pair.kind == "laplace":
        likely, unlikely = np.log(alpha / (2 * alpha - 1)), np.log((alpha - 1) / (2 * alpha - 1))
        log_moment, largest = np.logaddexp(likely + (alpha - 1) * size, unlikely - alpha * size), size
    else:
        largest = 1 + size  # alpha times the rounding error of a logarithm of a half, too
        true, false = -np.logaddexp(0.0, -size), -np.logaddexp(0.0, size)
        log_moment = np.logaddexp(alpha * true + (1 - alpha) * false, alpha * false + (1 - alpha) * true)
    rounding = 1e-15 * (10 + alpha * largest)
    return np.minimum((log_moment + rounding) / (alpha - 1), size)


# --- privacy loss distributions -------------------------------------------------------------------


def distribution_epsilon(pairs: Iterable[Pair], delta: float) -> float:
    """Epsilon at ``delta`` from the composed privacy loss distribution; infinity where that would not be sound."""
    pairs = list(pairs)
    composed = len(pairs) > 1 or pairs[0].times > 1
    error = FOURIER_ERROR * max(1.0, sum(pair.times for pair in pairs) / 10_000)
    if not composed:  # the masses of a Gaussian release are accurate in their tails, those of others near 1/2
        error = max(1e-9 * delta, 0.0 if pairs[0].kind == "gaussian" else SINGLE_ERROR)
    if delta < 100 * error:  # then only Renyi divergences give a bound
        return math.inf
    step = max(min(_step(pair) for pair in pairs), sum(_span(pair) for pair in pairs) / _CELLS)
    sizes = [pair.size for pair in pairs]
    if step > min(sizes) or max(sizes) > _SIZE_MAX:  # too coarse to be of use, or out of a double's range
        return math.inf
    whole: Any = None
    for pair in pairs:
        single = _single(pair.kind, pair.size, step)
        repeated = single.self_compose(pair.times, _cut(pair, step)) if pair.times > 1 else single
        whole = repeated if whole is None else whole.compose(repeated)
    with np.errstate(over="ignore"):  # a loss of hundreds divides by a mass near 0; infinity compares rightly
        return float(whole.get_epsilon_for_delta(delta - error)) * (1 + 1e-12)


def _step(pair: Pair) -> float:
    """The step of the discretisation. The error of connecting the dots is of the order of its square."""
    return pair.size / 20 if pair.kind != "gaussian" else min(pair.size, 1.0) / 100


def _span(pair: Pair) -> float:
    """About the width of the distribution of the loss of all releases of a pair: mean and ten sd, twice."""
    if pair.kind == "gaussian":
        return pair.times * pair.size**2 + 20 * pair.size * math.sqrt(pair.times)
    mean = pair.times * pair.size * math.tanh(pair.size / 2)
    return min(2 * pair.times * pair.size, 2 * mean + 20 * pair.size * math.sqrt(pair.times))


def _cut(pair: Pair, step: float) -> float:
    """The probability of the tails that are cut off where all releases of a pair are composed."""
    whole = pair.kind != "gaussian" and pair.times * (2 * pair.size / step + 2) <= _WHOLE
    return 0.0 if whole else _TRUNCATED


@lru_cache(maxsize=64)
def _single(kind: str, size: float, step: float) -> Any:
    load()
    from dp_accounting.pld import privacy_loss_distribution as pld

    # The library's accountant does not take Laplace mechanisms for replaced rows, so use its lower level.
    if kind == "gaussian":
        return pld.from_gaussian_mechanism(1 / size, value_discretization_interval=step)
    if kind == "laplace":
        return pld.from_laplace_mechanism(1 / size, value_discretization_interval=step)
    return _randomized_response(size, step)


def _randomized_response(epsilon: float, step: float) -> Any:
    """Truth with probability e^epsilon / (1 + e^epsilon); its losses of +-epsilon fall between grid points."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    ends = (-epsilon / step, epsilon / step)
    grid = np.array(sorted({round_(end) for end in ends for round_ in (math.floor, math.ceil)}))
    at, lie = grid * step, math.exp(-np.logaddexp(0.0, epsilon))
    with np.errstate(over="ignore"):
        inside = lie * np.exp(at) * np.expm1(epsilon - at)  # = truth - e^at lie, without cancellation
    # Rounding may leave [0, 1] by some units in the last place, which the library refuses.
    hockey_stick = np.where(at <= -epsilon, -np.expm1(np.minimum(at, 0.0)), np.clip(inside, 0.0, 1.0))
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(step, grid, hockey_stick))
