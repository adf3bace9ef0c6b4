"""f where inputs are known up to noise: against quadrature over the noise, and against dense linear algebra."""

from itertools import pairwise
from math import gamma, pi, sqrt

import numpy as np
import pytest

from blindopt.gp.deblurred import SPREAD_MIN, Deblurred
from blindopt.gp.input_noise import averaged
from blindopt.gp.kernels import KERNELS, Matern52, SquaredExponential
from blindopt.gp.noise_means import CELLS_MAX, DRAWS, Cells, Draws, cells_of, characteristic, noise_means, unit_draws

SD = 0.4
LAWS = ("gaussian", "planar_laplace")


def density(law, sd, r, length):
    """Density of the noise at this distance from 0."""
    if law == "gaussian":
        return np.exp(-0.5 * (length / sd) ** 2) / (2 * pi * sd**2) ** (r / 2)
    a = sqrt(r + 1) / sd
    return a**r * gamma(r / 2) / (2 * pi ** (r / 2) * gamma(r)) * np.exp(-a * length)


def lattice(law, r, sd=SD):
    """Places u (m, r) about 0 and their weights: a midpoint rule, of 12 standard deviations to each side."""
    axis = (np.arange(-600, 600) if r == 1 else np.arange(-120, 120)) + 0.5
    axis = axis * 12 * sd / -axis[0]
    places = np.stack(np.meshgrid(*[axis] * r), axis=-1).reshape(-1, r)
    weights = density(law, sd, r, np.linalg.norm(places, axis=1))
    assert weights.sum() * (axis[1] - axis[0]) ** r == pytest.approx(1, abs=2e-3)
    return places, weights / weights.sum()


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", KERNELS)
def test_the_single_blur_is_the_integral_over_the_noise_of_a_candidate(law, kind):
    kernel = KERNELS[kind](1.5, 2.0)
    single, _ = averaged(kernel, law, SD, 1, draws=1)
    twice, _ = averaged(kernel, law, SD, 1)
    nodes, weights = np.polynomial.legendre.leggauss(300)
    for distance in (0.0, 0.3, 1.0, 4.0):
        at, expected, bends = np.array([[distance]]), 0.0, sorted({-16.0, 0.0, distance, 16.0})
        for low, high in pairwise(bends):
            u = (high + low + (high - low) * nodes) / 2
            values = kernel(u[:, None], at)[:, 0] * density(law, SD, 1, np.abs(u))
            expected += float(weights @ values) * (high - low) / 2
        assert single(np.zeros((1, 1)), at)[0, 0] == pytest.approx(expected, abs=1e-7)
        assert abs(twice(np.zeros((1, 1)), at)[0, 0] - expected) > 1e-4


def test_the_single_blur_of_the_gaussian_law_has_a_closed_form():
    single, _ = averaged(SquaredExponential(1.5, 2.0), "gaussian", SD, 3, draws=1)
    assert single.lengthscale == pytest.approx(sqrt(1.5**2 + SD**2), rel=1e-14)
    assert single.variance == pytest.approx(2.0 * (1.5**2 / (1.5**2 + SD**2)) ** 1.5, rel=1e-14)


def dense(belief, spread):
    """C, Q and a function that returns K1 (t, m), for a squared-exponential kernel and Gaussian noise."""
    l2, variance, r = belief.kernel.lengthscale**2, belief.kernel.variance, belief.r

    def blurred(a, b, times):
        wide = l2 + times * belief.sd**2
        squared = ((a[:, None] - b[None]) ** 2).sum(axis=2)
        return variance * (l2 / wide) ** (r / 2) * np.exp(-0.5 * squared / wide)

    q = blurred(belief.inputs, belief.inputs, 2)
    return q + np.diag(spread + belief.noise), q, lambda places: blurred(belief.inputs, places, 1)


def a_belief(r, kernel=None, law="gaussian", count=9):
    rng = np.random.default_rng(r)
    z = rng.uniform(0, 5, size=(60, r))
    belief = Deblurred(kernel or SquaredExponential(1.2, 2.0), law, SD, r)
    for row in range(count):
        belief.observe(z[row], rng.normal(), 0.01 * (row + 1))
    return z, belief


def test_moments_are_those_of_a_dense_solve():
    z, belief = a_belief(2)
    belief.spread[:] = np.linspace(0.1, 0.9, belief.count)
    gram, q, cross = dense(belief, belief.spread)
    k1 = cross(z)
    mean, variance = belief.moments(belief.single(belief.inputs, z))
    np.testing.assert_allclose(mean, k1.T @ np.linalg.solve(gram, belief.outcomes), atol=1e-12)
    np.testing.assert_allclose(variance, 2.0 - np.diag(k1.T @ np.linalg.solve(gram, k1)), atol=1e-12)
    own = q + np.diag(belief.spread)
    mean, variance = belief.own_moments()
    np.testing.assert_allclose(mean, own @ np.linalg.solve(gram, belief.outcomes), atol=1e-12)
    np.testing.assert_allclose(variance, np.diag(own - own @ np.linalg.solve(gram, own)), atol=1e-12)


