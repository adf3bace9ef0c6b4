"""Notices: written with their cause, delivered in order and at least once, and what is wrong with a receiver."""

import hashlib
import hmac
import socket
import ssl
import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pydantic import ValidationError

from blindopt import wire
from blindopt.errors import AuditUnavailable, Busy, StateConflict
from curator_service.settings import Settings as CuratorSettings
from service_kit.context import outbox
from service_kit.context.context import ServiceContext
from service_kit.context.keys import Seal, signer
from service_kit.context.outbox import Outbox
from service_kit.notices import delivery
from service_kit.notices.delivery import NoticeDelivery
from service_kit.notices.receiver import Receiver
from service_kit.store import audit_log
from service_kit.store import notices as store
from service_kit.store.base import APPEND_ONLY, METADATA, moment, stamp
from service_kit.store.database import Database
from tests import beside, postgres
from tests.interventions import fail_at
from tests.shared.service_kit.notices.notice_receiver import KEY, documented_check, listening

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SUBJECT = wire.NoticeSubject(study_id="std_0123456789abcdef", cap="queries")
COUNTS = wire.NoticeCounts(percent=83)


class Post:
    """An outbox and its delivery over a database, with a clock that is set by hand."""

    def __init__(self, folder, url, *, ca="", **settings):
        self.now = NOW
        (folder / "key").write_bytes(KEY + b"\n")
        chosen = {"notify_url": url, "notify_secret_file": folder / "key", "notify_timeout_seconds": 2.0} if url else {}
        chosen |= {"notify_ca": ca} if ca else {}
        self.settings = CuratorSettings(data_dir=folder, **(chosen | settings))
        path = folder / "x.sqlite"
        self.database = Database(path, (METADATA,), append_only=APPEND_ONLY, url=postgres.address_for(path))
        notices = Outbox("blindopt-curator", self.settings.enabled_events, lambda: self.now)
        key, kept = signer(folder / "log.key", "curator"), folder / "checkpoint"
        self.context = ServiceContext.open(
            self.database, Seal.of(folder / "seal"), key, lambda: self.now, checkpoint_file=kept, outbox=notices
        )
        self.delivery = NoticeDelivery(self.context, "blindopt-curator", Receiver.of(self.settings), poll_seconds=0.01)

    def tell(self, event="budget_80", once=None):
        self.database.write(lambda db: self.context.outbox.add(db, event, SUBJECT, COUNTS, once=once))

    def views(self):
        return [view for _, view in self.delivery.page(0, 1_000)]

    def states(self):
        return [view.state for view in self.views()]


@pytest.fixture
def posting(tmp_path):
    """Makes an outbox, and starts its delivery unless ``start`` is False."""
    made = []

    def make(url, *, start=True, **settings):
        post = Post(tmp_path, url, **settings)
        made.append(post)
        if start:
            post.delivery.start()
        return post

    yield make
    for post in made:
        post.delivery.close()
        post.database.close()


def _nowhere():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


# --- what is sent -----------------------------------------------------------------------------------


def test_a_notice_arrives_signed_and_says_what_happened(posting, until):
    with listening() as listener:
        posting(listener.url).tell()
        until(lambda: listener.got)
    (got,) = listener.got
    assert got.headers["Idempotency-Key"] == got.notice.id
    assert got.headers["Content-Type"] == "application/json"
    signature = dict(part.split("=") for part in got.headers["Blindopt-Signature"].split(","))
    assert signature["v1"] == hmac.new(KEY, f"{signature['t']}.".encode() + got.body, hashlib.sha256).hexdigest()
    assert got.notice.model_dump(exclude_none=True) == {
        "id": got.notice.id,
        "event": "budget_80",
        "at": NOW,
        "service": "blindopt-curator",
        "subject": {"study_id": "std_0123456789abcdef", "cap": "queries"},
        "counts": {"percent": 83},
        "sentence": "83 % of the cap queries of study std_0123456789abcdef is used.",
    }
    assert b"null" not in got.body


def test_the_check_in_the_documents_takes_what_is_genuine_and_nothing_else(posting, until):
    with listening() as listener:
        posting(listener.url).tell()
        until(lambda: listener.got)
    (got,), check = listener.got, documented_check()
    signature = got.headers["Blindopt-Signature"]
    sent_at = int(signature[2:].split(",")[0])
    assert check(signature, got.body, KEY)
    assert not check(signature, got.body.replace(b"83", b"93"), KEY)
    assert not check(signature, got.body, KEY[:-1] + b"x")
    assert not check(signature.replace(f"t={sent_at}", f"t={sent_at + 1}"), got.body, KEY)
    old = hmac.new(KEY, f"{sent_at - 400}.".encode() + got.body, hashlib.sha256).hexdigest()
    assert not check(f"t={sent_at - 400},v1={old}", got.body, KEY)
    for broken in ("", "t=", "v1=00", f"t={sent_at}", signature.partition(",")[0] + ",v1=", "t=²,v1=é"):
        assert not check(broken, got.body, KEY)


