"""Engines: the same choices by parts, on threads, and at a Dask cluster of two workers on this machine.

Each way of computing runs in a process of its own, so that its memory is measured apart. The cluster is measured where
Dask is installed (the extra ``dask``). Times are those of the choices; building the parts is not in them.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import Cell, Table
from blindopt.arrays import Matrix
from blindopt.formats import npy_files
from blindopt.formats.release_files import sections_of
from blindopt.gp.acquisition import UpperConfidenceBound, beta
from blindopt.gp.candidates import Precision
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.parts import Executor, Threads
from blindopt.gp.posterior import Posterior

Json = dict[str, Any]
Chosen = tuple[int, int, float | None]
COLUMNS = 15
CASES = ("repeats", "nugget", "hidden", "batch", "grid")
"""Repeats of every row; with a nugget; without repeats; four rows in a query; ties and repeats after others."""
KILLED_AT = 15


def tables(large: bool = False) -> list[Table]:
    """Tables for a million candidates; with ``large``, for ten million too, which takes 7 GiB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        same = equal(folder) if large else equal(folder, 100_000, 30)
        results = [same, *_speed(folder, 1_000_000, 50, "double")]
        if large:
            results += _speed(folder, 10_000_000, 20, "single")
        return [*results, model()]


# --- bit for bit ----------------------------------------------------------------------------------------------


def equal(folder: Path, n: int = 1_000_000, steps: int = 100) -> Table:
    """Choices of 1, 2, 3 and 7 parts in both precisions, beside those of the whole in double precision."""
    lines: list[list[Cell]] = []
    for case in CASES:
        z = _grid(n) if case == "grid" else np.random.default_rng(0).normal(size=(n, COLUMNS))
        whole = walk(z, None, steps, case=case)
        same = [
            walk(z, Threads(parts), steps, dtype, case) == whole
            for dtype in (np.float64, np.float32)
            for parts in (1, 2, 3, 7)
        ]
        lines.append([case, len(whole), sum(same), len(same)])
    return Table(f"Rows, ties and acquisitions, n = {n:,}", ["case", "choices", "equal", "of"], lines)


def walk(
    z: Matrix,
    executor: Executor | None,
    steps: int,
    dtype: Precision = np.float64,
    case: str = "repeats",
    at: Callable[[int], None] = lambda step: None,
) -> list[Chosen]:
    """The choices of a run: row, ties and acquisition. ``at`` is called before each."""
    nugget = 0.01 if case == "nugget" else 0.0
    kernel = SquaredExponential(0.2 if z.shape[1] == 2 else 4.0)
    posterior = Posterior(
        z, kernel, noise_variance=1e-4, nugget=nugget, capacity=steps + 4, dtype=dtype, executor=executor
    )
    chosen: list[Chosen] = []
    for step in range(1, steps + 1, 4 if case == "batch" else 1):
        at(step)
        before, count = posterior.count, 4 if case == "batch" else 1
        for number in range(count):
            last = {"hidden": steps, "grid": 3}.get(case, 0)  # hides all rows so far, or the last few
            hidden = np.unique([row for row, _, _ in chosen[len(chosen) - min(last, len(chosen)) :]]).astype(np.intp)
            bound = UpperConfidenceBound(beta(len(z), step, 0.025))
            choice = posterior.argmax(bound, partial(np.random.default_rng, [1, step]), hidden)
            chosen.append((choice.row, choice.ties, choice.acquisition))
            if number < count - 1:
                posterior.suppose(choice.row)
        posterior.retract(before)
        for row, _, _ in chosen[-count:]:
            posterior.observe(row, float(np.sin(3 * z[row]).sum()) / 4)
    return chosen


def _grid(n: int) -> Matrix:
    axis = np.linspace(0.0, 1.0, round(n**0.5))
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


# --- time and memory ------------------------------------------------------------------------------------------


def _speed(folder: Path, n: int, steps: int, precision: str) -> Iterator[Table]:
    path = folder / "z.npy"
    with path.open("wb") as written:
        chunks = range(0, n, 1_000_000)
        rng = np.random.default_rng(0)
        blocks = (rng.normal(size=(min(1_000_000, n - start), COLUMNS)) for start in chunks)
        npy_files.write(written, blocks)
    kinds = ["process", "parts", "threads", "cluster"][: 4 if find_spec("distributed") else 3]
    twice = [{kind: _apart(kind, path, steps, precision) for kind in kinds} for _ in range(2)]
    measured = {kind: _best(*(each[kind] for each in twice)) for kind in kinds}
    first = measured["process"]
    lines: list[list[Cell]] = []
    for kind, own in measured.items():
        line: list[Cell] = [_NAMES[kind], own["seconds"], own["seconds"] / first["seconds"], own["cpu"]]
        line += [
            own["cpu"] / first["cpu"],
            own["workers_cpu"] and own["workers_cpu"] / first["cpu"],
            own["driver_ms"],
            own["mib"],
            own["mib"] / first["mib"],
        ]
        lines.append([*line, "yes" if own["rows"] == first["rows"] else "no"])
    columns = [
        "engine",
        "s",
        "time to process",
        "CPU s",
        "CPU to process",
        "workers' CPU to process",
        "driver CPU ms a choice",
        "MiB of the largest",
    ]
    columns += ["MiB to process", "same choices"]
    yield Table(f"{steps} choices, n = {n:,}, r = {COLUMNS}, {precision} precision", columns, lines)
    if "cluster" in measured:
        own = _apart("killed", path, steps, precision)
        columns = ["s of the choice", "s of the usual one", "s to read the file", "s of a full update", "most (goal)"]
        most = own["file"] + 1.5 * own["update"] + 5
        line = [own["longest"], own["usual"], own["file"], own["update"], most]
        yield Table(f"A worker is killed before choice {KILLED_AT}, n = {n:,}", ["what", *columns], [["killed", *line]])
    path.unlink()


