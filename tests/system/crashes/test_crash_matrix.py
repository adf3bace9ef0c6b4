"""kill -9 at named points of both services: the run ends as if nothing had happened, and nothing is told twice.

Points that follow each other in a run are played in one story: a kill at each, in turn.
BLINDOPT_CRASHES=20 kills so often at each point, at random passages and a random while after it.
"""

import contextlib
import functools
import json
import os
import random
import secrets
import signal
import time
from collections import Counter

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient, Vendor
from blindopt.errors import Remote, Unreachable
from blindopt.formats import npy_files
from curator_service.datasets.readings import SMALL_BYTES
from tests import beside, postgres
from tests.builders import a_study, group_release
from tests.given_settings import GP_UCB
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.crashing_service import UNNAMED, Shot, arm, shots

KILLS = int(os.environ.get("BLINDOPT_CRASHES", "1"))
DELAY_SECONDS = 0.03
LENGTH = 10  # trials of a run
EPSILON = "0.1"
PATIENCE_SECONDS = 240.0

# Each point with the passage at which it kills, counted from the kill before it, and what is stored then of the query
# that it is about. Two runs of 10 trials pass all points of a story; draws are those of one of them.
STORIES = {
    "an order is taken": {
        ("modeler", "created.before-commit"): (1, None),
        ("modeler", "created.after-commit"): (1, None),
        ("modeler", "pinned.before-commit"): (1, None),
        ("modeler", "planned.before-commit"): (1, None),
        ("modeler", "planned.after-commit"): (1, None),
        ("modeler", "download.after"): (1, None),
    },
    "a query is charged": {
        ("curator", "candidates.reply.half"): (1, None),
        ("curator", "charge.before-commit"): (5, "chosen"),
        ("curator", "charge.after-commit"): (3, "chosen charged"),
        ("curator", "answer.before-commit"): (3, "chosen charged"),
    },
    "noise is drawn": {
        ("curator", "draw.before"): (3, "chosen charged"),
        ("curator", "draw.after"): (3, "chosen charged"),
        ("curator", "answer.after-commit"): (3, "chosen charged answered"),
    },
    "an answer leaves": {
        ("curator", "answer.reply.before"): (5, "chosen charged answered"),
        ("curator", "answer.reply.half"): (3, "chosen charged answered"),
        ("curator", "answer.reply.after"): (3, None),
        ("curator", "checkpoint.reply.before"): (1, None),
    },
    "the curator takes a signature": {
        ("curator", "countersigned.before-commit"): (1, None),
        ("curator", "countersigned.after-commit"): (1, None),
        ("curator", "countersigned.reply.after"): (1, None),
    },
    "a row is chosen and asked": {
        ("modeler", "chosen.before-commit"): (5, ""),
        ("modeler", "chosen.after-commit"): (3, "chosen"),
        ("modeler", "ask.before"): (3, "chosen"),
        ("modeler", "ask.after"): (3, "chosen charged answered"),
    },
    "an answer is stored": {
        ("modeler", "answered.before-commit"): (5, "chosen charged answered"),
        ("modeler", "answered.after-commit"): (3, "chosen charged answered stored"),
        ("modeler", "checkpoint.after"): (1, None),
    },
    "the modeler signs": {
        ("modeler", "countersign.before"): (1, None),
        ("modeler", "countersign.after"): (1, None),
        ("modeler", "countersigned.before-commit"): (1, None),
        ("modeler", "countersigned.after-commit"): (1, None),
    },
    "a run ends": {("modeler", "ended.before-commit"): (1, None), ("modeler", "ended.after-commit"): (1, None)},
}
OVER_A_LINK = {
    "a link carries a run": {
        ("modeler", "pulled.before"): (9, None),
        ("modeler", "pulled.after"): (9, None),
        ("curator", "carried.before"): (5, None),
        ("curator", "carried.after"): (5, None),
        ("modeler", "replied.before"): (5, None),
        ("modeler", "replied.after"): (5, None),
    }
}
ARCHIVING = {
    "a segment is sealed": {
        ("curator", "segment.bytes.before"): (1, None),
        ("curator", "segment.bytes.after"): (1, None),
        ("curator", "segment.file.after"): (1, None),
        ("curator", "archived.before-commit"): (1, None),
        ("curator", "archived.after-commit"): (1, None),
    }
}
IN_A_RUN = {point: facts for story in (STORIES | OVER_A_LINK | ARCHIVING).values() for point, facts in story.items()}
# Where replies are not paced, charge, draw and answer are one transaction.
AT_ONCE = {
    "charge.after-commit": "chosen charged answered",
    "answer.before-commit": "chosen",
    "draw.before": "chosen",
    "draw.after": "chosen",
}
PACED = {"reply_after_ms": 10}
REFINED = PACED | {
    "release": wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1"),
    "refine": wire.Refine(epsilon="3", persons=LENGTH),
    "epsilon_total": None,
}
"""Measured records leave again: each has one second draw and one charge for it, whenever a kill comes."""
PACED_STORIES = ["a query is charged", "noise is drawn"]


