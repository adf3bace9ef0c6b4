"""Time of each page of both consoles, with 100,000 queries, 30,000 open measurements and 200 runs."""

import http.client
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np

import curator_service.console
import modeler_service.console
from benchmarks.filled_curator import FilledCurator
from benchmarks.server import Failed, Server, curator, environment, modeler, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.audit.verification import verify_export
from blindopt.client import Vendor
from service_kit.console import Console

QUERIES = 100_000
OPEN = 30_000
RUNS = 200
TRIALS = 60
_ROUNDS = 5
_GOAL_SECONDS = 1.0
_PASSWORD = "a long one, made up for benchmarks"  # noqa: S105
_PEOPLE = {"curator": "owner", "modeler": "vendor"}


def _filled(folder: Path) -> tuple[dict[str, str], wire.GrantReply, wire.GrantReply]:
    """Fill a curator's folder; return ids in it, the grant with queries, and a fresh grant of the same study."""
    filled = FilledCurator(folder)
    study, grant = filled.study("answered at once", wire.ColumnMeasurement(column="y", direction="maximize"))
    filled.query(study, grant, QUERIES)
    by_hand, other = filled.study("by hand", wire.InboxMeasurement(direction="maximize", question="How much?"))
    filled.query(by_hand, other, OPEN, later=True)
    fresh = filled.grant(study, "fresh")
    with filled.curator.context.database.read() as db:  # what is timed is a log as a service writes it
        verify_export(filled.curator.context.audit_trail.export(db))
    filled.curator.context.close()
    with closing(sqlite3.connect(folder / "curator.sqlite")) as db:
        (measurement,) = db.execute("SELECT id FROM measurements ORDER BY seq LIMIT 1").fetchone()
    return {"study_id": study, "dataset_id": filled.dataset, "measurement_id": measurement}, grant, fresh


def _cloned(database: Path, run: str) -> str:
    """Copy an ended run RUNS times, and give the last copy QUERIES trials; return the last copy's id."""
    with closing(sqlite3.connect(database)) as db, db:
        for table in ("runs", "trials"):
            columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})") if name != "seq"]
            key = "id" if table == "runs" else "run_id"
            listed, chosen = ", ".join(columns), ", ".join("?" if c == key else c for c in columns)
            for number in range(1, RUNS):
                identity = f"run_{number:016x}"
                db.execute(
                    f"INSERT INTO {table} ({listed}) SELECT {chosen} FROM {table} WHERE {key} = ?", (identity, run)
                )
        last = f"run_{RUNS - 1:016x}"
        chosen = ", ".join({"run_id": "?", "number": "number + ?", "query": "query + ?"}.get(c, c) for c in columns)
        for start in range(TRIALS, QUERIES, TRIALS):
            values = (last, start, start, run)
            db.execute(f"INSERT INTO trials ({listed}) SELECT {chosen} FROM trials WHERE run_id = ?", values)
    return last


class _Person:
    """A logged-in user of a console."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._host = urlsplit(server.url).netloc
        body = urlencode({"name": "bench", "password": _PASSWORD})
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": server.url}
        _, cookie, _ = self._send("POST", "/console/login", body, headers)
        self._cookie = cookie.partition(";")[0]
        if not self._cookie:
            raise Failed("the login failed")

    def _send(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, str, bytes]:
        with closing(http.client.HTTPConnection(self._host, timeout=300)) as connection:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers.get("Set-Cookie") or "", reply.read()

    def seconds(self, path: str) -> tuple[float, float, float, int]:
        """Median and largest time of a page, after one request to warm up; server CPU time and size of each."""
        times: list[float] = []
        cpu = 0.0
        for number in range(_ROUNDS + 1):
            if number == 1:
                cpu = -self._server.cpu_seconds()
            started = time.perf_counter()
            status, _, body = self._send("GET", f"/console{path}", None, {"Cookie": self._cookie})
            times.append(time.perf_counter() - started)
            if status != 200:
                raise Failed(f"{path} answered {status}: {body[:500]!r}")
        cpu += self._server.cpu_seconds()
        return float(np.median(times[1:])), max(times), cpu / _ROUNDS, len(body)


def _paths(console: Console, role: str, ids: dict[str, str]) -> list[str]:
    """Paths of a console's pages for these ids, without files and event streams."""
    paths = []
    for entry in console.entries:
        names = re.findall(r"{(\w+)}", entry.path)
        is_page = not re.search(r"(events|file|ledger|\.csv|export|/part|/now|/count|/state|/waiting)$", entry.path)
        if entry.method == "GET" and role in entry.roles and is_page and set(names) <= set(ids):
            paths.append(entry.path.format(**ids))
    return paths


