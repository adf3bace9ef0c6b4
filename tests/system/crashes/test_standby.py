"""Two curators on one PostgreSQL: one leads, the other waits; nothing is lost or charged twice, whatever ends.

BLINDOPT_CRASHES=20 kills so often at each point, and stops the server so often, for BLINDOPT_STOPPED_S seconds (30).
"""

import os
import secrets
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import sleep

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient
from blindopt.errors import BlindoptError
from tests import postgres
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.crashing_service import IMPATIENT, NO_LOCK, Shot, arm

KILLS = int(os.environ.get("BLINDOPT_CRASHES", "0"))
TIMES = range(max(1, KILLS))
POINTS = (
    "charge.after-commit",
    "answer.reply.before",
    "charge.before-commit",
    "answer.before-commit",
    "answer.after-commit",
    "draw.before",
    "draw.after",
    "answer.reply.half",
    "answer.reply.after",
)
CHOSEN = [point for point in POINTS for _ in TIMES] if KILLS else POINTS[:2]
OF_A_RELEASE = (
    "release.after-commit",
    "release.before-commit",
    "file.after",
    "published.before-commit",
    "published.after-commit",
    "published.reply.before",
)
CHOSEN_OF_A_RELEASE = [point for point in OF_A_RELEASE for _ in TIMES] if KILLS else OF_A_RELEASE[:1]
SERVES_WITHIN_S = 5.0
STOPPED_S = float(os.environ.get("BLINDOPT_STOPPED_S", "30" if KILLS else "0"))


class Pair:
    """Two curators with one folder of data and one database; the first leads."""

    def __init__(self, make_service, folder):
        self.url = _url_of_a_role()
        self.curators = [make_service("curator", folder, database_url=self.url, metrics="true") for _ in range(2)]
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
        begun = time.monotonic()
        self.standby.await_ready()
        if KILLS:  # a busy machine may take longer: no verdict of the gate depends on it
            assert time.monotonic() - begun < SERVES_WITHIN_S
        self.curators.reverse()
        if self.standby.process.poll() is not None:
            self.standby.process = self.standby.spawn()

    def order(self, until):
        """Wait until one serves: it is the leader."""
        until(lambda: any(refused(curator, "/readyz") == (200, None) for curator in self.curators))
        if refused(self.leader, "/readyz")[0] != 200:
            self.curators.reverse()

    def charges(self, key):
        query = "SELECT count(*) FROM ledger l JOIN queries q ON q.id = l.query_id WHERE q.idempotency_key = ?"
        return self.leader.rows(query, key)[0][0]


def _url_of_a_role():
    """A database that belongs to a role without further rights."""
    server, name = postgres.server(), f"pair{secrets.token_hex(4)}"
    url = server.create(name)
    server.execute("postgres", f"CREATE ROLE {name} LOGIN")
    server.execute("postgres", f"ALTER DATABASE {name} OWNER TO {name}")
    return url.replace(f"{postgres.USER}:", f"{name}:")


@pytest.fixture(scope="module")
def pair(make_service, tmp_path_factory):
    made = Pair(make_service, tmp_path_factory.mktemp("pair"))
    yield made
    for curator in made.curators:
        curator.kill()


@pytest.fixture(scope="module")
def study(pair, small):
    with Owner(pair.leader.url, pair.leader.token, timeout_s=240) as owner:
        dataset = owner.register("small", small.csv, public=True).id
        made = owner.create_study(checks.draft(small, dataset, epsilon="0.1", answers=300 * len(TIMES)))
        owner.release(made.id)
        return checks.Study(made.id, owner.grant(made.id, wire.GrantCreate(name="modeler")).token, "0.1")


def ask(curator, study, key, row=3):
    with StudyClient(curator.url, study.token, study.id, timeout_s=240) as client:
        return client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row)]), key=key)[0]


def answer_of(pair, study, key, until):
    """The answer of the curator that leads, by and by: readiness is cached for a second, and may be out of date."""

    def attempt():
        pair.order(until)
        with suppress(BlindoptError):
            return ask(pair.leader, study, key)
        return None

    return until(attempt)


def refused(curator, path="/v1/meta"):
    with httpx.Client(base_url=curator.url, timeout=60, trust_env=False) as client:
        try:
            reply = client.get(path)
        except httpx.TransportError:  # it came as the lead ended, which closes connections
            return 0, None
        return reply.status_code, reply.json().get("code")


