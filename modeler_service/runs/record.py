"""The stored record of a run, and the state of its chooser derived from the record."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.client.answers import answers_of
from blindopt.errors import ProtocolViolated, StateConflict
from blindopt.formats import npy_files
from blindopt.optimizer.choosing.chooser import RowChooser, memory_needed
from blindopt.optimizer.choosing.defaults import plan_for
from modeler_service import store
from modeler_service.runs.candidates import is_stored, path_of
from service_kit.store.base import moment
from service_kit.store.database import Connection


class _Trial(Protocol):
    """A trial, as it is stored or exported."""

    @property
    def number(self) -> int: ...
    @property
    def query(self) -> int: ...
    @property
    def query_id(self) -> str | None: ...


T = TypeVar("T", bound=_Trial)


@dataclass(frozen=True, slots=True)
class _RunOfStudy:
    """Settings, study and plan of a run."""

    spec: wire.RunSpec
    study: wire.StudyView | None
    stored_plan: wire.Plan | None

    @property
    def begun(self) -> wire.StudyView:
        """The curator's view of the study. Raises StateConflict before the curator has sent it."""
        if self.study is None:
            raise StateConflict("the run has not begun: its curator has sent nothing yet")
        return self.study

    @property
    def plan(self) -> wire.Plan:
        """The plan of the run. Raises StateConflict before the curator has sent the study."""
        return self.stored_plan or plan_for(self.spec, self.begun)


def _of_row(row: Any) -> tuple[wire.RunSpec, wire.StudyView | None, wire.Plan | None]:
    study = wire.StudyView.model_validate_json(row.study) if row.study else None
    return wire.RunSpec.model_validate_json(row.spec), study, plan_of(row)


def plan_of(row: Any) -> wire.Plan | None:
    """Return the stored plan of a run; None before the first contact, and in a run from before there were plans."""
    return wire.Plan.model_validate_json(row.plan) if row.plan else None


@dataclass(frozen=True, slots=True)
class Outline(_RunOfStudy):
    """Settings and study of a run, and its number of answers and past measurements, read without reading these."""

    outcomes: int

    @classmethod
    def of(cls, db: Connection, identity: str) -> "Outline":
        """The outline of a run. Raises NotFound."""
        row = store.run(db, identity)
        return cls(*_of_row(row), store.observation_count(db, identity) + store.answered(db, identity))

    @property
    def memory(self) -> int:
        """Estimate of the bytes that the state after all outcomes needs."""
        plan = self.plan.model_copy(update={"initial_rows": 0})
        return memory_needed(plan, self.outcomes, self.begun, 0)


