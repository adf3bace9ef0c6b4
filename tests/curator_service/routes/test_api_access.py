"""Credentials and rates: what is stored of a token, when it opens what, how often it may ask."""

import json
import secrets
import socket
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient, Vendor
from blindopt.errors import Remote
from curator_service.context import open_context
from curator_service.settings import Settings

QUERY = {"rows": [{"row": 3}]}
SECURITY = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


@pytest.fixture(scope="module")
def study(owner, dataset, open_study):
    """With measurement noise: what is drawn twice would show."""
    return open_study(owner, dataset, noise_variance=1.0)


@pytest.fixture
def grant(owner, study):
    """A grant of its own."""
    return owner.grant(study.id, wire.GrantCreate(name="m"))


@pytest.fixture
def limited(make_service, tmp_path, small, open_study):
    """A curator that lets a principal ask little, and an address fail rarely."""

    def make(**settings):
        curator = make_service("curator", tmp_path, **settings).start()
        with Owner(curator.url, curator.token) as owner:
            return curator, open_study(owner, owner.register("small", small.csv, public=True))

    return make


def ask(http, study, key=None, **sent):
    return http.post(
        f"/v1/studies/{study.id}/queries", headers={"Idempotency-Key": key or secrets.token_hex(8)}, **sent
    )


def refusal(reply):
    return reply.status_code, reply.json()["code"]


# --- what is stored -------------------------------------------------------------------------------------------


def test_a_token_without_its_right_secret_opens_nothing(curator, study, grant):
    kid, secret = grant.token.removeprefix("blindopt_").split(".")
    other = secrets.token_urlsafe(32)
    wrong = [
        f"blindopt_{kid}.{other}", f"blindopt_{kid}.{secret[:-1]}", f"blindopt_{kid}.{secret}=", f"{kid}.{secret}",
        f"blindopt_{'0' * 16}.{secret}", f"blindopt_{kid}.", "blindopt_.",
    ]  # fmt: skip
    with curator.http("") as http:
        for text in wrong:
            reply = http.get(f"/v1/studies/{study.id}", headers={"Authorization": f"Bearer {text}"})
            assert refusal(reply) == (401, "unauthenticated"), text
            assert reply.headers["www-authenticate"] == "Bearer"
        for value in (grant.token, f"Basic {grant.token}", "Bearer", ""):
            assert http.get(f"/v1/studies/{study.id}", headers={"Authorization": value}).status_code == 401
        assert http.get(f"/v1/studies/{study.id}", headers={"Authorization": f"bearer {grant.token}"}).is_success


# --- expiry, revocation, rotation -----------------------------------------------------------------------------


def test_a_token_that_has_expired_opens_nothing_though_the_service_was_not_restarted(curator, study):
    """A token of one day, made by a clock that is 23 hours, 59 minutes and 58 seconds slow."""
    slow = timedelta(days=1) - timedelta(seconds=2)
    with open_context(Settings(data_dir=curator.data), lambda: datetime.now(UTC) - slow) as context:
        token, _ = context.database.write(
            lambda db: context.authentication.grant(db, "short", study.id, days=1, actor="cli")
        )
    with curator.http(token.text) as http:
        deadline = time.monotonic() + 10
        statuses = []
        while not statuses or statuses[-1] == 200:
            statuses.append(http.get(f"/v1/studies/{study.id}").status_code)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert set(statuses) == {200, 401}
        assert refusal(ask(http, study, json=QUERY)) == (401, "unauthenticated")
    exchanges = [record.get("exchange") or {} for record in curator.records()]
    assert (401, study.id) in {(e.get("status"), e.get("study_id")) for e in exchanges}  # who it was is known


