"""Axes of a public sample and of the records: no row moves further than is claimed, and controls that do are caught."""

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from blindopt.errors import Invalid, NumericalFailure, ReleaseImpossible
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import noise
from curator_service.privacy.calibration import concrete, gaussian_sd
from curator_service.privacy.guarantees import guarantee
from curator_service.releases.mechanisms.axes import STRETCH, PrivateGram
from curator_service.releases.mechanisms.registry import mechanism_of, planned_mechanism
from tests.builders import a_study
from tests.curator_service.replaced_noise import forget_the_grid
from tests.curator_service.seeded_noise import replace_release_noise

SURE = 6.0
"""Standard errors: a verdict is by chance once in 10^8."""


def study(d, bound=50.0, **release):
    features = [wire.Feature(column=f"x{j}", lower=-bound, upper=bound, scale=1.0) for j in range(d)]
    chosen = {"mechanism": "axes", "epsilon": "1", "delta": 1e-5} | release
    if chosen.get("axes") != "private":
        chosen |= {"sample_dataset_id": "ds_sample"}
    return a_study(wire.AxesRelease(**chosen), features=features)


def rows_of(x, spec):
    return ScaledRows(x, list(range(x.shape[1])), spec.features, np.arange(len(x)))


def released(mechanism, x, spec):
    out = np.full((len(x), mechanism.columns(x.shape[1])), np.nan)
    mechanism.draw(rows_of(x, spec), out)
    return out


def power_law(n, d, seed=0, norm=10.0):
    variances = np.arange(1, d + 1) ** -1.5
    return np.random.default_rng(seed).normal(size=(n, d)) * np.sqrt(variances / variances.sum()) * norm


# --- public axes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [3, 30])
def test_rows_move_no_further_on_axes_than_they_moved(d, monkeypatch):
    """Along the first axis by as much, across all axes by nothing. Control: columns that are a fifth too long."""
    forget_the_grid(monkeypatch)
    replace_release_noise(monkeypatch, lambda law, block: block, noise.GaussianLaw, noise.PlanarLaplaceLaw)
    spec, x = study(d, r=2, sensitivity=0.5), power_law(400, d, seed=d)
    mechanism = planned_mechanism(spec).of_sample(rows_of(x, spec))
    across = np.linalg.svd(mechanism.axes.T)[2][-1]
    moves = np.vstack([mechanism.axes.T, across, np.random.default_rng(1).normal(size=(200, d))])
    moves *= 0.5 / np.linalg.norm(moves, axis=1, keepdims=True)

    def moved(of):
        return np.linalg.norm(released(of, x[:203] + moves, spec) - released(of, x[:203], spec), axis=1)

    limit = 0.5 * (1 + 2 * STRETCH) + mechanism.rounding + mechanism.slack(2)
    assert moved(mechanism).max() <= limit + 1e-14 * 50  # x + move is rounded, too
    assert moved(mechanism)[:2] == pytest.approx([0.5, 0.5], abs=1e-12)
    assert moved(mechanism)[2] < 1e-12
    assert moved(replace(mechanism, axes=1.2 * mechanism.axes)).max() > 1.19 * 0.5
    with pytest.raises(NumericalFailure, match="not orthonormal"):
        mechanism.along(mechanism.axes * (1 + 1e-9))


