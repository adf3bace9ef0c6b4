"""GP-UCB against the textbook: the same rows as a slow loop, and the true maximum of the bound at every step."""

import math
import tracemalloc

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.input_noise import averaged
from blindopt.gp.kernels import kernel_of
from blindopt.optimizer.algorithms.factory import NAMES, build_algorithm
from blindopt.optimizer.algorithms.gp.rules import GpUcb
from blindopt.optimizer.algorithms.random_rows import RandomRows
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from tests.shared.blindopt.gp.slow_posterior import candidates, in_long_double, outcome_of, squared_exponential

KERNEL = wire.Kernel(lengthscale=0.8, signal_variance=2.0, noise_variance=1e-3, mean=0.5)


def make(z: np.ndarray, kernel: wire.Kernel = KERNEL, *, sign: int = 1, seed: int = 0, capacity: int = 100) -> GpUcb:
    return GpUcb(z, AlgorithmSettings(kernel, sign, seed, capacity), 0.05)


def named(spec, kernel=KERNEL, *, z=None, sign=1, seed=0, capacity=50, **more):
    settings = AlgorithmSettings(kernel, sign, seed, capacity, **more)
    return build_algorithm(spec, candidates() if z is None else z, settings)


def bound_in_long_double(z, kernel, mean, rows, outcomes, step):
    """Algorithm 2, line 3 from scratch, in 64-bit mantissas."""
    long = np.longdouble
    plain = squared_exponential(kernel.lengthscale, kernel.signal_variance, long)
    mu, variance = in_long_double(z, plain, rows, outcomes, noise=kernel.noise_variance, mean=mean)
    beta = 2 * np.log(long(len(z)) * long(step) ** 2 * long(np.pi) ** 2 / (6 * long(0.025)))
    return mu + np.sqrt(beta * variance), mu, np.sqrt(variance)


def test_the_chosen_row_has_the_true_maximum_of_the_bound_at_every_step():
    """60 steps; the true maximum comes from a refit in extended precision; rows are asked again near the optimum."""
    z = candidates(120)
    y = outcome_of(z)
    algorithm, rows, outcomes = make(z), [3], [float(y[3])]
    algorithm.observe(3, outcomes[0])
    for step in range(1, 61):
        choice = algorithm.choose(step)
        bound, mean, sd = bound_in_long_double(z, KERNEL, 0.5, rows, outcomes, step)
        best = bound.max()
        assert abs(bound[choice.row] - best) <= 1e-9 * abs(best)
        assert choice.acquisition == pytest.approx(float(best), rel=1e-9)
        assert choice.mean == pytest.approx(float(mean[choice.row]), rel=1e-8, abs=1e-9)
        assert choice.sd == pytest.approx(float(sd[choice.row]), rel=1e-6, abs=1e-9)
        rows.append(choice.row)
        outcomes.append(float(y[choice.row]))
        algorithm.observe(*rows[-1:], *outcomes[-1:])
    assert len(set(rows)) < len(rows)


def textbook_rows(z, y, kernel, mean, first, steps):
    """The whole run with a solve from scratch at each step, in doubles."""
    rows = [first]
    for step in range(1, steps + 1):
        seen = z[rows]

        def k(a, b):
            squared = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
            return kernel.signal_variance * np.exp(-squared / (2 * kernel.lengthscale**2))

        inverse = np.linalg.inv(k(seen, seen) + kernel.noise_variance * np.eye(len(rows)))
        cross = k(z, seen)
        mu = mean + cross @ inverse @ (y[rows] - mean)
        variance = kernel.signal_variance - np.einsum("ij,jk,ik->i", cross, inverse, cross)
        beta = 2 * math.log(len(z) * step**2 * math.pi**2 / (6 * 0.025))
        rows.append(int(np.argmax(mu + np.sqrt(beta * np.maximum(variance, 0)))))
    return rows


