"""Disks that are full, and what a curator says then."""

import os
import subprocess
from contextlib import contextmanager, suppress

import pytest

from blindopt import wire

LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", value_bound=1.0)
EXACT = wire.NoAnswerNoise(mechanism="none")


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
