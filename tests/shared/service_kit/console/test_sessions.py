"""Who is let in at a console, for how long, and what a form must show."""

import asyncio
import threading
from urllib.parse import urlencode

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.low_level import Type
from sqlalchemy import text

from blindopt.errors import Invalid, RateLimited, Unauthenticated
from service_kit.console.sessions import Sessions
from service_kit.identity import passwords
from service_kit.identity.tokens import Principal
from service_kit.settings import ServiceSettings
from service_kit.store import audit_log, users
from service_kit.web.middleware import mark_inside
from tests import beside
from tests.interventions import act_after, record_calls
from tests.shared.service_kit.console import sample_service
from tests.shared.service_kit.console.conftest import FROM_HERE, Browser

COOKIE = "__Host-blindopt-curator"


def _is_in(browser):
    reply = browser.get("/console/")
    assert reply.status_code in (200, 303)
    return reply.status_code == 200


def test_a_right_password_opens_a_session_and_a_logout_ends_it_in_the_table(browser, app):
    assert browser.get("/console/").headers["location"] == "/console/login"
    reply = browser.login("ann")
    cookie = reply.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert _is_in(browser)
    kept = dict(browser.cookies)
    assert browser.post("/console/logout", page="/console/").headers["location"] == "/console/login"
    assert browser.cookies == {}
    browser.cookies = kept  # who kept the cookie has nothing
    assert not _is_in(browser)
    with app.state.context.database.read() as db:
        kinds = [entry.record["kind"] for entry in audit_log.walk(db)]
        log = b"".join(entry.body for entry in audit_log.walk(db))
    assert kinds[-2:] == ["session.opened", "session.ended"]
    assert sample_service.PASSWORD.encode() not in log


def test_an_idle_session_ends_and_a_used_one_lasts_to_its_end(owner, clock):
    for _ in range(23):  # used every 29 minutes: 11 h 7 min
        clock.forward(minutes=29)
        assert _is_in(owner)
    clock.forward(minutes=29)
    assert _is_in(owner)
    clock.forward(minutes=25)
    assert not _is_in(owner)  # twelve hours are over


def test_half_an_hour_without_a_click_ends_a_session(owner, clock):
    clock.forward(minutes=29, seconds=59)
    assert _is_in(owner)
    clock.forward(minutes=30)
    assert not _is_in(owner)
    assert "You were away for 30 minutes. Log in to go on where you were." in owner.get("/console/login").text
    assert 'name="next" value="/console/samples"' in owner.get("/console/login?next=/console/samples").text
    del owner.cookies[COOKIE]
    assert "You were away" not in owner.get("/console/login").text


def test_the_shortest_session_lasts_while_it_is_used(owner, app, clock, tmp_path):
    context = app.state.context
    short = Sessions(context, sample_service.Settings(data_dir=tmp_path, session_idle_minutes=1, session_hours=1))
    header = "; ".join(f"{name}={value}" for name, value in owner.cookies.items())
    for _ in range(4):
        clock.forward(seconds=40)
        assert asyncio.run(short.of_cookie(header)) is not None
        context.database.write(lambda db: None)  # its use, which nobody waits for, is stored before
    clock.forward(seconds=60)
    assert asyncio.run(short.of_cookie(header)) is None


def test_a_disabled_user_is_out_at_once_and_the_principal_is_live_no_more(owner, app, clock):
    context = app.state.context
    principal = Principal(id="usr_ann", kid="usr_ann", role="owner", name="ann")
    with context.database.read() as db:
        context.authentication.check_live(db, principal)
    context.database.write(lambda db: users.disable(db, "usr_ann", clock(), app.state.context.seal.mac))
    assert not _is_in(owner)
    with context.database.read() as db, pytest.raises(Unauthenticated):
        context.authentication.check_live(db, principal)
    assert owner.login("ann").status_code == 401


def _kinds(app):
    with app.state.context.database.read() as db:
        return [entry.record["kind"] for entry in audit_log.walk(db)]


def _withheld(body, then):
    """A body whose end is sent after ``then`` was called."""

    async def parts():
        yield body[:5]
        await asyncio.to_thread(then)
        yield body[5:]

    return parts()


