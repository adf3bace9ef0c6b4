"""Known rows rebuild everything without noise, and no more than the noise leaves with it."""

from decimal import Decimal

import numpy as np
import pytest
from scipy import stats

from curator_service.releases.attacks import known_rows
from curator_service.releases.attacks.scene import HIDDEN, Scene, draw
from curator_service.releases.mechanisms.mechanism import Identity
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb
from curator_service.releases.mechanisms.row_noise import GaussianMechanism
from tests.curator_service.releases.attacks.attack_data import king_county, planar, public

N, D = 800, 2
REPETITIONS = 9


def box(n=N, d=D, half=10.0, seed=0):
    return np.random.default_rng(seed).uniform(-half, half, size=(n, d))


def scene_of(x, z, public, of=None):
    return Scene(x, z, public, of or len(x))


def attacked(scene, attack=known_rows.attack, seed=3):
    return attack(scene, np.random.default_rng(seed), REPETITIONS)


@pytest.mark.parametrize("attack", [known_rows.attack, known_rows.attack_roughly])
@pytest.mark.parametrize("epsilon", ["0.1", "1000000"], ids=["lift", "project"])
def test_the_published_projection_gives_everything_to_known_rows(attack, epsilon):
    x = king_county()[::20]
    mechanism = PoGpUcb(Decimal(epsilon), 1e-5, 1.0, 6)
    finding = attacked(scene_of(x, draw(mechanism, x), public("random_projection")), attack)
    assert (finding.figure, finding.high) == (1.0, 1.0)
    assert finding.low > 0.99
    assert "rebuilds 100 % of the others" in finding.sentence
    if attack is known_rows.attack:
        assert finding.distance < 1e-9
        assert "An attacker who knows 4 of the records" in finding.sentence


@pytest.mark.parametrize("attack", [known_rows.attack, known_rows.attack_roughly])
def test_the_identity_gives_everything_away(attack):
    x = box()
    finding = attacked(scene_of(x, draw(Identity(), x), public("none")), attack)
    assert (finding.figure, finding.distance) == (1.0, 0.0)
    assert "exact" in finding.sentence
    assert HIDDEN not in finding.sentence  # there is none


def implied_share(law, sd, d, within):
    """How often noise of this law is shorter than ``within``: in closed form."""
    if law == "gaussian":
        return stats.chi2(d).cdf((within / sd) ** 2)
    return stats.gamma(d, scale=sd / np.sqrt(d + 1)).cdf(within)


def check_share(finding, share, others, alpha=1e-9):
    """Whether a median share can be that of ``others`` trials of probability ``share``: ``alpha`` on each side."""
    law = stats.binom(others, share)
    assert law.isf(1 - alpha) <= round(finding.figure * others) <= law.isf(alpha), (finding.figure, share)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("law", ["gaussian", "planar_laplace"])
@pytest.mark.parametrize("sd", [0.01, 0.05])
def test_noise_leaves_the_share_of_rows_that_it_implies(law, sd, rotated):
    """Rows spread a thousand times as wide as the noise: knowing some of them says nothing of another's noise.

    A turn that has to be found out from three noisy rows leaves less.
    """
    rng, x = np.random.default_rng(4), box(n=4_000)
    z = x + (rng.normal(0, sd, x.shape) if law == "gaussian" else planar(rng, x.shape, sd))
    turn = np.linalg.qr(rng.normal(size=(D, D)))[0] if rotated else np.eye(D)
    finding = attacked(scene_of(x, z @ turn, public(law, sd, rotated=rotated)))
    implied = implied_share(law, sd, D, 0.01)
    if rotated:
        assert finding.figure <= implied + 5 * np.sqrt(implied / 4_000)
        assert finding.figure > implied / 50
    else:
        check_share(finding, implied, 4_000 - D - 1)
        assert finding.low <= implied <= finding.high


