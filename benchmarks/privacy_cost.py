"""What privacy costs: the search for the best group of house sales, by epsilon and by the number of records.

`python -m benchmarks.privacy_cost [RUNS]` measures it and writes benchmarks/results/privacy_cost.json, from which
`python -m benchmarks.privacy_plot` draws docs/plots/privacy-cost.svg. All of it takes a few minutes of a processor.

The sales and the searches are those of benchmarks/papers/groups.py: epsilon is of a whole record, half for the numbers
of records by group and half for one answer about each. Regret is the share of the price by which the recommended
group's geometric mean price is below that of the best group, in percent; a group of fewer than ``LEAST`` records may be
above it, and has a regret of 0. A release of fewer than two candidates is left out: ``runs`` counts the others.

The random arms begin with the same five candidates and draw the others. They recommend as the search does: by its
model, with the same answers and noise descriptions. One more recommends the largest answer. Two arms search records in
place of groups: a release that hides a tenth of each range at epsilon 1, answers included or exact.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from math import ceil, log, sqrt
from pathlib import Path

import numpy as np

from benchmarks.papers import groups
from benchmarks.papers.groups import EVERY, LEAST, Prepared, Problem, Table

FILE = Path(__file__).parent / "results" / "privacy_cost.json"
EPSILONS = ("0.25", "0.5", "1", "2", "4")
SIZES = (200, 500, 2000, 21613)
QUERIES, IN_A_GROUP = 50, 50
HALFWAY = ("private 1", "random 1", "plain")
"""Searches that recommend after half of the queries too."""
RECORDS_MAX = 500
"""Records up to which single ones are searched too: that takes longest."""


def parts_of(records: int) -> int:
    """Equal parts of each of both features, so that 50 records are in a group on average."""
    return round(sqrt(records / IN_A_GROUP))


def table_of(records: int, run: int) -> Table:
    """So many of the sales, other ones in each run, and the groups and least numbers that the console suggests."""
    whole = groups.houses()
    sample = np.random.default_rng([run, records]).permutation(len(whole.y))[:records]
    side = parts_of(records)
    least = {epsilon: ceil(4 / float(epsilon) * log(side**2)) for epsilon in EPSILONS}
    return replace(whole, x=whole.x[sample], y=whole.y[sample], parts=[side, side], min_counts=least)


def arms(data: Prepared, run: int) -> dict[str, tuple[float, int]]:
    """The regret of each way to search, as a difference of log10 prices, and its number of candidates."""
    regrets: dict[str, tuple[float, int]] = {}

    def search(name: str, problem: Problem, rule: str = "auto", by: str | None = None) -> None:
        candidates = len(problem.z)
        queries = min(QUERIES, EVERY * ceil(candidates / EVERY))
        half = QUERIES // 2 if queries == QUERIES and name in HALFWAY else queries
        *earlier, last = problem.regrets(run, rule, queries, by=by, every=half)
        regrets.update({f"{name}, {half} queries": (regret, candidates) for regret in earlier})
        regrets[name] = last, candidates

    for epsilon in EPSILONS:
        problem = groups.over_groups(data, groups.study_of(data.table, epsilon))
        if len(problem.z) < 2:
            continue  # no noisy number reaches the least one
        search(f"private {epsilon}", problem)
        search(f"random {epsilon}", problem, "random", by="auto")
        if epsilon == "1":
            search("random 1, largest answer", problem, "random")
    search("plain", groups.without_privacy(data))
    if len(data.part) <= RECORDS_MAX:
        for name, epsilon, answers in (("private answers", "0.5", "0.5"), ("exact answers", "1", None)):
            problem = groups.over_records(data, epsilon, answers, 0.1)
            search(f"records, {name}", problem)
            search(f"random records, {name}", problem, "random", by="auto")
    counted = np.flatnonzero(data.size >= LEAST)
    regrets["any"] = float(np.mean([data.regret(int(group)) for group in counted])), len(counted)
    return regrets


def measure(runs: int) -> dict[str, object]:
    """Mean and standard error of each arm, in percent of the best price, by the number of records."""
    sizes = {}
    for records in SIZES:
        prepared = partial(table_of, records)
        lines: dict[str, list[tuple[float, int]]] = {}
        for run in range(runs):
            groups.TABLES["sample"] = partial(prepared, run)
            groups.prepared.cache_clear()
            for name, (regret, candidates) in arms(groups.prepared("sample"), run).items():
                lines.setdefault(name, []).append((100 * (1 - 10 ** -max(regret, 0.0)), candidates))
        del groups.TABLES["sample"]
        sizes[str(records)] = {name: summary(pairs) for name, pairs in lines.items()}
        print(records, sizes[str(records)], flush=True)
    return {"queries": QUERIES, "unit": "percent below the price of the best group", "records": sizes}


def summary(pairs: list[tuple[float, int]]) -> dict[str, float | int | None]:
    """Mean regret with its standard error over the runs, and the mean number of candidates."""
    percents, candidates = np.transpose(pairs)
    return {
        "mean": round(float(np.mean(percents)), 2),
        "error": round(float(np.std(percents, ddof=1) / sqrt(len(percents))), 2) if len(percents) > 1 else None,
        "runs": len(percents),
        "candidates": round(float(np.mean(candidates)), 1),
    }


if __name__ == "__main__":
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    FILE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
