"""The stored record of a run, and the state of its chooser derived from the record."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from blindopt import bodies, wire
from blindopt.arrays import Matrix
from blindopt.client.study_client import answers_of
from blindopt.errors import Invalid, ProtocolViolated, StateConflict
from blindopt.formats import npy_files
from blindopt.optimizer.chooser import RowChooser, memory_needed
from blindopt.optimizer.defaults import plan_for
from modeler_service import store
from modeler_service.runs.candidates import is_stored, path_of
from modeler_service.store import TrialRow
from service_kit.store.base import moment
from service_kit.store.database import Connection


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
        return self.stored_plan or plan_for(self.spec, self.begun, engine=1)


@dataclass(frozen=True, slots=True)
class Outline(_RunOfStudy):
    """Settings and study of a run, and its number of answers and past measurements, read without reading these."""

    outcomes: int

    @classmethod
    def of(cls, db: Connection, run_id: str) -> "Outline":
        """The outline of a run. Raises NotFound."""
        run = store.find_run(db, run_id)
        outcomes = store.observation_count(db, run_id) + store.answered(db, run_id)
        return cls(run.settings, run.study_view, run.stored_plan, outcomes)

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
    trials: list[TrialRow]
    last_version: int

    @classmethod
    def of(cls, db: Connection, run_id: str, *, last: int | None = None) -> "Record":
        """The record of a run, or of its ``last`` outcomes alone. Raises NotFound."""
        run, observations = store.find_run(db, run_id), store.observations_of(db, run_id)
        before = None if last is None else store.before_last_answers(db, run_id, last)
        trials = [trial for trial in store.trial_page(db, run_id, position=before) if trial.answered_at is not None]
        if last is not None:
            answered = sum(trial.y is not None for trial in trials)
            observations = observations[max(0, len(observations) + answered - last) :]
        last_version = store.last_version(db, run_id)
        return cls(run.settings, run.study_view, run.stored_plan, observations, trials, last_version)

    @property
    def outcomes(self) -> int:
        return len(self.observations) + sum(trial.y is not None for trial in self.trials)

    @property
    def outline(self) -> Outline:
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
            chooser.show(trial.row, trial.answer)
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


def versions_of(db: Connection, run_id: str) -> list[Version]:
    queries = queries_of(store.trial_page(db, run_id))
    versions = []
    for row in store.version_page(db, run_id):
        rows = [trial.row for trial in queries.get(row.query, [])]
        answers = answers_in(row.reply, rows, row.version) if row.version else []
        versions.append(Version(row.query, row.version, row.after, moment(row.at), answers, row.reply))
    return versions


def every_version(
    versions: Iterable[Version], trials: Iterable[TrialRow], *, has_replies: bool = True
) -> dict[int, list[Version]]:
    """Return the versions by query, with the answers of queries that were answered at once: these have no others.

    Without replies, as in an export, such an answer is what its trials say.
    """
    complete: dict[int, list[Version]] = {}
    for version in versions:
        complete.setdefault(version.first, []).append(version)
    trials = list(trials)
    ends = {trial.query: trial.number for trial in trials}
    for first, query in queries_of(trials).items():
        if first in complete or not any(trial.is_settled for trial in query):
            continue
        number, rows = query[0].version or 1, [trial.row for trial in query]
        reply = (query[0].reply or b"") if has_replies and not query[0].is_refused else None
        answers = [trial.answer for trial in query] if reply is None else answers_in(reply, rows, number)
        at = moment(query[0].answered_at or query[0].chosen_at)
        complete[first] = [Version(first, number, ends[query[0].query], at, answers, reply)]
    return complete


def queries_of(trials: Iterable[TrialRow]) -> dict[int, list[TrialRow]]:
    """Group the trials of a run by query, each by the number of its first trial.

    A query asks all candidates that were chosen together, or where people measure each of them alone. So does one of a
    candidate that a cap refused.
    """
    queries: dict[int, list[TrialRow]] = {}
    last, first = None, 0
    for trial in trials:
        key = trial.query, trial.number if trial.is_refused else trial.query_id
        first = first if key == last else trial.number
        queries.setdefault(first, []).append(trial)
        last = key
    return queries


def answers_in(reply: bytes, rows: list[int], version: int) -> list[wire.Answer | None] | None:
    """Return the answer to each row in a stored reply; None as a whole if the reply was changed."""
    try:
        parsed: wire.QueryReply = bodies.parse(reply, wire.QueryReply)
        return answers_of(parsed, rows) if parsed.version == version else None
    except (Invalid, ProtocolViolated):
        return None