@pytest.mark.parametrize("how", ["over REST", "on the command line"])
def test_a_revoked_token_is_refused_from_the_next_request_on_the_same_connection(how, curator, owner, study, grant):
    with curator.http(grant.token) as http:
        first = ask(http, study, "before", json=QUERY)
        assert first.status_code == 201
        if how == "over REST":
            view = owner.revoke_token(study.id, grant.id, grant.kid)
            assert (view.state, [token.state for token in view.tokens]) == ("revoked", ["revoked"])
        else:
            assert curator.run("token", "revoke", grant.kid).stdout == f"revoked {grant.kid}\n"
        assert refusal(ask(http, study, "after", json=QUERY)) == (401, "unauthenticated")
        assert refusal(ask(http, study, "before", json=QUERY)) == (401, "unauthenticated")  # no stored reply either
        for path in ("", "/candidates", f"/queries/{first.json()['id']}"):
            assert http.get(f"/v1/studies/{study.id}{path}").status_code == 401
    assert curator.rows("SELECT count(*) FROM queries WHERE grant_id = ?", grant.id)[0][0] == 1


def test_a_token_that_is_revoked_while_its_request_arrives_spends_nothing(curator, owner, study, grant):
    """It was good when the headers came; the body, and with it the charge, comes after."""
    body = json.dumps(QUERY).encode()
    head = (
        f"POST /v1/studies/{study.id}/queries HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {grant.token}\r\n"
        f"Idempotency-Key: slow\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", curator.port), timeout=10) as connection:
        connection.sendall(head.encode() + body[:5])
        time.sleep(0.2)  # whether the headers were read by then or not, nothing may be spent
        owner.revoke(study.id, grant.id)
        connection.sendall(body[5:])
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")
    assert curator.rows("SELECT count(*) FROM queries WHERE grant_id = ?", grant.id) == [(0,)]


def test_two_tokens_of_a_grant_are_live_and_a_third_is_refused(curator, owner, study, grant):
    second = owner.rotate(study.id, grant.id, wire.Rotation(expires_in_days=3))
    assert (second.id, second.study_id, second.name) == (grant.id, study.id, "m")
    assert second.kid != grant.kid
    with pytest.raises(Remote) as refused:
        owner.rotate(study.id, grant.id, wire.Rotation())
    assert (refused.value.remote_status, refused.value.remote_code) == (409, "state_conflict")
    for token in (grant.token, second.token):
        with curator.http(token) as http:
            assert http.get(f"/v1/studies/{study.id}").is_success
    owner.revoke_token(study.id, grant.id, grant.kid)
    third = owner.rotate(study.id, grant.id, wire.Rotation())
    (view,) = [candidate for candidate in owner.grants(study.id) if candidate.id == grant.id]
    assert [(token.kid, token.state) for token in view.tokens] == [
        (grant.kid, "revoked"), (second.kid, "live"), (third.kid, "live"),
    ]  # fmt: skip
    assert view.state == "live"


def test_another_token_of_a_grant_gets_the_stored_replies_of_the_first_and_its_shared_log(curator, owner, study, grant):
    with curator.http(grant.token) as http:
        first = ask(http, study, "kept", json=QUERY)
        assert first.status_code == 201
    second = owner.rotate(study.id, grant.id, wire.Rotation())
    owner.revoke_token(study.id, grant.id, grant.kid)
    with curator.http(second.token) as http:
        again = ask(http, study, "kept", json=QUERY)
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        assert refusal(ask(http, study, "kept", json={"rows": [{"row": 4}]})) == (422, "idempotency_key_reused")
        assert http.get(f"/v1/studies/{study.id}/queries/{first.json()['id']}").content == first.content
        assert http.get(f"/v1/studies/{study.id}").json()["grant_id"] == grant.id
    places = [int(reply.headers["blindopt-receipt"].split()[0]) for reply in (first, again)]
    entries = list(owner.audit(grant.id))
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    assert [places[0], places[1]] == [0, 1]
    assert curator.rows("SELECT count(*) FROM queries WHERE grant_id = ?", grant.id)[0][0] == 1


def test_a_grant_is_revoked_with_all_its_tokens_and_cannot_come_back(curator, owner, study, grant):
    second = owner.rotate(study.id, grant.id, wire.Rotation())
    view = owner.revoke(study.id, grant.id)
    assert (view.state, {token.state for token in view.tokens}) == ("revoked", {"revoked"})
    for token in (grant.token, second.token):
        with curator.http(token) as http:
            assert http.get(f"/v1/studies/{study.id}").status_code == 401
    with pytest.raises(Remote) as refused:
        owner.rotate(study.id, grant.id, wire.Rotation())
    assert refused.value.remote_code == "state_conflict"
    assert owner.revoke(study.id, grant.id).state == "revoked"


