"""The demo's output: the table, the plot, the JSON file."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from rich.console import Console as Console
from rich.table import Table

from blindopt.wire import Finding
from demo.property_data import FEATURES
from demo.story import MOVES, Method, Outcome

_GRID = {"color": "#ddd", "dasharray": "none"}
Outcomes = dict[Method, list[Outcome]]
WIDE = 110
"""Width of a terminal below which the table omits columns that the others imply."""


def table(outcomes: Outcomes, width: int) -> Table:
    """Make the table: method, epsilon, guarantee, rebuilt records, best value, regret, queries; means over the runs.

    Below WIDE columns: only method, guarantee, rebuilt records and regret.
    """
    columns = {
        "method": [method.name for method in outcomes],
        "epsilon": [method.epsilon or "-" for method in outcomes],
        "guaranteed": [method.guarantee for method in outcomes],
        "other rows rebuilt": [_rebuilt(method.rebuilt) for method in outcomes],
        "best": [f"{fmean(o.best for o in runs):.3f}" for runs in outcomes.values()],
        "regret": [mean_and_error([o.regrets[-1] for o in runs]) for runs in outcomes.values()],
        "queries": [f"{fmean(o.queries for o in runs):.0f}" for runs in outcomes.values()],
    }
    if width < WIDE:
        columns = {name: columns[name] for name in ("method", "guaranteed", "other rows rebuilt", "regret")}
    result = Table(title="The cheapest of 21,613 houses (log10 of US dollars)", caption=_caption(outcomes))
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in ("best", "regret", "queries") else "left"
        result.add_column(name, justify=justify, no_wrap=name != "guaranteed")
    for cells in zip(*columns.values(), strict=True):
        result.add_row(*cells)
    return result


def _caption(outcomes: Outcomes) -> str:
    runs = max(len(results) for results in outcomes.values())
    lines = [
        "DP: differential privacy of a record that moves by at most Delta.",
        f"Delta: {MOVES}.",
        f"Rebuilt: by an attacker who knows {len(FEATURES) + 1} of the records, on a trial release.",
        "The kernel was fitted to these sales, which are public; with private records it must come from elsewhere.",
        "Regret: the best value of the run minus the best of all houses"
        + (f": mean of {runs} runs, +- its standard error." if runs > 1 else "."),
    ]
    return "\n".join(lines)


def _rebuilt(finding: Finding | None) -> str:
    """Describe how many of the other rows an attacker with d+1 known rows rebuilds, and how closely."""
    if finding is None:
        return "-"
    off = finding.distance or 0.0
    return f"{100 * finding.figure:.0f} %, " + ("exactly" if off < 1e-6 else f"off by {off:.2g} Delta")


def mean_and_error(values: list[float]) -> str:
    """Format a mean with its standard error, if there are several values."""
    error = _standard_error(values)
    return f"{fmean(values):.3f}" + (f" +- {error:.3f}" if error is not None else "")


def _standard_error(values: list[float]) -> float | None:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def as_json(outcomes: Outcomes) -> dict[str, Any]:
    """Return the table as JSON, with the regret of each run after each query."""
    return {
        "methods": [
            {
                "method": method.name,
                "study_id": method.study_id,
                "epsilon": method.epsilon,
                "guarantee": method.guarantee,
                "known_rows": method.rebuilt.model_dump() if method.rebuilt else None,
                "best": fmean(o.best for o in results),
                "regret": fmean(o.regrets[-1] for o in results),
                "standard_error": _standard_error([o.regrets[-1] for o in results]),
                "queries": fmean(o.queries for o in results),
                "seconds": fmean(o.seconds for o in results),
                "runs": [asdict(o) for o in results],
            }
            for method, results in outcomes.items()
        ],
    }


def plot(outcomes: Outcomes, path: Path) -> None:
    """Plot mean simple regret against queries as an SVG file, without scripts."""
    import pygal

    lines = ("none", "8,4", "2,3", "8,3,2,3", "14,4", "1,2")
    runs = max(len(results) for results in outcomes.values())
    chart = pygal.XY(
        title=f"21,613 house sales: {f'mean of {runs} runs per method' if runs > 1 else 'one run per method'}",
        x_title="queries",
        y_title="simple regret (log10 US dollars)",
        width=840,
        height=520,
        explicit_size=True,
        include_x_axis=True,
        show_dots=False,
        legend_at_bottom=True,
        legend_at_bottom_columns=2,
        truncate_legend=-1,
        js=(),
        style=_style(),
    )
    for (method, results), dashes in zip(outcomes.items(), lines, strict=True):
        mean = [fmean(at) for at in zip(*(o.regrets for o in results), strict=True)]
        steps = [(1, mean[0])]
        for query, (before, after) in enumerate(pairwise(mean), start=2):
            steps += [(query, before), (query, after)]
        chart.add(method.name, steps, stroke_style={"dasharray": dashes})
    chart.render_to_file(str(path))


def _style() -> Any:
    """Dark text and light grids on white; the curves in colours that differ in their dashes, too."""
    from pygal.style import Style

    sizes = {f"{part}_font_size": 13 for part in ("label", "major_label", "legend", "title")}
    grids = {f"{part}_stroke_{what}": value for part in ("guide", "major_guide") for what, value in _GRID.items()}
    return Style(
        background="white",
        plot_background="white",
        foreground="#222",
        foreground_strong="#000",
        foreground_subtle="#999",
        colors=("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"),
        font_family="sans-serif",
        stroke_width="2",
        **sizes,
        **grids,
    )


def write_json(outcomes: Outcomes, path: Path) -> None:
    """Write the JSON file of ``--json``."""
    path.write_text(json.dumps(as_json(outcomes), indent=2) + "\n")


def console() -> Console:
    """Return standard output as a console; without a terminal, one that is wide enough for the table."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=120)
