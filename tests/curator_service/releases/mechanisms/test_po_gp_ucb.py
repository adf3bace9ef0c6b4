"""Algorithm 1 of the paper: its printed checks, and the release against a plain singular value decomposition."""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.errors import ReleaseImpossible
from blindopt.wire import Feature, NoiseLaw
from curator_service.datasets.scaling import BLOCK_ROWS, ScaledRows
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb, Spectrum, largest_r, omega, spectrum, transform
from tests.curator_service.replaced_noise import replace_gaussian_matrix


def rows_of(x: np.ndarray, order: np.ndarray | None = None, *, bound: float = 1e9) -> ScaledRows:
    """Rows that are already in scaled units: no clipping, no scaling."""
    features = [Feature(column=f"column {j}", lower=-bound, upper=bound, scale=1.0) for j in range(x.shape[1])]
    return ScaledRows(x, list(range(x.shape[1])), features, np.arange(len(x)) if order is None else order)


def algorithm_1(x: np.ndarray, m: np.ndarray, epsilon: float, delta: float, sensitivity: float = 1.0):
    """Lines 3 to 10 as printed, for Delta = 1 by way of X / Delta; also the branch."""
    x = x / sensitivity
    x = x - x.mean(axis=0)
    r = m.shape[1]
    w = 16 * math.sqrt(r * math.log(2 / delta)) / epsilon * math.log(16 * r / delta)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    if s.min() >= w:
        return sensitivity * (x @ m) / math.sqrt(r), "project"
    return sensitivity * (u @ np.diag(np.sqrt(s**2 + w**2)) @ vt @ m) / math.sqrt(r), "lift"


# --- the paper's checks ----------------------------------------------------------------------------


def paper_grid() -> np.ndarray:
    """100 x 100 points of a square, centred, scaled to the largest row norm 25."""
    side = np.linspace(-1, 1, 100)
    grid = np.array([(a, b) for a in side for b in side])
    grid -= grid.mean(axis=0)
    return 25.0 * grid / np.linalg.norm(grid, axis=1).max()


TABLE_VALUES = {1.1: [3, 6, 8, 10, 15, 20], 1.3: [3, 9, 12, 15, 20, 30], 1.5: [5, 10, 15, 20, 30, 50]}


def test_sigma_min_of_the_papers_grid_is_1030_9():
    grid = paper_grid()
    assert round(np.linalg.svd(grid, compute_uv=False).min(), 1) == 1030.9
    assert round(spectrum(rows_of(grid)).sigma_min, 1) == 1030.9


@pytest.mark.parametrize(
    ("exponent", "over_all", "over_the_table"), [(1.1, 11, 10), (1.3, 15, 15), (1.5, 22, 20)], ids=["1.1", "1.3", "1.5"]
)
def test_the_largest_r_on_the_papers_grid_is_the_papers(exponent, over_all, over_the_table):
    sigma_min, epsilon = spectrum(rows_of(paper_grid())).sigma_min, math.exp(exponent)
    assert largest_r(sigma_min, epsilon, 1e-5) == over_all
    assert max(r for r in TABLE_VALUES[exponent] if sigma_min >= omega(r, epsilon, 1e-5)) == over_the_table
    mechanism = PoGpUcb(Decimal(epsilon), 1e-5, 1.0, over_all)
    at, beyond = mechanism.assess(rows_of(paper_grid())), None
    beyond = PoGpUcb(Decimal(epsilon), 1e-5, 1.0, over_all + 1).assess(rows_of(paper_grid()))
    assert (at.branch, at.largest_r) == ("project", over_all)
    assert (beyond.branch, beyond.largest_r) == ("lift", over_all)


@pytest.mark.parametrize("r", [1, 2, 10, 50, 1_000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, math.e, 100.0])
@pytest.mark.parametrize("delta", [1e-18, 1e-5, 0.1])
def test_omega_is_the_formula_in_natural_logarithms(r, epsilon, delta):
    """The same in common logarithms, so that a wrong base shows."""
    tens = 16 * math.sqrt(r * (math.log10(2) - math.log10(delta))) * (math.log10(16 * r) - math.log10(delta)) / epsilon
    assert omega(r, epsilon, delta) == pytest.approx(tens * math.log(10) ** 1.5, rel=1e-12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(0, 1e5), st.floats(1e-3, 1e3), st.floats(1e-18, 0.1))
def test_the_largest_r_is_what_counting_up_finds(sigma_min, epsilon, delta):
    counted = 0
    while counted < 2_000 and sigma_min >= omega(counted + 1, epsilon, delta):
        counted += 1
    largest = largest_r(sigma_min, epsilon, delta)
    assert largest == counted if counted < 2_000 else largest >= 2_000


# --- the release -----------------------------------------------------------------------------------