def test_every_event_has_a_sentence_of_its_fields(posting):
    whole = wire.NoticeSubject(
        study_id="std_" + "1" * 16, query_id="qry_" + "2" * 16, forecast_id="fct_" + "3" * 16, cap="queries",
        tuning_id="tun_" + "4" * 16, run_id="run_" + "5" * 16, state="open", problem="unreachable",
    )  # fmt: skip
    counts = wire.NoticeCounts(measurements=2, percent=80, answers=7, minutes=61)
    sentences = {}
    of_dataset = wire.NoticeSubject(dataset_id="ds_" + "6" * 16, cap="epsilon")
    for event in wire.NoticeEvent.__args__:
        subject = of_dataset if event == "cap_raised" else whole
        sentences[event] = outbox.new_notice("blindopt-curator", event, NOW, subject, counts).sentence
        assert "None" not in sentences[event]
    assert len(set(sentences.values())) == len(sentences)
    assert (
        sentences["run_waiting"] == "Run run_5555555555555555 has waited for its curator for 61 minutes: unreachable."
    )
    notice = outbox.new_notice(
        "blindopt-curator", "budget_80", NOW, wire.NoticeSubject(dataset_id="ds_" + "6" * 16), counts
    )
    assert "of dataset ds_6666666666666666 is used" in notice.sentence


@pytest.mark.parametrize("planted", ["zq_yield", "highest charges", "blindopt_0123456789abcdef.x", "17.25", "run_x\n"])
def test_what_a_notice_is_about_cannot_be_a_name_a_token_or_a_value(planted):
    for field in wire.NoticeSubject.model_fields:
        with pytest.raises(ValidationError):
            wire.NoticeSubject.model_validate({field: planted if field != "problem" else planted + " "})


# --- what is written --------------------------------------------------------------------------------


def test_without_an_address_nothing_is_written(posting):
    post = posting(None)
    post.tell()
    assert post.views() == []
    assert not any(thread.name == "notices" for thread in threading.enumerate())


def test_events_that_were_not_chosen_are_not_written(posting):
    post = posting("http://127.0.0.1:1/", start=False, notify_events=" budget_80, log_failed")
    for event in ("query_pending", "budget_80", "release_ended", "log_failed", "tuning_ended"):
        post.tell(event)
    assert [view.notice.event for view in post.views()] == ["budget_80", "log_failed"]


def test_no_notice_is_written_of_what_did_not_happen(posting):
    post = posting("http://127.0.0.1:1/", start=False)

    def cause(db):
        post.context.outbox.add(db, "budget_80", SUBJECT, COUNTS)
        raise StateConflict("it did not happen after all")

    with pytest.raises(StateConflict):
        post.database.write(cause)
    assert post.views() == []


def test_a_notice_that_is_sent_once_is_not_sent_again_after_it_was_pruned(posting):
    post = posting("http://127.0.0.1:1/", start=False)
    for name in ("a", "a", "b", None, None):
        post.tell(once=name)
    assert len(post.views()) == 4
    ended = {"state": "delivered", "ended_at": "2026-11-21T12:00:00.000000Z"}
    post.database.write(lambda db: [store.change(db, seq, **ended) for seq in (1, 2, 3, 4)])
    post.now = NOW + timedelta(days=30)
    post.delivery.prune()
    assert len(post.views()) == 4
    post.now += timedelta(hours=2)
    post.delivery.prune()
    assert len(post.views()) == 2
    post.tell(once="a")
    assert len(post.views()) == 2


def test_a_notice_that_waited_for_a_receiver_for_a_month_is_given_up(posting):
    post = posting("http://127.0.0.1:1/", start=False)
    post.tell()
    post.now += timedelta(days=31)
    post.tell()
    post.delivery.prune()
    assert post.states() == ["failed", "pending"]
    assert "no receiver was set" in post.views()[0].problem


def test_a_log_that_does_not_verify_is_notified_once_a_day_for_each_fault(posting):
    post = posting("http://127.0.0.1:1/", start=False)
    post.database.write(lambda db: audit_log.append(db, "test", actor="cli", now=NOW))
    post.context.audit_trail.begin()
    assert post.views() == []
    with closing(beside.connect(post.database.path)) as db, db:
        beside.drop_triggers(db, "log_UPDATE")
        db.execute("UPDATE log SET body = x'7b7d'")
    for _ in range(2):
        post.context.audit_trail.begin()
    assert [view.notice.event for view in post.views()] == ["log_failed"]
    post.context.audit_trail.notify_broken("another fault")
    assert len(post.views()) == 2
    post.now += timedelta(days=1)
    for _ in range(2):
        post.context.audit_trail.begin()
    assert len(post.views()) == 3


