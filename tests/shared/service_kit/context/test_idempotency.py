"""Effects that happen once, and none for a token that was revoked while the body was on its way."""

import asyncio
import base64
import hashlib
import hmac
import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from blindopt import wire
from blindopt.errors import IdempotencyKeyMissing, IdempotencyKeyReused, RecordChanged, Unauthenticated
from modeler_service.context import open_context
from modeler_service.settings import Settings
from service_kit.context import key_rotation
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import Principal
from service_kit.store import audit_log, stored_replies
from tests import beside


class Reply(BaseModel):
    number: int


@pytest.fixture
def context(tmp_path):
    with open_context(Settings(data_dir=tmp_path)) as context:
        yield context


@pytest.fixture
def request_of(context):
    """A request as the middleware hands it on, after it checked the token in its head."""

    def make(token):
        principal = asyncio.run(context.authentication.authenticate(f"Bearer {token.text}"))
        return RequestContext(principal, "0" * 32, "POST", "/v1/runs", "key", "0" * 64)

    return make


def _kinds(context):
    with context.database.read() as db:
        return [entry.record["kind"] for entry in audit_log.walk(db)]


def test_a_token_that_is_revoked_before_the_body_is_complete_has_no_effect(context, request_of):
    token, principal = context.authentication.issue("vendor", "robot", days=1)
    request = request_of(token)
    effects = []

    def effect(db):
        effects.append(len(effects))
        return Effect(Reply(number=effects[-1]), "number.made", {})

    context.database.write(lambda db: context.authentication.revoke(db, principal.kid, actor="cli"))
    with pytest.raises(Unauthenticated):
        context.idempotency.once(request, effect)
    assert effects == []
    assert _kinds(context) == ["token.issued", "token.revoked"]


def test_a_stored_reply_is_not_for_a_token_that_was_revoked_since(context, request_of):
    token, principal = context.authentication.issue("vendor", "robot", days=1)
    request = request_of(token)
    context.idempotency.once(request, lambda db: Effect(Reply(number=1), "number.made", {}))
    context.database.write(lambda db: context.authentication.revoke(db, principal.kid, actor="cli"))
    with pytest.raises(Unauthenticated):
        context.idempotency.once(request, lambda db: Effect(Reply(number=2), "number.made", {}))
    with pytest.raises(Unauthenticated):
        context.idempotency.earlier(request)


@pytest.mark.parametrize("secret", [False, True])
def test_a_repeated_request_gets_the_stored_bytes_and_another_one_is_refused(secret, context, request_of):
    token, _ = context.authentication.issue("vendor", "robot", days=1)
    request = request_of(token)
    first, again = (
        context.idempotency.once(request, lambda db, n=n: Effect(Reply(number=n), "number.made", {}), secret=secret)
        for n in (1, 2)
    )
    assert (first.body, first.replayed) == (b'{"number":1}', False)
    assert (again.body, again.replayed) == (b'{"number":1}', True)
    with pytest.raises(IdempotencyKeyReused):
        context.idempotency.once(replace(request, body_sha256="1" * 64), lambda db: pytest.fail("ran"))
    assert _kinds(context).count("number.made") == 1


def _made(number, status=201):
    return lambda db: Effect(Reply(number=number), "number.made", {"n": number}, status)


@pytest.mark.parametrize("secret", [False, True])
def test_a_reply_is_stored_under_its_principal_and_key_with_the_digest_of_its_request(tmp_path, secret):
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    with open_context(Settings(data_dir=tmp_path), clock=lambda: noon) as context:
        _, principal = context.authentication.issue("vendor", "robot", days=1)
        request = RequestContext(principal, "0" * 32, "POST", "/v1/runs", "key", "a" * 64)
        reply = context.idempotency.once(request, _made(7, status=202), secret=secret)
        assert (reply.status, reply.body, reply.receipt) == (202, b'{"number":7}', None)
        with closing(beside.connect(tmp_path / "modeler.sqlite")) as db:
            ((*row, body),) = db.execute(
                "select principal, idempotency_key, request_sha256, status, sealed, created_at, body from replies"
            )
        plain = hashlib.sha256(f"POST /v1/runs {'a' * 64}".encode()).hexdigest()
        digest = hmac.new(context.seal.key_for("requests"), plain.encode(), "sha256").hexdigest()
        assert row == [principal.id, "key", digest, 202, int(secret), "2026-03-01T12:00:00.000000Z"]
        assert (body == b'{"number":7}') is not secret
        assert b"number" in body or secret
        with context.database.read() as db:
            (record,) = [e.record for e in audit_log.walk(db) if e.record["kind"] == "number.made"]
            public = stored_replies.answer(db, principal.id, "key")
        assert (record["actor"], record["details"]) == (f"vendor:{principal.kid}", {"n": 7})
        assert (public and tuple(public)) == (None if secret else (202, b'{"number":7}'))
        again = context.idempotency.earlier(request)
        assert (again.status, again.body, again.replayed, again.receipt) == (202, b'{"number":7}', True, None)


def test_a_repeated_request_is_the_same_under_a_new_seal_key_and_beside_the_plain_digest_of_earlier_versions(tmp_path):
    with open_context(Settings(data_dir=tmp_path)) as context:
        _, principal = context.authentication.issue("vendor", "robot", days=1)
        requests = [RequestContext(principal, "0" * 32, "POST", "/v1/runs", key, "a" * 64) for key in ("new", "old")]
        for request in requests:
            context.idempotency.once(request, _made(7))
        key_rotation.rotate(context, tmp_path / "secrets", "seal")
    plain = hashlib.sha256(f"POST /v1/runs {'a' * 64}".encode()).hexdigest()
    with closing(beside.connect(tmp_path / "modeler.sqlite")) as db:
        beside.drop_triggers(db)
        db.execute("update replies set request_sha256 = ? where idempotency_key = 'old'", [plain])
        db.commit()
    with open_context(Settings(data_dir=tmp_path)) as context:
        for request in requests:
            assert context.idempotency.earlier(request).body == b'{"number":7}'
            with pytest.raises(IdempotencyKeyReused):
                context.idempotency.earlier(replace(request, body_sha256="b" * 64))


