"""A grant adds at most its quota to the curator's logs in a day, and what is refused then writes nothing."""

import asyncio
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.errors import Invalid
from tests import beside
from tests.builders import BY_HAND, a_run, a_study, laplace
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.modeler_service.in_process_modeler import modeler_at_work, start

QUOTA = 1 << 20
STORED = """SELECT (SELECT sum(length(body) + length(leaf) + length(peaks)) FROM log WHERE instr(body, ?) > 0)
    + (SELECT sum(length(body) + length(leaf) + length(peaks)) FROM shared WHERE grant_id = ?)
    + coalesce((SELECT sum(length(body)) FROM replies WHERE principal = ?), 0)"""


@pytest.fixture(scope="module")
def small_quota(make_service, tmp_path_factory):
    return make_service("curator", tmp_path_factory.mktemp("quota"), log_bytes_per_grant_day=str(QUOTA)).start()


def granted(service, small, open_study, name):
    """A study of its own on small data, with one grant."""
    with Owner(service.url, service.token) as owner:
        opened = open_study(owner, owner.register(name, small.csv, public=True))
        return opened, owner.grants(opened.id)[0]


def flood(service, opened, requests):
    """What ``requests`` requests of a grant, over four connections, are answered: refusals and answers."""
    replies = []

    def send(share):
        with service.http(opened.token) as http:
            for number in share:
                if number % 4:
                    replies.append(http.get(f"/v1/studies/{opened.id}/queries/qry_0000000000000000"))
                else:
                    body, key = {"rows": [{"row": number % 400}]}, {"Idempotency-Key": f"flood-{number}"}
                    replies.append(http.post(f"/v1/studies/{opened.id}/queries", json=body, headers=key))
                if replies[-1].status_code == 429:
                    return

    threads = [threading.Thread(target=send, args=(range(start, requests, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


def stored(service, grant_id):
    """The bytes that the records and replies of a grant take, added up in the database."""
    ((size,),) = service.rows(STORED, grant_id.encode(), grant_id, grant_id)
    return size


def test_a_grant_adds_its_quota_and_no_byte_more(small_quota, small, open_study):
    opened, grant = granted(small_quota, small, open_study, "flood")
    replies = flood(small_quota, opened, 4_000)
    refused = [reply for reply in replies if reply.status_code == 429]
    assert {reply.status_code for reply in replies} == {201, 404, 429}
    problem = refused[0].json()
    assert (problem["code"], problem["retryable"]) == ("log_quota_reached", True)
    assert "raises the quota" in problem["detail"]
    assert "1,048,576" in problem["detail"]
    assert 0 < int(refused[0].headers["retry-after"]) <= 86_400
    with Owner(small_quota.url, small_quota.token) as owner:
        (view,) = owner.grants(opened.id)
        assert view.log_bytes_per_day == QUOTA
        assert QUOTA - 8_192 < view.log_bytes_today == view.log_bytes <= QUOTA
        # Records of charges name the query and not the grant: beside them it is what the database has.
        charges = small_quota.rows(
            "SELECT sum(length(body) + length(leaf) + length(peaks)) FROM log WHERE kind='charge'"
        )
        assert stored(small_quota, grant.id) <= view.log_bytes <= stored(small_quota, grant.id) + charges[0][0]
        small_quota.kill()
        small_quota.start()
        assert flood(small_quota, opened, 40)[-1].status_code == 429  # at most a refusal fitted that a query had not
        assert owner.grants(opened.id)[0].log_bytes <= QUOTA
        tables = ("log", "shared", "replies", "ledger")
        before = [small_quota.rows(f"SELECT count(*) FROM {table}") for table in tables]
        assert {reply.status_code for reply in flood(small_quota, opened, 40)} == {429}
        assert [small_quota.rows(f"SELECT count(*) FROM {table}") for table in tables] == before
        changed = owner.limit_log(opened.id, grant.id, wire.LogQuota(bytes_per_day=2 * QUOTA))
        assert changed.log_bytes_per_day == 2 * QUOTA
        assert {reply.status_code for reply in flood(small_quota, opened, 40)} == {201, 404}


def test_another_grant_keeps_its_pace_and_without_the_quota_a_flood_stores_more(small_quota, small, open_study):
    """The control: the same requests, under a higher quota of the grant's own, pass 1 MiB."""
    opened, grant = granted(small_quota, small, open_study, "control")
    with Owner(small_quota.url, small_quota.token) as owner:
        owner.limit_log(opened.id, grant.id, wire.LogQuota(bytes_per_day=100 * QUOTA))
        assert {reply.status_code for reply in flood(small_quota, opened, 700)} == {201, 404}
        assert stored(small_quota, grant.id) > QUOTA
        assert owner.limit_log(opened.id, grant.id, wire.LogQuota(bytes_per_day=None)).log_bytes_per_day == QUOTA
        assert flood(small_quota, opened, 1)[0].status_code == 429
        with pytest.raises(Invalid, match="bytes_per_day"):
            wire.parsed(wire.LogQuota, {"bytes_per_day": 1})


def test_a_run_waits_with_words_and_goes_on(make_service, small_quota, small, open_study, tmp_path, until):
    opened, grant = granted(small_quota, small, open_study, "run")
    small_quota.stop()
    with closing(beside.connect(small_quota.database)) as db, db:
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        db.execute("INSERT INTO day_counts VALUES (?, ?, ?, ?, NULL)", (grant.id, day, QUOTA - 20_000, QUOTA))
    small_quota.start()
    modeler = make_service("modeler", tmp_path, wait_seconds_first="0.2", wait_seconds_max="0.2").start()
    with Vendor(modeler.url, modeler.token) as vendor, Owner(small_quota.url, small_quota.token) as owner:
        runs = [
            vendor.start(
                a_run(small_quota.url, opened.id, opened.token, algorithm=wire.RandomRows(name="random"), iterations=n)
            )
            for n in (60, 61)
        ]
        for run in runs:  # one of them may not have had its first contact
            view = until(lambda run=run: (view := vendor.run(run.id).view).state == "waiting" and view)
            assert view.problem.code == "log_quota_reached"
            assert "quota" in view.problem.detail
        owner.limit_log(opened.id, grant.id, wire.LogQuota(bytes_per_day=4 * QUOTA))
        ended = [until(lambda run=run: (view := vendor.run(run.id).view).ended_at and view) for run in runs]
        assert [view.state for view in ended] == ["completed", "completed"]
        assert len(list(owner.ledger(opened.id))) == 1 + sum(view.trials for view in ended) > 120


def test_the_next_day_begins_anew_and_nothing_is_charged_without_its_answer(tmp_path):
    curator = InProcessCurator(tmp_path, log_bytes_per_grant_day=QUOTA, metrics=True)
    lines = "\n".join(f"{i / 100},{i % 7}" for i in range(100))
    study = curator.open(
        f"x0,y\n{lines}\n".encode(), lambda dataset: a_study(dataset_id=dataset, answers=laplace("0.001"))
    )
    where, query = f"/v1/studies/{study}/queries", {"rows": [{"row": i} for i in range(100)]}
    statuses = []
    while not statuses or statuses[-1] != 429:
        statuses.append(curator.send("modeler", "POST", where, json=query).status_code)
    assert set(statuses) == {201, 429}
    with curator.context.database.read() as db:
        charged, answered = (
            db.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
            for table in ("queries", "replies WHERE principal LIKE 'grt_%'")
        )
    assert charged == answered == statuses.count(201)
    now = datetime.now(UTC)
    curator.later = now.replace(hour=23, minute=59, second=0) - now
    assert curator.send("modeler", "GET", f"/v1/studies/{study}").status_code == 200  # it leaves room for less
    figures = {figure.name: figure.samples for figure in (read() for read in curator.curator.grants.gauges())}
    assert [sample.value for sample in figures["blindopt_log_quota_share_max"]] == [0.9]
    assert [sample.value for sample in figures["blindopt_log_quota_refused"]] == [1.0]
    curator.later += timedelta(minutes=2)
    assert curator.send("modeler", "POST", where, json=query).status_code == 201
    curator.close()


def test_refusals_of_a_revoked_token_take_nothing_from_the_live_one_and_are_bounded(tmp_path):
    fast = {"rate_per_second": 1e5, "rate_burst": 10_000}
    curator = InProcessCurator(tmp_path, log_bytes_per_grant_day=QUOTA, metrics=True, **fast)
    study = curator.open(b"x0,y\n0.1,1\n0.2,2\n0.3,3\n", lambda dataset: a_study(dataset_id=dataset))
    where, revoked = f"/v1/studies/{study}", curator.tokens["modeler"]
    ((grant),) = curator.call("owner", "GET", f"{where}/grants")["grants"]
    rotated = curator.call("owner", "POST", f"{where}/grants/{grant['id']}:rotate", json={})["token"]
    curator.call("owner", "POST", f"{where}/grants/{grant['id']}/tokens/{grant['tokens'][0]['kid']}:revoke")
    before, statuses = log_bytes(curator, where), []
    while not statuses or statuses[-1] == 401:
        curator.tokens["modeler"] = revoked
        statuses.append(curator.send("modeler", "GET", where).status_code)
        assert len(statuses) < QUOTA >> 10
    assert statuses[-1] == 429
    assert len(statuses) > QUOTA >> 12
    assert log_bytes(curator, where) == before
    (share,) = (figure for figure in (read() for read in curator.curator.grants.gauges()) if "share_max" in figure.name)
    assert [sample.value for sample in share.samples] == [0.0]
    curator.tokens["modeler"] = rotated
    assert curator.send("modeler", "GET", where).status_code == 200
    assert curator.ask(study, [1])
    assert log_bytes(curator, where) > before
    curator.close()


def log_bytes(curator, where):
    """What the count of the study's only grant says."""
    return grant_of(curator, where)["log_bytes_today"]


def grant_of(curator, where):
    """The study's only grant."""
    (grant,) = curator.call("owner", "GET", f"{where}/grants")["grants"]
    return grant


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("room", [0, 3_400, 6_000, 9_500, 15_000, 20_000, 40_000])
def test_of_queries_at_the_same_time_each_that_is_charged_is_answered(room, tmp_path):
    """Four paced queries, which are charged before they are answered, where the day has little room."""
    curator = InProcessCurator(tmp_path, log_bytes_per_grant_day=QUOTA)
    lines = "\n".join(f"{i / 100},{i % 7}" for i in range(100))
    paced = {"answers": laplace("0.001"), "reply_after_ms": 1}
    study = curator.open(f"x0,y\n{lines}\n".encode(), lambda dataset: a_study(dataset_id=dataset, **paced))
    where = f"/v1/studies/{study}"
    grant = grant_of(curator, where)
    curator.context.database.write(lambda db: curator.context.audit_trail.quotas.add(db, grant["id"], QUOTA - room))

    async def queries():
        transport = httpx.ASGITransport(curator.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

            async def query(row):
                headers = {"Authorization": f"Bearer {curator.tokens['modeler']}", "Idempotency-Key": f"key-{row}"}
                body = {"rows": [{"row": row}]}
                return (await client.post(f"{where}/queries", headers=headers, json=body)).status_code

            return await asyncio.gather(*map(query, range(4)))

    statuses = asyncio.run(queries())
    with curator.context.database.read() as db:
        charged = db.exec_driver_sql("SELECT count(*) FROM queries").scalar()
    assert charged == statuses.count(201)
    assert set(statuses) <= {201, 429}
    assert charged == 4 or room < 36_000
    assert charged == 0 or room > 9_000
    assert log_bytes(curator, where) <= QUOTA
    curator.close()


def size_of(curator):
    """The bytes of the pages that the curator's database uses."""
    with curator.context.database.read() as db:
        pages, free, size = (
            db.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("page_count", "freelist_count", "page_size")
        )
    return (pages - free) * size


@pytest.mark.parametrize("source", ["inbox", "webhook"])
def test_a_query_that_people_or_a_system_measure_counts_no_less_than_it_stores_until_it_is_answered(source, tmp_path):
    curator = InProcessCurator(tmp_path, measurer_url="http://127.0.0.1:1", measurer_secret_file=secret_in(tmp_path))
    lines = "\n".join(f"{i / 100}" for i in range(100))
    measurement = BY_HAND if source == "inbox" else wire.WebhookMeasurement(direction="maximize")
    fields = {"measurement": measurement, "answers": laplace("0.001")}
    study = curator.open(f"x0\n{lines}\n".encode(), lambda dataset: a_study(dataset_id=dataset, **fields))
    where = f"/v1/studies/{study}"
    stored, counted = size_of(curator), log_bytes(curator, where)
    for _ in range(2):
        query = curator.ask(study, list(range(100)), plays=10)
        assert size_of(curator) - stored <= log_bytes(curator, where) - counted
        items = curator.items(query)
        assert len(items) == 1_000
        if source == "inbox":
            for start in range(0, 1_000, 100):
                batch = items[start : start + 100]
                assert curator.enter("answer", query, batch, *(1.5 + i / 7 for i in range(100))).is_success
    assert size_of(curator) - stored <= log_bytes(curator, where) - counted
    curator.close()


def secret_in(folder):
    """A file with the key of requests to the owner's system."""
    path = folder / "measurer.key"
    path.write_text("k" * 32, encoding="utf-8")
    return path


def test_a_query_that_needs_more_than_the_quota_is_told_so(tmp_path):
    curator = InProcessCurator(tmp_path, log_bytes_per_grant_day=QUOTA)
    lines = "\n".join(f"{i / 100},{i % 7}" for i in range(100))
    study = curator.open(f"x0,y\n{lines}\n".encode(), lambda dataset: a_study(dataset_id=dataset))
    where = f"/v1/studies/{study}"
    curator.send("modeler", "GET", where)
    added = log_bytes(curator, where)
    rows = [{"row": row, "plays": 20} for row in range(100)]
    detail = curator.send("modeler", "POST", f"{where}/queries", json={"rows": rows}).json()["detail"]
    assert "needs room for 2,056,192 bytes" in detail
    assert "1,048,576 a day" in detail
    assert "fewer measurements" in detail
    grant = grant_of(curator, where)["id"]
    curator.context.database.write(lambda db: curator.context.audit_trail.quotas.add(db, grant, QUOTA - 4_000 - added))
    detail = curator.send("modeler", "POST", f"{where}/queries", json={"rows": rows[:1]}).json()["detail"]
    assert "of the 1,048,576 bytes that it may add" in detail
    curator.close()


def test_databases_of_the_version_without_quotas_open_and_count_from_then_on(tmp_path):
    curator = InProcessCurator(tmp_path / "curator")
    study = curator.open(b"x0,y\n0.1,1\n0.2,2\n0.3,3\n", lambda dataset: a_study(dataset_id=dataset))
    curator.curator.close()
    curator.close()
    with modeler_at_work(tmp_path / "modeler", work=False) as modeler:
        run = start(modeler)
    for path, columns in (
        (curator.context.database.path, ()),
        (tmp_path / "modeler" / "modeler.sqlite", (("runs", "stored_bytes"), ("trials", "probability"))),
    ):
        with closing(beside.connect(path)) as db, db:
            db.execute("DROP TABLE day_counts")
            for table, column in columns:
                db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
            beside.set_version(db, 17)
    curator.open_folder()
    assert curator.ask(study, [1])
    ((grant),) = curator.call("owner", "GET", f"/v1/studies/{study}/grants")["grants"]
    assert 1_000 < grant["log_bytes"] < 5_000
    curator.check()
    curator.close()
    with modeler_at_work(tmp_path / "modeler", work=False) as modeler:
        assert modeler.run(run).state == "queued"