def test_noise_half_as_wide_as_said_would_be_caught():
    """The control of the test above."""
    rng, x = np.random.default_rng(5), box(n=4_000)
    finding = attacked(scene_of(x, x + rng.normal(0, 0.025, x.shape), public("gaussian", 0.05)))
    with pytest.raises(AssertionError):
        check_share(finding, implied_share("gaussian", 0.05, D, 0.01), 4_000 - D - 1)


@pytest.mark.parametrize("epsilon", ["1", "4", "400"])
def test_the_gaussian_release_gives_what_its_noise_implies(epsilon):
    x = king_county()[::10]
    mechanism = GaussianMechanism(Decimal(epsilon), 1e-5, 1.0)
    sd = mechanism.sd(3)
    finding = attacked(scene_of(x, draw(mechanism, x), public("gaussian", sd)))
    check_share(finding, implied_share("gaussian", sd, 3, 0.01), len(x) - 4)
    # The median guess is off by no more than the noise is long, and by no less than a guess that knew the data's law:
    # King County spreads 15 to 25 km, so shrinking gains little against noise of a kilometre or four.
    # The median of 2,158 lengths has a standard error of 1.2 %.
    length = sd * np.sqrt(stats.chi2(3).median())
    assert 0.75 * length < finding.distance < 1.1 * length


def test_the_interval_covers_what_the_noise_implies_as_often_as_it_says():
    """300 scenes, each with rows, noise and known rows of its own."""
    rng, sd, missed = np.random.default_rng(6), 0.02, 0
    share = implied_share("gaussian", sd, D, 0.01)
    for seed in range(300):
        x = box(n=200, seed=seed)
        scene = scene_of(x, x + rng.normal(0, sd, x.shape), public("gaussian", sd))
        finding = known_rows.attack(scene, rng, 6)
        missed += not finding.low <= share <= finding.high
    assert missed <= stats.binom(300, 0.05).isf(1e-6)


def test_the_attacker_gets_nearer_with_all_it_knows_but_never_nearer_than_the_best_guess():
    """With noise as wide as the data, the least squared error of any linear guess is half of theirs."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(3_000, D))
    scene = scene_of(x, x + rng.normal(size=x.shape), public("gaussian", 1.0))
    finding = attacked(scene)
    best = np.sqrt(0.5 * stats.chi2(D).median())
    assert best * 0.95 < finding.distance < best * 1.05


def test_guesses_that_the_release_does_not_help_are_said_to_be_so():
    rng, x = np.random.default_rng(8), box(half=0.1)
    finding = attacked(scene_of(x, x + rng.normal(0, 50, x.shape), public("gaussian", 50.0)))
    assert "no better than guesses without the release" in finding.sentence
    useful = attacked(scene_of(x, x + rng.normal(0, 0.01, x.shape), public("gaussian", 0.01)))
    assert "no better" not in useful.sentence


def test_fewer_columns_than_features_give_away_combinations_only():
    x = box(d=4)
    mechanism = PoGpUcb(Decimal(1), 1e-5, 1.0, 2)
    finding = attacked(scene_of(x, draw(mechanism, x), public("random_projection")))
    assert finding.figure < 0.05
    assert "But 2 linear combinations of the 4 features of every record are known exactly." in finding.sentence


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_nobody_is_left_to_guess_in_a_study_of_few_rows(n):
    x = box(n=n)
    assert attacked(scene_of(x, x, public("none"))) is None


def test_a_constant_column_and_twins_are_no_trouble():
    x = box()
    x[:, 1] = 0.25
    x[1::2] = x[::2]
    finding = attacked(scene_of(x, x, public("none")))
    assert finding.figure == 1.0
    still = np.zeros((50, 2))
    assert attacked(scene_of(still, still, public("gaussian", 1.0))).figure == 1.0  # without Z as with it


def test_a_part_says_that_it_is_a_part():
    x = box()
    assert "(Tried on 800 of the 21,613 records.)" in attacked(scene_of(x, x, public("none"), of=21_613)).sentence
    assert "Tried" not in attacked(scene_of(x, x, public("none"))).sentence
