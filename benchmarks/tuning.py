"""Quality of tunings: bounds and releases of Kusner et al. (2015), simulated under Assumption 1 and on real records.

100 hyper-parameters on [0, 1], squared exponential kernel of lengthscale 0.2, sigma = 0.1, delta = 0.05, functions
drawn from the prior; 2,000 pairs of neighbours, of which a share 1 - k1 differs.
"""

from functools import cache

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from benchmarks.table import Cell, Table
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.gp.kernels import SquaredExponential
from blindopt.wire import TuningSpec
from curator_service.tuning.methods import Facts, Problem, constants, plan_of
from curator_service.tuning.methods.gp_design import sensitivity
from curator_service.tuning.methods.information import greedy_design, largest_gain
from curator_service.tuning.methods.prior import design_sd, posterior_weights
from curator_service.tuning.methods.simulation import (
    Differences,
    World,
    expected_errors,
    neighbour_differences,
    sample_design,
    sample_search,
    ucb,
    upper_quantile,
)

N, SIGMA, DELTA = 100, 0.1, 0.05
GRID = np.linspace(0, 1, N)[:, None]
WORLD = World(SquaredExponential(0.2)(GRID, GRID), SIGMA)
PAIRS, DESIGN_PAIRS = 2_000, 20_000
APART = (0.01, 0.0001)
ENDS = ((0.001, 1.0), (0.1, 1.0), (1.0, 10.0))


def tables() -> list[Table]:
    """Failures of the printed q, looseness of the bounds, regrets of releases, and Algorithm 3 on real records."""
    return [_failures(), _looseness(), _regrets(), _algorithm_3()]


def _betas(evaluations: int) -> Vector:
    return np.array([constants.beta(N, t, DELTA) for t in range(1, evaluations + 1)])


@cache
def _simulated(evaluations: int, apart: float) -> Differences:
    return neighbour_differences(WORLD, _betas(evaluations), apart, PAIRS, seed=5)


@cache
def _design(evaluations: int) -> tuple[Rows, Matrix]:
    arms, _ = greedy_design(WORLD.covariance, SIGMA, evaluations)
    return arms, posterior_weights(WORLD.covariance, arms, SIGMA)


def _largest_noise(evaluations: int) -> Vector:
    """For each pair, the larger noise of its two largest noisy scores: alpha^ in the proof of Theorem 3."""
    rng = np.random.default_rng(17)
    functions = WORLD.functions(PAIRS, rng)
    both = np.vstack([functions, WORLD.neighbours(functions, 0.01, rng)])
    drawn = rng.normal(scale=SIGMA, size=(evaluations, 2 * PAIRS))
    step, every = iter(range(evaluations)), np.arange(2 * PAIRS)
    runs = ucb(WORLD.covariance, SIGMA, _betas(evaluations), 2 * PAIRS, lambda a: both[every, a] + drawn[next(step)])
    largest: Vector = drawn[runs[2].argmax(axis=0), every].reshape(2, PAIRS).max(axis=0)
    return largest


def _failures() -> Table:
    rows: list[list[Cell]] = []
    for evaluations in (50, 200, 500):
        doubled = 2 * _largest_noise(evaluations)
        printed = float((doubled > constants.q(SIGMA, evaluations, DELTA)).mean())
        held = float((doubled > constants.q(SIGMA, evaluations, DELTA, "corrected")).mean())
        rows.append([evaluations, 100 * printed, 100 * held])
    title = (
        "How often twice the noise at the largest noisy score exceeds q (2,000 pairs, 1 - k1 = 0.01; promised: 1.7 %)"
    )
    return Table(title, ["T", "q as printed, %", "q corrected, %"], rows)


def _fixed_bound(evaluations: int, apart: float) -> float:
    arms, _ = _design(evaluations)
    return sensitivity(float(design_sd(WORLD.covariance, arms, SIGMA, apart).max()), N, DELTA)


def _exceeded(evaluations: int, apart: float) -> float:
    """Fraction of pairs whose means of a fixed design, with equal noise, differ by more than its sensitivity."""
    rng = np.random.default_rng(23)
    arms, weights = _design(evaluations)
    functions = WORLD.functions(DESIGN_PAIRS, rng)
    others = WORLD.neighbours(functions, apart, rng)
    moved = np.abs((others - functions)[:, arms] @ weights.T).max(axis=1)
    return float((moved > _fixed_bound(evaluations, apart)).mean())


