"""Disks that are full, and what a curator says then."""

import os
import subprocess
from contextlib import contextmanager, suppress

import pytest

from blindopt import wire
from blindopt.client import Vendor
from tests.system.crashes.crash_checks import check_reconciled

LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", value_bound=1.0)
EXACT = wire.NoAnswerNoise(mechanism="none")
QUICK = {"wait_seconds_first": "0.3", "wait_seconds_max": "0.3", "retry_attempts": "2"}
"""Settings of a modeler whose runs try again soon."""


def mount_small(folder, megabytes):
    """Mount a tmpfs of so many megabytes; skips the test where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not allowed here: {done.stderr.strip()}")


@contextmanager
def filled(folder, leave=0):
    """Nothing is left on the disk of ``folder`` but ``leave`` bytes."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    os.truncate(path, max(0, path.stat().st_size - leave))
    yield
    path.unlink()


def ask(http, study, key, row=3):
    return http.post(f"/v1/studies/{study.id}/queries", json={"rows": [{"row": row}]}, headers={"Idempotency-Key": key})


def check_unavailable(reply, *codes):
    assert reply.status_code == 503, reply.text
    assert reply.json()["code"] in (codes or ("audit_unavailable", "storage_unavailable"))
    assert reply.json()["retryable"]
    assert reply.headers["retry-after"] == "1"


def fill_the_log(http, study, most=3_000, send=ask):
    """Ask until the room in the write-ahead log is used up: the keys that were answered, and the one that was not."""
    answered = {}
    for n in range(most):
        reply = send(http, study, f"fill-{n}")
        if reply.status_code != 201:
            return answered, f"fill-{n}", reply
        answered[f"fill-{n}"] = reply.content
    pytest.fail("the disk was never full")


def check_once(curator, owner, study, answered):
    """Each key was charged once and answered once, with the bytes that its client got."""
    charged = [line.query_id for line in owner.ledger(study.id) if line.kind == "answers"]
    assert len(charged) == len(set(charged)) == len(answered)
    stored = dict(curator.rows("SELECT idempotency_key, body FROM replies WHERE principal = ?", study.grant_id))
    assert stored == answered
    verified = curator.run("audit", "verify")
    assert (verified.returncode, verified.stderr) == (0, "")


def check_a_waiting_run(curator, modeler, study, order, disk, until, while_full=lambda http, run: None):
    """A run of 150 iterations waits while the disk of its modeler is full, and ends. Each answer was charged once."""
    with Vendor(modeler.url, modeler.token, timeout_s=240) as vendor:
        run = vendor.start(order).id
        until(lambda: vendor.run(run).view.trials >= 5)
        with filled(disk), modeler.http() as http:
            until(lambda: http.get("/readyz").status_code == 503 or vendor.run(run).view.ended_at)
            assert vendor.run(run).view.ended_at is None
            while_full(http, run)
        ended = vendor.wait(run, timeout_s=240)
        assert (ended.state, ended.ended_because, ended.trials) == ("completed", "budget", 151)
        trials = vendor.export(run).trials
    kept = "SELECT body FROM replies WHERE principal = ? AND idempotency_key LIKE 'run_%'"
    stored = curator.rows(kept, study.grant_id)
    stored_answers = [wire.QueryReply.model_validate_json(body) for (body,) in stored]
    answers = {reply.id: (reply.answers[0].row, reply.answers[0].y) for reply in stored_answers}
    assert {trial.query_id: (trial.row, trial.y) for trial in trials} == answers
    charges = curator.rows("SELECT count(*), count(DISTINCT query_id) FROM ledger WHERE kind = 'answers'")
    assert charges == [(151, 151)]
    check_reconciled(curator, modeler, [study.id], curator.folder)
