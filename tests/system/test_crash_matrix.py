"""kill -9 at named points of both services: the run ends as if nothing had happened, and nothing is told twice.

BLINDOPT_CRASHES=20 kills so often at each point, at random passages and a random while after it.
"""

import functools
import os
import random
import signal
import time

import pytest

from shared import wire
from shared.client import OwnerClient, VendorClient
from shared.errors import Unreachable
from tests.system import crash_checks as checks
from tests.system.crashing import Forked, Shot, shots

KILLS = int(os.environ.get("BLINDOPT_CRASHES", "1"))
DELAY_SECONDS = 0.03
LENGTH = 10  # trials of a run
EPSILON = "0.1"
PATIENCE_SECONDS = 120.0

# Each point with the passage at which it kills, and what is stored then of the query that it is about.
IN_A_RUN = {
    ("curator", "candidates.reply.half"): (1, None),
    ("curator", "charge.before-commit"): (5, "chosen"),
    ("curator", "charge.after-commit"): (5, "chosen charged"),
    ("curator", "draw.before"): (3, "chosen charged"),
    ("curator", "draw.after"): (3, "chosen charged"),
    ("curator", "answer.before-commit"): (5, "chosen charged"),
    ("curator", "answer.after-commit"): (5, "chosen charged answered"),
    ("curator", "answer.reply.before"): (5, "chosen charged answered"),
    ("curator", "answer.reply.half"): (5, "chosen charged answered"),
    ("curator", "answer.reply.after"): (5, None),
    ("curator", "checkpoint.reply.before"): (1, None),
    ("curator", "countersigned.before-commit"): (1, None),
    ("curator", "countersigned.after-commit"): (1, None),
    ("curator", "countersigned.reply.after"): (1, None),
    ("modeler", "created.before-commit"): (1, None),
    ("modeler", "created.after-commit"): (1, None),
    ("modeler", "pinned.before-commit"): (1, None),
    ("modeler", "download.after"): (1, None),
    ("modeler", "chosen.before-commit"): (5, ""),
    ("modeler", "chosen.after-commit"): (5, "chosen"),
    ("modeler", "ask.before"): (5, "chosen"),
    ("modeler", "ask.after"): (5, "chosen charged answered"),
    ("modeler", "answered.before-commit"): (5, "chosen charged answered"),
    ("modeler", "answered.after-commit"): (5, "chosen charged answered stored"),
    ("modeler", "checkpoint.after"): (1, None),
    ("modeler", "countersign.before"): (1, None),
    ("modeler", "countersign.after"): (1, None),
    ("modeler", "countersigned.before-commit"): (1, None),
    ("modeler", "countersigned.after-commit"): (1, None),
    ("modeler", "ended.before-commit"): (1, None),
    ("modeler", "ended.after-commit"): (1, None),
}
# Without noise nothing is drawn: charge and answer are one transaction.
EXACT = {"charge.after-commit": "chosen charged answered", "answer.before-commit": "chosen"}


