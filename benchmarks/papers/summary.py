"""Means over the runs of a part, with standard errors: the input of the tables and figures."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np

from benchmarks.papers.part import Part, Size
from benchmarks.papers.runner import Run

Summary = dict[str, Any]


def summary_of(part: Part, size: Size, runs: Iterable[Run]) -> Summary:
    """For each column: mean and standard error of its last regret and its curve, and all last regrets."""
    groups: dict[str, list[Run]] = {}
    ordered = sorted(runs, key=lambda run: run.task)
    for run in ordered:
        groups.setdefault(run.task[0], []).append(run)
    return {
        "part": part.name,
        "size": size.name,
        "cpu_s": round(sum(run.cpu_s for run in ordered), 1),
        "facts": part.facts(size),
        "marks": list(part.marks(size)),
        "groups": {name: _columns(curves) for name, curves in groups.items()},
    }


def _columns(runs: list[Run]) -> dict[str, Any]:
    return {name: _column(np.array([run.curves[name] for run in runs])) for name in runs[0].curves}


def _column(curves: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> dict[str, Any]:
    m = len(curves)
    error = curves.std(axis=0, ddof=1) / sqrt(m) if m > 1 else np.full(curves.shape[1], np.nan)
    return {
        "runs": m,
        "mean": _short(curves[:, -1].mean()),
        "se": _short(error[-1]) if m > 1 else None,
        "last": [_short(value) for value in curves[:, -1]],
        "curve": [_short(value) for value in curves.mean(axis=0)],
        "curve_se": [_short(value) for value in error] if m > 1 else None,
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over runs; ``se`` is its standard error, None for one run; and the median and the 90 % quantile."""

    mean: float
    se: float | None
    runs: int
    median: float = nan
    high: float = nan

    @property
    def text(self) -> str:
        """The figure as tables show it."""
        return self.rounded(4)

    def rounded(self, digits: int) -> str:
        """The figure with so many decimals."""
        text = f"{self.mean:.{digits}f}" + (f" ({self.se:.{digits}f})" if self.se is not None else "")
        return f"{text} [{self.median:.{digits}f}, {self.high:.{digits}f}]"


def figure(summary: Summary, group: str, column: str) -> Figure:
    """Return a column's figure from a summary."""
    values = summary["groups"][group][column]
    median, high = np.quantile(values["last"], [0.5, 0.9])
    return Figure(values["mean"], values["se"], values["runs"], float(median), float(high))


def difference(summary: Summary, group: str, column: str, other: str) -> Figure:
    """Return a column's figure minus another's of the same runs."""
    columns = summary["groups"][group]
    apart = np.subtract(columns[column]["last"], columns[other]["last"])
    error = float(apart.std(ddof=1) / sqrt(len(apart))) if len(apart) > 1 else None
    median, high = np.quantile(apart, [0.5, 0.9])
    return Figure(float(apart.mean()), error, len(apart), float(median), float(high))
