"""A curator whose database is behind a proxy: how often an exchange waits for it, and what waits with it."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient
from tests import postgres
from tests.postgres_proxy import PostgresProxy
from tests.system.crashes import crash_checks as checks

ROUND_TRIPS_MAX = 4


@pytest.fixture(scope="module")
def proxy():
    with PostgresProxy(postgres.server().folder) as made:
        yield made


@pytest.fixture(scope="module")
def behind(make_service, proxy, tmp_path_factory):
    url = proxy.url(postgres.server().create(f"proxied{secrets.token_hex(4)}"))
    service = make_service("curator", tmp_path_factory.mktemp("behind"), database_url=url).start()
    yield service
    service.kill()


@pytest.fixture(scope="module")
def study(behind, small):
    with Owner(behind.url, behind.token, timeout_s=240) as owner:
        dataset = owner.register("small", small.csv, public=True).id
        made = owner.create_study(checks.draft(small, dataset, epsilon="0.1", answers=300))
        owner.release(made.id)
        return checks.Study(made.id, owner.grant(made.id, wire.GrantCreate(name="modeler")).token, "0.1")


def ask(behind, study, row=3, key=None):
    with StudyClient(behind.url, study.token, study.id, timeout_s=240) as client:
        return client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row)]), key=key or secrets.token_hex(8))[0]


def test_an_exchange_waits_for_the_database_four_times_at_most(behind, study, proxy):
    ask(behind, study)
    counts = []
    with StudyClient(behind.url, study.token, study.id, timeout_s=240) as client:
        for row in range(15):  # of a new row, and of one that was measured before
            before = proxy.round_trips
            client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row // 2)]), key=secrets.token_hex(8))
            counts.append(proxy.round_trips - before)
    # The heartbeat of the leader and the saved checkpoint are in some of them.
    assert min(counts) > 0
    assert median(counts) <= ROUND_TRIPS_MAX


def test_the_service_answers_others_while_a_commit_waits_for_the_database(behind, study, proxy, until):
    proxy.hold_at = b'"kind":"exchange"'  # the record of the exchange is sent together with COMMIT
    key = secrets.token_hex(8)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, behind, study, 5, key)
        try:
            until(proxy.is_holding.is_set)
            with httpx.Client(base_url=behind.url, timeout=240, trust_env=False) as client:
                assert client.get("/healthz").status_code == 200
            assert not answer.done()
        finally:
            proxy.release()
        assert answer.result() == ask(behind, study, 5, key)


def test_the_service_answers_others_while_a_page_waits_for_its_session(behind, proxy, until, tmp_path):
    (tmp_path / "password").write_text("correct horse battery")
    added = behind.run_in_process("user", "add", "olga", "--password-file", str(tmp_path / "password"))
    assert added.returncode == 0, added.stderr
    with httpx.Client(base_url=behind.url, timeout=240, trust_env=False) as client:
        form = {"name": "olga", "password": "correct horse battery"}
        entered = client.post("/console/login", data=form, headers={"origin": behind.url})
        headers = {"cookie": entered.headers["set-cookie"].partition(";")[0]}  # of http too
        assert client.get("/console/", headers=headers).status_code == 200  # its use is stored, at most once a minute
        ((identity,),) = behind.rows("SELECT id_sha256 FROM sessions")
        proxy.hold_at = bytes(identity)
        with ThreadPoolExecutor(1) as pool:
            page = pool.submit(httpx.get, f"{behind.url}/console/", headers=headers, timeout=240, trust_env=False)
            try:
                until(proxy.is_holding.is_set)
                assert client.get("/healthz").status_code == 200
                assert not page.done()
            finally:
                proxy.release()
            assert page.result().status_code == 200