class Parties:
    """A curator and a modeler that die at chosen points and are started again."""

    def __init__(self, curator, modeler):
        self.curator, self.modeler = curator, modeler
        self.address = curator.url
        self.fired = {}
        for service in (curator, modeler):
            arm(service, self.control(service))
            service.spawn = functools.partial(self._spawned, service)
            service.process = service.spawn()
        for service in (curator, modeler):
            service.await_ready()

    def _spawned(self, service):
        self.fired[service.name] = len(shots(self.control(service)))
        return type(service).spawn(service)

    def link(self, file):
        """From now on, runs reach the curator over a link."""
        made = self.modeler.run("link", "create", "hospital", "--url", self.modeler.url, "--save", str(file))
        assert made.returncode == 0, made.stderr
        assert self.curator.run("link", "add", str(file)).returncode == 0
        self.address = f"link://{json.loads(file.read_text())['id']}"
        with self.curator.http() as http:
            _wait_for(lambda: [each["state"] for each in http.get("/v1/links").json()["links"]] == ["connected"])

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

    def is_doomed(self, service):
        """Whether a shot was fired that has not killed yet: some kill a while after they were fired."""
        return len(shots(self.control(service))) > self.fired[service.name]

    def restore(self):
        """Both ready, and no shot aimed at either or under way."""
        for service in (self.curator, self.modeler):
            self.control(service).unlink(missing_ok=True)
            if self.is_doomed(service) or self.has_died(service):
                _wait_for(lambda service=service: self.has_died(service))
                service.process = service.spawn()
            service.await_ready()

    def owner(self):
        return Owner(self.curator.url, self.curator.token, timeout_s=240)

    def vendor(self):
        return Vendor(self.modeler.url, self.modeler.token, timeout_s=240)


@pytest.fixture
def parties(make_service, tmp_path):
    """New ones for each test: they start in no time, and short logs are verified in no time."""
    settings = {"retry_attempts": "60", "retry_seconds_max": "0.3", "countersign_every": "4"}
    made = Parties(make_service("curator", tmp_path), make_service("modeler", tmp_path, **settings))
    yield made
    for service in (made.curator, made.modeler):
        service.process.kill()


@pytest.fixture
def dataset(parties, small):
    with parties.owner() as owner:
        return owner.register("small", small.csv, public=True).id


def _granted(parties, study, epsilon, *, paced=False):
    with parties.owner() as owner:
        return checks.Study(study, owner.grant(study, wire.GrantCreate(name="modeler")).token, epsilon, paced)


def _opened(parties, small, dataset, *, epsilon=EPSILON, answers=LENGTH, **chosen):
    with parties.owner() as owner:
        made = owner.create_study(checks.draft(small, dataset, epsilon=epsilon, answers=answers, **chosen))
        owner.release(made.id)
    return _granted(parties, made.id, epsilon, paced="reply_after_ms" in chosen)


def _run_of(parties, study, **chosen):
    settings = GP_UCB | {"iterations": LENGTH - 2, "initial_rows": 2, "seed": 3} | chosen
    return wire.RunCreate(curator_url=parties.address, study_id=study.id, token=study.token, **settings)


