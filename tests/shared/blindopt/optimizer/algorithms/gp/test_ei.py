"""Expected improvement against a slow loop, and the bound that leaves the nugget out."""

import itertools

import mpmath
import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.gp.acquisition import beta
from blindopt.gp.input_noise import averaged
from blindopt.gp.kernels import kernel_of
from blindopt.optimizer.algorithms.factory import BatchAlgorithm, Learner, build_algorithm, memory_of
from blindopt.optimizer.algorithms.gp.rules import Ei, GpUcb
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from tests.shared.blindopt.optimizer.algorithms.gp.test_gp_ucb import KERNEL, candidates, outcome_of

NOISE = wire.NoiseLaw(family="gaussian", sd=0.3)
GOOD = 1.2
NAMES = [
    {"name": "ei"},
    {"name": "ei", "optimism": 0.0},
    {"name": "gp_ucb", "nugget": "out", "scale": 0.2},
    {"name": "reach"},
    {"name": "reach", "optimism": 0.0},
]


def spec_of(body):
    return wire.RunSpec.model_validate(
        {"curator_url": "http://127.0.0.1:1", "study_id": "std_0123456789abcdef", "algorithm": body}
    ).algorithm


def build(body, z, **settings):
    goal = wire.FindMany(threshold=GOOD) if body["name"] == "reach" else wire.FindBest()
    return build_algorithm(
        spec_of(body), z, AlgorithmSettings(KERNEL, sign=1, seed=0, capacity=40, noise=NOISE, goal=goal, **settings)
    )


def moments(z, rows, outcomes):
    """Means, variances and nugget with the averaged kernel, by one solve, in doubles."""
    kernel, nugget = averaged(
        kernel_of("squared_exponential", KERNEL.lengthscale, KERNEL.signal_variance), "gaussian", 0.3, 2
    )
    rows = np.asarray(rows)
    gram = kernel(z[rows], z[rows]) + nugget * (rows[:, None] == rows) + KERNEL.noise_variance * np.eye(len(rows))
    cross = kernel(z, z[rows]) + nugget * (np.arange(len(z))[:, None] == rows)
    mean = KERNEL.mean + cross @ np.linalg.solve(gram, np.asarray(outcomes) - KERNEL.mean)
    return mean, KERNEL.signal_variance - np.einsum("ij,ji->i", cross, np.linalg.solve(gram, cross.T)), nugget


def values(body, z, rows, outcomes, step):
    """Rule A and the smooth bound as they are written, in 40 digits."""
    mean, variance, nugget = moments(z, rows, outcomes)
    learnable = np.maximum(variance - nugget, 0)
    if body["name"] == "gp_ucb":
        return mean + np.sqrt(0.2 * beta(len(z), step, 0.025) * learnable)
    level = GOOD if body["name"] == "reach" else mean[rows].max()
    t = (mean + body.get("optimism", 2.0) * np.sqrt(learnable) - level) / np.sqrt(variance)
    if body["name"] == "reach":
        return t
    with mpmath.workdps(40):
        h = [mpmath.npdf(x) + x * mpmath.ncdf(x) for x in map(float, t)]
        return np.array([float(mpmath.log(x)) for x in h]) + np.log(variance) / 2


@pytest.mark.parametrize("body", NAMES, ids=str)
def test_the_chosen_row_has_the_largest_value_at_every_step(body):
    z = candidates(150)
    y = outcome_of(z)
    algorithm, rows = build(body, z), [3, 50, 100]
    for row in rows:
        algorithm.observe(row, float(y[row]))
    for step in range(1, 16):
        expected = values(body, z, rows, y[rows], step)
        if body["name"] == "reach":
            algorithm.hide(np.array(rows))
            expected[rows] = -np.inf
        choice = algorithm.choose(step)
        assert expected[choice.row] == pytest.approx(expected.max(), rel=1e-8, abs=1e-8)
        assert choice.acquisition == pytest.approx(expected.max(), rel=1e-8, abs=1e-8)
        rows.append(choice.row)
        algorithm.observe(choice.row, float(y[choice.row]))
    assert len(set(rows)) > 6


def test_a_batch_supposes_means_and_is_forgotten():
    """Each row of a batch is that of an algorithm that was taught the means of those before it."""
    z = candidates(150)
    y = outcome_of(z)
    batch, taught = build({"name": "ei"}, z), build({"name": "ei"}, z)
    for algorithm, row in itertools.product((batch, taught), (3, 50, 100)):
        algorithm.observe(row, float(y[row]))
    assert isinstance(batch, BatchAlgorithm)
    first = batch.choose(1)
    rows = []
    for step in range(1, 6):
        choice = batch.choose(step)
        rows.append(choice.row)
        assert taught.choose(step).row == choice.row
        batch.suppose(choice.row)
        taught.observe(choice.row, choice.mean)
    assert len(set(rows)) == 5
    batch.retract()
    assert batch.choose(1) == first


