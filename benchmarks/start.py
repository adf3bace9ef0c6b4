"""Start-up time of the services, beside a bare FastAPI application."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from benchmarks.server import Server, bare, curator, modeler, scratch
from benchmarks.table import Cell, Table

REPEATS = 5


def tables() -> list[Table]:
    """Measure the seconds until /readyz answers, and the processor time until then."""
    with scratch() as folder:
        kinds: dict[str, Callable[[Path], AbstractContextManager[Server | tuple[Server, str]]]] = {
            "bare FastAPI application": lambda path: bare("nothing", path),
            "curator": lambda path: curator(path, {}),
            "modeler": lambda path: modeler(path, {}),
        }
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for repeat in range(REPEATS):
            for name, start in kinds.items():
                data = folder / f"{name.replace(' ', '-')}-{repeat > 0}"  # the first start fills an empty folder
                data.mkdir(exist_ok=True)
                begun = time.monotonic()
                with start(data) as service:
                    server = service[0] if isinstance(service, tuple) else service
                    samples[name].append((time.monotonic() - begun, server.cpu_seconds()))
    least = float(np.median([cpu for _, cpu in samples["bare FastAPI application"]]))
    rows: list[list[Cell]] = []
    for name, times in samples.items():
        seconds, cpu = (float(np.median([sample[k] for sample in times])) for k in (0, 1))
        rows.append([name, seconds, cpu, cpu / least])
    title = "A start, until it is ready (goal: at most 1.0 CPU s)"
    return [Table(title, ["service", "s (median)", "CPU s", "to the bare one"], rows)]
