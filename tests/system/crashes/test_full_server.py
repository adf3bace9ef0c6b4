"""The disk of PostgreSQL is full: as `test_full_disk.py` has it for the disk of a service."""

import secrets
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from blindopt.client import OwnerClient
from tests import postgres
from tests.system.crashes.test_full_disk import (
    EXACT,
    LAPLACE,
    ask,
    check_once,
    check_unavailable,
    fill_the_log,
    filled,
)

CODES = ("audit_unavailable", "storage_unavailable", "standby")
"""The last one where the server ended all sessions, as it does where its own log of changes cannot grow."""


@pytest.fixture
def server(tmp_path):
    """A server of its own on a small tmpfs; skips where that is not allowed."""
    if (reason := postgres.why_not()) is not None:
        pytest.skip(reason)
    folder = Path("/tmp") / f"pg{secrets.token_hex(4)}"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        folder.rmdir()
        pytest.skip(f"mounting a tmpfs is not allowed here: {done.stderr.strip()}")
    made = postgres.Server(folder)
    yield made
    made.stop("immediate")
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


@pytest.mark.parametrize("answers", [LAPLACE, EXACT], ids=["charge, then answer", "both at once"])
def test_on_a_full_disk_of_the_server_every_query_is_refused_and_later_answered_once(
    answers, server, make_service, tmp_path, small, open_study, until
):
    curator = make_service("curator", tmp_path, database_url=server.create("full")).start()
    with OwnerClient(curator.url, curator.token) as owner:
        study = open_study(owner, owner.register("small", small.csv, public=True), answers=answers)
        with curator.http(study.token) as http, curator.http() as own:
            first = ask(http, study, "first")
            with filled(server.folder):
                answered, refused, reply = fill_the_log(http, study)
                check_unavailable(reply, *CODES)
                waiting = [refused, *(secrets.token_hex(4) for _ in range(10))]
                for key in waiting:
                    check_unavailable(ask(http, study, key), *CODES)
                ready = until(lambda: (reply := own.get("/readyz")).status_code == 503 and reply)
                check_unavailable(ready, *CODES)
                assert own.get("/healthz").status_code == 200
            with suppress(AssertionError):  # it runs, unless its own log of changes could not grow
                server.start()
            until(lambda: own.get("/readyz").status_code == 200)
            again = {key: until(lambda key=key: answer_to(http, study, key)) for key in waiting}
            assert ask(http, study, "first").content == first.content
            check_once(curator, owner, study, answered | again | {"first": first.content})
    curator.stop()


def answer_to(http, study, key):
    """The bytes of an answer; None while it is refused for now."""
    reply = ask(http, study, key)
    if reply.status_code == 201:
        return reply.content
    return check_unavailable(reply, *CODES)
