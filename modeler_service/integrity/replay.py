"""Derives every choice of a run again from its record, and names the first that differs. Changes nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from math import isclose
from pathlib import Path
from typing import get_args

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import Json, sha256
from blindopt.audit.verification import Records, Verification
from blindopt.client import query_body
from blindopt.client.downloads import pieces_of
from blindopt.errors import BlindoptError, LogBroken, NotFound, StateConflict
from blindopt.formats import release_files
from blindopt.optimizer.choosing.chooser import EndReason, Proposal, RowChooser
from blindopt.optimizer.choosing.defaults import plan_of_run
from modeler_service import store
from modeler_service.integrity.log_checks import Exchanges, Stored, ends_of, faults
from modeler_service.runs.candidates import open_candidates
from modeler_service.runs.query_keys import query_of
from modeler_service.runs.record import (
    Version,
    answers_in,
    is_refused,
    observations_of,
    plan_of,
    queries_of,
    versions_of,
)
from modeler_service.runs.trial_views import trial_view
from service_kit.store.database import Connection

_NEAR = 1e-7
"""Relative tolerance of a mean, an sd or a bound: another machine adds in another order. Rows must be equal."""


class _Difference(Exception):
    """A difference between record, log and derivation."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of a run. ``versions`` holds the answers of each query, in the order of arrival.

    ``plan`` is None in a record from before there were plans: all settings were then given. An export has no digests of
    settings and plan.
    """

    run_id: str
    spec: wire.RunSpec
    study: wire.StudyView
    observations: Sequence[wire.Observation]
    trials: Sequence[wire.TrialView]
    versions: Sequence[Version]
    ended_because: str | None
    plan: wire.Plan | None
    spec_sha256: str | None = None
    plan_sha256: str | None = None


@dataclass(slots=True)
class RunInLog(Exchanges):
    """What the log records of a run: digests of its requests and replies, settings, plan and candidates."""

    spec_sha256: str | None = None
    plan_sha256: str | None = None
    candidates: dict[str, set[str]] = field(default_factory=dict)
    """By path, the digests under which candidates, or a part of them, were fetched."""


def read_stored(db: Connection, run_id: str) -> Recorded:
    """Read the record of a run from the database. Raises NotFound, and StateConflict if the run chose no row."""
    row, trials = store.run(db, run_id), store.trial_page(db, run_id)
    if row.study is None or not trials:
        raise StateConflict(f"{run_id} has chosen nothing")
    views = [trial_view(trial) for trial in trials]
    replies = {trial.number: trial.reply or b"" for trial in trials}
    return Recorded(
        run_id,
        wire.RunSpec.model_validate_json(row.spec),
        wire.StudyView.model_validate_json(row.study),
        observations_of(db, run_id),
        views,
        _every_version(versions_of(db, run_id), views, replies),
        row.ended_because,
        plan_of(row),
        sha256(row.spec.encode()),
        sha256(row.plan.encode()) if row.plan else None,
    )


def read_export(path: Path) -> Recorded:
    """Read the record of a run from its export in JSON. Raises StateConflict for any other file."""
    try:
        export = wire.RunExport.model_validate_json(path.read_bytes())
        run = export.run
        spec = wire.RunSpec(**{name: getattr(run, name) for name in wire.RunSpec.model_fields if hasattr(run, name)})
    except ValueError:
        raise StateConflict(f"{path} is no export of a run in JSON") from None
    if run.study is None or not export.trials:
        raise StateConflict(f"{run.id} has chosen nothing")
    versions = _every_version(_exported_versions(export), export.trials, {})
    return Recorded(run.id, spec, run.study, export.observations, export.trials, versions, run.ended_because, run.plan)


def _exported_versions(export: wire.RunExport) -> Iterator[Version]:
    """Yield the versions of an export, which has them trial by trial."""
    trials = {trial.number: (first, trial.row) for first, query in queries_of(export.trials).items() for trial in query}
    numbered = [(*trials.get(item.number, (item.number, 0)), item) for item in export.versions]
    for (first, version), items in groupby(numbered, lambda entry: (entry[0], entry[2].version)):
        answers = [(_answer(item, row), item) for _, row, item in items]
        _, item = answers[0]
        yield Version(first, version, item.after, item.at, [answer for answer, _ in answers], reply=None)


def _every_version(
    versions: Iterable[Version], trials: Sequence[wire.TrialView], replies: Mapping[int, bytes]
) -> list[Version]:
    """Add the answers of the queries that were answered at once, which are stored with their trials alone."""
    complete, ends = list(versions), ends_of(trials)
    with_versions = {version.first for version in complete}
    for first, query in queries_of(trials).items():
        if first in with_versions or not any(map(_is_settled, query)):
            continue
        number, rows = query[0].version or 1, [trial.row for trial in query]
        reply = None if is_refused(query[0]) else replies.get(first)
        answers = [_answer(trial, trial.row) for trial in query] if reply is None else answers_in(reply, rows, number)
        complete.append(Version(first, number, ends[first], query[0].chosen_at, answers, reply))
    return complete


def _is_settled(trial: wire.TrialView) -> bool:
    return trial.y is not None or trial.declined


def _answer(item: wire.TrialView | wire.AnswerVersion, row: int) -> wire.Answer | None:
    if item.y is None or item.plays is None or item.passport is None:
        return None
    return wire.Answer(row=row, play=1, plays=item.plays, y=item.y, passport=item.passport)


def verified_summary(log: Records, run: Recorded, run_id: str) -> RunInLog:
    """Verify the modeler's logs, and summarize what concerns a run. Raises LogBroken, StateConflict for another run."""
    if run.run_id != run_id:
        raise StateConflict(f"the export is of {run.run_id}, not of {run_id}")
    logged = RunInLog()
    for record in Verification(log).records():
        _follow(logged, record, run)
    if log.service != "blindopt-modeler":
        raise LogBroken(f"the log is of {log.service}, not of the modeler")
    return logged


