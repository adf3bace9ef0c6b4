"""The attacks of a preview in a process of their own, which a deadline ends whatever it does.

One step over a thousand features can take a minute inside the linear algebra, where no flag is read; a process can be
killed. The findings that it sent before are kept. The child reads the records from their file.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blindopt.arrays import Matrix
from blindopt.errors import ReleaseImpossible
from blindopt.formats import npy_files
from blindopt.wire import Finding, StudyCreate
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.calibration import Concrete
from curator_service.releases.attacks import trial
from curator_service.releases.mechanisms.mechanism import Assessment
from curator_service.releases.mechanisms.registry import mechanism_of
from service_kit import runner
from service_kit.runner.runner import Task


class Published(runner.Message):
    """The files of a release: Z, and its secret row order."""

    candidates: Path
    order: Path


class Job(runner.Message):
    """A draft to attack, the release that would run, and the file of the records; or a ``published`` release.

    ``columns``: the features' columns in ``records``, an npy file; ``outcome``: that of the measurement, None
    where y is no column. ``withheld``: the records to leave out. ``seconds``: what the attacks are sized for.
    """

    study: StudyCreate
    release: Concrete
    records: Path
    columns: list[int]
    outcome: int | None
    withheld: list[int] = []
    published: Published | None = None
    seconds: float
    sample: Path | None = None
    """The file of the public sample that the release names."""
    sample_columns: list[int] = []
    sample_order: list[int] = []


class Reply(runner.Reply):
    """The assessment of the release, or an attack that ended, with its finding where it applied."""

    assessment: Assessment | None = None
    attack: str | None = None
    finding: Finding | None = None


@dataclass(slots=True)
class PreviewResult:
    """What the process sent before it ended: findings by attack, None for an attack that does not apply.

    ``assessment`` is None where not even that was sent. ``late``: whether the deadline ended it. ``fault``: in words,
    what else ended it too early.
    """

    assessment: Assessment | None = None
    findings: dict[str, Finding | None] = field(default_factory=dict)
    late: bool = False
    fault: str | None = None


def attempt(task: Task[Reply], job: Job) -> PreviewResult:
    """Assess and attack a draft in a process; the task's progress is the share of the attacks that have ended.

    Raises ReleaseImpossible.
    """
    result = PreviewResult()

    def take(reply: Reply) -> None:
        if reply.assessment is not None:
            result.assessment = reply.assessment
        if reply.attack is not None:
            result.findings[reply.attack] = reply.finding
            task.progress = len(result.findings) / len(trial.ATTACKS)

    last = task.do(job, on_reply=take)
    if last.problem is not None and last.is_impossible:
        raise ReleaseImpossible(last.problem)
    result.late, result.fault = task.is_late, None if task.is_late else last.problem
    return result


def _work(job: Job, _: Matrix | None, sender: runner.Sender[Reply]) -> Reply:
    values = npy_files.load(job.records)
    y = None if job.outcome is None else values[:, job.outcome]
    sample, z = None, None
    if job.sample is not None:
        public = npy_files.load(job.sample)
        sample = ScaledRows(public, job.sample_columns, job.study.features, np.array(job.sample_order))
    mechanism = mechanism_of(job.study, job.release, sample)
    if (published := job.published) is not None:
        order, z = np.load(published.order, allow_pickle=False), npy_files.load(published.candidates)
    else:
        order = np.delete(np.arange(len(values)), job.withheld)
    rows = ScaledRows(values, job.columns, job.study.features, order)
    sender.send(Reply(assessment=mechanism.assess(rows) if z is None else Assessment()))
    for attack, finding in trial.one_by_one(job.study, rows, y, mechanism, z, seconds=job.seconds):
        sender.send(Reply(attack=attack, finding=finding))
    return Reply()


# On one core, so that the noise starts no processes that a kill would leave behind. At the usual priority, because the
# owner waits for a preview.
PROGRAM = runner.Program(__name__, Job, Reply, _work, core=2)
