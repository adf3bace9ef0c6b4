"""The choices of ei_deblurred: those of a dense implementation over a lattice of noise, and a function of outcomes."""

from math import inf, log, pi, sqrt

import numpy as np
import pytest
from scipy.special import ndtr

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.gp.noise_means import Cells, Draws
from blindopt.optimizer.algorithms.gp.ei_deblurred import OUTCOMES_MAX, SHORTLIST, EiDeblurred
from blindopt.optimizer.algorithms.settings import AlgorithmSettings

KERNEL = wire.Kernel(lengthscale=1.5, signal_variance=2.0, noise_variance=0.02, mean=0.5)
SD = 0.6
LAW = wire.NoiseLaw(family="planar_laplace", sd=SD)


def settings(**changes):
    values = {"kernel": KERNEL, "sign": 1, "seed": 3, "capacity": 40, "noise": LAW}
    return AlgorithmSettings(**(values | changes))


def candidates(n=60, r=1, seed=0):
    return np.random.default_rng(seed).uniform(0, 8, size=(n, r))


def f(z):
    return 0.5 + 1.5 * np.sin(1.1 * z.sum(axis=1)) + 0.3 * z[:, 0]


class Dense:
    """The rule written again for one column: sums over a lattice of noise, and linear algebra without structure."""

    def __init__(self, z, horizon, exact):
        self.z, self.horizon, self.exact = z[:, 0], horizon, exact
        a = sqrt(2) / SD
        self.u = (np.arange(-300, 300) + 0.5) * (10 * SD / 300)
        self.p = np.exp(-a * np.abs(self.u))
        self.p /= self.p.sum()
        lags = np.arange(-9, 9, 0.02)
        k = np.exp(-0.5 * ((lags[:, None] + self.u) / 1.5) ** 2)
        once = 2.0 * k @ self.p
        twice = np.interp(lags[:, None] + self.u, lags, once, left=0, right=0) @ self.p
        self.once = lambda d: np.interp(d, lags, once, left=0, right=0)
        self.twice = lambda d: np.interp(d, lags, twice, left=0, right=0)
        self.rows, self.y, self.spread = [], [], []

    def solve(self):
        at = self.z[self.rows]
        q = self.twice(at[:, None] - at)
        residual = 0.02 if self.exact else 0.0
        inverse = np.linalg.inv(q + np.diag(self.spread) + (0.02 if not self.exact else residual) * np.eye(len(at)))
        return at, q, inverse, inverse @ (np.array(self.y) - 0.5)

    def f_at(self, places):
        at, _, inverse, dual = self.solve()
        k1 = self.once(places[..., None] - at)
        return k1 @ dual, 2.0 - (k1 @ inverse * k1).sum(axis=-1)

    def observe(self, row, y):
        self.rows.append(row)
        self.y.append(y)
        self.spread.append(2.0 - self.twice(0.0))
        at, q, inverse, _ = self.solve()
        mean, variance = self.f_at(at[:, None] + self.u)
        gap = variance @ self.p - np.diag(q - q @ inverse @ q)
        self.spread = np.maximum(mean**2 @ self.p - (mean @ self.p) ** 2 + np.maximum(gap, 0), 2e-3).tolist()

    def values(self, step):
        mean, variance = self.f_at(self.z[:, None] + self.u)
        mean = mean + 0.5
        if step <= self.horizon / 2:
            beta = 2 * log(len(self.z) * step**2 * pi**2 / (6 * 0.025))
            return (mean + np.sqrt(beta / 2 * variance)) @ self.p
        best = max(self.y)
        if not self.exact:
            _, q, _, dual = self.solve()
            best = 0.5 + ((q + np.diag(self.spread)) @ dual).max()
        sd = np.sqrt(variance + (0.02 if self.exact else 0.0))
        t = (mean + np.sqrt(variance) - best) / sd
        return np.log((sd * (np.exp(-0.5 * t * t) / sqrt(2 * pi) + t * ndtr(t))) @ self.p)


@pytest.mark.parametrize("exact", [True, False])
def test_a_run_is_that_of_a_dense_implementation(exact):
    """Each chosen row is the dense maximum, or within the error of interpolation of it; values agree."""
    z, horizon = candidates(), 12
    algorithm, dense = EiDeblurred(z, settings(exact=exact), horizon), Dense(z, horizon, exact)
    y, chosen = f(z), [5, 31]
    for row in chosen:
        algorithm.observe(row, y[row])
        dense.observe(row, y[row])
    for step in range(1, horizon + 1):
        algorithm.hide(np.array(chosen))
        choice, values = algorithm.choose(step), dense.values(step)
        values[chosen] = -np.inf
        assert choice.acquisition == pytest.approx(values[choice.row], abs=0.02)
        assert values[choice.row] > values.max() - 0.02
        chosen.append(choice.row)
        algorithm.observe(choice.row, y[choice.row])
        dense.observe(choice.row, y[choice.row])
    assert y[chosen].max() > np.quantile(y, 0.95)


