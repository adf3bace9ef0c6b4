"""Algorithms over few arms against slow forms written as in the paper: same estimates to 1e-8, same arms."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, linalg, stats

from blindopt.gp.features import features
from blindopt.optimizer.algorithms.bandits.laplace_adf import LaplaceAdf, laplace_step
from blindopt.optimizer.algorithms.bandits.ldp_ata import AtaSettings, LdpAta
from blindopt.optimizer.algorithms.bandits.ldp_moma import LdpMoma, MomaSettings, median_of_means, plays_of_theorem
from blindopt.optimizer.algorithms.bandits.ldp_tgp import HeavyTruncation, LaplaceTruncation, LdpTgp
from blindopt.optimizer.algorithms.bandits.thompson import Thompson
from tests.shared.blindopt.optimizer.algorithms.bandits.synthetic_bandits import Bandit

DELTA = 0.1


def shown(algorithm, arms, rewards):
    for arm, reward in zip(arms, rewards, strict=True):
        algorithm.observe(int(arm), float(reward))
    return algorithm


def plays_of(bandit, t, seed=1):
    """Mostly some arms, as an algorithm plays them; Laplace rewards."""
    rng = np.random.default_rng(seed)
    arms = rng.choice(len(bandit.values), size=t, p=rng.dirichlet(np.full(len(bandit.values), 0.2)))
    return arms, np.array([bandit.reward(arm) for arm in arms])


# --- ATA -------------------------------------------------------------------------------------------


def ata_as_written(gram, lam, level, arms, rewards, renewed_every):
    """Every product u y of all t rewards, each time anew; the root by m x m products. Also how many are cut."""
    phi = features(gram)
    m, ridge, root = len(phi), lam * np.eye(len(phi)), np.eye(len(phi)) / math.sqrt(lam)
    for t, arm in enumerate(arms, start=1):
        ridge += np.outer(phi[:, arm], phi[:, arm])
        if t % renewed_every == 0:
            root = linalg.inv(linalg.sqrtm(ridge).real)
            continue
        u = root @ phi[:, arm]
        s = u @ u
        root = (np.eye(m) - (1 - 1 / math.sqrt(1 + s)) / s * np.outer(u, u)) @ root
    np.testing.assert_allclose(root @ ridge @ root.T, np.eye(m), atol=1e-8)
    products = (root @ phi[:, arms]) * rewards
    cut = np.abs(products) > level
    theta = root.T @ np.where(cut, 0.0, products).sum(axis=1)
    variance = np.diag(gram) - (phi**2).sum(axis=0) + lam * np.einsum("ij,ij->j", phi, np.linalg.solve(ridge, phi))
    return phi.T @ theta, variance, int(cut.sum())


@pytest.mark.parametrize("renewed_every", [10**9, 100])
@pytest.mark.parametrize(
    ("lam", "moment", "alpha"), [(1.0, 200.0, 1.0), (14.0, 50.0, 1.0), (1.0, 10.0, 1.0), (1.0, 20.0, 0.5)]
)
def test_ata_keeps_few_rewards_and_has_the_estimates_of_the_pass_over_all(lam, moment, alpha, renewed_every):
    bandit, horizon = Bandit.drawn(3, n=40), 600
    settings = AtaSettings(lam, 1.0, 5.0, moment, alpha=alpha)
    algorithm = LdpAta(bandit.problem(horizon), settings, renewed_every)
    arms, rewards = plays_of(bandit, horizon)
    cuts = 0
    for t in range(1, horizon + 1):
        shown(algorithm, arms[t - 1 : t], rewards[t - 1 : t])
        if t in (1, 31, 32, 33, 99, 100, 101, 257, 600):
            m = algorithm.root.rank
            power = 1 / (1 + alpha)
            level = (moment / math.log(4 * m * horizon / DELTA)) ** power * t ** ((1 - alpha) / (2 * (1 + alpha)))
            mean, variance, cut = ata_as_written(bandit.gram, lam, level, arms[:t], rewards[:t], renewed_every)
            np.testing.assert_allclose(algorithm.mean(), mean, atol=1e-8)
            np.testing.assert_allclose(algorithm.estimates()[1], variance, atol=1e-8)
            cuts += cut
    assert cuts > 0  # else the truncation was not tested
    assert len(algorithm._arms) + len(algorithm._new) < horizon  # nor the pruning


def test_ata_that_forgets_too_much_is_caught():
    """Negative control: rewards up to three times the bound that is safe are forgotten."""

    class Forgetful(LdpAta):
        SAFE = 3.0

    bandit = Bandit.drawn(3, n=40)
    arms, rewards = plays_of(bandit, 600)
    settings = AtaSettings(1.0, 1.0, 5.0, 10.0)
    right = shown(LdpAta(bandit.problem(600), settings), arms, rewards)
    wrong = shown(Forgetful(bandit.problem(600), settings), arms, rewards)
    assert np.abs(right.mean() - wrong.mean()).max() > 1e-4


def test_atas_width_is_that_of_the_theorem():
    """LDP: B (1 + 1/sqrt(1 - veps)) + 4 sqrt(v m ln(4 m T / delta) / lam), whatever t."""
    settings = AtaSettings(2.0, 0.5, 3.0, 70.0)
    expected = 3 * (1 + 1 / math.sqrt(0.5)) + 4 * math.sqrt(70 * 9 * math.log(4 * 9 * 1000 / 0.1) / 2)
    assert [settings.width(t, 9, 1000) for t in (0, 1, 77)] == pytest.approx([expected / 2] * 3)
    assert settings.cut(5, 9, 1000) == pytest.approx(math.sqrt(70 / math.log(4 * 9 * 1000 / 0.1)))
    heavy = AtaSettings(2.0, 1.0, 3.0, 70.0, alpha=0.5)
    noise = 70 ** (2 / 3) * math.log(4 * 9 * 1000 / 0.1) ** (1 / 3) * 64 ** (1 / 6)
    assert heavy.width(64, 9, 1000) == pytest.approx(3 * (1 + 1 / math.sqrt(0.5)) + 4 * 3 / math.sqrt(2) * noise)


# --- TGP -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tight", [False, True])
def test_tgp_is_the_textbook_posterior_of_truncated_rewards(tight):
    bandit, lam, t = Bandit.drawn(4, n=30), 3.0, 300
    law, gram = bandit.law, bandit.gram
    algorithm = LdpTgp(bandit.problem(t), LaplaceTruncation(law, 6.0, DELTA, tight), lam=lam, scale=0.5)
    assert algorithm.choose(1).mean == 0  # nothing observed: mu = 0, and beta_1 is finite
    arms, rewards = plays_of(bandit, t)
    shown(algorithm, arms, rewards)
    levels = law.bound + law.scale * np.log(np.arange(1, t + 1))
    truncated = np.where(np.abs(rewards) <= levels, rewards, 0.0)
    assert 0 < (truncated == 0).sum() < 20
    inner, cross = gram[np.ix_(arms, arms)], gram[:, arms]
    mean = cross @ np.linalg.solve(inner + lam * np.eye(t), truncated)
    variance = 1 - np.einsum("ij,ji->i", cross, np.linalg.solve(inner + lam * np.eye(t), cross.T))
    gain = 0.5 * np.linalg.slogdet(np.eye(t) + inner / lam)[1]
    beta = 6 + (1 if tight else 2) * math.sqrt(2 / lam) * levels[-1] * math.sqrt(gain + math.log(1 / DELTA))
    if tight:
        beta += math.sqrt(((levels + law.scale) ** 2 / np.arange(1, t + 1) ** 2).sum() / lam)
    else:
        moment = law.value_bound**2 + law.noise_bound**2 + 2 * law.scale**2
        beta += math.sqrt(moment * (math.log(t) + 1) / lam)
    estimated, spread, width, amplitude = algorithm.estimates()
    np.testing.assert_allclose(estimated, mean, atol=1e-8)
    np.testing.assert_allclose(spread, variance, atol=1e-8)
    assert (width, amplitude) == pytest.approx((0.5 * beta, math.sqrt(law.noise_variance / lam)))
    index, choice = mean + 0.5 * beta * np.sqrt(variance), algorithm.choose(301)
    assert (choice.row, choice.ties) == (index.argmax(), 1)
    assert (choice.acquisition, choice.mean) == pytest.approx((index.max(), mean[choice.row]), abs=1e-8)
    assert choice.sd == pytest.approx(math.sqrt(law.noise_variance / lam * variance[choice.row]))


def test_tgps_first_levels_have_no_logarithm_of_zero():
    law = Bandit.drawn(0, n=5).law
    rule = LaplaceTruncation(law, 6.0, DELTA)
    assert (rule.level(0), rule.level(1)) == (law.bound, law.bound)
    moment = law.value_bound**2 + law.noise_bound**2 + 2 * law.scale**2
    first = 6 + 2 * math.sqrt(2) * law.bound * math.sqrt(math.log(10)) + math.sqrt(moment)
    assert rule.beta(0, 0.0, 0.0, 1.0) == pytest.approx(first)


@pytest.mark.parametrize("t", [1, 2, 7, 50])
def test_the_bias_that_the_tight_rule_counts_bounds_the_true_bias(t):
    """E |y + Lap(L)| beyond b_t, by quadrature, for the worst y: at most (b_t + L) / t, and not far below."""
    law = Bandit.drawn(0, n=5).law
    rule = LaplaceTruncation(law, 6.0, DELTA, tight=True)
    b, lap = rule.level(t), stats.laplace(scale=law.scale).pdf

    def beyond(y):
        up = integrate.quad(lambda z: z * lap(z - y), b, b + 60 * law.scale)[0]
        return up + integrate.quad(lambda z: z * lap(z + y), b, b + 60 * law.scale)[0]

    worst = max(beyond(y) for y in np.linspace(0, law.bound, 5))
    assert 0.3 * rule.squared_bias(t) ** 0.5 < worst <= rule.squared_bias(t) ** 0.5 * (1 + 1e-9)


def test_tgp_for_heavy_tails_has_the_derived_constants():
    rule = HeavyTruncation(moment=20.0, rkhs_bound=3.0, delta=DELTA, alpha=0.5)
    assert rule.level(81) == pytest.approx(20 ** (2 / 3) * 81 ** (1 / 3))
    parts = 2 * math.sqrt(2 * (1.5 + math.log(10))) + math.sqrt(1.5)
    assert rule.beta(81, 1.5, 0.0, 4.0) == pytest.approx(3 + rule.level(81) / 2 * parts)
    assert rule.beta(0, 0.0, 0.0, 4.0) == 3.0


# --- MoMA ------------------------------------------------------------------------------------------


def moma_as_written(phi, lam, epochs):
    """k ridge regressions, distances in the norm of V, the medoid of medians. ``epochs``: (arm, k rewards) each."""
    ridge = lam * np.eye(len(phi)) + sum(np.outer(phi[:, a], phi[:, a]) for a, _ in epochs)
    k = len(epochs[0][1])
    thetas = [np.linalg.solve(ridge, sum(y[j] * phi[:, a] for a, y in epochs)) for j in range(k)]
    spread = []
    for j in range(k):
        gaps = [thetas[j] - thetas[s] for s in range(k) if s != j]
        spread.append(np.median([math.sqrt(g @ ridge @ g) for g in gaps]) if gaps else 0.0)
    return phi.T @ thetas[int(np.argmin(spread))], ridge


@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_moma_is_the_naive_median_of_ridge_regressions(k):
    bandit, lam = Bandit.drawn(5, n=30), 2.0
    horizon = 25 * k + max(k - 2, 0)  # left-over rounds at the end
    settings = MomaSettings(lam, 0.1, 6.0, bandit.law.noise_moment, plays=k)
    algorithm = LdpMoma(bandit.problem(horizon), settings)
    phi, epochs, rows = features(bandit.gram), [], []
    for step in range(1, horizon + 1):
        choice = algorithm.choose(step)
        rows.append(choice.row)
        y = bandit.reward(choice.row)
        algorithm.observe(choice.row, y)
        if (step - 1) % k == 0:
            epochs.append((choice.row, []))
        epochs[-1][1].append(y)
        if step % k == 0:
            mean, ridge = moma_as_written(phi, lam, epochs)
            np.testing.assert_allclose(algorithm.mean, mean, atol=1e-8)
            variance = lam * np.einsum("ij,ij->j", phi, np.linalg.solve(ridge, phi))
            beta = 6 * (1 + math.sqrt(2)) + 9 * math.sqrt(len(phi) * bandit.law.noise_moment / lam)
            variance += np.diag(bandit.gram) - (phi**2).sum(axis=0)
            np.testing.assert_allclose(algorithm.estimates()[1], variance, atol=1e-8)
            assert algorithm.estimates()[2] == pytest.approx(0.1 * beta)
    played = [set(rows[i : i + k]) for i in range(0, horizon, k)]
    assert all(len(arms) == 1 for arms in played)  # one arm an epoch, and in the rounds left over


def test_momas_medoid_is_not_moved_by_a_wild_column():
    rng = np.random.default_rng(0)
    turned = np.eye(3)
    totals = rng.normal(size=(3, 7)) * 0.1 + 1
    totals[:, 2] = 1e6
    assert np.abs(median_of_means(turned, totals) - 1).max() < 1


@pytest.mark.parametrize(("horizon", "initial", "expected"), [(3, 0, 3), (1, 0, 1), (40, 2, 38), (3_000, 0, 305)])
def test_an_epoch_is_no_longer_than_the_run(horizon, initial, expected):
    """T < k: one epoch of all rounds. 305 for T = 3000 at delta 0.1."""
    bandit = Bandit.drawn(1, n=10)
    settings = MomaSettings(1.0, 1.0, 1.0, 1.0, plays=plays_of_theorem(horizon, DELTA))
    algorithm = LdpMoma(bandit.problem(horizon, initial), settings)
    assert algorithm.plays == expected


def test_initial_rewards_are_no_part_of_an_epoch():
    bandit = Bandit.drawn(1, n=10)
    settings = MomaSettings(1.0, 1.0, 1.0, 1.0, plays=2)
    with_initial = LdpMoma(bandit.problem(12, initial=2), settings)
    without = LdpMoma(bandit.problem(10), settings)
    shown(with_initial, [4, 7, 3, 3], [5.0, 6.0, 1.0, 2.0])
    shown(without, [3, 3], [1.0, 2.0])
    np.testing.assert_array_equal(with_initial.mean, without.mean)
    assert with_initial.mean.any()


def test_a_decline_ends_an_epoch_and_drops_its_rewards():
    """k = 5: two rewards, a decline, five rewards of the same arm: the estimates of one epoch, of the last five."""
    bandit, lam = Bandit.drawn(1, n=10), 2.0
    algorithm = LdpMoma(bandit.problem(100), MomaSettings(lam, 1.0, 1.0, 1.0, plays=5))
    shown(algorithm, [3, 3], [50.0, -40.0])
    algorithm.decline(3)
    shown(algorithm, [3] * 5, [1.0, 9.0, 2.0, 4.0, 3.5])
    mean, _ = moma_as_written(features(bandit.gram), lam, [(3, [1.0, 9.0, 2.0, 4.0, 3.5])])
    np.testing.assert_allclose(algorithm.mean, mean, atol=1e-8)


# --- Laplace likelihood ----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.5, 10.0])
@pytest.mark.parametrize("variance", [1e-6, 0.01, 1.0, 16.0])
@pytest.mark.parametrize("distance", [-30.0, -2.0, -0.1, 0.0, 0.3, 5.0, 50.0])
def test_a_step_has_the_moments_of_the_true_posterior(distance, variance, scale):
    """Against integration of N(f; 0, s2) Laplace(d; f, L), split at the kink."""
    sd = math.sqrt(variance)
    g, h = laplace_step(distance, variance, scale)
    # The posterior is tilted by up to s2 / L: that much further than the prior.
    reach = 12 * sd + variance / scale
    points = sorted({-reach, reach, min(max(distance, -reach), reach), 0.0, -variance / scale, variance / scale})

    def moment(power, centre):
        def density(f):
            return (f - centre) ** power * math.exp(
                -(f**2) / (2 * variance) - (abs(distance - f) - abs(distance)) / scale
            )

        parts = pairwise(points)
        return sum(integrate.quad(density, a, b, epsabs=0, epsrel=1e-12, limit=200)[0] for a, b in parts)

    mass = moment(0, 0)
    mean = moment(1, 0) / mass
    spread = moment(2, mean) / mass
    assert variance * g == pytest.approx(mean, abs=1e-8 * sd)
    assert variance + h * variance**2 == pytest.approx(spread, rel=1e-8)


@pytest.mark.parametrize("distance", [1e3, 1e8, -1e8, 1e150])
@pytest.mark.parametrize("variance", [1e-12, 1.0, 1e12])
def test_a_step_far_out_is_finite_and_has_its_limit(distance, variance):
    g, h = laplace_step(distance, variance, 2.0)
    assert abs(g) <= 0.5 * (1 + 1e-12)
    assert -1 / variance <= h <= 0
    if abs(distance) > 1e3 * max(1, variance):
        assert (g, h) == pytest.approx((math.copysign(0.5, distance), 0.0))


def test_adf_steps_are_of_the_whole_posterior():
    """mu += g c and C += h c c^T: the other arms move with their covariance."""
    bandit = Bandit.drawn(2, n=15)
    algorithm = LaplaceAdf(bandit.problem(9), beta=2.0)
    covariance, mean = bandit.gram * bandit.law.value_bound**2, np.zeros(15)
    for arm, y in [(3, 4.0), (3, -40.0), (9, 0.5)]:
        algorithm.observe(arm, y)
        c = covariance[:, arm].copy()
        g, h = laplace_step(y - mean[arm], c[arm], bandit.law.scale)
        mean, covariance = mean + g * c, covariance + h * np.outer(c, c)
    np.testing.assert_allclose(algorithm.mean, mean, atol=1e-12)
    np.testing.assert_allclose(algorithm.covariance, covariance, atol=1e-12)
    choice = algorithm.choose(4)
    assert choice.acquisition == pytest.approx((mean + 2 * np.sqrt(np.diag(covariance))).max())


# --- Thompson --------------------------------------------------------------------------------------


def test_thompson_draws_from_the_posterior():
    """Mean and covariance over 4,000 steps; each is within five standard errors, at a fixed seed."""
    bandit = Bandit.drawn(6, n=8)
    algorithm = Thompson(bandit.problem(10), scale=0.5)
    arms, rewards = plays_of(bandit, 50)
    shown(algorithm, arms, rewards)
    law, lam = bandit.law, bandit.law.noise_variance / bandit.law.value_bound**2
    counts, sums = np.bincount(arms, minlength=8), np.bincount(arms, rewards, minlength=8)
    covariance = np.linalg.solve(np.eye(8) + bandit.gram * counts / lam, bandit.gram)
    mean = covariance @ sums / lam
    np.testing.assert_allclose(algorithm.estimates()[0], mean, atol=1e-6)
    steps = 4_096
    noise = np.array([algorithm.normals(step) @ algorithm.root.whitened for step in range(steps)])
    draws = 0.5 * math.sqrt(law.noise_variance) * noise
    expected = 0.25 * law.value_bound**2 * covariance
    sds = np.sqrt(np.diag(expected))
    assert (np.abs(draws.mean(axis=0)) < 5 * sds / math.sqrt(steps)).all()
    errors = np.sqrt((np.outer(sds, sds) ** 2 + expected**2) / steps)
    assert (np.abs(draws.T @ draws / steps - expected) < 5 * errors).all()
    rows = {algorithm.choose(step).row for step in range(1, 200)}
    assert len(rows) > 1
    assert algorithm.choose(5) == algorithm.choose(5)


# --- the same choices on another machine -------------------------------------------------------------


def _of_families(stage, law):
    return {
        "ata": LdpAta(stage, AtaSettings(2.0, 0.5, 3.0, 20.0)),
        "tgp": LdpTgp(stage, LaplaceTruncation(law, 6.0, DELTA), lam=3.0, scale=0.5),
        "moma": LdpMoma(stage, MomaSettings(2.0, 0.1, 6.0, law.noise_moment, plays=2)),
        "moma, five plays": LdpMoma(stage, MomaSettings(2.0, 0.1, 6.0, law.noise_moment, plays=5)),
        "adf": LaplaceAdf(stage, beta=2.0),
        "thompson": Thompson(stage, scale=0.5),
    }


@pytest.mark.parametrize("name", ["ata", "tgp", "moma", "moma, five plays", "adf", "thompson"])
def test_choices_do_not_depend_on_the_last_bits_of_covariances(name):
    """Eigenvectors turn with the last bits, as they do with the number of threads and the processor."""
    rng = np.random.default_rng(8)
    bandit = Bandit.drawn(7, n=60)
    shaken = bandit.gram * (1 + 4e-16 * (lambda e: e + e.T)(rng.uniform(-1, 1, size=bandit.gram.shape)))
    signs = features(bandit.gram)[:, 0] * features(shaken)[:, 0]
    assert name == "tgp" or (signs < 0).any()  # else nothing was turned
    plain = _of_families(bandit.problem(80), bandit.law)[name]
    perturbed = _of_families(dataclasses.replace(bandit.problem(80), gram=shaken), bandit.law)[name]
    for step in range(1, 81):
        chosen, again = plain.choose(step), perturbed.choose(step)
        assert (chosen.row, chosen.ties) == (again.row, again.ties), step
        assert chosen.acquisition == pytest.approx(again.acquisition, rel=1e-7, abs=1e-9)
        reward = bandit.reward(chosen.row)
        for algorithm in (plain, perturbed):
            algorithm.observe(chosen.row, reward)


def test_of_equal_medians_the_first_is_taken_however_the_features_are_turned():
    """Of a < b < c < d < e on a line, b and c often have the same, (d - a) / 2. The control: the last bits decide."""
    rng, differ, by_bits = np.random.default_rng(4), 0, 0
    for _ in range(200):
        column, rewards = rng.normal(size=(6, 1)), rng.normal(size=(1, 5))
        turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
        taken, least = [], []
        for turned in (column, turn @ column):
            medoid = median_of_means(turned, rewards)
            taken.append(int(np.linalg.norm(turned @ rewards - medoid[:, None], axis=0).argmin()))
            distances = np.linalg.norm((turned @ rewards)[:, :, None] - (turned @ rewards)[:, None, :], axis=0)
            least.append(int(np.sort(distances, axis=1)[:, 2:4].mean(axis=1).argmin()))
        differ += taken[0] != taken[1]
        by_bits += least[0] != least[1]
    assert differ == 0
    assert by_bits > 5
