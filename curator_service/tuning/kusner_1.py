"""Algorithm 1 of Kusner et al. (2015): GP-UCB on noisy scores, with the constants of its theorems."""

from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire.tuning_methods import Kusner1, TuningSpec
from curator_service.tuning import cautions, constants, guarantees
from curator_service.tuning.budget import Shares, split_events
from curator_service.tuning.draws import Draws
from curator_service.tuning.information import largest_gain
from curator_service.tuning.plan import Cost, Outcome, Plan
from curator_service.tuning.prior import Scaled
from curator_service.tuning.private_search import posterior_mean
from curator_service.tuning.problem import Evaluate, Problem, Progress
from curator_service.tuning.readings import Readings
from curator_service.tuning.simulation import sample_search


@dataclass(frozen=True, slots=True)
class Kusner1Plan(Plan):
    """``betas`` (T,) are the exploration weights; ``clip`` is what posterior means are clipped to, or None."""

    method: Kusner1
    scaled: Scaled
    draws: Draws
    betas: Vector = field(repr=False)
    clip: float | None

    def run(self, evaluate: Evaluate, progress: Progress = lambda share: None) -> Outcome:
        fresh = self.method.prior.noise == "own"
        readings = Readings(self.problem, evaluate, progress, len(self.betas), fresh)
        mean, largest = posterior_mean(self.scaled, self.betas, readings)
        inside = mean if self.clip is None else np.clip(mean, -self.clip, self.clip)
        index = self.draws.index.draw(inside) if self.draws.index else None
        value = self.draws.value.draw(largest) if self.draws.value else None
        return Outcome(index, self.scaled.told(value), readings.clipped, len(self.betas))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sensitivities of lambda~ and v~ in scaled units, and what they are made of."""

    index: float | None
    value: float | None
    parts: dict[str, float]


def bounds(method: Kusner1, n: int, gamma: float, index_delta: float | None, value_delta: float | None) -> Bounds:
    """Theorems 1 and 3, each at its own delta; ``gamma`` bounds the information gain of T scores."""
    prior, split = method.prior, method.delta_split
    sigma, evaluations, apart = prior.noise_sd, prior.evaluations, prior.one_minus_k1
    parts: dict[str, float] = {"gamma": gamma}
    index = value = None
    if index_delta is not None:
        index = constants.index_sensitivity(n, evaluations, apart, index_delta, split)
        if method.index_bound == "tight":
            index = constants.tight_index_sensitivity(n, apart, index_delta)
        elif method.index_bound == "clip":
            index = min(index, 2 * constants.clip_bound(n, index_delta))
        parts["beta_next"] = constants.beta(n, evaluations + 1, index_delta, split)
        parts["c_index"] = constants.c(n, apart, index_delta, split)
    if value_delta is not None:
        parts["beta_last"] = constants.beta(n, evaluations, value_delta, split)
        parts["omega_over_t"] = constants.regret_rate(sigma, evaluations, parts["beta_last"], gamma)
        parts["c_value"] = constants.c(n, apart, value_delta, split)
        parts["q"] = constants.q(sigma, evaluations, value_delta, method.q, split)
        value = constants.value_sensitivity(parts["omega_over_t"], parts["c_value"], parts["q"])
    return Bounds(index, value, parts)


def plan(spec: TuningSpec, method: Kusner1, problem: Problem) -> Kusner1Plan:
    """The search's beta_t is that of the delta that v~ is bounded at, or lambda~'s without v~."""
    prior, shares = method.prior, split_events(spec.budget)
    scaled = Scaled.of(prior, problem)
    gain = largest_gain(scaled.covariance, prior.noise_sd, prior.evaluations)
    index_delta, value_delta = (float(cost.delta) if cost else None for cost in (shares.index, shares.value))
    found = bounds(method, problem.n, gain.upper, index_delta, value_delta)
    delta = value_delta or index_delta or 0.0
    betas = [constants.beta(problem.n, t, delta, method.delta_split) for t in range(1, prior.evaluations + 1)]
    draws = Draws.of(
        None if found.index is None else (found.index, shares.index),
        "exponential",
        None if found.value is None else (found.value, shares.value),
    )
    noise = draws.noise(scaled.unit, gamma_lower=gain.lower, **found.parts)
    sample = sample_search(scaled.world, np.array(betas), seed=0)
    expected, spread = scaled.seen(draws, sample, "largest_score")
    charged = _charged(method, shares)
    kind = guarantees.prior_average(
        charged.total,
        prior,
        problem.records,
        index=draws.index is not None,
        value=draws.value is not None,
        kind="bound",
    )
    return Kusner1Plan(
        spec=spec,
        problem=problem,
        index_cost=charged.index,
        value_cost=charged.value,
        cost=charged.total,
        noise=noise,
        guarantee=kind + (guarantees.kusner_1(method) if draws.value else ""),
        warnings=[
            *cautions.of_prior(prior),
            *cautions.of_own_noise(prior, problem.records),
            *cautions.of_noise(noise, spread),
            *cautions.of_both(charged),
            *([cautions.UNPROVED] if draws.value and method.q == "paper" else []),
            cautions.TRACE,
        ],
        expected_error=expected,
        method=method,
        scaled=scaled,
        draws=draws,
        betas=np.array(betas),
        clip=constants.clip_bound(problem.n, index_delta) if method.index_bound == "clip" and index_delta else None,
    )


def _charged(method: Kusner1, shares: Shares) -> Shares:
    """The printed split of delta adds up to 5/3 of it for v~: two regret bounds at 1/2 each, and two events at 1/3."""
    if method.delta_split == "corrected" or shares.value is None:
        return shares
    delta = (shares.value.delta * 5 / 3).quantize(Decimal("1e-18"), rounding=ROUND_CEILING)
    real = replace(shares.value, delta=delta)
    return Shares(shares.index, real, shares.index + real if shares.index else Cost(real.epsilon, real.delta))
