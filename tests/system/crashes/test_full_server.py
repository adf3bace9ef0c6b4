"""A full disk of PostgreSQL: nothing is half done, everybody is told, and the service goes on when there is room.

BLINDOPT_CRASHES=20 does each so often, and fills each part of the server under both kinds of answers; without it, each
part and each kind is met once.
"""

import itertools
import os
import secrets
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from blindopt.client import Owner
from tests import postgres
from tests.postgres import Server
from tests.system.crashes import full_disk

TIMES = range(max(1, int(os.environ.get("BLINDOPT_CRASHES", "0"))))
CODES = ("audit_unavailable", "storage_unavailable", "standby")
"""Where its own log is full, the server ends every session, and the process that led is a standby."""
TABLES, LOG, ALL = "the tables alone", "the server's own log alone", "all of the server"
MEGABYTES = {TABLES: 24, LOG: 16, ALL: 128}
SAYS = {TABLES: "could not extend file", LOG: "PANIC:  could not write to file", ALL: ""}
"""What the server writes to its log of errors, which is on the full disk itself where all of it is."""


@dataclass
class SmallServer:
    """A server of PostgreSQL of which a part is on a small disk."""

    server: Server
    disk: Path
    url: str
    says: str

    def has_room(self):
        """Start it if it ended itself, which it does where its own log found no room even for the recovery."""
        import psycopg

        if not self.server.runs:
            self.server.start()
        with suppress(psycopg.OperationalError):
            return self.server.execute("postgres", "SELECT 1")
        return None


@pytest.fixture
def small_server(request):
    if (reason := postgres.why_not()) is not None:
        pytest.skip(reason)
    disk = Path(tempfile.mkdtemp(prefix="pgsmall", dir="/tmp"))
    full_disk.mount_small(disk, MEGABYTES[request.param])
    server = None
    try:
        Server.give(disk)
        folder = disk / "server" if request.param == ALL else None
        if folder is not None:
            folder.mkdir(mode=0o700)
        server = Server(folder, wal=disk / "wal" if request.param == LOG else None)
        if request.param == TABLES:
            server.execute("postgres", f"CREATE TABLESPACE small LOCATION '{disk}'")
            server.execute("postgres", "CREATE DATABASE full_one TABLESPACE small")
        yield SmallServer(server, disk, server.create("full_one"), SAYS[request.param])
    finally:
        if server is not None:
            server.remove()
        subprocess.run(["umount", str(disk)], check=True)
        shutil.rmtree(disk, ignore_errors=True)


def send(http, study, key):
    """Ask until there is a reply: a process that leads no more closes its connections."""
    for _ in range(20):
        with suppress(httpx.TransportError):
            return full_disk.ask(http, study, key)
    pytest.fail("no connection gets a reply")


def answer(http, study, key, until):
    """The answer, by and by: readiness is of some seconds ago at most."""
    return until(lambda: (reply := send(http, study, key)).status_code == 201 and reply.content)


KINDS = {"charge, then answer": full_disk.LAPLACE, "both at once": full_disk.EXACT}
FULL = [*itertools.product((TABLES, LOG, ALL), KINDS)]


@pytest.mark.slow(sibling="test_a_service_that_is_killed_on_a_full_disk_of_the_server_comes_back_when_there_is_room")
@pytest.mark.parametrize("turn", TIMES)
@pytest.mark.parametrize(
    ("small_server", "kind"),
    FULL if "BLINDOPT_CRASHES" in os.environ else FULL[::3] + FULL[4:5],
    indirect=["small_server"],
)
def test_on_a_full_disk_of_the_server_every_query_is_refused_and_later_answered_once_without_a_restart(
    small_server, kind, make_service, tmp_path, small, open_study, until, turn
):
    curator = make_service("curator", tmp_path, database_url=small_server.url).start()
    process = curator.process
    try:
        with Owner(curator.url, curator.token, timeout_s=240) as owner:
            study = open_study(owner, owner.register("small", small.csv, public=True), answers=KINDS[kind])
            with curator.http(study.token) as http, curator.http() as own:
                first = send(http, study, "first")
                with full_disk.filled(small_server.disk):
                    answered, refused, reply = full_disk.fill_the_log(http, study, send=send)
                    full_disk.check_unavailable(reply, *CODES)
                    # Asked again, for what readiness says is of some seconds ago at most.
                    until(lambda: send(http, study, refused) and own.get("/readyz").status_code == 503)
                    waiting = []
                    for key in (refused, *(secrets.token_hex(4) for _ in range(10))):
                        reply = send(http, study, key)
                        if reply.status_code == 201:  # what failed before has left room in a page, or in the log
                            answered[key] = reply.content
                        else:
                            full_disk.check_unavailable(reply, *CODES)
                            waiting.append(key)
                    until(lambda: own.get("/healthz").status_code == 200)
                    assert small_server.says in (small_server.server.folder / "log").read_text()
                until(small_server.has_room)
                until(lambda: own.get("/readyz").status_code == 200)
                answered |= {"first": first.content} | {key: answer(http, study, key, until) for key in waiting}
                assert full_disk.ask(http, study, "first").content == first.content
                full_disk.check_once(curator, owner, study, answered)
        assert curator.process is process
        assert process.poll() is None
    finally:
        curator.kill()


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("turn", TIMES)
@pytest.mark.parametrize("small_server", [TABLES, LOG], indirect=True)
def test_a_service_that_is_killed_on_a_full_disk_of_the_server_comes_back_when_there_is_room(
    small_server, make_service, tmp_path, small, open_study, until, turn
):
    curator = make_service("curator", tmp_path, database_url=small_server.url).start()
    try:
        with Owner(curator.url, curator.token, timeout_s=240) as owner:
            study = open_study(owner, owner.register("small", small.csv, public=True), answers=full_disk.LAPLACE)
            with curator.http(study.token) as http:
                with full_disk.filled(small_server.disk):
                    answered, refused, _ = full_disk.fill_the_log(http, study, send=send)
                    curator.kill()
                    curator.process = curator.spawn()
                    until(curator.listens)
                until(small_server.has_room)
                curator.await_ready()
                answered[refused] = answer(http, study, refused, until)
                full_disk.check_once(curator, owner, study, answered)
    finally:
        curator.kill()


@pytest.mark.slow(sibling="test_full_disk.py::test_a_run_waits_while_its_modeler_s_disk_is_full_and_goes_on_by_itself")
@pytest.mark.parametrize("turn", TIMES)
@pytest.mark.parametrize("small_server", [TABLES], indirect=True)
def test_a_run_waits_while_the_disk_of_its_modeler_s_server_is_full_and_goes_on_by_itself(
    small_server, make_service, tmp_path, small, open_study, run_of, until, turn
):
    curator = make_service("curator", tmp_path).start()
    modeler = make_service("modeler", tmp_path, database_url=small_server.url, **full_disk.QUICK).start()
    try:
        with Owner(curator.url, curator.token) as owner:
            study = open_study(owner, owner.register("small", small.csv, public=True), noise_variance=1.0)
        order = run_of(curator.url, study, iterations=150, random=True)
        full_disk.check_a_waiting_run(curator, modeler, study, order, small_server.disk, until)
    finally:
        modeler.kill()