class Parties:
    """A curator and a modeler that die at chosen points and are started again."""

    def __init__(self, curator, modeler):
        self.curator, self.modeler = curator, modeler
        for service in (curator, modeler):
            service.spawn = functools.partial(self._forked, service)
            service.start()

    def _forked(self, service):
        service.folder.mkdir(exist_ok=True, mode=0o700)
        return Forked(service.name, self.control(service), service.environment, service.folder / "service.log")

    @staticmethod
    def control(service):
        return service.folder / "control"

    def named(self, name):
        return self.curator if name == "curator" else self.modeler

    def has_died(self, service):
        """Whether it killed itself, as told: any other end is a failure."""
        status = service.process.poll()
        assert status in (None, -signal.SIGKILL), f"the {service.name} ended with {status}: {service.log[-2000:]}"
        return status is not None

    def insist(self, call):
        """Call a service, started again whenever it dies, until it answers."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return call()
            except Unreachable:
                assert time.monotonic() < deadline, "no answer"
                time.sleep(0.05)
                for service in (self.curator, self.modeler):
                    if self.has_died(service):
                        service.start()

    def owner(self):
        return OwnerClient(self.curator.url, self.curator.token, timeout_s=60)

    def vendor(self):
        return VendorClient(self.modeler.url, self.modeler.token, timeout_s=60)


def _made(make_service, folder, **settings):
    chosen = {"retry_attempts": "60", "retry_seconds_max": "0.3", "countersign_every": "4", **settings}
    return Parties(make_service("curator", folder), make_service("modeler", folder, **chosen))


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    return _made(make_service, tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def dataset(parties, small):
    with parties.owner() as owner:
        return owner.register("small", small.csv, public=True).id


def _granted(parties, study, epsilon):
    with parties.owner() as owner:
        return checks.Study(study, owner.grant(study, wire.GrantCreate(name="modeler")).token, epsilon)


def _opened(parties, small, dataset, *, epsilon, answers):
    with parties.owner() as owner:
        made = owner.create_study(checks.draft(small, dataset, epsilon=epsilon, answers=answers))
        owner.release(made.id)
    return _granted(parties, made.id, epsilon)


def _run_of(parties, study, **chosen):
    settings = {"iterations": LENGTH - 2, "initial_rows": 2, "seed": 3, **chosen}
    return wire.RunCreate(curator_url=parties.curator.url, study_id=study.id, token=study.token, **settings)


def _played(parties, studies, shots_left=0, aim=None, **chosen):
    """One run on each study, to its end; how often a service died meanwhile, and the runs."""
    keys = [os.urandom(8).hex() for _ in studies]
    runs, died = [], 0
    if shots_left:
        aim()
    for study, key in zip(studies, keys, strict=True):
        with parties.vendor() as vendor:
            try:
                runs.append(vendor.start(_run_of(parties, study, **chosen), key=key).id)
            except Unreachable:  # killed as it took the order
                _wait_for(lambda: parties.has_died(parties.modeler))
                parties.modeler.start()
                died += 1
                runs.append(vendor.start(_run_of(parties, study, **chosen), key=key).id)
                if died < shots_left:
                    aim()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        for service in (parties.curator, parties.modeler):
            if parties.has_died(service):
                _check_death(parties, service, dict(zip(runs, studies, strict=True)))
                service.start()
                died += 1
                if died < shots_left:
                    aim()
        ended = parties.modeler.rows(
            f"SELECT count(*) FROM runs WHERE id IN ({','.join('?' * len(runs))}) AND ended_at IS NOT NULL", *runs
        )
        if ended == [(len(runs),)] and not any(map(parties.has_died, (parties.curator, parties.modeler))):
            break
        assert time.monotonic() < deadline, f"the runs do not end: {parties.modeler.log[-2000:]}"
        time.sleep(0.01)
    for service in (parties.curator, parties.modeler):
        parties.control(service).unlink(missing_ok=True)
    return died, runs


def _wait_for(what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.01)


def _facts(parties, key):
    """What is stored of a query by both parties."""
    run, _, number = key.partition(":")
    trial = parties.modeler.rows("SELECT y FROM trials WHERE run_id = ? AND number = ?", run, int(number))
    reply = parties.curator.rows("SELECT 1 FROM replies WHERE idempotency_key = ?", key)
    known = parties.curator.rows("SELECT id FROM queries WHERE idempotency_key = ?", key)
    charges = parties.curator.rows(
        "SELECT l.seq FROM ledger l JOIN queries q ON q.id = l.query_id WHERE q.idempotency_key = ?", key
    )
    assert len(known) == len(charges) <= 1, f"{key} was charged {len(charges)} times"
    facts = [("chosen", trial), ("charged", charges), ("answered", reply), ("stored", trial and trial[0][0] is not None)]
    return " ".join(name for name, found in facts if found)


def _check_death(parties, service, studies):
    """The kill came where its name says, and left what it must."""
    told = shots(parties.control(service))[-1]
    _, expected = IN_A_RUN[service.name, told["point"]]
    if expected is None or told["delay"]:
        return
    study = studies.get(told["about"].partition(":")[0])
    if study is not None and study.epsilon == "0":
        expected = EXACT.get(told["point"], expected)
    assert _facts(parties, told["about"]) == expected, told


def _check_all(parties, studies, runs, tmp_path):
    for study, run in zip(studies, runs, strict=True):
        checks.check_runs(parties.curator, parties.modeler, study, [run], LENGTH)
        checks.check_countersigned(parties.curator, parties.modeler, study)
    checks.check_choices(parties.modeler, runs)
    for service in (parties.curator, parties.modeler):
        checks.check_service(service)
    checks.check_reconciled(parties.curator, parties.modeler, [study.id for study in studies], tmp_path)


def _choices(parties, run):
    query = "SELECT number, phase, row, mean, sd, acquisition, ties, y FROM trials WHERE run_id = ? ORDER BY number"
    return parties.modeler.rows(query, run)


@pytest.fixture(scope="module")
def exact(parties, small, dataset):
    """A study whose answers are exact: the rows of a run depend on the seed and on nothing else."""
    return _opened(parties, small, dataset, epsilon="0", answers=None)


@pytest.fixture(scope="module")
def undisturbed(parties, exact):
    """What a run on it chooses that nobody kills."""
    study = _granted(parties, exact.id, "0")
    died, (run,) = _played(parties, [study])
    assert died == 0
    return _choices(parties, run)


@pytest.mark.parametrize(("name", "point"), IN_A_RUN, ids=lambda text: text)
def test_a_run_that_a_kill_interrupts_ends_as_if_it_had_not(
    parties, small, dataset, exact, undisturbed, tmp_path, name, point
):
    victim, died = parties.named(name), 0
    passage, _ = IN_A_RUN[name, point]

    def aim():
        delay = random.choice([0.0, random.uniform(0, DELAY_SECONDS)]) if KILLS > 1 else 0.0
        at = random.randint(1, passage) if KILLS > 1 else passage
        Shot(point, at, delay).aim(parties.control(victim))

    while died < KILLS:
        studies = [
            _opened(parties, small, dataset, epsilon=EPSILON, answers=LENGTH),
            _granted(parties, exact.id, "0"),
        ]
        kills, runs = _played(parties, studies, KILLS - died, aim)
        assert kills, "the point was not passed"
        died += kills
        _check_all(parties, studies, runs, tmp_path)
        assert _choices(parties, runs[1]) == undisturbed
        checks.check_replays(parties.curator, studies[0], [f"{runs[0]}:{n}" for n in (1, LENGTH)])
