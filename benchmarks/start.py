"""How long services take to start, on an empty folder and on their own, beside a bare FastAPI application."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from benchmarks.server import Server, bare, curator, modeler, scratch
from benchmarks.table import Cell, Table

REPEATS = 5


def tables() -> list[Table]:
    """Seconds until /readyz answers, and the processor time that this took."""
    with scratch() as folder:
        kinds: dict[str, Callable[[Path], AbstractContextManager[Server | tuple[Server, str]]]] = {
            "bare FastAPI application": lambda here: bare("nothing", here),
            "curator": lambda here: curator(here, {}),
            "modeler": lambda here: modeler(here, {}),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for repeat in range(REPEATS):
            for name, start in kinds.items():
                here = folder / f"{name.replace(' ', '-')}-{repeat > 0}"  # the first start makes the folder's contents
                here.mkdir(exist_ok=True)
                begun = time.monotonic()
                with start(here) as told:
                    server = told[0] if isinstance(told, tuple) else told
                    found[name].append((time.monotonic() - begun, server.cpu_seconds()))
    least = float(np.median([cpu for _, cpu in found["bare FastAPI application"]]))
    rows: list[list[Cell]] = []
    for name, times in found.items():
        seconds, cpu = (float(np.median([one[k] for one in times])) for k in (0, 1))
        rows.append([name, seconds, cpu, cpu / least])
    return [Table("A start, until it is ready", ["service", "s (median)", "CPU s", "to the bare one"], rows)]
