"""A tuning in a process of its own, so that the exchange goes on beside it: its plan alone, or all of it.

A job is a line of JSON. Private records are read from their file, and all that comes back of them is the outcome. One
process can do several jobs, one after the other.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.audit.merkle_log import sha256
from blindopt.client import REPLY_MAX_BYTES, WebhookClient
from blindopt.errors import BlindoptError, TuningFailed, TuningImpossible
from blindopt.formats import npy_files
from curator_service.child import Child
from curator_service.privacy.ledger import exact
from curator_service.scaling import ScaledRows
from curator_service.scoring.logistic import Records, train
from curator_service.scoring.losses import loss_of
from curator_service.scoring.problems import needs_weights, points, problem_of
from curator_service.scoring.webhook import Webhook
from curator_service.tuning import Evaluate, Plan, plan_of

NICENESS = 10
RECORD_BYTES = 32
"""What each record's score may take in a scorer's reply, where many of them make it larger than others may be."""
_STEP = 0.002  # smaller progress is not told
_FROZEN = ConfigDict(frozen=True, hide_input_in_errors=True)


class Source(BaseModel):
    """A dataset's file and where in it a score's columns are: features, then the label."""

    model_config = _FROZEN

    file: Path
    places: list[int]


class Scorer(BaseModel):
    """Where http scores are asked for."""

    model_config = _FROZEN

    url: str
    key: str = Field(repr=False)
    ca: str | None
    timeout_s: float
    attempts: int


class Job(BaseModel):
    """A tuning: to be planned, or to be run where it was ``charged`` (epsilon and delta)."""

    model_config = _FROZEN

    tuning_id: str
    asked: wire.TuningCreate
    m: int
    training: Source | None = None
    validation: Source | None = None
    scorer: Scorer | None = None
    charged: tuple[str, str] | None = None


class Ended(BaseModel):
    """What a run came to: ``result`` may be released, the rest is for the owner alone."""

    model_config = _FROZEN

    result: wire.TuningResult
    clipped: int
    evaluations: int


class News(BaseModel):
    """Progress; or the end of a job: a report, an outcome, or what is wrong."""

    model_config = _FROZEN

    progress: float | None = None
    report: wire.TuningReport | None = None
    ended: Ended | None = None
    tuning_id: str | None = None
    """Of which tuning it is the outcome."""
    impossible: str | None = None
    field: str | None = None
    """Of the request, where that is what makes it impossible."""
    problem: str | None = None


class Worker(Child):
    """The process, seen from the curator."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("__main__.py"))

    def work(self, job: Job) -> Iterator[News]:
        """Send a job and yield what is told of it, until it or the process has ended.

        Raises TuningFailed for the outcome of another.
        """
        self.send(job.model_dump_json().encode() + b"\n")
        for line in self.told():
            news = News.model_validate_json(line)
            if news.ended is not None and news.tuning_id != job.tuning_id:
                raise TuningFailed("its process told the outcome of another tuning: nothing was released")
            yield news
            if news.progress is None:
                return


def report_of(plan: Plan) -> wire.TuningReport:
    """A plan in the words of the wire, without the account of its dataset."""
    noise, expected = plan.noise, plan.expected_error
    return wire.TuningReport(
        method=plan.spec.method.name,
        points=plan.problem.n,
        records=plan.problem.m,
        epsilon=exact(plan.cost.epsilon),
        delta=exact(plan.cost.delta),
        index_epsilon=None if plan.index_cost is None else exact(plan.index_cost.epsilon),
        value_epsilon=None if plan.value_cost is None else exact(plan.value_cost.epsilon),
        index_sensitivity=noise.index_sensitivity,
        index_scale=noise.index_scale,
        value_sensitivity=noise.value_sensitivity,
        value_scale=noise.value_scale,
        constants=dict(noise.constants),
        expected_gap=expected.index_gap,
        expected_value_error=expected.value,
        expected_how=expected.how,
        guarantee=plan.guarantee,
        warnings=plan.warnings,
        spent_epsilon="0",
        spent_delta="0",
        cap_epsilon="0",
        cap_delta="0",
    )


def plan_light(asked: wire.TuningCreate, m: int) -> wire.TuningReport:
    """The report of a tuning whose plan ``is_light``, here and now. Raises TuningImpossible."""
    return report_of(plan_of(asked, problem_of(asked, m)))


