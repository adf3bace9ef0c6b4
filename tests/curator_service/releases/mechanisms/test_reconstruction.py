"""The refutation as a test: d + 1 known rows give back the rest of Algorithm 1's release, and of a sound one do not.

The attacker knows d + 1 rows of X in general position and all of Z, and nothing else.
"""

import math
from decimal import Decimal

import numpy as np
import pytest

from blindopt.wire import Feature
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.attacks.maps import affine
from curator_service.releases.attacks.scene import as_rows, draw
from curator_service.releases.mechanisms.gaussian import GaussianMechanism
from curator_service.releases.mechanisms.gaussian_projection import GaussianProjection
from curator_service.releases.mechanisms.planar_laplace import PlanarLaplaceMechanism
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb
from tests.curator_service.releases.attacks.attack_data import king_county

N, D = 2_000, 5


def records(scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(0).uniform(-0.5, 0.5, size=(N, D))


def rows_of(x: np.ndarray) -> ScaledRows:
    features = [Feature(column=f"c{j}", lower=-1e9, upper=1e9, scale=1.0) for j in range(D)]
    return ScaledRows(x, list(range(D)), features, np.arange(len(x)))


def released(mechanism, x: np.ndarray) -> np.ndarray:
    z = np.empty((len(x), mechanism.columns(D)))
    mechanism.draw(rows_of(x), z)
    return z


def published(mechanism: PoGpUcb, rows: ScaledRows) -> np.ndarray:
    """With r = d by a fixed projection, because a random square one is now and then close to singular."""
    z = np.empty((rows.n, mechanism.r))
    if mechanism.r == rows.d:
        mechanism.project(rows, np.random.default_rng(1).normal(size=(rows.d, rows.d)), z)
    else:
        mechanism.draw(rows, z)
    return z


def affine_attack(known_x: np.ndarray, known_z: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The affine map from Z to X that fits the known rows, applied to every row."""
    back, *_ = np.linalg.lstsq(known_z - known_z.mean(axis=0), known_x - known_x.mean(axis=0))
    return known_x.mean(axis=0) + (z - known_z.mean(axis=0)) @ back


def rms_error(x: np.ndarray, guess: np.ndarray) -> float:
    return math.sqrt(np.mean((x - guess) ** 2))


@pytest.mark.parametrize(("scale", "branch"), [(1e6, "project"), (1.0, "lift")])
@pytest.mark.parametrize("r", [D, 2 * D])
def test_six_known_rows_of_five_features_reconstruct_all_2000(r, scale, branch):
    x = records(scale)
    mechanism = PoGpUcb(Decimal(1), 1e-5, 1.0, r)
    assert mechanism.assess(rows_of(x)).branch == branch
    z = published(mechanism, rows_of(x))
    guess = affine_attack(x[: D + 1], z[: D + 1], z)
    unknown = slice(D + 1, None)
    errors = np.linalg.norm(guess[unknown] - x[unknown], axis=1) / np.linalg.norm(x[unknown], axis=1)
    assert errors.max() < 1e-9


def test_one_row_fewer_does_not_reconstruct():
    """The control of the attack: it needs its d + 1 rows, and does not peek."""
    x = records()
    z = released(PoGpUcb(Decimal(1), 1e-5, 1.0, 2 * D), x)
    guess = affine_attack(x[:D], z[:D], z)
    assert rms_error(x, guess) > 0.01


@pytest.mark.parametrize("epsilon", ["1", "10", "100"])
def test_the_gaussian_release_leaves_the_error_that_its_noise_implies(epsilon):
    """Not only to d + 1 known rows: even the affine map fitted to all 2,000 true rows does no better.

    The least error of any affine guess is sd spread / sqrt(sd^2 + spread^2) per coordinate; 5 % below it is 7 sigma.
    """
    x = records()
    mechanism = GaussianMechanism(Decimal(epsilon), 1e-5, 1.0)
    z = released(mechanism, x)
    sd, spread = mechanism.sd(D), math.sqrt(np.mean((x - x.mean(axis=0)) ** 2))
    implied = sd * spread / math.hypot(sd, spread)
    assert rms_error(x, affine_attack(x, z, z)) > 0.95 * implied
    guess = affine_attack(x[: D + 1], z[: D + 1], z)
    assert rms_error(x[D + 1 :], guess[D + 1 :]) > 0.95 * implied


def guessed_right(mechanism, attempts: int) -> int:
    """How often the column space of Z tells which of two neighbours was released.

    One row of 60 moves by 1e-3 Delta. Z lies in the column space of the centred X.
    """
    x = records()[:60]
    neighbour = x.copy()
    neighbour[17] += 1e-3 / math.sqrt(D)
    spaces = [np.linalg.qr(candidate - candidate.mean(axis=0))[0] for candidate in (x, neighbour)]
    right = 0
    for attempt in range(attempts):
        truth = attempt % 2
        z = released(mechanism, (x, neighbour)[truth])
        outside = [np.linalg.norm(z - space @ (space.T @ z)) for space in spaces]
        right += int(np.argmin(outside) == truth)
    return right


def test_the_column_space_tells_neighbours_apart_every_time():
    """(1, 1e-5)-DP would allow 73 of 100 guesses."""
    assert guessed_right(PoGpUcb(Decimal(1), 1e-5, 1.0, D), 100) == 100


def test_the_column_space_of_a_gaussian_release_tells_nothing():
    """100 fair coins: outside 20 to 80 once in 10^10."""
    assert 20 <= guessed_right(GaussianMechanism(Decimal(1), 1e-5, 1.0), 100) <= 80


def diabetes() -> np.ndarray:
    """442 patients with ten features each, every feature scaled to unit variance."""
    from sklearn.datasets import load_diabetes  # late: every process of tests would load it

    x = load_diabetes().data
    return (x - x.mean(axis=0)) / x.std(axis=0)


@pytest.mark.parametrize("records_of", [king_county, diabetes])
@pytest.mark.parametrize(("epsilon", "branch"), [("1", "lift"), ("1000000", "project")])
@pytest.mark.parametrize("twice", [False, True], ids=["r = d", "r = 2d"])
def test_all_real_records_are_rebuilt_from_d_plus_1_known_ones(records_of, epsilon, branch, twice):
    """Houses and patients: every one, to nine digits."""
    x = records_of()
    n, d = x.shape
    mechanism = PoGpUcb(Decimal(epsilon), 1e-5, 1.0, 2 * d if twice else d)
    assert mechanism.assess(as_rows(x)).branch == branch
    z = published(mechanism, as_rows(x))
    known_rows = np.random.default_rng(2).choice(n, size=d + 1, replace=False)
    off = np.linalg.norm(affine(z[known_rows], x[known_rows])(z) - x, axis=1)
    assert np.max(off / np.linalg.norm(x, axis=1)) < 1e-9


SOUND = {
    "gaussian": lambda d: GaussianMechanism(Decimal(10), 1e-5, 1.0),
    "planar_laplace": lambda d: PlanarLaplaceMechanism(Decimal(10), 1.0),
    "gaussian_projection": lambda d: GaussianProjection(Decimal(10), 1e-5, 1.0, d // 2),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("records_of", [king_county, diabetes])
def test_no_real_record_is_rebuilt_from_d_plus_1_known_ones_where_noise_was_added(records_of, name):
    """The control: the same attack on a sound release, epsilon 10. By its noise, fewer than one row in 10,000."""
    x = records_of()
    mechanism = SOUND[name](x.shape[1])
    z = draw(mechanism, x[:2_000])
    known_rows = np.random.default_rng(3).choice(len(z), size=x.shape[1] + 1, replace=False)
    off = np.linalg.norm(affine(z[known_rows], x[known_rows])(z) - x[:2_000], axis=1)
    assert np.mean(np.delete(off, known_rows) < 0.01) < 0.01
    assert np.median(off) > 0.25 * mechanism.noise(x.shape[1]).sd
