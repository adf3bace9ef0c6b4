"""Derives every choice of a run again from its record, and names the first that differs. Changes nothing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, zip_longest
from math import isclose
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from blindopt import bodies, wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import Json, sha256
from blindopt.audit.verification import Records, Verification
from blindopt.client import query_body
from blindopt.client.downloads import pieces_of
from blindopt.errors import BlindoptError, Invalid, LogBroken, NotFound, StateConflict
from blindopt.formats import release_files
from blindopt.formats.text_files import read_text_file
from blindopt.optimizer.chooser import EndReason, Proposal, RowChooser
from blindopt.optimizer.defaults import plan_of_run
from modeler_service import store
from modeler_service.integrity.log_checks import RunInLog, ends_of, query_faults, run_of
from modeler_service.runs.candidates import open_candidates
from modeler_service.runs.query_keys import query_of
from modeler_service.runs.record import Version, every_version, queries_of, versions_of
from modeler_service.store import TrialRow
from service_kit.store.base import stamp
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
    trials: Sequence[TrialRow]
    versions: Mapping[int, Sequence[Version]]
    ended_because: str | None
    plan: wire.Plan | None
    spec_sha256: str | None = None
    plan_sha256: str | None = None


@dataclass(slots=True)
class Logged:
    """What the log records of a run, and by path under which digests candidates, or parts of them, were fetched."""

    run: RunInLog = field(default_factory=RunInLog)
    candidates: dict[str, set[str]] = field(default_factory=dict)


def read_stored(db: Connection, run_id: str) -> Recorded:
    """Read the record of a run from the database. Raises NotFound, and StateConflict if the run chose no row."""
    run, trials = store.find_run(db, run_id), store.trial_page(db, run_id)
    if run.study_view is None or not trials:
        raise StateConflict(f"{run_id} has chosen nothing")
    return Recorded(
        run_id,
        run.settings,
        run.study_view,
        store.observations_of(db, run_id),
        trials,
        every_version(versions_of(db, run_id), trials),
        run.ended_because,
        run.stored_plan,
        sha256(run.spec.encode()),
        sha256(run.plan.encode()) if run.plan else None,
    )


def read_export(path: Path) -> Recorded:
    """Read the record of a run from its export in JSON. Raises Invalid for any other file."""
    try:
        export: wire.RunExport = bodies.parse(read_text_file(path).encode(), wire.RunExport)
        run = export.run
        spec = wire.RunSpec(**{name: getattr(run, name) for name in wire.RunSpec.model_fields if hasattr(run, name)})
        trials = [_row_of(run.id, trial) for trial in export.trials]
        versions = every_version(_exported_versions(export, trials), trials, has_replies=False)
    except (Invalid, ValueError):
        raise Invalid(f"{path} is no export of a run in JSON") from None
    if run.study is None or not trials:
        raise StateConflict(f"{run.id} has chosen nothing")
    return Recorded(run.id, spec, run.study, export.observations, trials, versions, run.ended_because, run.plan)


def _row_of(run_id: str, trial: wire.TrialView) -> TrialRow:
    """Return an exported trial as it was stored, but for its times and its reply."""
    values = {name: getattr(trial, name) for name in wire.TrialView.model_fields}
    values |= {name: value.model_dump_json() for name, value in values.items() if isinstance(value, BaseModel)}
    values |= {name: stamp(value) for name, value in values.items() if isinstance(value, datetime)}
    return TrialRow(run_id=run_id, **values)


def _exported_versions(export: wire.RunExport, trials: list[TrialRow]) -> Iterator[Version]:
    queries = {trial.number: (first, trial.row) for first, query in queries_of(trials).items() for trial in query}
    numbered = [(*queries.get(item.number, (item.number, 0)), item) for item in export.versions]
    for (first, version), items in groupby(numbered, lambda entry: (entry[0], entry[2].version)):
        answers = [(_answer(item, row), item) for _, row, item in items]
        _, item = answers[0]
        yield Version(first, version, item.after, item.at, [answer for answer, _ in answers], reply=None)


def _answer(item: wire.AnswerVersion, row: int) -> wire.Answer | None:
    if item.y is None or item.plays is None or item.passport is None:
        return None
    return wire.Answer(row=row, play=1, plays=item.plays, y=item.y, passport=item.passport)


def verified_summary(log: Records, run: Recorded, run_id: str) -> Logged:
    """Verify the modeler's logs, and summarize what concerns a run. Raises LogBroken, StateConflict for another run."""
    if run.run_id != run_id:
        raise StateConflict(f"the export is of {run.run_id}, not of {run_id}")
    logged = Logged()
    for record in Verification(log).records():
        if run_of(record) == run_id:
            logged.run.follow(record)
        exchange = record.get("exchange")
        if exchange and exchange["path"].startswith(_path(run)) and exchange["status"] in (200, 206):
            logged.candidates.setdefault(exchange["path"], set()).add(exchange["reply_sha256"])
    if log.service != "blindopt-modeler":
        raise LogBroken(f"the log is of {log.service}, not of the modeler")
    return logged


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