def test_a_grant_of_another_study_is_not_found(owner, dataset, open_study, grant):
    other = open_study(owner, dataset)
    for act in (
        lambda: owner.rotate(other.id, grant.id, wire.Rotation()),
        lambda: owner.revoke(other.id, grant.id),
        lambda: owner.revoke_token(other.id, grant.id, grant.kid),
        lambda: owner.revoke_token(other.id, other.grant_id, grant.kid),
    ):
        with pytest.raises(Remote) as refused:
            act()
        assert refused.value.remote_code == "not_found"
    assert grant.id not in {view.id for view in owner.grants(other.id)}


def test_last_use_is_shown_to_the_minute(curator, owner, study, grant, until):
    def used():
        (view,) = [candidate for candidate in owner.grants(study.id) if candidate.id == grant.id]
        return view.tokens[0].last_used_at

    assert used() is None
    with curator.http(grant.token) as http:
        assert http.get(f"/v1/studies/{study.id}").is_success
    assert abs(datetime.now(UTC) - until(used)) < timedelta(minutes=1)


def test_tokens_of_people_are_made_rotated_listed_and_revoked_on_the_command_line(curator, until):
    first = curator.run("token", "create", "--name", "Ada", "--role", "auditor", "--days", "3").stdout.strip()
    kid = first.removeprefix("blindopt_").partition(".")[0]
    ((principal,),) = curator.rows("SELECT principal FROM tokens WHERE kid = ?", kid)
    second = curator.run("token", "rotate", principal).stdout.strip()
    refused = curator.run("token", "rotate", principal)
    assert (refused.returncode, refused.stdout) == (4, "")
    assert refused.stderr.startswith("error: two tokens are live")
    for token in (first, second):
        with Owner(curator.url, token) as auditor:
            assert auditor.checkpoint().size > 0
    until(lambda: curator.rows("SELECT 1 FROM tokens WHERE kid = ? AND last_used_at IS NOT NULL", kid))
    assert curator.run("token", "revoke", kid).returncode == 0
    with Owner(curator.url, first) as gone, pytest.raises(Remote, match="unauthenticated"):
        gone.checkpoint()
    with Owner(curator.url, second) as stays:
        assert stays.checkpoint().size > 0
    for command in (("revoke", "0" * 16), ("rotate", "usr_nobody")):
        unknown = curator.run("token", *command)
        assert (unknown.returncode, unknown.stdout) == (5, "")
        assert unknown.stderr.startswith(("error: no token has this key id", "error: no token belongs to this id"))
    listing = curator.run("token", "list").stdout
    (line,) = [line for line in listing.splitlines() if line.startswith(kid)]
    assert line.split()[1:4] == [principal, "auditor", "revoked"]
    assert f"used {datetime.now(UTC):%Y-%m-%d}" in line
    assert "Ada" in line
    assert first.partition(".")[2] not in listing
    assert {"token.issued", "token.revoked"} <= {record["kind"] for record in curator.records()}


# --- rates ----------------------------------------------------------------------------------------------------


def test_a_principal_that_asks_too_often_waits_and_another_does_not(limited):
    curator, study = limited(rate_burst="40", rate_per_second="0.5")
    with curator.http(study.token) as http, curator.http() as owner:
        before = len(curator.records())
        replies = [http.get(f"/v1/studies/{study.id}") for _ in range(60)]
        statuses = [reply.status_code for reply in replies]
        assert statuses[:40] == [200] * 40
        refused = [reply for reply in replies if reply.status_code == 429]
        assert len(refused) >= 5  # also where 60 requests take half a minute
        for reply in refused:
            assert refusal(reply) == (429, "rate_limited")
            assert reply.json()["retryable"]
            assert 1 <= int(reply.headers["retry-after"]) <= 2
        assert owner.get("/v1/studies").is_success  # another principal, the same address
        with Owner(curator.url, curator.token) as client:  # the bucket is the grant's, not the token's
            second = client.rotate(study.id, study.grant_id, wire.Rotation())
        with curator.http(second.token) as same:
            assert [same.get(f"/v1/studies/{study.id}").status_code for _ in range(5)][-1] == 429
        time.sleep(float(refused[-1].headers["retry-after"]))
        assert http.get(f"/v1/studies/{study.id}").is_success  # as Retry-After said
    records = curator.records()[before:]
    assert 429 not in {(record.get("exchange") or {}).get("status") for record in records}  # not looked at, not told