@pytest.mark.parametrize("secret", [False, True])
def test_the_receipt_of_a_shared_exchange_holds_the_digest_of_the_clear_body(context, secret):
    grant = Principal("grt_1", "k1", "vendor", "modeler", "std_0000000000000001")
    request = RequestContext(grant, "0" * 32, "POST", "/v1/studies/std_0000000000000001/queries", "key", "b" * 64)

    def settle(db):
        return context.idempotency.settle(db, request, _made(3, status=200)(db), secret=secret)

    reply = context.database.write(settle)
    position, note = reply.receipt.split()
    assert position == "0"
    assert b"grt_1" in base64.b64decode(note)
    with context.database.read() as db:
        (entry,) = audit_log.walk(db, "grt_1")
    exchange = json.loads(entry.body)
    assert (exchange["status"], exchange["replayed"], exchange["idempotency_key"]) == (200, False, "key")
    assert exchange["reply_sha256"] == hashlib.sha256(b'{"number":3}').hexdigest()
    root = hashlib.sha256(b"\0" + entry.body).digest()  # of a tree with one leaf
    assert base64.b64encode(root) in base64.b64decode(note)


@pytest.mark.parametrize("secret", [False, True])
def test_a_stored_reply_to_a_modeler_is_the_one_that_the_log_has(tmp_path, secret):
    """It is compared by the position that is stored with it, without a look at the log's other records."""
    grant = Principal("grt_1", "k1", "vendor", "modeler", "std_0000000000000001")
    requests = [
        RequestContext(grant, "0" * 32, "POST", "/v1/studies/std_0000000000000001/queries", key, "b" * 64)
        for key in ("first", "second")
    ]
    with open_context(Settings(data_dir=tmp_path)) as context:

        def in_transaction(work):
            return context.database.write(work)

        for number, request in enumerate(requests):
            made = _made(number)
            in_transaction(lambda db, r=request, m=made: context.idempotency.settle(db, r, m(db), secret=secret))
        with context.database.read() as db:
            positions = [stored_replies.find(db, "grt_1", key, None).log_seq for key in ("first", "second")]
            records = {entry.seq: entry.record for entry in audit_log.walk(db)}
        assert [records[seq]["exchange"]["idempotency_key"] for seq in positions] == ["first", "second"]
        again = in_transaction(lambda db: context.idempotency.stored(db, requests[1]))
        assert (again.body, again.replayed) == (b'{"number":1}', True)
        with closing(beside.connect(tmp_path / "modeler.sqlite")) as db:
            beside.drop_triggers(db)
            db.execute("update replies set status = 200 where idempotency_key = 'second'")
            db.commit()
        with pytest.raises(RecordChanged):
            in_transaction(lambda db: context.idempotency.stored(db, requests[1]))
        assert in_transaction(lambda db: context.idempotency.stored(db, requests[0])).body == b'{"number":0}'


@pytest.mark.parametrize("key", [None, "", "k" * 201, "a\nb", "tab\t", "schl\u00fcssel", "\x7f"])
def test_a_key_is_1_to_200_printable_ascii_characters(context, request_of, key):
    token, _ = context.authentication.issue("vendor", "robot", days=1)
    request = request_of(token)
    with pytest.raises(IdempotencyKeyMissing, match="Idempotency-Key header of 1 to 200 printable"):
        context.idempotency.once(replace(request, key=key), lambda db: pytest.fail("ran"))
    for good in ("x", " ~" * 100):
        assert context.idempotency.key_of(replace(request, key=good))[0] == good


@pytest.mark.parametrize("other", [{"method": "PUT"}, {"path": "/v1/run"}, {"body_sha256": "0" * 63 + "1"}])
def test_a_key_belongs_to_a_method_a_path_and_a_body(context, request_of, other):
    token, _ = context.authentication.issue("vendor", "robot", days=1)
    request = request_of(token)
    context.idempotency.once(request, _made(1))
    with pytest.raises(IdempotencyKeyReused, match="belongs to another request"):
        context.idempotency.earlier(replace(request, **other))
    assert context.idempotency.earlier(replace(request, key="other")) is None
    stranger, _ = context.authentication.issue("vendor", "other robot", days=1)
    assert context.idempotency.earlier(request_of(stranger)) is None


def test_a_reply_is_found_by_its_key_alone_where_no_digest_is_asked_for(context, request_of):
    token, principal = context.authentication.issue("vendor", "robot", days=1)
    context.idempotency.once(request_of(token), _made(1))
    with context.database.read() as db:
        reply, sealed, _ = stored_replies.find(db, principal.id, "key", None)
    assert (reply.body, reply.replayed, sealed) == (b'{"number":1}', True, False)


def test_what_can_be_deleted_or_erased_is_described_by_replies_that_begin_with_its_id():
    """By that its stored replies are recognized (``stored_replies.forget``)."""
    of_studies = wire.StudyOwnerView, wire.StudyView, wire.ForecastView
    for model in (*of_studies, wire.DatasetView, wire.RunView, wire.TuningView):
        assert next(iter(model.model_fields)) == "id", model