def _looseness() -> Table:
    rows: list[list[Cell]] = []
    for evaluations in (50, 200):
        gamma = largest_gain(WORLD.covariance, SIGMA, evaluations).upper
        rate = constants.regret_rate(SIGMA, evaluations, constants.beta(N, evaluations, DELTA), gamma)
        for apart in APART:
            differences = _simulated(evaluations, apart)
            index = constants.index_sensitivity(N, evaluations, apart, DELTA)
            value = constants.value_sensitivity(
                rate, constants.c(N, apart, DELTA), constants.q(SIGMA, evaluations, DELTA)
            )
            looser = [
                index / upper_quantile(differences.mean, DELTA),
                value / upper_quantile(differences.maximum, DELTA),
            ]
            rows.append([evaluations, apart, *looser, 100 * _exceeded(evaluations, apart)])
    title = "How many times larger the bounds are than pairs need; how often that of a fixed design is exceeded (5 %)"
    return Table(title, ["T", "1 - k1", "Theorem 1", "Theorem 3", "fixed design, exceeded, %"], rows)


def _regrets() -> Table:
    arms, weights = _design(200)
    search, fixed = sample_search(WORLD, _betas(200), seed=1), sample_design(WORLD, arms, weights, seed=1)
    rows: list[list[Cell]] = []
    for apart in APART:
        bounds = (
            (search, constants.index_sensitivity(N, 200, apart, DELTA)),
            (search, upper_quantile(_simulated(200, apart).mean, DELTA)),
            (fixed, _fixed_bound(200, apart)),
        )
        for epsilon in (1, 10):
            lost: list[Cell] = []
            for sample, bound in bounds:
                errors, _ = expected_errors(
                    sample, index_scale=2 * bound / epsilon, exponential=True, value_scale=None, value_at="chosen"
                )
                lost.append(errors)
            rows.append([apart, epsilon, *lost])
    title = "Mean regret of lambda~ alone, by the exponential mechanism (T = 200)"
    return Table(title, ["1 - k1", "epsilon", "printed constants", "simulated sensitivity", "fixed design"], rows)


def _algorithm_3() -> Table:
    """Logistic training on 300 public records, m = 200, ramp loss, 20 penalties; the median of |Laplace| is ln 2."""
    data = load_breast_cancer()
    x = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    order = np.random.default_rng(0).permutation(len(x))[:300]
    x, y = x[order], np.where(data.target == 1, 1.0, -1.0)[order]
    search = {"lengthscale": 1.0}
    methods = (
        {"name": "kusner_3", "search": search},
        {"name": "public_weights", "search": search},
        {"name": "grid_exponential", "use_weights": True},
    )
    rows: list[list[Cell]] = []
    for ends in ENDS:
        weights = np.array([_trained(penalty, x, y) for penalty in np.geomspace(*ends, 20)])
        facts = Facts(
            weight_norm_max=float(np.linalg.norm(weights, axis=1).max()),
            weight_distance_max=float(max(np.linalg.norm(a - b) for a in weights for b in weights)),
            lipschitz=0.5,
            lambda_min=ends[0],
            lambda_max=ends[1],
            training_loss="logistic",
        )
        tuned = Problem(np.geomspace(*ends, 20)[:, None], 200, -1.0, 0.0, "scored", facts)
        errors: list[Cell] = []
        for method in methods:
            budget = {"epsilon": "1", "index_share": "0"}
            noise = plan_of(TuningSpec.model_validate({"method": method, "budget": budget}), tuned).draws.noise
            errors.append(float(noise.value_scale or 0.0) * float(np.log(2)))
        rows.append([f"{ends[0]:g} to {ends[1]:g}", *errors])
    title = "Median error of v~ at epsilon 1 on breast cancer (m = 200, ramp loss, 20 penalties)"
    return Table(title, ["penalties", "kusner_3", "public_weights", "grid_exponential, use_weights"], rows)


def _trained(penalty: float, x: Matrix, y: Vector) -> Vector:
    model = LogisticRegression(C=1 / (penalty * len(x)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    weights: Vector = model.fit(x, y).coef_[0]
    return weights
