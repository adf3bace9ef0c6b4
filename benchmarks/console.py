"""The curator's pages on a study with 100,000 queries: seconds until a whole page is there."""

import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from benchmarks.log import study_of
from benchmarks.server import Failed, curator, scratch
from benchmarks.table import Cell, Table
from curator_service.desk import open_desk
from curator_service.service.curator import Curator
from curator_service.settings import Settings
from curator_service.vault import Vault
from shared import wire
from shared.serving import passwords, users_cli
from shared.serving.desk import Asked
from shared.serving.store.database import Connection

QUERIES = 100_000
QUERIES_PER_TRANSACTION = 5_000
ROUNDS = 5
PASSWORD = "correct horse battery staple"  # noqa: S105
ANSWERS = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.01", value_bound=5.0)


def filled(folder: Path) -> str:
    """A data folder with one study and all its queries, made by the curator's own code; the study's id."""
    settings = Settings(data_dir=folder)
    made = Curator(desk := open_desk(settings), Vault(folder / "files"), settings)
    stored = passwords.hash_of(PASSWORD)
    desk.database.write(lambda db: users_cli.add_user(db, desk, "bench", "owner", stored))
    study, asking = study_of(made, ANSWERS)
    for start in range(0, QUERIES, QUERIES_PER_TRANSACTION):
        _ask(made, study, asking, range(start, start + QUERIES_PER_TRANSACTION))
    made.close()
    desk.close()
    return study


def _ask(made: Curator, study: str, asking: Callable[[int], Asked], numbers: range) -> None:
    def work(db: Connection) -> None:
        for number in numbers:
            query = wire.QueryRequest(rows=[wire.RowPlays(row=number * number % 997)])
            asked = asking(number)
            released = made.exchange._check(asked, study, query)
            answers = made.exchange._measured(released, query)
            made.exchange._answer_at_once(db, asked, study, released, query, answers)

    made.desk.database.write(work)


class Person:
    """Somebody who is logged in: a kept connection and a cookie."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        origin = f"http://127.0.0.1:{port}"
        sent = urlencode({"name": "bench", "password": PASSWORD})
        headers = {"content-type": "application/x-www-form-urlencoded", "origin": origin}
        self._http.request("POST", "/console/login", sent, headers)
        reply = self._http.getresponse()
        reply.read()
        self._cookie = (reply.getheader("set-cookie") or "").partition(";")[0]

    def load(self, path: str) -> tuple[float, int]:
        """Median seconds of a page, and its bytes."""
        times = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            self._http.request("GET", f"/console{path}", headers={"cookie": self._cookie})
            reply = self._http.getresponse()
            body = reply.read()
            times.append(time.perf_counter() - started)
            if reply.status != 200:
                raise Failed(f"{path} answered {reply.status}")
        return float(np.median(times)), len(body)


def tables() -> list[Table]:
    """Every page whose work could grow with the number of queries."""
    with scratch() as folder:
        started = time.perf_counter()
        study = filled(folder / "curator-data")
        making = time.perf_counter() - started
        (folder / "curator-first-token").write_text("none: there is an owner already")  # who starts it reads this
        with curator(folder, {"BLINDOPT_CURATOR_RATE_PER_SECOND": "100000"}) as (service, _):
            person = Person(service.port)
            far = json.dumps(QUERIES // 2)
            paths = [
                *("/", "/studies", f"/studies/{study}", "/accounts", f"/accounts/{study}"),
                *(f"/accounts/{study}?page_token={far}", f"/accounts/{study}/exposure", "/log"),
                *("/log?kind=exchange", "/log?kind=study.released", f"/log?page_token={far}", "/inbox"),
            ]
            rows: list[list[Cell]] = [[path.replace(study, "STUDY"), *person.load(path)] for path in paths]
            rows.append(
                [f"/accounts/STUDY/ledger, a file of {QUERIES:,} lines", *person.load(f"/accounts/{study}/ledger")]
            )
    title = f"Pages on {QUERIES:,} queries, made in {making:.0f} s (goal: less than 1 s)"
    return [Table(title, ["page", "seconds", "bytes"], rows)]
