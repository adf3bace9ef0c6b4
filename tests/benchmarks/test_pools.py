"""The pools of benchmarks.pools: what they are, how they are split, and what is measured on them."""

import hashlib
import json
from itertools import permutations
from math import comb
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.papers import sources
from benchmarks.pools import __main__ as main
from benchmarks.pools import functions, play, report, suite
from benchmarks.pools.suite import GROUPS, HALVES, PAIRS, PRIVATE, WHEELS, Pool, few, group_of, halves, pool

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
    pinned = (Path(sources.__file__).parents[2] / "requirements" / "data.txt").read_text(encoding="utf-8")
    for wheel in WHEELS:
        (path,) = sources.FOLDER.glob(f"{wheel}-*.whl")
        assert f"{wheel}=={path.name.split('-')[1]}" in pinned
        assert f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" in pinned


@pytest.mark.parametrize(("n", "good"), [(7, 1), (8, 3), (6, 5)])
def test_random_rows_to_the_top_are_the_mean_over_every_order(n, good):
    """An oracle that draws nothing: all orders of n candidates, of which the first are the best."""
    candidates = Pool(np.zeros((n, 1)), np.r_[np.ones(good), np.zeros(n - good)])
    assert candidates.top.sum() == good
    queries = 4
    firsts = [min(min(order.index(k) for k in range(good)) + 1, queries + 1) for order in permutations(range(n))]
    assert play.random_rows(candidates, queries)[0] == pytest.approx(np.mean(firsts))
    formula = sum(comb(n - good, k) / comb(n, k) for k in range(queries + 1))
    assert play.random_rows(candidates, queries)[0] == pytest.approx(formula)


@pytest.fixture
def bowl():
    x = np.random.default_rng(1).uniform(size=(300, 2))
    return Pool(x, ((x - 0.3) ** 2).sum(axis=1), maximize=False)


def test_a_run_of_the_default_is_measured_as_counted_by_hand(bowl):
    rows = list(play.default(bowl, 3, 25))[:25]
    run = play.play(bowl, play.DEFAULT, 3, 25)
    best = bowl.y.argsort()[:3]
    assert run.top == next(k for k, row in enumerate(rows, 1) if row in best)
    assert run.regret == (pytest.approx((bowl.y[rows[:20]].min() - bowl.y.min()) / bowl.y.std(), abs=1e-4), None)
    assert run.queries == len(set(rows)) == 25
    assert run.top < play.random_rows(bowl, 25)[0]


def test_a_run_through_a_release_sees_noisy_candidates_and_is_measured_on_the_pool(bowl, monkeypatch):
    wide, seen = Pool(np.column_stack([bowl.x, np.ones(300)]), bowl.y, maximize=False), []

    class Spy(play.Optimizer):
        def __init__(self, candidates, **settings):
            seen.append(candidates)
            super().__init__(candidates, **settings)

    monkeypatch.setattr(play, "Optimizer", Spy)
    run = play.play(wide, "epsilon3", 3, 25)
    assert (run.queries, run.regret[1]) == (25, None)
    assert seen[0].shape == (300, 2)  # a constant column is no feature
    low, high = bowl.x.min(axis=0), bowl.x.max(axis=0)
    exact = (bowl.x - (low + high) / 2) / ((high - low) / play.HIDDEN)
    assert (seen[0] - exact).std() == pytest.approx(3**0.5 / 3, rel=0.3)  # planar Laplace: sqrt(r + 1) / epsilon


def test_a_private_pool_has_few_candidates_of_one_half():
    assert set(PRIVATE) <= set(halves()["choose"])
    whole = pool("borehole")
    assert len(few(whole).y) == suite.PRIVATE_ROWS < len(whole.y)
    assert few(pool("beam")) is pool("beam")


def test_botorch_stops_when_both_figures_are_known(bowl, monkeypatch):
    order = bowl.y.argsort()

    def worst_first(until):
        return lambda *_: iter([*order[::-1][:until], *order])

    for until, queries in [(5, 20), (29, 30), (70, 60)]:
        monkeypatch.setattr(play, "botorch", worst_first(until))
        run = play.play(bowl, play.BOTORCH, 0)
        assert (run.top, run.queries) == (min(until + 1, 61), queries)
        assert (run.regret[1] is None) == (queries < 50)


def test_tables_name_the_pools_on_which_a_tool_is_worse_than_random_rows(bowl):
    at_20 = play.random_rows(bowl)[1][0]

    def runs(*regrets):
        return [
            {"top": 10 + k, "regret": [r, 0.0], "seconds": [1.0, 2.0], "queries": 60} for k, r in enumerate(regrets)
        ]

    level, above = runs(at_20 * 0.5, at_20 * 1.8), runs(at_20 * 1.4, at_20 * 1.6)
    summary, all_pools, each = report.tables(
        {"a": bowl, "b": bowl}, {"x": {"a": level, "b": above}, "y": {"a": level, "b": level}}, 60
    )
    assert [row[1:] for row in all_pools.rows[:2]] == [["b", "none"], ["none", "none"]]
    assert summary.rows[-1][:5] == ["all", 2, "10.5 (0.4)", "10.5 (0.4)", "0.0 (0.5)"]
    assert {row[0]: row[1:] for row in all_pools.rows[2:-1]} == {
        "processor seconds of 20 queries": [1.0, 1.0],
        "processor seconds of 60 queries, of the runs that make them": [2.0, 2.0],
        "pools with fewer queries than y": [0, 0],
    }
    assert len(each.rows) == 2


def test_stored_runs_are_not_played_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(main, "sources", SimpleNamespace(have=lambda *_: True))
    command = ["pools", "choose", "--pool", "circuit", "--queries", "25", "--to", str(tmp_path / "a.json")]
    monkeypatch.setattr("sys.argv", [*command, "--runs", "2"])
    main.main()
    first = (tmp_path / "a.json").read_text(encoding="utf-8")
    monkeypatch.setattr("sys.argv", [*command, "--runs", "3"])
    main.main()
    before, after = (
        json.loads(text)["runs"]["circuit"] for text in (first, (tmp_path / "a.json").read_text(encoding="utf-8"))
    )
    assert before == after[:2]  # its processor times too
    assert len(after) == 3
    assert "pools worse than random rows" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(main.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_that_are_stored_are_of_one_half_and_tool(path):
    tool, half = path.stem.split("_")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["tool"].lower() == tool
    assert document["version"]
    assert sorted(document["runs"]) == sorted((halves() | {"private": PRIVATE})[half])
    for runs in document["runs"].values():
        assert all(1 <= run["top"] <= 61 and min(r for r in run["regret"] if r is not None) >= 0 for run in runs)
        assert all(run["queries"] == 60 or run["top"] <= run["queries"] for run in runs)