def test_a_body_that_comes_after_the_token_was_revoked_does_nothing(browser, app):
    context = app.state.context
    token, _ = context.authentication.issue("owner", "robot", days=1)
    headers = {"authorization": f"Bearer {token.text}", "idempotency-key": "k", "content-type": "application/json"}
    body = b'{"name": "late", "size": 1}'

    def revoke():
        context.database.write(lambda db: context.authentication.revoke(db, token.kid, actor="cli"))

    assert browser.send("POST", "/v1/samples", content=_withheld(body, lambda: None), headers=headers).is_success
    late = headers | {"idempotency-key": "late"}
    assert browser.send("POST", "/v1/samples", content=_withheld(body, revoke), headers=late).status_code == 401
    assert _kinds(app).count("sample.made") == 1


def test_a_form_whose_end_comes_after_the_user_was_disabled_does_nothing(owner, app, clock):
    owner.get("/console/samples")
    form = {"_csrf": owner.hidden("_csrf"), "_key": owner.hidden("_key"), "name": "late", "size": "1"}
    headers = FROM_HERE | {"content-type": "application/x-www-form-urlencoded"}

    def disable():
        app.state.context.database.write(lambda db: users.disable(db, "usr_ann", clock(), app.state.context.seal.mac))

    body = urlencode(form).encode()
    reply = owner.send("POST", "/console/samples", content=_withheld(body, disable), headers=headers)
    assert reply.is_client_error
    assert "sample.made" not in _kinds(app)


def test_a_tampered_or_foreign_cookie_opens_nothing(owner, app):
    good = owner.cookies[COOKIE]
    context = app.state.context
    secret = context.seal.open(good.encode()).removeprefix(b"session:")
    forged = [
        good[:-6] + ("A" if good[-6] != "A" else "B") + good[-5:],
        good[:40],
        "",
        "x",
        secret.hex(),
        context.seal.close(secret).decode(),  # sealed, but not as a session
        context.seal.close(b"flash:" + secret).decode(),
        context.seal.close(b"session:" + b"0" * 32).decode(),  # sealed as one, of nobody
    ]
    for value in forged:
        owner.cookies = {COOKIE: value}
        assert not _is_in(owner), value
    owner.cookies = {"theme": "{}'\"", COOKIE: good}  # others' cookies are in nobody's way
    assert _is_in(owner)


def test_the_database_holds_no_session_id_and_no_password(owner, app):
    secret = app.state.context.seal.open(owner.cookies[COOKIE].encode()).removeprefix(b"session:")
    assert len(secret) == 32
    kept = b"".join(path.read_bytes() for path in beside.files(app.state.context.database))
    assert secret not in kept
    assert owner.cookies[COOKIE].encode() not in kept
    assert sample_service.PASSWORD.encode() not in kept
    assert b"$argon2id$v=19$" in kept


def test_passwords_are_hashed_by_argon2id_with_the_parameters_of_rfc_9106():
    parameters = extract_parameters(passwords.hash_of("twelve chars"))
    costs = (parameters.memory_cost, parameters.time_cost, parameters.parallelism)
    assert (parameters.type, *costs) == (Type.ID, 65_536, 3, 4)
    assert parameters.salt_len >= 16
    assert parameters.hash_len >= 32
    with pytest.raises(Invalid):
        passwords.hash_of("elevenchars")


def test_a_hash_of_another_cost_is_replaced_at_login_by_one_of_the_default(tmp_path, clock):
    app = sample_service.build(tmp_path, clock, password_hash=ServiceSettings.model_fields["password_hash"].default)
    assert Browser(app).login("ann").status_code == 303
    with app.state.context.database.read() as db:
        password_hash = users.by_name(db, "ann").password_hash
    assert extract_parameters(password_hash).memory_cost == 65_536
    assert passwords.matches(sample_service.PASSWORD, password_hash)
    assert not passwords.is_dated(password_hash)


@pytest.mark.parametrize(("cost", "warned"), [("standard", False), ("minimal", True)])
def test_a_service_whose_hashes_protect_nothing_says_so_at_its_start(tmp_path, caplog, cost, warned):
    sample_service.build(tmp_path, password_hash=cost).state.context.database.close()
    assert ("PASSWORD_HASH is minimal" in caplog.text) == warned