def _played(parties, studies, shots_left=0, aim=None, expected=None, **chosen):
    """One run on each study, to its end; how often a service died meanwhile, and the runs.

    ``expected``: what is stored at a death of the query that it is about; None: what IN_A_RUN says.
    """
    keys = [os.urandom(8).hex() for _ in studies]
    runs, died, before = [], 0, len(parties.modeler.log)

    def revive(service):
        nonlocal died
        died += 1
        if died < shots_left:
            aim()  # before the service is back: it may pass the point as soon as it is
        service.process = service.spawn()  # and it may die there before it was seen to be ready

    if shots_left:
        aim()
    deadline = time.monotonic() + PATIENCE_SECONDS
    with parties.vendor() as vendor:
        while len(runs) < len(studies):
            run = _run_of(parties, studies[len(runs)], **chosen)
            try:
                runs.append(vendor.start(run, key=keys[len(runs)]).id)
            except (Unreachable, Remote) as error:  # killed as it took the order, or not back yet
                if isinstance(error, Remote) and error.code != "standby":  # that is with PostgreSQL, at first
                    raise
                assert time.monotonic() < deadline, "the runs do not begin"
                if parties.has_died(parties.modeler):
                    revive(parties.modeler)
                time.sleep(0.01)
    while True:
        for service in (parties.curator, parties.modeler):
            if parties.has_died(service):
                _check_death(parties, service, dict(zip(runs, studies, strict=True)), expected)
                revive(service)
        ended = parties.modeler.rows(
            f"SELECT count(*) FROM runs WHERE id IN ({','.join('?' * len(runs))}) AND ended_at IS NOT NULL", *runs
        )
        if ended == [(len(runs),)] and not any(map(parties.is_doomed, (parties.curator, parties.modeler))):
            break
        assert '"RecordChanged"' not in parties.modeler.log[before:], parties.modeler.log[before:][-2000:]
        assert time.monotonic() < deadline, f"the runs do not end: {parties.modeler.log[-2000:]}"
        time.sleep(0.025)
    parties.restore()
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
    stored = parties.curator.rows("SELECT id FROM queries WHERE idempotency_key = ?", key)
    charges = parties.curator.rows(
        "SELECT l.seq FROM ledger l JOIN queries q ON q.id = l.query_id WHERE q.idempotency_key = ? "
        "AND l.kind = 'answers'",
        key,
    )
    rows = parties.modeler.rows("SELECT 1 FROM trials WHERE run_id = ? AND query = ?", run, int(number))
    assert len(charges) == len(stored) * len(rows) <= len(rows), f"{key} was charged {len(charges)} times"
    facts = [
        ("chosen", trial),
        ("charged", charges),
        ("answered", reply),
        ("stored", trial and trial[0][0] is not None),
    ]
    return " ".join(name for name, holds in facts if holds)


def _check_death(parties, service, studies, expected=None):
    """The kill came where its name says, and left what it must.

    With many kills at random passages and delays, an earlier one may have interrupted the same query further on:
    what is asked again may be charged and answered already, but not stored.
    """
    shot = shots(parties.control(service))[-1]
    if expected is None:
        _, expected = IN_A_RUN[service.name, shot["point"]]
    if expected is None or shot["delay"]:
        return
    study = studies.get(shot["about"].partition(":")[0])
    if study is not None and not study.paced:
        expected = AT_ONCE.get(shot["point"], expected)
    facts = _facts(parties, shot["about"])
    if KILLS > 1 and expected:
        assert facts.startswith(expected), shot
        assert ("stored" in facts) == ("stored" in expected), shot
    else:
        assert facts == expected, shot


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


@pytest.mark.slow(every=6)
@pytest.mark.parametrize(
    ("story", "pace"),
    [*((story, {}) for story in STORIES), *((story, pace) for pace in (PACED, REFINED) for story in PACED_STORIES)],
)
def test_runs_that_kills_interrupt_end_as_if_none_had(parties, small, dataset, tmp_path, story, pace):
    _play_story(parties, small, dataset, tmp_path, STORIES[story], **pace)


@pytest.mark.skipif(KILLS == 1, reason="test_links.py kills each side once; make soak kills at each point")
@pytest.mark.parametrize("story", OVER_A_LINK | STORIES)
def test_runs_over_a_link_that_kills_interrupt_end_as_if_none_had(parties, small, dataset, tmp_path, story):
    parties.link(tmp_path / "link.json")
    _play_story(parties, small, dataset, tmp_path, (OVER_A_LINK | STORIES)[story])


def _play_story(parties, small, dataset, tmp_path, story, **pace):
    """Two runs, as often as it takes to die at each point of a story KILLS times."""
    ahead = [point for point in story for _ in range(KILLS)]

    def aim():
        name, point = next(points)
        passage, _ = IN_A_RUN[name, point]
        delay = random.choice([0.0, random.uniform(0, DELAY_SECONDS)]) if KILLS > 1 else 0.0
        at = random.randint(1, passage) if KILLS > 1 else passage
        Shot(point, at, delay).aim(parties.control(parties.named(name)))

    while ahead:
        points = iter(ahead)
        studies = [_opened(parties, small, dataset, **pace), _opened(parties, small, dataset, epsilon="0")]
        kills, runs = _played(parties, studies, len(ahead), aim)
        assert kills, f"{ahead[0]} was not passed"
        del ahead[:kills]  # where the runs ended before a point was passed, other runs pass it
        _check_all(parties, studies, runs, tmp_path)
        checks.check_exact(parties.modeler, runs[1], small)
        checks.check_replays(parties.curator, studies[0], [f"{runs[0]}:{n}" for n in (1, LENGTH)])