def _follow(logged: RunInLog, record: Json, run: Recorded) -> None:
    if record["kind"] == "run.created" and record["details"]["run_id"] == run.run_id:
        logged.spec_sha256 = record["details"].get("spec_sha256")
    if record["kind"] == "run.planned" and record["details"]["run_id"] == run.run_id:
        logged.plan_sha256 = record["details"]["plan_sha256"]
    if exchange := record.get("exchange"):
        logged.add(record, run.run_id)
        if exchange["path"].startswith(_path(run)) and exchange["status"] in (200, 206):
            logged.candidates.setdefault(exchange["path"], set()).add(exchange["reply_sha256"])


def _path(run: Recorded) -> str:
    return f"/v1/studies/{run.spec.study_id}/candidates"


def candidates_of(run: Recorded, path: Path) -> Matrix:
    """Map the candidates of a run, after a check of their digest. Raises NotFound and StateConflict."""
    if not path.exists():
        raise NotFound(
            f"the candidates are not there: {path.name} is missing. Have them fetched again (by a run of "
            f"{run.spec.study_id}), or put the file back from a copy: its SHA-256 is its name"
        )
    if release_files.digest(path, run.study.parts) != run.study.release_sha256:
        raise StateConflict(f"{path} does not hold the candidates of the run: its SHA-256 is another")
    return open_candidates(path, run.study)


def replay(run: Recorded, logged: RunInLog, candidates: Matrix) -> str | None:
    """Return the first difference between the record, the log and the choices derived again; None without any."""
    try:
        _compare_settings(run, logged)
        _compare_choices(run, logged, candidates)
    except _Difference as difference:
        return str(difference)
    return None


def _compare_settings(run: Recorded, logged: RunInLog) -> None:
    if None not in (logged.spec_sha256, run.spec_sha256) and logged.spec_sha256 != run.spec_sha256:
        raise _Difference("the run's settings are not those that the log records it was created with")
    if run.spec_sha256 is not None and logged.plan_sha256 != run.plan_sha256:
        raise _Difference("the run's plan is not the one that the log records")
    for piece in pieces_of(_path(run), run.study.release_sha256, run.study.parts, 0):
        if piece.section.sha256 not in logged.candidates.get(piece.path, [piece.section.sha256]):
            raise _Difference("the log records that other candidates were fetched than those of the record")


def _compare_choices(run: Recorded, logged: RunInLog, candidates: Matrix) -> None:
    """Choose each query again after the answers that were known then, and compare it with the record and the log."""
    history, ends = _History(run, candidates), ends_of(run.trials)
    versions: dict[int, list[Version]] = {}
    for version in run.versions:
        versions.setdefault(version.first, []).append(version)
    for first, chosen_together in groupby(run.trials, lambda trial: trial.query):
        trials = list(chosen_together)
        _against_choices(trials, history.chooser_before(first), logged)
        for number, query in queries_of(trials).items():
            _against_log(query, versions.get(number, []), logged, ends)
        if trials[-1] is not run.trials[-1] and not all(map(_is_settled, trials)):
            raise _Difference(f"trial {first}: has no answer, and others come after it")
    _against_end(run, logged, history.chooser_before(len(run.trials) + 1))


