"""Derives every choice of a run again from its record, and finds the first that differs. Changes nothing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from math import isclose
from pathlib import Path

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import Json, sha256
from blindopt.audit.verification import Records, Verification
from blindopt.client import query_body
from blindopt.client.downloads import pieces_of
from blindopt.errors import BlindoptError, LogBroken, NotFound, StateConflict
from blindopt.formats import release_files
from blindopt.optimizer.choosing.chooser import RowChooser
from blindopt.optimizer.choosing.defaults import plan_of_run
from modeler_service import store
from modeler_service.integrity import answer_history_check
from modeler_service.integrity.answer_history_check import Exchanges, Sent
from modeler_service.runs.candidates import open_candidates
from modeler_service.runs.query_keys import query_of
from modeler_service.runs.record import Version, observations_of, plan_of, queries_of, versions_of
from modeler_service.runs.trial_views import trial_view
from service_kit.store.database import Connection

_NEAR = 1e-7
"""Relative tolerance of a mean, an sd or a bound: another machine adds in another order. Rows must be equal."""

_OTHER = "but the log records another query"


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of a run. ``replies`` holds its curator's replies by the first trial of each query.

    ``plan`` is None in a record from before there were plans: all settings were then given. An
    export has no replies, and no digests of settings and plan: they are then None.
    """

    identity: str
    spec: wire.RunSpec
    study: wire.StudyView
    observations: Sequence[wire.Observation]
    trials: Sequence[wire.TrialView]
    versions: Sequence[Version]
    ended_because: str | None
    plan: wire.Plan | None = None
    spec_sha256: str | None = None
    plan_sha256: str | None = None
    replies: dict[int, bytes] | None = None


@dataclass(frozen=True, slots=True)
class RunLogSummary:
    """What the log records of a run: digests of its requests and replies, settings and candidates."""

    exchanges: Exchanges
    spec_sha256: str | None
    candidates: dict[str, set[str]]
    """By path, the digests under which candidates, or a part of them, were fetched."""
    plan_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between record, log and derivation; ``trial`` is None if it concerns the whole run."""

    trial: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.trial is None else f"trial {self.trial}: {self.what}"


def read_stored(db: Connection, identity: str) -> Recorded:
    """Read the record of a run from the database. Raises NotFound, and StateConflict if the run chose no row."""
    row, trials = store.run(db, identity), store.trial_page(db, identity)
    if row.study is None or not trials:
        raise StateConflict(f"{identity} has chosen nothing")
    return Recorded(
        identity,
        wire.RunSpec.model_validate_json(row.spec),
        wire.StudyView.model_validate_json(row.study),
        observations_of(db, identity),
        [trial_view(trial) for trial in trials],
        versions_of(db, identity),
        row.ended_because,
        plan_of(row),
        sha256(row.spec.encode()),
        sha256(row.plan.encode()) if row.plan else None,
        {trial.number: trial.reply for trial in trials if trial.reply is not None},
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
    return Recorded(
        run.id, spec, run.study, export.observations, export.trials, _versions(export), run.ended_because, run.plan
    )


def _versions(export: wire.RunExport) -> list[Version]:
    """Return the answer versions of an export, which has them trial by trial, in the order of arrival."""
    queries = queries_of(export.trials)
    rows = {trial.number: (first, trial.row) for first, trials in queries.items() for trial in trials}
    versions: dict[tuple[int, int], Version] = {}
    for item in export.versions:
        first, row = rows.get(item.number, (item.number, 0))
        version = versions.setdefault(
            (first, item.version), Version(first, item.version, item.after, item.at, [], reply=None)
        )
        assert version.answers is not None
        version.answers.append(_answer(item, row))
    return list(versions.values())


def verified_summary(log: Records, run: Recorded, identity: str) -> RunLogSummary:
    """Verify the modeler's logs, and summarize what concerns a run. Raises LogBroken, StateConflict for another run."""
    if run.identity != identity:
        raise StateConflict(f"the export is of {run.identity}, not of {identity}")
    summary = _summarize(Verification(log).records(), run)
    if log.service != "blindopt-modeler":
        raise LogBroken(f"the log is of {log.service}, not of the modeler")
    return summary