@pytest.mark.slow(every=6)
def test_runs_go_on_and_logs_reconcile_where_kills_interrupt_the_archiving_of_the_log(
    parties, small, dataset, tmp_path
):
    """The control of the test: records have left the database. PostgreSQL deletes young ones too, here alone."""
    if postgres.ON:
        database = postgres.name_of(postgres.url_of(parties.curator.data))
        definition = "SELECT pg_get_functiondef('curator.delete_archived'::regproc)"
        ((function,),) = postgres.server().execute(database, definition)
        assert "'90 days'" in function
        postgres.server().execute(database, function.replace("'90 days'", "'0 days'"))
    parties.curator.settings["RETENTION_LOG_DAYS"] = "90"
    parties.curator.kill()
    parties.restore()
    story = ARCHIVING["a segment is sealed"]
    ahead = [point for point in story for _ in range(KILLS)]
    while ahead:
        points = iter(ahead)

        def aim(points=points):
            name, point = next(points)
            Shot(point).aim(parties.control(parties.named(name)))

        studies = [_opened(parties, small, dataset), _opened(parties, small, dataset, epsilon="0")]
        kills, runs = _played(parties, studies, len(ahead), aim)
        assert kills, f"{ahead[0]} was not passed"
        del ahead[:kills]
        for study, run in zip(studies, runs, strict=True):
            checks.check_runs(parties.curator, parties.modeler, study, [run], LENGTH)
        checks.check_choices(parties.modeler, runs)
        archived = parties.curator.rows("SELECT max(size) FROM segments")[0][0]
        _wait_for(lambda archived=archived: not list((parties.curator.data / "archive").glob("*.part")) and archived)
        for service in (parties.curator, parties.modeler):
            checks.check_service(service)
        checks.check_reconciled(parties.curator, parties.modeler, [study.id for study in studies], tmp_path)
    seqs = {seq for (seq,) in parties.curator.rows("SELECT seq FROM log WHERE kind IN ('charge', 'exchange')")}
    assert archived
    assert min(seqs) >= archived - 1


# Of the second query of a run in batches of 4: where it kills, at which passage, and what is stored of the query then.
IN_A_BATCH = {
    ("curator", "charge.after-commit"): (2, "chosen charged answered"),
    ("curator", "answer.before-commit"): (2, "chosen"),
    ("curator", "answer.reply.half"): (2, "chosen charged answered"),
    ("modeler", "chosen.before-commit"): (3, ""),
    ("modeler", "chosen.after-commit"): (3, "chosen"),
    ("modeler", "ask.after"): (2, "chosen charged answered"),
    ("modeler", "answered.before-commit"): (3, "chosen charged answered"),
    ("modeler", "answered.after-commit"): (3, "chosen charged answered stored"),
}
IN_BATCHES = {"algorithm": wire.GpBucb(name="gp_bucb"), "batch_size": 4}


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_batches_that_kills_interrupt_are_asked_again_as_they_were_and_charged_once(
    parties, small, dataset, tmp_path, name
):
    victim, studies, runs = parties.named(name), [], []
    for (service, point), (passage, stored) in IN_A_BATCH.items():
        if service == name:
            studies.append(_opened(parties, small, dataset))
            aim = functools.partial(Shot(point, passage).aim, parties.control(victim))
            died, (run,) = _played(parties, studies[-1:], 1, aim, expected=stored, **IN_BATCHES)
            assert died == 1, f"{point} was not passed"
            assert shots(parties.control(victim))[-1]["about"] == f"{run}:3"
            queries = parties.modeler.rows("SELECT query, count(*) FROM trials WHERE run_id = ? GROUP BY query", run)
            assert queries == [(1, 2), (3, 4), (7, 4)]
            runs.append(run)
    _check_all(parties, studies, runs, tmp_path)
    for study, run in zip(studies, runs, strict=True):
        checks.check_replays(parties.curator, study, [f"{run}:{n}" for n in (1, 3, 7)])


# Of a batch of which two rows have no budget left: it is refused, and each row is queried alone.
IN_A_REFUSED_BATCH = [("modeler", "pending.after-commit", 1), ("curator", "answer.reply.half", 2)]
if KILLS > 1:
    IN_A_REFUSED_BATCH += [
        ("modeler", "ask.before", 2),
        ("modeler", "pending.before-commit", 1),
        ("modeler", "answered.before-commit", 1),
        ("modeler", "answered.after-commit", 2),
        ("modeler", "answered.before-commit", 3),
        ("curator", "answer.after-commit", 1),
    ]