def test_a_standby_says_so_and_serves_nothing(pair, until):
    until(lambda: pair.standby.listens())
    for path in ("/readyz", "/v1/meta", "/v1/studies", "/console/"):
        assert refused(pair.standby, path) == (503, "standby")
    assert refused(pair.standby, "/healthz") == (200, None)
    with httpx.Client(base_url=pair.standby.url, timeout=60, trust_env=False) as client:
        assert "blindopt_leader 0\n" in client.get("/metrics").text
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


@pytest.mark.parametrize("point", CHOSEN_OF_A_RELEASE)
def test_the_leader_is_killed_in_a_release_which_the_standby_ends_and_charges_once(pair, study, small, point):
    leader = pair.leader
    with Owner(leader.url, leader.token, timeout_s=240) as owner:
        dataset = next(iter(owner.datasets())).id
        made = owner.create_study(checks.draft(small, dataset, epsilon="0.1", answers=300))
        Shot(point).aim(pair.control(leader))
        with suppress(BlindoptError):
            owner.release(made.id)
    leader.process.wait(timeout=60)
    pair.fail_over()
    with Owner(pair.leader.url, leader.token, timeout_s=240) as owner:
        if (state := owner.study(made.id).view.state) != "open":  # a charge without a release, or none of both
            assert state in ("draft", "releasing")
            owner.release(made.id)
        assert owner.study(made.id).view.state == "open"
    query = "SELECT count(*) FROM ledger WHERE study_id = ? AND kind = 'release'"
    assert pair.leader.rows(query, made.id) == [(1,)]


def backends(where):
    """Ends of sessions: how many were ended where a condition holds."""
    of = "pg_stat_activity WHERE application_name = 'blindopt curator writer'"
    sql = f"SELECT count(pg_terminate_backend(pid)) FROM {of}"
    return postgres.server().execute("postgres", f"{sql} AND {where}")[0][0]


def _leads(pair):
    """The sessions of a pair that hold the lock of the one who leads."""
    sql = (
        "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted"
        " AND application_name = 'blindopt curator writer' AND datname = %s"
    )
    return [pid for (pid,) in postgres.server().execute("postgres", sql, [postgres.name_of(pair.url)])]


@pytest.mark.parametrize("turn", TIMES)
def test_of_a_transaction_whose_session_is_terminated_nothing_remains_and_the_request_is_answered_once(
    pair, study, until, turn
):
    key = secrets.token_hex(8)
    ask(pair.leader, study, secrets.token_hex(8))
    with postgres.session(pair.url) as blocking, ThreadPoolExecutor(1) as pool:
        # The charge, the query and their record are inserted by then; the exchange in the shared log is not.
        blocking.execute("BEGIN; LOCK TABLE curator.shared IN EXCLUSIVE MODE")
        answer = pool.submit(ask, pair.leader, study, key)
        until(lambda: backends("wait_event_type = 'Lock' AND query LIKE 'INSERT INTO shared%'"))
        assert isinstance(answer.exception(timeout=240), BlindoptError)
        blocking.execute("ROLLBACK")
    assert pair.charges(key) == 0
    assert answer_of(pair, study, key, until).answers
    assert pair.charges(key) == 1


@pytest.mark.slow(sibling="test_the_leader_is_killed_and_the_standby_answers_the_same_request_with_one_charge")
@pytest.mark.parametrize("turn", TIMES)
def test_two_leaders_that_an_operator_made_charge_once_and_the_log_has_one_record_at_each_place(
    pair, study, until, turn
):
    forced, broken = pair.standby, pair.control(pair.standby).with_name("broken")
    _stop(forced)
    broken.write_text(NO_LOCK)
    forced.start()
    try:
        keys = [secrets.token_hex(8) for _ in range(6)]
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(ask, leader, study, key) for key in keys for leader in (pair.leader, forced)]
            for pending in zip(answers[::2], answers[1::2], strict=True):
                given = [each.result() for each in pending if each.exception() is None]
                assert not given or given[0] == given[-1]
        # Each takes the other for a foreign writer, and may refuse until its writes are verified.
        assert {pair.charges(key) for key in keys} <= {0, 1}
        # A third writer beside them, who sees neither: the place is taken.
        body = "SELECT seq, body, leaf, peaks FROM curator.log WHERE seq = (SELECT max(seq) FROM curator.log)"
        with pytest.raises(Exception, match="log_pkey"):
            postgres.server().execute(postgres.name_of(pair.url), f"INSERT INTO curator.log {body}")
        status, output = checks.command(pair.leader, "audit", "verify")
        assert status == 0, output
    finally:
        broken.unlink()
        _stop(forced)
        forced.process = forced.spawn()
        until(forced.listens)  # from then on it can be ended in order
    assert all(answer_of(pair, study, key, until).answers for key in keys)
    assert [pair.charges(key) for key in keys] == [1] * len(keys)