def test_an_audit_of_neighbours_on_axes_finds_the_claim_along_an_axis_and_nothing_across():
    """20,000 draws a side, in hidden changes. Controls: columns times 1.2, and the noise of half the sensitivity."""
    spec, draws = study(8, r=2, delta=None), 20_000
    mechanism = planned_mechanism(spec).of_sample(rows_of(power_law(300, 8), spec))
    sd = mechanism.noise(8).sd
    assert sd == pytest.approx(math.sqrt(3), rel=1e-9)  # planar noise of two columns at epsilon 1
    error = sd * math.sqrt(2 / draws) * SURE
    across = np.linalg.svd(mechanism.axes.T)[2][-1]

    def shift(of, move):
        means = [released(of, np.tile(row, (draws, 1)), spec).mean(axis=0) for row in (np.zeros(8), move)]
        return np.linalg.norm(means[1] - means[0])

    along = mechanism.axes[:, 0]
    assert 1 - error < shift(mechanism, along) < 1 + error
    assert shift(mechanism, across) < 2 * error
    assert shift(replace(mechanism, axes=1.2 * mechanism.axes), along) - error > 1
    radius = np.linalg.norm(released(mechanism, np.zeros((draws, 8)), spec), axis=1) * math.sqrt(3) / sd
    assert stats.kstest(radius, stats.gamma(2).cdf).pvalue > 1e-8
    assert stats.kstest(radius / 2, stats.gamma(2).cdf).pvalue < 1e-8


def test_the_number_of_axes_is_the_one_by_which_a_search_learns_most():
    spec, x = study(40), power_law(600, 40)
    mechanism = planned_mechanism(spec).of_sample(rows_of(x, spec))
    more = planned_mechanism(study(40, epsilon="30")).of_sample(rows_of(x, spec))
    assert mechanism.columns(40) < more.columns(40)
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    held = np.square((x - x.mean(axis=0)) @ mechanism.axes).sum() / (len(x) - 1)
    assert held == pytest.approx(values[: mechanism.columns(40)].sum(), rel=1e-9)


def test_without_its_sample_a_release_on_public_axes_draws_nothing():
    spec = study(5)
    with pytest.raises(ReleaseImpossible, match="sample"):
        planned_mechanism(spec).release(rows_of(np.zeros((20, 5)), spec), lambda *shape: np.empty(shape), print)
    with pytest.raises(ReleaseImpossible):
        released(planned_mechanism(spec), np.zeros((20, 5)), spec)


# --- private axes ----------------------------------------------------------------------------------


def private(d=2, radius=4.0, **more):
    return study(d, axes="private", radius=radius, **more)


def gram_of(spec, n=10):
    return PrivateGram.of(planned_mechanism(spec), n)


def vector(total):
    """The coordinates C_jj and sqrt(2) C_jl of a Gram matrix, as Python's integers and their doubles."""
    d = len(total)
    return np.array([float(total[j, k]) * (1 if j == k else math.sqrt(2)) for j in range(d) for k in range(j, d)])


