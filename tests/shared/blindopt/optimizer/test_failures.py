"""Queries that fail: declined ones, and outcomes that are the code of a failure."""

import numpy as np
import pytest

import blindopt as bo
from blindopt import wire
from blindopt.optimizer.algorithms.gp import rules
from blindopt.optimizer.algorithms.gp.rules import GpRule, far_below

LAW = wire.NoiseLaw(family="gaussian", sd=0.02)
GRID = np.stack(np.meshgrid(np.linspace(0, 1, 15), np.linspace(0, 1, 15)), axis=-1).reshape(-1, 2)
Y = -((GRID[:, 0] - 0.45) ** 2) - (GRID[:, 1] - 0.45) ** 2 + 0.1 * np.sin(9 * GRID[:, 0])
CORNER = (GRID > 0.5).all(axis=1)  # a quarter of all, where rows fail that promise much


def reported(tell_as, algorithm="ei", seed=0, iterations=25, y=Y, fails=CORNER, **settings):
    """The optimizer after a whole search; None: a failure is declined."""
    noise = LAW if algorithm == "ei_deblurred" else None
    optimizer = bo.Optimizer(
        GRID, algorithm=algorithm, seed=seed, iterations=iterations, initial_rows=5, noise=noise, **settings
    )
    while (proposal := optimizer.propose()) is not None:
        row = proposal.row
        if not fails[row]:
            optimizer.tell(row, y[row])
        elif tell_as is None:
            optimizer.decline(row)
        else:
            optimizer.tell(row, tell_as)
    return optimizer


def share_that_fails(algorithm):
    """Of declined queries, where f rises towards the corner that fails."""
    runs = [reported(None, algorithm, seed, y=Y + 0.3 * GRID.sum(axis=1)) for seed in range(3)]
    return np.mean([CORNER[outcome.row] for optimizer in runs for outcome in optimizer.history])


@pytest.mark.parametrize("algorithm", ["ei", "ei_deblurred"])
def test_a_search_leaves_where_queries_fail(algorithm, monkeypatch):
    """Control: without the probability of success the search stays there."""
    leaves = share_that_fails(algorithm)
    monkeypatch.setattr(GpRule, "_log_success", lambda self, rows: None)
    assert leaves < 0.85 * share_that_fails(algorithm)


@pytest.mark.parametrize("algorithm", ["ei", "ei_deblurred"])
def test_codes_of_failures_ruin_no_search(algorithm, monkeypatch):
    """A tenth fails anywhere. Control: codes that are taken as numbers leave the search behind."""
    fails = np.random.default_rng(4).uniform(size=len(GRID)) < 0.1

    def regret():
        best = [reported(-100.0, algorithm, seed, fails=fails).recommendation().row for seed in range(4)]
        return Y[~fails].max() - Y[best].mean()

    kept_out = regret()
    monkeypatch.setattr(rules, "far_below", lambda reports: [])
    assert kept_out < 0.01
    assert regret() > 3 * kept_out


def test_the_choice_after_failures_is_that_of_the_formula():
    """Improvement times (p0 + sum of k s) / (1 + sum of k), by dense algebra and a given kernel."""
    kernel = wire.Kernel(lengthscale=0.3, signal_variance=1.0, noise_variance=1e-2)
    optimizer = bo.Optimizer(GRID, algorithm={"name": "ei", "optimism": 0.0}, kernel=kernel, fit=None, initial_rows=0)
    good, bad = [3, 40, 111, 200], [224, 220, 195]
    for row in good:
        optimizer.tell(row, Y[row])
    for row in bad:
        optimizer.decline(row)

    def k(a, b):
        return np.exp(-((GRID[a][:, None] - GRID[b][None]) ** 2).sum(axis=2) / (2 * 0.3**2))

    from scipy.stats import norm

    everything = np.arange(len(GRID))
    solved = np.linalg.solve(k(good, good) + 1e-2 * np.eye(4), k(good, everything))
    mean, sd = Y[good] @ solved, np.sqrt(1 - (k(good, everything) * solved).sum(axis=0))
    t = (mean - mean[good].max()) / sd
    chance = (5 / 8 + k(everything, good).sum(axis=1)) / (1 + k(everything, [*good, *bad]).sum(axis=1))
    value = np.log(sd * (norm.pdf(t) + t * norm.cdf(t))) + np.log(chance)
    plain = np.log(sd * (norm.pdf(t) + t * norm.cdf(t)))
    value[[*good, *bad]] = plain[[*good, *bad]] = -np.inf
    proposal = optimizer.propose()
    assert proposal.row == value.argmax() != plain.argmax()
    assert proposal.acquisition == pytest.approx(value.max(), abs=1e-6)


