"""The marginal likelihood against scipy's density, its gradient against differences, fits against scikit-learn's."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from threadpoolctl import threadpool_limits

from blindopt import wire
from blindopt.errors import NumericalFailure
from blindopt.gp.fitting import ANSWERS_MAX, FitProblem, fit, suggest_hyper, typical_distance
from blindopt.gp.input_noise import averaged, correlations, declared_noise
from blindopt.gp.kernels import KERNELS, kernel_of
from blindopt.gp.marginal_likelihood import Evidence, Hyper, MarginalLikelihood

NO_NOISE = wire.NoiseLaw(family="none")
LAWS = [NO_NOISE, wire.NoiseLaw(family="gaussian", sd=0.3), wire.NoiseLaw(family="planar_laplace", sd=0.3)]
FREE = wire.Fit(priors=wire.FitPriors())
START = Hyper(0.7, 1.5, 0.05)


def evidence(t=12, *, seed=0, declared=0.0, fitted=True, repeats=True, r=2):
    """Outcomes of which two are of one row, and two of different rows with equal coordinates."""
    rng = np.random.default_rng(seed)
    points, rows = rng.uniform(0, 3, size=(t, r)), np.arange(t)
    if repeats:
        points[3], rows[3], points[5] = points[1], rows[1], points[4]
    outcomes = np.sin(2 * points[:, 0]) + 0.3 * rng.normal(size=t) + 2.0
    has_fitted_noise = np.broadcast_to(fitted, t)
    return Evidence(points, rows, outcomes, np.broadcast_to(declared, t), has_fitted_noise)


def covariance(data, kind, law, hyper):
    """Entry by entry, with the kernel and the nugget that the posterior works with."""
    plain = kernel_of(kind, hyper.lengthscale, hyper.signal_variance)
    noise = declared_noise(law)
    model, nugget = averaged(plain, *noise, data.points.shape[1]) if noise else (plain, 0.0)
    t = len(data.rows)
    gram = np.empty((t, t))
    for i in range(t):
        for j in range(t):
            gram[i, j] = model(data.points[i : i + 1], data.points[j : j + 1])[0, 0]
            gram[i, j] += nugget * (data.rows[i] == data.rows[j])
        gram[i, i] += data.declared_noise[i] + hyper.noise_variance * data.has_fitted_noise[i]
    return gram


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.family)
@pytest.mark.parametrize("kind", KERNELS)
def test_the_likelihood_is_the_density_of_a_normal_vector(kind, law):
    """Noise is declared for a few answers, fitted for others, and both for one; at the likeliest mean too."""
    data = evidence(declared=np.linspace(0, 0.4, 12), fitted=[i % 3 > 0 or i == 0 for i in range(12)])
    gram, logs = covariance(data, kind, law, START), np.log([0.7, 1.5, 0.05])
    value, _, mean = MarginalLikelihood(data, kind, law, 1.25).at(logs)
    assert mean == 1.25
    assert value == pytest.approx(multivariate_normal(np.full(12, 1.25), gram).logpdf(data.outcomes), abs=1e-6)
    value, _, mean = MarginalLikelihood(data, kind, law, None).at(logs)
    near = (mean - 0.01, mean, mean + 0.01)
    density = [multivariate_normal(np.full(12, at), gram).logpdf(data.outcomes) for at in near]
    assert value == pytest.approx(density[1], abs=1e-6)
    assert density[1] > max(density[0], density[2])
    if law.family != "none":  # the repeated row shares its nugget
        naive = covariance(replace(data, rows=np.arange(12)), kind, law, START)
        assert abs(multivariate_normal(np.full(12, mean), naive).logpdf(data.outcomes) - value) > 1e-3


@pytest.mark.parametrize("mean", [None, 1.25])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.family)
@pytest.mark.parametrize("kind", KERNELS)
def test_the_gradient_is_that_of_differences(kind, law, mean):
    likelihood = MarginalLikelihood(evidence(declared=np.linspace(0, 0.4, 12)), kind, law, mean)
    for logs in (np.log([0.7, 1.5, 0.05]), np.log([0.2, 0.4, 0.5]), np.log([3.0, 8.0, 1e-3])):
        gradient, steps = likelihood.at(logs)[1], 1e-4 * np.eye(3)
        differences = [(likelihood.at(logs + h)[0] - likelihood.at(logs - h)[0]) / 2e-4 for h in steps]
        np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=1e-5)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("law", ["gaussian", "planar_laplace"])
@pytest.mark.parametrize("kind", KERNELS)
def test_interpolated_correlations_are_those_of_the_averaged_kernel(kind, law):
    distance = np.random.default_rng(1).uniform(0, 8, size=2_000)
    for size in (0.05, 1.0, 5.0):
        kernel = KERNELS[kind](size)
        values, slopes = correlations(kernel, (law, 0.3), 2, distance**2)
        exact = averaged(kernel, law, 0.3, 2)[0](np.zeros((1, 1)), distance[:, None])[0]
        np.testing.assert_allclose(values, exact, atol=1e-8)
        near = [correlations(KERNELS[kind](size * math.exp(h)), (law, 0.3), 2, distance**2)[0] for h in (-1e-4, 1e-4)]
        np.testing.assert_allclose(slopes, (near[1] - near[0]) / 2e-4, atol=1e-6)


def test_many_answers_of_one_row_have_a_likelihood():
    """All distances are zero, and there are more than are computed one by one."""
    data = evidence(40, repeats=False)
    same_point = replace(data, points=np.zeros((40, 2)), rows=np.zeros(40, np.intp))
    value, _, _ = MarginalLikelihood(same_point, "matern_12", LAWS[2], 2.0).at(np.log([1.0, 2.0, 0.5]))
    expected = multivariate_normal(np.full(40, 2.0), 2.0 + 0.5 * np.eye(40)).logpdf(same_point.outcomes)
    assert value == pytest.approx(expected, rel=1e-9)


NU = {"matern_12": 0.5, "matern_32": 1.5, "matern_52": 2.5}


@pytest.mark.parametrize("kind", KERNELS)
def test_the_optimum_is_that_of_scikit_learn(kind):
    """A fixed mean, no priors, the same wide bounds, six starts each."""
    data = evidence(40, seed=4, repeats=False)
    interval = wire.Interval(lower=1e-3, upper=1e3)
    bounds = wire.FitBounds(lengthscale=interval, signal_variance=interval, noise_variance=interval)
    settings = wire.Fit(priors=wire.FitPriors(), bounds=bounds, mean="kernel", starts=6)
    result = fit(FitProblem(data, kind, NO_NOISE, Hyper(1.0, 1.0, 0.1, 2.0), settings, 1.7), [0])
    from sklearn.gaussian_process import GaussianProcessRegressor  # late: every process of tests would load it
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    base = RBF(1.0, (1e-3, 1e3)) if kind == "squared_exponential" else Matern(1.0, (1e-3, 1e3), nu=NU[kind])
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * base + WhiteKernel(0.1, (1e-3, 1e3))
    model = GaussianProcessRegressor(kernel, alpha=0.0, n_restarts_optimizer=5, random_state=0)
    with threadpool_limits(1):
        model.fit(data.points, data.outcomes - 2.0)
    assert result.log_likelihood == pytest.approx(model.log_marginal_likelihood_value_, abs=1e-5)
    peer = np.exp(model.kernel_.theta)  # signal, length, noise
    got = [result.hyper.signal_variance, result.hyper.lengthscale, result.hyper.noise_variance]
    np.testing.assert_allclose(got, peer, rtol=2e-3)


def test_a_fit_finds_what_the_outcomes_were_drawn_from():
    rng = np.random.default_rng(2)
    points = rng.uniform(0, 6, size=(200, 2))
    gram = kernel_of("matern_52", 1.3, 4.0)(points, points) + 0.09 * np.eye(200)
    outcomes = -7.0 + np.linalg.cholesky(gram) @ rng.normal(size=200)
    data = Evidence(points, np.arange(200), outcomes, np.zeros(200), np.ones(200, bool))
    result = fit(FitProblem(data, "matern_52", NO_NOISE, START, wire.Fit(), typical_distance(points, NO_NOISE)), [1])
    assert result.hyper.lengthscale == pytest.approx(1.3, rel=0.2)
    assert result.hyper.signal_variance == pytest.approx(4.0, rel=0.4)
    assert result.hyper.noise_variance == pytest.approx(0.09, rel=0.3)
    assert result.hyper.mean == pytest.approx(-7.0, abs=2.0)
    assert result.at_bounds == ()


def test_declared_noise_is_not_fitted():
    """Declared noise explains what the fitted noise would have to; where all is declared, the start keeps its value."""
    free = fit(FitProblem(evidence(80, repeats=False), "squared_exponential", NO_NOISE, START, FREE, 1.7), [0])
    assert free.hyper.noise_variance == pytest.approx(0.09, rel=0.4)
    data = evidence(80, repeats=False, declared=0.09, fitted=False)
    fixed = fit(FitProblem(data, "squared_exponential", NO_NOISE, START, FREE, 1.7), [0])
    assert fixed.hyper.noise_variance == pytest.approx(START.noise_variance, rel=1e-12)
    assert "noise_variance" not in fixed.at_bounds
    assert fixed.hyper.lengthscale == pytest.approx(free.hyper.lengthscale, rel=0.1)
    wrong = evidence(80, repeats=False, declared=4.0, fitted=False)
    assert fit(FitProblem(wrong, "squared_exponential", NO_NOISE, START, FREE, 1.7), [0]).log_likelihood < -50


def test_priors_pull_and_bounds_hold():
    data = evidence(10)
    near = wire.FitPriors(lengthscale=wire.LogNormal(median=0.05, spread=1e-3))
    result = fit(FitProblem(data, "matern_32", NO_NOISE, START, wire.Fit(priors=near), 1.7), [0])
    assert result.hyper.lengthscale == pytest.approx(0.05, rel=0.02)
    bounds = wire.FitBounds(lengthscale=wire.Interval(lower=5.0, upper=6.0))
    result = fit(FitProblem(data, "matern_32", NO_NOISE, START, wire.Fit(bounds=bounds), 1.7), [0])
    assert 5.0 <= result.hyper.lengthscale <= 6.0
    assert "lengthscale" in result.at_bounds
    bounds = wire.FitBounds(signal_variance=wire.Interval(lower=1.2345678, upper=1.2345678))
    result = fit(FitProblem(data, "matern_32", NO_NOISE, START, wire.Fit(bounds=bounds), 1.7), [0])
    assert result.hyper.signal_variance == pytest.approx(1.2345678, rel=1e-12)
    assert "signal_variance" not in result.at_bounds


def test_the_prior_is_a_normal_density_of_the_logarithm():
    """At the optimum the slope of the likelihood is that of the prior, with the other sign."""
    data, prior = evidence(30), wire.LogNormal(median=2.0, spread=0.2)
    settings = wire.Fit(priors=wire.FitPriors(lengthscale=prior), mean="kernel")
    hyper = fit(FitProblem(data, "squared_exponential", NO_NOISE, START, settings, 1.7), [0]).hyper
    logs = np.log([hyper.lengthscale, hyper.signal_variance, hyper.noise_variance])
    slope = MarginalLikelihood(data, "squared_exponential", NO_NOISE, 0.0).at(logs)[1][0]
    assert slope == pytest.approx((math.log(hyper.lengthscale) - math.log(2.0)) / 0.2**2, rel=0.02)
    assert abs(slope) > 0.5


def test_without_priors_of_the_request_a_given_kernel_is_the_prior():
    data, settings = evidence(6), wire.Fit()
    far = Hyper(0.7, 500.0, 0.05)
    loose = fit(FitProblem(data, "matern_32", NO_NOISE, far, settings, 1.7), [0])
    tight = fit(FitProblem(data, "matern_32", NO_NOISE, far, settings, 1.7, has_kernel=True), [0])
    none = fit(FitProblem(data, "matern_32", NO_NOISE, far, FREE, 1.7, has_kernel=True), [0])
    assert loose.hyper.signal_variance < 5 < tight.hyper.signal_variance < 500
    assert none.log_likelihood >= max(loose.log_likelihood, tight.log_likelihood) - 1e-6


def test_a_fit_is_a_function_of_its_arguments():
    """Twice the same; several starts find what one from far away misses; rounding outcomes changes nothing."""
    data, seed = evidence(25), [3, 25]
    first = fit(FitProblem(data, "squared_exponential", LAWS[1], START, FREE, 1.7), seed)
    assert first == fit(FitProblem(data, "squared_exponential", LAWS[1], START, FREE, 1.7), seed)
    shaken = Evidence(data.points, data.rows, data.outcomes * (1 + 1e-14), data.declared_noise, data.has_fitted_noise)
    again = fit(FitProblem(shaken, "squared_exponential", LAWS[1], START, FREE, 1.7), seed)
    assert first.hyper == again.hyper
    far = Hyper(30.0, 1e-3, 2.0)
    alone = fit(FitProblem(data, "squared_exponential", LAWS[1], far, FREE.model_copy(update={"starts": 1}), 1.7), seed)
    assert first.log_likelihood >= alone.log_likelihood - 1e-6


def test_of_very_many_answers_the_first_are_taken():
    data, distance = evidence(ANSWERS_MAX + 40, repeats=False), 1.7
    settings = wire.Fit(starts=1)
    result = fit(FitProblem(data, "squared_exponential", NO_NOISE, START, settings, distance), [0])
    few = data.first(ANSWERS_MAX)
    assert result == fit(FitProblem(few, "squared_exponential", NO_NOISE, START, settings, distance), [0])
    assert result.log_likelihood > -ANSWERS_MAX


@pytest.mark.parametrize(
    "outcomes", [[1.0, 2.0], [3.0, 3.0, 3.0, 3.0], [0.0, 1e-30, 0.0], [1e120, 0.0, -1e120]], ids=str
)
def test_outcomes_that_tell_nothing_are_refused(outcomes):
    t = len(outcomes)
    data = Evidence(np.eye(t), np.arange(t), np.array(outcomes), np.zeros(t), np.ones(t, bool))
    with pytest.raises(NumericalFailure, match="answers"):
        fit(FitProblem(data, "matern_12", NO_NOISE, START, wire.Fit(), 1.0), [0])


def test_a_covariance_that_cannot_be_factored_is_reported():
    """Two rows with equal coordinates and no noise at all."""
    data = evidence(8, fitted=False)
    with pytest.raises(NumericalFailure, match="factored"):
        MarginalLikelihood(data, "squared_exponential", NO_NOISE, None).at(np.zeros(3))
    with pytest.raises(NumericalFailure, match=r"factored|any start"):
        fit(FitProblem(data, "squared_exponential", NO_NOISE, START, wire.Fit(), 1.0), [0])


def test_the_typical_distance_is_that_of_pairs_without_the_noise():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40_000, 3)) * [1.0, 2.0, 0.5] + 1e6
    assert typical_distance(x, NO_NOISE) == pytest.approx(math.sqrt(2 * 5.25), rel=0.02)
    z = x + 0.8 * rng.normal(size=x.shape)
    law = wire.NoiseLaw(family="gaussian", sd=0.8)
    assert typical_distance(z, law) == pytest.approx(math.sqrt(2 * 5.25), rel=0.02)
    assert typical_distance(z, NO_NOISE) > 1.1 * typical_distance(z, law)
    assert typical_distance(np.ones((5, 2)), NO_NOISE) > 0
    with pytest.raises(NumericalFailure, match="finite"):
        typical_distance(np.array([[1.0], [math.inf]]), NO_NOISE)


def test_a_start_without_a_kernel_is_of_the_size_of_the_data():
    assert suggest_hyper(np.array([1.0, 3.0]), 2.0) == Hyper(0.8, 1.0, 0.01, 2.0)
    assert suggest_hyper(np.array([]), 1.0) == Hyper(0.4, 1.0, 0.01, 0.0)
    assert suggest_hyper(np.array([5.0, 5.0]), 1.0).signal_variance == 1.0


@pytest.mark.parametrize("ends", [(0.012344, 0.0123449), (3e49, 3e49), (0.1 + 0.2, 0.1 + 0.2)])
def test_what_is_fitted_lies_within_the_bounds_to_the_last_bit(ends):
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(12, 2))
    evidence = Evidence(points, np.arange(12), np.sin(5 * points[:, 0]), np.zeros(12), np.ones(12, dtype=np.bool_))
    settings = wire.Fit(bounds={"lengthscale": {"lower": ends[0], "upper": ends[1]}}, starts=2)
    start = Hyper(ends[0], 1.0, 0.01)
    result = fit(FitProblem(evidence, "squared_exponential", wire.NoiseLaw(family="none"), start, settings, 1.0), [0])
    assert ends[0] <= result.hyper.lengthscale <= ends[1]


@pytest.mark.parametrize("r", [1, 2, 7, 60])
def test_the_value_alone_is_that_beside_the_gradient(r):
    """They sum the distances of pairs, and factor their covariance, in two ways: the last bits differ."""
    rng = np.random.default_rng(r)
    likelihood = MarginalLikelihood(evidence(100, r=r), "matern_52", NO_NOISE, None, r)
    draws = [np.concatenate([rng.normal(1.0, 1.0, size=r), [0.1, -2.0]]) for _ in range(20)]
    values = [likelihood.value(logs) for logs in draws]
    np.testing.assert_allclose(values, [likelihood.at(logs)[0] for logs in draws], rtol=1e-10)
    assert np.ptp(values) > 1e-6 * np.abs(values).max(), "other hyper-parameters have another value"