SHAPES = [(50, 1), (50, 2), (500, 7), (10_000, 2), (10_000, 20), (2 * BLOCK_ROWS + 77, 5)]


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("branch", ["project", "lift"])
@pytest.mark.parametrize("r", [1, 4, 30])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_the_release_is_algorithm_1_by_its_singular_values(monkeypatch, n, d, r, branch):
    """Shuffled rows far from the origin, r below and above d, up to three blocks, through the class itself."""
    rng = np.random.default_rng([n, d, r])
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.uniform(-30, 30, size=d)
    x *= 1e6 if branch == "project" else 1.0
    m = rng.normal(size=(d, r))
    replace_gaussian_matrix(monkeypatch, lambda *shape: m if shape == (d, r) else pytest.fail(str(shape)))
    order, out = rng.permutation(n), np.full((n, r), np.nan)
    mechanism = PoGpUcb(Decimal("0.8"), 1e-5, 1.0, r)
    assessment = mechanism.draw(rows_of(x, order), out)
    expected, expected_branch = algorithm_1(x[order], m, 0.8, 1e-5)
    assert assessment.branch == expected_branch == branch
    assert np.abs(out - expected).max() <= 1e-10 * np.abs(expected).max()
    assert assessment == mechanism.assess(rows_of(x, order))
    assert assessment.omega == pytest.approx(omega(r, 0.8, 1e-5), rel=1e-15)
    assert assessment.sigma_min == pytest.approx(np.linalg.svd(x - x.mean(axis=0), compute_uv=False).min(), rel=1e-10)


@pytest.mark.parametrize(("sensitivity", "branch"), [(1e-4, "project"), (0.3, "lift"), (20.0, "lift")])
def test_a_delta_other_than_1_runs_it_on_x_over_delta(sensitivity, branch):
    rng = np.random.default_rng(5)
    x, m = rng.uniform(-0.5, 0.5, size=(3_000, 4)), rng.normal(size=(4, 3))
    out = np.empty((3_000, 3))
    assessment = PoGpUcb(Decimal(3), 1e-5, sensitivity, 3).project(rows_of(x), m, out)
    expected, expected_branch = algorithm_1(x, m, 3.0, 1e-5, sensitivity)
    assert assessment.branch == expected_branch == branch
    assert np.abs(out - expected).max() <= 1e-10 * np.abs(expected).max()
    assert assessment.omega == pytest.approx(sensitivity * omega(3, 3.0, 1e-5), rel=1e-14)
    assert assessment.largest_r == largest_r(assessment.sigma_min / sensitivity, 3.0, 1e-5)


@pytest.mark.parametrize(("share", "branch"), [(1 - 1e-9, "project"), (1 + 1e-9, "lift")])
def test_the_lift_begins_where_omega_passes_sigma_min(share, branch):
    """What is drawn, not only what is told: a lift by omega = sigma_min makes the weakest direction sqrt(2) as long."""
    rng = np.random.default_rng(4)
    x, m = rng.normal(size=(200, 3)), rng.normal(size=(3, 3))
    sigma_min = np.linalg.svd(x - x.mean(axis=0), compute_uv=False).min()
    sensitivity = share * sigma_min / omega(3, 1.0, 1e-5)
    out = np.empty((200, 3))
    assert PoGpUcb(Decimal(1), 1e-5, sensitivity, 3).project(rows_of(x), m, out).branch == branch
    unprojected = np.linalg.svd(out @ np.linalg.inv(m) * math.sqrt(3), compute_uv=False)
    assert unprojected.min() == pytest.approx(sigma_min * (1 if branch == "project" else math.sqrt(2)), rel=1e-6)


@pytest.mark.parametrize("condition", [1e2, 1e3, 1e4, 1e5])
def test_nearly_dependent_features_are_lifted_to_the_digit_all_the_same(condition):
    """The lift raises the weakest direction to omega like every other: an error in its sigma is an error in Z."""
    rng = np.random.default_rng(int(condition))
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    x = rng.normal(size=(4_000, 6)) * np.geomspace(1, 1 / condition, 6) @ turn
    m = rng.normal(size=(6, 4))
    out = np.empty((4_000, 4))
    PoGpUcb(Decimal(1), 1e-5, 1.0, 4).project(rows_of(x), m, out)
    expected, branch = algorithm_1(x, m, 1.0, 1e-5)
    assert branch == "lift"
    assert np.abs(out - expected).max() <= 1e-10 * np.abs(expected).max()


class SmallBlocks(ScaledRows):
    __slots__ = ()

    def blocks(self, size=7):
        return ScaledRows.blocks(self, size)


def test_the_number_of_rows_in_a_block_does_not_show():
    rng = np.random.default_rng(6)
    x, m = rng.normal(size=(1_000, 3)), rng.normal(size=(3, 2))
    rows = rows_of(x)
    whole, parts = np.empty((1_000, 2)), np.empty((1_000, 2))
    PoGpUcb(Decimal(1), 1e-5, 1.0, 2).project(rows, m, whole)
    small = SmallBlocks(rows.values, rows.columns, rows.features, rows.order)
    assert len(next(small.blocks())[1]) == 7
    PoGpUcb(Decimal(1), 1e-5, 1.0, 2).project(small, m, parts)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-10 * np.abs(whole).max())


