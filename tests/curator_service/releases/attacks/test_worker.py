"""The process of a preview: what it sends, that its deadline ends it whatever it does, and what is said then."""

import os
import re
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Busy, ReleaseImpossible
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.calibration import concrete
from curator_service.releases import attack_preview
from curator_service.releases.attacks.trial import ATTACKS
from curator_service.releases.attacks.worker import PROGRAM, Job, attempt
from curator_service.releases.mechanisms.mechanism import Assessment
from curator_service.releases.mechanisms.registry import mechanism_of
from service_kit.runner import Worker
from service_kit.runner.runner import Kind, Runner, Task
from tests.curator_service.releases.attacks.test_trial import study

LONG = 60.0
FINDING = wire.Finding(attack="membership", figure=0, low=0, high=1, confidence=0.95, unit="share", sentence="So.")


def attempted(job, make_worker=Worker):
    """What the process of a preview sends."""
    return attempt(Task(Kind("preview", PROGRAM, make_worker, seconds=LONG), "std_1"), job)


@pytest.fixture
def runner():
    return Runner()


@pytest.fixture
def previews(runner):
    return attack_preview.Previews(runner)


@pytest.fixture
def job(tmp_path):
    """A preview on ``n`` random rows; the file has the measurement first, then the features."""

    def make(release="po_gp_ucb", n=400, d=3, x=None):
        x = np.random.default_rng(5).normal(size=(n, d)) if x is None else x
        n, d = x.shape
        np.save(tmp_path / "records.npy", np.column_stack([np.arange(float(n)), x]))
        spec = study(release, d)
        columns, path = [*range(1, d + 1)], tmp_path / "records.npy"
        release = concrete(spec)[0]
        return Job(study=spec, release=release, records=path, columns=columns, outcome=0, seconds=0.3)

    return make


def test_a_preview_has_what_the_release_would_be_and_what_every_attack_found(job):
    request = job()
    result = attempted(request)
    assert (result.late, result.fault, set(result.findings)) == (False, None, set(ATTACKS))
    assert result.findings["known_rows"].figure == 1.0
    assert attack_preview.not_tried(result) is None
    values = np.load(request.records)
    rows = ScaledRows(values, request.columns, request.study.features, np.arange(len(values)))
    assessment = mechanism_of(request.study, request.release).assess(rows)
    assert result.assessment.branch == assessment.branch
    assert result.assessment.sigma_min == pytest.approx(assessment.sigma_min)


def test_attacks_that_need_more_rows_are_named_and_answers_that_no_cap_allows_are_not(job):
    result = attempted(job(n=20))
    assert set(result.findings) == set(ATTACKS)
    assert [attack for attack in ATTACKS if result.findings[attack] is None] == ["known_rows_noisy", "membership"]
    assert attack_preview.not_tried(result).startswith(
        "Not tried: known_rows_noisy, membership (they need more records"
    )
    known_rows = result.findings["known_rows"]
    result.findings = dict(result.findings, known_rows_noisy=known_rows, membership=FINDING, averaging=None)
    assert attack_preview.not_tried(result) is None


def test_what_cannot_be_released_is_refused_in_the_mechanism_s_words(job):
    x = np.random.default_rng(0).normal(size=(60, 3))
    x[:, 1] = 7.25
    with pytest.raises(ReleaseImpossible, match="leave out one of x1"):
        attempted(job(x=x))
    with pytest.raises(ReleaseImpossible, match="3 records are too few for 3 features"):
        attempted(job(x=x[:3]))


@pytest.mark.parametrize("release", ["po_gp_ucb", "gaussian"])
def test_a_wide_study_ends_at_the_deadline_and_says_what_was_not_tried(release, runner, previews, job):
    """One step over 1,000 features takes a second or more, all of them a minute: nothing looks at a clock in there."""
    runner.kinds["preview"].seconds = 0.05
    preview = previews.make("std_1", job(release, n=4_100, d=1_000))
    tried = {finding.attack for finding in preview.findings}
    missing = [attack for attack in ATTACKS if attack not in tried]
    assert missing  # how many depends on the machine
    assert preview.not_tried.startswith("Not tried: ")
    names = re.findall(r"[a-z_]+(?=[,( ])", re.sub(r" \(.*?\)", ",", preview.not_tried).partition(". On")[0] + ",")
    assert sorted(set(names) & set(ATTACKS)) == sorted(missing)
    assert "a preview ends after 0.05 s, and this study is too wide" in preview.not_tried
    assert "`blindopt-curator attack STUDY`" in preview.not_tried


class Late(Worker):
    """Its deadline comes after the second reply, however long the process took to begin."""

    def __init__(self, program, files=()):
        super().__init__(program, files)
        self.late, self.seconds = threading.Event(), []

    @contextmanager
    def deadline(self, seconds):
        self.seconds.append(seconds)
        yield self.late

    def work(self, job, array=None):
        for number, reply in enumerate(super().work(job, array)):
            yield reply
            if number == 1:
                self.late.set()
                self.kill()


def test_a_preview_that_its_deadline_ends_keeps_what_it_had_sent(job):
    worker = Late(PROGRAM)
    result = attempted(job(), lambda *_: worker)
    assert (result.late, result.fault) == (True, None)
    assert result.assessment.branch is not None
    assert "averaging" in result.findings
    assert len(result.findings) < len(ATTACKS)
    assert worker.seconds == [LONG]
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)  # it is gone, and was waited for


class Killed(Worker):
    def work(self, job, array=None):
        self.kill()
        yield from super().work(job, array)


def test_a_process_that_dies_is_reported_and_not_taken_for_a_preview_without_findings(runner, previews, job):
    runner.kinds["preview"].make_worker = Killed
    preview = previews.make("std_1", job())
    assert preview.findings == []
    assert preview.assessment == Assessment()
    assert "what the data make of the release, known_rows" in preview.not_tried
    assert "ended with status -9; memory may be short" in preview.not_tried


def test_records_that_cannot_be_read_are_reported_without_their_path(job):
    missing = job().records.with_name("nowhere.npy")
    result = attempted(job().model_copy(update={"records": missing}))
    assert (result.assessment, result.findings) == (None, {})
    assert "npy" in result.fault
    assert "nowhere" not in result.fault


# --- one at a time -----------------------------------------------------------------------------------------


def test_a_second_preview_waits_shortly_and_is_then_refused_as_busy(runner, previews, job):
    kind = runner.kinds["preview"]
    with kind.held(Task(kind, "std_1"), LONG, Busy("no", seconds=1)), pytest.raises(Busy) as refused:
        previews.make("std_2", job(), wait_s=0.05)
    assert (refused.value.status, refused.value.retryable, refused.value.headers) == (503, True, {"Retry-After": "3"})
    assert previews.make("std_2", job(), wait_s=0.05).not_tried is None  # the turn was given back
