"""No two neighbours are further apart than Delta before the noise: clip, scaling, projection, rounding and all."""

import math
from decimal import Decimal

import numpy as np
import pytest
from scipy import integrate, optimize, stats

from blindopt.errors import NumericalFailure
from blindopt.wire import Feature
from curator_service.datasets.scaling import ScaledRows, rounding_of
from curator_service.privacy import entropy, noise
from curator_service.releases.mechanisms.row_noise import GaussianMechanism, GaussianProjection, PlanarLaplaceMechanism
from tests.curator_service.replaced_noise import forget_the_grid
from tests.curator_service.seeded_noise import replace_release_noise

PAIRS = 10_000
DELTA = 0.3
MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests


def rows_of(x: np.ndarray, features: list[Feature]) -> ScaledRows:
    return ScaledRows(x, list(range(x.shape[1])), features, np.arange(len(x)))


def neighbours(
    d: int, rng: np.random.Generator, worst: np.ndarray, order: int = 2
) -> tuple[np.ndarray, np.ndarray, list[Feature]]:
    """Raw rows, and each moved by Delta in scaled units: at random, along ``worst``, along an axis, at the bounds."""
    lower, upper = -(10.0 ** rng.uniform(-3, 3, d)), 10.0 ** rng.uniform(-3, 3, d)
    unit = 10.0 ** rng.uniform(-2, 2, d)
    features = [
        Feature(column=f"c{j}", lower=a, upper=b, scale=u)
        for j, (a, b, u) in enumerate(zip(lower.tolist(), upper.tolist(), unit.tolist(), strict=True))
    ]
    x = rng.uniform(1.5 * lower, 1.5 * upper, size=(PAIRS, d))
    move = rng.normal(size=(PAIRS, d))
    move[: PAIRS // 4] = worst
    move[PAIRS // 4 : PAIRS // 2] = np.eye(d)[rng.integers(0, d, PAIRS // 4)]
    x[PAIRS // 2 : 3 * PAIRS // 4] = np.where(rng.random((PAIRS // 4, d)) < 0.5, lower, upper)
    move *= DELTA / np.linalg.norm(move, order, axis=1, keepdims=True)
    return x, x + move * unit, features


def furthest(mechanism, x: np.ndarray, y: np.ndarray, features: list[Feature], columns=None, order=2) -> float:
    """The largest distance of two rows of releases of ``x`` and ``y``, by a projection to ``columns`` if given."""

    def drawn(values: np.ndarray) -> np.ndarray:
        out = np.empty((len(values), mechanism.columns(values.shape[1])))
        if columns is None:
            mechanism.draw(rows_of(values, features), out)
        else:
            mechanism.project(rows_of(values, features), columns, out)
        return out

    return float(np.linalg.norm(drawn(x) - drawn(y), order, axis=1).max())


@pytest.fixture
def silent(monkeypatch):
    """Every law without its noise, and Z without the rounding after it."""
    forget_the_grid(monkeypatch)
    replace_release_noise(monkeypatch, lambda law, block: block, noise.GaussianLaw, noise.PlanarLaplaceLaw)


def roundings(x: np.ndarray, features: list[Feature]) -> float:
    """The raw move is made in doubles, too: by less than this it is longer than Delta."""
    unit = np.array([f.unit for f in features])
    return float(4 * 2.0**-53 * np.linalg.norm(np.abs(x).max(axis=0) / unit)) + rounding_of(features)


@pytest.mark.parametrize("d", [1, 2, 7, 20])
@pytest.mark.parametrize("kind", [GaussianMechanism, PlanarLaplaceMechanism])
def test_clip_and_scaling_move_no_two_rows_further_than_delta(silent, kind, d):
    x, y, features = neighbours(d, np.random.default_rng(d), np.ones(d))
    parameters = (Decimal(1), DELTA) if kind is PlanarLaplaceMechanism else (Decimal(1), 1e-5, DELTA)
    apart = furthest(kind(*parameters), x, y, features)
    assert 0.99 * DELTA < apart <= DELTA * (1 + 1e-9) + roundings(x, features)


@pytest.mark.parametrize("d", [1, 2, 7, 200])
def test_clip_and_scaling_move_no_features_further_than_delta_in_total(silent, d):
    """By the sum of the coordinates' moves, whose rounding in doubles is the sum of theirs."""
    x, y, features = neighbours(d, np.random.default_rng(d), np.ones(d), order=1)
    mechanism = PlanarLaplaceMechanism(Decimal(1), DELTA, promise="one_feature")
    apart = furthest(mechanism, x, y, features, order=1)
    rounding = 4 * 2.0**-53 * (np.abs(x).max(axis=0) / [f.unit for f in features]).sum()
    assert 0.99 * DELTA < apart <= DELTA * (1 + 1e-9) + rounding + rounding_of(features, "one_feature")
    assert rounding_of(features, "one_feature") >= rounding_of(features)


@pytest.mark.parametrize(("d", "r"), [(13, 1), (13, 12), (40, 5)])
def test_a_projection_moves_rows_as_far_as_its_columns_do_and_no_further(silent, d, r):
    """The worst direction lies in the columns' span: sqrt(d/r) Delta; and never more, rounding errors and all."""
    columns = np.linalg.qr(np.random.default_rng(r).normal(size=(d, r)))[0]
    mechanism = GaussianProjection(Decimal(1), 1e-5, DELTA, r)
    x, y, features = neighbours(d, np.random.default_rng(d), columns[:, 0])
    y[: PAIRS // 4] = x[: PAIRS // 4] = 0.0
    y[: PAIRS // 4] += DELTA * 1e-3 * columns[:, 0] * [f.unit for f in features]  # inside all bounds
    apart = furthest(mechanism, x, y, features, columns)
    limit = math.sqrt(d / r) * DELTA
    rounding = roundings(x, features)
    slack = GaussianProjection(Decimal(1), 1e-5, DELTA, r, rounding).slack(d) + math.sqrt(d / r) * rounding
    assert apart <= limit * (1 + 1e-9) + slack
    inside = furthest(mechanism, x[: PAIRS // 4], y[: PAIRS // 4], features, columns)
    assert inside == pytest.approx(1e-3 * limit, rel=1e-6)


def test_scaling_by_the_data_would_be_caught(silent):
    """The control: min-max scaling by what the rows are, instead of public bounds, moves every other row."""
    x = np.random.default_rng(0).uniform(0.4, 0.6, size=(50, 2))
    y = x.copy()
    y[0] += DELTA

    def by_the_data(values: np.ndarray) -> np.ndarray:
        return (values - values.min(axis=0)) / (values.max(axis=0) - values.min(axis=0))

    assert np.linalg.norm(by_the_data(x) - by_the_data(y)) > 2 * DELTA
    features = [Feature(column=c, lower=0.0, upper=1.0) for c in "ab"]
    assert furthest(GaussianMechanism(Decimal(1), 1e-5, 0.5), x, y, features) <= DELTA * math.sqrt(2) * (1 + 1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324])
@pytest.mark.parametrize("kind", [GaussianMechanism, PlanarLaplaceMechanism, GaussianProjection])
def test_odd_numbers_are_refused_or_clipped(kind, bad):
    """NaN is refused; infinity is as far outside as any value, and clipped like one."""
    d = 13
    x = np.zeros((3, d))
    x[1, 1] = bad
    features = [Feature(column=f"c{j}", lower=-0.5, upper=0.5) for j in range(d)]
    more = {PlanarLaplaceMechanism: (0.5,), GaussianMechanism: (1e-5, 0.5), GaussianProjection: (1e-5, 0.5, 2)}[kind]
    mechanism = kind(Decimal(1_000), *more)
    out = np.full((3, mechanism.columns(d)), np.nan)
    if math.isnan(bad):
        with pytest.raises(NumericalFailure):
            mechanism.draw(rows_of(x, features), out)
        assert np.isnan(out).all()
    else:
        mechanism.draw(rows_of(x, features), out)
        assert np.abs(out).max() < 10


# --- the rounding of scaling is paid for ---------------------------------------------------------------------


def gaussian_delta_of(shift, epsilon: float):
    """Balle & Wang (2018), Theorem 8, for a mean that moves by ``shift`` standard deviations."""
    a, b = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    return stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b)


def needed_sd(kind: type, moved: float, d: int, r: int, slack: float) -> float:
    """Noise per coordinate for a row that moves by ``moved``, at epsilon 1 and delta 1e-5: another way for each law.

    After a projection the row moves by ``slack`` more.
    """
    if kind is PlanarLaplaceMechanism:  # |u| ~ Gamma(d, moved / epsilon), so E |u|^2 = d (d + 1) (moved / epsilon)^2
        return math.sqrt(d + 1) * moved
    if kind is GaussianMechanism:
        return optimize.brentq(lambda sd: gaussian_delta_of(moved / sd, 1.0) - 1e-5, moved, 10 * moved, rtol=1e-13)
    share = stats.beta(r / 2, (d - r) / 2)

    def delta(sd: float) -> float:
        def weighted(t: float) -> float:
            return gaussian_delta_of((moved * math.sqrt(d / r * t) + slack) / sd, 1.0) * share.pdf(t)

        return integrate.quad(weighted, 0, 1, epsabs=1e-15, epsrel=1e-10, limit=500)[0]

    return optimize.brentq(lambda sd: delta(sd) - 1e-5, moved, 20 * moved, rtol=1e-9)


@pytest.mark.parametrize("kind", [GaussianMechanism, PlanarLaplaceMechanism, GaussianProjection])
def test_the_noise_is_for_a_row_that_moves_by_the_sensitivity_and_the_rounding(kind):
    """The registry lets rounding be a thousandth of the sensitivity: without it, so much noise would be missing."""
    d, r, sensitivity, rounding = 16, 5, 0.3, 3e-4
    parameters = {
        GaussianMechanism: (1e-5, sensitivity, rounding),
        PlanarLaplaceMechanism: (sensitivity, rounding),
        GaussianProjection: (1e-5, sensitivity, r, rounding),
    }[kind]
    slack = 2 * (d + 2) * 2.0**-53 * math.sqrt(d) * 2.0**51 * rounding  # rounding errors of X P, |x| <= 2^51 rounding
    sd = kind(Decimal(1), *parameters).noise(d).sd
    assert sd == pytest.approx(needed_sd(kind, sensitivity + rounding, d, r, slack), rel=1e-5)


# --- the secret rotation, and the law of the projection's noise ------------------------------------------


@pytest.mark.parametrize("kind", [GaussianMechanism, PlanarLaplaceMechanism])
def test_a_rotation_keeps_distances_and_is_another_at_every_draw(silent, kind):
    x = np.random.default_rng(0).uniform(-0.5, 0.5, size=(40, 3))
    features = [Feature(column=f"c{j}", lower=-0.5, upper=0.5) for j in range(3)]
    more = (0.5,) if kind is PlanarLaplaceMechanism else (1e-5, 0.5)
    drawn = []
    for _ in range(2):
        out = np.empty((40, 3))
        kind(Decimal(1), *more, rotate=True).draw(rows_of(x, features), out)
        np.testing.assert_allclose(out @ out.T, x @ x.T, atol=1e-12)
        drawn.append(out)
    assert np.abs(drawn[0] - x).max() > 1e-3
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-3


def test_a_rotation_does_not_change_the_law_of_the_noise():
    """Of the planar noise the radius, and it is told as before."""
    features = [Feature(column=f"c{j}", lower=-0.5, upper=0.5) for j in range(3)]
    mechanism = PlanarLaplaceMechanism(Decimal(1), 0.5, rotate=True)
    out = np.empty((8_000, 3))
    mechanism.draw(rows_of(np.zeros((8_000, 3)), features), out)
    assert stats.kstest(np.linalg.norm(out, axis=1) / 0.5, stats.gamma(3).cdf).pvalue > MISTAKEN
    assert mechanism.noise(3) == PlanarLaplaceMechanism(Decimal(1), 0.5).noise(3)


def test_a_projected_release_is_the_projection_and_noise_of_the_stated_sd():
    columns = entropy.orthonormal(13, 4)
    x = np.random.default_rng(0).uniform(-0.5, 0.5, size=(8_000, 13))
    features = [Feature(column=f"c{j}", lower=-0.5, upper=0.5) for j in range(13)]
    mechanism = GaussianProjection(Decimal(1), 1e-5, 0.5, 4)
    out = np.empty((8_000, 4))
    mechanism.project(rows_of(x, features), columns, out)
    law = mechanism.noise(13)
    assert (law.family, law.sd) == ("gaussian_projection", mechanism.sd(13))
    noise_of = ((out - math.sqrt(13 / 4) * x @ columns) / law.sd).ravel()
    assert stats.kstest(noise_of, stats.norm.cdf).pvalue > MISTAKEN
    for wrong in (0.85, 1.17):
        assert stats.kstest(wrong * noise_of, stats.norm.cdf).pvalue < MISTAKEN


def test_every_release_has_a_projection_of_its_own(silent):
    x = np.random.default_rng(0).uniform(-0.5, 0.5, size=(20, 13))
    features = [Feature(column=f"c{j}", lower=-0.5, upper=0.5) for j in range(13)]
    first, second = np.empty((20, 4)), np.empty((20, 4))
    for out in (first, second):
        GaussianProjection(Decimal(1), 1e-5, 0.5, 4).draw(rows_of(x, features), out)
    assert np.abs(first - second).max() > 1e-3
