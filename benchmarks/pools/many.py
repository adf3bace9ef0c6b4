"""`python -m benchmarks.pools.many [RUNS]`: good candidates that a search for many finds, and one for the best."""

import sys
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.pools.__main__ import RESULTS
from benchmarks.pools.suite import Pool, halves, pool
from benchmarks.table import Cell, Table
from blindopt import Optimizer
from blindopt.optimizer.defaults import INITIAL_ROWS

QUERIES, TOGETHER, FEW = 50, 8, 20
WAYS = ("best", "stated", "share", "batches")
HEAD = """# Find many

Written by `python -m benchmarks.pools.many`. Good are the top 1 % of a pool, or its top 5 % where those are fewer than
20. A search has 50 queries and looks for the best candidate (`best`), for many with the true threshold (`stated`), or
with the share alone, one candidate a query (`share`) or eight (`batches`). Nothing else is set.

"""


def share_of(candidates: Pool) -> float:
    """The share of candidates that are good."""
    return 0.01 if len(candidates.y) >= 100 * FEW else 0.05


def count_good(candidates: Pool, way: str, run: int) -> int:
    """The number of good candidates that a search queries."""
    share, gain = share_of(candidates), candidates.y if candidates.maximize else -candidates.y
    level = float(np.quantile(gain, 1 - share, method="higher"))
    stated = {"kind": "many", "threshold": level if candidates.maximize else -level}
    by_share = {"kind": "many", "share": share}
    goals = {"best": None, "stated": stated, "share": by_share, "batches": by_share}
    more: dict[str, Any] = {"batch_size": TOGETHER} if way == "batches" else {}
    optimizer = Optimizer(
        candidates.x, maximize=candidates.maximize, seed=run, iterations=QUERIES - INITIAL_ROWS, goal=goals[way], **more
    )
    rows: list[int] = []
    while len(rows) < QUERIES:
        for row in optimizer.ask_batch():
            optimizer.tell(row, float(candidates.y[row]))
            rows.append(row)
    return int((gain[rows] >= level).sum())


def main() -> None:
    """Play all ways on the pools that choose defaults, and write the table."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rows: list[list[Cell]] = []
    ahead = dict.fromkeys(WAYS[1:], 0)
    behind = dict.fromkeys(WAYS[1:], 0)
    with threadpool_limits(1):
        for name in halves()["choose"]:
            candidates = pool(name)
            counts = {way: np.array([count_good(candidates, way, run) for run in range(runs)]) for way in WAYS}
            cells = [f"{counts[way].mean():.1f} ({counts[way].std(ddof=1) / np.sqrt(runs):.1f})" for way in WAYS]
            share = share_of(candidates)
            rows.append([name, f"{share:.0%}", *cells, f"{share * QUERIES:.1f}"])
            for way in WAYS[1:]:
                apart = counts[way] - counts["best"]
                error = apart.std(ddof=1) / np.sqrt(runs)
                ahead[way] += bool(apart.mean() > 2 * error)
                behind[way] += bool(apart.mean() < -2 * error)
            print(*rows[-1], flush=True)
    for title, counted in (("ahead of `best` by two standard errors", ahead), ("behind it", behind)):
        rows.append([title, "", "", *(str(counted[way]) for way in WAYS[1:]), ""])
    head = ["Pool", "Good", *WAYS, "random"]
    table = Table(f"Good candidates found in {QUERIES} queries, {runs} runs (standard errors)", head, rows)
    page = "\n".join(table.lines()) + "\n"
    (RESULTS / "many.md").write_text(HEAD + page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
