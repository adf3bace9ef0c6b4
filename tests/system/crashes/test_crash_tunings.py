"""kill -9 at named points of a tuning: what it was charged stays, one outcome at most is ever told, none runs for ever.

BLINDOPT_CRASHES=20 kills so often at each point, a random while after it.
"""

import contextlib
import json
import random
import secrets
import signal
import time

import pytest

from blindopt.client import Owner
from blindopt.errors import Unreachable
from tests.curator_service.tuning.scoring.scorer import KEY, serving
from tests.curator_service.tuning_case import Case, csv_of, rows_of
from tests.processes import workers_of
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.crashing_service import Shot, arm, shots
from tests.system.crashes.test_crash_matrix import DELAY_SECONDS, KILLS

PATIENCE_SECONDS = 240.0

# Where it kills, one point after the other in the life of one tuning, each with the state that is then stored.
STORIES: dict[str, dict[str, str | None]] = {
    "charged, nobody told": {"tuning.before-commit": None, "tuning.after-commit": "running"},
    "charged, not drawn": {"tuning.work.before": "running"},
    "drawn, not stored": {"tuning.drawn.before": "running"},
    "stored, not told": {"tuned.after-commit": "completed", "told.reply.before": "completed"},
}
if KILLS > 1:
    STORIES |= {
        "charged, under way, nobody told": {"tuning.reply.before": "running"},
        "drawn, being stored": {"tuned.before-commit": "running"},
        "half told": {"tuned.after-commit": "completed", "told.reply.half": "completed"},
    }


@pytest.fixture(scope="module")
def scorer():
    with serving(lambda body, count: (200, b'{"score": 0.5}')) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def service(make_service, tmp_path_factory, scorer):
    """A curator that dies at chosen points."""
    folder = tmp_path_factory.mktemp("crashing")
    secret = folder / "key"
    secret.write_text(KEY)
    made = make_service("curator", folder, scorer_url=scorer.url, scorer_secret_file=str(secret))
    arm(made, _control(made))
    made.folder.mkdir(mode=0o700)
    yield made.start()
    made.process.kill()


@pytest.fixture(scope="module")
def case(service):
    with Owner(service.url, service.token) as owner:
        training = owner.register("training", csv_of(rows_of(20, 1)), public=True)
        return Case(training, owner.register("validation", csv_of(rows_of(20, 2))))


@pytest.fixture
def curator(service):
    """Alive, whatever the test before did to it."""
    _control(service).with_name("broken").unlink(missing_ok=True)
    if service.process.poll() is not None:
        service.start()
    return service


def _control(service):
    return service.folder / "control"


def _wait_for(what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.05)


class Killed:
    """One tuning, from the moment it is asked for to what the last start makes of it."""

    def __init__(self, curator, owner, case):
        self.curator, self.owner = curator, owner
        self.spec, self.key = case.http("0.001", "1000"), secrets.token_hex(8)
        self.before = {identity for (identity,) in curator.rows("SELECT id FROM tunings")}
        self.outcome = None

    def stored(self):
        """State, outcome and number of charges in the database; None, None, 0 where there is no tuning yet."""
        rows = self.curator.rows("SELECT id, state, outcome FROM tunings")
        new = [(*row, self.charges(row[0])) for row in rows if row[0] not in self.before]
        assert len(new) <= 1, "one key, two tunings"
        return new[0][1:] if new else (None, None, 0)

    def charges(self, identity):
        query = "SELECT count(*) FROM tuning_ledger WHERE kind = 'tuning' AND tuning_id = ?"
        return self.curator.rows(query, identity)[0][0]

    def shot_at(self, point):
        """Ask for it and for how it ended until the curator has died at the point; the seconds that it died later."""
        delay = random.choice([0.0, random.uniform(0, DELAY_SECONDS)]) if KILLS > 1 else 0.0
        Shot(point, delay=delay).aim(_control(self.curator))
        with contextlib.suppress(Unreachable):
            identity = self.owner.start_tuning(self.spec, key=self.key).id
            while self.curator.process.poll() is None:
                self.owner.tuning(identity)
                time.sleep(0.1)
        _wait_for(lambda: self.curator.process.poll() is not None)
        assert self.curator.process.poll() == -signal.SIGKILL, self.curator.log[-2000:]
        assert shots(_control(self.curator))[-1]["point"] == point
        return delay

    def check_death(self, expected, delay):
        """What the kill left. No process that scores outlives the curator."""
        state, outcome, charges = self.stored()
        assert charges == (0 if state is None else 1), "a tuning without its charge, or the reverse"
        assert (state == "completed") == (outcome is not None)
        assert delay or state == expected
        assert self.outcome in (None, outcome), "another outcome"
        self.outcome = outcome
        _wait_for(lambda: not workers_of(self.curator.process.pid))

    def check_end(self, state):
        """What the next start makes of it, for whoever asks for it again."""
        begun = self.owner.start_tuning(self.spec, key=self.key)  # the stored reply, or the first one
        ended = self.owner.wait_tuning(begun.id, timeout_s=PATIENCE_SECONDS, poll_s=0.2)
        assert ended.state == {None: "completed", "running": "failed", "completed": "completed"}[state], "tuned again"
        result = None if ended.result is None else ended.result.model_dump()
        assert self.outcome is None or result == json.loads(self.outcome)["result"], "another outcome"
        assert (result is None) == (ended.state == "failed")
        assert self.owner.tuning(begun.id) == ended
        assert self.stored()[2] == 1
        kinds = [r["kind"] for r in self.curator.records() if r.get("details", {}).get("tuning_id") == begun.id]
        assert kinds == ["tuning.started", "tuning.ended"]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("story", STORIES)
def test_a_tuning_that_a_kill_interrupts_is_charged_once_and_tells_one_outcome_at_most(curator, case, story):
    for _ in range(KILLS):
        with Owner(curator.url, curator.token, timeout_s=240) as owner:
            killed = Killed(curator, owner, case)
            for point, expected in STORIES[story].items():
                killed.check_death(expected, killed.shot_at(point))
                state = killed.stored()[0]
                curator.start()
                if state == "running":
                    break  # the start has ended it
            killed.check_end(state)


def test_logs_and_tables_verify_after_all_of_this(curator):
    checks.check_service(curator)


WRONG = {
    "tuned again": ("tuning.after-commit", "running", "tuned again"),
    "tuned for nothing": ("tuning.after-commit", "running", "without its charge"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_curator_that_is_wrong_on_purpose_is_found(curator, case, how):
    """The controls: one that draws again under the charge that it has, and one that charges nothing."""
    point, expected, message = WRONG[how]
    _control(curator).with_name("broken").write_text(how)
    with Owner(curator.url, curator.token, timeout_s=240) as owner:
        killed = Killed(curator, owner, case)
        delay = killed.shot_at(point)

        def check():
            killed.check_death(expected, delay)
            curator.start()
            killed.check_end(expected)

        with pytest.raises(AssertionError, match=message):
            check()