@pytest.mark.slow(sibling="test_batches_that_kills_interrupt_are_asked_again_as_they_were_and_charged_once")
def test_a_refused_batch_that_kills_interrupt_is_asked_row_by_row_and_charged_once(parties, small, dataset, tmp_path):
    draft = checks.draft(small, dataset, epsilon=EPSILON)
    draft = draft.model_copy(update={"budget": wire.Budget(epsilon_per_row=EPSILON)})
    studies, runs = [], []
    for name, point, passage in IN_A_REFUSED_BATCH:
        with parties.owner() as owner:
            made = owner.create_study(draft)
            owner.release(made.id)
        study, victim = _granted(parties, made.id, EPSILON), parties.named(name)
        _, used = _played(parties, [study], iterations=1)  # its initial design begins as that of the next run
        aim = functools.partial(Shot(point, passage, delay=1e-6).aim, parties.control(victim))
        chosen = IN_BATCHES | {"initial_rows": 4, "iterations": 2}
        died, (run,) = _played(parties, [study], 1, aim, expected="", **chosen)
        assert died == 1, f"{point} was not passed"
        trials = parties.modeler.rows("SELECT row, declined, y FROM trials WHERE run_id = ? ORDER BY number", run)
        before = {row for (row,) in parties.modeler.rows("SELECT row FROM trials WHERE run_id = ?", *used)}
        # The last two are chosen by the model, now and then the third candidate of the run before.
        assert [declined for _, declined, _ in trials] == [row in before for row, _, _ in trials]
        assert [declined for _, declined, _ in trials[:4]] == [1, 1, 0, 0]
        assert all((y is None) == bool(declined) for _, declined, y in trials)
        with parties.owner() as owner:
            charged = [line.row for line in owner.ledger(study.id) if line.kind == "answers"]
        answered = [row for row, declined, _ in trials if not declined]
        assert sorted(charged) == sorted([*before, *answered])
        assert len(charged) == len(set(charged))
        studies.append(study)
        runs += [*used, run]
    for service in (parties.curator, parties.modeler):
        checks.check_service(service)
    for run in runs:
        status, output = checks.command(parties.modeler, "replay", run)
        assert status == 0, output
    checks.check_reconciled(parties.curator, parties.modeler, [study.id for study in studies], tmp_path)


@pytest.mark.slow(sibling="test_runs_that_kills_interrupt_end_as_if_none_had")
def test_an_answer_lost_at_the_end_and_a_curator_that_dies_again_leave_one_story(parties, small, dataset, tmp_path):
    """The reply to the last query is lost, and so is the one that would tell the modeler what it missed."""
    shots_left = [Shot("answer.reply.before", LENGTH), Shot("checkpoint.reply.before")]
    study = _opened(parties, small, dataset)
    died, runs = _played(parties, [study], 2, lambda: shots_left.pop(0).aim(parties.control(parties.curator)))
    assert died == 2
    _check_all(parties, [study], runs, tmp_path)


@pytest.mark.slow(sibling="test_runs_that_kills_interrupt_end_as_if_none_had")
def test_a_modeler_verifies_while_it_does_not_know_yet_what_was_lost(parties, small, dataset, tmp_path):
    """Receipts beyond a lost reply are no cut tail; once it was fetched, a copy without its end is one."""
    study, modeler = _opened(parties, small, dataset), parties.modeler
    Shot("answer.reply.before", 2).aim(parties.control(parties.curator))
    with parties.vendor() as vendor:
        run = vendor.start(_run_of(parties, study)).id
        _wait_for(lambda: parties.has_died(parties.curator))
        Shot("checkpoint.after").aim(parties.control(modeler))  # dies before it takes what it missed
        parties.curator.start()
        _wait_for(lambda: parties.has_died(modeler))
    assert checks.command(modeler, "audit", "verify")[0] == 0
    assert checks.command(modeler, "audit", "verify", str(checks.export(modeler, tmp_path)))[0] == 0
    modeler.start()
    with parties.vendor() as vendor:
        vendor.wait(run, timeout_s=PATIENCE_SECONDS)
    _check_all(parties, [study], [run], tmp_path)
    exported = checks.export(modeler, tmp_path)
    lines = exported.read_text().splitlines(keepends=True)
    exported.write_text("".join(lines[:-1]))  # the newest grant's may be another: any tail will do
    assert checks.command(modeler, "audit", "verify", str(exported))[0] == 3