@dataclass(frozen=True, slots=True)
class Record(_RunOfStudy):
    """All data of a run but the candidates; ``trials`` are those that were answered or declined.

    ``last_version`` is the sequence number of the last stored answer version.
    """

    observations: list[wire.Observation]
    trials: list[Any]
    last_version: int

    @classmethod
    def of(cls, db: Connection, identity: str, *, last: int | None = None) -> "Record":
        """The record of a run, or of its ``last`` outcomes alone. Raises NotFound."""
        row, observations = store.run(db, identity), observations_of(db, identity)
        before = None if last is None else store.before_last_answers(db, identity, last)
        trials = [trial for trial in store.trial_page(db, identity, position=before) if trial.answered_at is not None]
        if last is not None:
            answered = sum(trial.y is not None for trial in trials)
            observations = observations[max(0, len(observations) + answered - last) :]
        return cls(*_of_row(row), observations, trials, store.last_version(db, identity))

    @property
    def outcomes(self) -> int:
        """The number of answers and past measurements."""
        return len(self.observations) + sum(trial.y is not None for trial in self.trials)

    @property
    def outline(self) -> Outline:
        """The outline of this record."""
        return Outline(self.spec, self.study, self.stored_plan, self.outcomes)

    def candidates(self, folder: Path) -> Matrix:
        """Map the candidates as they were fetched and checked. Raises StateConflict if they are not stored."""
        path = path_of(folder, self.begun.release_sha256)
        if not is_stored(path, self.begun.release_sha256, self.begun.parts):
            raise StateConflict("the candidates are not here: they are fetched when a run on the study works")
        return npy_files.load(path)

    def replayed(self, candidates: Matrix) -> RowChooser:
        """Return a chooser that was shown all answers in their last version, for its estimates and not its choices."""
        past = self.observations
        chooser = RowChooser(self.spec, self.begun, candidates, past, plan=self.plan, outcomes=self.outcomes)
        for trial in self.trials:
            if trial.y is None:
                chooser.decline(trial.row)
            else:
                chooser.observe(trial.row, trial.y, wire.NoisePassport.model_validate_json(trial.passport))
        return chooser


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the answer to a query that people answer; choices after trial ``after`` depend on it.

    Version 0 says that the query is pending. ``reply`` is None in a record that has no replies.
    """

    first: int
    version: int
    after: int
    at: datetime
    answers: list[wire.Answer | None] | None
    """The answer of each trial, None for a declined one; None as a whole if the reply is not about the query."""
    reply: bytes | None

    @property
    def view(self) -> list[wire.AnswerVersion]:
        """The version on the wire, trial by trial; empty for a pending query."""
        return [
            wire.AnswerVersion(
                number=number,
                version=self.version,
                after=self.after,
                at=self.at,
                y=answer.y if answer else None,
                plays=answer.plays if answer else None,
                passport=answer.passport if answer else None,
            )
            for number, answer in enumerate(self.answers or [], start=self.first)
        ]


def versions_of(db: Connection, identity: str) -> list[Version]:
    """Return all answer versions of a run, in the order of their arrival."""
    queries = queries_of(store.trial_page(db, identity))
    versions = []
    for row in store.version_page(db, identity):
        rows = [trial.row for trial in queries.get(row.query, [])]
        answers = answers_in(row.reply, rows, row.version) if row.version else []
        versions.append(Version(row.query, row.version, row.after, moment(row.at), answers, row.reply))
    return versions


def queries_of(trials: Iterable[T]) -> dict[int, list[T]]:
    """Group the trials of a run by query, each by the number of its first trial.

    A query asks all candidates that were chosen together, or where people measure each of them alone. So does one of a
    candidate that a cap refused.
    """
    queries: dict[int, list[T]] = {}
    last, first = None, 0
    for trial in trials:
        of = trial.query, trial.number if is_refused(trial) else trial.query_id
        first = first if of == last else trial.number
        queries.setdefault(first, []).append(trial)
        last = of
    return queries


def is_refused(trial: Any) -> bool:
    """Whether a cap allowed no answer about the row of a trial: it is declined without a version."""
    return bool(trial.declined) and trial.version is None and trial.y is None


def answers_in(reply: bytes, rows: list[int], version: int) -> list[wire.Answer | None] | None:
    """Return the answer to each row in a stored reply; None as a whole if the reply was changed."""
    try:
        parsed = wire.QueryReply.model_validate_json(reply)
        return answers_of(parsed, rows) if parsed.version == version else None
    except (ValueError, ProtocolViolated):
        return None


def observations_of(db: Connection, identity: str) -> list[wire.Observation]:
    """Return the past measurements that a run begins with, in order."""
    return [
        wire.Observation(
            row=row.row,
            y=row.y,
            noise_variance=row.noise_variance,
            passport=wire.NoisePassport.model_validate_json(row.passport) if row.passport else None,
        )
        for row in store.observation_page(db, identity)
    ]


def answer_as_observation(trial: Any) -> wire.Observation:
    """Return the answer of a trial as a past measurement of another run of its study."""
    passport = wire.NoisePassport.model_validate_json(trial.passport) if trial.passport else None
    return wire.Observation(row=trial.row, y=trial.y, passport=passport)


def answer_in(trial: Any) -> wire.Answer | None:
    """Return the stored answer of a trial; None if it was declined."""
    if trial.y is None:
        return None
    passport = wire.NoisePassport.model_validate_json(trial.passport)
    return wire.Answer(row=trial.row, play=1, plays=trial.plays, y=trial.y, passport=passport)