def test_bad_tokens_from_one_address_are_limited_whatever_header_they_have(limited):
    curator, study = limited(bad_tokens_per_minute="20", rate_burst="1000", rate_per_second="1000")
    bad = f"blindopt_{'0' * 16}.{'A' * 43}"
    with curator.http(bad) as http:  # whoever is on the machine can write what a proxy does: it changes nothing
        by_others = [{"X-Forwarded-For": f"192.0.2.{n}"} for n in range(1, 31)]
        statuses = [http.get(f"/v1/studies/{study.id}", headers=headers).status_code for headers in by_others]
        assert statuses[:20] == [401] * 20
        assert statuses.count(429) >= 5  # one more is looked at every 3 s, however slow the machine is
        reply = next(reply for reply in (http.get("/v1/studies") for _ in range(20)) if reply.status_code == 429)
        assert refusal(reply) == (429, "rate_limited")
        assert 1 <= int(reply.headers["retry-after"]) <= 3
        assert http.get("/healthz").is_success


def test_behind_a_trusted_proxy_each_client_is_throttled_and_logged_by_its_own_address(limited):
    curator, _ = limited(
        bad_tokens_per_minute="20", rate_burst="1000", rate_per_second="1000", trusted_proxies="127.0.0.1, 10.0.0.0/8"
    )
    with curator.http(f"blindopt_{'0' * 16}.{'A' * 43}") as http:

        def statuses(address_of):
            requests = [{"X-Forwarded-For": address_of(n)} for n in range(1, 31)]
            return [http.get("/v1/studies", headers=headers).status_code for headers in requests]

        assert statuses(lambda n: f"192.0.2.{n}") == [401] * 30
        made_up = statuses(lambda n: f"192.0.2.{n}, 198.51.100.1, 10.0.0.7")  # one client, behind two proxies
    assert made_up[:20] == [401] * 20
    assert made_up.count(429) >= 5
    clients = {json.loads(line).get("client") for line in curator.log.splitlines()}
    assert {"192.0.2.30", "198.51.100.1"} <= clients
    assert "10.0.0.7" not in clients


def test_a_run_survives_429_and_finishes_and_both_logs_tell_the_same(limited, make_service, tmp_path, run_of):
    curator, study = limited(rate_burst="4", rate_per_second="2")
    modeler = make_service("modeler", tmp_path).start()
    with Vendor(modeler.url, modeler.token) as vendor:
        run = vendor.start(run_of(curator.url, study, iterations=8, initial_rows=0))
        ended = vendor.wait(run.id, timeout_s=60)
        assert (ended.state, ended.ended_because, ended.trials) == ("completed", "budget", 8)
        statuses = [(record.get("exchange") or {}).get("status") for record in modeler.records()]
    assert 429 in statuses
    exports = []
    for side in (curator, modeler):
        exports.append(tmp_path / f"{side.name}.jsonl")
        exports[-1].write_text(side.run_in_process("audit", "export").stdout)
    compared = curator.run_in_process("audit", "reconcile", study.id, *map(str, exports))
    assert compared.returncode == 0, compared.stdout + compared.stderr


# --- every reply ----------------------------------------------------------------------------------------------