def test_every_draw_has_a_projection_of_its_own():
    x = np.random.default_rng(7).normal(size=(50, 3))
    first, second = np.empty((50, 3)), np.empty((50, 3))
    mechanism = PoGpUcb(Decimal(1), 1e-5, 1.0, 3)
    mechanism.draw(rows_of(x), first)
    mechanism.draw(rows_of(x), second)
    assert (first != second).all()


def test_assessing_draws_nothing(monkeypatch):
    replace_gaussian_matrix(monkeypatch, lambda d, r: pytest.fail("a secret was drawn"))
    PoGpUcb(Decimal(1), 1e-5, 1.0, 3).assess(rows_of(np.random.default_rng(8).normal(size=(50, 3))))


def test_what_it_says_of_itself():
    mechanism = PoGpUcb(Decimal(1), 1e-5, 1.0, 9)
    assert mechanism.columns(3) == 9
    assert mechanism.noise(3) == NoiseLaw(family="random_projection")
    assert mechanism.status == "refuted"
    assert "no differential privacy" in mechanism.claim


# --- what cannot be released -----------------------------------------------------------------------


def independent(n: int = 500, d: int = 5) -> np.ndarray:
    return np.random.default_rng(9).uniform(-0.5, 0.5, size=(n, d))


def duplicate(x: np.ndarray) -> set[int]:
    x[:, 3] = x[:, 1]
    return {1, 3}


def constant(x: np.ndarray) -> set[int]:
    x[:, 2] = 0.25
    return {2}


def total(x: np.ndarray) -> set[int]:
    x[:, 4] = (x[:, 0] + x[:, 2]) / 2
    return {0, 2, 4}


def shifted_multiple(x: np.ndarray) -> set[int]:
    x[:, 0] = 0.3 - 1e-3 * x[:, 4]
    return {0, 4}


def two_at_once(x: np.ndarray) -> set[int]:
    x[:, 3], x[:, 2] = x[:, 1], -0.1
    return {1, 2, 3}


def beside_tiny_columns(x: np.ndarray) -> set[int]:
    """The others vary a hundred thousand times less, and are innocent all the same."""
    x[:, :3] *= 1e-5
    x[:, 4] = x[:, 3]
    return {3, 4}


DEPENDENT = [duplicate, constant, total, shifted_multiple, two_at_once, beside_tiny_columns]


@pytest.mark.parametrize("n", [500, 20_000])
@pytest.mark.parametrize("spoil", DEPENDENT, ids=lambda f: f.__name__)
def test_dependent_columns_are_named_and_no_others(spoil, n):
    x = independent(n)
    guilty = spoil(x)
    mechanism, out = PoGpUcb(Decimal(1), 1e-5, 1.0, 3), np.full((n, 3), np.nan)
    for act in (lambda: mechanism.assess(rows_of(x)), lambda: mechanism.draw(rows_of(x), out)):
        with pytest.raises(ReleaseImpossible) as refusal:
            act()
        assert {j for j in range(5) if f"column {j}" in str(refusal.value)} == guilty
    assert np.isnan(out).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_hidden_dependence_is_found_whatever_its_weights(seed):
    """One column is a random combination of all the others: no pair of columns shows it."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(3, 21))
    x = rng.normal(size=(3_000, d)) * rng.uniform(0.1, 10, size=d)
    x[:, -1] = x[:, :-1] @ rng.normal(size=d - 1)
    with pytest.raises(ReleaseImpossible):
        PoGpUcb(Decimal(1), 1e-5, 1.0, 3).assess(rows_of(x))


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 3), (2, 2), (3, 5), (5, 5), (20, 20), (10, 100)])
def test_as_few_rows_as_features_cannot_be_lifted(n, d):
    """Centred, they span at most n - 1 directions."""
    with pytest.raises(ReleaseImpossible):
        PoGpUcb(Decimal(1), 1e-5, 1.0, 3).assess(rows_of(independent(n, d)))


@pytest.mark.parametrize("d", [1, 2, 5, 20])
def test_one_row_more_than_features_can_be_released(d):
    x = independent(d + 1, d)
    out = np.full((d + 1, 3), np.nan)
    PoGpUcb(Decimal(1), 1e-5, 1.0, 3).draw(rows_of(x), out)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("r", [*range(1, 18), 1_000])
def test_a_singular_value_equal_to_omega_is_enough_for_that_r(r):
    most = largest_r(omega(r, 1.0, 1e-5), 1.0, 1e-5)
    assert most == r
    assert type(most) is int


def test_a_singular_value_equal_to_omega_is_not_lifted():
    mechanism = PoGpUcb(Decimal(1), 1e-5, 1.0, 3)
    at_omega = Spectrum(np.zeros(2), np.eye(2)[::-1], np.array([2.0, 1.0]) * mechanism.threshold)
    projection = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    np.testing.assert_array_equal(transform(at_omega, projection, mechanism.threshold), projection / math.sqrt(3))
    assert mechanism._assessment(at_omega).branch == "project"