def test_the_number_of_an_improvement_is_in_units_of_the_outcome():
    z = candidates(150)
    y = outcome_of(z)

    def improvement(scale):
        kernel = KERNEL.model_copy(
            update={name: scale**2 * getattr(KERNEL, name) for name in ("signal_variance", "noise_variance")}
            | {"mean": scale * KERNEL.mean}
        )
        algorithm = Ei(z, AlgorithmSettings(kernel, 1, 0, 40, noise=NOISE), 2.0)
        for row in (3, 50, 100):
            algorithm.observe(row, scale * float(y[row]))
        choice = algorithm.choose(1)
        return choice.row, algorithm.expected_improvement(choice, 1)

    row, value = improvement(1.0)
    assert value == pytest.approx(np.exp(values({"name": "ei"}, z, [3, 50, 100], y[[3, 50, 100]], 1).max()), rel=1e-9)
    assert improvement(1e6) == (row, pytest.approx(1e6 * value, rel=1e-9))


@pytest.mark.parametrize("body", NAMES, ids=str)
def test_nothing_observed_is_a_tie_of_all_rows(body):
    choice = build(body, candidates(150)).choose(1)
    assert choice.ties == 150
    assert choice.mean == KERNEL.mean


def test_outcomes_that_leave_no_doubt_still_give_a_number():
    """All rows are one point: after 30 equal outcomes almost no variance is left, and the logarithm stays finite."""
    z = np.zeros((20, 2))
    algorithm = Ei(
        z, AlgorithmSettings(wire.Kernel(lengthscale=1.0, signal_variance=1.0, noise_variance=1e-12), 1, 0, 40), 2.0
    )
    for row in range(20):
        algorithm.observe(row, 5.0)
    choice = algorithm.choose(1)
    assert np.isfinite(choice.acquisition)
    assert algorithm.expected_improvement(choice, 1) >= 0


def test_it_learns_as_gp_ucb_does_in_single_precision_in_half_the_memory():
    z = candidates(300)
    assert isinstance(build({"name": "ei"}, z), Learner)
    double, single = (spec_of({"name": "ei", "precision": precision}) for precision in ("double", "single"))
    assert memory_of(single, 10**6, 5, 50) < 0.6 * memory_of(double, 10**6, 5, 50)
    other = GpUcb(z, AlgorithmSettings(KERNEL, 1, 0, 40, noise=NOISE), 0.05)
    algorithms = [build({"name": "ei", "precision": precision}, z) for precision in ("double", "single")]
    y = outcome_of(z)
    for algorithm, row in itertools.product([*algorithms, other], range(0, 300, 30)):
        algorithm.observe(row, float(y[row]))
    assert algorithms[0].choose(1) == algorithms[1].choose(1)
    assert algorithms[0].best(np.arange(300)) == other.best(np.arange(300))


@pytest.mark.parametrize("body", [{"name": "ei"}, {"name": "gp_ucb", "nugget": "out"}], ids=str)
def test_a_promise_without_a_theorem_is_refused(body):
    with pytest.raises(ValueError, match=r"stop\.improvement"):
        wire.RunSpec.model_validate(
            {"curator_url": "http://127.0.0.1:1", "study_id": "std_0123456789abcdef", "algorithm": body}
            | {"stop": {"improvement": 0.1}}
        )


def test_hyper_parameters_are_fitted_as_for_gp_ucb():
    z = candidates(150)
    y, fit = outcome_of(z), wire.Fit(every=5, starts=1)
    algorithms = [
        build_algorithm(
            spec_of({"name": name}), z, AlgorithmSettings(None, sign=1, seed=0, capacity=40, initial=8, fit=fit)
        )
        for name in ("ei", "gp_ucb")
    ]
    for algorithm, row in itertools.product(algorithms, range(0, 150, 15)):
        algorithm.observe(row, float(y[row]))
    for algorithm in algorithms:
        algorithm.choose(1)
    assert algorithms[0].fitted == algorithms[1].fitted is not None


def test_without_a_kernel_nothing_is_built():
    with pytest.raises(Invalid, match="kernel"):
        build_algorithm(spec_of({"name": "ei"}), candidates(), AlgorithmSettings(None, sign=1, seed=0, capacity=9))
