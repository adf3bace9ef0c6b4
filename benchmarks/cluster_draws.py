"""A release that two workers of a Dask cluster draw, beside one that two processes of the curator draw."""

import tempfile
import time
from contextlib import ExitStack
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.release import watched
from benchmarks.table import Cell, Table
from blindopt.arrays import Matrix
from blindopt.wire import Feature
from curator_service.release.draw_engine import ClusterDraws, DrawEngine, ProcessDraws
from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.mechanism import Mechanism
from curator_service.release.planar_laplace import PlanarLaplaceMechanism
from curator_service.scaling import ScaledRows

FEATURES, TIMES = 20, 3
MECHANISMS: dict[str, tuple[int, Mechanism]] = {
    "Gaussian": (100_000, GaussianMechanism(Decimal(1), 1e-5, 0.5, rotate=True)),
    "planar Laplace": (50_000, PlanarLaplaceMechanism(Decimal(1), 0.5, rotate=True)),
}


def tables() -> list[Table]:
    """The shortest of three draws each, in turn; nothing where Dask is not installed."""
    if not find_spec("distributed"):
        return []
    dask_cluster = import_module("tests.system.runs.dask_cluster")  # it has no types
    lines: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = dask_cluster.DaskProcesses(folder)
        try:
            processes.connected(2).close()
            engine = ClusterDraws(processes.address, processes.certificates, folder / "shared", 600.0)
            engine.clean()
            for name, (rows, mechanism) in MECHANISMS.items():
                values = np.random.default_rng(0).uniform(size=(rows, FEATURES))
                np.save(folder / "records.npy", values)
                with ExitStack() as stack:
                    memory = [stack.enter_context(watched(each.pid)) for each in processes.workers]
                    pairs = [
                        [_seconds(each, mechanism, values, folder) for each in (ProcessDraws(), engine)]
                        for _ in range(TIMES)
                    ]
                alone, there = (min(seconds) for seconds in zip(*pairs, strict=True))
                largest = max(each.anonymous for each in memory) / 2**20
                lines.append([name, rows, alone, there, there / alone, largest])
        finally:
            processes.close()
    columns = ["noise", "rows", "s of two processes", "s of two workers", "ratio", "anonymous MiB of a worker"]
    return [Table(f"A draw of {FEATURES} features, from the records to Z", columns, lines)]


def _seconds(engine: DrawEngine, mechanism: Mechanism, values: Matrix, folder: Path) -> float:
    features = [Feature(column=f"c{j}", lower=0.0, upper=1.0) for j in range(FEATURES)]
    rows = ScaledRows(values, list(range(FEATURES)), features, np.random.default_rng(1).permutation(len(values)))
    out = np.empty((len(values), FEATURES))
    started = time.perf_counter()
    engine.draw(mechanism, rows, folder / "records.npy", out, lambda share: None)
    return time.perf_counter() - started
