"""The process of a trial: what it tells, that it is over at its deadline whatever it does, and what is said then."""

import os
import re
import signal
import threading

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Busy, ReleaseImpossible
from curator_service.attacks import ATTACKS, trial
from curator_service.attacks.worker import Job, Tried, attempt, serve
from curator_service.child import Child
from curator_service.privacy.choice import concrete
from curator_service.release.mechanism import Assessment
from curator_service.release.registry import mechanism_of
from curator_service.scaling import ScaledRows
from curator_service.use_cases.studies import attack_preview
from tests.curator_service.attacks.test_trial import study

LONG = 60.0
FOUND = wire.Finding(attack="membership", figure=0, low=0, high=1, confidence=0.95, unit="share", sentence="So.")


@pytest.fixture
def job(tmp_path):
    """A trial on ``n`` random rows; the file has the measurement first, then the features."""

    def make(release="po_gp_ucb", n=400, d=3, x=None):
        x = np.random.default_rng(5).normal(size=(n, d)) if x is None else x
        n, d = x.shape
        np.save(tmp_path / "records.npy", np.column_stack([np.arange(float(n)), x]))
        spec = study(release, d)
        places, path = [*range(1, d + 1)], tmp_path / "records.npy"
        release = concrete(spec)[0]
        return Job(study=spec, release=release, records=path, places=places, outcome=0, seconds=0.3)

    return make


def test_a_trial_tells_what_the_release_would_be_and_what_every_attack_found(job):
    asked = job()
    told = attempt(asked, LONG)
    assert (told.late, told.fault, set(told.findings)) == (False, None, set(ATTACKS))
    assert told.findings["known_rows"].figure == 1.0
    assert attack_preview._left_out(told) is None
    values = np.load(asked.records)
    rows = ScaledRows(values, asked.places, asked.study.features, np.arange(len(values)))
    here = mechanism_of(asked.study, asked.release).assess(rows)
    assert told.assessment.branch == here.branch
    assert told.assessment.sigma_min == pytest.approx(here.sigma_min)


def test_attacks_that_need_more_rows_are_named_and_answers_that_no_cap_allows_are_not(job):
    told = attempt(job(n=20), LONG)
    assert set(told.findings) == set(ATTACKS)
    assert [attack for attack in ATTACKS if told.findings[attack] is None] == ["known_rows_noisy", "membership"]
    assert attack_preview._left_out(told).startswith("Not tried: known_rows_noisy, membership (more rows are needed")
    told.findings = dict(told.findings, known_rows_noisy=told.findings["known_rows"], membership=FOUND, averaging=None)
    assert attack_preview._left_out(told) is None


def test_what_cannot_be_released_is_told_as_the_mechanism_tells_it(job):
    x = np.random.default_rng(0).normal(size=(60, 3))
    x[:, 1] = 7.25
    with pytest.raises(ReleaseImpossible, match="leave out one of c1"):
        attempt(job(x=x), LONG)


@pytest.mark.parametrize("release", ["po_gp_ucb", "gaussian"])
def test_a_wide_study_ends_at_the_deadline_and_says_what_was_not_tried(release, job, monkeypatch):
    """One step over 1,000 features takes a second or more, all of them a minute: nothing looks at a clock in there."""
    monkeypatch.setattr(attack_preview, "DEADLINE_SECONDS", 4.0)
    found = attack_preview.on_draft(job(release, n=4_100, d=1_000))
    tried = {finding.attack for finding in found.findings}
    missing = [attack for attack in ATTACKS if attack not in tried]
    assert {"column_space", "membership"} <= set(missing)
    assert found.left_out.startswith("Not tried: ")
    told = re.findall(r"[a-z_]+(?=[,( ])", re.sub(r" \(.*?\)", ",", found.left_out).partition(". On")[0] + ",")
    assert sorted(set(told) & set(ATTACKS)) == sorted(missing)
    assert "a preview ends after 4 s, and this study is too wide" in found.left_out
    assert "`blindopt-curator attack STUDY`" in found.left_out


