"""Candidates whose outcomes lie at places of less noise: against draws, quadrature and dense algebra."""

from math import pi, sqrt

import numpy as np
import pytest

from blindopt import wire
from blindopt.gp.acquisition import ExpectedImprovement, UpperConfidenceBound
from blindopt.gp.deblurred import Deblurred
from blindopt.gp.input_noise import _mixture, averaged, refined
from blindopt.gp.kernels import KERNELS, Matern32, SquaredExponential
from blindopt.gp.marginal_likelihood import Evidence, MarginalLikelihood
from blindopt.gp.noise_means import Cells, Draws
from blindopt.gp.parts import Threads
from blindopt.gp.posterior import Posterior
from tests.shared.blindopt.gp.test_deblurred import lattice
from tests.shared.blindopt.gp.test_input_noise import noise

SD, SHARPER = 0.9, 0.3
KERNEL = SquaredExponential(1.2, 2.0)
LAW = "planar_laplace"
ROWS = [4, 0, 17, 4, 13, 17, 20, 2]
"""Observed candidates: with repeats, and some of them refined."""
REFINED = [17, 13, 2]


def candidates(n=60, r=2):
    return np.random.default_rng(r).uniform(0, 4, size=(n, r))


def places(z):
    rng = np.random.default_rng(9)
    return {row: z[row] + rng.normal(scale=0.5, size=z.shape[1]) for row in REFINED}


@pytest.mark.parametrize(("r", "other"), [(1, 0.3), (2, 0.1), (6, 0.85)])
def test_the_mean_over_noise_of_two_sizes_is_that_of_draws(r, other):
    """Six standard errors of 40,000 pairs; both candidates with either noise is told apart."""
    rng, at, worst = np.random.default_rng(r), np.zeros((1, r)), np.zeros(2)
    cross, sharp = refined(KERNEL, LAW, SD, other, r)
    differences = noise(LAW, SD, r, 40_000, rng) - noise(LAW, other, r, 40_000, rng)
    for distance in (0.0, 0.5, 1.0, 2.0):
        at[0, 0] = distance
        drawn = KERNEL(differences, at)[:, 0]
        error = 6 * drawn.std() / 200
        zero = np.zeros((1, r))
        assert abs(cross(zero, at)[0, 0] - drawn.mean()) <= error
        wrong = [kernel(zero, at)[0, 0] for kernel in (sharp, averaged(KERNEL, LAW, SD, r)[0])]
        worst = np.maximum(worst, np.abs(wrong - drawn.mean()) / error)
    assert worst[0] > 1
    assert worst[1] > (0 if other == 0.85 else 1)


@pytest.mark.parametrize("kind", ["squared_exponential", "matern_52"])
def test_noise_of_the_same_size_and_next_to_none_are_the_averages_of_before(kind):
    kernel, at = KERNELS[kind](1.2, 2.0), np.linspace(0, 6, 40)[:, None] * [1.0, 0.0]
    zero = np.zeros((1, 2))
    same, _ = refined(kernel, LAW, SD, SD * (1 - 1e-9), 2)
    np.testing.assert_allclose(same(at, zero), averaged(kernel, LAW, SD, 2)[0](at, zero), atol=1e-7)
    cross, sharp = refined(kernel, LAW, SD, 1e-7, 2)
    np.testing.assert_allclose(cross(at, zero), averaged(kernel, LAW, SD, 2, draws=1)[0](at, zero), atol=1e-6)
    np.testing.assert_allclose(sharp(at, zero), kernel(at, zero), atol=2e-6)


def prior(z, at, kernel=KERNEL, sharper=SHARPER, own=0.0):
    """The covariances (n, n) of f at all candidates in long double, from the mixtures over the noise."""
    inputs = np.array([at.get(row, z[row]) for row in range(len(z))]).astype(np.longdouble)
    squared = ((inputs[:, None] - inputs) ** 2).sum(axis=2)
    count = np.add.outer(*[np.isin(np.arange(len(z)), list(at)).astype(int)] * 2)
    mixtures = [
        _mixture(kernel, LAW, SD, z.shape[1]),
        _mixture(kernel, LAW, SD, z.shape[1], other=sharper),
        _mixture(kernel, LAW, sharper, z.shape[1]),
    ]
    means = [sum(p * np.exp(-0.5 * squared / s) for p, s in zip(*mixture, strict=True)) for mixture in mixtures]
    covariances = kernel.variance * np.choose(count, means)
    np.einsum("ii->i", covariances)[:] = kernel.variance + own
    return covariances


