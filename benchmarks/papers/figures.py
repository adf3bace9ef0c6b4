"""Curves as SVG: the same bytes for the same numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.summary import Summary

WIDTH, HEIGHT = 4.4, 3.4  # inches, of one group
POINTS = 25
"""Most points of a curve, so that figures stay small."""
FLOOR = 1e-4
"""Smaller regrets are drawn at this value: the axis is logarithmic."""


def draw(
    path: Path,
    summary: Summary,
    panels: Sequence[tuple[str, str, Sequence[str]]],
    *,
    xlabel: str,
    ylabel: str,
    log: bool,
) -> None:
    """Draw a panel for each (title, group, columns): means over the runs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "blindopt", "svg.fonttype": "none", "font.size": 8}):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(WIDTH * len(panels), HEIGHT), squeeze=False, layout="constrained"
        )
        for axis, (title, group, columns) in zip(axes[0], panels, strict=True):
            for number, column in enumerate(columns):
                _curve(axis, summary["marks"], summary["groups"][group][column], column, number)
            axis.set(title=title, xlabel=xlabel, ylabel=ylabel, yscale="log", xscale="log" if log else "linear")
            axis.grid(alpha=0.3, linewidth=0.5)
            axis.legend(fontsize=6, frameon=False)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _curve(axis: Any, marks: list[int], figures: dict[str, Any], column: str, number: int) -> None:
    """Draw a line through evenly spaced means, with one standard error at the last."""
    last = len(marks) - 1
    shown = sorted({round(index) for index in np.linspace(0, last, min(POINTS, last + 1))})
    mean = [max(figures["curve"][index], FLOOR) for index in shown]
    style = {"color": f"C{number % 10}", "linewidth": 1.2, "linestyle": "--" if number >= 10 else "-"}
    axis.plot([marks[index] for index in shown], mean, label=column, **style)
    if figures["se"] is not None and mean[-1] > FLOOR:
        low = max(mean[-1] - figures["se"], FLOOR)
        axis.plot([marks[-1]] * 2, [low, mean[-1] + figures["se"]], color=style["color"], linewidth=0.8)