class _History:
    """A chooser that was shown the answers as they were known before a choice: after a correction, another one."""

    def __init__(self, run: Recorded, candidates: Matrix) -> None:
        self._run, self._candidates = run, candidates
        self._versions = [version for version in run.versions if version.version]
        self._answers: dict[int, wire.Answer | None] = {}
        self._chooser = self._build_chooser()

    def _build_chooser(self) -> RowChooser:
        run = self._run
        plan = run.plan or plan_of_run(run.spec, run.study, run.observations, had_none=True)
        return RowChooser(run.spec, run.study, self._candidates, run.observations, plan=plan)

    def chooser_before(self, number: int) -> RowChooser:
        """Return the chooser that chose trial ``number``, to be used before the next call."""
        arrived = [version for version in self._versions if version.after < number]
        self._versions = [version for version in self._versions if version.after >= number]
        for version in arrived:
            self._answers |= enumerate(version.answers or [], start=version.first)
            if version.first <= self._chooser.seen:  # it corrects what the chooser was shown
                self._chooser = self._build_chooser()
        while (following := self._chooser.seen + 1) in self._answers:
            row, answer = self._run.trials[following - 1].row, self._answers[following]
            try:
                if answer is None:
                    self._chooser.decline(row)
                else:
                    self._chooser.observe(row, answer.y, answer.passport)
            except (BlindoptError, ValueError, IndexError) as error:
                raise _Difference(f"trial {following}: its answer cannot be taken into account: {error}") from None
        return self._chooser


def _against_choices(trials: list[wire.TrialView], chooser: RowChooser, logged: Exchanges) -> None:
    """Compare the trials of one query with the rows that are derived for it."""
    first, proposals = chooser.seen + 1, chooser.next()
    for number, trial in enumerate(trials, start=first):
        if trial.number != number:
            raise _Difference(f"trial {number}: missing: the record goes on with trial {trial.number}")
    if (fitted := trials[0].fitted) is not None and _values(fitted) != _values(chooser.fitted):
        raise _Difference(f"trial {first}: recorded hyper-parameters are not those that are fitted again")
    for number, (recorded, derived) in enumerate(zip_longest(trials, proposals), start=first):
        if recorded is None:
            raise _Difference(f"trial {number}: recorded nothing, derived row {derived.row} in the same query")
        if derived is None:
            why = "" if proposals else f" ({chooser.ended_because})"
            raise _Difference(f"trial {number}: recorded row {recorded.row}, derived an end before it{why}")
        if recorded.row != derived.row:
            what = f"recorded row {recorded.row} ({recorded.phase}), derived row {derived.row} ({derived.phase})"
            if (sent := logged.sent.get(first)) is not None:
                names = {_digest(trials): f"row {recorded.row}", _digest(proposals): f"row {derived.row}"}
                what += f"; the log records that {names.get(sent.request_sha256, 'neither')} was queried"
            raise _Difference(f"trial {number}: {what}")
        for name in ("phase", "ties", "mean", "sd", "acquisition"):
            value, again = getattr(recorded, name), getattr(derived, name)
            if not _is_same(value, again):
                raise _Difference(f"trial {number}: recorded {name} {value} of row {recorded.row}, derived {again}")


def _values(fitted: wire.Fitted | None) -> Json | None:
    """The values that choices depend on: they are rounded, and so the same on every machine."""
    return None if fitted is None else fitted.model_dump(exclude={"log_likelihood", "check"})


def _is_same(recorded: object, derived: object) -> bool:
    if isinstance(recorded, float) and isinstance(derived, float):
        return isclose(recorded, derived, rel_tol=_NEAR, abs_tol=1e-9)
    return recorded == derived


def _digest(choices: Iterable[wire.TrialView | Proposal]) -> str:
    return sha256(query_body(query_of([choice.row for choice in choices])))


def _against_log(
    trials: list[wire.TrialView], versions: list[Version], logged: Exchanges, ends: Mapping[int, int]
) -> None:
    """Compare rows and answers of a query with their digests in the log."""
    first, sent = trials[0].number, logged.sent.get(trials[0].number)
    if sent is None:
        is_refused = logged.refused.get(first) == _digest(trials)
        if any(map(_is_settled, trials)) and not is_refused:
            raise _Difference(f"trial {first}: the record has an answer that the log does not record")
        if any(trial.y is not None for trial in trials):
            raise _Difference(f"trial {first}: the record has an answer to a query that the log records as refused")
        return
    if sent.request_sha256 != _digest(trials):
        raise _Difference(f"trial {first}: recorded and derived row {trials[0].row}, but the log records another query")
    for fault in faults(first, trials[0].query_id, [_stored(trial) for trial in trials], versions, logged, ends):
        raise _Difference(f"trial {first}: {fault}")


def _stored(trial: wire.TrialView) -> Stored:
    passport = None if trial.passport is None else trial.passport.model_dump_json()
    return trial.y, trial.plays, passport, trial.declined, trial.version


def _against_end(run: Recorded, logged: Exchanges, chooser: RowChooser) -> None:
    last = len(run.trials)
    if later := [number for number in logged.sent if number > last]:
        raise _Difference(f"trial {min(later)}: the log records an answer, the record has no such trial")
    if run.ended_because in get_args(EndReason):
        if further := chooser.next():
            row = further[0].row
            raise _Difference(f"trial {last + 1}: recorded the run's end ({run.ended_because}), derived row {row}")
        if chooser.ended_because != run.ended_because:
            raise _Difference(f"recorded that the run ended by {run.ended_because}, derived by {chooser.ended_because}")
