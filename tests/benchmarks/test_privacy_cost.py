"""What privacy costs: the plot and the pages show what was measured, and a small measurement runs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import privacy_cost, privacy_plot
from benchmarks.papers import groups
from blindopt import wire

ROOT = Path(__file__).parents[2]
RECORDED = json.loads(privacy_cost.FILE.read_text(encoding="utf-8"))["records"]
PAGE = (ROOT / "docs" / "how-good.md").read_text(encoding="utf-8")


def test_the_plot_is_drawn_from_the_recorded_figures():
    assert privacy_plot.TARGET.read_text(encoding="utf-8") == privacy_plot.svg(RECORDED[privacy_plot.RECORDS])
    other = json.loads(json.dumps(RECORDED[privacy_plot.RECORDS]))
    other["private 1"]["mean"] += 1
    assert privacy_plot.svg(other) != privacy_plot.svg(RECORDED[privacy_plot.RECORDS])
    for plot in (ROOT / "docs" / "plots").iterdir():
        assert plot.stat().st_size < 50_000


def test_the_pages_have_the_recorded_figures():
    for records, arms in RECORDED.items():
        (line,) = re.findall(rf"^\| {int(records):,} \(\d+\) \|.*$", PAGE, re.MULTILINE)
        assert f"| {arms['private 1']['candidates']:.0f} |" in line
        _shows(
            line.partition(") |")[2], arms, [*(f"private {epsilon}" for epsilon in privacy_cost.EPSILONS), "random 1"]
        )
        if int(records) <= privacy_cost.RECORDS_MAX:
            (line,) = re.findall(rf"^\| {int(records):,} \|.*$", PAGE, re.MULTILINE)
            kinds = ("records, exact answers", "records, private answers")
            _shows(line, arms, [name for kind in kinds for name in (kind, f"random {kind}")])
    whole = RECORDED[privacy_plot.RECORDS]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    figures = [
        f"{whole['private 1']['mean']:.1f} %",
        f"{whole['random 1']['mean']:.0f} %",
        f"{whole['plain']['mean']:.1f} %",
        f"{whole['private 1']['candidates']:.0f} are candidates",
    ]
    runs = f"{whole['private 1']['runs']} runs, standard error {whole['private 1']['error']:.1f}"
    assert [figure for figure in [*figures, runs] if figure not in readme] == []
    start = (ROOT / "docs" / "what-is-blindopt.md").read_text(encoding="utf-8")
    assert f"{figures[0]} below the\nprice of the best group ({runs})" in start
    (fewer,) = {arms["private 1"]["runs"] for records, arms in RECORDED.items() if records != privacy_plot.RECORDS}
    assert f"means of {whole['private 1']['runs']} runs for 21,613 records, of {fewer} for fewer" in PAGE
    plan = (ROOT / "docs" / "how-many-queries.md").read_text(encoding="utf-8")
    halfway = [f"{whole[f'{name}, 25 queries']['mean']:.0f}" for name in ("private 1", "random 1", "plain")]
    assert re.findall(r"after 25 answers: (\d+) %, random (\d+) %, without privacy (\d+) %", plan) == [tuple(halfway)]


def _shows(line, arms, names):
    """A line of a table has the mean and the standard error of each of these arms, in this order."""
    shown = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) \(([\d.]+)\)", line)]
    for name, (mean, error) in zip(names, shown, strict=True):
        assert mean == pytest.approx(arms[name]["mean"], abs=0.051 if mean < 10 else 0.51), (line, name)
        assert error == pytest.approx(arms[name]["error"], abs=0.051), (line, name)


def test_the_search_beats_random_queries_where_candidates_are_many_and_nowhere_is_worse():
    """Of few candidates all are queried, by chance or not: the pages say so."""
    for arms in RECORDED.values():
        private, random = arms["private 1"], arms["random 1"]
        gain, error = random["mean"] - private["mean"], (private["error"] ** 2 + random["error"] ** 2) ** 0.5
        is_choosing = private["candidates"] > privacy_cost.QUERIES
        assert gain > 4 * error if is_choosing else abs(gain) < 2 * error


def test_random_queries_are_judged_by_the_model_of_the_search():
    """The same answers about all candidates give the same recommendation; the largest answer gives another."""
    z = np.linspace(0, 1, 20)[:, None]
    values = np.exp(-20 * (z[:, 0] - 0.7) ** 2)
    values[2] = 1.4  # a lucky answer: its neighbours are near 0
    table = groups.Table(z, values, groups.houses().box[:1], [20], 0.0, 2.0, {"1": 1})
    study = groups.view(z, groups.study_of(table, "1"), mechanism="groups", epsilon="0.5")
    passport = wire.NoisePassport(measurement_variance=0.25)
    problem = groups.Problem(z, study, lambda row: (float(values[row]), passport), float)
    recommended = problem.regrets(1, "random", 20, by="auto")[-1]
    assert recommended == problem.regrets(1, "auto", 20)[-1]
    assert 11 <= recommended <= 16
    assert problem.regrets(1, "random", 20)[-1] == 2  # the control


def test_a_small_measurement_runs(monkeypatch):
    monkeypatch.setattr(privacy_cost, "SIZES", (200,))
    ((records, arms),) = privacy_cost.measure(2)["records"].items()
    assert records == "200"
    assert {"private 1", "random 1", "plain", "any", "random records, private answers"} <= arms.keys()
    assert all(0 <= arm["mean"] <= 100 for arm in arms.values())
    assert arms["records, exact answers"]["candidates"] == 200
    assert 2 <= arms["private 1"]["candidates"] <= 4
