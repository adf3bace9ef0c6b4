"""Durable exchanges with PostgreSQL beside those with SQLite: on a socket, and with a millisecond more each way."""

from contextlib import ExitStack
from pathlib import Path

from benchmarks.exchange import COLUMNS, ROUNDS, SETTINGS, Measured, measure_rounds, study_of
from benchmarks.server import curator, scratch
from benchmarks.table import Cell, Table
from tests import postgres
from tests.postgres_proxy import PostgresProxy

CLIENTS = 32
SEQUENTIAL_REQUESTS = 200
CONCURRENT_REQUESTS = 800
EACH_WAY_S = 0.001
MORE = [*COLUMNS, "CPU to SQLite", "round trips"]


def tables() -> list[Table]:
    """Run all of it on a server that is made for it."""
    with scratch() as folder, ExitStack() as stack:
        server = postgres.server()
        counting = stack.enter_context(PostgresProxy(server.folder))
        late = stack.enter_context(PostgresProxy(server.folder, EACH_WAY_S))
        addresses = {
            "SQLite": None,
            "PostgreSQL on a socket": server.create("socket"),
            "PostgreSQL, 1 ms more each way": late.url(server.create("late")),
            "PostgreSQL, counted": counting.url(server.create("counted")),
        }
        all_measured = [_started(stack, folder, name, address) for name, address in addresses.items()]
        *compared, counted = all_measured
        measure_rounds(compared, 1, SEQUENTIAL_REQUESTS)
        trips = _round_trips(counted, counting)
        sequential = [_row(each, compared[0], trips) for each in compared]
        measure_rounds(compared, CLIENTS, CONCURRENT_REQUESTS)
        concurrent = [_row(each, compared[0], None) for each in compared]
    return [
        Table(f"Exchanges one after another; {ROUNDS} rounds of {SEQUENTIAL_REQUESTS}", MORE, sequential),
        Table(f"Exchanges of {CLIENTS} clients; {ROUNDS} rounds of {CONCURRENT_REQUESTS}", MORE, concurrent),
    ]


def _started(stack: ExitStack, folder: Path, name: str, address: str | None) -> Measured:
    own = folder / name.replace(" ", "-")
    own.mkdir()
    settings = SETTINGS if address is None else {**SETTINGS, "BLINDOPT_CURATOR_DATABASE_URL": address}
    server, owner = stack.enter_context(curator(own, settings))
    study, tokens = study_of(server.url, owner, CLIENTS)
    return Measured(name, server, f"/v1/studies/{study}/queries", tokens)


def _round_trips(measured: Measured, proxy: PostgresProxy) -> float:
    """Round trips an exchange, those of the heartbeat and the checkpoint among them."""
    measured.round(1, SEQUENTIAL_REQUESTS)
    before = proxy.round_trips
    measured.round(1, SEQUENTIAL_REQUESTS)
    return (proxy.round_trips - before) / SEQUENTIAL_REQUESTS


def _row(measured: Measured, sqlite: Measured, trips: float | None) -> list[Cell]:
    cpu = measured.cpu_seconds / measured.requests / (sqlite.cpu_seconds / sqlite.requests)
    return [*measured.row(sqlite.median), cpu, None if measured is sqlite else trips]