# --- how it is delivered ----------------------------------------------------------------------------


def test_a_receiver_that_was_down_gets_all_in_their_order_once_it_is_up(posting, until):
    port = _nowhere()
    post = posting(f"http://127.0.0.1:{port}/")
    for _ in range(3):
        post.tell()
    until(lambda: post.views()[0].attempts)
    first = post.views()[0]
    assert "nothing listens there" in first.problem
    assert first.next_at == NOW + timedelta(seconds=1)
    assert [view.attempts for view in post.views()] == [1, 0, 0]
    with listening(port=port) as listener:
        post.now += timedelta(seconds=1)
        until(lambda: post.states() == ["delivered"] * 3)
    assert listener.ids == [view.notice.id for view in post.views()]
    assert [view.attempts for view in post.views()] == [2, 1, 1]
    assert {(view.problem, view.next_at) for view in post.views()} == {(None, None)}


def test_a_clock_that_is_set_back_keeps_no_notice_waiting(posting, until):
    """It was years ahead when a notice did not arrive; others would wait behind it."""
    with listening() as listener:
        post = posting(listener.url, start=False)
        post.tell()
        (row,) = post.views()
        post.database.write(lambda db: store.change(db, 1, attempts=1, next_at=stamp(NOW + timedelta(days=1_000))))
        assert post.views()[0].next_at == NOW + timedelta(days=1_000)
        post.delivery.start()
        until(lambda: post.states() == ["delivered"])
    assert [got.notice.id for got in listener.got] == [row.notice.id]


def test_faults_of_a_receiver_are_waited_out_ever_longer_and_under_one_id(posting, until):
    waits = []
    with listening(lambda number: 200 if number > 5 else 503) as listener:
        post = posting(listener.url)
        post.tell()
        post.tell()
        for attempt in range(1, 6):
            until(lambda n=attempt: post.views()[0].attempts == n)
            assert post.views()[0].problem == "it answered 503: a fault of its own"
            waits.append((post.views()[0].next_at - post.now).total_seconds())
            post.now = post.views()[0].next_at - timedelta(microseconds=1)
            assert len(listener.got) == attempt
            post.now = post.views()[0].next_at
        until(lambda: post.states() == ["delivered"] * 2)
    assert waits == [1, 2, 4, 8, 16]
    first, second = (view.notice.id for view in post.views())
    assert listener.ids == [first] * 6 + [second]
    assert all(got.genuine for got in listener.got)


def test_a_receiver_that_never_comes_back_is_tried_for_three_days_at_most_an_hour_apart():
    now, waits, row = NOW, [], SimpleNamespace(attempts=0, created_at=stamp(NOW))
    while (columns := delivery.outcome(row, "down", now))["state"] == "pending":
        waits.append(moment(columns["next_at"]) - now)
        now, row.attempts = moment(columns["next_at"]), columns["attempts"]
    assert waits == [timedelta(seconds=min(2**n, 3_600)) for n in range(len(waits))]
    assert timedelta(days=3) <= now - NOW < timedelta(days=3, hours=1)
    assert columns == {"attempts": len(waits) + 1, "problem": "down", "state": "failed", "ended_at": stamp(now)} | {
        "next_at": None
    }


def test_what_is_old_when_its_turn_comes_is_tried_three_times(posting, until):
    """Then it is given up, and the next one has its turn."""
    with listening(lambda number: 500 if number <= 3 else 204) as listener:
        post = posting(listener.url, start=False)
        post.tell()
        post.now += timedelta(days=4)
        post.delivery.start()
        for attempts in (1, 2, 3):
            until(lambda n=attempts: len(listener.got) == n)
            until(lambda n=attempts: post.views()[0].attempts == n)
            post.now += timedelta(seconds=5)
        assert post.states() == ["failed"]
        post.tell()
        until(lambda: post.states() == ["failed", "delivered"])


def test_where_the_outcome_cannot_be_stored_nothing_is_sent_again(posting, until, monkeypatch):
    with listening() as listener:
        post = posting(listener.url, start=False)
        post.tell()
        with monkeypatch.context() as patched:
            tried = fail_at(patched, store, "change", AuditUnavailable("the disk is full"))
            post.delivery.start()
            until(lambda: len(tried) > 1)
        until(lambda: post.states() == ["delivered"])
    assert len(listener.got) == 1


