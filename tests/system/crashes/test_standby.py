"""Two curators on one PostgreSQL: one leads, the other waits; nothing is lost or charged twice, whatever ends.

BLINDOPT_CRASHES=20 kills so often at each point.
"""

import os
import secrets

import httpx
import pytest

from blindopt import wire
from blindopt.client import OwnerClient, StudyClient
from blindopt.errors import BlindoptError
from tests import postgres
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.crashing_service import Shot, arm

KILLS = int(os.environ.get("BLINDOPT_CRASHES", "0"))
POINTS = (
    "charge.after-commit",
    "answer.reply.before",
    "charge.before-commit",
    "draw.before",
    "draw.after",
    "answer.reply.half",
    "answer.reply.after",
)
CHOSEN = [point for point in POINTS for _ in range(KILLS)] or POINTS[:2]


class Pair:
    """Two curators with one folder of data and one database; the first leads."""

    def __init__(self, make_service, folder):
        self.url = postgres.server().create(f"pair{secrets.token_hex(4)}")
        self.curators = [make_service("curator", folder, database_url=self.url) for _ in range(2)]
        for curator in self.curators:
            self.control(curator).parent.mkdir()
            arm(curator, self.control(curator))
        self.leader.start()
        self.standby.process = self.standby.spawn()

    @property
    def leader(self):
        return self.curators[0]

    @property
    def standby(self):
        return self.curators[1]

    @staticmethod
    def control(curator):
        return curator.folder.parent / str(curator.port) / "control"

    def fail_over(self):
        """The standby serves; the other is started again and waits."""
        self.standby.await_ready()
        self.curators.reverse()
        if self.standby.process.poll() is not None:
            self.standby.process = self.standby.spawn()

    def charges(self, key):
        query = "SELECT count(*) FROM ledger l JOIN queries q ON q.id = l.query_id WHERE q.idempotency_key = ?"
        return self.leader.rows(query, key)[0][0]


@pytest.fixture(scope="module")
def pair(make_service, tmp_path_factory):
    made = Pair(make_service, tmp_path_factory.mktemp("pair"))
    yield made
    for curator in made.curators:
        curator.kill()


@pytest.fixture(scope="module")
def study(pair, small):
    with OwnerClient(pair.leader.url, pair.leader.token, timeout_s=240) as owner:
        dataset = owner.register("small", small.csv, public=True).id
        made = owner.create_study(checks.draft(small, dataset, epsilon="0.1", answers=300))
        owner.release(made.id)
        return checks.Study(made.id, owner.grant(made.id, wire.GrantCreate(name="modeler")).token, "0.1")


def ask(curator, study, key, row=3):
    with StudyClient(curator.url, study.token, study.id, timeout_s=240) as client:
        return client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row)]), key=key)[0]


def refused(curator, path="/v1/meta"):
    with httpx.Client(base_url=curator.url, timeout=60, trust_env=False) as client:
        reply = client.get(path)
        return reply.status_code, reply.json().get("code")


def test_a_standby_says_so_and_serves_nothing(pair, until):
    until(lambda: pair.standby._listens())
    for path in ("/readyz", "/v1/meta", "/v1/studies", "/console/"):
        assert refused(pair.standby, path) == (503, "standby")
    assert refused(pair.standby, "/healthz") == (200, None)
    assert refused(pair.leader, "/readyz") == (200, None)


@pytest.mark.parametrize("point", CHOSEN)
def test_the_leader_is_killed_and_the_standby_answers_the_same_request_with_one_charge(pair, study, point):
    leader, key = pair.leader, secrets.token_hex(8)
    Shot(point).aim(pair.control(leader))
    answer = None
    try:
        answer = ask(leader, study, key)
    except BlindoptError:
        leader.process.wait(timeout=60)
    pair.control(leader).unlink(missing_ok=True)
    leader.kill()
    pair.fail_over()
    assert pair.leader is not leader
    again = ask(pair.leader, study, key)
    assert answer is None or answer == again
    assert again == ask(pair.leader, study, key)
    assert pair.charges(key) == 1


def test_a_terminated_session_ends_the_lead_at_once_and_another_answers(pair, study, until):
    leader, key = pair.leader, secrets.token_hex(8)
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'blindopt curator writer'"
    sql += " AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"
    assert postgres.server().execute("postgres", sql) == [(True,)]
    until(lambda: refused(leader, "/readyz") == (503, "standby"))
    pair.fail_over()
    assert ask(pair.leader, study, key).answers
    assert pair.charges(key) == 1


def test_a_server_that_stops_and_comes_back_is_served_again_without_a_restart(pair, study, until):
    processes, key = [curator.process for curator in pair.curators], secrets.token_hex(8)
    first = ask(pair.leader, study, key)
    postgres.server().stop("immediate")
    until(lambda: all(refused(curator, "/readyz") == (503, "standby") for curator in pair.curators))
    postgres.server().start()
    until(lambda: any(refused(curator, "/readyz") == (200, None) for curator in pair.curators))
    if refused(pair.leader, "/readyz")[0] != 200:
        pair.curators.reverse()
    assert ask(pair.leader, study, key) == first
    assert [curator.process.poll() for curator in pair.curators] == [None, None]
    assert {curator.process for curator in pair.curators} == set(processes)


def test_an_earlier_state_of_the_database_is_found_by_the_checkpoint_outside(pair, study, until):
    server, name = postgres.server(), postgres.name_of(pair.url)
    _end(pair)
    server.execute("postgres", f'CREATE DATABASE earlier TEMPLATE "{name}"')
    pair.leader.start()
    for row in range(3):
        ask(pair.leader, study, secrets.token_hex(8), row)
    status, output = checks.command(pair.leader, "audit", "verify")
    assert status == 0, output
    _end(pair)
    for statement in (f'ALTER DATABASE "{name}" RENAME TO later', f'ALTER DATABASE earlier RENAME TO "{name}"'):
        server.execute("postgres", statement)
    pair.leader.process = pair.leader.spawn()
    until(lambda: pair.leader._listens() and refused(pair.leader, "/readyz") == (503, "audit_unavailable"))
    with pytest.raises(BlindoptError, match="audit"):
        ask(pair.leader, study, secrets.token_hex(8))
    pair.leader.stop()


def _end(pair):
    for curator in pair.curators:
        if curator.process.poll() is None:
            assert curator.stop() == 0