def furthest(spec, gram, sensitivity=1.0, tries=4_000):
    """The largest move of the Gram matrix that a search finds: of one record, moved by the sensitivity at most."""
    d, rng, best = len(spec.features), np.random.default_rng(7), 0.0
    directions = rng.normal(size=(tries, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sizes = np.concatenate([np.full(tries // 2, 4.0), rng.uniform(0, 6, tries - tries // 2)])
    inward = rng.normal(size=(tries, d))
    inward[: tries // 4] = -directions[: tries // 4]  # radially, from the edge of the ball
    inward /= np.linalg.norm(inward, axis=1, keepdims=True)
    for at, to in zip(sizes[:, None] * directions, sizes[:, None] * directions + sensitivity * inward, strict=True):
        first, second = (gram.total(rows_of(row[None], spec)) for row in (at, to))
        best = max(best, float(np.linalg.norm(vector(first - second))))
    return best


@pytest.mark.parametrize("d", [2, 3])
def test_no_search_on_tiny_data_moves_the_gram_matrix_further_than_is_claimed(d):
    """At the edge by Delta (2R - Delta), 12 % less at R = 4. Controls: half of it, and longer records as they are."""
    spec = private(d)
    gram = gram_of(spec)
    longest = furthest(spec, gram)
    assert longest <= gram.moves
    assert longest == pytest.approx((2 * 4.0 - 1) / gram.step**2, rel=1e-3)
    assert longest > gram.moves / 2
    unbounded = replace(gram, radius=100.0, reach=1e9)
    assert furthest(spec, unbounded) > gram.moves


def test_the_gram_matrix_is_exact_over_blocks_and_shrinks_long_records():
    spec = private(3, radius=2.0)
    gram, x = gram_of(spec, 9_000), np.random.default_rng(3).normal(size=(9_000, 3)) * 2
    steps = gram.steps(x)
    exact = [
        [sum(int(a) * int(b) for a, b in zip(steps[:, j], steps[:, k], strict=True)) for k in range(3)]
        for j in range(3)
    ]
    assert gram.total(rows_of(x, spec)).tolist() == exact
    length = np.linalg.norm(steps, axis=1) * gram.step
    assert length.max() == pytest.approx(2.0, rel=1e-5)
    inside = np.linalg.norm(x, axis=1) < 2
    np.testing.assert_allclose(steps[inside] * gram.step, x[inside], atol=gram.step)


def test_a_move_at_the_edge_is_told_apart_as_its_gaussian_claim_allows():
    """mu of one record's radial move, from 1,000 draws a side, against the noise's claim.

    Controls: the noise of half the sensitivity, both triangles drawn apart, and a record beyond the radius.
    """
    spec, draws = private(2, epsilon="100"), 1_000
    gram = gram_of(spec)
    claimed = gram.moves / gram.scale
    edge, beyond = np.array([4.0, 4.0]) / math.sqrt(2), np.array([8.0, 8.0]) / math.sqrt(2)

    def mu(gram, at, draw=lambda gram, total: gram.noisy(total)):
        totals = [gram.total(rows_of(row[None], spec)) for row in (at, at * (1 - 1 / np.linalg.norm(at)))]
        towards = (totals[0] - totals[1]) / np.linalg.norm(totals[0] - totals[1])
        values = [np.array([(draw(gram, total) * towards).sum() for _ in range(draws)]) for total in totals]
        pooled = math.sqrt((values[0].var(ddof=1) + values[1].var(ddof=1)) / 2)
        return (values[0].mean() - values[1].mean()) / pooled

    def triangles(gram, total):
        first, second = gram.noisy(total), gram.noisy(total)
        return np.triu(first) + np.tril(second, -1)

    error = SURE * math.sqrt((2 + claimed**2 / 4) / draws)
    at_edge = mu(gram, edge)
    assert at_edge == pytest.approx(claimed * 7 / 8, abs=error)
    assert at_edge - error < claimed
    assert mu(replace(gram, scale=gram.scale / 2), edge) - error > claimed
    assert mu(gram, edge, triangles) > at_edge
    assert mu(replace(gram, radius=100.0, reach=1e9), beyond) - error > claimed


def test_the_noise_is_calibrated_to_its_part_of_epsilon_and_delta():
    spec = private(5, epsilon="3", delta=1e-6)
    gram = gram_of(spec)
    needed = gaussian_sd(Decimal("0.6"), 0.5e-6, 2 * 4.0 * 1.0 / gram.step**2, 1)
    assert needed < gram.scale < needed * 1.002
    mechanism = planned_mechanism(spec)
    law = mechanism_of(spec, mechanism.spec.model_copy(update={"r": 2})).noise(5)
    assert law.sd == pytest.approx(math.sqrt(3) / 2.4, rel=1e-9)
    drawn = np.array([gram.noisy(np.zeros((5, 5), dtype=np.int64)) for _ in range(3_000)]) / gram.scale
    assert (drawn == drawn.transpose(0, 2, 1)).all()
    diagonal, beside = drawn[:, range(5), range(5)].ravel(), drawn[:, *np.triu_indices(5, 1)].ravel()
    for values, sd in ((diagonal, 1.0), (beside, math.sqrt(0.5))):
        assert stats.kstest(values, stats.norm(scale=sd).cdf).pvalue > 1e-8
        assert stats.kstest(values * 1.2, stats.norm(scale=sd).cdf).pvalue < 1e-3


def test_private_axes_hold_nearly_as_much_variance_as_the_best():
    spec, x = private(25, radius=15.0, epsilon="4"), power_law(4_000, 25)
    ready = planned_mechanism(spec).prepare(rows_of(x, spec))
    r = ready.columns(25)
    assert 2 <= r < 25
    best = np.linalg.svd(x)[1][:r]
    assert np.square(x @ ready.axes).sum() > 0.8 * np.square(best).sum()
    assert "axes of the records, found for epsilon 0.8 and delta 5e-06 of these." in guarantee(spec, ready.spec)


ODD = {
    "fewer records than features": (power_law(12, 30), 15.0, "20"),
    "constant columns": (np.where(np.arange(30) < 3, power_law(400, 30), 1.0), 15.0, "20"),
    "a radius that is too small": (power_law(400, 30), 0.01, "20"),
    "little epsilon": (power_law(400, 30), 15.0, "0.1"),
    "a thousand features": (power_law(60, 1_000), 15.0, "1"),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_tables_have_a_release_of_the_law_that_is_stated(case):
    x, radius, epsilon = ODD[case]
    n, d = x.shape
    spec, files = private(d, radius=radius, epsilon=epsilon), []
    drawn = planned_mechanism(spec).release(
        rows_of(x, spec), lambda *shape: files.append(np.full(shape, np.nan)) or files[0], lambda share: None
    )
    assert np.isfinite(files[0]).all()
    assert files[0].shape == (n, drawn.mechanism.columns(d))


def test_axes_that_do_not_stand_out_leave_noise_on_all_features():
    """A noisy matrix of nothing but noise, in place of a draw: as if the largest eigenvalue were at the norm of it."""
    spec = private(25, radius=15.0)
    mechanism, gram = planned_mechanism(spec), gram_of(spec)
    ready = mechanism._of_gram(gram, np.eye(25) * gram.scale * math.sqrt(2 * 25), 100)
    assert (ready.columns(25), ready.noise(25).family) == (25, "gaussian")
    assert ready.noise(25).sd == pytest.approx(gaussian_sd(Decimal("0.8"), 5e-6, 1.0, 25), rel=1e-8)
    assert "They serve a search less than all features" in guarantee(spec, ready.spec)
    standing = np.eye(25) * gram.scale + np.diag([1e4, 1e3, 1e3] + [0.0] * 22) * gram.scale
    assert mechanism._of_gram(gram, standing, 10**6).columns(25) < 25


def test_numbers_that_are_not_finite_and_noise_that_does_not_fit_are_refused():
    spec = private()
    with pytest.raises(NumericalFailure):
        planned_mechanism(spec).prepare(rows_of(np.array([[0.0, np.nan], [1.0, 1.0]]), spec))
    for wrong, field in (
        ({"epsilon": "0.000004"}, "epsilon"),
        ({"r": 3}, "r"),
        ({"d": 1_000, "radius": 1e3, "epsilon": "10"}, "radius"),  # fits a small file, and not 10 million records
    ):
        with pytest.raises(Invalid) as refused:
            planned_mechanism(private(**wrong))
        assert refused.value.errors[0]["field"] == f"release.{field}"


def test_auto_takes_axes_for_many_features_and_keeps_the_promise():
    many, few = (a_study(d=d) for d in (21, 20))
    for spec, fields, taken in (
        (many, {"sample_dataset_id": "ds_1", "r": 5}, "axes"),
        (many, {"sample_dataset_id": "ds_1", "r": 21}, "gaussian"),
        (many, {"radius": 3.0}, "axes"),
        (many, {}, "gaussian"),
        (few, {"sample_dataset_id": "ds_1"}, "planar_laplace"),
    ):
        release = wire.AutoRelease(epsilon="1", delta=1e-5, sensitivity=0.25, **fields)
        ran = concrete(spec.model_copy(update={"release": release}))[0]
        assert (ran.mechanism, ran.epsilon, ran.sensitivity) == (taken, "1", 0.25)