@pytest.mark.parametrize("noise_variance", [1e-4, 0.05])
@pytest.mark.parametrize("first", [0, 77])
def test_a_run_asks_the_rows_that_a_slow_textbook_loop_asks(first, noise_variance):
    z = candidates()
    kernel = wire.Kernel(lengthscale=0.8, signal_variance=2.0, noise_variance=noise_variance, mean=0.5)
    y = outcome_of(z) + 0.1 * np.random.default_rng(first).normal(size=len(z))
    algorithm, rows = make(z, kernel), [first]
    algorithm.observe(first, float(y[first]))
    for step in range(1, 51):
        rows.append(algorithm.choose(step).row)
        algorithm.observe(rows[-1], float(y[rows[-1]]))
    assert rows == textbook_rows(z, y, kernel, 0.5, first, 50)


def run(algorithm, y, steps):
    choices = []
    for step in range(1, steps + 1):
        choices.append(algorithm.choose(step))
        algorithm.observe(choices[-1].row, float(y[choices[-1].row]))
    return choices


def test_minimization_is_maximization_of_minus_y():
    """The same rows, bounds and moments, with the prior mean turned round as well."""
    z = candidates()
    y = outcome_of(z)
    mirrored = KERNEL.model_copy(update={"mean": -KERNEL.mean})
    assert run(make(z, KERNEL, sign=-1), -y, 30) == run(make(z, mirrored, sign=1), -y, 30)
    assert run(make(z, KERNEL, sign=-1), -y, 30) != run(make(z, KERNEL, sign=1), -y, 30)


def test_the_prior_mean_is_what_is_expected_before_any_outcome():
    assert make(candidates(), sign=1).choose(1).mean == 0.5
    assert make(candidates(), sign=-1).choose(1).mean == -0.5


def test_the_first_choice_is_a_tie_of_all_rows_drawn_by_the_seed():
    z = candidates()
    first = [make(z, seed=seed).choose(1) for seed in range(200)]
    assert {c.ties for c in first} == {300}
    assert {c.sd for c in first} == {math.sqrt(2.0)}
    assert len({c.row for c in first}) > 100  # 146 distinct rows expected of 200 draws
    assert [make(z, seed=seed).choose(1) for seed in range(200)] == first


def test_equal_candidates_tie_for_ever_and_are_drawn_by_seed_and_step():
    z = np.repeat(candidates(40), 2, axis=0)
    y = outcome_of(z)
    choices = run(make(z, seed=5), y, 30)
    assert all(c.ties % 2 == 0 for c in choices)
    assert {c.row % 2 for c in choices} == {0, 1}
    assert choices == run(make(z, seed=5), y, 30)


def test_choosing_changes_nothing_and_depends_on_the_step():
    """A run that goes on after a crash asks what it would have asked."""
    z = candidates()
    algorithm = make(z)
    algorithm.observe(0, 1.0)
    assert algorithm.choose(4) == algorithm.choose(4)
    assert algorithm.choose(400).acquisition > algorithm.choose(4).acquisition


