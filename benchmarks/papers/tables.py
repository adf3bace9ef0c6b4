"""Markdown tables of measured and printed numbers."""

from dataclasses import dataclass
from math import hypot, inf, sqrt

import numpy as np

from benchmarks.papers import coverage, printed, synthetic
from benchmarks.papers.groups import GROUPS
from benchmarks.papers.property_rules import RECOMMENDED
from benchmarks.papers.records import PLANAR
from benchmarks.papers.summary import Figure, Summary, difference, figure
from benchmarks.papers.synthetic import GROUP, NON_PRIVATE, RANDOM, cell

Lines = list[str]
BASE = "IGP-UCB"
"""The algorithm that the others are paired with."""


def markdown_table(columns: list[str], rows: list[list[str]]) -> Lines:
    """Write a table, with an empty line after it."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


# --- PO-GP-UCB on functions of a Gaussian process ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """A printed number and ours; ``noise`` is the standard error of their difference, both being means of runs."""

    what: str
    printed: float
    ours: float
    se: float
    noise: float

    @property
    def row(self) -> list[str]:
        """Its row in the table."""
        z = f"{(self.ours - self.printed) / self.noise:+.1f}" if self.noise else ""
        return [self.what, f"{self.printed:.3f}", f"{self.ours:.4f} ({self.se:.4f})", z]


def comparisons(summary: Summary) -> list[Comparison]:
    """All 21 printed numbers: Tables 1 to 3, non-private, and two quoted differences to it."""
    rows = [_comparison("non-private", printed.NON_PRIVATE, figure(summary, GROUP, NON_PRIVATE))]
    for power, row in printed.TABLES.items():
        rows += [_comparison(cell(power, r), value, figure(summary, GROUP, cell(power, r))) for r, value in row.items()]
    for power, more in printed.QUOTED.items():
        private, open_ = summary["groups"][GROUP][cell(power, 10)], summary["groups"][GROUP][NON_PRIVATE]
        over = [a - b for a, b in zip(private["last"], open_["last"], strict=True)]
        rows.append(_comparison(f"{cell(power, 10)}, over non-private", more, _mean(over)))
    return rows


def by_chance(summary: Summary, rms: float) -> float:
    """Probability that as many of our runs as the paper's would differ from all of ours by as much (5,000 resamples).

    Resamples whole runs, since all columns of a run share their function: unlike standard errors, this accounts for
    heavy tails and for correlated columns.
    """
    columns = summary["groups"][GROUP]
    over = [np.subtract(columns[cell(power, 10)]["last"], columns[NON_PRIVATE]["last"]) for power in printed.QUOTED]
    tables = [columns[cell(power, r)]["last"] for power, row in printed.TABLES.items() for r in row]
    last = np.column_stack([columns[NON_PRIVATE]["last"], *tables, *over])
    rng, m = np.random.default_rng(0), len(last)
    apart = [
        last[rng.integers(m, size=m)].mean(axis=0) - last[rng.integers(m, size=printed.PAPER_RUNS)].mean(axis=0)
        for _ in range(5_000)
    ]
    return float(np.mean(np.sqrt(np.square(apart).mean(axis=1)) >= rms))


def _mean(values: list[float]) -> Figure:
    m = len(values)
    mean = sum(values) / m
    se = sqrt(sum((value - mean) ** 2 for value in values) / (m - 1) / m) if m > 1 else None
    return Figure(mean, se, m)


def _comparison(what: str, value: float, ours: Figure) -> Comparison:
    se = ours.se if ours.se is not None else float("nan")
    # The paper's runs are assumed to spread as ours do.
    return Comparison(what, value, ours.mean, se, se * sqrt(1 + ours.runs / printed.PAPER_RUNS))


def synthetic_tables(summary: Summary) -> Lines:
    """Write Tables 1 to 3 as one table."""
    facts, rows = summary["facts"], comparisons(summary)
    largest = ", ".join(f"{r} at {level}" for level, r in facts["largest_r"].items())
    rms = sqrt(sum((c.ours - c.printed) ** 2 for c in rows) / len(rows))
    noise = sqrt(sum(c.noise**2 for c in rows) / len(rows))
    within = sum(abs(c.ours - c.printed) <= 2 * c.noise for c in rows)
    return [
        f"sigma_min is {facts['sigma_min']:.1f}; the largest r with sigma_min >= omega is {largest}.",
        "",
        *markdown_table(["epsilon and r", "printed", "here", "difference in its own errors"], [c.row for c in rows]),
        f"Within two standard errors of the difference: {within} of {len(rows)}.",
        f"Root mean square of the differences {rms:.4f}, expected of noise alone {noise:.4f};",
        f"two such experiments differ by more in {100 * by_chance(summary, rms):.0f} % of cases (runs resampled).",
        f"{RANDOM.capitalize()}: {figure(summary, GROUP, RANDOM).text}.",
        "",
    ]


def frontier_table(summary: Summary) -> Lines:
    """Write the releases at two levels, and the goals."""
    rows = []
    for column in synthetic.LAWS:
        private = "no: refuted" if column.startswith("published") else "yes"
        reference = printed.REFERENCE_FRONTIER.get(column)
        row = [column, private]
        for index, level in enumerate(synthetic.FRONTIER):
            row += [figure(summary, GROUP, f"{column}, {level}").text, f"{reference[index]}" if reference else ""]
        rows.append(row)
    for column, value in ((NON_PRIVATE, printed.REFERENCE_OPEN), (RANDOM, printed.REFERENCE_RANDOM)):
        text = figure(summary, GROUP, column).text
        rows.append([column, "no" if column == NON_PRIVATE else "yes", text, f"{value}", text, f"{value}"])
    text = figure(summary, GROUP, f"{NON_PRIVATE}, ei").text
    rows.append([f"{NON_PRIVATE}, ei", "no", text, "", text, ""])
    goals = [
        f"{figure(summary, GROUP, f'planar Laplace, noise-aware kernel, {level}').mean:.4f} at epsilon = {level} "
        f"(goal: at most {goal})"
        for level, goal in printed.GOALS.items()
    ]
    columns = ["release", "private?", "epsilon = 1", "reference", "epsilon = e^1.1", "reference"]
    return [
        *markdown_table(columns, rows),
        f"Planar Laplace with the noise-aware kernel: {'; '.join(goals)}.",
        "",
        "Other rules on the same releases, with the noise-aware kernel; differences are to GP-UCB on the same runs.",
        f'"{synthetic.ORACLE}": expected improvement by a modeler that knows f and only has to find out which row is',
        "which. What lies between it and the rules above it is the price of not knowing f.",
        "",
        *_rules_table(summary),
    ]


def _rules_table(summary: Summary) -> Lines:
    rows = []
    for label in synthetic.SOUND:
        for rule in ("noise-aware kernel", *synthetic.RULES, synthetic.ORACLE):
            row = [f"{label}, {rule if rule != 'noise-aware kernel' else 'gp_ucb'}"]
            for level in synthetic.FRONTIER:
                column, other = f"{label}, {rule}, {level}", f"{label}, noise-aware kernel, {level}"
                apart = difference(summary, GROUP, column, other)
                error = f" ({apart.se:.4f})" if apart.se is not None else ""
                row += [figure(summary, GROUP, column).text, "" if column == other else f"{apart.mean:+.4f}{error}"]
            rows.append(row)
    levels = [name for level in synthetic.FRONTIER for name in (f"epsilon = {level}", "difference")]
    return markdown_table(["release, rule", *levels], rows)


# --- PO-GP-UCB on records ---------------------------------------------------------------------------


def records_tables(summary: Summary) -> Lines:
    """Write the three tables of a data set, and the epsilons that the paper quotes."""
    facts, group = summary["facts"], summary["part"]
    kernel = f"sigma_y^2 = {facts['signal_variance']:.3g}, sigma_n^2 = {facts['noise_variance']:.3g}"
    lines = [
        f"n = {facts['n']:,}, d = {facts['d']}, T = {facts['steps']}, delta = {facts['delta']:g};",
        f"sigma_min {facts['sigma_min']:.1f}, longest side over length-scale {facts['side_per_lengthscale']:.1f},",
        f"{kernel}.",
        "",
    ]
    elsewhere = printed.RECORDS.get(group)
    for index, table in enumerate(facts["tables"]):
        power, top = table["power"], table["largest_r"]
        figures = {r: figure(summary, group, cell(power, r)) for r in table["r"]}
        order = sorted(figures, key=lambda r: figures[r].mean)
        kept = max(r for r in figures if r <= top)
        rows = [["here", *(figures[r].text for r in figures)]]
        if elsewhere is not None:
            rows.append(["paper's data", *(f"{value:.3f}" for value in elsewhere[index])])
        lines += markdown_table([f"e^{power:.1f}, r", *(f"**{r}**" if r == kept else str(r) for r in figures)], rows)
        best, worst = figures[order[0]], figures[order[-1]]
        if worst.mean - best.mean > 2 * hypot(best.se or inf, worst.se or inf):
            rank = f"is number {order.index(kept) + 1} of {len(order)}"
        else:
            rank = "cannot be distinguished from the others: best and worst are within two standard errors"
        lines += [f"The largest r that is not lifted, {kept}, {rank}.", ""]
    open_, chance = figure(summary, group, NON_PRIVATE), figure(summary, group, RANDOM)
    if open_.mean > chance.mean - 2 * hypot(open_.se or inf, chance.se or inf):
        text = "Even without privacy GP-UCB is not better than random rows by two standard errors"
        lines += [f"{text}: on this target releases cannot be compared by it.", ""]
    rows = [[NON_PRIVATE, open_.text, ""], [RANDOM, chance.text, ""]]
    small = printed.SMALL.get(group, [])
    for index, quoted in enumerate(facts["quoted"]):
        name = cell(quoted["power"], quoted["r"])
        result = figure(summary, group, name)
        papers = f"+{small[index]:.3f}" if index < len(small) else ""
        rows.append([f"published, {name}", f"{result.text}, {result.mean - open_.mean:+.3f} over non-private", papers])
    rows += [
        [f"{PLANAR}, epsilon = {level}, private", figure(summary, group, f"{PLANAR}, {level}").text, ""]
        for level in facts["planar"]
    ]
    return [*lines, *markdown_table(["", "here", "paper's data"], rows), *_over_time(summary)]


EARLY = (5, 10)


def _over_time(summary: Summary) -> Lines:
    """Write mean regrets after a few steps, beside those of the last."""
    facts, columns = summary["facts"], summary["groups"][summary["part"]]
    steps = [*EARLY, facts["steps"]]
    quoted = [cell(quoted["power"], quoted["r"]) for quoted in facts["quoted"]]
    rows = []
    for name in (NON_PRIVATE, RANDOM, *quoted, *(f"{PLANAR}, {level}" for level in facts["planar"])):
        means, errors = (columns[name][curve] for curve in ("curve", "curve_se"))
        places = [summary["marks"].index(step) for step in steps]
        rows.append([name, *(f"{means[p]:.4f}" + (f" ({errors[p]:.4f})" if errors else "") for p in places)])
    return markdown_table(["", *(f"T = {step}" for step in steps)], rows)


def property_rules_table(summary: Summary) -> Lines:
    """Write the regret of the best queried record, and of the recommended one, with each kernel."""
    facts, groups = summary["facts"], groups_of(summary)
    lines = [
        f"{name}: length-scale {facts['lengthscale'][name]:.2f}, residual variance {facts['noise_variance'][name]:.2f}."
        for name in groups
    ]
    names = [name for name in summary["groups"][groups[0]] if not name.endswith(f", {RECOMMENDED}")]
    rows = []
    for name in names:
        row = [name]
        for group in groups:
            row.append(figure(summary, group, name).rounded(3))
            recommended = f"{name}, {RECOMMENDED}"
            has = recommended in summary["groups"][group]
            row.append(figure(summary, group, recommended).rounded(3) if has else "")
        rows.append(row)
    columns = [text for group in groups for text in (f"{group}: queried", "recommended")]
    return [*lines, "", *markdown_table(["", *columns], rows)]


def groups_tables(summary: Summary) -> Lines:
    """Write, for each table of records, its groups, the regrets, and differences to the groups at epsilon 1."""
    lines: Lines = []
    for name in groups_of(summary):
        facts, columns = summary["facts"][name], summary["groups"][name]
        digits = 4 if facts["spread"] < 10 else 1
        lines += [
            f"### {name.capitalize()}",
            "",
            f"{facts['n']:,} records in {facts['groups']} groups; {facts['counted']} have 20 records or more, and the",
            f"median of these has {facts['median_size']:.0f}. True means lie {facts['spread']:.3g} apart at most,",
            f"the best one {facts['second']:.3g} above the next; the standard deviation of y is {facts['sd_y']:.3g}.",
            "",
        ]
        middle = len(summary["marks"]) // 2 - 1
        rows = []
        for column in columns:
            apart = difference(summary, name, column, GROUPS)
            error = f" ({apart.se:.{digits}f})" if apart.se is not None else ""
            less = "" if column == GROUPS else f"{apart.mean:+.{digits}f}{error}"
            half = f"{columns[column]['curve'][middle]:.{digits}f}"
            rows.append([column, half, figure(summary, name, column).rounded(digits), less])
        steps = summary["marks"]
        lines += markdown_table(["", f"T = {steps[middle]}", f"T = {steps[-1]}", f"minus {GROUPS}"], rows)
    return lines


# --- coverage ---------------------------------------------------------------------------------------


def coverage_table(summary: Summary) -> Lines:
    """Write shares of runs in per cent, and means, after the last outcome."""
    shares, means = (
        (coverage.HELD, coverage.PLUGGED, coverage.TRUE, coverage.NEXT),
        (coverage.BIAS, coverage.PLUGGED_BIAS),
    )
    rows = []
    for name in coverage.GROUPS:
        if (columns := summary["groups"].get(name)) is None:
            continue
        cells = [f"{100 * columns[column]['mean']:.1f}" if column in columns else "" for column in shares]
        cells += [f"{columns[column]['mean']:+.3f}" for column in means]
        cells.append(f"{columns[coverage.WIDTH]['mean']:.2f}" if coverage.WIDTH in columns else "")
        rows.append([name, *cells])
    heads = ["", *(f"{column}, %" for column in shares), *means, coverage.WIDTH]
    return markdown_table(heads, rows)


# --- locally private bandits ------------------------------------------------------------------------


def groups_of(summary: Summary) -> list[str]:
    """Return the groups of a summary, sorted."""
    return sorted(summary["groups"])


def _ratios(summary: Summary) -> Lines:
    """Write the final regret over that of uniform play, with that of a separate implementation."""
    groups = groups_of(summary)
    columns = list(summary["groups"][groups[0]])
    rows: list[list[str]] = []
    apart: list[float] = []  # in standard errors of the difference
    for column in columns:
        row = [column]
        for group in groups:
            result, reference = figure(summary, group, column), _reference(summary, group, column)
            text = result.rounded(3)
            if reference is not None:
                text += f" / {reference[0]:.3f}"
                apart.append((result.mean - reference[0]) / hypot(result.se or 0.0, reference[1]))
            row.append(text)
        stuck = [value for group in groups for value in summary["groups"][group][column]["last"]]
        rows.append([*row, f"{100 * sum(value > 0.5 for value in stuck) / len(stuck):.0f} %"])
    lines = markdown_table(["algorithm", *groups, "runs above 0.5"], rows)
    lines += _paired(summary)
    if apart:
        near, above = sum(abs(z) <= 2 for z in apart), sum(z > 2 for z in apart)
        lines += [
            (
                "After a slash: an earlier, separate implementation that is not in this repository, on functions of "
                "its own, 30 trials (10 of theorems)."
            ),
            (
                f"Within two standard errors of the difference: {near} of {len(apart)}; "
                f"regret lower by more: {len(apart) - near - above}, higher by more: {above}."
            ),
            "",
        ]
    return lines


def _paired(summary: Summary) -> Lines:
    """Write the mean difference of each algorithm to IGP-UCB on the same functions and answers."""
    groups = groups_of(summary)
    columns = [column for column in summary["groups"][groups[0]] if column != BASE]
    rows = []
    for column in columns:
        apart = [difference(summary, group, column, BASE) for group in groups]
        rows.append([column, *(f"{f.mean:+.3f}" + (f" ({f.se:.3f})" if f.se is not None else "") for f in apart)])
    return [f"Difference to {BASE} in the same runs:", "", *markdown_table(["algorithm", *groups], rows)]


def _reference(summary: Summary, group: str, column: str) -> tuple[float, float] | None:
    if summary["part"] != "ldp":
        return None
    kernel, _, level = group.partition(", epsilon = ")
    return printed.ldp(column, kernel, level)


def bandits_table(summary: Summary) -> Lines:
    """Write the problem, and the regret of every algorithm on it."""
    facts = summary["facts"]
    problem = f"{facts['arms']} arms, T = {facts['rounds']:,}"
    if "days" in facts:
        problem += f", {facts['days']:,} days; B = {facts['B']:.3g}, R = {facts['R']:.3g}, c = {facts['c']:.3g}; the "
        problem += f"largest eigenvalue of the kernel is {100 * facts['share_of_top_eigenvalue']:.0f} % of its trace"
        if "nugget" in facts:
            problem += f"; nugget {facts['nugget']:g}"
    if any("scale 0.1" in column for columns in summary["groups"].values() for column in columns):
        problem += ". Each variant with its practical settings, and with one for all"
    return [f"{problem}.", "", *_ratios(summary)]
