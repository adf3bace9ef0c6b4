"""Runs the tasks of a part in several processes and stores each result, so that an interrupted run can continue."""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from benchmarks.papers.part import Curves, Part, Size, Task

ROOT = Path(__file__).parents[2]
_PLAYED = ("shared", "curator_service", "modeler_service", "benchmarks/papers")
_REPORTING = {
    f"{name}.py"
    for name in ("__main__", "chapters", "figures", "printed", "report", "rule_tables", "summary", "tables")
}  # they only report on the runs


@dataclass(frozen=True, slots=True)
class Run:
    """Result of one task."""

    task: Task
    curves: Curves
    cpu_s: float


@dataclass(slots=True)
class Store:
    """Stored runs of one part and size, a line of JSON each.

    The first line identifies part, size and sources; if it does not match, the file is started again.
    """

    path: Path
    header: dict[str, Any]
    runs: dict[Task, Run] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, part: Part, size: Size) -> "Store":
        """Load the runs of this part by the same sources."""
        header = {"part": part.name, "size": json.loads(json.dumps(asdict(size))), "sources": sources()}
        store = cls(folder / f"{part.name}.jsonl", header)
        folder.mkdir(parents=True, exist_ok=True)
        lines = store.path.read_text().splitlines() if store.path.exists() else []
        if lines and _json(lines[0]) == header:
            for line in lines[1:]:
                if (run := _json(line)) is not None:
                    store._put(Run((run["task"][0], run["task"][1]), run["curves"], run["cpu_s"]))
        whole = [header, *(_line(run) for run in store.runs.values())]
        new = store.path.with_suffix(".new")
        new.write_text("".join(json.dumps(line) + "\n" for line in whole))
        new.replace(store.path)
        return store

    def add(self, run: Run) -> None:
        """Store a run."""
        self._put(run)
        with self.path.open("a") as file:
            file.write(json.dumps(_line(run)) + "\n")

    def _put(self, run: Run) -> None:
        self.runs[run.task] = run


def _line(run: Run) -> dict[str, Any]:
    return {"task": list(run.task), "cpu_s": run.cpu_s, "curves": run.curves}


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # an incomplete line
        return None


def sources() -> str:
    """Digest of the code behind the runs, so that runs of two versions are never mixed."""
    digest = hashlib.sha256()
    for folder in _PLAYED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not (folder == "benchmarks/papers" and path.name in _REPORTING):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run_tasks(part: Part, size: Size, tasks: list[Task], workers: int) -> Iterator[Run]:
    """Yield the runs as they end; in this process if there is one worker."""
    if workers == 1:
        with threadpool_limits(1):
            yield from (run_task(part, task, size) for task in tasks)
        return
    # Fresh processes, each with one thread for linear algebra.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_begin)
    try:
        for done in as_completed([pool.submit(run_task, part, task, size) for task in tasks]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def run_task(part: Part, task: Task, size: Size) -> Run:
    """Run one task; its numbers have six digits."""
    started = time.process_time()
    curves = part.play(task, size)
    rounded = {name: [float(f"{value:.6g}") for value in curve] for name, curve in curves.items()}
    return Run(task, rounded, round(time.process_time() - started, 3))


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