def test_delta_ucb_is_halved():
    """beta_1 = 2 ln(n pi^2 / (6 delta_ucb / 2)): Theorem 3."""
    choice = GpUcb(candidates(), AlgorithmSettings(KERNEL, 1, seed=0, capacity=1), 0.2).choose(1)
    beta = 2 * math.log(300 * math.pi**2 / (6 * 0.1))
    assert choice.acquisition == pytest.approx(0.5 + math.sqrt(beta * 2.0), rel=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_outcome_that_is_no_number_is_refused_and_changes_nothing(bad):
    algorithm, untouched = make(candidates()), make(candidates())
    with pytest.raises(NumericalFailure):
        algorithm.observe(2, bad)
    assert algorithm.choose(1) == untouched.choose(1)


def test_candidates_may_be_a_read_only_file(tmp_path):
    np.save(tmp_path / "z.npy", candidates())
    mapped = np.load(tmp_path / "z.npy", mmap_mode="r")
    y = outcome_of(candidates())
    assert run(make(mapped), y, 10) == run(make(candidates()), y, 10)


# --- by name ---------------------------------------------------------------------------------------


def test_a_request_builds_its_algorithm():
    algorithms = {"gp_ucb": named(wire.GpUcb(name="gp_ucb")), "random": named(wire.RandomRows(name="random"), None)}
    assert {name: type(a) for name, a in algorithms.items()} == {"gp_ucb": GpUcb, "random": RandomRows}
    assert set(algorithms) < set(NAMES)  # bandits/test_factory.py has the others


def test_an_algorithm_made_by_name_has_the_settings_of_the_request():
    z = candidates()
    by_name = named(wire.GpUcb(name="gp_ucb", delta_ucb=0.2), sign=-1, seed=9)
    direct = GpUcb(z, AlgorithmSettings(KERNEL, -1, seed=9, capacity=50), 0.2)
    y = outcome_of(z)
    assert run(by_name, y, 20) == run(direct, y, 20)


def test_gp_ucb_without_a_kernel_is_refused():
    with pytest.raises(Invalid, match="kernel"):
        named(wire.GpUcb(name="gp_ucb"), None)


# --- noise of the release and of the answers ---------------------------------------------------------

GAUSSIAN = wire.NoiseLaw(family="gaussian", sd=0.4)


@pytest.mark.parametrize("family", ["gaussian", "planar_laplace", "gaussian_projection"])
def test_a_release_with_noise_is_read_by_the_averaged_kernel(family):
    """An outcome determines its own row, and of a row with equal coordinates the part that both share."""
    z = np.array([[0.0, 0.0], [0.0, 0.0], [9.0, 9.0]])
    law = GAUSSIAN.model_copy(update={"family": family})
    algorithm = GpUcb(z, AlgorithmSettings(KERNEL, 1, seed=0, capacity=5, noise=law), 0.05)
    algorithm.observe(0, 1.0)
    variance = algorithm.moments(np.arange(3))[1] ** 2
    shared = averaged(
        kernel_of("squared_exponential", 0.8, 2.0), "planar_laplace" if "planar" in family else "gaussian", 0.4, 2
    )
    assert shared[1] > 0.3
    assert variance[0] == pytest.approx(2.0 - 2.0**2 / 2.001, rel=1e-6)
    assert variance[1] == pytest.approx(2.0 - shared[0].variance ** 2 / 2.001, rel=1e-6)
    assert variance[2] == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("family", ["none", "random_projection"])
def test_a_release_of_undeclared_noise_is_read_as_it_is(family):
    z = candidates()
    y = outcome_of(z)
    undeclared = named(wire.GpUcb(name="gp_ucb"), noise=wire.NoiseLaw(family=family))
    assert run(undeclared, y, 20) == run(make(z), y, 20)
    aware = named(wire.GpUcb(name="gp_ucb"), noise=GAUSSIAN)
    assert run(aware, y, 20) != run(make(z), y, 20)
    blind = named(wire.GpUcb(name="gp_ucb", noise_aware=False), noise=GAUSSIAN)
    assert run(blind, y, 20) == run(make(z), y, 20)


def bytes_of(spec, z, capacity):
    """Bytes that an algorithm holds after its first choice."""
    tracemalloc.start()
    try:
        algorithm = named(spec, z=z, capacity=capacity)
        algorithm.observe(0, 1.0)
        algorithm.choose(1)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["gp_ucb", "gp_bucb"])
def test_single_precision_chooses_the_same_rows_and_keeps_half_as_much(name):
    z = candidates(400)
    y = outcome_of(z)
    kind = wire.GpUcb if name == "gp_ucb" else wire.GpBucb
    specs = [kind(name=name), kind(name=name, precision="single")]
    double, single = (named(spec, z=z) for spec in specs)
    assert run(single, y, 40) == run(double, y, 40)
    sizes = [bytes_of(spec, candidates(20_000), 300) for spec in specs]
    assert sizes[0] > 8 * 20_000 * 300
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize(("measured", "private", "expected"), [(0.0, None, 1e-3), (0.5, None, 0.5), (0.0, 2.0, 2.001)])
def test_an_outcome_counts_with_the_noise_of_its_passport(measured, private, expected):
    algorithm = make(candidates())
    privacy = wire.PrivacyNoise(family="laplace", variance=private) if private else wire.PrivacyNoise()
    algorithm.observe(3, 1.0, wire.NoisePassport(privacy=privacy, measurement_variance=measured))
    assert algorithm.moments(np.array([3]))[1][0] ** 2 == pytest.approx(2.0 - 4.0 / (2.0 + expected), rel=1e-9)