def test_a_wrong_name_and_a_wrong_password_get_the_same_reply_for_the_same_work(browser, monkeypatch):
    checks = record_calls(monkeypatch, PasswordHasher, "verify")
    replies = [browser.login(name, "wrong password here") for name in ("ann", "nobody")]
    assert [r.status_code for r in replies] == [401, 401]
    assert replies[0].text.replace('value="ann"', "") == replies[1].text.replace('value="nobody"', "")
    assert [stored[:10] for _, stored, _ in checks] == ["$argon2id$", "$argon2id$"]


def _own_clock(app):
    """The seconds by which logins are throttled."""
    now, sessions = [0.0], app.state.console._sessions
    for rate in (sessions._name_rate, sessions._address_rate):
        rate._clock = lambda: now[0]
    return now


def test_tries_are_throttled_by_name_and_by_address(app):
    near, other, now = Browser(app, "10.0.0.1"), Browser(app, "10.0.0.2"), _own_clock(app)
    assert [near.login("ann", "guess").status_code for _ in range(11)] == [401] * 10 + [429]
    refused = other.login("ann", sample_service.PASSWORD)  # from anywhere
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert other.login("moe", "guess").status_code == 401
    codes = [near.login(f"name {n}", "guess").status_code for n in range(30)]
    assert codes == [401] * 19 + [429] * 11  # 30 at once, of which 11 were ann's
    assert other.login("moe", "guess").status_code == 401
    now[0] += 5.9  # one more for an address in two seconds, and for a name in six
    assert [near.login(f"other {n}", "guess").status_code for n in range(3)] == [401, 401, 429]
    assert other.login("ann", sample_service.PASSWORD).status_code == 429
    now[0] += 0.2
    assert other.login("ann", sample_service.PASSWORD).status_code == 303


def test_an_attempt_is_counted_before_its_password_is_hashed(app, monkeypatch):
    """Otherwise as many as arrive together would be tried."""
    _own_clock(app)
    may_go_on, matches = threading.Event(), passwords.matches

    def waits(*of_password):
        assert may_go_on.wait(240)
        return matches(*of_password)

    monkeypatch.setattr(passwords, "matches", waits)

    async def play():
        tries = [
            asyncio.create_task(app.state.console._sessions.open("ann", "guess", f"10.0.0.{n}")) for n in range(12)
        ]
        try:
            while sum(each.done() for each in tries) < 2:
                await asyncio.sleep(0)
        finally:
            may_go_on.set()
        return [type(error) for error in await asyncio.gather(*tries, return_exceptions=True)]

    assert asyncio.run(play()) == [Unauthenticated] * 10 + [RateLimited] * 2


def test_throttled_logins_are_logged_once_and_failed_ones_are_counted(tmp_path, clock, caplog):
    pytest.importorskip("prometheus_client", reason="extra metrics")
    app = sample_service.build(tmp_path, clock, metrics=True)
    token, _ = app.state.context.authentication.issue("owner", "program", days=1)
    browser = Browser(app, "10.0.0.9")
    with caplog.at_level("WARNING", logger="blindopt.logins"):
        for _ in range(15):
            browser.login("ann", "guess of ann's")
    (record,) = (record for record in caplog.records if record.name == "blindopt.logins")
    assert (record.getMessage(), record.fields) == ("logins throttled", {"by": "name"})
    metrics = browser.get("/metrics", headers={"authorization": f"Bearer {token.text}"}).text
    assert "blindopt_login_failed_total 15.0\n" in metrics
    app.state.context.database.close()


def test_a_login_that_began_before_the_password_was_changed_opens_nothing_and_changes_no_hash(
    browser, app, clock, monkeypatch
):
    context = app.state.context
    new = passwords.hash_of("another long enough password", "minimal")

    def change(*_):
        context.database.write(lambda db: users.set_hash(db, "usr_ann", new, app.state.context.seal.mac))

    act_after(monkeypatch, passwords, "matches", change)
    assert browser.login("ann").status_code == 401
    with context.database.read() as db:
        assert users.by_name(db, "ann").password_hash == new
    assert browser.cookies == {}
    assert "session.opened" not in _kinds(app)


