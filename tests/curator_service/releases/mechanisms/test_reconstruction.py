"""The refutation as a test: d + 1 known rows give back the rest of Algorithm 1's release, and of a sound one do not.

The attacker knows d + 1 rows of X in general position and all of Z, and nothing else.
"""

from decimal import Decimal

import numpy as np
import pytest

from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.attacks.scene import affine, as_rows, draw
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb
from curator_service.releases.mechanisms.row_noise import GaussianMechanism, GaussianProjection, PlanarLaplaceMechanism
from tests.curator_service.releases.attacks.attack_data import king_county


def published(mechanism: PoGpUcb, rows: ScaledRows) -> np.ndarray:
    """With r = d by a fixed projection, because a random square one is now and then close to singular."""
    z = np.empty((rows.n, mechanism.r))
    if mechanism.r == rows.d:
        mechanism.project(rows, np.random.default_rng(1).normal(size=(rows.d, rows.d)), z)
    else:
        mechanism.draw(rows, z)
    return z


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


def test_one_row_fewer_does_not_rebuild():
    """The control of the attack: it needs its d + 1 rows, and does not peek."""
    x = diabetes()
    z = published(PoGpUcb(Decimal(1), 1e-5, 1.0, 2 * x.shape[1]), as_rows(x))
    known_rows = slice(x.shape[1])
    assert np.sqrt(np.mean((affine(z[known_rows], x[known_rows])(z) - x) ** 2)) > 0.01


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