@pytest.mark.parametrize("turn", TIMES)
def test_while_no_further_session_may_be_opened_the_leader_answers_and_goes_on(pair, study, until, turn):
    server, role = postgres.server(), postgres.name_of(pair.url)
    first = ask(pair.leader, study, key := secrets.token_hex(8))
    server.execute("postgres", f"ALTER ROLE {role} CONNECTION LIMIT 1")
    try:
        with ThreadPoolExecutor(8) as pool:  # more readers than have a session
            codes = list(pool.map(lambda _: refused(pair.leader, "/readyz")[0], range(16)))
        assert set(codes) <= {200, 503}
        assert ask(pair.leader, study, key) == first
        assert ask(pair.leader, study, secrets.token_hex(8)).answers
    finally:
        server.execute("postgres", f"ALTER ROLE {role} CONNECTION LIMIT -1")
    pair.order(until)


@pytest.mark.parametrize("turn", TIMES)
def test_a_server_that_stands_still_is_answered_for_with_503_and_served_again_without_a_restart(
    pair, study, until, turn
):
    processes, key = {curator.process for curator in pair.curators}, secrets.token_hex(8)
    first = ask(pair.leader, study, key)
    for curator in () if KILLS else pair.curators:  # they wait for ten seconds otherwise
        pair.control(curator).with_name("broken").write_text(IMPATIENT)
    postgres.server().signal(signal.SIGSTOP)
    try:
        until(lambda: all(refused(curator, "/readyz") == (503, "standby") for curator in pair.curators))
        sleep(STOPPED_S)
    finally:
        for curator in pair.curators:
            pair.control(curator).with_name("broken").unlink(missing_ok=True)
        postgres.server().signal(signal.SIGCONT)
    assert answer_of(pair, study, key, until) == first
    assert pair.charges(key) == 1
    assert {curator.process for curator in pair.curators if curator.process.poll() is None} == processes


@pytest.mark.parametrize("turn", TIMES)
def test_a_terminated_session_ends_the_lead_at_once_and_another_answers(pair, study, until, turn):
    leader, key = pair.leader, secrets.token_hex(8)
    (lead,) = _leads(pair)
    assert backends(f"pid = {lead}") == 1
    # Where the other curator still opens its session, the same one may lead again, in a new session.
    until(lambda: refused(leader, "/readyz") == (503, "standby") or _leads(pair) not in ([], [lead]))
    assert answer_of(pair, study, key, until).answers
    assert pair.charges(key) == 1


@pytest.mark.parametrize("turn", TIMES)
def test_a_server_that_stops_and_comes_back_is_served_again_without_a_restart(pair, study, until, turn):
    processes, key = [curator.process for curator in pair.curators], secrets.token_hex(8)
    first = ask(pair.leader, study, key)
    postgres.server().stop("immediate")
    until(lambda: all(refused(curator, "/readyz") == (503, "standby") for curator in pair.curators))
    sleep(STOPPED_S)
    postgres.server().start()
    assert answer_of(pair, study, key, until) == first
    assert [curator.process.poll() for curator in pair.curators] == [None, None]
    assert {curator.process for curator in pair.curators} == set(processes)


@pytest.mark.parametrize("turn", TIMES)
def test_an_earlier_state_of_the_database_is_found_by_the_checkpoint_outside(pair, study, until, turn):
    server, name = postgres.server(), postgres.name_of(pair.url)
    _end(pair)
    server.execute("postgres", f'CREATE DATABASE earlier TEMPLATE "{name}"')
    pair.leader.start()
    for row in range(3):
        ask(pair.leader, study, secrets.token_hex(8), row)
    status, output = checks.command(pair.leader, "audit", "verify")
    assert status == 0, output
    _end(pair)
    _rename(server, (name, "later"), ("earlier", name))
    pair.leader.process = pair.leader.spawn()
    until(lambda: pair.leader.listens() and refused(pair.leader, "/readyz") == (503, "audit_unavailable"))
    with pytest.raises(BlindoptError, match="audit"):
        ask(pair.leader, study, secrets.token_hex(8))
    pair.leader.stop()
    _rename(server, (name, "earlier"), ("later", name))
    server.execute("postgres", "DROP DATABASE earlier")
    pair.leader.start()
    assert ask(pair.leader, study, secrets.token_hex(8)).answers


def _rename(server, *names):
    for old, new in names:
        server.execute("postgres", f'ALTER DATABASE "{old}" RENAME TO "{new}"')


def _end(pair):
    for curator in pair.curators:
        _stop(curator)


def _stop(curator):
    if curator.process.poll() is None:
        assert curator.stop() == 0