@pytest.mark.slow(sibling="test_runs_that_kills_interrupt_end_as_if_none_had")
def test_a_run_over_its_budget_of_bytes_that_kills_interrupt_ends_in_words_and_charges_nothing_twice(
    parties, small, dataset
):
    study, modeler = _opened(parties, small, dataset), parties.modeler
    Shot("answered.after-commit", 3).aim(parties.control(modeler))
    with parties.vendor() as vendor:
        run = vendor.start(_run_of(parties, study)).id
        for point in ("ended.before-commit", "ended.after-commit"):
            _wait_for(lambda: parties.has_died(modeler))
            with contextlib.closing(beside.connect(modeler.data / "modeler.sqlite")) as db:
                db.execute("UPDATE runs SET stored_bytes = ? WHERE id = ?", (256 << 20, run))
                db.commit()
            Shot(point).aim(parties.control(modeler))
            modeler.process = modeler.spawn()
        _wait_for(lambda: parties.has_died(modeler))
        assert [shot["point"] for shot in shots(parties.control(modeler))[1:]] == [
            "ended.before-commit",
            "ended.after-commit",
        ]
        modeler.start()
        ended = vendor.wait(run, timeout_s=PATIENCE_SECONDS)
    assert (ended.state, ended.problem.code) == ("failed", "curator_sent_too_much")
    assert [_facts(parties, f"{run}:{number}") for number in (1, 2, 3)] == ["chosen charged answered stored"] * 3
    assert parties.curator.rows("SELECT count(*) FROM queries") == [(3,)]
    for service in (parties.curator, modeler):
        checks.check_service(service)


# --- the owner's side -------------------------------------------------------------------------------

IN_A_RELEASE = {
    ("release.before-commit", 1): "draft",
    ("release.after-commit", 1): "releasing",
    ("axes.draw.before", 1): "releasing",
    ("axes.draw.after", 1): "releasing",
    ("release.draw.before", 1): "releasing",
    ("release.draw.after", 1): "releasing",
    ("file.before", 1): "releasing",
    ("file.after", 1): "releasing",
    ("file.after", 2): "releasing",
    ("published.before-commit", 1): "releasing",
    ("published.after-commit", 1): "open",
    ("published.reply.before", 1): "open",
    ("published.reply.half", 1): "open",
    ("published.reply.after", 1): "open",
}
RELEASES_TOGETHER = [list(IN_A_RELEASE)[begin : begin + 5] for begin in range(0, len(IN_A_RELEASE), 5)]
# Before and while the process reads, and when it has read.
IN_A_READING = ("reading.before", "reading.begun.after", "reading.after")
IN_A_REGISTRATION = (*IN_A_READING, "file.before", "file.after", "registered.before-commit", "registered.after-commit")
GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="4", delta=1e-5)
AXES = wire.AxesRelease(mechanism="axes", epsilon="4", delta=1e-5, axes="private", radius=2.0)


def _shoot(parties, point, passage=1):
    delay = random.choice([0.0, random.uniform(0, DELAY_SECONDS)]) if KILLS > 1 else 0.0
    Shot(point, passage, delay).aim(parties.control(parties.curator))
    return delay


def _dies(parties):
    _wait_for(lambda: parties.has_died(parties.curator))


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("points", RELEASES_TOGETHER, ids=lambda points: points[0][0])
def test_releases_that_kills_interrupt_are_drawn_again_and_charged_once(parties, small, dataset, tmp_path, points):
    released = [_released_in_spite_of_kills(parties, small, dataset, *point) for point in points]
    studies = [_granted(parties, identity, EPSILON) for identity in released]
    _, runs = _played(parties, studies)
    _check_all(parties, studies, runs, tmp_path)


def _released_in_spite_of_kills(parties, small, dataset, point, passage):
    """Release as many studies as there are kills; the last of them."""
    curator = parties.curator
    for _ in range(KILLS):
        release = AXES if point.startswith("axes.") else GAUSSIAN
        draft = checks.draft(small, dataset, epsilon=EPSILON, answers=LENGTH, release=release)
        with parties.owner() as owner:
            made = owner.create_study(draft).id
            delay = _shoot(parties, point, passage)
            with contextlib.suppress(Unreachable):
                owner.release(made, key=f"release {made}")
            _dies(parties)
            state = curator.rows("SELECT state FROM studies WHERE id = ?", made)
            assert delay or state == [(IN_A_RELEASE[point, passage],)], point
            curator.start()
            files = curator.data / "files"
            assert not list((files / "tmp").iterdir())
            released = owner.release(made, key=f"release {made}")
            again = owner.release(made, key=f"release {made}")
            charges = [(line.kind, line.epsilon) for line in owner.ledger(made)]
        assert released == again
        assert released.state == "open"
        assert npy_files.digest(files / f"{released.release_id}.npy") == released.release_sha256
        assert charges == [("release", "4")]
        records = [json.loads(body) for (body,) in curator.rows("SELECT body FROM log")]
        kinds = Counter(r["kind"] for r in records if r.get("details", {}).get("study_id") == made)
        assert (kinds["charge"], kinds["study.released"]) == (1, 1)
        assert kinds["release.begun"] == kinds["release.abandoned"] + 1
    return made