def replay(run: Recorded, logged: Logged, candidates: Matrix) -> str | None:
    """Return the first difference between the record, the log and the choices derived again; None without any."""
    try:
        _compare_settings(run, logged)
        _compare_choices(run, logged, candidates)
    except _Difference as difference:
        return str(difference)
    return None


def _compare_settings(run: Recorded, logged: Logged) -> None:
    if None not in (logged.run.spec_sha256, run.spec_sha256) and logged.run.spec_sha256 != run.spec_sha256:
        raise _Difference("the run's settings are not those that the log records it was created with")
    if run.spec_sha256 is not None and logged.run.plan_sha256 != run.plan_sha256:
        raise _Difference("the run's plan is not the one that the log records")
    for piece in pieces_of(_path(run), run.study.release_sha256, run.study.parts, 0):
        if piece.section.sha256 not in logged.candidates.get(piece.path, [piece.section.sha256]):
            raise _Difference("the log records that other candidates were fetched than those of the record")


def _compare_choices(run: Recorded, logged: Logged, candidates: Matrix) -> None:
    """Choose each query again after the answers that were known then, and compare it with the record and the log."""
    history, ends = _History(run, candidates), ends_of(run.trials)
    for first, chosen_together in groupby(run.trials, lambda trial: trial.query):
        trials = list(chosen_together)
        _against_choices(trials, history.chooser_before(first), logged.run)
        for number, query in queries_of(trials).items():
            _against_log(query, run.versions.get(number, []), logged.run, ends)
        if trials[-1] is not run.trials[-1] and not all(trial.is_settled for trial in trials):
            raise _Difference(f"trial {first}: has no answer, and others come after it")
    _against_end(run, logged.run, history.chooser_before(len(run.trials) + 1))


class _History:
    """A chooser that was shown the answers as they were known before a choice: after a correction, another one."""

    def __init__(self, run: Recorded, candidates: Matrix) -> None:
        self._run, self._candidates = run, candidates
        self._versions = [version for versions in run.versions.values() for version in versions if version.version]
        self._answers: dict[int, wire.Answer | None] = {}
        self._chooser = self._build_chooser()

    def _build_chooser(self) -> RowChooser:
        run = self._run
        plan = run.plan or plan_of_run(run.spec, run.study, run.observations, engine=1)
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
                self._chooser.show(row, answer)
            except (BlindoptError, ValueError, IndexError) as error:
                raise _Difference(f"trial {following}: its answer cannot be taken into account: {error}") from None
        return self._chooser


def _against_choices(trials: list[TrialRow], chooser: RowChooser, logged: RunInLog) -> None:
    """Compare the trials of one query with the rows that are derived for it."""
    first, proposals = chooser.seen + 1, chooser.next()
    for number, trial in enumerate(trials, start=first):
        if trial.number != number:
            raise _Difference(f"trial {number}: missing: the record goes on with trial {trial.number}")
    if (fitted := trials[0].fitted) and _values(wire.Fitted.model_validate_json(fitted)) != _values(chooser.fitted):
        raise _Difference(f"trial {first}: recorded hyper-parameters are not those that are fitted again")
    for number, (recorded, derived) in enumerate(zip_longest(trials, proposals), start=first):
        if recorded is None:
            raise _Difference(f"trial {number}: recorded nothing, derived row {derived.row} in the same query")
        if derived is None:
            why = "" if proposals else f" ({chooser.ended_because})"
            raise _Difference(f"trial {number}: recorded row {recorded.row}, derived an end before it{why}")
        if recorded.row != derived.row:
            detail = f"recorded row {recorded.row} ({recorded.phase}), derived row {derived.row} ({derived.phase})"
            if (sent := logged.sent(first)) is not None:
                names = {_digest(trials): f"row {recorded.row}", _digest(proposals): f"row {derived.row}"}
                detail += f"; the log records that {names.get(sent.request_sha256, 'neither')} was queried"
            raise _Difference(f"trial {number}: {detail}")
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


def _digest(choices: Iterable[TrialRow | Proposal]) -> str:
    return sha256(query_body(query_of(choices)))


def _against_log(
    trials: Sequence[TrialRow], versions: Sequence[Version], logged: RunInLog, ends: Mapping[int, int]
) -> None:
    """Compare rows and answers of a query with their digests in the log."""
    for fault in query_faults(trials, versions, logged, ends):
        raise _Difference(f"trial {trials[0].number}: {fault}")


def _against_end(run: Recorded, logged: RunInLog, chooser: RowChooser) -> None:
    last = len(run.trials)
    if later := [number for number in logged.numbers() if number > last]:
        raise _Difference(f"trial {min(later)}: the log records an answer, the record has no such trial")
    if run.ended_because in get_args(EndReason):
        if further := chooser.next():
            row = further[0].row
            raise _Difference(f"trial {last + 1}: recorded the run's end ({run.ended_because}), derived row {row}")
        if chooser.ended_because != run.ended_because:
            raise _Difference(f"recorded that the run ended by {run.ended_because}, derived by {chooser.ended_because}")