def test_every_kind_of_reply_has_the_security_headers(curator, owner, study, grant):
    with ExitStack() as stack:
        open_, mine, own = (stack.enter_context(curator.http(token)) for token in ("", grant.token, None))
        path = f"/v1/studies/{study.id}"
        etag = mine.get(f"{path}/candidates").headers["etag"]
        replies = {
            "200": mine.get(path), "201": ask(mine, study, "h", json=QUERY),
            "replay": ask(mine, study, "h", json=QUERY),
            "206": mine.get(f"{path}/candidates", headers={"Range": "bytes=0-9"}),
            "304": mine.get(f"{path}/candidates", headers={"If-None-Match": etag}),
            "400": mine.post(f"{path}/queries", json=QUERY), "401": open_.get(path), "403": mine.get(f"{path}/ledger"),
            "404": own.get("/v1/nowhere"), "404 there": own.get("/v1/studies/std_0"), "405": own.delete("/v1/studies"),
            "413": ask(mine, study, content=b" " * (1 << 20) + b" "),
            "416": mine.get(f"{path}/candidates", headers={"Range": "bytes=99999999-"}),
            "422": ask(mine, study, json={}), "health": open_.get("/healthz"), "ready": open_.get("/readyz"),
            "document": open_.get("/openapi.json"), "meta": open_.get("/v1/meta"), "head": mine.head(path),
            "options": own.options("/v1/studies"),
        }  # fmt: skip
    for name, reply in replies.items():
        if name[0].isdigit():
            assert reply.status_code == int(name[:3]), name
        for header, value in SECURITY.items():
            assert reply.headers.get(header) == value, (name, header)
        assert "server" not in reply.headers
        assert len(reply.headers["x-request-id"]) == 32
        assert reply.headers["cache-control"] in ("no-store", "private, no-cache"), name
        if reply.status_code >= 400:
            assert reply.headers["content-type"] == "application/problem+json" or name == "head", name


# --- a run that outlives its token ----------------------------------------------------------------------------


def test_a_run_does_not_go_on_under_a_token_of_another_grant(
    curator, owner, dataset, open_study, vendor, run_of, until
):
    """Its keys would be other requests there: what was charged and not yet answered would be charged again."""
    study = open_study(owner, dataset)
    other = owner.grant(study.id, wire.GrantCreate(name="other"))
    run = vendor.start(run_of(curator.url, study, iterations=200, seed=5)).id
    until(lambda: vendor.run(run).view.trials >= 5)
    vendor.pause(run)
    paused = until(lambda: (view := vendor.run(run).view).state == "paused" and view)
    vendor.replace_token(run, other.token)
    vendor.resume(run)
    ended = vendor.wait(run, timeout_s=60)
    assert (ended.state, ended.problem.code, ended.trials) == ("failed", "protocol_violated", paused.trials)
    assert curator.rows("SELECT count(*) FROM queries WHERE grant_id = ?", other.id) == [(0,)]


def test_a_running_run_takes_a_replaced_token_at_once(curator, owner, dataset, open_study, vendor, run_of, until):
    study = open_study(owner, dataset)
    run = vendor.start(run_of(curator.url, study, iterations=150, seed=5)).id
    until(lambda: vendor.run(run).view.trials >= 3)
    second = owner.rotate(study.id, study.grant_id, wire.Rotation())
    vendor.replace_token(run, second.token)
    trials = vendor.run(run).view.trials
    until(lambda: (view := vendor.run(run).view).trials > trials + 5 or view.ended_at)
    owner.revoke_token(study.id, study.grant_id, study.kid)
    assert vendor.wait(run, timeout_s=60).state == "completed"
    with StudyClient(curator.url, study.token, study.id) as old, pytest.raises(Remote, match="unauthenticated"):
        old.study()


@pytest.mark.parametrize(("token", "status"), [(None, b"413"), ("blindopt_" + "0" * 16 + ".x", b"401")])
def test_a_peer_that_sends_all_of_its_body_first_gets_the_refusal_whole(curator, token, status):
    """As a proxy does, on a connection for one request: one closed with bytes unread is reset: the reply is lost."""
    body = b" " * (3 << 20)
    head = (
        f"POST /v1/studies HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token or curator.token}\r\n"
        f"Idempotency-Key: k\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", curator.port), timeout=60) as peer:
        peer.sendall(head.encode())
        peer.sendall(body)
        reply = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    assert reply.startswith(b"HTTP/1.1 " + status)
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["status"] == int(status)
