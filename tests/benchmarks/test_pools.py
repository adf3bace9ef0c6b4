"""The pools of benchmarks.pools: what they are, how they are split, and what is measured on them."""

import numpy as np
import pytest

from benchmarks.papers import sources
from benchmarks.pools import functions, suite
from benchmarks.pools.suite import GROUPS, HALVES, PAIRS, WHEELS, group_of, halves, pool

HAVE_TABLES = pytest.mark.skipif(not sources.have(*WHEELS), reason="the wheels are not here: `make data` fetches them")
COUNTS = {"2 to 4": 3, "5, 6": 2, "8 to 10": 3, "16 to 20": 2, "22 to 40": 1, "50 to 60": 1}


def _is_function(name):
    return next(pair[name] for pair in PAIRS if name in pair).__qualname__.startswith("_function")


def test_a_seed_splits_the_pools_into_two_halves_of_like_kind():
    split = halves()
    assert halves() == split
    assert any(halves(seed) != split for seed in range(5))
    assert sorted(split["choose"] + split["report"]) == sorted(suite.names())
    for half in HALVES:
        assert len(split[half]) == 12
        assert sum(map(_is_function, split[half])) == 5
        assert all(len(set(split[half]) & set(pair)) == 1 for pair in PAIRS)


def _claims(candidates):
    x, gain = candidates.x, candidates.gain
    sizes = x.std(axis=0)
    unequal = len(np.unique(np.column_stack([x, gain]), axis=0)) - len(np.unique(x, axis=0))
    correlated = [abs(np.corrcoef(column, gain)[0, 1]) for column in x.T if column.std() > 0]
    return {
        "one-hot categories": any(
            (x[:, k : k + m].sum(axis=1) == 1).all() for m in (3, 4) for k in range(x.shape[1] - m + 1)
        ),
        "ten useless columns": sum(r < 4 / np.sqrt(len(x)) for r in correlated) >= 10,
        "6 sd above the median": gain.max() - np.median(gain) >= 6,
        "equal rows, different outcomes": unequal >= 100,
        "sizes apart by 10^6": sizes.max() / sizes[sizes > 0].min() >= 1e6,
        "minimum sought": not candidates.maximize,
    }


@HAVE_TABLES
def test_each_half_has_what_a_stranger_may_bring():
    for half, members in halves().items():
        loaded = [pool(name) for name in members]
        groups = [group_of(candidates) for candidates in loaded]
        assert {group: groups.count(group) for group in GROUPS} == COUNTS, half
        assert all(200 <= len(candidates.y) <= 20_000 for candidates in loaded)
        assert all(np.isfinite(candidates.x).all() and candidates.y.std() > 0 for candidates in loaded)
        claims = [_claims(candidates) for candidates in loaded]
        assert all(any(claim[name] for claim in claims) for name in claims[0]), half


def test_the_functions_have_the_values_of_their_sources():
    assert functions.shekel(np.full((1, 4), 4.0))[0] == pytest.approx(10.5364, abs=3e-4)
    assert functions.levy(np.ones((1, 8)))[0] == pytest.approx(0, abs=1e-12)
    assert functions.gramacy_lee(np.array([[0.5**0.5, 0.0]]))[0] == pytest.approx(0.4288819)
    cessna = [[174, 252, 7.52, 0, 33.98, 0.672, 0.12, 3.795, 2_004, 0.064]]  # Gramacy (2020), chapter 1, without paint
    assert functions.wing_weight(np.array(cessna))[0] - 174 * 0.064 == pytest.approx(233.908, abs=1e-3)
    straight, folded = [0, 0, 0, 0, 0.1, 0.2, 0.3, 0.4], [0, np.pi, np.pi, np.pi, 1, 1, 1, 1]
    np.testing.assert_allclose(functions.robot_arm(np.array([straight, folded])), [1, 0], atol=1e-12)
    assert functions.beam(np.array([[0.15, 0.3, 5, 3e10, 1e4]]))[0] == pytest.approx(0.008037551)
    truss = functions.roof_truss(np.array([[2e4, 12, 9.82e-4, 0.04, 1.2e11, 3e10]]))
    assert truss[0] == pytest.approx(20_000 * 144 / 2 * (3.81 / 1.2e9 + 1.13 / 117_840_000))
    assert all(len(bounds) and all(low < high for low, high in bounds) for bounds in functions.BOUNDS.values())


def test_points_fill_the_ranges_of_a_function():
    x = pool("circuit").x
    assert x.shape == (800, 16)
    for column, (low, high) in zip(x.T, [*functions.BOUNDS[functions.otl_circuit], *[(0, 1)] * 10], strict=True):
        assert low <= column.min() < low + 0.02 * (high - low)
        assert high - 0.02 * (high - low) < column.max() <= high


@HAVE_TABLES
def test_wheels_are_pinned_and_hashed():
    import hashlib
    from pathlib import Path

    pinned = (Path(sources.__file__).parents[2] / "requirements" / "data.txt").read_text(encoding="utf-8")
    for wheel in WHEELS:
        (path,) = sources.FOLDER.glob(f"{wheel}-*.whl")
        assert f"{wheel}=={path.name.split('-')[1]}" in pinned
        assert f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in pinned