_NAMES = {
    "process": "process",
    "parts": "two parts in turn",
    "threads": "two threads",
    "cluster": "Dask, two workers",
}


def _best(first: Json, second: Json) -> Json:
    """The smaller of each time: what other work on the machine added is in the larger one."""
    return first | {name: min(first[name], second[name]) for name in ("seconds", "cpu", "mib")}


def _apart(kind: str, path: Path, steps: int, precision: str) -> Json:
    """Measure in a new process."""
    command = [sys.executable, "-m", "benchmarks.engines", kind, str(path), str(steps), precision]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout))


def measure(kind: str, path: Path, steps: int, precision: str) -> Json:
    """Seconds and processor time of all choices, and the memory of the largest process, of one way of computing."""
    z, dtype = npy_files.load(path), np.float64 if precision == "double" else np.float32
    with _engine(kind, path) as (engine, pids, kill):
        begun: list[tuple[float, float, float]] = []

        def at(step: int) -> None:
            begun.append((time.monotonic(), time.process_time(), sum(map(_processor_seconds, pids()))))
            if kind == "killed" and step == KILLED_AT:
                kill()

        rows = walk(z, engine, steps, dtype, at=at)
        at(steps + 1)
        marks = np.diff(np.array(begun), axis=0)
        largest = max([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, *map(_peak, pids())])
        result: Json = {"rows": rows, "seconds": marks[:, 0].sum(), "cpu": marks[:, 1:].sum(), "mib": largest}
        result["workers_cpu"] = marks[:, 2].sum() if pids() else None
        result["driver_ms"] = float(np.median(marks[2:, 1])) * 1e3 if pids() else None
        if kind == "killed":
            result |= {"longest": marks[KILLED_AT - 1, 0], "usual": float(np.median(marks[2:, 0]))}
            result |= _rebuilding(z, path, dtype, [row for row, _, _ in rows[: KILLED_AT - 1]])
    return result


def _rebuilding(z: Matrix, path: Path, dtype: Precision, rows: list[int]) -> Json:
    """Seconds to read the file, and to bring all rows of half of it up to date."""
    started = time.monotonic()
    npy_files.digest(path)
    read = time.monotonic()
    half = z[: len(z) // 2]
    posterior = Posterior(half, SquaredExponential(4.0), noise_variance=1e-4, capacity=len(rows), dtype=dtype)
    for row in rows:
        posterior.observe(row % len(half), 0.0)
    posterior.mean  # noqa: B018 - brings all rows up to date
    return {"file": read - started, "update": time.monotonic() - read}


@contextmanager
def _engine(kind: str, path: Path) -> Iterator[tuple[Executor | None, Callable[[], list[int]], Callable[[], None]]]:
    if kind in ("cluster", "killed"):
        from modeler_service.engines.remote import Workers

        dask_cluster = import_module("tests.system.runs.dask_cluster")  # it has no types
        with tempfile.TemporaryDirectory() as folder:
            processes = dask_cluster.DaskProcesses(Path(folder))
            try:
                sections = sections_of(len(npy_files.load(path)), npy_files.digest(path), [])
                remote = Workers(processes.connected(2), str(path), sections, 600.0, lambda: None)
                yield (
                    remote,
                    lambda: [each.pid for each in processes.workers],
                    lambda: processes.kill(processes.workers[0]),
                )
                remote.drop()
            finally:
                processes.close()
        return
    yield {"process": None, "parts": Threads(2), "threads": Threads(2, threads=2)}[kind], list, lambda: None


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    """The most memory that a process had, in MiB."""
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        if line.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def model() -> Table:
    """What many candidates would take: a model of memory, and no measurement."""
    lines: list[list[Cell]] = []
    for n in (10**8, 10**9):
        needed = n * (4 * (50 + COLUMNS + 2) + 48)
        lines.append([f"{n:.0e}", needed / 2**30, -(-needed // (60 << 30))])
    return Table(
        "A model, not measured: memory for T = 50 in single precision, n (4 (T + r + 2) + 48) bytes",
        ["n", "GiB", "workers with 60 GiB"],
        lines,
    )


if __name__ == "__main__":
    kind, path, steps, precision = sys.argv[1:]
    print(json.dumps(measure(kind, Path(path), int(steps), precision)))