# --- the other side -----------------------------------------------------------------------------------


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Do jobs until the curator's end of the pipe closes; then this process ends, whatever it does."""
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in source:
            jobs.put(line)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while True:
        one(Job.model_validate_json(jobs.get()), sink)


def one(job: Job, sink: BinaryIO) -> None:
    """Do one job. What is told of an error is what a BlindoptError says, which holds nothing private."""

    def tell(news: News) -> None:
        sink.write(news.model_dump_json().encode() + b"\n")
        sink.flush()

    last = 0.0

    def told(share: float) -> None:
        nonlocal last
        if share - last >= _STEP:
            last = share
            tell(News(progress=min(share, 1.0)))

    try:
        tell(_plan(job) if job.charged is None else _run(job, told))
    except TuningImpossible as error:
        tell(News(impossible=str(error), field=error.field))
    except BlindoptError as error:
        tell(News(problem=str(error)))
    except MemoryError:
        tell(News(problem="memory was short: use fewer records or a smaller grid"))
    except Exception as error:  # its text may quote a value
        tell(News(problem=f"a fault on our side ({type(error).__name__})"))


def _spec(job: Job) -> wire.TuningSpec:
    """With a seed that nobody chose by its result: previews are free, and a tuning's id is drawn when it starts."""
    method = job.asked.method
    if not isinstance(method, wire.GpUcbSimulated):
        return job.asked
    seed = int(sha256(f"{job.tuning_id}:{method.seed}".encode())[:13], 16)
    return job.asked.model_copy(update={"method": method.model_copy(update={"seed": seed})})


def _plan(job: Job) -> News:
    weights = _trained(job) if needs_weights(job.asked) else None
    return News(report=report_of(plan_of(_spec(job), problem_of(job.asked, job.m, weights))))


def _run(job: Job, told: Callable[[float], None]) -> News:
    with ExitStack() as opened:
        weights = None if job.training is None else _trained(job)
        facts = weights if needs_weights(job.asked) else None
        plan = plan_of(_spec(job), problem_of(job.asked, job.m, facts))
        if (exact(plan.cost.epsilon), exact(plan.cost.delta)) != job.charged:
            raise TuningFailed("its plan costs something else than what it was charged: nothing was drawn")
        outcome = plan.run(_evaluate(job, weights, opened), told)
    point = None if outcome.index is None else points(job.asked)[outcome.index]
    result = wire.TuningResult(index=outcome.index, hyperparameters=point, value=outcome.value)
    ended = Ended(result=result, clipped=outcome.clipped, evaluations=outcome.evaluations)
    return News(ended=ended, tuning_id=job.tuning_id)


def _records(source: Source, score: wire.LogisticScore) -> Records:
    values = npy_files.load(source.file)
    rows = ScaledRows(values, source.places[:-1], score.features, np.arange(len(values)))
    return Records.of(rows, values[:, source.places[-1]], score.threshold)


def _trained(job: Job) -> Matrix:
    """Weights (n, d) at each point of the grid, from public records alone."""
    assert isinstance(job.asked.score, wire.LogisticScore)
    assert job.training is not None
    records = _records(job.training, job.asked.score)
    return np.array([train(records, penalty) for penalty in job.asked.grid[0].values])


def _evaluate(job: Job, weights: Matrix | None, opened: ExitStack) -> Evaluate:
    """The score of a point of the grid: of each private record, or what the owner's program tells."""
    score = job.asked.score
    if isinstance(score, wire.LogisticScore):
        assert weights is not None
        assert job.validation is not None
        loss, records = loss_of(score.loss, score.clip), _records(job.validation, score)

        def of_records(index: int) -> Vector:
            return -loss(records.y * (records.x @ weights[index]))

        return of_records
    assert job.scorer is not None
    told = job.scorer
    client = opened.enter_context(
        WebhookClient(
            told.url,
            bytes.fromhex(told.key),
            timeout_s=told.timeout_s,
            verify=told.ca or True,
            reply_max_bytes=max(REPLY_MAX_BYTES, RECORD_BYTES * job.m if score.reply == "records" else 0),
        )
    )
    hook = Webhook(
        client,
        job.tuning_id,
        score.model,
        told.attempts,
        validation_dataset_id=job.asked.validation_dataset_id,
        records=job.m,
        each=score.reply == "records",
    )
    grid = points(job.asked)
    asked = 0

    def of_webhook(index: int) -> Vector | float:
        nonlocal asked
        asked += 1
        return hook.score(asked, grid[index])

    return of_webhook
