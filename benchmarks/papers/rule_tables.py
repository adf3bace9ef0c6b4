"""Markdown tables of the chapter "Which rule"."""

import numpy as np

from benchmarks.papers.rules import BEST, CPU, LEVELS, RECOMMENDED, REPEATS, TOP, measured
from benchmarks.papers.summary import Summary, difference, figure
from benchmarks.papers.tables import Lines, markdown_table

_DIGITS = {TOP: 1}


def _rules(summary: Summary, group: str) -> list[str]:
    return [column.removesuffix(f": {BEST}") for column in summary["groups"][group] if column.endswith(f": {BEST}")]


def _groups(summary: Summary, level: str) -> list[str]:
    return [group for name in summary["facts"]["shapes"] if (group := f"{name}, {level}") in summary["groups"]]


def _ranks(means: list[float]) -> list[float]:
    """Ranks from 1, the smallest mean first; equals share the mean of theirs."""
    rounded = [round(mean, 4) for mean in means]
    return [sum(b < a for b in rounded) + (rounded.count(a) + 1) / 2 for a in rounded]


def _shown(summary: Summary, group: str) -> str:
    name = group.rsplit(", ", 1)[0]
    n, d = summary["facts"]["shapes"][name]
    return f"{name} ({n:,} x {d})"


def _table(summary: Summary, level: str, fact: str) -> Lines:
    """A row for each pool, then the mean rank of each rule and its worst case."""
    groups = _groups(summary, level)
    rules = _rules(summary, groups[0])
    rows, ranks, above = [], [], []
    for group in groups:
        figures = [figure(summary, group, measured(rule, fact)) for rule in rules]
        means = [f.mean for f in figures]
        rows.append([_shown(summary, group), *(f.rounded(_DIGITS.get(fact, 3)) for f in figures)])
        ranks.append(_ranks(means))
        above.append([mean - min(means) for mean in means])
    digits = _DIGITS.get(fact, 3)
    rows.append(["**mean rank**", *(f"{rank:.2f}" for rank in np.mean(ranks, axis=0))])
    rows.append(["**above the best rule, mean**", *(f"{over:.{digits}f}" for over in np.mean(above, axis=0))])
    rows.append(["**above the best rule, worst pool**", *(f"{over:.{digits}f}" for over in np.max(above, axis=0))])
    return markdown_table(["pool", *rules], rows)


def _over_all(summary: Summary, level: str) -> Lines:
    """Where each rule beats random rows, and what it repeats and costs."""
    groups = _groups(summary, level)
    rows = []
    for rule in _rules(summary, groups[0]):
        apart = [difference(summary, group, measured(rule, BEST), measured("random", BEST)) for group in groups]
        below = sum(f.mean < -2 * (f.se or 0.0) for f in apart)
        over = sum(f.mean > 2 * (f.se or 0.0) for f in apart)
        repeated, seconds = (
            np.mean([figure(summary, group, measured(rule, fact)).mean for group in groups]) for fact in (REPEATS, CPU)
        )
        rows.append([rule, f"{below} / {over} of {len(groups)}", f"{repeated:.1f}", f"{seconds:.2f}"])
    columns = [
        "rule",
        "pools below / above random rows by two standard errors",
        "repeated",
        "seconds of processor time",
    ]
    return markdown_table(columns, rows)


def rules_tables(summary: Summary) -> Lines:
    """Write the tables of each level: regrets, recommendations, queries to the top 1 %, and costs."""
    lines: Lines = []
    for level in LEVELS:
        if not _groups(summary, level):
            continue
        lines += [f"### {level[0].upper()}{level[1:]}", ""]
        titles = {
            BEST: f"Regret of the best queried record after {summary['facts']['steps']} steps:",
            RECOMMENDED: "Regret of the recommended record:",
            TOP: "Queries, the initial ones included, to the first record of the top 1 %:",
        }
        for fact, title in titles.items():
            lines += [title, "", *_table(summary, level, fact)]
        lines += _over_all(summary, level)
    return lines
