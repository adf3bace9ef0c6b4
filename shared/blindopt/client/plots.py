"""Plots with matplotlib, in one style: one colour for each series, light grids, labels on every axis."""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from blindopt import wire
from blindopt.errors import ExtraMissing

COLOURS = ("#2f5d8a", "#b3541e", "#3d7a4f", "#7a4f7d", "#6b6b6b")
"""Distinct on white, also for people with colour blindness."""
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "axes.axisbelow": True,
    "font.size": 10,
    "legend.frameon": False,
}


def new_axes(axes: Any = None) -> Any:
    """Return ``axes``, or new ones in the house style. Raises ExtraMissing without matplotlib."""
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ExtraMissing("matplotlib", "plots") from None
    with plt.rc_context(STYLE):
        return plt.subplots(figsize=(7.0, 3.5))[1]


def course(runs: Mapping[str, wire.RunExport], axes: Any = None) -> Any:
    """Plot the best y so far of each run by trial; for one run also each y, and what was expected of it."""
    axes = new_axes(axes)
    for index, (name, export) in enumerate(runs.items()):
        trials = [trial for trial in export.trials if trial.y is not None]
        numbers, y = [trial.number for trial in trials], [float(trial.y or 0.0) for trial in trials]
        better = min if export.run.study is not None and export.run.study.direction == "minimize" else max
        colour = COLOURS[index % len(COLOURS)]
        if len(runs) == 1:
            axes.plot(numbers, y, "o", color=colour, markersize=4, label="answer")
            expected = [trial for trial in trials if trial.mean is not None and trial.sd is not None]
            middle = [float(trial.mean or 0.0) for trial in expected]
            reach = [1.96 * float(trial.sd or 0.0) for trial in expected]
            axes.errorbar(
                [trial.number for trial in expected],
                middle,
                yerr=reach,
                fmt="none",
                ecolor=COLOURS[4],
                elinewidth=0.8,
                label="expected, interval under the model",
            )
        best = list(accumulate(y, better))
        axes.step(numbers, best, where="post", color=colour, label="best so far" if len(runs) == 1 else name)
    axes.set_xlabel("trial")
    axes.set_ylabel("y")
    axes.legend()
    return axes