def dense(covariances, rows, outcomes, noises, mean):
    """Means and variances of all rows by one Gauss-Jordan elimination in long double."""
    t, long = len(rows), np.longdouble
    gram = covariances[np.ix_(rows, rows)] + np.diag(np.asarray(noises, dtype=long))
    system = np.concatenate([gram, covariances[rows], (np.asarray(outcomes, long) - mean)[:, None]], axis=1)
    for i in range(t):
        system[i] /= system[i, i]
        others = np.arange(t) != i
        system[others] -= np.outer(system[others, i], system[i])
    weights, solved = system[:, -1], system[:, t:-1]
    return mean + covariances[:, rows] @ weights, covariances.diagonal() - np.einsum(
        "ij,ji->i", covariances[:, rows], solved
    )


def a_posterior(z, *, kernel=KERNEL, sharper=SHARPER, own=0.0, executor=None, dtype=np.float64, together=False):
    """A posterior of mixed candidates, with the outcomes that it was shown."""
    model, nugget = averaged(kernel, LAW, SD, z.shape[1])
    posterior = Posterior(
        z,
        model,
        noise_variance=0.01,
        nugget=nugget + own,
        prior_mean=0.7,
        capacity=4,
        executor=executor,
        dtype=dtype,
        refined=refined(kernel, LAW, SD, sharper, z.shape[1]),
    )
    outcomes, noises = np.sin(np.arange(len(ROWS))) * 2, 0.01 * np.arange(1, len(ROWS) + 1)
    if together:
        for row, centre in places(z).items():
            posterior.refine(row, centre)
        posterior.begin(np.array(ROWS), outcomes, noises)
        return posterior, outcomes, noises
    for row, outcome, variance in zip(ROWS, outcomes, noises, strict=True):
        if row in REFINED and row not in posterior.observations.places:
            posterior.refine(row, places(z)[row])
        posterior.observe(row, outcome, float(variance))
    return posterior, outcomes, noises


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("r", "kernel"), [(1, KERNEL), (2, KERNEL), (5, KERNEL), (2, Matern32(1.2, 2.0))])
def test_moments_of_mixed_candidates_are_those_of_the_dense_formula(r, kernel, together):
    z = candidates(24, r)
    posterior, outcomes, noises = a_posterior(z, kernel=kernel, own=0.05, together=together)
    mean, variance = dense(prior(z, places(z), kernel, own=0.05), ROWS, outcomes, noises, 0.7)
    for got in (posterior.solve(np.arange(len(z)))[2:], (posterior.mean, posterior.variance)):
        np.testing.assert_allclose(got[0], mean.astype(float), rtol=0, atol=3e-7)
        np.testing.assert_allclose(got[1], variance.astype(float), rtol=0, atol=3e-7)
    rows = np.array([13, 5, 17, 17])
    np.testing.assert_array_equal(posterior.moments(rows)[0], posterior.mean[rows])
    stale = dense(prior(z, {}, kernel, own=0.05), ROWS, outcomes, noises, 0.7)[0]
    assert np.abs(stale - mean).max() > 0.01, "with the first draw alone: the test would show nothing"


@pytest.mark.parametrize("r", [1, 2, 5])
def test_covariances_of_mixed_candidates_are_positive_and_those_of_another_law_are_not(r):
    """Among 60 candidates that lie close, half of them refined; the control takes the plain kernel for mixed pairs."""
    z = candidates(r=r) / 4
    at = {row: z[row] for row in range(0, 60, 2)}
    covariances = prior(z, at).astype(float)
    assert np.linalg.eigvalsh(covariances).min() > 0
    mixed = np.logical_xor.outer(*[np.isin(np.arange(60), list(at))] * 2)
    covariances[mixed] = KERNEL(z, z)[mixed]
    assert np.linalg.eigvalsh(covariances).min() < -1


