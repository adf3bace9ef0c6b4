"""What privacy costs: the plot and the pages show what was measured, and a small measurement runs."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import privacy_cost, privacy_plot

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
        names = [*(f"private {epsilon}" for epsilon in privacy_cost.EPSILONS), "random 1"]
        shown = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) \(([\d.]+)\)", line.partition(") |")[2])]
        for name, (mean, error) in zip(names, shown, strict=True):
            assert mean == pytest.approx(arms[name]["mean"], abs=0.051 if mean < 10 else 0.51), (records, name)
            assert error == pytest.approx(arms[name]["error"], abs=0.051), (records, name)
    whole = RECORDED[privacy_plot.RECORDS]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    figures = [
        f"{whole['private 1']['mean']:.1f} %",
        f"{whole['random 1']['mean']:.0f} %",
        f"{whole['plain']['mean']:.1f} %",
    ]
    assert [figure for figure in figures if figure not in readme] == []


def test_at_epsilon_1_the_private_search_beats_random_search():
    for arms in RECORDED.values():
        private, random = arms["private 1"], arms["random 1"]
        assert random["mean"] - private["mean"] > 2 * (private["error"] ** 2 + random["error"] ** 2) ** 0.5


def test_a_small_measurement_runs(monkeypatch):
    monkeypatch.setattr(privacy_cost, "SIZES", (200,))
    ((records, arms),) = privacy_cost.measure(2)["records"].items()
    assert records == "200"
    assert {"private 1", "random 1", "plain", "any", "records, private answers"} <= arms.keys()
    assert all(0 <= arm["mean"] <= 100 for arm in arms.values())
