"""kill -9 while a curator verifies itself: the next start begins anew, reports the same, and nothing was spent by it.

BLINDOPT_CRASHES=20 kills so often at each point, a random while after it.
"""

import contextlib
import json
import random
import signal
from pathlib import Path

import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient
from blindopt.errors import BlindoptError
from tests import beside
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.crashing_service import Shot, arm, shots
from tests.system.crashes.test_crash_matrix import KILLS

# Before it reads, while it reads, when it has read everything, and around the notice of what differs.
POINTS = (
    "verification.begun.before",
    "verification.begun.after",
    "verification.after",
    "notice.before-commit",
    "notice.after-commit",
    "verification.reported.after",
)[:: 1 if KILLS > 1 else 2]
WHILE_IT_READS, WHILE_IT_READS_SECONDS = ("verification.begun.after",), 1.0
CHARGES, NOTICES = "SELECT count(*) FROM log WHERE kind = 'charge'", "SELECT body FROM notices"
CHANGED = "UPDATE replies SET body = CAST(replace(body, '\"y\":', '\"y\":1') AS BLOB) WHERE idempotency_key = 'changed'"
QUERY = wire.QueryRequest(rows=[wire.RowPlays(row=0, plays=1)])


@pytest.fixture
def curator(make_service, tmp_path):
    """A curator that verifies itself as soon as it has started, and sends notices to nobody."""
    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    settings = {"notify_url": "http://127.0.0.1:9/", "notify_secret_file": str(secret), "verify_hours": "24"}
    made = make_service("curator", tmp_path, **settings, notify_events="log_failed")
    arm(made, made.folder / "control")
    return made.start()


@pytest.fixture
def studies(curator, small):
    """Two studies that have answered, with the tokens of their grants."""
    tokens = {}
    with Owner(curator.url, curator.token, timeout_s=240) as owner:
        dataset = owner.register("small", small.csv, public=True).id
        for key in ("changed", "other"):
            study = owner.create_study(checks.draft(small, dataset)).id
            owner.release(study)
            tokens[key] = study, owner.grant(study, wire.GrantCreate(name=key)).token
            assert query(curator, tokens[key], key) == "answered"
    return tokens


def query(curator, study, key):
    """Query a study; the code of the refusal, or `answered`."""
    try:
        with StudyClient(curator.url, study[1], study[0], timeout_s=240) as client:
            client.ask(QUERY, key=key)
    except BlindoptError as error:
        return error.code
    return "answered"


def verification(curator):
    with curator.http() as owner:
        return owner.get("/v1/audit/verification").json()


def findings(curator):
    return verification(curator)["findings"]


def processes_of(curator):
    """The processes that verify this curator's folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes())
    return [line for line in lines if b"findings" in line and str(curator.data).encode() in line]


@pytest.mark.slow(
    sibling="test_changed_records.py::test_a_verification_whose_process_was_killed_is_tried_again_soon_and_not_tomorrow"
)
def test_a_kill_while_it_verifies_leaves_a_service_that_begins_anew_and_reports_the_same(curator, studies, until):
    ((stored,),) = curator.rows("SELECT body FROM replies WHERE idempotency_key = 'changed'")
    curator.kill()
    beside.edit(curator.database, CHANGED)
    for point in POINTS:
        for _ in range(KILLS):
            delay = random.uniform(0, WHILE_IT_READS_SECONDS) if point in WHILE_IT_READS or KILLS > 1 else 0.0
            Shot(point, delay=delay).aim(curator.folder / "control")
            curator.process = curator.spawn()
            assert curator.process.wait(timeout=240) == -signal.SIGKILL, f"{point} was not passed"
            assert shots(curator.folder / "control")[-1]["point"] == point
        if KILLS == 1 and point != POINTS[-1]:
            continue
        curator.start()
        until(lambda: findings(curator))
        assert findings(curator) == ["the stored answer under key changed was changed"], point
        charges = curator.rows(CHARGES)
        assert query(curator, studies["changed"], f"{point}, changed") == "record_changed"
        assert curator.rows(CHARGES) == charges
        assert query(curator, studies["other"], f"{point}, other") == "answered"
        assert query(curator, studies["other"], "other") == "answered"
        until(lambda: curator.rows(NOTICES))
        curator.kill()
    days = [json.loads(body)["at"][:10] for (body,) in curator.rows(NOTICES)]
    assert len(days) == len(set(days)), "one a day"
    beside.edit(curator.database, "UPDATE replies SET body = ? WHERE idempotency_key = 'changed'", stored)
    curator.start()
    until(lambda: verification(curator)["last"])
    assert (verification(curator)["last"]["sound"], findings(curator)) == (True, [])
    assert query(curator, studies["changed"], "again") == "answered"
    until(lambda: not verification(curator)["running"])
    curator.kill()
    until(lambda: processes_of(curator) == [])
    checks.check_service(curator.start())
    curator.kill()
