"""An exchange over a link, where the curator opens the connections, against one over a socket of the curator's."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.exchange import SETTINGS, study_of
from benchmarks.server import Failed, Server, curator, environment, modeler, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.client import Owner, Vendor

ROUNDS = 6
QUERIES = 200
IDLE_SECONDS = 61.0


def linked(folder: Path, owner: Server, token: str, vendor: Server) -> str:
    """Link the curator to the modeler; return the address that runs use."""
    for name, words in (
        ("modeler", ["link", "create", "bench", "--url", vendor.url, "--save", "link.json"]),
        ("curator", ["link", "add", "link.json"]),
    ):
        settings = {f"BLINDOPT_{name.upper()}_DATA_DIR": str(folder / f"{name}-data")}
        own_folder = {"PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, "-m", f"{name}_service", *words]
        subprocess.run(command, env=environment(settings) | own_folder, cwd=folder, check=True, capture_output=True)
    deadline = time.monotonic() + 30
    with Owner(owner.url, token) as client:
        while b'"connected"' not in client._send("GET", "/v1/links").body:
            if time.monotonic() > deadline:
                raise Failed("the link is not connected")
            time.sleep(0.1)
    return f"link://{json.loads((folder / 'link.json').read_text())['id']}"


def _measured(log: Path, vendor: Vendor, access: wire.StudyAccess, queries: int) -> list[float]:
    """Milliseconds of each query of a run, as the modeler's log has them."""
    begin = log.stat().st_size
    spec = wire.RunCreate(
        **access.model_dump(),
        name="bench",
        iterations=queries,
        algorithm=wire.RandomRows(name="random"),
        initial_rows=0,
    )
    run = vendor.wait(vendor.start(spec).id, timeout_s=600)
    if (run.state, run.trials) != ("completed", queries):
        raise Failed(f"the run is {run.state} after {run.trials} answers: {run.problem}")
    with log.open(encoding="utf-8") as file:
        file.seek(begin)
        lines = [json.loads(line) for line in file]
    return [
        line["ms"] for line in lines if line.get("route") == "/v1/studies/*/queries" and line["message"] == "exchange"
    ]


def tables() -> list[Table]:
    """Measure runs in turn over a socket and over a link, then one over a link that was idle for a minute."""
    with scratch() as folder, curator(folder, SETTINGS) as (owner, token), modeler(folder, {}) as (vendor, own):
        study, (grant,) = study_of(owner.url, token, 1)
        ways = {"socket": owner.url, "link": linked(folder, owner, token, vendor)}
        times: dict[str, list[list[float]]] = {way: [] for way in ways}
        with Vendor(vendor.url, own, timeout_s=60) as client:
            for number in range(ROUNDS + 1):
                for way, url in ways.items() if number % 2 else reversed(ways.items()):
                    access = wire.StudyAccess(curator_url=url, study_id=study, token=grant)
                    measured = _measured(folder / "modeler.log", client, access, QUERIES)
                    if number:  # the first round is for warmth
                        times[way].append(measured)
            time.sleep(IDLE_SECONDS)
            access = wire.StudyAccess(curator_url=ways["link"], study_id=study, token=grant)
            (first,) = _measured(folder / "modeler.log", client, access, 1)
    medians = {way: [float(np.median(each)) for each in rounds] for way, rounds in times.items()}
    ratios = np.array(medians["link"]) / np.array(medians["socket"])
    rows: list[list[Cell]] = [
        [way, float(np.median(each)), float(np.quantile(np.concatenate(times[way]), 0.99))]
        for way, each in medians.items()
    ]
    ratio: list[Cell] = ["ratio", float(np.median(ratios)), None]
    idle: list[Cell] = [f"link, the first query after {IDLE_SECONDS:.0f} s without one", first, None]
    title = (
        f"A query of a run (goal: over a link at most 1.5 times as long); {ROUNDS} runs of {QUERIES} queries each way"
    )
    return [Table(title, ["way", "median ms", "p99 ms"], [*rows, ratio, idle])]