def _summarize(records: Iterable[Json], run: Recorded) -> RunLogSummary:
    exchanges = Exchanges()
    spec_sha256, plan_sha256 = None, None
    candidates: dict[str, set[str]] = {}
    for record in records:
        if record["kind"] == "run.created" and record["details"]["run_id"] == run.identity:
            spec_sha256 = record["details"].get("spec_sha256")
        if record["kind"] == "run.planned" and record["details"]["run_id"] == run.identity:
            plan_sha256 = record["details"]["plan_sha256"]
        if not (exchange := record.get("exchange")):
            continue
        exchanges.add(record, run.identity)
        if exchange["path"].startswith(_path(run)) and exchange["status"] in (200, 206):
            candidates.setdefault(exchange["path"], set()).add(exchange["reply_sha256"])
    return RunLogSummary(exchanges, spec_sha256, candidates, plan_sha256)


def candidates_of(run: Recorded, path: Path) -> Matrix:
    """Map the candidates of a run, after a check of their digest. Raises NotFound and StateConflict."""
    if not path.exists():
        raise NotFound(
            f"the candidates are not there: {path.name} is missing. Have them fetched again (by a request for "
            f"a run of {run.spec.study_id}), or put the file back from a copy: its SHA-256 is "
            "its name"
        )
    if release_files.digest(path, run.study.parts) != run.study.release_sha256:
        raise StateConflict(f"{path} does not hold the candidates of the run: its SHA-256 is another")
    return open_candidates(path, run.study)


def replay(run: Recorded, summary: RunLogSummary, candidates: Matrix) -> Difference | None:
    """Return the first difference between the record, the log and the choices derived again; None without any."""
    return next(_differences(run, summary, candidates), None)


def _differences(run: Recorded, summary: RunLogSummary, candidates: Matrix) -> Iterator[Difference]:
    if None not in (summary.spec_sha256, run.spec_sha256) and summary.spec_sha256 != run.spec_sha256:
        yield Difference(None, "the run's settings are not those that the log records it was created with")
    if run.spec_sha256 is not None and summary.plan_sha256 != run.plan_sha256:
        yield Difference(None, "the run's plan is not the one that the log records")
    pieces = pieces_of(_path(run), run.study.release_sha256, run.study.parts, 0)
    if any(piece.section.sha256 not in summary.candidates.get(piece.path, [piece.section.sha256]) for piece in pieces):
        yield Difference(None, "the log records that other candidates were fetched than those of the record")
    history = _History(run, candidates)
    for first, group in groupby(run.trials, lambda trial: trial.query):
        trials = list(group)
        yield from history.go_to(first)
        yield from _against_choices(first, trials, history.chooser, summary.exchanges.sent.get(first))
        for query in queries_of(trials).values():
            yield from _against_log(run, query, summary.exchanges, history)
        if not all(map(_is_settled, trials)):
            if trials[-1] is not run.trials[-1]:
                yield Difference(first, "has no answer, and others come after it")
            break
        for query in queries_of(trials).values():
            yield from history.take(query)
    yield from history.go_to(len(run.trials) + 1)
    yield from _against_end(run, summary, history.chooser)


def _path(run: Recorded) -> str:
    return f"/v1/studies/{run.spec.study_id}/candidates"


