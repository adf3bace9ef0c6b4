"""Private answers over both services: a run that goes on as ever, and a reply that a crash kept waiting."""

import csv
import io
import math
import threading
from contextlib import suppress

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner

KINDS = {"one_bit": wire.OneBitAnswers, "piecewise": wire.PiecewiseAnswers, "laplace": wire.LaplaceAnswers}


def answers_of(kind, **more):
    said = {"epsilon": "2", "value_bound": 0.5, "noise_bound": 0.1, "centre": 0.5} | more
    return KINDS[kind](mechanism=kind, **said)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("kind", "plays", "deadline"), [("one_bit", "each", None), ("piecewise", "mean", None), ("piecewise", "each", 30)]
)
def test_a_run_of_20_trials_goes_on_as_ever(
    kind, plays, deadline, vendor, curator, modeler, owner, dataset, open_study, run_of, small
):
    said = answers_of(kind, plays=plays)
    opened = open_study(owner, dataset, noise_variance=0.01, answers=said, reply_after_ms=deadline)
    started = vendor.start(run_of(curator.url, opened, iterations=17, initial_rows=3, seed=4))
    ended = vendor.wait(started.id, timeout_s=240)
    assert (ended.state, ended.ended_because, ended.trials, ended.problem) == ("completed", "budget", 20, None)
    export = vendor.export(started.id)
    assert (export.run.study.answers, export.run.study.reply_after_ms) == (said, deadline)
    size = {"one_bit": (math.exp(2) + 1) / (math.exp(2) - 1), "piecewise": (math.e + 1) / (math.e - 1)}[kind] * 0.6
    for trial in export.trials:
        privacy = trial.passport.privacy
        assert (trial.plays, privacy.family, privacy.bound, trial.passport.clip) == (
            1,
            kind,
            0.6,
            (0.5 - 0.6, 0.5 + 0.6),
        )
        assert privacy.scale == pytest.approx(size)
        assert abs(trial.y - 0.5) <= privacy.scale * (1 + 1e-9)
        assert (trial.passport.measurement_variance, 0 < privacy.variance <= privacy.scale**2) == (0.01, True)
    lines = list(csv.DictReader(io.StringIO(vendor.export_csv(started.id))))
    assert {(line["plays"], line["privacy_family"]) for line in lines} == {("1", kind)}
    assert {float(line["privacy_variance"]) for line in lines} == {export.trials[0].passport.privacy.variance}
    assert owner.balance(opened.id).total_epsilon == "40"
    for service in (curator, modeler):
        verified = service.run_in_process("audit", "verify")
        assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("when", ["charged", "settled"])
def test_a_curator_that_is_killed_while_a_reply_waits_answers_its_retry_under_one_charge(
    when, make_service, open_study, small, tmp_path, until
):
    service = make_service("curator", tmp_path).start()
    with Owner(service.url, service.token) as owner:
        study = open_study(
            owner, owner.register("d", small.csv, public=True), answers=answers_of("piecewise"), reply_after_ms=4_000
        )
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
