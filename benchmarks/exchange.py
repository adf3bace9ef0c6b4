"""Durable exchanges a second: the curator against a bare route, one after another and from many clients."""

import json
import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from benchmarks import disk
from benchmarks.load import Load, Target, run
from benchmarks.server import Failed, Server, bare, curator, floor, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.client import Owner, StudyClient
from blindopt.client.connection import Client
from demo.property_data import KERNEL

CLIENTS = 32
ROUNDS = 7
SEQUENTIAL_REQUESTS = 400
CONCURRENT_REQUESTS = 1_600
LAPLACE = wire.LaplaceAnswers.model_validate(
    {"mechanism": "laplace", "epsilon": "1", "value_bound": 4.0, "noise_bound": 1.0}
)
QUERY = wire.QueryRequest(rows=[wire.RowPlays(row=7)])

# Settings of the measured curator besides its folder and port: they lift limits that would refuse the load.
SETTINGS = {
    "BLINDOPT_CURATOR_RATE_PER_SECOND": "1000000",
    "BLINDOPT_CURATOR_RATE_BURST": "1000000",
}


@dataclass(slots=True)
class Measured:
    """A server under load, with the results of each round."""

    name: str
    server: Server
    path: str
    tokens: list[str]
    rates: list[float] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    cpu_seconds: float = 0.0
    total_requests: int = 0
    """All requests so far, never reset."""

    def round(self, clients: int, requests: int) -> None:
        """Send ``requests`` over ``clients`` connections, which take the tokens in turn."""
        dealt = [self.tokens[i % len(self.tokens)] for i in range(clients)]
        before = self.server.cpu_seconds()
        load = run(Target(self.server.port, self.path, dealt, QUERY.model_dump_json()), requests)
        self.cpu_seconds += self.server.cpu_seconds() - before
        self.loads.append(load)
        self.total_requests += requests
        self.rates.append(load.per_second)

    def reset(self) -> None:
        """Drop the results so far."""
        self.rates, self.loads, self.cpu_seconds = [], [], 0.0

    @property
    def median(self) -> float:
        return float(np.median(self.rates))

    @property
    def requests(self) -> int:
        return sum(load.requests for load in self.loads)

    def row(self, floor: float) -> list[Cell]:
        """Return its row in a table of COLUMNS; the ratio is to ``floor``."""
        lower, upper = np.quantile(self.rates, [0.25, 0.75])
        return [
            self.name,
            self.median,
            float(lower),
            float(upper),
            self.median / floor,
            self.cpu_seconds / self.requests * 1e6,
            float(np.median([load.p50_ms for load in self.loads])),
            float(np.median([load.p99_ms for load in self.loads])),
            float(np.median([load.client_cpu_us for load in self.loads])),
        ]


COLUMNS = [
    "server",
    "a second (median)",
    "lower quartile",
    "upper quartile",
    "ratio",
    "server CPU us",
    "p50 ms",
    "p99 ms",
    "generator CPU us",
]


def study_of(url: str, token: str, grants: int, answers: wire.Answers = wire.NONE) -> tuple[str, list[str]]:
    """Release a study of 1,000 random rows; return its id and the tokens of its grants."""
    cells = np.random.default_rng(0).normal(size=(1_000, 3))
    text = "a,b,y\n" + "\n".join(",".join(map(repr, row)) for row in cells.tolist())
    with Owner(url, token) as owner:
        dataset = owner.register("bench", text.encode(), public=True)
        spec = wire.StudyCreate(
            name="bench",
            dataset_id=dataset.id,
            features=[wire.Feature(column=name, lower=-3.0, upper=3.0) for name in "ab"],
            measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
            release=wire.IdentityRelease(mechanism="identity"),
            answers=answers,
            kernel=KERNEL,
        )
        study = owner.create_study(spec).id
        owner.release(study)
        return study, [owner.grant(study, wire.GrantCreate(name=f"bench {i}")).token for i in range(grants)]


def count_queries(url: str, token: str) -> int:
    """Count the answered queries in the curator's log."""
    with Owner(url, token) as owner:
        exchanges = (json.loads(entry.body).get("exchange") for entry in owner.audit())
        return sum(exchange is not None and exchange["status"] == 201 for exchange in exchanges)


