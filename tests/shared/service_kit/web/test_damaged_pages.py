"""Damaged pages of one table: its routes are 503, all others answer, and what is ready says so until all is well."""

import asyncio
import os
import re
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from itertools import count

import httpx
import pytest

from blindopt.errors import TABLE, StorageUnavailable
from curator_service import app as curator_app
from curator_service.settings import Settings as CuratorSettings
from curator_service.store import base as curator_base
from modeler_service import app as modeler_app
from modeler_service import store as modeler_store
from modeler_service.settings import Settings as ModelerSettings
from service_kit.store import base
from service_kit.store.driver_errors import Damaged, StoreFault, converted, reading
from service_kit.store.prepared_statement import raw
from service_kit.web.metrics import Metrics, gauge
from tests import beside
from tests.builders import a_study_of
from tests.modeler_service.in_process_modeler import SPEC
from tests.plain_browser import PASSWORD, add_people

pytest.importorskip("prometheus_client", reason="extra metrics")
BUILD = {"curator": (curator_app.build, CuratorSettings), "modeler": (modeler_app.build, ModelerSettings)}
TABLES = [
    (name, table.name)
    for name, schema in (("curator", curator_base), ("modeler", modeler_store))
    for metadata in (base.METADATA, schema.METADATA)
    for table in metadata.sorted_tables
]
OF_EVERY_EXCHANGE = ("tokens", "log", "shared")
KEYS = count()


class Damageable:
    """A service in this process, with something in most of its tables, and requests to all that it has."""

    def __init__(self, name, folder, small):
        before = tempfile.tempdir
        build, settings = BUILD[name]
        self.app = build(settings(data_dir=folder / name, metrics=True))
        tempfile.tempdir = before
        self.context = self.app.state.context
        self.database = self.context.database
        self.file = os.open(self.database.path, os.O_RDWR)  # closed at the end: that drops the locks of this process
        self.role = "owner" if name == "curator" else "vendor"
        self.tokens = {self.role: self.context.authentication.issue(self.role, "zq", days=1)[0].text}
        self.ids = {"run": "run_0123456789abcdef"}
        add_people(self.context, [self.role])
        form = {"name": self.role, "password": PASSWORD}
        entered = self.send(self.role, "POST", "/console/login", data=form, origin="http://test")
        self.cookie = entered.headers["set-cookie"].partition(";")[0]
        (self.fill_curator if name == "curator" else self.fill_modeler)(small)
        self.requests = list(self.every_request())

    def fill_curator(self, small):
        upload = {"files": {"file": ("s.csv", small.csv)}, "data": {"name": "s", "public": "true"}}
        self.ids["dataset"] = self.send("owner", "POST", "/v1/datasets", **upload).json()["id"]
        spec = a_study_of(small, self.ids["dataset"]).model_dump(mode="json")
        self.ids["study"] = self.send("owner", "POST", "/v1/studies", json=spec).json()["id"]
        path = f"/v1/studies/{self.ids['study']}"
        assert self.send("owner", "POST", f"{path}:release").is_success
        grant = self.send("owner", "POST", f"{path}/grants", json={"name": "m"}).json()
        self.tokens["modeler"], self.ids["grant"] = grant["token"], grant["id"]
        self.ids["query"] = self.send("modeler", "POST", f"{path}/queries", json={"rows": [{"row": 1}]}).json()["id"]

    def fill_modeler(self, _):
        self.ids["run"] = self.send("vendor", "POST", "/v1/runs", json=SPEC.model_dump(mode="json")).json()["id"]

    def every_request(self):
        """Each GET of the contract in each role, and what writes and may be repeated."""
        for path, operations in self.app.openapi()["paths"].items():
            if "get" in operations and not path.endswith((":events", "/events")):
                filled = re.sub(r"{(\w+?)(_id)?}", lambda match: self.ids.get(match[1], "1"), path)
                yield from (("GET", filled, role, {}) for role in self.tokens)
        if "study" in self.ids:
            for row in (1, 2):
                yield "POST", f"/v1/studies/{self.ids['study']}/queries", "modeler", {"json": {"rows": [{"row": row}]}}
            yield "POST", f"/v1/studies/{self.ids['study']}/messages", "modeler", {"json": {"body": "zq", "row": 1}}
        else:
            yield "PUT", f"/v1/runs/{self.ids['run']}/labels", self.role, {"json": {"note": "zq", "tags": []}}
        yield "GET", "/console/", self.role, {"cookie": self.cookie}  # which alone reads sessions
        yield "POST", "/v1/audit:verify", self.role, {}

    def send(self, role, method, path, *, origin="", cookie="", **sent):
        async def talk():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
                headers = {"Authorization": f"Bearer {self.tokens[role]}", "Idempotency-Key": f"k{next(KEYS)}"}
                headers |= {"Origin": origin} if origin else {"Cookie": cookie} if cookie else {}
                return await client.request(method, path, headers=headers, **sent)

        return asyncio.run(talk())

    def replies(self):
        """Status and code of every request."""
        sent = {
            (role, method, path): self.send(role, method, path, **body) for method, path, role, body in self.requests
        }
        return {request: (reply.status_code, self.code_of(reply)) for request, reply in sent.items()}

    @staticmethod
    def code_of(reply):
        """The code of a problem, which a page says by its title; None of another reply."""
        if reply.is_success or not reply.content:
            return None
        if reply.headers["content-type"].startswith("text/html"):
            code, _, title, _ = TABLE[StorageUnavailable]
            return code if title in reply.text else reply.text
        return reply.json()["code"]

    @contextmanager
    def damaged(self, table):
        """Every page of a table and of its indexes is overwritten; no connection remembers one."""
        with closing(beside.connect(self.database.path)) as db:
            assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
            of = "SELECT name FROM sqlite_master WHERE tbl_name = ?"
            pages = [page for (page,) in db.execute(f"SELECT pageno FROM dbstat WHERE name IN ({of})", [table])]
            (size,) = db.execute("PRAGMA page_size").fetchone()
        assert pages
        before = {page: os.pread(self.file, size, (page - 1) * size) for page in pages}
        for page in pages:
            os.pwrite(self.file, b"\xff" * size, (page - 1) * size)
        self.forget_pages()
        try:
            yield
        finally:
            for page in pages:
                os.pwrite(self.file, before[page], (page - 1) * size)
            self.forget_pages()

    def forget_pages(self):
        for connection in (raw(self.database._db), self.database._file._row_connection):
            connection.execute("PRAGMA shrink_memory")
        self.database._memory.clear()
        self.database._reader.dispose()

    def close(self):
        self.database.close()
        os.close(self.file)


