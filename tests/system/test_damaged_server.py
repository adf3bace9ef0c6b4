"""Pages that a PostgreSQL server has lost: the routes of their table are 503, and all others answer."""

import re

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner
from tests import postgres
from tests.system.crashes import crash_checks as checks

FILES = """
SELECT pg_relation_filepath(c.oid) FROM pg_class c WHERE c.oid = 'curator.{0}'::regclass
UNION SELECT pg_relation_filepath(i.indexrelid) FROM pg_index i WHERE i.indrelid = 'curator.{0}'::regclass
"""

OTHER_PAGES = "SELECT count(*) FROM generate_series(1, 20000) n JOIN pg_attribute ON attrelid = n AND attnum = 1"
"""Reads so many pages by their index that no other stays in memory."""


@pytest.fixture
def server():
    if (reason := postgres.why_not()) is not None:
        pytest.skip(reason)
    made = postgres.Server()
    made.create("curator")
    made.execute("postgres", "ALTER SYSTEM SET shared_buffers = '128kB'")  # 16 pages: files are read again and again
    made.stop()
    made.start()
    yield made
    made.remove()


@pytest.fixture
def curator(server, make_service, tmp_path, small):
    service = make_service("curator", tmp_path, database_url=server.url("curator")).start()
    with Owner(service.url, service.token) as owner:
        dataset = owner.register("small", small.csv, public=True).id
        study = owner.release(owner.create_study(checks.draft(small, dataset)).id).id
        owner.grant(study, wire.GrantCreate(name="m"))
    service.ids = {"dataset": dataset, "study": study}
    yield service
    service.kill()


def replies(service):
    """Status and code of every GET of the contract that an owner may send."""
    with service.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
        by_path = {}
        for path in (path for path, operations in paths.items() if "get" in operations and "event" not in path):
            filled = re.sub(r"{(\w+?)(_id)?}", lambda match: service.ids.get(match[1], "1"), path)
            reply = http.get(filled, timeout=60)
            by_path[path] = reply.status_code, None if reply.is_success else reply.json()["code"]
        return by_path


def overwrite(server, table, pages=None):
    """Write 0xff over the files of a table and its indexes, which the server then reads; what was there.

    ``pages`` are written back.
    """
    paths = [server.folder / "data" / name for (name,) in server.execute("curator", FILES.format(table))]
    server.execute("curator", "CHECKPOINT")
    before = {path: path.read_bytes() for path in paths}
    for path in paths:
        with path.open("rb+") as file:
            file.write(b"\xff" * len(before[path]) if pages is None else pages[path])
    for _ in range(3):
        server.execute("curator", OTHER_PAGES)
    return before


@pytest.mark.slow(
    sibling="test_damaged_pages.py::test_a_table_whose_pages_are_damaged_is_503_at_its_routes_and_all_others_answer"
)
@pytest.mark.parametrize("table", ["studies", "notices"])
def test_pages_that_a_server_has_lost_are_503_at_their_routes_and_all_others_answer(server, curator, until, table):
    def answers(path):
        try:
            with curator.http() as http:
                return http.get(path).status_code
        except httpx.TransportError:
            return None

    before = replies(curator)
    assert {status for status, _ in before.values()} & {500, 503} == set()
    pages = overwrite(server, table)
    during = replies(curator)
    changed = {path: reply for path, reply in during.items() if reply != before[path]}
    assert set(changed.values()) == {(503, "storage_unavailable")}
    assert len(changed) < len(before) * 2 / 3
    assert (answers("/readyz"), answers("/healthz")) == (503, 200)
    overwrite(server, table, pages)
    with curator.http() as http:
        until(lambda: http.post("/v1/audit:verify", headers={"Idempotency-Key": "verify"}).status_code == 200)
    until(lambda: answers("/readyz") == 200)
    assert replies(curator) == before