class _History:
    """A chooser with the answers before each choice; after a correction, all answers in their version at that time."""

    def __init__(self, run: Recorded, candidates: Matrix) -> None:
        self._run, self._candidates = run, candidates
        self.chooser = self._build_chooser()
        self.ends = answer_history_check.ends_of(run.trials)
        self.versions: dict[int, list[Version]] = {}
        for version in run.versions:
            self.versions.setdefault(version.first, []).append(version)
        first = {id(version) for group in self.versions.values() for version in [v for v in group if v.version][:1]}
        self._later = [version for version in run.versions if version.version and id(version) not in first]
        self._answers: list[tuple[int, wire.Answer | None]] = []

    def _build_chooser(self) -> RowChooser:
        run = self._run
        plan = run.plan or plan_of_run(run.spec, run.study, run.observations, had_none=True)
        return RowChooser(run.spec, run.study, self._candidates, run.observations, plan=plan)

    def go_to(self, number: int) -> Iterator[Difference]:
        """Take the corrections into account that came before trial ``number`` was chosen."""
        corrections = [version for version in self._later if version.after < number]
        if not corrections:
            return
        for version in corrections:
            self._later.remove(version)
            for index, answer in enumerate(version.answers or [], start=version.first - 1):
                if index < len(self._answers):  # else others that were chosen with it are not answered yet
                    self._answers[index] = self._answers[index][0], answer
        self.chooser = self._build_chooser()
        for past, (row, answer) in enumerate(self._answers, start=1):
            yield from self._observe(past, row, answer)

    def take(self, trials: list[wire.TrialView]) -> Iterator[Difference]:
        """Take the first answers to a query into account."""
        versions = [version for version in self.versions.get(trials[0].number, []) if version.version]
        answers = (versions[0].answers or []) if versions else [_answer(trial, trial.row) for trial in trials]
        for trial, answer in zip(trials, answers, strict=True):
            self._answers.append((trial.row, answer))
            yield from self._observe(trial.number, trial.row, answer)

    def _observe(self, number: int, row: int, answer: wire.Answer | None) -> Iterator[Difference]:
        try:
            if answer is None:
                self.chooser.decline(row)
            else:
                self.chooser.observe(row, answer.y, answer.passport)
        except (BlindoptError, ValueError, IndexError) as error:
            yield Difference(number, f"its answer cannot be taken into account: {error}")


def _is_settled(trial: wire.TrialView) -> bool:
    return trial.y is not None or trial.declined


def _answer(item: wire.TrialView | wire.AnswerVersion, row: int) -> wire.Answer | None:
    if item.y is None or item.plays is None or item.passport is None:
        return None
    return wire.Answer(row=row, play=1, plays=item.plays, y=item.y, passport=item.passport)


def _against_choices(
    first: int, trials: list[wire.TrialView], chooser: RowChooser, exchange: Sent | None
) -> Iterator[Difference]:
    """Compare the trials of one query with the rows that are derived for it."""
    expected, proposals = chooser.seen + 1, chooser.next()
    if first != expected or [trial.number for trial in trials] != list(range(first, first + len(trials))):
        numbers = {trial.number for trial in trials}
        missing = next(number for number in range(expected, expected + len(trials) + 1) if number not in numbers)
        later = min((number for number in numbers if number > missing), default=first)
        yield Difference(missing, f"missing: the record goes on with trial {later}")
    recorded_rows = [trial.row for trial in trials]
    derived_rows = [proposal.row for proposal in proposals]
    if (fitted := trials[0].fitted) is not None and _values(fitted) != _values(chooser.fitted):
        yield Difference(first, "recorded hyper-parameters are not those that are fitted again")
    for trial, proposal in zip(trials, proposals, strict=False):
        if trial.row != proposal.row:
            what = f"recorded row {trial.row} ({trial.phase}), derived row {proposal.row} ({proposal.phase})"
            if exchange is not None:
                by_log = {_digest(recorded_rows): f"row {trial.row}", _digest(derived_rows): f"row {proposal.row}"}
                what += f"; the log records that {by_log.get(exchange.request_sha256, 'neither')} was queried"
            yield Difference(trial.number, what)
        for name in ("phase", "ties", "mean", "sd", "acquisition"):
            recorded, derived = getattr(trial, name), getattr(proposal, name)
            if not _is_same(recorded, derived):
                what = f"recorded {name} {recorded} of row {trial.row}, derived {derived}"
                yield Difference(trial.number, what)
    if len(trials) > len(proposals):
        why = f" ({chooser.ended_because})" if not proposals else ""
        extra = trials[len(proposals)]
        yield Difference(extra.number, f"recorded row {extra.row}, derived an end before it{why}")
    if len(trials) < len(proposals):
        lacking = proposals[len(trials)]
        yield Difference(first + len(trials), f"recorded nothing, derived row {lacking.row} in the same query")


