"""A run over ten million candidates through both services: seconds of each step, and memory of every process.

`python -m benchmarks.largest [ENGINE ...] [--rows ROWS]` registers a Parquet file from the curator's folder, releases
it with Gaussian noise, and runs GP-UCB in single precision with each ENGINE: process, threads, or cluster (a scheduler
and two workers on this machine, with the extra ``dask``). It needs 8 GB of disk and about 5 GiB of memory.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.both import LARGE_COLUMNS, Parties, outcome
from benchmarks.server import Failed, curator, modeler, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.client import Owner, Vendor

STEPS, BLOCK = 20, 100_000
_MIB = 2**20
Pids = dict[str, Callable[[], list[int]]]


class Memories:
    """The most memory of each process while ``step`` runs: resident, and the part without a file (anonymous)."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        self.most: dict[str, tuple[float, float]] = {}
        self._over = threading.Event()

    def watch(self) -> None:
        """Sample until ``over``."""
        while not self._over.wait(0.1):
            for name, pids in self._pids.items():
                for number, pid in enumerate(pids(), 1):
                    with suppress(OSError, KeyError):
                        status = dict(
                            line.split(":", 1)
                            for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
                        )
                        seen = [float(status[key].split()[0]) / 1024 for key in ("VmRSS", "RssAnon")]
                        label = f"{name} {number}" if number > 1 else name
                        before = self.most.get(label, (0.0, 0.0))
                        self.most[label] = max(before[0], seen[0]), max(before[1], seen[1])

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch during a block."""
        thread = threading.Thread(target=self.watch)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    with suppress(OSError):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def write(path: Path, rows: int) -> None:
    """Write a Parquet file of uniform features and a smooth outcome, some rows at a time."""
    names, rng = [f"c{j}" for j in range(LARGE_COLUMNS)], np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64()) for name in [*names, "y"]])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as file:
        for start in range(0, rows, BLOCK):
            x = rng.uniform(size=(min(BLOCK, rows - start), LARGE_COLUMNS))
            file.write_table(pa.table({name: x[:, j] for j, name in enumerate(names)} | {"y": outcome(x)}))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("engines", nargs="*", default=["process", "threads"])
    parser.add_argument("--rows", type=int, default=10_000_000)
    chosen = parser.parse_args()
    with scratch() as folder, ExitStack() as stack:
        write(folder / "records.parquet", chosen.rows)
        limits = {"UPLOAD_LIMIT_BYTES": str(8 << 30), "IMPORT_DIR": str(folder)}
        settings = {f"BLINDOPT_CURATOR_{name}": value for name, value in limits.items()}
        owners, token = stack.enter_context(curator(folder, settings))
        owner = stack.enter_context(Owner(owners.url, token, timeout_s=14_400))
        lines: list[list[Cell]] = []

        def step(name: str, pids: Pids, do: Callable[[], Any]) -> Any:
            memories = Memories(pids)
            with memories.watched():
                started = time.perf_counter()
                result = do()
                seconds = time.perf_counter() - started
            for number, (process, (resident, anonymous)) in enumerate(memories.most.items()):
                lines.append([name, None if number else seconds, process, resident, anonymous])
            print(name, round(seconds), memories.most, flush=True)
            return result

        own: Pids = {"curator": lambda: [owners.pid], "its worker": lambda: children(owners.pid)}
        parties = Parties(owners, owners, owner, stack.enter_context(Vendor(owners.url, token)), folder)
        dataset = step("register the Parquet file", own, lambda: _registered(owners.url, token))
        study, _ = step("draw and publish Z", own, lambda: parties.release(dataset, LARGE_COLUMNS, 4.0))
        rows: list[list[int]] = []
        for engine in chosen.engines:
            grant = owner.grant(study, wire.GrantCreate(name=engine)).token
            rows.append(_with(engine, folder, parties, study, grant, step))
        columns = ["step", "s", "process", "most resident MiB", "of it anonymous"]
        title = f"A run of {STEPS} queries over {chosen.rows:,} x {LARGE_COLUMNS} candidates, single precision"
        load = (
            f"load {os.getloadavg()[0]:.0f}, the engines' rows are {'' if rows.count(rows[0]) == len(rows) else 'NOT '}"
        )
        print("\n".join(Table(f"{title}, {load}equal", columns, lines).lines()))


def _registered(url: str, token: str) -> str:
    form = {"name": "records", "import_name": "records.parquet"}
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=14_400) as http:
        reply = http.post("/v1/datasets", data=form, headers={"Idempotency-Key": "records"})
        if reply.status_code != 201:
            raise Failed(reply.text)
        return str(reply.json()["id"])


def _with(engine: str, folder: Path, parties: Parties, study: str, grant: str, step: Callable[..., Any]) -> list[int]:
    """Run with an engine in a new modeler; return the rows that it chose."""
    with ExitStack() as stack:
        settings, pids = {"CANDIDATES_ENGINE": engine}, {}
        if engine == "cluster":
            inside = folder / "cluster"
            inside.mkdir()
            made = import_module("tests.system.runs.dask_cluster").DaskProcesses(inside)
            stack.callback(made.close)
            made.connected(2).close()
            files = dict(zip(("ENGINE_TLS_CA", "ENGINE_TLS_CERT", "ENGINE_TLS_KEY"), made.certificates, strict=True))
            settings = {"CANDIDATES_ENGINE": made.address, **files}
            pids = {"scheduler": lambda: [made.scheduler.pid], "worker": lambda: [each.pid for each in made.workers]}
        inside = folder / engine
        inside.mkdir(exist_ok=True)
        given = {f"BLINDOPT_MODELER_{name}": value for name, value in settings.items()}
        service, token = stack.enter_context(modeler(inside, given))
        vendor = stack.enter_context(Vendor(service.url, token, timeout_s=14_400))
        both = Parties(parties.curator, service, parties.owner, vendor, folder)
        algorithm = wire.GpUcb(name="gp_ucb", delta_ucb=0.05, noise_aware=False, precision="single")
        every: Pids = {"modeler": lambda: [service.pid], "curator": lambda: [parties.curator.pid], **pids}
        run = step(
            f"run with {engine}, Z fetched",
            every,
            lambda: both.run(study, grant, STEPS, algorithm=algorithm, repeats="algorithm", fit=None, seed=5),
        )
        trials = vendor.export(run.id).trials
        stamps = [trial.chosen_at for trial in trials]
        print(engine, run.engine, "s of the choices:", (stamps[-1] - stamps[0]).total_seconds(), flush=True)
        return [trial.row for trial in trials]


if __name__ == "__main__":
    main()