def test_a_curator_killed_while_it_takes_back_a_release_takes_it_back_at_the_next_start(parties, small, dataset):
    curator = parties.curator
    for moment in ("before-commit", "after-commit"):
        for _ in range(KILLS):
            with parties.owner() as owner:
                made = owner.create_study(checks.draft(small, dataset, release=GAUSSIAN)).id
                # At once: a while later, the release may be published, and nothing is taken back.
                Shot("release.draw.after").aim(parties.control(curator))
                with contextlib.suppress(Unreachable):
                    owner.release(made)
                _dies(parties)
                _shoot(parties, f"abandoned.{moment}")
                curator.process = curator.spawn()
                _dies(parties)
                parties.control(curator).unlink(missing_ok=True)
                curator.start()
                assert owner.release(made).state == "open"
    checks.check_service(curator)


@pytest.mark.slow(sibling="test_releases_that_kills_interrupt_are_drawn_again_and_charged_once")
def test_a_registration_that_a_kill_interrupts_makes_one_dataset_when_it_is_sent_again(parties, small, dataset):
    curator, files = parties.curator, parties.curator.data / "files"
    large = small.csv + small.csv.partition(b"\n")[2] * 20
    assert len(large) > SMALL_BYTES  # a process reads it
    for point in IN_A_REGISTRATION:
        for _ in range(KILLS):
            name, content = secrets.token_hex(8), large if point in IN_A_READING else small.csv
            with parties.owner() as owner:
                _shoot(parties, point)
                with contextlib.suppress(Unreachable):
                    owner.register(name, content, public=True, key=name)
                _dies(parties)
                curator.start()
                assert list((files / "tmp").iterdir()) == []
                view = owner.register(name, content, public=True, key=name)
            assert curator.rows("SELECT id FROM datasets WHERE name = ?", name) == [(view.id,)], point
            checks.check_service(curator)


# --- the checks themselves --------------------------------------------------------------------------

WRONG = {
    "redrawn": ("curator", "answer.reply.before", 5, "has another answer than was stored"),
    "charged twice": ("curator", "draw.after", 3, "the ledger charged a query twice"),
    "drawn first": ("curator", "draw.after", 3, "'draw.after'"),
    "chosen by chance": ("modeler", "ask.after", 5, "was chosen otherwise than its past says"),
    "not recorded": ("modeler", "answered.after-commit", 5, "RecordChanged"),
    "not charged": ("curator", "answer.after-commit", 5, "was charged 0 times"),
}


def _play_and_check(parties, study, folder, aim):
    died, runs = _played(parties, [study], 1, aim)
    assert died
    _check_all(parties, [study], runs, folder)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("how", WRONG)
def test_a_service_that_is_wrong_on_purpose_is_found(parties, small, dataset, tmp_path, how):
    name, point, passage, message = WRONG[how]
    study, victim = _opened(parties, small, dataset, answers=2 * LENGTH, **PACED), parties.named(name)
    parties.control(victim).with_name("broken").write_text(how)
    with pytest.raises(AssertionError, match=message):
        _play_and_check(parties, study, tmp_path, lambda: Shot(point, passage).aim(parties.control(victim)))


# --- and from outside -------------------------------------------------------------------------------


def test_the_rows_of_a_run_that_four_kills_interrupt_are_those_of_one_that_lived_and_the_commands_find_nothing(
    parties, small, dataset, tmp_path
):
    """The second run is another one on the same release; the command line runs beside the services."""
    study = _opened(parties, small, dataset, epsilon="0", answers=None)
    _, (undisturbed,) = _played(parties, [study])
    kills = [
        ("modeler", Shot("chosen.before-commit", 3)),
        ("curator", Shot("answer.reply.before", 2)),
        ("modeler", Shot("answered.before-commit", 2)),
        ("curator", Shot("answer.before-commit", 2)),
    ]

    def aim():
        name, shot = kills.pop(0)
        shot.aim(parties.control(parties.named(name)))

    died, (run,) = _played(parties, [study], 4, aim)
    assert died == 4
    assert _choices(parties, run) == _choices(parties, undisturbed)
    exports = []
    for service in (parties.curator, parties.modeler):
        verified = service.run("audit", "verify")
        assert (verified.returncode, verified.stderr) == (0, "")
        exports.append(tmp_path / f"export of the {service.name}")
        exports[-1].write_text(service.run("audit", "export").stdout)
    for service in (parties.curator, parties.modeler):
        compared = service.run("audit", "reconcile", study.id, *map(str, exports))
        assert (compared.returncode, compared.stderr) == (0, "")
        assert compared.stdout.endswith(" exchanges compared, 0 differences\n")