def test_the_waits_and_the_queue_outlive_a_restart(posting, until, tmp_path):
    with listening(lambda number: 500) as listener:
        post = posting(listener.url)
        post.tell()
        until(lambda: post.views()[0].attempts == 1)
        post.delivery.close()
        post.database.close()
        again = Post(tmp_path, listener.url)
        again.delivery.start()
        try:
            assert again.views()[0].attempts == 1
            assert len(listener.got) == 1
            listener.status = lambda number: 200
            again.now += timedelta(seconds=1)
            until(lambda: again.states() == ["delivered"])
        finally:
            again.delivery.close()
            again.database.close()
    assert len(set(listener.ids)) == 1


# --- what is wrong with a receiver ------------------------------------------------------------------


def _certificate(folder, name="127.0.0.1", days=1):
    """A self-signed certificate of an address, and a context that shows it."""
    import ipaddress

    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "r")])
    start = datetime.now(UTC) - timedelta(days=10)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=10 + days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "receiver.pem", folder / "receiver.key"
    chain.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, secret)
    return chain, context


@pytest.mark.parametrize(
    ("status", "what"),
    [
        (307, "it answered 307: a redirect, which is not followed: set NOTIFY_URL to where it leads"),
        (404, "nothing is at that path: check the end of NOTIFY_URL"),
        (401, "compare its key with NOTIFY_SECRET_FILE"),
        (405, "it takes no POST"),
        (500, "a fault of its own"),
        (418, "it answered 418: what that means is its own"),
    ],
)
def test_a_test_says_what_a_status_means(posting, status, what):
    with listening() as other, listening(lambda number: status) as listener:
        listener.moved_to = other.url
        test = posting(listener.url, start=False).delivery.test()
    assert not test.delivered
    assert what in test.problem
    assert (listener.events, other.got) == (["test"], [])


@pytest.mark.parametrize("status", [200, 299])
def test_a_test_that_arrives_lets_what_waits_go_at_once(posting, until, status):
    with listening(lambda number: 500 if number == 1 else status) as listener:
        post = posting(listener.url)
        post.tell()
        until(lambda: post.views()[0].attempts == 1)
        test = post.delivery.test()
        assert (test.delivered, test.problem) == (True, None)
        until(lambda: post.states() == ["delivered"])
    assert listener.ids[1] == test.id


def test_a_test_without_a_receiver_says_how_to_set_one(posting):
    test = posting(None).delivery.test()
    assert not test.delivered
    assert "set NOTIFY_URL and NOTIFY_SECRET_FILE" in test.problem


def test_a_test_says_that_a_name_cannot_be_looked_up(posting):
    test = posting("http://nobody.invalid/x", start=False).delivery.test()
    assert test.problem.startswith("its name cannot be looked up")
    assert "invalid" not in test.problem


def test_a_test_says_that_no_answer_came_and_there_is_one_at_a_time(posting):
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        post = posting(f"http://127.0.0.1:{silent.getsockname()[1]}/", start=False, notify_timeout_seconds=1.0)
        tests = []
        thread = threading.Thread(target=lambda: tests.append(post.delivery.test()))
        thread.start()
        connection, _ = silent.accept()  # the first test has connected
        with closing(connection):
            with pytest.raises(Busy):
                post.delivery.test()
            thread.join()
    assert tests[0].problem == "no answer came within 1 s (NOTIFY_TIMEOUT_SECONDS)"


def test_a_test_says_what_is_wrong_with_tls(posting, tmp_path):
    @contextmanager
    def shown(folder, **chosen):
        folder.mkdir()
        chain, context = _certificate(tmp_path, **chosen)
        with listening(tls=context) as listener:
            yield chain, listener, folder

    def problem(url, folder, ca=""):
        post = Post(folder, url, ca=ca)
        with closing(post.database):
            return post.delivery.test().problem

    with shown(tmp_path / "a") as (chain, listener, folder):
        assert "not signed by an authority that is trusted here: set NOTIFY_CA" in problem(listener.url, folder)
        assert problem(listener.url, folder, chain) is None
    with shown(tmp_path / "b", name="127.0.0.2") as (chain, listener, folder):
        assert "for another name than the one in NOTIFY_URL" in problem(listener.url, folder, chain)
    with shown(tmp_path / "c", days=-1) as (chain, listener, folder):
        assert "has expired" in problem(listener.url, folder, chain)
    with listening() as listener:
        (tmp_path / "d").mkdir()
        assert "http://" in problem(listener.url.replace("http:", "https:"), tmp_path / "d")


def test_a_reply_without_an_end_is_not_read(posting):
    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65_536)

    with listening(act=endless) as listener:
        assert posting(listener.url, start=False).delivery.test().delivered


# --- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        ({"notify_url": "http://x/"}, "belong together"),
        ({"notify_events": "budget_80, run_ended"}, "no such event: run_ended"),
        ({"notify_timeout_seconds": 0}, "greater than 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, chosen, what):
    with pytest.raises(ValidationError, match=what):
        CuratorSettings(data_dir=tmp_path, **chosen)