def measure_rounds(servers: list[Measured], clients: int, requests: int) -> None:
    """Measure ROUNDS rounds of every server, each round in another order."""
    for measured in servers:
        measured.reset()
        measured.round(clients, requests // 4)  # warm
        measured.reset()
    for number in range(ROUNDS):
        turn = number % len(servers)
        for measured in servers[turn:] + servers[:turn]:
            measured.round(clients, requests)


def through_client(curator: Measured, floor: Measured) -> list[Cell]:
    """Measure the curator through blindopt.client, as a modeler does; the ratio is to the bare route."""
    study = curator.path.split("/")[3]
    rates: dict[str, list[float]] = {curator.name: [], floor.name: []}
    cpu = -curator.server.cpu_seconds()
    with (
        StudyClient(curator.server.url, curator.tokens[0], study) as ours,
        Client(floor.server.url, floor.tokens[0]) as theirs,  # a client of a study would miss receipts
    ):
        body = QUERY.model_dump_json().encode()
        for _ in range(ROUNDS):
            started = time.perf_counter()
            for _ in range(SEQUENTIAL_REQUESTS):
                ours.ask(QUERY, key=secrets.token_hex(16))
            rates[curator.name].append(SEQUENTIAL_REQUESTS / (time.perf_counter() - started))
            started = time.perf_counter()
            for _ in range(SEQUENTIAL_REQUESTS):
                if (reply := theirs._send("POST", floor.path, body=body)).status != 201:
                    raise Failed(f"the bare route answered {reply.status}")
            rates[floor.name].append(SEQUENTIAL_REQUESTS / (time.perf_counter() - started))
    curator.total_requests += ROUNDS * SEQUENTIAL_REQUESTS
    cpu += curator.server.cpu_seconds()
    lower, median, upper = (float(q) for q in np.quantile(rates[curator.name], [0.25, 0.5, 0.75]))
    ratio = median / float(np.median(rates[floor.name]))
    per_request = cpu / (ROUNDS * SEQUENTIAL_REQUESTS) * 1e6
    return ["both through blindopt.client", median, lower, upper, ratio, per_request, None, None, None]


def tables(grants: int = CLIENTS) -> list[Table]:
    """Measure one client, and CLIENTS clients that share ``grants`` grants of one study."""
    with scratch() as folder, ExitStack() as stack:
        service, owner = stack.enter_context(curator(folder, SETTINGS))
        study, tokens = study_of(service.url, owner, grants)
        path = f"/v1/studies/{study}/queries"
        nothing, full, off = (
            Measured(label, stack.enter_context(bare(mode, folder)), path, ["none"])
            for mode, label in (
                ("nothing", "bare route, does nothing"),
                ("full", "bare route, one commit, FULL"),
                ("off", "bare route, one commit, OFF"),
            )
        )
        ours = Measured("curator", service, path, tokens)
        study, of_private = study_of(service.url, owner, 1, LAPLACE)
        private = Measured("curator, private answers", service, f"/v1/studies/{study}/queries", of_private)
        parts = Measured("floor: its parts alone", stack.enter_context(floor(folder)), path, tokens)
        straight = stack.enter_context(floor(folder, "straight_line"))
        checked = Measured("straight line: its parts and checks", straight, path, tokens)
        servers = [nothing, full, off, parts, checked, ours, private]
        disk_rows = [disk.row("before", folder)]
        measure_rounds(servers, 1, SEQUENTIAL_REQUESTS)
        sequential = [measured.row(full.median) for measured in servers] + [through_client(ours, full)]
        disk_rows.append(disk.row("between", folder))
        servers.remove(private)
        measure_rounds(servers, CLIENTS, CONCURRENT_REQUESTS)
        concurrent = [measured.row(off.median) for measured in servers]
        disk_rows.append(disk.row("after", folder))
        sent = ours.total_requests + private.total_requests
        if (logged := count_queries(service.url, owner)) != sent:
            raise Failed(f"the curator's log has {logged} of {sent} exchanges")
    return [
        disk.table(disk_rows),
        Table(
            f"Durable exchanges, one after another (goal: the curator at least 0.7 of FULL); {ROUNDS} rounds of "
            f"{SEQUENTIAL_REQUESTS}",
            COLUMNS,
            sequential,
        ),
        Table(
            f"Durable exchanges, {CLIENTS} clients with {grants} grants (goal: the curator at least 0.5 of OFF); "
            f"{ROUNDS} rounds of {CONCURRENT_REQUESTS}",
            COLUMNS,
            concurrent,
        ),
    ]
