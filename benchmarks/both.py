"""Whole runs over real HTTP: curator and modeler as two processes, each with its durable log."""

import io
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

from benchmarks import botorch_loop
from benchmarks.choosing import DELTA_PRIME, LARGE, NOISE_VARIANCE, STEPS, Problem, botorch, scikit_learn, worst_gap
from benchmarks.choosing import ours as engine
from benchmarks.exchange import LAPLACE
from benchmarks.floor import FloorVendor
from benchmarks.release import Memory, watched
from benchmarks.server import Failed, Server, curator, floor, modeler, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.client import Owner, StudyClient, Vendor
from blindopt.formats import npy_files

BOTH, FLOOR = "both services", "floor: an exchange's parts alone, one at a time"
REPEATS = 5
ROWS, COLUMNS, LENGTHSCALE = 10_000, 2, 0.2
LARGE_COLUMNS, LARGE_STEPS = 15, 100
ARMS, ROUNDS = 100, 400
_MIB = 2**20
_WAIT_SECONDS = 3_600.0


def outcome(x: Matrix) -> Vector:
    """A smooth function of the rows of x (n, d)."""
    total: Vector = np.sin(7 * x).sum(axis=1) / np.sqrt(x.shape[1])
    return total


def records(rows: int, columns: int) -> bytes:
    """Make a Parquet file of uniform features and a smooth outcome."""
    x = np.random.default_rng(0).uniform(size=(rows, columns))
    file = io.BytesIO()
    table = {f"c{j}": x[:, j] for j in range(columns)} | {"y": outcome(x)}
    pq.write_table(pa.table(table), file, compression="none")
    return file.getvalue()


@dataclass(frozen=True, slots=True)
class Parties:
    """Both services, with clients for the owner and the vendor."""

    curator: Server
    modeler: Server
    owner: Owner
    vendor: Vendor
    folder: Path

    def register(self, file: bytes) -> str:
        """Register a Parquet file; return the dataset's id."""
        return self.owner.register("bench", file, filename="bench.parquet").id

    def release(
        self, dataset_id: str, columns: int, lengthscale: float, answers: wire.Answers = wire.NONE
    ) -> tuple[str, str]:
        """Release a study of the records with Gaussian noise; return its id and the token of a grant."""
        spec = wire.StudyCreate(
            name="bench",
            dataset_id=dataset_id,
            features=[wire.Feature(column=f"c{j}", lower=0.0, upper=1.0) for j in range(columns)],
            measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
            release=wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5),
            answers=answers,
            kernel=wire.Kernel(lengthscale=lengthscale, signal_variance=1.0, noise_variance=NOISE_VARIANCE),
        )
        study = self.owner.create_study(spec).id
        self.owner.release(study)
        return study, self.owner.grant(study, wire.GrantCreate(name="bench")).token

    @contextmanager
    def floor(self, token: str) -> Iterator[tuple[Server, Callable[[], FloorVendor]]]:
        """Start ``benchmarks.floor``; yield it and what makes a new client of it, with the token of a grant."""
        model = self.folder / "curator-data" / "curator.sqlite"
        with floor(self.folder) as server:
            yield server, lambda: FloorVendor(server.port, token, self.folder, model)

    def candidates(self, study: str, token: str) -> Matrix:
        """Download Z as a modeler does."""
        with StudyClient(self.curator.url, token, study) as client, tempfile.TemporaryDirectory() as folder:
            view, path = client.study(), Path(folder) / "z.npy"
            client.download(path, view.release_sha256, max_bytes=1 << 30)
            return np.array(npy_files.load(path))

    def run(self, study: str, token: str, steps: int, **settings: Any) -> wire.RunView:
        """Run to the end, with GP-UCB unless ``settings`` say otherwise; Failed unless it ended by its budget."""
        gp_ucb = wire.GpUcb(name="gp_ucb", delta_ucb=2 * DELTA_PRIME, noise_aware=False)
        chosen = settings or {"algorithm": gp_ucb, "repeats": "algorithm", "fit": None}
        spec = wire.RunCreate(
            curator_url=self.curator.url, study_id=study, token=token, iterations=steps, initial_rows=0, **chosen
        )
        done = self.vendor.wait(self.vendor.start(spec).id, timeout_s=_WAIT_SECONDS)
        if done.state != "completed" or done.trials != steps:
            raise Failed(f"the run is {done.state} after {done.trials} of {steps} trials: {done.problem}")
        return done


@contextmanager
def parties() -> Iterator[Parties]:
    """Start both services, with data folders on the project's disk."""
    with scratch() as folder, ExitStack() as stack:
        curator_service, owner = stack.enter_context(curator(folder, {}))
        modeler_service, vendor = stack.enter_context(modeler(folder, {}))
        clients = (
            stack.enter_context(Owner(curator_service.url, owner, timeout_s=7_200)),
            stack.enter_context(Vendor(modeler_service.url, vendor, timeout_s=7_200)),
        )
        yield Parties(curator_service, modeler_service, *clients, folder)


def _check(z: Matrix, trials: list[wire.TrialView]) -> None:
    """Raise Failed unless each row that a run chose had the largest bound."""
    outcomes, rows = np.zeros(len(z)), [trial.row for trial in trials]
    outcomes[rows] = [trial.y for trial in trials]
    gap = worst_gap(Problem("run", z, LENGTHSCALE, outcomes), rows)
    if gap > 1e-9:
        raise Failed(f"a row was chosen whose bound is {gap:.1e} below the largest")