def _values(fitted: wire.Fitted | None) -> Json | None:
    """The values that choices depend on: they are rounded, and so the same on every machine."""
    return None if fitted is None else fitted.model_dump(exclude={"log_likelihood", "check"})


def _is_same(recorded: object, derived: object) -> bool:
    if isinstance(recorded, float) and isinstance(derived, float):
        return isclose(recorded, derived, rel_tol=_NEAR, abs_tol=1e-9)
    return recorded == derived


def _digest(rows: list[int]) -> str:
    return sha256(query_body(query_of(rows)))


def _against_log(
    run: Recorded, trials: list[wire.TrialView], exchanges: Exchanges, history: _History
) -> Iterator[Difference]:
    """Compare rows and answers of a query with their digests in the log."""
    first, answered = trials[0].number, [_is_settled(trial) for trial in trials]
    exchange, versions = exchanges.sent.get(first), history.versions.get(first, [])
    if exchange is not None and (exchange.status == 202 or versions):
        if exchange.request_sha256 != _digest([trial.row for trial in trials]):
            yield Difference(first, f"recorded and derived row {trials[0].row}, {_OTHER}")
        stored = [_stored(trial) for trial in trials]
        for what in answer_history_check.faults(first, trials[0].query_id, stored, versions, exchanges, history.ends):
            yield Difference(first, what)
        return
    if not all(answered):
        if exchange is not None or any(answered):
            what = "the log records an answer" if exchange is not None else "others of its query have an answer"
            yield Difference(trials[answered.index(False)].number, f"{what}, the record has none")
        return
    if exchange is None and exchanges.refused.get(first) == _digest([trial.row for trial in trials]):
        if any(trial.y is not None for trial in trials):
            yield Difference(first, "the record has an answer to a query that the log records as refused")
        return
    if exchange is None:
        yield Difference(first, "the record has an answer that the log does not record")
        return
    if exchange.request_sha256 != _digest([trial.row for trial in trials]):
        yield Difference(first, f"recorded and derived row {trials[0].row}, {_OTHER}")
    if run.replies is not None:
        body = run.replies.get(first, b"")
        if exchange.reply_sha256 != sha256(body):
            yield Difference(first, "the stored reply is not the one that the log records")
            return
        answers = wire.QueryReply.model_validate_json(body).answers
        for trial, answer in zip_longest(trials, answers):
            if answer is None or trial is None or not _is_answer_of(answer, trial):
                about = f"about row {trial.row} " if trial is not None else ""
                number = trial.number if trial is not None else trials[-1].number
                yield Difference(number, f"the recorded answer {about}is not what the reply says")


def _stored(trial: wire.TrialView) -> answer_history_check.Stored:
    passport = None if trial.passport is None else trial.passport.model_dump_json()
    return trial.y, trial.plays, passport, trial.declined, trial.version


def _is_answer_of(answer: wire.Answer, trial: wire.TrialView) -> bool:
    return (answer.row, answer.y, answer.plays, answer.passport) == (trial.row, trial.y, trial.plays, trial.passport)


def _against_end(run: Recorded, summary: RunLogSummary, chooser: RowChooser) -> Iterator[Difference]:
    later = [number for number in summary.exchanges.sent if number > len(run.trials)]
    if later:
        yield Difference(min(later), "the log records an answer, the record has no such trial")
    if run.ended_because in ("budget", "exhausted", "target", "improvement"):
        if further := chooser.next():
            what = f"recorded the run's end ({run.ended_because}), derived row {further[0].row}"
            yield Difference(len(run.trials) + 1, what)
        elif chooser.ended_because != run.ended_because:
            what = f"recorded that the run ended by {run.ended_because}, derived by {chooser.ended_because}"
            yield Difference(None, what)
