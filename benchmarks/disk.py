"""State of the machine around a run: other work on the disk changes every ratio to a durable commit."""

import os
import secrets
import sqlite3
import time
from pathlib import Path

import numpy as np

from benchmarks.table import Cell, Table

COMMITS = 1_000


def row(when: str, folder: Path) -> list[Cell]:
    """Time of one commit with synchronous=FULL, without a server, in microseconds; and the load average."""
    load = os.getloadavg()[0]
    db = sqlite3.connect(folder / f"{secrets.token_hex(4)}.sqlite", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE t (seq INTEGER PRIMARY KEY, body BLOB)")
    times = []
    for _ in range(COMMITS):
        started = time.perf_counter()
        db.execute("INSERT INTO t (body) VALUES (?)", (secrets.token_bytes(400),))
        times.append((time.perf_counter() - started) * 1e6)
    db.close()
    return [when, *(float(q) for q in np.quantile(times, [0.5, 0.99])), load]


def table(rows: list[list[Cell]]) -> Table:
    """Make the table. If rows differ, or the load before is not near 0, other work interfered: measure again."""
    return Table(
        "The disk: one commit with FULL, no server (a slow disk flatters ratios to FULL)",
        ["when", "p50 us", "p99 us", "load average"],
        rows,
    )
