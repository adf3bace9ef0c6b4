"""A trial in a process of its own, for an owner who waits: whatever a step takes, it is over at the deadline.

One step over a thousand features can take a minute inside the linear algebra, where no flag is looked at; a process
can be killed. What it had told by then is kept. The job is a line of JSON: it reads the records from their file.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict

from blindopt.errors import BlindoptError, ReleaseImpossible
from blindopt.formats import npy_files
from blindopt.wire import Finding, StudyCreate
from curator_service.attacks import trial
from curator_service.child import Child, end_with
from curator_service.privacy.choice import Concrete
from curator_service.release.mechanism import Assessment
from curator_service.release.registry import mechanism_of
from curator_service.scaling import ScaledRows

_FROZEN = ConfigDict(frozen=True, hide_input_in_errors=True)


class Job(BaseModel):
    """What to try: a draft, the release that would run, and where the records are.

    ``places``: the features' columns in ``records``, an npy file; ``outcome``: that of the measurement, None
    where y is no column. ``seconds``: what the attacks are sized for.
    """

    model_config = _FROZEN

    study: StudyCreate
    release: Concrete
    records: Path
    places: list[int]
    outcome: int | None
    seconds: float


class News(BaseModel):
    """What the release would be; or an attack that ended, with its finding where it applied; or what is wrong."""

    model_config = _FROZEN

    assessment: Assessment | None = None
    attack: str | None = None
    finding: Finding | None = None
    impossible: str | None = None
    fault: str | None = None


@dataclass(slots=True)
class Tried:
    """What a trial told before it ended: findings by attack, None for one that does not apply.

    ``assessment`` is None where not even that was told. ``late``: whether the deadline ended it. ``fault``: what else
    ended it before its time, in words.
    """

    assessment: Assessment | None = None
    findings: dict[str, Finding | None] = field(default_factory=dict)
    late: bool = False
    fault: str | None = None


def attempt(job: Job, within: float) -> Tried:
    """Assess and attack a draft for ``within`` seconds at most. Raises ReleaseImpossible."""
    child, told, late = Child(Path(__file__).with_name("__main__.py")), Tried(), threading.Event()

    def too_late() -> None:
        late.set()
        child.kill()

    timer = threading.Timer(within, too_late)
    timer.daemon = True
    timer.start()
    try:
        for line in child.lines(job.model_dump_json().encode() + b"\n"):
            _take(told, News.model_validate_json(line))
    finally:
        timer.cancel()
        status = child.end()
    told.late = late.is_set()
    if status != 0 and not told.late and told.fault is None:
        told.fault = f"its process ended with status {status}; memory may be short"
    return told


def _take(told: Tried, news: News) -> None:
    if news.impossible is not None:
        raise ReleaseImpossible(news.impossible)
    if news.assessment is not None:
        told.assessment = news.assessment
    if news.attack is not None:
        told.findings[news.attack] = news.finding
    if news.fault is not None:
        told.fault = news.fault


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """The other side: one job, then nothing."""
    job = Job.model_validate_json(source.readline())
    end_with(source)

    def tell(**news: Any) -> None:
        sink.write(News(**news).model_dump_json().encode() + b"\n")
        sink.flush()

    try:
        _work(job, tell)
    except ReleaseImpossible as error:
        tell(impossible=str(error))
    except BlindoptError as error:
        tell(fault=str(error))
    except MemoryError:
        tell(fault="memory was short")
    except Exception as error:  # its text may quote a value
        tell(fault=f"a fault on our side ({type(error).__name__})")


def _work(job: Job, tell: Any) -> None:
    values = npy_files.load(job.records)
    rows = ScaledRows(values, job.places, job.study.features, np.arange(len(values)))
    mechanism = mechanism_of(job.study, job.release)
    tell(assessment=mechanism.assess(rows))
    y = None if job.outcome is None else values[:, job.outcome]
    for attack, finding in trial.one_by_one(job.study, rows, y, mechanism, seconds=job.seconds):
        tell(attack=attack, finding=finding)
