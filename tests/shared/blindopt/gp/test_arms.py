"""Few arms, many plays: against the textbook over all plays, and the roots against their definition."""

import math

import numpy as np
import pytest

from blindopt.errors import NumericalFailure
from blindopt.gp.arms import ArmsPosterior
from blindopt.gp.features import Root, features
from blindopt.gp.kernels import SquaredExponential


def gram_of(n=12, lengthscale=0.2):
    x = np.linspace(0, 1, n)[:, None]
    return SquaredExponential(lengthscale)(x, x)


def plays_of(n, t, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(n) / 2)  # a few arms often, others never
    return rng.choice(n, size=t, p=weights), rng.standard_t(3, size=t) * 5


def textbook(gram, lam, arms, rewards):
    """Mean, covariance and gain over the t plays, O(t^3): section 2 of the paper."""
    cross = gram[:, arms]
    inner = gram[np.ix_(arms, arms)] + lam * np.eye(len(arms))
    solved = np.linalg.solve(inner, cross.T)
    gain = 0.5 * np.linalg.slogdet(np.eye(len(arms)) + gram[np.ix_(arms, arms)] / lam)[1]
    return solved.T @ rewards, gram - cross @ solved, gain


@pytest.mark.parametrize("lam", [0.01, 1.0, 300.0])
def test_rank_one_plays_equal_the_textbook_over_all_plays(lam):
    gram = gram_of()
    arms, rewards = plays_of(12, 400)
    posterior = ArmsPosterior(gram, lam)
    for t, (arm, reward) in enumerate(zip(arms, rewards, strict=True), start=1):
        posterior.play(int(arm), float(reward))
        if t in (1, 2, 50, 400):
            mean, covariance, gain = textbook(gram, lam, arms[:t], rewards[:t])
            np.testing.assert_allclose(posterior.mean, mean, atol=1e-8)
            np.testing.assert_allclose(posterior.covariance, covariance, atol=1e-8)
            np.testing.assert_allclose(posterior.variance, np.diag(covariance), atol=1e-8)
            assert posterior.gain == pytest.approx(gain, abs=1e-8)
    np.testing.assert_array_equal(posterior.counts, np.bincount(arms, minlength=12))
    np.testing.assert_allclose(posterior.sums, np.bincount(arms, rewards, minlength=12))
    assert posterior.plays == 400


def test_twenty_thousand_plays_do_not_drift():
    """Against counts and sums alone, by one solve of n x n; the covariance stays symmetric."""
    gram, lam = gram_of(40), 2.0
    arms, rewards = plays_of(40, 20_000)
    posterior = ArmsPosterior(gram, lam)
    for arm, reward in zip(arms.tolist(), rewards.tolist(), strict=True):
        posterior.play(arm, reward)
    counts, sums = np.bincount(arms, minlength=40), np.bincount(arms, rewards, minlength=40)
    covariance = np.linalg.solve(np.eye(40) + gram * counts / lam, gram)
    np.testing.assert_allclose(posterior.covariance, covariance, atol=1e-9)
    np.testing.assert_allclose(posterior.mean, covariance @ sums / lam, atol=1e-8)
    # Not to the last bit: BLAS may fuse a product and a sum in some columns and not in others.
    np.testing.assert_allclose(posterior.covariance, posterior.covariance.T, rtol=0, atol=1e-15)


def test_the_prior_is_not_changed_by_plays():
    gram = gram_of()
    before = gram.copy()
    ArmsPosterior(gram, 1.0).play(3, 1.0)
    Root(features(gram), 1.0).play(3)
    np.testing.assert_array_equal(gram, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e151])
def test_a_reward_that_cannot_be_absorbed_changes_nothing(bad):
    posterior = ArmsPosterior(gram_of(), 1.0)
    before = posterior.covariance.copy()
    with pytest.raises(NumericalFailure):
        posterior.play(2, bad)
    np.testing.assert_array_equal(posterior.covariance, before)
    assert (posterior.plays, posterior.gain, posterior.mean.any()) == (0, 0.0, False)


@pytest.mark.parametrize("lam", [0.0, -1.0, math.inf, math.nan])
def test_a_regulariser_that_is_none_is_refused(lam):
    with pytest.raises(ValueError, match="lam"):
        ArmsPosterior(gram_of(), lam)
    with pytest.raises(ValueError, match="lam"):
        Root(features(gram_of()), lam)


# --- features and roots ----------------------------------------------------------------------------


def test_features_of_all_arms_are_the_kernel():
    gram = gram_of(60)
    phi = features(gram)
    assert len(phi) < 30  # the numerical rank, not n
    np.testing.assert_allclose(phi.T @ phi, gram, atol=1e-8)


def test_features_of_a_dictionary_are_its_projection():
    """phi^T phi = k_S^T K_S^-1 k_S: exact on the dictionary, below K elsewhere."""
    gram, chosen = gram_of(12), np.array([1, 4, 9])
    phi = features(gram, chosen)
    expected = gram[:, chosen] @ np.linalg.solve(gram[np.ix_(chosen, chosen)], gram[chosen])
    np.testing.assert_allclose(phi.T @ phi, expected, atol=1e-10)
    assert (np.diag(gram) - (phi**2).sum(axis=0)).min() > -1e-12
    # Duplicates change nothing.
    again = features(gram, np.array([1, 4, 9, 4, 1]))
    np.testing.assert_allclose(again.T @ again, expected, atol=1e-8)


@pytest.mark.parametrize("renewed_every", [10**9, 64])
def test_a_root_turns_the_ridge_matrix_into_the_identity(renewed_every):
    gram, lam = gram_of(30), 0.5
    phi = features(gram)
    root = Root(phi, lam, renewed_every)
    arms, _ = plays_of(30, 500)
    for arm in arms.tolist():
        root.play(arm)
    counts = np.bincount(arms, minlength=30)
    ridge = (phi * counts) @ phi.T + lam * np.eye(len(phi))
    inner = phi.T @ np.linalg.solve(ridge, phi)
    np.testing.assert_allclose(root.whitened.T @ root.whitened, inner, atol=1e-10)
    np.testing.assert_allclose(root.squared_norms, np.diag(inner), atol=1e-10)
    # What pruning of rewards rests on: every row of U diag(N) U^T is at most 1.
    assert ((root.whitened**2) @ counts).max() <= 1 + 1e-9


def test_ridge_and_exact_posterior_agree_on_all_arms():
    gram, lam = gram_of(30), 2.0
    arms, rewards = plays_of(30, 300)
    posterior, root, sums = ArmsPosterior(gram, lam), Root(features(gram), lam), np.zeros(30)
    for arm, reward in zip(arms.tolist(), rewards.tolist(), strict=True):
        posterior.play(arm, reward)
        root.play(arm)
        sums[arm] += reward
    np.testing.assert_allclose((root.whitened @ sums) @ root.whitened, posterior.mean, atol=1e-6)
    np.testing.assert_allclose(lam * root.squared_norms, posterior.variance, atol=1e-8)


def test_arms_that_are_all_alike_have_one_feature():
    assert features(np.ones((5, 5))).shape == (1, 5)
    with pytest.raises(NumericalFailure, match="kernel"):
        features(np.zeros((3, 3)))
