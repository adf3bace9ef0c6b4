"""Near ties: which candidates are equal by each version of the engine, against all values computed one by one."""

import numpy as np
import pytest

from blindopt.gp.acquisition import Tolerance, UpperConfidenceBound
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.parts import Part
from blindopt.gp.posterior import Posterior
from tests.shared.blindopt.gp.test_posterior import PRECISIONS, in_long_double

KERNEL, NOISE, MEAN, STEPS = SquaredExponential(0.5, 4.0), 1e-4, 3.0, 24
QUANTUM = 1e-10 * 2.0  # prior standard deviations


def dispersed(n=400):
    """Candidates whose noise is 20 length-scales: most are far from all others. Outcomes below the prior mean."""
    rng = np.random.default_rng(0)
    z = rng.uniform(size=(n, 2)) + rng.normal(scale=10.0, size=(n, 2))
    return z, MEAN - rng.uniform(0.0, 3.0, size=n)


def close():
    """Triples of candidates so near each other that their bounds differ by about a quantum, or by nothing."""
    rng = np.random.default_rng(1)
    z = np.repeat(rng.uniform(size=(100, 2)), 3, axis=0) * 2 + 5e-11 * rng.integers(0, 2, size=(300, 2))
    return z, np.sin(4 * z).sum(axis=1)


def build(z, dtype=np.float64, **options):
    options = {"capacity": STEPS + 1, "nugget": 0.0} | options
    return Posterior(z, KERNEL, noise_variance=NOISE, prior_mean=MEAN, dtype=dtype, **options)


def by_bound(posterior, step):
    return UpperConfidenceBound(20.0 + step, posterior.nugget)


def by_improvement(posterior, step):
    return posterior.improvement(1.0)


def draw(step):
    return lambda: np.random.default_rng([3, step])


def walk(posterior, y, rule=by_bound):
    """Choices of a run that starts with row 7, and how many candidates each solved for."""
    choices, solved, solve = [], [0], posterior.solve

    def counting(rows):
        solved[-1] += len(rows)
        return solve(rows)

    posterior.solve = counting
    posterior.observe(7, float(y[7]))
    for step in range(STEPS):
        acquisition = rule(posterior, step)
        solved.append(0)
        choices.append(posterior.argmax(acquisition, draw(step)))
        solved.append(0)
        posterior.observe(choices[-1].row, float(y[choices[-1].row]))
    return choices, solved[1::2]


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("rule", [by_bound, by_improvement])
@pytest.mark.parametrize(("problem", "nugget"), [(dispersed, 0.0), (dispersed, 0.3), (close, 0.0)])
def test_the_equal_ones_are_those_of_the_largest_number_of_quanta_in_each_precision(rule, problem, nugget):
    z, y = problem()
    expected, _ = walk(build(z, nugget=nugget), y, rule)
    for dtype in PRECISIONS:
        assert walk(build(z, dtype, nugget=nugget), y, rule)[0] == expected
    assert max(choice.ties for choice in expected) > (100 if problem is dispersed else 1)
    slow = build(z, nugget=nugget)
    slow.observe(7, float(y[7]))
    for step, choice in enumerate(expected):
        acquisition, every = rule(slow, step), slow.solve(np.arange(len(z)))
        centre = acquisition(np.array([MEAN]), np.array([4.0 + nugget]))
        quantum = 1e-10 * (4.0 + nugget) ** 0.5 if rule is by_bound else 1e-10
        values = acquisition(every.mean, every.variance)
        quanta = np.rint((values - centre) / quantum)
        equal = np.flatnonzero(quanta == quanta.max())
        row = int(equal[draw(step)().integers(len(equal))] if len(equal) > 1 else equal[0])
        assert (choice.row, choice.ties, choice.acquisition) == (row, len(equal), values[row])
        slow.observe(row, float(y[row]))


def test_the_chosen_bound_is_within_a_quantum_of_the_largest_in_long_double():
    z, y = dispersed()
    choices, _ = walk(build(z), y)
    rows = [7]
    for step, choice in enumerate(choices):
        bound = in_long_double(z, KERNEL, rows, y[rows], 20.0 + step, noise=NOISE, mean=MEAN)
        assert 0 <= bound.max() - bound[choice.row] <= 1.01 * QUANTUM
        rows.append(choice.row)


def test_far_candidates_are_not_solved_for_and_by_the_first_rule_they_are():
    z, y = dispersed()
    _, solved = walk(build(z), y)
    _, all_solved = walk(build(z, engine=1), y)
    assert (np.mean(solved) < 3, np.mean(all_solved) > 100) == (True, True)


def test_a_bound_on_rounding_that_is_too_small_is_caught(monkeypatch):
    """The negative control: single precision without its rounding takes other candidates for equal."""
    z, y = close()
    expected, _ = walk(build(z), y)
    monkeypatch.setattr(Part, "_tolerance", lambda *_: Tolerance(0.0, 0.0))
    assert walk(build(z, np.float32), y)[0] != expected