def test_a_login_that_began_before_the_user_was_disabled_opens_nothing(browser, app, clock, monkeypatch):

    def disable(*_):
        app.state.context.database.write(lambda db: users.disable(db, "usr_ann", clock(), app.state.context.seal.mac))

    act_after(monkeypatch, passwords, "matches", disable)
    assert browser.login("ann").status_code == 401
    assert "session.opened" not in _kinds(app)


@pytest.mark.parametrize("field", ["name", "password"])
def test_a_login_with_half_a_character_is_a_wrong_one(browser, field):
    """UTF-7 spells it; no name that is kept and no hash can hold it."""
    boundary, sent = "b", {"name": "ann", "password": sample_service.PASSWORD} | {field: "+2AA-"}
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in sent.items()]
    kind = {"content-type": f"multipart/form-data; boundary={boundary}; charset=utf-7"}
    body = "".join([*parts, f"--{boundary}--\r\n"])
    assert browser.send("POST", "/console/login", content=body, headers=FROM_HERE | kind).status_code == 401


def test_two_consoles_on_one_host_do_not_end_each_others_sessions(owner, tmp_path, clock):
    """A browser sends a host's cookies to each of its ports."""
    app = sample_service.build(tmp_path / "other", clock, "modeler")
    other = Browser(app, cookies=owner.cookies)
    assert other.login("ann").status_code == 303
    assert _is_in(other)
    assert _is_in(owner)
    assert other.post("/console/logout", page="/console/").status_code == 303
    assert not _is_in(other)
    assert _is_in(owner)
    app.state.context.database.close()


def test_a_logout_sent_by_another_site_sets_no_cookie(owner, app):
    """It comes without the cookie, and a reply that deletes it would log out a user who was led there."""
    elsewhere = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    reply = Browser(app).send("POST", "/console/logout", headers=elsewhere)
    assert reply.status_code == 403
    assert "set-cookie" not in reply.headers
    reply = Browser(app).send("POST", "/console/logout", headers=FROM_HERE)
    assert (reply.status_code, "set-cookie" in reply.headers) == (303, False)
    assert _is_in(owner)