# --- that nothing is left out --------------------------------------------------------------------------------

WITHOUT_A_POINT = {
    "exchange": "a read or a refusal: nothing rests on it",
    "token.issued": "a command that is killed has shown no token: the next one makes another",
}
"""Kinds of records whose commit no test kills at, and why."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_draft_and_a_grant_that_a_kill_interrupts_are_made_once(parties, small, dataset, when):
    """Both are asked for again under their keys."""

    def act(http, path, body, point):
        headers = {"Idempotency-Key": f"{point} {when}"}
        Shot(f"{point}.{when}-commit").aim(parties.control(parties.curator))
        with pytest.raises(httpx.TransportError):
            http.post(path, headers=headers, json=body)
        assert shots(parties.control(parties.curator))[-1]["point"] == f"{point}.{when}-commit"
        parties.restore()
        reply = http.post(path, headers=headers, json=body)
        assert (reply.status_code, "idempotency-replayed" in reply.headers) == (201, when == "after")
        return reply.json()

    with parties.curator.http() as http:
        draft = checks.draft(small, dataset).model_dump(mode="json", exclude_unset=True)
        study = act(http, "/v1/studies", draft, "drafted")["id"]
        assert parties.curator.rows("SELECT count(*) FROM studies WHERE id = ?", study) == [(1,)]
        http.post(f"/v1/studies/{study}:release", headers={"Idempotency-Key": f"release {when}"})
        grant = act(http, f"/v1/studies/{study}/grants", {"name": "m"}, "granted")
        assert parties.curator.rows("SELECT count(*) FROM tokens WHERE study_id = ?", study) == [(1,)]
        assert grant["token"]


IN_ALL_GROUPS = {
    "charge.before-commit": (0, 0),
    "charge.after-commit": (80, 0),
    "groups.draw.before": (80, 0),
    "groups.draw.after": (80, 0),
    "answer.before-commit": (80, 0),
    "answer.after-commit": (80, 1),
}
"""Where a curator dies that answers about 80 groups: lines of its ledger and stored answers then."""


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("point", IN_ALL_GROUPS)
def test_all_groups_that_a_kill_interrupts_are_charged_once_and_answered_once(parties, point):
    """Asked for again under another key, as the page does after a reload."""
    curator = parties.curator
    csv = b"x,y\n" + b"".join(b"%f,%d\n" % (i + 0.5, i % 3) for i in range(80))
    spec = a_study(
        group_release("1000", (80,), 1), wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=3.0),
        columns="x", upper=80.0,
    )  # fmt: skip
    with parties.owner() as owner:
        dataset = owner.register(point, csv, public=True).id
        study = owner.create_study(spec.model_copy(update={"dataset_id": dataset})).id
        owner.release(study)
        granted = _granted(parties, study, "1")
        _shoot(parties, point)
        with contextlib.suppress(Unreachable):
            owner.study(study).answer_all()
        _dies(parties)
        of_study = "kind = 'answers' AND study_id = ?"
        lines = curator.rows(f"SELECT count(*) FROM ledger WHERE {of_study}", study)[0][0]
        stored = curator.rows("SELECT count(*) FROM replies WHERE principal = ?", study)[0][0]
        assert KILLS > 1 or (lines, stored) == IN_ALL_GROUPS[point]
        curator.start()
        groups = owner.study(study).answer_all()
        assert [group.y for group in owner.study(study).answer_all()] == [group.y for group in groups]
        charged = [line.row for line in owner.ledger(study) if line.kind == "answers"]
    assert sorted(charged) == list(range(80))
    with StudyClient(curator.url, granted.token, study) as client:
        assert [answer.y for answer in client.answers(80).answers] == [group.y for group in groups]
    checks.check_service(curator)


def test_every_durable_step_from_a_file_to_the_end_of_a_run_has_a_point(parties, small, dataset):
    """A commit that adds a record to a log, and has no name in ``crashing_service``, is in this list."""
    study = _opened(parties, small, dataset)
    _played(parties, [study])
    kinds = set()
    for service in (parties.curator, parties.modeler):
        kinds |= set(parties.control(service).with_name(UNNAMED).read_text(encoding="utf-8").split())
    assert kinds == set(WITHOUT_A_POINT)
