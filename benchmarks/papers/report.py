"""Writes benchmarks/papers/results/README.md and its figures from the summaries."""

from pathlib import Path

from benchmarks.papers import figures
from benchmarks.papers.chapters import CHAPTERS
from benchmarks.papers.summary import Summary

PAGE = "README.md"
"""Stands in one folder with the summaries and the figures."""


def write(folder: Path, summaries: list[Summary]) -> Path:
    """Write the page into ``folder``."""
    by_part = {summary["part"]: summary for summary in summaries}
    lines = [HEAD]
    for name, chapter in CHAPTERS.items():
        if name not in by_part:
            lines += [f"## {chapter.title}", "", "Not run.", ""]
            continue
        summary = by_part[name]
        size = f"{summary['size'].capitalize()} form, {_runs(summary)}"
        cost = f"{summary['cpu_s'] / 60:.1f} minutes of processor time"
        lines += [f"## {chapter.title}", "", f"*{size}; {cost}.*", "", chapter.text, ""]
        lines += [*chapter.tables(summary), f"![{chapter.title}]({name}.svg)", ""]
    target = folder / PAGE
    target.write_text("\n".join(lines).rstrip() + "\n")
    return target


def draw(folder: Path, summary: Summary) -> Path:
    """Draw the figure of a part beside its summary."""
    chapter, path = CHAPTERS[summary["part"]], folder / f"{summary['part']}.svg"
    panels = chapter.panels(summary)
    figures.draw(path, summary, panels, xlabel=chapter.xlabel, ylabel=chapter.ylabel, log=chapter.log)
    return path


def _runs(summary: Summary) -> str:
    counts = {column["runs"] for group in summary["groups"].values() for column in group.values()}
    return f"{' or '.join(str(count) for count in sorted(counts))} runs of each column"


HEAD = """# Results

Written by `make reproduce` from the runs that it made: the numbers in `*.json` beside this page say the same with more
digits.
Every release is drawn by the curator's own mechanisms, every row chosen by the modeler's own algorithms. In brackets:
the standard error of a mean over runs; in square brackets: the median and the 90 % quantile of the runs. Regrets are
heavy-tailed, so that a standard error from few runs says little.
What the curator draws has no seed, so that another run gives other numbers, within their errors.
"""