def test_draws_choose_among_the_same_rows_as_cells(monkeypatch):
    z = candidates(3 * max(SHORTLIST.values()), 2)
    y = f(z)
    by_cells, by_draws = (EiDeblurred(z, settings(exact=True), 8) for _ in range(2))
    for row in range(12):
        for algorithm in (by_cells, by_draws):
            algorithm.observe(row, y[row])
    first = by_cells.choose(7)
    monkeypatch.setattr("blindopt.gp.noise_means.COLUMNS_MAX", 1)
    second = by_draws.choose(7)
    assert isinstance(by_cells.means, Cells)
    assert isinstance(by_draws.means, Draws)
    assert second.acquisition == pytest.approx(first.acquisition, abs=0.15)
    assert np.linalg.norm(z[second.row] - z[first.row]) < SD


@pytest.mark.parametrize(("engine", "count"), [(2, 256), (3, 64)])
def test_a_version_of_the_rules_averages_over_as_many_candidates_as_it_did(monkeypatch, engine, count):
    z, averaged = candidates(300, 4), []
    moments = Draws.moments
    monkeypatch.setattr(Draws, "moments", lambda self, rows: averaged.append(len(rows)) or moments(self, rows))
    EiDeblurred(z, settings(engine=engine), 8).choose(1)
    assert averaged == [count]


@pytest.mark.parametrize("changes", [{}, {"exact": True}, {"kernel": None, "fit": wire.Fit(every=3)}, {"initial": 6}])
def test_choices_depend_on_the_outcomes_and_not_on_earlier_choices(changes):
    z = candidates(40, 2)
    y, every, last = f(z), EiDeblurred(z, settings(**changes), 12), EiDeblurred(z, settings(**changes), 12)
    for row in range(11):
        last.observe(row, y[row])
    for row in range(11):
        every.choose(row + 1)
        every.observe(row, y[row])
    assert every.choose(12) == last.choose(12)


def test_the_first_row_is_drawn_by_the_seed():
    z = candidates(30, 2)
    rows = {EiDeblurred(z, settings(seed=seed), 10).choose(1).row for seed in range(6)}
    assert len(rows) > 2
    assert EiDeblurred(z, settings(), 10).choose(1).ties == 30


def test_noisy_outcomes_of_a_row_count_as_their_mean():
    z = candidates(30, 2)
    several, single = (EiDeblurred(z, settings(), 10) for _ in range(2))
    for y in (1.0, 2.0, 3.0):
        several.observe(4, y)
    single.observe(4, 2.0, wire.NoisePassport(measurement_variance=0.03))
    several.choose(9)
    single.choose(9)
    sd = several.surrogate.unit.sd
    np.testing.assert_allclose(sd * several.belief.outcomes, [1.5])
    np.testing.assert_allclose(sd**2 * several.belief.noise, [0.02 / 3])
    np.testing.assert_allclose(sd**2 * single.belief.noise, [0.03])


def test_a_noisy_row_may_be_asked_again_and_an_exact_one_has_no_own_value():
    """With much noise in answers and little in the release, the best row is worth another answer."""
    kernel = KERNEL.model_copy(update={"noise_variance": 4.0, "lengthscale": 0.05})
    z = np.arange(4.0)[:, None]
    law = wire.NoiseLaw(family="gaussian", sd=0.01)
    algorithm = EiDeblurred(z, settings(kernel=kernel, noise=law), 4)
    for row, y in enumerate((0.0, 9.0, -9.0, -9.0)):
        algorithm.observe(row, y)
    assert algorithm.choose(3).row == 1


def test_without_a_declared_noise_or_for_too_many_outcomes_ei_is_named():
    with pytest.raises(Invalid, match="choose ei"):
        EiDeblurred(candidates(), settings(noise=wire.NoiseLaw(family="none")), 10)
    with pytest.raises(Invalid, match="at most 500 outcomes: choose ei"):
        EiDeblurred(candidates(), settings(capacity=OUTCOMES_MAX + 1), 10)


def test_estimates_are_those_of_the_posterior_at_candidates():
    z = candidates(30, 2)
    algorithm = EiDeblurred(z, settings(), 10)
    for row in range(5):
        algorithm.observe(row, float(row))
    rows = np.arange(30)
    mean, variance = algorithm.surrogate.posterior.moments(rows)
    mean, sd = 0.5 + sqrt(2.0) * mean, np.sqrt(2.0 * variance)  # the prior has a mean of 0.5 and a variance of 2
    np.testing.assert_allclose(algorithm.moments(rows), [mean, sd])
    choice = algorithm.choose(3)
    assert (choice.mean, choice.sd) == pytest.approx((mean[choice.row], sd[choice.row]))
    assert algorithm.best(rows).mean == pytest.approx(mean.max())


def test_an_improvement_is_expected_in_the_second_half_alone():
    z = candidates()
    algorithm = EiDeblurred(z, settings(), 6)
    for row in range(0, 60, 10):
        algorithm.observe(row, float(f(z)[row]))
    assert algorithm.expected_improvement(algorithm.choose(3), 3) == inf
    choice = algorithm.choose(4)
    assert algorithm.expected_improvement(choice, 4) == pytest.approx(np.exp(choice.acquisition))
