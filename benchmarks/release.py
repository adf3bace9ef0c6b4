"""A large release from end to end: upload of a Parquet file, drawing Z, download of Z; time and memory."""

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.server import curator, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.client import Owner, StudyClient
from blindopt.formats import npy_files

ROWS = 1_000_000
FEATURES = 20
EPSILON, DELTA = "1", 1e-5
_MIB = 2**20
T = TypeVar("T")


@dataclass(slots=True)
class Memory:
    """Peak memory of a process with its children, in bytes: resident, and the part without a file (anonymous).

    ``resident`` sums over processes: a library page that three of them share counts three times. In
    ``proportional`` it counts once.
    """

    resident: int = 0
    anonymous: int = 0
    proportional: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def sample(self, pid: int) -> None:
        """Take a sample and keep the largest of each sum."""
        resident = anonymous = proportional = 0
        for process in _family(pid):
            with suppress(OSError):
                for line in Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]:
                    name, _, value = line.partition(":")
                    size = int(value.split()[0]) * 1024
                    resident += size if name == "Rss" else 0
                    anonymous += size if name == "Anonymous" else 0
                    proportional += size if name == "Pss" else 0
        self.resident, self.anonymous = max(self.resident, resident), max(self.anonymous, anonymous)
        self.proportional = max(self.proportional, proportional)

    def watch(self, pid: int) -> None:
        """Sample until ``stop`` is called."""
        while not self._over.wait(0.05):
            self.sample(pid)

    def stop(self) -> None:
        """End ``watch``."""
        self._over.set()


def _family(pid: int) -> Iterator[int]:
    """Yield a process and its children, except a child before its exec, which shows its parent's memory."""
    yield pid
    with suppress(OSError):
        program = Path(f"/proc/{pid}/cmdline").read_bytes()
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if Path(f"/proc/{child}/cmdline").read_bytes() != program:
                    yield from _family(int(child))


@contextmanager
def watched(pid: int) -> Iterator[Memory]:
    """Watch the memory of a server and its workers during a block."""
    memory = Memory()
    memory.sample(pid)
    thread = threading.Thread(target=memory.watch, args=(pid,))
    thread.start()
    try:
        yield memory
    finally:
        memory.stop()
        thread.join()


def parquet(rows: int) -> bytes:
    """Make a Parquet file of uniform features and an outcome."""
    generator, file = np.random.default_rng(0), io.BytesIO()
    names = [f"c{j}" for j in range(FEATURES)] + ["y"]
    pq.write_table(pa.table({name: generator.uniform(size=rows) for name in names}), file, compression="none")
    return file.getvalue()


def study(dataset_id: str) -> wire.StudyCreate:
    """Specify a study with every feature in [0, 1]."""
    return wire.StudyCreate(
        name="bench",
        dataset_id=dataset_id,
        features=[wire.Feature(column=f"c{j}", lower=0.0, upper=1.0) for j in range(FEATURES)],
        measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
        release=wire.GaussianRelease(mechanism="gaussian", epsilon=EPSILON, delta=DELTA),
        answers=wire.NONE,
    )


def tables(rows: int = ROWS) -> list[Table]:
    """Measure wall time and peak memory of each step, of the curator with its workers."""
    larger = rows * FEATURES * 8
    cells: list[list[Cell]] = []

    def step(name: str, pid: int, do: Callable[[], T]) -> T:
        before = Memory()
        before.sample(pid)
        with watched(pid) as memory:
            started = time.perf_counter()
            result = do()
            seconds = time.perf_counter() - started
        over = memory.resident - before.resident
        sizes = [size / _MIB for size in (memory.resident, over, memory.proportional, memory.anonymous)]
        cells.append([name, seconds, *sizes, memory.resident / larger, over / larger])
        return result

    file = parquet(rows)
    with scratch() as folder, curator(folder, {}) as (server, token):
        idle = Memory()
        idle.sample(server.pid)
        sizes = [size / _MIB for size in (idle.resident, 0, idle.proportional, idle.anonymous)]
        cells.append(["idle", None, *sizes, None, None])
        with Owner(server.url, token, timeout_s=7_200) as owner:
            send = partial(owner.register, "bench", file, filename="bench.parquet")
            dataset = step("register the Parquet file", server.pid, send)
            draft = owner.create_study(study(dataset.id)).id
            step("draw and publish Z", server.pid, partial(owner.release, draft))
            grant = owner.grant(draft, wire.GrantCreate(name="bench"))
        with StudyClient(server.url, grant.token, draft) as modeler:
            view = modeler.study()
            target = folder / "z.npy"
            fetch = partial(modeler.download, target, view.release_sha256, max_bytes=2 * larger)
            step("download Z", server.pid, fetch)
        assert npy_files.load(target).shape == (rows, FEATURES)
    memory_columns = [
        "peak RSS MiB",
        "over that before MiB",
        "PSS MiB",
        "anonymous MiB",
        "RSS / X",
        "over that before / X",
    ]
    title = f"Gaussian release of {rows} x {FEATURES} ({larger / _MIB:.0f} MiB as float64), curator and its workers"
    return [Table(title, ["step", "s", *memory_columns], cells)]