def test_a_trial_that_never_looks_up_is_killed_with_what_it_had_told(job, monkeypatch):
    """Hard: the process is stopped, as one step inside the linear algebra would not be by any flag."""
    before = Child.lines
    pids, deadlines = [], []

    class Deadline(threading.Timer):
        """One that waits until the process is stopped: however long that one took to begin."""

        def start(self):
            deadlines.append(super().start)

    def stopped_after_the_first(child, *parts):
        for place, line in enumerate(before(child, *parts)):
            if place == 1:
                pids.append(child._process.pid)
                os.kill(child._process.pid, signal.SIGSTOP)
                deadlines.pop()()
            yield line

    monkeypatch.setattr(Child, "lines", stopped_after_the_first)
    monkeypatch.setattr(threading, "Timer", Deadline)
    told = attempt(job(), 0.5)
    assert (told.late, told.fault) == (True, None)
    assert told.assessment.branch is not None
    assert "averaging" in told.findings
    assert len(told.findings) < len(ATTACKS)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)  # it is gone, and was waited for


def test_a_process_that_dies_is_told_and_not_taken_for_a_trial_without_findings(job, monkeypatch):
    before = Child.lines

    def killed(child, *parts):
        child.kill()
        yield from before(child, *parts)

    monkeypatch.setattr(Child, "lines", killed)
    found = attack_preview.on_draft(job())
    assert found.findings == []
    assert found.assessment == Assessment()
    assert "what the data make of the release, known_rows" in found.left_out
    assert "ended with status -9; memory may be short" in found.left_out


def test_a_fault_is_told_by_its_kind_alone(job, monkeypatch):
    def fails(*_, **__):
        yield "averaging", None
        raise ZeroDivisionError("77123456789.25")

    monkeypatch.setattr(trial, "one_by_one", fails)
    told = served(job())
    assert "ZeroDivisionError" in told
    assert "77123456789" not in told


def test_records_that_cannot_be_read_are_told_without_their_place(job):
    asked = job().model_copy(update={"records": job().records.with_name("nowhere.npy")})
    told = attempt(asked, LONG)
    assert (told.assessment, told.findings) == (None, {})
    assert "npy" in told.fault
    assert "nowhere" not in told.fault


def served(asked):
    """What ``serve`` writes, in this process, from real pipes."""
    inward, outward = os.pipe(), os.pipe()
    # The writing end stays open: where it closed, ``serve`` would end the process, which is this one.
    with open(inward[1], "wb", closefd=False) as to:
        to.write(asked.model_dump_json().encode() + b"\n")
    with open(inward[0], "rb", closefd=False) as source, os.fdopen(outward[1], "wb") as sink:
        serve(source, sink)
    with os.fdopen(outward[0], "rb") as told:
        return told.read().decode()


# --- one at a time -----------------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch):
    """Trials that are under way until ``go`` is set; ``begun`` tells when one is."""
    begun, go = threading.Event(), threading.Event()

    def attempt(job, within):
        begun.set()
        assert go.wait(LONG)
        return Tried(Assessment(), dict.fromkeys(ATTACKS, FOUND))

    monkeypatch.setattr(attack_preview, "attempt", attempt)
    monkeypatch.setattr(attack_preview, "WAIT_SECONDS", 0.05)
    yield begun, go
    go.set()


def test_a_second_trial_waits_shortly_and_is_then_told_to_come_again(held, job):
    begun, go = held
    first = []
    thread = threading.Thread(target=lambda: first.append(attack_preview.on_draft(job())))
    thread.start()
    assert begun.wait(LONG)
    with pytest.raises(Busy) as refused:
        attack_preview.on_draft(job())
    assert (refused.value.status, refused.value.retryable, refused.value.headers) == (503, True, {"Retry-After": "3"})
    go.set()
    thread.join(LONG)
    assert first[0].left_out is None
    assert attack_preview.on_draft(job()).left_out is None  # the turn was given back


def test_a_second_trial_that_need_not_wait_long_gets_its_turn(held, job, monkeypatch):
    """The control: it is the wait that ends, not the asking."""
    begun, go = held
    monkeypatch.setattr(attack_preview, "WAIT_SECONDS", LONG)
    threads = [threading.Thread(target=attack_preview.on_draft, args=(job(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(LONG)
    go.set()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def test_a_trial_that_fails_gives_its_turn_back(job, monkeypatch):
    def fails(*_):
        raise ReleaseImpossible("no")

    monkeypatch.setattr(attack_preview, "attempt", fails)
    for _ in range(2):
        with pytest.raises(ReleaseImpossible):
            attack_preview.on_draft(job())
    assert attack_preview._ONE.acquire(timeout=0)
    attack_preview._ONE.release()
