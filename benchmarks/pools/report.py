"""Tables of runs on pools: by number of columns, by pool, and where a tool is worse than random rows."""

from math import sqrt
from typing import Any

import numpy as np

from benchmarks.pools.play import MARKS, random_rows
from benchmarks.pools.suite import GROUPS, Pool, group_of
from benchmarks.table import Cell, Table

Runs = dict[str, list[dict[str, Any]]]
Chance = tuple[float, tuple[float, ...]]
"""Queries of random rows to the top 1 %, and their regrets."""


def _mean(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error, which is not known of one run."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / sqrt(len(values))) if len(values) > 1 else np.nan


def _of_pools(figures: list[tuple[float, float]]) -> str:
    """The mean over pools, each of the same weight."""
    mean, error = np.mean([mean for mean, _ in figures]), sqrt(sum(e**2 for _, e in figures)) / len(figures)
    return f"{mean:.1f} ({error:.1f})"


def _worse(runs: Runs, by_chance: dict[str, Chance], mark: int) -> str:
    """Pools on which regret at a mark is above that of random rows by two standard errors; "" if runs ended before."""
    worse = []
    for name, (_, chance) in by_chance.items():
        regrets = [run["regret"][mark] for run in runs[name]]
        if None in regrets:
            return ""
        mean, error = _mean(regrets)
        if mean - chance[mark] > 2 * error:
            worse.append(name)
    return ", ".join(worse) or "none"


def tables(pools: dict[str, Pool], tools: dict[str, Runs], queries: int) -> list[Table]:
    """Make the tables of those pools that each tool has played."""
    tools = {tool: {name: runs[name] for name in pools if runs.get(name)} for tool, runs in tools.items()}
    members = [name for name in pools if all(name in runs for runs in tools.values())]
    by_chance = {name: random_rows(pools[name], queries) for name in members}
    top = {tool: {name: _mean([run["top"] for run in runs[name]]) for name in members} for tool, runs in tools.items()}
    groups = {group: [name for name in members if group_of(pools[name]) == group] for group in GROUPS}
    rows: list[list[Cell]] = []
    for group, inside in [*groups.items(), ("all", members)]:
        if inside:
            chance = f"{np.mean([by_chance[name][0] for name in inside]):.1f}"
            figures = [[top[tool][name] for name in inside] for tool in tools]
            apart = [
                [(a - b, sqrt(e**2 + f**2)) for (a, e), (b, f) in zip(figures[0], other, strict=True)]
                for other in figures[1:]
            ]
            rows.append([group, len(inside), *map(_of_pools, figures), *map(_of_pools, apart), chance])
    title = f"Queries to the top 1 %, {queries + 1} if none of {queries} is, by number of columns (standard errors)"
    first, *others = tools
    differences = [f"{first} less {other}" for other in others]
    summary = Table(title, ["columns", "pools", *tools, *differences, "random rows"], rows)
    worse = "pools worse than random rows at {} queries by two standard errors"
    worst: list[list[Cell]] = [
        [worse.format(MARKS[0]), *(_worse(runs, by_chance, 0) for runs in tools.values())],
        [worse.format(MARKS[1]), *(_worse(runs, by_chance, 1) for runs in tools.values())],
        ["processor seconds of 20 queries",
         *(float(np.mean([run["seconds"][0] for name in members for run in runs[name]])) for runs in tools.values())],
        [f"processor seconds of {queries} queries, of the runs that make them",
         *(_seconds([run for name in members for run in runs[name] if run["queries"] == queries])
           for runs in tools.values())],
        [f"pools with fewer queries than {[*tools][-1]}",
         *(sum(top[tool][name][0] < top[[*tools][-1]][name][0] for name in members) for tool in tools)],
        ["runs of a pool", *(_span([len(runs[name]) for name in members]) for runs in tools.values())],
    ]  # fmt: skip
    return [summary, Table("All pools", ["", *tools], worst), _each(pools, tools, top, by_chance)]


def _seconds(runs: list[dict[str, Any]]) -> float | None:
    return float(np.mean([run["seconds"][1] for run in runs])) if runs else None


def _span(counts: list[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(min(counts))


def _each(pools: dict[str, Pool], tools: dict[str, Runs], top: Any, by_chance: dict[str, Chance]) -> Table:
    columns = [f"{tool}: {fact}" for fact in ("top 1 %", "regret at 20", "regret at 50") for tool in [*tools, "random"]]
    rows: list[list[Cell]] = []
    for name in by_chance:
        n, d = pools[name].x.shape
        row: list[Cell] = [f"{name} ({n:,} x {d})"]
        row += [f"{top[tool][name][0]:.1f} ({top[tool][name][1]:.1f})" for tool in tools]
        row.append(f"{by_chance[name][0]:.1f}")
        for k in range(len(MARKS)):
            for runs in tools.values():
                reached = [run["regret"][k] for run in runs[name] if run["regret"][k] is not None]
                row.append("{:.2f} ({:.2f})".format(*_mean(reached)) if len(reached) == len(runs[name]) else "")
            row.append(f"{by_chance[name][1][k]:.2f}")
        rows.append(row)
    return Table("Each pool; regret in standard deviations of its outcomes", ["pool", *columns], rows)
