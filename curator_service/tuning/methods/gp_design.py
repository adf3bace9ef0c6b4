"""Releases from the posterior mean: of a design fixed before any data is seen, or of GP-UCB as in Algorithm 1.

Replacing a record moves the posterior mean of a design by W (f' - f): the noise of evaluations is the same under both
datasets, and cancels, so that the Gaussian sensitivity is exact. In the worst case each score moves by g*/m, so that
the mean moves by the largest row sum of |W| times that, and noise for D keeps epsilon times as much over D. The
sensitivity of GP-UCB is measured on simulated neighbours: both runs of a pair get the same noise, step by step, and
choose for themselves. docs/tuning.md has the proofs.
"""

from dataclasses import replace
from math import log, sqrt

import numpy as np

from blindopt.arrays import Matrix
from blindopt.errors import TuningImpossible
from blindopt.wire.tuning import GpDesign, GpUcbSimulated, TuningBudget
from curator_service.tuning.methods import cautions, constants, guarantees
from curator_service.tuning.methods.draws import Draws, shared_event
from curator_service.tuning.methods.information import greedy_design
from curator_service.tuning.methods.plan import Plan, Released, Search, worst_case_plan
from curator_service.tuning.methods.prior import Scaled, design_sd, posterior_weights, prior_average_plan
from curator_service.tuning.methods.problem import Objective, Problem
from curator_service.tuning.methods.simulation import (
    neighbour_differences,
    sample_design,
    sample_search,
    upper_quantile,
)


def sensitivity(largest_sd: float, n: int, delta: float) -> float:
    """The sensitivity max sd x sqrt(2 ln(n / delta)): with probability 1 - delta none of n posterior means moves more.

    A normal deviate is beyond x sd with probability exp(-x^2 / 2) at most, on either side together.
    """
    return largest_sd * sqrt(2 * log(n / delta))


def rounding(scaled: Scaled, weights: Matrix) -> float:
    """Bound on what doubles add to the difference of two posterior means ``weights`` (n, T) times scores.

    Each score rounds once when it is scaled, and once to the lattice of its noise. A sum of T products of scores within
    ``largest`` rounds by T + 1 units of 2^-53; noise beyond 40 sd has a probability below 1e-300.
    """
    ends, evaluations = scaled.world.ends, weights.shape[1]
    largest = max(abs(ends[0]), abs(ends[1])) + 40 * scaled.sigma
    of_a_score = scaled.rounding / scaled.unit + scaled.sigma * 2.0**-39 + (evaluations + 4) * 2.0**-52 * largest
    return float(2 * row_sum(weights) * of_a_score)


def row_sum(weights: Matrix) -> float:
    """The largest sum of a row's absolute ``weights`` (n, T): how much more a posterior mean moves than each score."""
    return float(np.abs(weights).sum(axis=1).max())


def designed(method: GpDesign, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan with a greedy design, which depends on the kernel and sigma alone."""
    prior, shares = method.prior, shared_event(budget)
    scaled = Scaled.of(prior, problem)
    arms, gain = greedy_design(scaled.covariance, prior.noise_sd, prior.evaluations)
    weights = posterior_weights(scaled.covariance, arms, prior.noise_sd)
    largest = float(design_sd(scaled.covariance, arms, prior.noise_sd, prior.one_minus_k1).max())
    rounded = rounding(scaled, weights)
    moved = sensitivity(largest, problem.n, float(shares.total.delta)) + rounded
    worst = row_sum(weights) * problem.moved / scaled.unit + rounded
    proved = shares.pure(max(worst / moved, 1.0))
    constants = {"largest_sd": largest, "gain": gain, "worst_case_epsilon": float(proved.total.epsilon)}
    draws = Draws.of(shares, index=moved, law=method.selection, value=moved, unit=scaled.unit, constants=constants)

    def release(objective: Objective, draws: Draws) -> Released:
        scores = np.array([scaled.noisy(objective, arm) for arm in arms.tolist()])
        index, value = draws.on(weights @ scores, value_at=method.value_at)
        return index, scaled.unscaled(value)

    search = Search(len(arms), release)
    sample = sample_design(scaled.world, arms, weights, seed=0)
    if method.charge == "prior_average":
        offer = () if prior.estimated else cautions.of_worst_case(proved.total.epsilon)
        return prior_average_plan(scaled, draws, search, sample, kind="exact", value_at=method.value_at, warnings=offer)
    if prior.estimated:
        message = "a prior that was estimated from private data keeps no epsilon in the worst case"
        raise TuningImpossible(message, "method.prior.estimated")
    expected, _ = scaled.expected_error(draws, sample, method.value_at)
    condition = guarantees.of_design(prior, problem.records, shares.total)
    proved_draws = replace(draws, shares=proved)
    return worst_case_plan(problem, proved_draws, search, expected, condition=condition, repeated=prior.noise == "own")


def simulated(method: GpUcbSimulated, budget: TuningBudget, problem: Problem) -> Plan:
    """The plan whose sensitivity is an order statistic of max |mu' - mu| over simulated pairs.

    It exceeds the (1 - delta) quantile with high probability.
    """
    prior, shares = method.prior, shared_event(budget)
    scaled, delta = Scaled.of(prior, problem), float(shares.total.delta)
    betas = np.array([constants.beta(problem.n, t, delta) for t in range(1, prior.evaluations + 1)])
    upper_quantile(np.zeros(method.pairs), delta)  # refuses too few pairs before they are simulated
    differences = neighbour_differences(scaled.world, betas, prior.one_minus_k1, method.pairs, method.seed)
    moved = upper_quantile(differences.mean, delta)
    draws = Draws.of(
        shares,
        index=moved,
        law=method.selection,
        value=moved,
        unit=scaled.unit,
        constants={"pairs": method.pairs, "median_difference": float(np.median(differences.mean))},
    )

    def release(objective: Objective, draws: Draws) -> Released:
        """With the exploration weights of the simulated runs."""
        mean, _ = scaled.posterior_mean(betas, objective)
        index, value = draws.on(mean, value_at=method.value_at)
        return index, scaled.unscaled(value)

    return prior_average_plan(
        scaled,
        draws,
        Search(len(betas), release),
        sample_search(scaled.world, betas, method.seed),
        kind="simulated",
        value_at=method.value_at,
        warnings=(cautions.TRACE,),
    )
