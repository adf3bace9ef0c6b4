"""A tuning in a process of its own, so that requests go on beside it: its plan alone, or all of it.

The child reads private records from their file, and of them it sends back nothing but the outcome.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from pydantic import Field

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.audit.merkle_log import sha256
from blindopt.errors import TuningFailed
from blindopt.formats import npy_files
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.prices import exact
from curator_service.tuning.methods import Evaluate, Problem, plan_of
from curator_service.tuning.scoring.logistic import Records, loss_of, train
from curator_service.tuning.scoring.problems import needs_weights, points, problem_of
from service_kit import runner

RECORD_BYTES = 32
"""Bytes allowed for each record's score in a scorer's reply, where many records need more than the usual limit."""


class Source(runner.Message):
    """The npy file of a dataset, its columns that a score needs (the features', then the label's), and what to omit."""

    file: Path
    columns: list[int]
    withheld: list[int] = []


class Scorer(runner.Message):
    """The scorer of http scores."""

    url: str
    key: str = Field(repr=False)
    ca: str | None
    timeout_s: float
    attempts: int


class Job(runner.Message):
    """A tuning to plan; or to run, where it was ``charged`` (epsilon and delta)."""

    tuning_id: str
    tuning: wire.TuningCreate
    m: int
    training: Source | None = None
    validation: Source | None = None
    scorer: Scorer | None = None
    charged: tuple[str, str] | None = None


class Ended(runner.Message):
    """The outcome of a run: ``result`` may be released, the rest is for the owner alone."""

    result: wire.TuningResult
    clipped: int
    evaluations: int


class Reply(runner.Reply):
    """Progress, the report of a plan, or the outcome of a run."""

    report: wire.TuningReport | None = None
    ended: Ended | None = None
    tuning_id: str | None = None
    """The tuning that the outcome belongs to."""


def report_of(tuning: wire.TuningSpec, problem: Problem) -> wire.TuningReport:
    """The report of a plan on the wire, without the account of its dataset. Raises TuningImpossible."""
    plan = plan_of(tuning, problem)
    shares, noise, expected = plan.draws.shares, plan.draws.noise, plan.expected_error
    return wire.TuningReport(
        method=tuning.method.name,
        points=problem.n,
        records=problem.m,
        epsilon=exact(shares.total.epsilon),
        delta=exact(shares.total.delta),
        index_epsilon=None if shares.index is None else exact(shares.index.epsilon),
        value_epsilon=None if shares.value is None else exact(shares.value.epsilon),
        index_sensitivity=noise.index_sensitivity,
        index_scale=noise.index_scale,
        value_sensitivity=noise.value_sensitivity,
        value_scale=noise.value_scale,
        constants=dict(noise.constants),
        expected_gap=expected.index_gap,
        expected_value_error=expected.value,
        expected_how=expected.how,
        guarantee_kind=plan.kind,
        guarantee=plan.guarantee,
        cautions=plan.cautions,
        spent_epsilon="0",
        spent_delta="0",
        cap_epsilon="0",
        cap_delta="0",
    )


# --- in the child process ---------------------------------------------------------------------------------


def _spec(job: Job) -> wire.TuningSpec:
    """The tuning with a seed that depends on its id, so that no owner can choose a seed by its results in previews."""
    method = job.tuning.method
    if not isinstance(method, wire.GpUcbSimulated):
        return job.tuning
    seed = int(sha256(f"{job.tuning_id}:{method.seed}".encode())[:13], 16)
    return job.tuning.model_copy(update={"method": method.model_copy(update={"seed": seed})})


def _work(job: Job, _: Matrix | None, sender: runner.Sender[Reply]) -> Reply:
    return _plan(job) if job.charged is None else _run(job, sender.progress)


def _plan(job: Job) -> Reply:
    weights = _trained(job) if needs_weights(job.tuning) else None
    return Reply(report=report_of(_spec(job), problem_of(job.tuning, job.m, weights)))


def _run(job: Job, on_progress: Callable[[float], None]) -> Reply:
    with ExitStack() as clients:
        weights = None if job.training is None else _trained(job)
        facts = weights if needs_weights(job.tuning) else None
        plan = plan_of(_spec(job), problem_of(job.tuning, job.m, facts))
        cost = plan.draws.shares.total
        if (exact(cost.epsilon), exact(cost.delta)) != job.charged:
            raise TuningFailed("its plan costs something else than what it was charged: nothing was drawn")
        outcome = plan.run(_evaluate(job, weights, clients), on_progress)
    point = None if outcome.index is None else points(job.tuning)[outcome.index]
    result = wire.TuningResult(index=outcome.index, hyperparameters=point, value=outcome.value)
    ended = Ended(result=result, clipped=outcome.clipped, evaluations=outcome.evaluations)
    return Reply(ended=ended, tuning_id=job.tuning_id)


def _records(source: Source, score: wire.LogisticScore) -> Records:
    values = npy_files.load(source.file)
    records = np.delete(np.arange(len(values)), source.withheld)
    rows = ScaledRows(values, source.columns[:-1], score.features, records)
    return Records.of(rows, values[records, source.columns[-1]], score.threshold)


def _trained(job: Job) -> Matrix:
    """Weights (n, d) at each point of the grid, from public records alone."""
    assert isinstance(job.tuning.score, wire.LogisticScore)
    assert job.training is not None
    records = _records(job.training, job.tuning.score)
    return np.array([train(records, penalty) for penalty in job.tuning.grid[0].values])


def _evaluate(job: Job, weights: Matrix | None, clients: ExitStack) -> Evaluate:
    """The score of a point of the grid: that of each private record, or the reply of the owner's scorer."""
    score = job.tuning.score
    if isinstance(score, wire.LogisticScore):
        assert weights is not None
        assert job.validation is not None
        loss, records = loss_of(score.loss, score.clip), _records(job.validation, score)

        def of_records(index: int) -> Vector:
            return -loss(records.y * (records.x @ weights[index]))

        return of_records
    assert job.scorer is not None
    # They take a fifth of a second, which a tuning of the built-in score is spared.
    from blindopt.client import REPLY_MAX_BYTES, WebhookClient
    from curator_service.tuning.scoring.webhook import Webhook

    scorer = job.scorer
    client = clients.enter_context(
        WebhookClient(
            scorer.url,
            bytes.fromhex(scorer.key),
            timeout_s=scorer.timeout_s,
            verify=scorer.ca or True,
            reply_max_bytes=max(REPLY_MAX_BYTES, RECORD_BYTES * job.m if score.reply == "records" else 0),
        )
    )
    hook = Webhook(
        client,
        job.tuning_id,
        score.model,
        scorer.attempts,
        validation_dataset_id=job.tuning.validation_dataset_id,
        records=job.m,
        by_record=score.reply == "records",
    )
    grid = points(job.tuning)
    evaluations = 0

    def of_webhook(index: int) -> Vector | float:
        nonlocal evaluations
        evaluations += 1
        return hook.score(evaluations, grid[index])

    return of_webhook


PROGRAM = runner.Program(
    __name__,
    Job,
    Reply,
    _work,
    core=0,
    niceness=10,
    out_of_memory="memory was short: use fewer records or a smaller grid",
)
