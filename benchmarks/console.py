"""Pages of both consoles on 100,000 queries, 100,000 measurements and 200 runs: seconds per page."""

import http.client
import io
import json
import re
import secrets
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
from benchmarks.server import Failed, Server, curator, environment, modeler, scratch
from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.client import VendorClient
from curator_service.context import open_context
from curator_service.settings import Settings
from curator_service.use_cases.curator import Curator
from curator_service.use_cases.studies.datasets import Upload
from curator_service.vault import Vault
from demo.property_data import KERNEL
from service_kit.console import Console
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal
from service_kit.store.database import Connection

QUERIES = 100_000
RUNS = 200
TRIALS = 60
_BATCH = 10_000
_ROUNDS = 5
_GOAL_SECONDS = 1.0
_PASSWORD = "a long one, made up for benchmarks"  # noqa: S105
_LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.01", value_bound=5.0)
_PEOPLE = {"curator": "owner", "modeler": "vendor"}


class _House:
    """A curator's folder, filled by its own code."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(data_dir=folder)
        self.curator = Curator(open_context(settings), Vault(folder / "files"), settings)
        _, self.owner = self.curator.context.authentication.issue("owner", "bench", days=1)
        rows = np.random.default_rng(0).normal(size=(1_000, 3))
        text = "a,b,y\n" + "\n".join(",".join(map(repr, row)) for row in rows.tolist())
        upload = Upload(name="bench", public=True, columns=None, filename="bench.csv")
        made = self.curator.datasets.register(_request(self.owner, "data"), upload, io.BytesIO(text.encode()))
        self.dataset = str(json.loads(made.body)["id"])

    def study(self, name: str, measurement: wire.MeasurementSpec) -> tuple[str, wire.GrantReply]:
        """An open study with one grant."""
        spec = wire.StudyCreate(
            name=name,
            dataset_id=self.dataset,
            features=[wire.Feature(column=column, lower=-3.0, upper=3.0) for column in "ab"],
            measurement=measurement,
            release=wire.IdentityRelease(mechanism="identity"),
            answers=_LAPLACE,
            kernel=KERNEL,
        )
        study = str(json.loads(self.curator.studies.create(_request(self.owner, name), spec).body)["id"])
        self.curator.releases.release(_request(self.owner, f"release {name}"), study)
        return study, self.grant(study, f"grant {name}")

    def grant(self, study: str, name: str) -> wire.GrantReply:
        """One more grant."""
        granted = self.curator.grants.grant(_request(self.owner, name), study, wire.GrantCreate(name=name))
        return wire.GrantReply.model_validate_json(granted.body)

    def ask(self, study: str, grant: wire.GrantReply, count: int, *, later: bool) -> None:
        """Queries of one row each, many in one transaction."""
        who, exchange = Principal(grant.id, grant.kid, "modeler", "bench", study), self.curator.exchange
        queries = [wire.QueryRequest(rows=[wire.RowPlays(row=row)]) for row in range(1_000)]
        released = exchange._check(_request(who, "first"), study, queries[0])

        def work(db: Connection, numbers: Iterable[int]) -> None:
            for number in numbers:
                query, request = queries[number % 1_000], _request(who, f"{study} {number}")
                if later:
                    exchange._answer_later(db, request, study, released, query)
                else:
                    answers = exchange._measured(released, query)
                    exchange._answer_at_once(db, request, study, released, query, answers)

        for start in range(0, count, _BATCH):
            numbers = range(start, min(start + _BATCH, count))
            self.curator.context.database.write(lambda db, numbers=numbers: work(db, numbers))  # type: ignore[misc]


def _request(who: Principal, name: str) -> RequestContext:
    return RequestContext(who, secrets.token_hex(16), "POST", "/v1/bench", name, sha256(name.encode()))


def _filled(folder: Path) -> tuple[dict[str, str], wire.GrantReply, wire.GrantReply]:
    """A curator's folder; ids of what is in it, the grant that asked, and one of the same study that did not."""
    house = _House(folder)
    study, grant = house.study("answered at once", wire.ColumnMeasurement(column="y", direction="maximize"))
    house.ask(study, grant, QUERIES, later=False)
    by_hand, other = house.study("by hand", wire.InboxMeasurement(direction="maximize", question="How much?"))
    house.ask(by_hand, other, QUERIES, later=True)
    fresh = house.grant(study, "fresh")
    house.curator.context.close()
    with closing(sqlite3.connect(folder / "curator.sqlite")) as db:
        (measurement,) = db.execute("SELECT id FROM measurements ORDER BY seq LIMIT 1").fetchone()
    return {"study_id": study, "dataset_id": house.dataset, "measurement_id": measurement}, grant, fresh