def test_before_the_first_outcome_the_moments_are_those_of_the_prior():
    belief = Deblurred(SquaredExponential(1.0, 2.0), "gaussian", SD, 2)
    mean, variance = belief.moments(np.empty((0, 3)))
    assert mean.tolist() == [0, 0, 0]
    assert variance.tolist() == [2, 2, 2]


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("r", [1, 2])
@pytest.mark.parametrize("kernel", [SquaredExponential(1.2, 2.0), Matern52(1.2, 2.0)], ids=["smooth", "matern"])
def test_the_adapted_spread_is_the_variance_of_f_over_the_noise(law, r, kernel):
    """Against sums over a lattice: cells to 2 % of the largest (a margin of 3 sd), draws to 10 %."""
    z, belief = a_belief(r, kernel, law)
    start = belief.spread.copy()
    assert start == pytest.approx(np.full(9, 2.0 - belief.double.variance))
    places, weights = lattice(law, r)
    expected = np.empty(belief.count)
    q = belief.double(belief.inputs, belief.inputs)
    gram = q + np.diag(start + belief.noise)
    for i, centre in enumerate(belief.inputs):
        k1 = belief.single(belief.inputs, centre + places)
        mean = k1.T @ np.linalg.solve(gram, belief.outcomes)
        variance = 2.0 - np.einsum("ij,ij->j", k1, np.linalg.solve(gram, k1))
        own = q[i, i] - q[i] @ np.linalg.solve(gram, q[i])
        of_mean = weights @ mean**2 - (weights @ mean) ** 2
        expected[i] = max(of_mean + max(weights @ variance - own, 0.0), 2.0 * SPREAD_MIN)
    assert np.ptp(expected) > 0.02, "the candidates are alike: the test would show nothing"
    for means_of, tolerance in ((Cells, 0.02), (Draws, 0.1)):
        z, belief = a_belief(r, kernel, law)
        means_of(z, belief).adapt()
        np.testing.assert_allclose(belief.spread, expected, atol=tolerance * expected.max())


def test_the_spread_has_a_floor():
    belief = Deblurred(SquaredExponential(1.0, 4.0), "gaussian", 1e-6, 1)
    belief.observe(np.zeros(1), 0.0, 1e-6)
    belief.adapt(np.zeros(1), np.zeros(1))
    assert belief.spread == pytest.approx([4.0 * SPREAD_MIN])


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("r", "lengthscale"), [(1, 1.2), (2, 1.2), (2, 40.0)])
def test_means_over_cells_are_direct_sums(law, r, lengthscale):
    """At the edges of the box, too, and with a length-scale beyond it."""
    z, belief = a_belief(r, SquaredExponential(lengthscale, 2.0), law)
    rows = np.unique(np.concatenate([np.arange(20), z.argmin(axis=0), z.argmax(axis=0)]))
    cells = Cells(z, belief)
    mean, variance = cells.moments(rows)
    places, weights = lattice(law, r)
    smooth = np.exp(0.5 * mean) + np.sqrt(variance)
    got, logs = cells.mean_at(rows, smooth), cells.log_mean_at(rows, np.log(smooth) - 800.0)
    for index, row in enumerate(rows):
        mean, variance = belief.moments(belief.single(belief.inputs, z[row] + places))
        expected = weights @ (np.exp(0.5 * mean) + np.sqrt(variance))
        assert got[index] == pytest.approx(expected, rel=2e-3)
        assert logs[index] == pytest.approx(np.log(expected) - 800.0, abs=2e-3)


def test_means_over_draws_are_those_of_every_candidate():
    z, belief = a_belief(4)
    draws, rows = Draws(z, belief), np.array([3, 7])
    mean, _ = draws.moments(rows)
    assert mean.shape == (2 * DRAWS,)
    np.testing.assert_allclose(draws.mean_at(rows, mean), mean.reshape(2, DRAWS).mean(axis=1))
    expected = np.log(np.exp(mean).reshape(2, DRAWS).mean(axis=1)) - 900.0
    np.testing.assert_allclose(draws.log_mean_at(rows, mean - 900.0), expected)


@pytest.mark.parametrize("law", LAWS)
def test_draws_have_the_law_of_the_noise(law):
    """In pairs, so that odd moments are exact; lengths and the characteristic function to what 64 draws can do."""
    for r in (1, 2, 5, 20):
        draws = unit_draws(law, r)
        np.testing.assert_allclose(draws[: DRAWS // 2], -draws[DRAWS // 2 :])
        assert (draws**2).mean() == pytest.approx(1.0, abs=0.15)
        waves = np.cos(0.7 * draws).mean()
        assert waves == pytest.approx(float(characteristic(law, 1.0, r, np.array(0.49))), abs=0.06)


def test_few_columns_have_cells_and_many_have_draws():
    for r, kind in ((1, Cells), (3, Cells), (4, Draws)):
        z, belief = a_belief(r)
        assert type(noise_means(z, belief)) is kind
    z, belief = a_belief(2, SquaredExponential(0.005, 1.0))
    belief.sd = 1e-4
    wide = 1e4 * z
    assert np.prod(cells_of(wide, belief)[0], dtype=float) > CELLS_MAX
    assert type(noise_means(wide, belief)) is Draws
