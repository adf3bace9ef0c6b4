"""A private answer whose reply a crash kept waiting."""

import threading
from contextlib import suppress

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner

ANSWERS = wire.PiecewiseAnswers(mechanism="piecewise", epsilon="2", value_bound=0.5, noise_bound=0.1, centre=0.5)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("when", ["charged", "settled"])
def test_a_curator_that_is_killed_while_a_reply_waits_answers_its_retry_under_one_charge(
    when, make_service, open_study, small, tmp_path, until
):
    service = make_service("curator", tmp_path).start()
    with Owner(service.url, service.token) as owner:
        study = open_study(owner, owner.register("d", small.csv, public=True), answers=ANSWERS, reply_after_ms=4_000)
    body, replies = {"rows": [{"row": 3, "plays": 2}]}, []

    def send():
        with service.http(study.token, **{"Idempotency-Key": "k"}) as http, suppress(httpx.TransportError):
            replies.append(http.post(f"/v1/studies/{study.id}/queries", json=body))

    def stored():
        return service.rows("SELECT body FROM replies WHERE idempotency_key = 'k'")

    first = threading.Thread(target=send)
    first.start()
    until(stored if when == "settled" else lambda: service.rows("SELECT 1 FROM ledger WHERE kind = 'answers'"))
    before = stored()
    service.kill()
    first.join()
    assert (replies, len(before)) == ([], 1 if when == "settled" else 0)
    service.start()
    send()
    (reply,) = replies
    assert (reply.status_code, reply.headers.get("idempotency-replayed")) == (201, "true" if before else None)
    assert before in ([], [(reply.content,)])
    assert service.rows("SELECT plays, cost FROM ledger WHERE kind = 'answers'") == [(2, "4")]
    assert service.run_in_process("audit", "verify").returncode == 0
