"""Charts of runs: answers, estimates of the chosen rows, and the posterior at the candidates."""

from collections.abc import Sequence
from dataclasses import replace

from blindopt import wire
from service_kit.console import Page, charts
from service_kit.console.charts import Chart, Level, Points, Series

_WIDE = 1.959963984540054  # of a normal, for 95 %


def best_so_far(points: Sequence[wire.CurvePoint]) -> Series:
    shown = [point for point in points if point.best is not None]
    return Series("best so far", [point.number for point in shown], [point.best for point in shown], is_step=True)


def _address(run: wire.RunView, **query: int) -> str:
    return Page.url(f"/runs/{run.id}/trials", **query)


def _answers(run: wire.RunView, points: Sequence[wire.CurvePoint]) -> Series:
    links = [_address(run, first=point.number) for point in points]
    return Series("answer", [point.number for point in points], [point.y for point in points], dots=True, links=links)


def convergence(run: wire.RunView, points: Sequence[wire.CurvePoint]) -> Chart:
    levels = [] if run.stop.target is None else [Level(run.stop.target, "target")]
    best, answers = best_so_far(points), _answers(run, points)
    title = "Answers and the best so far" if len(best.x) else "Answers, which are randomized"
    series = [best, answers] if len(best.x) else [answers]
    return charts.line("convergence", title, series, x="trial", y="answer", levels=levels)


def beliefs(run: wire.RunView, trials: Sequence[wire.CurvePoint]) -> Chart | None:
    """The estimate of each chosen row and its answer; None if the algorithm has no estimates."""
    estimated = [trial for trial in trials if trial.mean is not None and trial.sd is not None]
    if not estimated:
        return None
    numbers = [trial.number for trial in estimated]
    expected = Series(
        "expected, with its interval under the model",
        numbers,
        [trial.mean for trial in estimated],
        [(trial.mean or 0) - _WIDE * (trial.sd or 0) for trial in estimated],
        [(trial.mean or 0) + _WIDE * (trial.sd or 0) for trial in estimated],
    )
    series = [expected, _answers(run, estimated)]
    return charts.line("beliefs", "Chosen candidates: expected and answered", series, x="trial", y="answer")


def landscape(run: wire.RunView, view: wire.PosteriorMap) -> Chart:
    """Candidates on the first two principal axes of the release, coloured by their posterior mean."""
    queried = [point for point in view.points if point.asked]
    others = [point for point in view.points if not point.asked]
    first, second = (f"{100 * share:.0f} % of the variance of the release" for share in view.shares)
    return charts.scatter(
        "map",
        "What the model expects of each candidate",
        [_group("not queried", others), _group("queried", queried, run)],
        x=f"first principal axis ({first})",
        y=f"second ({second})",
        colour="posterior mean",
    )


def _group(name: str, points: Sequence[wire.MapPoint], run: wire.RunView | None = None) -> Points:
    """Points of a map: rings that lead to their trials, where ``run`` is the run that queried them."""
    return Points(
        name,
        [point.first for point in points],
        [point.second for point in points],
        colour=[point.mean for point in points],
        labels=[f"candidate {point.row}" for point in points],
        is_ring=run is not None,
        links=[_address(run, row=point.row) for point in points] if run else (),
    )


_SLICES = 4


def relevance(view: wire.PosteriorSlices) -> list[Chart]:
    """How much each axis of the release explains, and slices along those that explain most."""
    word = {"column": "column", "principal_axis": "principal axis"}[view.by]
    values = [charts.Bar(f"{word} {axis.axis}", 100 * axis.relevance) for axis in view.axes]
    shown = [
        charts.bars(
            "relevance", f"Relevance by {word} of the release", values, value="% of the variation explained", name=word
        )
    ]
    for axis in view.axes[:_SLICES]:
        means = Series(
            "mean, with the range of 80 % of the candidates",
            [group.at for group in axis.parts],
            [group.mean for group in axis.parts],
            [group.low for group in axis.parts],
            [group.high for group in axis.parts],
        )
        title = f"Slice along {word} {axis.axis}"
        shown.append(
            charts.line(f"slice-{axis.axis}", title, [means], x=f"{word} {axis.axis} of the release", y="expected")
        )
    return shown


def compared(runs: Sequence[tuple[wire.RunView, Sequence[wire.CurvePoint]]]) -> Chart | None:
    """The best so far of several runs; None where all answers are randomized."""
    curves = [(run, best_so_far(points)) for run, points in runs]
    series = [replace(best, name=f"{run.name} ({run.id[-6:]})") for run, best in curves if len(best.x)]
    if not series:
        return None
    return charts.line("compared", "Best answer so far", series, x="trial", y="y")
