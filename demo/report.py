"""The demo's output: the table, what to conclude from it, the plot, the JSON file."""

import json
from dataclasses import asdict
from math import exp
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console as Console
from rich.table import Table

from demo import story
from demo.places import LEAST, PARTS
from demo.story import LEVELS, Method, Outcome, Played

_GRID = {"color": "#ddd", "dasharray": "none"}


def table(played: Played) -> Table:
    """A line for each level of privacy: how sure anyone can become, attacks, and both ways to choose places."""
    result = Table(
        title="In which place do houses sell best? 21,613 sales", caption=_caption(played), caption_justify="left"
    )
    for name, justify in (
        ("privacy of a sale", "left"),
        ("how sure anyone gets", "left"),
        ("attacks find", "left"),
        ("search", "right"),
        ("random places", "right"),
    ):
        result.add_column(name, justify="right" if justify == "right" else "left")
    for epsilon in LEVELS:
        verdict = played.verdicts.get(epsilon or "")
        result.add_row(
            "none" if epsilon is None else f"epsilon {epsilon}",
            "certain" if epsilon is None else f"{100 * surest(epsilon):.0f} % at most",
            f"{verdict.level} risk" if verdict else "-",
            *(mean_and_error(_shares(played, Method(epsilon, is_random))) for is_random in (False, True)),
        )
    return result


def surest(epsilon: str) -> float:
    """How sure somebody becomes of a sale who was undecided (50/50), at most, from all that the vendor receives."""
    return 1 / (1 + exp(-float(epsilon)))


def _shares(played: Played, method: Method) -> list[float]:
    return [100 * outcome.regret for outcome in played.outcomes[method]]


def _caption(played: Played) -> str:
    runs = max(len(results) for results in played.outcomes.values())
    mean = f"mean of {runs} runs, each with a release of its own, +- standard error" if runs > 1 else "one run"
    return "\n".join(
        (
            "How sure: somebody who was undecided (50 %) about a sale, from all that the vendor receives.",
            f"Search, random places: how far prices there are below the best place, after {story.QUERIES} queries;",
            f"{mean}. A place is one of {PARTS} x {PARTS} squares of a map, with {LEAST} sales or more.",
        )
    )


def conclusions(played: Played) -> list[str]:
    """Three sentences of what to conclude, with the figures of these runs."""
    below = {epsilon: fmean(_shares(played, Method(epsilon))) for epsilon in LEVELS}
    chance = {epsilon: fmean(_shares(played, Method(epsilon, is_random=True))) for epsilon in LEVELS}
    bare, mild, strict = LEVELS
    assert mild is not None
    price = f"with epsilon {mild} the search finds a place {below[mild]:.0f} % below the best"
    beside = "no better than random places" if below[strict] >= chance[strict] else "better than random places"
    first = "Privacy has a price" if below[mild] > below[bare] else "Too few runs for a price"
    second = "More privacy costs more" if below[strict] > below[mild] else "Too few runs for an order"
    return [
        f"{first}: {price}, and without privacy one {below[bare]:.0f} % below.",
        f"{second}: with epsilon {strict} it is {below[strict]:.0f} % below, {beside}.",
        f"Start at epsilon {mild}: nobody gets more than {100 * surest(mild):.0f} % sure of a sale.",
    ]


def mean_and_error(values: list[float]) -> str:
    """Format a mean of percentages with its standard error, if there are several values."""
    error = _standard_error(values)
    return f"{fmean(values):.0f}" + (f" +- {error:.0f}" if error is not None else "") + " %"


def _standard_error(values: list[float]) -> float | None:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def as_json(played: Played) -> dict[str, Any]:
    """Return the table as JSON, with the regret of each run as a share from 0 to 1."""
    return {
        "methods": [_line(method, results, played) for method, results in played.outcomes.items()],
        "conclusions": conclusions(played),
    }


def _line(method: Method, results: list[Outcome], played: Played) -> dict[str, Any]:
    verdict = played.verdicts.get(method.epsilon or "")
    return {
        "method": method.name,
        "epsilon": method.epsilon,
        "surest": None if method.epsilon is None else surest(method.epsilon),
        "verdict": verdict.model_dump() if verdict else None,
        "regret": fmean(outcome.regret for outcome in results),
        "standard_error": _standard_error([outcome.regret for outcome in results]),
        "seconds": fmean(outcome.seconds for outcome in results),
        "runs": [asdict(outcome) for outcome in results],
    }


def plot(played: Played, path: Path) -> None:
    """Plot the price of privacy as an SVG file, without scripts."""
    import pygal

    runs = max(len(results) for results in played.outcomes.values())
    chart = pygal.Bar(
        title=f"Prices below the best place: {f'mean of {runs} runs' if runs > 1 else 'one run'}",
        y_title="percent",
        width=840,
        height=420,
        explicit_size=True,
        legend_at_bottom=True,
        truncate_legend=-1,
        js=(),
        style=_style(),
    )
    chart.x_labels = ["no privacy" if epsilon is None else f"epsilon {epsilon}" for epsilon in LEVELS]
    for is_random, name in ((False, "search"), (True, "random places")):
        chart.add(name, [fmean(_shares(played, Method(epsilon, is_random))) for epsilon in LEVELS])
    chart.render_to_file(str(path))


def _style() -> Any:
    from pygal.style import Style

    sizes = {f"{part}_font_size": 13 for part in ("label", "major_label", "legend", "title")}
    grids = {f"{part}_stroke_{what}": value for part in ("guide", "major_guide") for what, value in _GRID.items()}
    return Style(
        background="white",
        plot_background="white",
        foreground="#222",
        foreground_strong="#000",
        foreground_subtle="#999",
        colors=("#1f77b4", "#bbbbbb"),
        font_family="sans-serif",
        **sizes,
        **grids,
    )


def write_json(played: Played, path: Path) -> None:
    path.write_text(json.dumps(as_json(played), indent=2) + "\n", encoding="utf-8")


def console() -> Console:
    """Return standard output as a console; without a terminal, one that is wide enough for the table."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=120)