@pytest.fixture(scope="module")
def services(tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("damaged")
    made = {name: Damageable(name, folder, small) for name in BUILD}
    yield made
    for service in made.values():
        service.close()


@pytest.mark.slow(every=12)
@pytest.mark.parametrize(("name", "table"), TABLES)
def test_a_table_whose_pages_are_damaged_is_503_at_its_routes_and_all_others_answer(services, name, table, until):
    service = services[name]
    before = service.replies()
    assert {status for status, _ in before.values()} & {500, 503} == set()
    with service.damaged(table):
        during = service.replies()
        ready, health = (service.send(service.role, "GET", path).status_code for path in ("/readyz", "/healthz"))
        figures = service.send(service.role, "GET", "/metrics")
    changed = {request: reply for request, reply in during.items() if reply != before[request]}
    if (name, table) == ("modeler", "countersignatures"):  # which none of these requests reads
        assert (changed, ready) == ({}, 200)
        return
    assert set(changed.values()) == {(503, "storage_unavailable")}
    assert (ready, health) == (503, 200)
    if table not in OF_EVERY_EXCHANGE:
        assert len(changed) < len(before) * 2 / 3
        assert "blindopt_ready 0.0\n" in figures.text
        assert ("blindopt_notices{" in figures.text) == (table != "notices")
    assert service.send(service.role, "GET", "/readyz").status_code == 503  # until a verification was sound
    assert service.send(service.role, "POST", "/v1/audit:verify").json()["sound"]
    until(lambda: service.send(service.role, "GET", "/readyz").status_code == 200)
    assert service.replies() == before


def test_a_figure_that_cannot_be_read_is_left_out_and_counted():
    def broken():
        raise RuntimeError("zq")

    metrics = Metrics(lambda: (gauge("blindopt_a", "A.", broken), gauge("blindopt_b", "B.", lambda: 2), lambda: None))
    text = bytes(metrics.exposition().body).decode()
    assert "blindopt_b 2.0\n" in text
    assert "blindopt_a" not in text
    assert "blindopt_figures_unread_total 1.0\n" in text


def test_what_a_driver_says_of_a_disk_is_damage_and_a_refused_statement_is_not():
    def of_sqlite(code):
        error = sqlite3.DatabaseError("zq")
        error.sqlite_errorcode = code
        return error

    class OfPostgres(sqlite3.DatabaseError):
        def __init__(self, state):
            self.sqlstate = state

    damage = (sqlite3.SQLITE_CORRUPT_INDEX, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR_READ)
    for error in (*map(of_sqlite, damage), OfPostgres("XX001"), OfPostgres("XX002")):
        assert isinstance(converted(error), Damaged)
        with pytest.raises(Damaged), reading():
            raise error
    for error in (
        of_sqlite(sqlite3.SQLITE_CONSTRAINT_TRIGGER),
        OfPostgres("23505"),
        of_sqlite(sqlite3.SQLITE_MISMATCH),
    ):
        assert isinstance(converted(error), StoreFault)