def test_a_form_of_another_session_another_site_or_none_does_nothing(owner, app):
    made = app.state.samples
    data = {"name": "sample", "size": "1"}
    assert owner.post("/console/samples", data | {"_csrf": "0" * 64}).status_code == 403
    assert owner.post("/console/samples", data | {"_csrf": ""}).status_code == 403
    other = Browser(app)
    other.login("ann")
    other.get("/console/samples")
    assert owner.post("/console/samples", data | {"_csrf": other.hidden("_csrf")}).status_code == 403
    origins = ("http://evil.example", "null", "http://[127.0.0.1")
    for headers in (
        {},
        *({"origin": origin} for origin in origins),
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8410"},
        {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:9999"},
    ):
        assert owner.post("/console/samples", data, headers=headers).status_code == 403, headers
        assert owner.login("ann", headers=headers).status_code == 403
    assert made == []
    assert owner.post("/console/samples", data).status_code == 303
    assert len(made) == 1


def test_a_form_in_a_charset_that_decodes_nothing_is_refused(browser):
    headers = FROM_HERE | {"content-type": "multipart/form-data; boundary=x; charset=undefined"}
    form = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\nann\r\n--x--\r\n'
    reply = browser.send("POST", "/console/login", content=form, headers=headers)
    assert (reply.status_code, "send UTF-8" in reply.text) == (422, True)


def test_a_form_sent_after_the_session_ended_does_nothing_and_says_so(owner, app, clock):
    owner.get("/console/samples")
    clock.forward(hours=1)
    reply = owner.post("/console/samples", {"name": "late", "size": "1"}, keep=True)
    assert reply.status_code == 401
    assert "nothing was changed" in reply.text
    assert app.state.samples == []


def test_after_the_login_one_lands_where_one_wanted_but_never_elsewhere(browser):
    assert browser.get("/console/samples?a=1").headers["location"] == "/console/login?next=%2Fconsole%2Fsamples%3Fa%3D1"
    elsewhere = (
        "//evil.example", "https://evil.example/console/", "/console//evil.example", "/console/\\evil", "/v1/samples",
        "/console/x\r\nset-cookie: a=b",
    )  # fmt: skip
    wanted = "/console/samples?a=1"
    for target, landed in ((wanted, wanted), *((target, "/console/") for target in elsewhere)):
        reply = browser.login("ann", next=target)
        assert (reply.status_code, reply.headers["location"]) == (303, landed)


def test_nothing_sent_over_the_network_makes_a_request_one_of_our_own(browser, app):
    names = ("blindopt.inside", "blindopt-inside", "x-blindopt.inside")
    for name in names:
        for path in ("/v1/samples", f"/v1/samples?{name}=usr_ann", f"/v1/samples;{name}=usr_ann"):
            reply = browser.get(path, headers={name: "usr_ann", "authorization": "Inside usr_ann"})
            assert reply.status_code == 401
    ann, marked = Principal(id="usr_ann", kid="usr_ann", role="owner", name="ann"), {}
    mark_inside(marked, ann)
    (key,) = marked
    for mark, status in (("usr_ann", 401), ({"principal": ann}, 401), (ann, 401), (marked[key], 200)):  # a control

        async def serve(scope, receive, send, mark=mark):
            await app(scope | {key: mark}, receive, send)

        assert Browser(serve).get("/v1/samples").status_code == status, mark


def test_a_cookie_is_nothing_to_the_api_and_a_token_is_nothing_to_a_page(owner, app):
    assert owner.get("/v1/samples").status_code == 401
    token, _ = app.state.context.authentication.issue("owner", "program", days=1)
    bearer = {"authorization": f"Bearer {token.text}"}
    owner.cookies.clear()
    assert owner.get("/v1/samples", headers=bearer).status_code == 200
    assert owner.get("/console/samples", headers=bearer).status_code == 303


def test_sessions_that_are_over_leave_the_table(owner, app, clock):
    def count():
        with app.state.context.database.read() as db:
            return len(list(db.execute(text("SELECT * FROM sessions"))))

    assert count() == 1
    clock.forward(hours=13)
    owner.login("ann")
    assert count() == 1


def test_a_login_from_a_plain_address_says_that_tls_is_needed(app):
    browser = Browser(app)
    assert "needs TLS" not in browser.get("/console/login").text
    assert "needs TLS" in browser.get("http://curator.example/console/login").text
    assert "needs TLS" not in browser.get("https://curator.example/console/login").text
    behind = browser.get("http://curator.example/console/login", headers={"sec-fetch-site": "none"})  # a proxy with TLS
    assert "needs TLS" not in behind.text
    assert FROM_HERE["origin"].startswith("http://127.0.0.1")


def test_what_a_page_fetches_by_itself_keeps_no_session_alive(owner, clock):
    for headers in ({"x-fragment": "1"}, {"accept": "text/event-stream"}):
        clock.forward(minutes=14)
        assert owner.get("/console/samples", headers=headers).status_code == 200
    clock.forward(minutes=3)
    assert owner.get("/console/samples", headers={"x-fragment": "1"}).status_code == 401
    assert not _is_in(owner)


def test_a_stream_ends_with_its_session(owner, app, clock):
    """The control is the first part: as long as the session lives, it goes on."""
    cookies = f"{COOKIE}={owner.cookies[COOKIE]}"
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": "/console/samples/events", "raw_path": b"/console/samples/events",
        "query_string": b"", "root_path": "", "headers": [(b"host", b"127.0.0.1:8410"), (b"cookie", cookies.encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8410),
    }  # fmt: skip
    messages, requests = [], [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        while not requests:
            await asyncio.sleep(60)
        return requests.pop()

    async def send(message):
        messages.append(message)

    async def follow():
        stream = asyncio.create_task(app(scope, receive, send))
        for _ in range(10):
            app.state.samples.append(sample_service.Sample(name="x", size=1))
            await asyncio.sleep(0.1)
        assert not stream.done()
        before = len(messages)
        clock.forward(hours=13)
        await asyncio.wait_for(stream, 10)
        return before

    assert asyncio.run(follow()) > 5
    assert messages[0]["status"] == 200
    assert messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert b"".join(m.get("body", b"") for m in messages).startswith(b"id: 1\nevent: change\n")
