"""The Gaussian release: its noise through the whole path, and what an attacker can tell of two neighbours."""

import math
from decimal import Decimal

import numpy as np
import pytest
from scipy import optimize, stats

from blindopt.errors import NumericalFailure
from blindopt.wire import Feature, NoiseLaw
from curator_service.datasets.scaling import BLOCK_ROWS, ScaledRows
from curator_service.privacy.calibration import gaussian_sd
from curator_service.releases.mechanisms.mechanism import Assessment
from curator_service.releases.mechanisms.row_noise import GaussianMechanism
from tests.scale import scaled

MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests


def rows_of(x: np.ndarray, order: np.ndarray | None = None) -> ScaledRows:
    features = [Feature(column=f"c{j}", lower=-0.5, upper=0.5, scale=1.0) for j in range(x.shape[1])]
    return ScaledRows(x, list(range(x.shape[1])), features, np.arange(len(x)) if order is None else order)


def released(mechanism: GaussianMechanism, rows: ScaledRows) -> np.ndarray:
    out = np.full((rows.n, rows.d), np.nan)
    assert mechanism.draw(rows, out) == Assessment()
    return out


@pytest.fixture(scope="module")
def noise() -> tuple[float, np.ndarray]:
    """Release minus scaled rows, of more than two blocks, shuffled, some rows outside the bounds."""
    rng = np.random.default_rng(0)
    n = 2 * BLOCK_ROWS + 1_000
    x = rng.uniform(-0.7, 0.7, size=(n, 2))
    order = rng.permutation(n)
    mechanism = GaussianMechanism(Decimal(1), 1e-5, 0.5)
    return mechanism.sd(2), released(mechanism, rows_of(x, order)) - np.clip(x, -0.5, 0.5)[order]


def test_release_minus_rows_is_the_noise_that_is_claimed(noise):
    """67,536 draws; noise a tenth too small or too large fails."""
    sd, drawn = noise
    assert stats.kstest(drawn.ravel(), stats.norm(scale=sd).cdf).pvalue > MISTAKEN
    for wrong in (0.9, 1.1):
        assert stats.kstest(wrong * drawn.ravel(), stats.norm(scale=sd).cdf).pvalue < MISTAKEN


@pytest.mark.parametrize("block", range(3))
def test_every_block_has_the_same_noise(noise, block):
    sd, drawn = noise
    part = drawn[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
    assert stats.kstest(part.ravel(), stats.norm(scale=sd).cdf).pvalue > MISTAKEN


def test_no_two_numbers_share_their_noise(noise):
    """Neither across the columns of a row nor across blocks: none repeats, none is correlated."""
    _, drawn = noise
    flat = drawn.ravel()
    assert len(np.unique(np.round(flat, 9))) > 0.99 * flat.size
    first, second = drawn[:BLOCK_ROWS], drawn[BLOCK_ROWS : 2 * BLOCK_ROWS]
    for a, b in [(drawn[:, 0], drawn[:, 1]), (first[:, 0], second[:, 0]), (first[:-1, 1], first[1:, 1])]:
        assert stats.pearsonr(a, b).pvalue > MISTAKEN


def test_two_releases_have_different_noise():
    rows = rows_of(np.zeros((200, 3)))
    mechanism = GaussianMechanism(Decimal(1), 1e-5, 1.0)
    assert (released(mechanism, rows) != released(mechanism, rows)).all()


def test_the_public_law_is_the_calibrated_one():
    mechanism = GaussianMechanism(Decimal("1.5"), 1e-6, 0.25)
    assert mechanism.columns(7) == 7
    assert mechanism.sd(7) == pytest.approx(gaussian_sd(Decimal("1.5"), 1e-6, 0.25, 7), rel=1e-15)
    assert mechanism.noise(7) == NoiseLaw(family="gaussian", sd=mechanism.sd(7))


def test_nothing_in_the_owner_s_report_depends_on_the_data():
    mechanism = GaussianMechanism(Decimal(1), 1e-5, 1.0)
    for x in (np.zeros((5, 2)), np.random.default_rng(1).normal(size=(50, 2))):
        assert mechanism.assess(rows_of(x)) == Assessment()


def test_a_value_that_is_no_number_is_never_released():
    """OpenDP would read it as 0, without a word."""
    x = np.zeros((3, 2))
    x[1, 1] = math.nan
    with pytest.raises(NumericalFailure):
        released(GaussianMechanism(Decimal(1), 1e-5, 1.0), rows_of(x))


# --- audit -----------------------------------------------------------------------------------------


class HalfTheNoise(GaussianMechanism):
    """The negative control."""

    __slots__ = ()

    def sd(self, d: int) -> float:
        return gaussian_sd(self.epsilon, self.delta, self.sensitivity, d) / 2


def epsilon_of(mu: float, delta: float) -> float:
    """The epsilon of mu-Gaussian differential privacy at delta (Dong et al. 2022, Corollary 2.13)."""

    def excess(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return stats.norm.cdf(a) - math.exp(epsilon + stats.norm.logcdf(b)) - delta

    return optimize.brentq(excess, 0, 50) if mu > 0 and excess(0) > 0 else 0.0


def audited_epsilon(mechanism: GaussianMechanism, d: int, trials: int) -> float:
    """Lower bound of the epsilon that the mechanism has, from ``trials`` releases of each of two neighbours.

    The mechanism works row by row, so n equal rows are n releases of one row. The neighbours differ by Delta
    along the diagonal; the attacker guesses by the half-way plane. Clopper-Pearson at 1e-6 a side.
    """
    direction = np.full(d, 1 / math.sqrt(d))
    base = np.full(d, -0.1)
    moved = base + mechanism.sensitivity * direction

    def share_beyond(row: np.ndarray) -> tuple[float, float]:
        z = released(mechanism, rows_of(np.tile(row, (trials, 1))))
        beyond = int(((z - base) @ direction > mechanism.sensitivity / 2).sum())
        interval = stats.binomtest(beyond, trials).proportion_ci(1 - 2e-6, method="exact")
        return interval.low, interval.high

    mu = stats.norm.ppf(share_beyond(moved)[0]) - stats.norm.ppf(share_beyond(base)[1])
    return epsilon_of(mu, mechanism.delta)


def test_the_conversion_of_the_audit_is_the_known_one():
    """sigma_G(1, 1e-5) = 3.7306: Balle & Wang (2018), Theorem 8, by another root finder."""
    assert epsilon_of(1 / 3.730632, 1e-5) == pytest.approx(1.0, abs=1e-5)


def test_no_attack_on_two_neighbours_proves_more_than_epsilon_and_half_the_noise_is_caught():
    """50,000 releases a side at epsilon 1: about 0.8 is proved; with half the noise about 1.75."""
    parameters = Decimal(1), 1e-5, 0.3
    honest = audited_epsilon(GaussianMechanism(*parameters), 2, max(50_000, scaled(10_000)))
    assert 0.6 < honest <= 1.0
    assert audited_epsilon(HalfTheNoise(*parameters), 2, 20_000) > 1.0
