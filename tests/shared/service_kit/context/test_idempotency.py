"""Effects that happen once, and none for a token that was revoked while the body was on its way."""

from dataclasses import replace

import pytest
from pydantic import BaseModel

from blindopt.errors import IdempotencyKeyReused, Unauthenticated
from modeler_service.context import open_context
from modeler_service.settings import Settings
from service_kit.context.request import Effect, RequestContext
from service_kit.store import audit_log


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
        principal = context.authentication.authenticate(f"Bearer {token.text}")
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
    assert context.idempotency.earlier(request) is None
    assert _kinds(context) == ["token.issued", "token.revoked"]


def test_a_stored_reply_is_not_for_a_token_that_was_revoked_since(context, request_of):
    token, principal = context.authentication.issue("vendor", "robot", days=1)
    request = request_of(token)
    context.idempotency.once(request, lambda db: Effect(Reply(number=1), "number.made", {}))
    context.database.write(lambda db: context.authentication.revoke(db, principal.kid, actor="cli"))
    with pytest.raises(Unauthenticated):
        context.idempotency.once(request, lambda db: Effect(Reply(number=2), "number.made", {}))


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