def _timed(server: Server, paths: Iterable[str], label: Callable[[str], str]) -> list[list[Cell]]:
    """Rows of a table. The goal is held against processor time, which other work on the machine does not change."""
    person, rows = _Person(server), list[list[Cell]]()
    for path in paths:
        median, most, cpu, size = person.seconds(path)
        rows.append([label(path), median, most, cpu, "yes" if cpu < _GOAL_SECONDS else "NO", size])
    return rows


def _admit(service: str, folder: Path) -> None:
    """Create the user who opens the pages."""
    file = folder / "password"
    file.write_text(_PASSWORD)
    command = [sys.executable, "-m", f"{service}_service", "user", "add", "bench", "--role", _PEOPLE[service]]
    chosen = {f"BLINDOPT_{service.upper()}_DATA_DIR": str(folder / f"{service}-data")}
    done = subprocess.run(
        [*command, "--password-file", str(file)], env=environment(chosen), capture_output=True, text=True
    )
    if done.returncode:
        raise Failed(done.stderr)


def tables() -> list[Table]:
    """Time each page of each console."""
    with scratch() as folder:
        ids, grant, fresh = _filled(folder / "curator-data")
        for service in _PEOPLE:
            _admit(service, folder)
        (folder / "curator-first-token").write_text("")  # it has tokens, so its first start makes none
        with curator(folder, {}) as (curator_server, _):
            paths = _paths(curator_service.console.build(), "owner", ids)
            more = [f"/log?kind={kind}" for kind in ("charge", "study.created", "study.closed")]
            more += [f"/log?grant={grant.id}", "/inbox/told?state=open", "/inbox/told?state=all"]
            more += ["/log?group=jobs&actor=owner", f"/log?about={ids['study_id']}&first_day=2020-01-01"]
            account = f"/accounts/{ids['study_id']}"
            more += [
                f"{account}?kind=refused&last_day=2020-01-01",
                f"{account}?row=500",
                f"{account}/exposure?newer=500",
            ]
            of_curator = _timed(curator_server, [*paths, *more], lambda path: _plain(path, {}))
            with modeler(folder, {}) as (server, token), Vendor(server.url, token) as vendor:
                spec = wire.RunCreate(
                    name="bench",
                    curator_url=curator_server.url,
                    study_id=fresh.study_id,
                    token=fresh.token,
                    iterations=TRIALS - 5,
                    initial_rows=5,
                    algorithm=wire.GpUcb(name="gp_ucb"),
                    repeats="algorithm",
                    fit=None,
                )
                run = vendor.start(spec).id
                if (ended := vendor.wait(run, timeout_s=300)).trials != TRIALS:
                    raise Failed(f"the run that is cloned ended so: {ended.ended_because}, {ended.problem}")
        large = _cloned(folder / "modeler-data" / "modeler.sqlite", run)
        with modeler(folder, {}) as (server, _):
            console = modeler_service.console.build()
            paths = [path for identity in (run, large) for path in _paths(console, "vendor", {"run_id": identity})]
            six = [run, large, *(f"run_{number:016x}" for number in range(1, 5))]
            paths += [
                f"/runs/{large}/trials?sort=sd&order=newest&offset={QUERIES // 2}",
                f"/runs/{large}?first=50&last=99",
            ]
            paths = [*dict.fromkeys(paths), "/compare?" + urlencode([("run", identity) for identity in six])]
            of_modeler = _timed(
                server, paths, lambda path: _plain(path, {run: f"of {TRIALS}", large: f"of {QUERIES:,}"})
            )
    head = ["page", "seconds (median)", "seconds (most)", "server CPU s", "within the goal", "bytes"]
    what = f"{QUERIES:,} queries, {OPEN:,} open measurements"
    return [
        Table(f"Curator's console on {what} (goal: under {_GOAL_SECONDS:g} s of processor time)", head, of_curator),
        Table(f"Modeler's console on {RUNS} runs, one of {QUERIES:,} trials (the same goal)", head, of_modeler),
    ]


def _plain(path: str, names: dict[str, str]) -> str:
    """Replace the ids in a path by names."""
    for identity, name in names.items():
        path = path.replace(identity, f"({name})")
    return re.sub(r"_[0-9a-f]{16}", "_…", path)
