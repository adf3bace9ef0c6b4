"""`python -m benchmarks.refine [RUNS]`: searches whose queried records leave once more, less blurred.

The problem of the frontier (benchmarks/papers/results), at epsilon 1 for all records: with a second draw of epsilon 2
or 3 of each queried record, and without one. Runs are stored as they end, and the same command plays missing ones.
"""

from decimal import Decimal

import numpy as np

from benchmarks.papers.synthetic import STEPS, domain, search_of
from benchmarks.stored_runs import mean_of, play_missing
from benchmarks.table import Cell, Table
from blindopt import wire
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism

SIDE, MISSED = 100, 0.1
NONE = "none"
SECOND = {NONE: None, "2": Decimal(2), "3": Decimal(3)}
RULES: dict[str, wire.AlgorithmSpec] = {
    "ei": wire.Ei(name="ei"),
    "ei_deblurred": wire.EiDeblurred(name="ei_deblurred"),
    "ei_deblurred, explored 0": wire.EiDeblurred(name="ei_deblurred", explored=0.0),
}
HEAD = f"""# Refine on answer

Written by `python -m benchmarks.refine` from the runs beside this page. Functions of a Gaussian process with a known
kernel on 10,000 records, as in the frontier of benchmarks/papers/results: planar Laplace noise at epsilon 1, and
{STEPS} queries after 3 random ones. A queried record leaves again with noise of its own, of the epsilon in the first
column. Outcomes are exact. Regret of the best queried record in standard deviations of the prior, with the standard
error; differences are to no second draw on the same functions.

"""


def play(run: int) -> dict[str, float]:
    """Play a run in all ways: the last regret of each, by the second draw and the rule."""
    grid, search = domain(SIDE), search_of(2, run, SIDE)
    first = PlanarLaplaceMechanism(Decimal(1), 1.0)
    z, law = grid.release(first), first.noise(grid.rows.d)
    regrets: dict[str, float] = {}
    for draw, epsilon in SECOND.items():
        second = None
        if epsilon is not None:
            mechanism = PlanarLaplaceMechanism(epsilon, 1.0)
            second = grid.release(mechanism), float(mechanism.noise(grid.rows.d).sd or 0.0)
        for rule, spec in RULES.items():
            regret = search.regrets(grid, z, law, spec, once=True, second=second)[-1]
            regrets[f"{draw}/{rule}"] = float(f"{regret:.5g}")
    return regrets


def table(runs: list[dict[str, float]]) -> Table:
    """Mean regret of each way, its difference to no second draw, and the share of runs that miss."""
    rows: list[list[Cell]] = []
    for way in runs[0]:
        draw, rule = way.split("/")
        last = np.array([regrets[way] for regrets in runs])
        apart = last - [regrets[f"{NONE}/{rule}"] for regrets in runs]
        share = f"{np.mean(last > MISSED):.1%}"
        rows.append([draw, rule, mean_of(last, 4), "" if draw == NONE else mean_of(apart, 4), share])
    columns = ["second draw", "rule", "regret", "difference", f"runs that miss by {MISSED}"]
    return Table(f"Regret after {STEPS} queries, {len(runs)} runs (standard errors)", columns, rows)


def main() -> None:
    """Play the runs that are not stored yet, and write the table."""
    play_missing("refine", 400, play, table, HEAD)


if __name__ == "__main__":
    main()