def _cloned(database: Path, run: str) -> str:
    """RUNS runs like one that has ended, and of the last one QUERIES trials: its id."""
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
    """Somebody who has logged in at a console."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._host = urlsplit(server.url).netloc
        body = urlencode({"name": "bench", "password": _PASSWORD})
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": server.url}
        _, cookie, _ = self._send("POST", "/console/login", body, headers)
        self._cookie = cookie.partition(";")[0]
        if not self._cookie:
            raise Failed("nobody could log in")

    def _send(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, str, bytes]:
        with closing(http.client.HTTPConnection(self._host, timeout=300)) as connection:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers.get("Set-Cookie") or "", reply.read()

    def seconds(self, path: str) -> tuple[float, float, float, int]:
        """Median of a page after one that warms up, the largest, the server's CPU for each, and its size in bytes."""
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
    """Addresses of a console's pages of which there is something to show; files and streams of events are left out."""
    times = []
    for entry in console.entries:
        names = re.findall(r"{(\w+)}", entry.path)
        is_page = not re.search(r"(events|file|ledger|\.csv|export|/part|/now|/count|/state|/waiting)$", entry.path)
        if entry.method == "GET" and role in entry.roles and is_page and set(names) <= set(ids):
            times.append(entry.path.format(**ids))
    return times


def _timed(server: Server, paths: Iterable[str], say: Callable[[str], str]) -> list[list[Cell]]:
    person = _Person(server)
    return [[say(path), *person.seconds(path)] for path in paths]


def _admit(service: str, folder: Path) -> None:
    """Make the one who looks at the pages."""
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
    """Each page of each console."""
    with scratch() as folder:
        ids, grant, fresh = _filled(folder / "curator-data")
        for service in _PEOPLE:
            _admit(service, folder)
        (folder / "curator-first-token").write_text("")  # it has tokens, so its first start makes none
        with curator(folder, {}) as (house, _):
            paths = _paths(curator_service.console.build(), "owner", ids)
            more = [f"/log?kind={kind}" for kind in ("charge", "study.created", "mechanism.withdrawn")]
            more += [f"/log?grant={grant.id}", "/inbox/told?state=open", "/inbox/told?state=all"]
            of_curator = _timed(house, [*paths, *more], lambda path: _plain(path, {}))
            with modeler(folder, {}) as (server, token), VendorClient(server.url, token) as vendor:
                spec = wire.RunCreate(
                    name="bench",
                    curator_url=house.url,
                    study_id=fresh.study_id,
                    token=fresh.token,
                    iterations=TRIALS - 5,
                    initial_rows=5,
                    algorithm=wire.GpUcb(name="gp_ucb"),
                )
                run = vendor.start(spec).id
                if (ended := vendor.wait(run, timeout_s=300)).trials != TRIALS:
                    raise Failed(f"the run that is cloned ended so: {ended.ended_because}, {ended.problem}")
        large = _cloned(folder / "modeler-data" / "modeler.sqlite", run)
        with modeler(folder, {}) as (server, _):
            console = modeler_service.console.build()
            paths = [path for identity in (run, large) for path in _paths(console, "vendor", {"run_id": identity})]
            six = [run, large, *(f"run_{number:016x}" for number in range(1, 5))]
            paths = [*dict.fromkeys(paths), "/compare?" + urlencode([("run", identity) for identity in six])]
            of_modeler = _timed(
                server, paths, lambda path: _plain(path, {run: f"of {TRIALS}", large: f"of {QUERIES:,}"})
            )
    head = ["page", "seconds (median)", "seconds (most)", "server CPU s", "bytes"]
    what = f"{QUERIES:,} queries, {QUERIES:,} open measurements"
    return [
        Table(f"Curator's console on {what} (goal: under {_GOAL_SECONDS:g} s)", head, of_curator),
        Table(f"Modeler's console on {RUNS} runs, one of {QUERIES:,} trials (the same goal)", head, of_modeler),
    ]


def _plain(path: str, names: dict[str, str]) -> str:
    """An address without ids."""
    for identity, name in names.items():
        path = path.replace(identity, f"({name})")
    return re.sub(r"_[0-9a-f]{16}", "_…", path)
