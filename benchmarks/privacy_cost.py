"""What privacy costs: the search for the best group of house sales, by epsilon and by the number of records.

`python -m benchmarks.privacy_cost [RUNS]` measures it and writes benchmarks/results/privacy_cost.json, from which
`python -m benchmarks.privacy_plot` draws docs/plots/privacy-cost.svg. All of it takes three minutes of a processor.

The sales and the searches are those of benchmarks/papers/groups.py: epsilon is of a whole record, half for the numbers
of records by group and half for one answer about each. Regret is the share of the price by which the recommended
group's geometric mean price is below that of the best group, in percent. Two arms search records in place of groups:
a release that hides a tenth of each range at epsilon 1, answers included or exact.
"""

import json
import sys
from dataclasses import replace
from functools import partial
from math import ceil, log, sqrt
from pathlib import Path

import numpy as np

from benchmarks.papers import groups
from benchmarks.papers.groups import LEAST, Prepared, Table

FILE = Path(__file__).parent / "results" / "privacy_cost.json"
EPSILONS = ("0.25", "0.5", "1", "2", "4")
SIZES = (200, 500, 2000, 21613)
QUERIES, IN_A_GROUP = 50, 50
RECORDS_MAX = 2000
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


def arms(data: Prepared, run: int) -> dict[str, float]:
    """The regret of each way to search, as a difference of log10 prices."""
    regrets = {}
    for epsilon in EPSILONS:
        problem = groups.over_groups(data, groups.study_of(data.table, epsilon))
        if len(problem.z) < 2:
            continue  # no noisy number reaches the least one
        for name, rule in (("private", "auto"), ("random", "random")):
            regrets[f"{name} {epsilon}"] = problem.regrets(run, rule, min(QUERIES, 5 * ceil(len(problem.z) / 5)))[-1]
    open_problem = groups.without_privacy(data)
    regrets["plain"] = open_problem.regrets(run, "auto", QUERIES)[-1]
    if len(data.part) <= RECORDS_MAX:
        for name, epsilon, answers in (
            ("records, private answers", "0.5", "0.5"),
            ("records, exact answers", "1", None),
        ):
            regrets[name] = groups.over_records(data, epsilon, answers, 0.1).regrets(run, "auto", QUERIES)[-1]
    counted = np.flatnonzero(data.size >= LEAST)
    regrets["any"] = float(np.mean([data.regret(int(group)) for group in counted]))
    return regrets


def measure(runs: int) -> dict[str, object]:
    """Mean and standard error of each arm, in percent of the best price, by the number of records."""
    sizes = {}
    for records in SIZES:
        prepared = partial(table_of, records)
        lines: dict[str, list[float]] = {}
        for run in range(runs):
            groups.TABLES["sample"] = partial(prepared, run)
            groups.prepared.cache_clear()
            for name, regret in arms(groups.prepared("sample"), run).items():
                lines.setdefault(name, []).append(100 * (1 - 10 ** -max(regret, 0.0)))
        del groups.TABLES["sample"]
        sizes[str(records)] = {
            name: {
                "mean": round(float(np.mean(values)), 2),
                "error": round(float(np.std(values, ddof=1) / sqrt(len(values))), 2) if len(values) > 1 else None,
                "runs": len(values),
            }
            for name, values in lines.items()
        }
        print(records, sizes[str(records)], flush=True)
    return {"queries": QUERIES, "unit": "percent below the price of the best group", "records": sizes}


if __name__ == "__main__":
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    FILE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
