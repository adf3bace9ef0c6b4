"""A commit of another connection: nothing takes effect until what it left is verified, on both databases."""

import asyncio
import io
import secrets
import subprocess
import threading
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from curator_service.datasets.private_bounds import BoundsSearch
from curator_service.releases.releases import Releases
from curator_service.vault import Vault
from service_kit import verification as log_verification
from service_kit.store.database import Database
from service_kit.verification import LogVerification
from tests import beside, postgres
from tests.curator_service.budget.file_of_records import FileOfRecords

OWNER, GRANT = "owner", "study"
HARMLESS = "UPDATE studies SET note = 'x'"
MORE = """UPDATE studies SET spec = replace(spec, '"queries":1', '"queries":9')"""


class Curator:
    """One curator with an open study whose cap allows one query; its parts of a verification wait for ``let_go``."""

    def __init__(self, folder, monkeypatch, url=None):
        self.path, self.url = folder / "data" / "curator.sqlite", url
        settings = {} if url is None else {"database_url": url}
        self.file = FileOfRecords(folder, public=True, **settings)
        self.study = self.file.study(budget={"queries": 1})
        self.let_go = threading.Event()
        self.let_go.set()
        verify = LogVerification._verify_first

        def waits(verification, count):
            self.let_go.wait(60)
            verify(verification, count)

        monkeypatch.setattr(LogVerification, "_verify_first", waits)
        self.start()

    def start(self):
        self.file.in_process.tokens[GRANT] = self.file.tokens[self.study]
        self.verification = self.file.in_process.app.state.log_verification
        self.verification.start()

    def close(self):
        self.let_go.set()
        self.verification.close()
        self.file.in_process.curator.close()
        self.file.in_process.close()

    @contextmanager
    def beside(self):
        with closing(beside.connect(self.path, self.url)) as db:
            yield db
            db.commit()

    def edit(self, statement):
        with self.beside() as db:
            db.execute(statement)

    def wait_for_verification(self):
        database, deadline = self.file.in_process.context.database, time.monotonic() + 30
        database.look()
        while not database.foreign_writes.are_verified:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def records(self):
        with self.beside() as db:
            return db.execute("SELECT count(*) FROM log").fetchone()[0]

    def send(self, who, method, path, key="k", **sent):
        """A request that is not repeated, whatever the reply."""
        import httpx

        async def talk():
            transport = httpx.ASGITransport(self.file.in_process.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                headers = {"Authorization": f"Bearer {self.file.in_process.tokens[who]}", "Idempotency-Key": key}
                return await client.request(method, path.format(study=self.study), headers=headers, **sent)

        return asyncio.run(talk())

    def ask(self, key="k"):
        body = {"rows": [{"row": 0, "plays": 1}]}
        return self.send(GRANT, "POST", "/v1/studies/{study}/queries", key, json=body)


@pytest.fixture(params=["postgres", "sqlite"])
def curator(request, tmp_path, monkeypatch):
    url = postgres.server().create(f"writes{secrets.token_hex(4)}") if request.param == "postgres" else None
    curator = Curator(tmp_path, monkeypatch, url)
    yield curator
    curator.close()


def waits_for_verification(curator):
    """Each request that would take effect, or answer a grant, is refused, and leaves no record."""
    before = curator.records()
    refused = [
        curator.ask(),
        curator.send(GRANT, "GET", "/v1/studies/{study}"),
        curator.send(GRANT, "GET", "/v1/studies/{study}/candidates"),
        curator.send(OWNER, "POST", "/v1/studies/{study}/grants", json={"name": "n"}),
        curator.send(OWNER, "POST", "/v1/studies/{study}:close"),
    ]
    for reply in refused:
        assert (reply.status_code, reply.json()["code"]) == (503, "verifying"), reply.text
        assert reply.json()["retryable"]
        assert 1 <= int(reply.headers["Retry-After"]) <= 10
    assert curator.records() == before
    assert curator.send(OWNER, "GET", "/v1/studies/{study}").status_code == 200
    assert curator.send(OWNER, "GET", "/v1/audit/entries").status_code == 200


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("when", ["between two queries", "while it is stopped"])
def test_after_a_foreign_write_nothing_takes_effect_until_it_is_verified(curator, when, until):
    assert curator.send(GRANT, "GET", "/v1/studies/{study}").status_code == 200
    if when == "while it is stopped":
        curator.close()
    curator.edit(HARMLESS)
    curator.let_go.clear()
    if when == "while it is stopped":
        curator.file.in_process.open_folder()
        threading.Thread(target=curator.start).start()
        until(lambda: curator.file.in_process.context.database.foreign_writes.verified == -1)
    waits_for_verification(curator)
    curator.let_go.set()
    deadline = time.monotonic() + 30
    while (reply := curator.ask()).status_code == 503:
        assert reply.json()["code"] == "verifying"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert reply.status_code == 201, reply.text
    assert curator.ask().content == reply.content
    assert curator.ask("another").json()["code"] == "privacy_budget_exhausted"


def test_an_edit_is_acted_on_by_nothing_that_begins_after_its_commit(curator):
    """The cap of the study is raised by hand, again and again taken back; other studies go on."""
    other = curator.file.study()
    assert curator.ask().status_code == 201
    for _ in range(3):
        curator.edit(MORE)
        for number in range(20):
            reply = curator.ask(f"more {number}")
            assert reply.status_code == 503, reply.text
            assert reply.json()["code"] in ("verifying", "record_changed")
        assert curator.file.ask(other, 0).status_code == 201
        assert any("its spec is not the one in the log" in each for each in curator.verification.state().findings)
        curator.edit(MORE.replace(":1'", ":8'").replace(":9'", ":1'").replace(":8'", ":9'"))
        deadline = time.monotonic() + 30
        while (reply := curator.ask("more")).status_code == 503:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert reply.json()["code"] == "privacy_budget_exhausted"
    assert curator.verification.state().findings == []


def test_without_the_signal_an_edit_is_acted_on(curator, monkeypatch):
    """The control."""
    monkeypatch.setattr(Database, "_notice_foreign", lambda self, version: self._memory.clear())
    assert curator.ask().status_code == 201
    curator.edit(MORE)
    curator.file.in_process.curator.released._cache.clear()
    assert curator.ask("more").status_code == 201


@pytest.mark.slow(every=2)
def test_without_a_foreign_write_nothing_waits(curator):
    """The control: no reply is 503, whoever reads beside."""
    curator.let_go.clear()
    for number in range(10):
        with curator.beside() as db:
            db.execute("SELECT count(*) FROM ledger").fetchone()
        assert curator.ask(f"key {number}").status_code in (201, 403)
        assert curator.send(OWNER, "POST", "/v1/studies/{study}/grants", f"g{number}", json={"name": "n"}).is_success


def test_an_erasure_is_no_foreign_write(curator):
    """It empties the write-ahead log, or writes the tables anew."""
    dataset, database = curator.file.dataset, curator.file.in_process.context.database
    assert curator.send(OWNER, "POST", "/v1/studies/{study}:close").is_success
    assert curator.send(OWNER, "POST", f"/v1/datasets/{dataset}:archive", "archive").is_success
    database.look()
    before = database.foreign_writes.count
    reply = curator.send(OWNER, "POST", f"/v1/datasets/{dataset}:erase", "erase")
    assert reply.is_success, reply.text
    database.look()
    assert database.foreign_writes.count == before


def test_an_idle_service_looks_for_foreign_writes(curator):
    curator.edit(MORE)
    deadline = time.monotonic() + 30
    while not curator.verification.state().findings:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow(every=2)
def test_the_first_part_of_a_long_log_runs_in_a_process_of_its_own(curator, monkeypatch):
    """An interpreter, as it is served: in all other tests a fork."""
    monkeypatch.setattr(log_verification, "subprocess", subprocess)
    monkeypatch.setattr(log_verification, "SMALL", 0)
    begun = []
    monkeypatch.setattr(
        LogVerification,
        "_begun",
        lambda self, part, begin=LogVerification._begun: begun.append(part) or begin(self, part),
    )
    curator.edit(MORE)
    deadline = time.monotonic() + 60
    while (reply := curator.ask()).json().get("code") == "verifying":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (reply.status_code, reply.json()["code"]) == (503, "record_changed")
    assert begun == ["first"]


@pytest.mark.slow(every=2)
def test_a_release_that_was_drawn_waits_for_the_verification_and_is_published(curator, monkeypatch):
    keep = Vault.keep_release

    def edited(vault, release_id, order):
        curator.let_go.clear()
        curator.edit(HARMLESS)
        threading.Timer(0.5, curator.let_go.set).start()
        return keep(vault, release_id, order)

    draft = curator.file.draft()
    monkeypatch.setattr(Vault, "keep_release", edited)
    assert curator.file.release(draft).status_code == 200
    assert curator.send(OWNER, "GET", f"/v1/studies/{draft}").json()["state"] == "open"
    with curator.beside() as db:
        assert db.execute(f"SELECT count(*) FROM ledger WHERE study_id = '{draft}'").fetchone()[0] == 1


SWAP = """UPDATE datasets SET columns =
    replace(replace(replace(columns, '"a"', '"c"'), '"y"', '"a"'), '"c"', '"y"')"""


def edited_in_its_first_read(curator, monkeypatch, owner, method):
    """Swap two columns of the dataset before the first read of a method, and take it back after the read."""
    act, read, armed, swapped = getattr(owner, method), Database.read, threading.Event(), []

    def acts(*arguments):
        if not swapped:
            armed.set()
        return act(*arguments)

    @contextmanager
    def reads(database):
        if is_first := armed.is_set():
            armed.clear()
            curator.edit(SWAP)
        with read(database) as db:
            yield db
        if is_first:
            curator.edit(SWAP)
            swapped.append(True)
            curator.wait_for_verification()

    monkeypatch.setattr(owner, method, acts)
    monkeypatch.setattr(Database, "read", reads)
    return swapped


def edited_around_its_first_call(curator, monkeypatch, owner, method):
    """Swap the columns before the first call of a method and take it back after, each verified."""
    act, swapped = getattr(owner, method), []

    def acts(*arguments):
        if swapped:
            return act(*arguments)
        curator.edit(SWAP)
        swapped.append(True)
        curator.wait_for_verification()
        assert curator.verification.state().findings
        try:
            return act(*arguments)
        finally:
            curator.edit(SWAP)
            curator.wait_for_verification()

    monkeypatch.setattr(owner, method, acts)
    return swapped


EDITED = pytest.mark.parametrize("edited", [edited_in_its_first_read, edited_around_its_first_call])
LARGE = b"a,b,y\n" + b"".join(b"%d,%d,%d\n" % (i % 3, i % 2, 1_000 + i) for i in range(40))


@pytest.mark.slow(every=2)
@EDITED
def test_bounds_are_drawn_from_no_state_that_an_edit_made_and_took_back(edited, curator, monkeypatch):
    """When the effect is committed, a verification has found that no row differs from the log."""
    dataset = curator.file.in_process.register(LARGE, public=True)
    swapped = edited(curator, monkeypatch, BoundsSearch, "_drawn")
    body = {"epsilon": "100", "quantiles": [0.2, 0.4], "columns": [{"column": "a", "outer": [0.0, 4_000.0]}]}
    deadline = time.monotonic() + 60
    while (
        reply := curator.send(OWNER, "POST", f"/v1/datasets/{dataset}:bounds", "bounds", json=body)
    ).status_code == 503:
        assert reply.json()["code"] in ("verifying", "record_changed")
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert reply.is_success, reply.text
    assert swapped
    assert reply.json()["columns"][0]["upper"] < 500


@pytest.mark.slow(every=3)
@EDITED
def test_a_release_is_drawn_from_no_state_that_an_edit_made_and_took_back(edited, curator, monkeypatch):
    draft = curator.file.draft(release={"mechanism": "identity"}, answers={"mechanism": "none"})
    swapped = edited(curator, monkeypatch, Releases, "_in_secret_order")
    deadline = time.monotonic() + 60
    while (reply := curator.file.release(draft)).status_code == 503:
        assert reply.json()["code"] == "record_changed"
        assert time.monotonic() < deadline
    assert reply.status_code == 200, reply.text
    assert swapped
    grant = curator.file.grant(draft)
    candidates = np.load(
        io.BytesIO(curator.file.in_process.send(grant, "GET", f"/v1/studies/{draft}/candidates").content)
    )
    assert [len(np.unique(column)) for column in candidates.T] == [3, 2]  # y, which was a for a moment, has four


def test_a_writer_of_postgres_waits_for_an_edit_that_is_not_committed(tmp_path, monkeypatch):
    """So no transaction of the service runs between an edit and its notice."""
    curator = Curator(tmp_path, monkeypatch, postgres.server().create(f"writes{secrets.token_hex(4)}"))
    writes, done = curator.file.in_process.context.database.foreign_writes, threading.Event()
    before, database = writes.count, curator.file.in_process.context.database
    with curator.beside() as db:
        db.execute(HARMLESS)
        writer = threading.Thread(target=lambda: (database.write(lambda db: None), done.set()))
        writer.start()
        assert not done.wait(0.5)
    writer.join(30)
    assert (done.is_set(), writes.count) == (True, before + 1)
    curator.close()