def test_codes_of_failures_count_as_declined_and_are_named():
    """The same choices and estimates as of a search in which they were declined, decided anew after each outcome."""
    by_code, declined = (reported(tell_as, iterations=15) for tell_as in (-100.0, None))
    assert [outcome.row for outcome in by_code.history[:5]] == [outcome.row for outcome in declined.history[:5]]
    again = bo.Optimizer(GRID, algorithm="ei", seed=0, observations=by_code.history)
    same = bo.Optimizer(
        GRID, algorithm="ei", seed=0, observations=[(row, None if y == -100.0 else y) for row, y, *_ in by_code.history]
    )
    np.testing.assert_allclose(again.posterior().mean, same.posterior().mean, atol=1e-6)
    assert again.recommendation().row == same.recommendation().row
    assert not CORNER[by_code.recommendation().row]
    assert not CORNER[by_code.recommendation("all").row] or not (by_code.recommendation("all").mean < -1)
    count = sum(outcome.y == -100.0 for outcome in by_code.history)
    assert count >= 2
    text = f"{count} outcomes of -100 lie far below the others, and the search counts them as declined"
    assert any(text in warning for warning in by_code.warnings)
    assert not any("declined" in warning for warning in declined.warnings)
    upside_down = bo.Optimizer(GRID, algorithm="ei", seed=0, maximize=False)
    for row, y, *_ in by_code.history:
        upside_down.tell(row, -y)
    assert any("of 100 lie far above" in warning for warning in upside_down.warnings)


def test_earlier_rules_take_failures_as_numbers():
    optimizer = reported(-100.0, iterations=15, engine=2)
    assert not any("declined" in warning for warning in optimizer.warnings)


@pytest.mark.parametrize("unit", [1.0, 1e-200, 1e200])
def test_what_lies_far_below_does_not_depend_on_units(unit):
    y = [1.0, 1.2, 0.9, 1.1, 1.05, -9.0, 30.0, 0.0]

    def reports(y, passport=None):
        return [(row, unit * value, passport) for row, value in enumerate(y)]

    assert far_below(reports(y)) == [5]  # a good outcome stays, however far it is
    assert far_below(reports([*y[:3], -9.0])) == []  # of too few
    assert far_below(reports([1.0, 1.0, 1.0, 1.0, -9.0])) == []  # equal ones have no spread
    noisy = wire.NoisePassport(measurement_variance=4.0)
    assert far_below([(row, value, noisy) for row, value in enumerate(y)]) == []


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_an_ordinary_search_that_has_drawn_its_outcomes_together_takes_none_for_a_failure(noise):
    """Most of its outcomes are near the best one; without the first rows' own spread half of such runs warned."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, centre = rng.uniform(size=(500, 2)), rng.uniform(size=2)
        f = np.sin(5 * x[:, 0]) - 3 * ((x - centre) ** 2).sum(axis=1)
        optimizer = bo.Optimizer(x, seed=seed, iterations=35)
        for _ in range(40):
            row = optimizer.ask()
            optimizer.tell(row, float(f[row] + noise * rng.standard_normal()))
        assert far_below([(outcome.row, outcome.y, None) for outcome in optimizer.history]) == []
