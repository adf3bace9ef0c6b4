"""Searches played one after another, each stored as it ends, and the page of their table."""

import json
import sys
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.table import Table

RESULTS = Path(__file__).parent / "results"


def mean_of(values: np.ndarray[Any, np.dtype[np.float64]], digits: int = 3) -> str:
    """The mean of ``values`` (n,), and its standard error in parentheses."""
    return f"{values.mean():.{digits}f} ({values.std(ddof=1) / sqrt(len(values)):.{digits}f})"


def play_missing(
    name: str, count: int, play: Callable[[int], dict[str, Any]], table: Callable[[list[Any]], Table], head: str
) -> None:
    """Play the runs that ``results/<name>.json`` does not have, and write the page: ``head``, then the table.

    ``count`` runs in all, or as many as the command says.
    """
    count, file = int(sys.argv[1]) if len(sys.argv) > 1 else count, RESULTS / f"{name}.json"
    runs = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    with threadpool_limits(1):
        for run in range(len(runs), count):
            runs.append(play(run))
            rows = ",\n".join(json.dumps(ends, separators=(",", ":")) for ends in runs)
            file.write_text(f"[\n{rows}\n]\n", encoding="utf-8")
    page = "\n".join(table(runs).lines()) + "\n"
    (RESULTS / f"{name}.md").write_text(head + page, encoding="utf-8")
    print(page)
