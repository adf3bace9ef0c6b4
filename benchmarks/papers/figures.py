"""Curves as SVG: the same bytes for the same numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.summary import Summary

WIDTH, HEIGHT = 4.4, 3.4  # inches, of one group


def draw(
    path: Path,
    summary: Summary,
    panels: Sequence[tuple[str, str, Sequence[str]]],
    *,
    xlabel: str,
    ylabel: str,
    log: bool,
) -> None:
    """A panel for each (title, group, columns): mean over the runs, a band of one standard error."""
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


def _curve(axis: Any, marks: list[int], said: dict[str, Any], column: str, number: int) -> None:
    """Below the tenth part of a thousandth nothing is shown: the axis is logarithmic."""
    floor = 1e-4
    mean = [max(value, floor) for value in said["curve"]]
    (line,) = axis.plot(
        marks, mean, label=column, linewidth=1.2, color=f"C{number % 10}", linestyle="--" if number >= 10 else "-"
    )
    if said["curve_se"] is not None:
        low = [max(m - e, floor) for m, e in zip(said["curve"], said["curve_se"], strict=True)]
        high = [m + e for m, e in zip(mean, said["curve_se"], strict=True)]
        axis.fill_between(marks, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