def small() -> Table:
    """A run of 50 queries over 10,000 candidates, download of Z included, beside loops in one process."""
    file = records(ROWS, COLUMNS)
    times: dict[str, list[float]] = {BOTH: [], **{name: [] for name in PEERS}}
    with parties() as both:
        dataset = both.register(file)
        for _ in range(REPEATS):
            study, token = both.release(
                dataset, COLUMNS, LENGTHSCALE
            )  # a new study each time, so that Z is downloaded again
            z = both.candidates(study, token)
            started = time.perf_counter()
            done = both.run(study, token, STEPS)
            times[BOTH].append(time.perf_counter() - started)
            _check(z, both.vendor.export(done.id).trials)
            problem = Problem(
                "run", z, LENGTHSCALE, outcome(z)
            )  # Z is in secret order: the true y of its rows is unknown
            for name, loop in PEERS.items():
                started = time.perf_counter()
                for _ in loop(problem):
                    pass
                times[name].append(time.perf_counter() - started)
        with both.floor(token) as (_, vendor):
            times[FLOOR] = []
            for _ in range(REPEATS):
                with closing(vendor()) as client:
                    times[FLOOR].append(client.query_all(engine(problem))[0])
    medians = {name: float(np.median(seconds)) for name, seconds in times.items()}
    lines: list[list[Cell]] = [
        [name, medians[name], min(seconds), max(seconds), *(medians[name] / medians[of] for of in (BOTH, FLOOR))]
        for name, seconds in times.items()
    ]
    absent = "" if botorch_loop.INSTALLED else f"; {botorch_loop.ABSENT}"
    title = (
        f"A whole run, n = {ROWS:,}, r = {COLUMNS}, {STEPS} queries over HTTP with two durable logs, Z fetched first "
        f"(goal: at most as long as scikit-learn alone){absent}"
    )
    return Table(title, ["loop", "s (median)", "least", "most", "to both services", "to the floor"], lines)


def rounds() -> Table:
    """Processor time of a round with private answers, over few candidates, at several rounds in a query."""
    lines: list[list[Cell]] = []
    with parties() as both:
        dataset = both.register(records(ARMS, COLUMNS))
        for together in (1, 8, 32):
            study, token = both.release(dataset, COLUMNS, LENGTHSCALE, LAPLACE)
            settings = {"algorithm": wire.LaplaceAdf(name="laplace_adf"), "batch_size": together}
            both.run(study, token, together * ROUNDS // 8, **settings)  # warm
            before = [service.cpu_seconds() for service in (both.curator, both.modeler)]
            started = time.perf_counter()
            steps = together * ROUNDS
            both.run(study, token, steps, **settings)
            seconds = time.perf_counter() - started
            spent = [
                service.cpu_seconds() - past for service, past in zip((both.curator, both.modeler), before, strict=True)
            ]
            cells = [1e3 * each / steps for each in (*spent, sum(spent), seconds)]
            lines.append([f"{together} in a query", *cells])
        with both.floor(token) as (server, vendor), closing(vendor()) as client:
            client.query_all(range(ROUNDS // 4))
            spent_before = server.cpu_seconds()
            seconds, own = client.query_all(range(ROUNDS))
            spent = [server.cpu_seconds() - spent_before, own]
        lines.append([FLOOR, *(1e3 * each / ROUNDS for each in (*spent, sum(spent), seconds))])
    columns = ["rounds", "curator CPU ms", "modeler CPU ms", "CPU ms of both", "ms in all"]
    title = f"A round of a run with Laplace answers over {ARMS} candidates (goal: 2.5 ms of processor time of both)"
    return Table(title, columns, lines)


PEERS: dict[str, Callable[[Problem], Iterator[int]]] = {"scikit-learn alone, one process": scikit_learn}
if botorch_loop.INSTALLED:
    PEERS["BoTorch alone, one process"] = botorch


def large() -> Table:
    """A million records of 15 features: time and memory of each party, from the file to the last of 100 answers."""
    rows: list[list[Cell]] = []
    file = records(LARGE, LARGE_COLUMNS)
    size = 8 * LARGE * LARGE_COLUMNS

    @contextmanager
    def step(name: str) -> Iterator[None]:
        memories: list[Memory] = []
        with ExitStack() as stack:
            memories += [stack.enter_context(watched(party.pid)) for party in (both.curator, both.modeler)]
            started = time.perf_counter()
            yield
            seconds = time.perf_counter() - started
        sizes = [size / _MIB for memory in memories for size in (memory.proportional, memory.anonymous)]
        rows.append([name, seconds, *sizes])

    with parties() as both:
        with step("register the Parquet file"):
            dataset = both.register(file)
        with step("draw and publish Z, grant"):
            study, token = both.release(dataset, LARGE_COLUMNS, 4.0)
        with step(f"run of {LARGE_STEPS} queries, Z fetched"):
            both.run(study, token, LARGE_STEPS)
    columns = ["step", "s", "curator PSS MiB", "curator anonymous MiB", "modeler PSS MiB", "modeler anonymous MiB"]
    stated = 8 * LARGE * (LARGE_STEPS + LARGE_COLUMNS + 6) / _MIB + 50
    title = (
        f"A run over {LARGE:,} candidates of {LARGE_COLUMNS} columns ({size / _MIB:.0f} MiB) through both services; "
        f"the engine may hold {stated:.0f} MiB"
    )
    return Table(title, columns, rows)


def tables(huge: bool = False) -> list[Table]:
    """The run beside its peers; with ``huge``, a million records too, which takes minutes and 3 GiB."""
    with threadpool_limits(1):
        parts = [small(), rounds()]
    return [*parts, large()] if huge else parts
