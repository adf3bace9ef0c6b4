"""Linkage undoes the row order where nothing protects it, and as far as the noise allows."""

from decimal import Decimal

import numpy as np
import pytest
from scipy import stats

from curator_service.datasets.scaling import BLOCK_ROWS
from curator_service.releases.attacks import linkage
from curator_service.releases.attacks.scene import Scene, draw, forward
from curator_service.releases.mechanisms.mechanism import Identity
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb
from curator_service.releases.mechanisms.row_noise import GaussianMechanism
from tests.curator_service.releases.attacks.attack_data import king_county, planar, public

X = np.unique(king_county()[::11], axis=0)  # sold twice, a house has a twin
N = len(X)


def linked(x, z, law, of=None, seed=0):
    row_numbers = np.arange(len(x))
    return linkage.attack(Scene(x, z, law, of or len(x)), z, row_numbers, np.random.default_rng(seed))


@pytest.mark.parametrize("mechanism", [PoGpUcb(Decimal(1), 1e-5, 1.0, r) for r in (2, 3, 6)] + [Identity()], ids=repr)
def test_every_person_is_found_where_nothing_protects_the_order(mechanism):
    family = "none" if isinstance(mechanism, Identity) else "random_projection"
    finding = linked(X, draw(mechanism, X), public(family))
    assert finding.figure == finding.high == 1.0
    assert "the candidate of 100 % of them" in finding.sentence
    assert f"among {N:,} candidates" in finding.sentence


def simulated_share(law, sd, x, runs=4):
    """The oracle: noise drawn anew, the nearest row by its definition."""
    rng, right = np.random.default_rng(1), []
    for _ in range(runs):
        z = x + (rng.normal(0, sd, x.shape) if law == "gaussian" else planar(rng, x.shape, sd))
        nearest = (np.sum(x**2, axis=1)[:, None] + np.sum(z**2, axis=1) - 2 * x @ z.T).argmin(axis=1)
        right.append(np.mean(nearest == np.arange(len(x))))
    return float(np.mean(right))


@pytest.mark.parametrize("epsilon", ["1", "4", "20"])
def test_a_gaussian_release_is_linked_as_far_as_its_noise_allows(epsilon):
    mechanism = GaussianMechanism(Decimal(epsilon), 1e-5, 1.0)
    sd = mechanism.sd(3)
    finding = linked(X, draw(mechanism, X), public("gaussian", sd))
    share = simulated_share("gaussian", sd, X)
    hits = round(finding.figure * linkage.TARGETS)
    # 1e-9 on each side, and a tenth for the oracle's own error
    law = [stats.binom(linkage.TARGETS, min(1, share * factor)) for factor in (0.9, 1.1)]
    assert law[0].isf(1 - 1e-9) <= hits <= law[1].isf(1e-9)


def test_half_the_noise_would_be_noticed():
    """The control of the test above."""
    sd = GaussianMechanism(Decimal(4), 1e-5, 1.0).sd(3)
    z = X + np.random.default_rng(2).normal(0, sd / 2, X.shape)
    hits = round(linked(X, z, public("gaussian", sd)).figure * linkage.TARGETS)
    assert hits > stats.binom(linkage.TARGETS, 1.1 * simulated_share("gaussian", sd, X)).isf(1e-9)


def test_rows_in_another_order_are_found_at_their_places_across_blocks():
    rng = np.random.default_rng(3)
    whole = rng.normal(size=(2 * BLOCK_ROWS + 100, 2))
    row_numbers = rng.permutation(len(whole))[:500]
    scene = Scene(whole[row_numbers], whole[row_numbers], public("none"), len(whole))
    finding = linkage.attack(scene, whole, row_numbers, rng)
    assert finding.figure == 1.0
    assert "Tried" not in finding.sentence  # it looked through all rows
    wrong = linkage.attack(scene, whole, (row_numbers + 1) % len(whole), rng)
    assert wrong.figure == 0.0


def test_the_nearest_row_is_the_nearest():
    rng = np.random.default_rng(4)
    where, whole = rng.normal(size=(20, 3)), rng.normal(size=(BLOCK_ROWS + 7, 3))
    row, distance = linkage.nearest(where, whole)
    brute = np.array([np.linalg.norm(whole - point, axis=1) for point in where])
    assert row.tolist() == brute.argmin(axis=1).tolist()
    np.testing.assert_allclose(distance, brute.min(axis=1), rtol=1e-12)


def test_very_noisy_rows_are_linked_no_better_than_blindly():
    z = X + np.random.default_rng(5).normal(0, 1e4, X.shape)
    finding = linked(X, z, public("gaussian", 1e4))
    assert finding.low <= 1 / N <= finding.high
    assert finding.figure < 0.03


@pytest.mark.parametrize(
    ("n", "family", "applies"), [(1, "none", False), (2, "none", True), (2, "random_projection", False)]
)
def test_few_rows(n, family, applies):
    assert (linked(X[:n], X[:n], public(family)) is not None) == applies


# --- the way is chosen on some people and judged on others ------------------------------------------------------


def noise_alone(seed, n=60):
    """A release that has nothing to do with its rows: whoever links is right once in n."""
    rng = np.random.default_rng(seed)
    return Scene(rng.normal(size=(n, 2)), rng.normal(size=(n, 2)), public("gaussian", 1.0, rotated=True), n)


def best_on_the_same(scene, seed):
    """The control: each way is tried on all people, and the best of them told of the same people."""
    chosen = np.random.default_rng(seed).permutation(len(scene.x))
    mine, people = chosen[:3], chosen[3:]
    ways = forward(scene.x[mine], scene.z[mine], shows_x=False, rotated=True)
    assert len(ways) == 2
    return max(np.mean(linkage.nearest(way(scene.x[people]), scene.z)[0] == people) for way in ways.values())


def test_of_noise_alone_the_best_of_two_ways_links_no_more_than_chance():
    """400 releases. Told of those it was chosen on, the best of two would link half as many again as chance."""
    figures, flattered, missed = [], [], 0
    for seed in range(400):
        scene = noise_alone(seed)
        finding = linkage.attack(scene, scene.z, np.arange(60), np.random.default_rng(seed))
        figures.append(finding.figure)
        missed += not finding.low <= 1 / 60 <= finding.high
        flattered.append(best_on_the_same(scene, seed))
    assert stats.ttest_1samp(figures, 1 / 60, alternative="greater").pvalue > 1e-6
    assert stats.ttest_1samp(flattered, 1 / 60, alternative="greater").pvalue < 1e-6
    assert missed < 45  # 20 of 400 may miss; 45 do so once in ten million


def test_the_interval_is_of_the_records_that_were_judged():
    """56 unknown records: 28 choose, 28 are judged; where there is one way, nobody has to choose."""
    assert "has 28 records" in linked(X[:60], X[:60], public("gaussian", 1.0), seed=1).sentence
    assert "has 56 records" in linked(X[:60], X[:60], public("random_projection"), seed=1).sentence
    assert "has 300 records" in linked(X, X, public("gaussian", 1.0)).sentence


@pytest.mark.parametrize("way", ["read", "turned"])
def test_the_best_way_is_still_found(way):
    """Little noise, and a turn that only the known links tell."""
    turn = np.linalg.qr(np.random.default_rng(6).normal(size=(3, 3)))[0] if way == "turned" else np.eye(3)
    x = X - X.mean(axis=0)
    z = (x + np.random.default_rng(7).normal(0, 1e-3, x.shape)) @ turn
    assert linked(x, z, public("gaussian", 1e-3, rotated=way == "turned")).figure > 0.9
