"""Plots with matplotlib, in one style: one colour for each series, light grids, labels on every axis."""

from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from blindopt import wire
from blindopt.errors import ExtraMissing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2f5d8a", "#b3541e", "#3d7a4f", "#7a4f7d", "#6b6b6b")
"""Distinct on white, also for people with colour blindness."""
UNIT = "in units of the measurement"
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "axes.axisbelow": True,
    "font.size": 10,
    "legend.frameon": False,
}


def new_axes(axes: Any = None, count: int = 1) -> Any:
    """Return ``axes``, or ``count`` new ones, below each other, in the house style. Raises ExtraMissing."""
    if axes is not None:
        return axes
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ExtraMissing("matplotlib", "plots") from None
    with plt.rc_context(STYLE):
        return plt.subplots(count, squeeze=count == 1, figsize=(7.0, 4.0 * count), layout="constrained")[1]


def course(runs: Mapping[str, wire.RunExport], axes: "Axes | None" = None) -> "Axes":
    """Plot the best y so far of each run by trial, each y of randomized ones; for one run also what was expected."""
    axes = new_axes(axes)
    for index, (name, export) in enumerate(runs.items()):
        trials = [trial for trial in export.trials if trial.y is not None]
        numbers, y = [trial.number for trial in trials], [float(trial.y or 0.0) for trial in trials]
        better = min if export.run.study is not None and export.run.study.direction == "minimize" else max
        colour = COLOURS[index % len(COLOURS)]
        is_exact = export.run.best is not None  # of randomized answers the best is the luckiest
        if len(runs) == 1 or not is_exact:
            axes.plot(numbers, y, "o", color=colour, markersize=4, label="answer" if len(runs) == 1 else name)
        if len(runs) == 1:
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
        if is_exact:
            best = list(accumulate(y, better))
            axes.step(numbers, best, where="post", color=colour, label="best so far" if len(runs) == 1 else name)
    title = "Answers, with the best so far of exact ones" if len(runs) == 1 else "Best answer so far, of exact ones"
    return _labelled(axes, title, "trial", f"answer, {UNIT}")


def landscape(view: wire.PosteriorMap, axes: "Axes | None" = None) -> "Axes":
    """Plot the posterior mean of candidates on the first two principal axes of the release; rings: those queried."""
    axes = new_axes(axes)
    queried = [point for point in view.points if point.asked]
    places = axes.scatter(
        [point.first for point in view.points],
        [point.second for point in view.points],
        c=[float("nan") if point.mean is None else point.mean for point in view.points],
        s=18,
        cmap="Blues",
        label="candidate",
    )
    first, second = ([getattr(point, name) for point in queried] for name in ("first", "second"))
    axes.scatter(first, second, s=60, facecolors="none", edgecolors=COLOURS[1], label="queried")
    axes.figure.colorbar(places, ax=axes, label=f"expected, {UNIT}")
    shares = [f"{100 * share:.0f} % of the variance of the release" for share in view.shares]
    title = "What the model expects of each candidate"
    return _labelled(axes, title, f"first principal axis ({shares[0]})", f"second ({shares[1]})")


def relevance(view: wire.PosteriorSlices, axes: "Axes | None" = None) -> "Axes":
    """Plot how much of the variation of the posterior mean each axis of the release explains, as bars."""
    axes, word = new_axes(axes), view.by.replace("_", " ")
    names = [f"{word} {axis.axis}" for axis in view.axes]
    axes.barh(names[::-1], [100 * axis.relevance for axis in view.axes][::-1], color=COLOURS[0])
    axes.set_title(f"Relevance by {word} of the release")
    axes.set_xlabel("% of the variation explained")
    bars: Axes = axes
    return bars


def slices(view: wire.PosteriorSlices) -> "Figure":
    """Plot the posterior mean along the axes of the release that explain most: a figure."""
    word, shown = view.by.replace("_", " "), view.axes[:4]
    figure_axes = [new_axes()] if len(shown) == 1 else list(new_axes(count=len(shown))[:, 0])
    for axis, axes in zip(shown, figure_axes, strict=True):
        at = [part.at for part in axis.parts]
        low, high = [part.low for part in axis.parts], [part.high for part in axis.parts]
        axes.fill_between(at, low, high, color=COLOURS[0], alpha=0.2, label="80 % of the candidates")
        axes.plot(at, [part.mean for part in axis.parts], "o-", color=COLOURS[0], label="mean")
        _labelled(axes, f"Slice along {word} {axis.axis}", f"{word} {axis.axis} of the release", f"expected, {UNIT}")
    figure: Figure = figure_axes[0].figure
    return figure


def _labelled(axes: "Axes", title: str, x: str, y: str) -> "Axes":
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend()
    return axes