def test_a_second_draw_that_says_nothing_changes_nothing_and_one_without_noise_is_the_place():
    """The limits of the noise of second draws: today's posterior, and outcomes at known places."""
    z = candidates()
    plain, nugget = averaged(KERNEL, LAW, SD, 2)
    before = Posterior(z, plain, noise_variance=0.01, nugget=nugget, prior_mean=0.7, capacity=4)
    pair = refined(KERNEL, LAW, SD, SD * (1 - 1e-10), 2)
    after = Posterior(z, plain, noise_variance=0.01, nugget=nugget, prior_mean=0.7, capacity=4, refined=pair)
    for row, outcome in zip(ROWS, np.sin(ROWS), strict=True):
        if row not in after.observations.places:
            after.refine(row, z[row])
        for posterior in (before, after):
            posterior.observe(row, outcome)
    np.testing.assert_allclose(after.mean, before.mean, atol=1e-6)
    np.testing.assert_allclose(after.variance, before.variance, atol=1e-6)

    at = dict(zip(REFINED, places(z).values(), strict=True))
    limit = Posterior(
        z, plain, noise_variance=0.01, nugget=nugget, capacity=4, refined=refined(KERNEL, LAW, SD, 1e-7, 2)
    )
    for row, centre in at.items():
        limit.refine(row, centre)
        limit.observe(row, float(row))
    inputs, single = np.array(list(at.values())), averaged(KERNEL, LAW, SD, 2, draws=1)[0]
    weights = np.linalg.solve(KERNEL(inputs, inputs) + 0.01 * np.eye(3), np.array(REFINED, dtype=float))
    others = np.setdiff1d(np.arange(len(z)), REFINED)
    np.testing.assert_allclose(limit.mean[others], single(z[others], inputs) @ weights, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_choices_of_mixed_candidates_are_the_largest_whatever_the_parts_are(dtype):
    """Queried candidates stay choosable: their own bound is that of their place. The parts never see it."""
    z, chosen = candidates(120), []
    _, outcomes, noises = a_posterior(z)
    mean, variance = dense(prior(z, places(z)), ROWS, outcomes, noises, 0.7)
    for executor in (Threads(), Threads(3, threads=2), Threads(7)):
        posterior, _, _ = a_posterior(z, executor=executor, dtype=dtype)
        for hidden in ([], ROWS, REFINED[:1], np.setdiff1d(np.arange(120), REFINED)):
            hidden = np.unique(hidden).astype(np.intp)
            for acquisition in (
                UpperConfidenceBound(0.0),
                UpperConfidenceBound(4.0),
                ExpectedImprovement(1.0, 4.0, 0.1, 1e-9),
            ):
                choice = posterior.argmax(acquisition, lambda: np.random.default_rng(0), hidden)
                values = acquisition(mean.astype(float), variance.astype(float))
                values[hidden] = -np.inf
                assert values[choice.row] >= values.max() - 1e-6
                chosen.append((choice.row, choice.acquisition, choice.ties))
        assert posterior.best(np.unique(ROWS))[0] == np.unique(ROWS)[mean[np.unique(ROWS)].argmax()]
    assert chosen[: len(chosen) // 3] * 3 == chosen
    assert {row for row, _, _ in chosen} & set(REFINED), "no refined candidate was chosen: the test would show nothing"


def test_the_likelihood_of_mixed_outcomes_is_the_dense_one_with_its_gradient():
    rng, t = np.random.default_rng(3), 14
    points, rows = rng.uniform(0, 4, size=(t, 2)), np.array([*range(t - 2), 0, 1])
    points[-2:] = points[:2]
    is_refined = rows % 2 == 0
    evidence = Evidence(points, rows, rng.normal(size=t), np.full(t, 0.01), np.ones(t, bool), True, is_refined, SHARPER)
    law = wire.NoiseLaw(family=LAW, sd=SD)
    likelihood, logs = MarginalLikelihood(evidence, "squared_exponential", law, 0.3), np.log([1.2, 2.0, 0.05])
    z = dict(enumerate(points[: t - 2]))
    at = {row: z[row] for row in z if row % 2 == 0}
    covariances = prior(points[: t - 2], at, own=0.05)[np.ix_(rows, rows)].astype(float) + 0.01 * np.eye(t)
    off = evidence.outcomes - 0.3
    value = -0.5 * (off @ np.linalg.solve(covariances, off) + np.linalg.slogdet(covariances)[1] + t * np.log(2 * np.pi))
    assert likelihood.value(logs) == pytest.approx(value, abs=1e-6)
    assert likelihood.at(logs)[0] == pytest.approx(value, abs=1e-6)
    for j in range(3):
        step = 1e-4 * np.eye(3)[j]
        slope = (likelihood.value(logs + step) - likelihood.value(logs - step)) / 2e-4
        assert likelihood.at(logs)[1][j] == pytest.approx(slope, rel=1e-4, abs=1e-5)
    plain = MarginalLikelihood(evidence.first(0), "squared_exponential", law, 0.3)
    assert plain.outcomes == 0


@pytest.mark.parametrize("law", ["gaussian", LAW])
@pytest.mark.parametrize("means_of", [Cells, Draws])
def test_a_deblurred_belief_of_mixed_candidates_is_a_dense_solve_and_adapts_to_each_noise(law, means_of):
    z, rng, sharper = candidates(), np.random.default_rng(4), 0.2
    belief = Deblurred(KERNEL, law, 0.4, 2, sharper)
    flags = [False, True, True, False, True, False]
    for row, flag in enumerate(flags):
        belief.observe(z[row], rng.normal(), 0.01 * (row + 1), is_refined=flag)
    kernels = [averaged(KERNEL, law, 0.4, 2)[0], *refined(KERNEL, law, 0.4, sharper, 2)]
    count = np.add.outer(np.array(flags, int), np.array(flags, int))
    q = np.choose(count, [kernel(z[:6], z[:6]) for kernel in kernels])
    singles = [averaged(KERNEL, law, sd, 2, draws=1)[0] for sd in (0.4, sharper)]
    gram = q + np.diag(2.0 - q.diagonal() + belief.noise)

    def k1(at):
        return np.array([singles[flag](z[row : row + 1], at)[0] for row, flag in enumerate(flags)])

    mean, variance = belief.moments(belief.covariances(z))
    np.testing.assert_allclose(mean, k1(z).T @ np.linalg.solve(gram, belief.outcomes), atol=1e-9)
    np.testing.assert_allclose(variance, 2.0 - np.diag(k1(z).T @ np.linalg.solve(gram, k1(z))), atol=1e-9)
    expected = np.empty(6)
    for i, flag in enumerate(flags):
        at, weights = lattice(law, 2, sharper if flag else 0.4)
        cross = k1(z[i] + at)
        mean = cross.T @ np.linalg.solve(gram, belief.outcomes)
        variance = 2.0 - np.einsum("ij,ij->j", cross, np.linalg.solve(gram, cross))
        own = q[i, i] - q[i] @ np.linalg.solve(gram, q[i])
        expected[i] = weights @ mean**2 - (weights @ mean) ** 2 + max(weights @ variance - own, 0.0)
    means_of(z, belief).adapt()
    np.testing.assert_allclose(belief.spread, expected, atol=0.1 * expected.max())
    assert expected[flags].max() < sqrt(0.5) * expected[np.logical_not(flags)].max()


def test_where_records_are_refined_no_candidate_is_expected_where_no_record_is():
    """Uniform records in a box: means of a place given its candidate, by Bayes' rule with the true box.

    The control, without refinement, knows no box, and takes a candidate beyond it for a record there.
    """
    rng, side, sd = np.random.default_rng(5), 10.0, 1.0
    length, angle = rng.gamma(2.0, sd / sqrt(3), 4_000), rng.uniform(0, 2 * pi, 4_000)
    z = rng.uniform(0, side, (4_000, 2)) + length[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    axis = (np.arange(100) + 0.5) * side / 100
    places = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    beyond = np.flatnonzero((z[:, 0] > side + 0.5) & (z[:, 1] > 2) & (z[:, 1] < 8))
    weights = np.exp(-sqrt(3) / sd * np.linalg.norm(z[beyond, None] - places, axis=2))
    expected = weights @ places[:, 0] / weights.sum(axis=1)
    errors = []
    for sharper in (0.4, None):
        cells = Cells(z, Deblurred(SquaredExponential(3.0, 2.0), "planar_laplace", sd, 2, sharper))
        errors.append(np.abs(cells.mean_at(beyond, cells._places[:, 0]) - expected))
        np.testing.assert_allclose(cells.mean_at(np.arange(4_000), np.full(len(cells._places), 3.0)), 3.0, rtol=1e-6)
    assert errors[0].mean() < 0.6 < 1.5 < errors[1].mean()
    assert errors[0].max() < 1.0 < errors[1].min()
