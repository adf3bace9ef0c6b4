"""Every choice of a run derived again from its record, and the first that differs. Offline, changes nothing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from math import isclose
from pathlib import Path

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import Json, sha256
from blindopt.client import query_body
from blindopt.errors import BlindoptError, NotFound, StateConflict
from blindopt.formats import npy_files
from modeler_service import store
from modeler_service.choosing.chooser import RowChooser
from modeler_service.integrity import answer_history_check
from modeler_service.integrity.answer_history_check import Exchanges, Sent
from modeler_service.runs.candidates import opened
from modeler_service.runs.curator_queries import query_of
from modeler_service.runs.record import Version, observations_of, versions_of
from modeler_service.runs.trial_views import trial_view
from service_kit.store.database import Connection

_NEAR = 1e-7
"""How far a mean, a width or a bound may be off: another machine adds in another order. Rows may not."""

_OTHER = "but the log tells that another query was asked"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is kept of a run. ``replies``: what its curator answered, by the first trial of each query.

    An export has no replies, and no digest of the settings: they are then None.
    """

    identity: str
    spec: wire.RunSpec
    study: wire.StudyView
    observations: Sequence[wire.Observation]
    trials: Sequence[wire.TrialView]
    versions: Sequence[Version]
    ended_because: str | None
    spec_sha256: str | None = None
    replies: dict[int, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What the log tells of a run: digests of its requests and replies, settings, candidates."""

    exchanges: Exchanges
    spec_sha256: str | None
    releases: frozenset[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that is not as it was recorded; ``trial`` is None where it is about the whole run."""

    trial: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.trial is None else f"trial {self.trial}: {self.what}"


def stored(db: Connection, identity: str) -> Recorded:
    """The record of a run in the modeler's database. Raises NotFound, and StateConflict for one that chose nothing."""
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
        sha256(row.spec.encode()),
        {trial.number: trial.reply for trial in trials if trial.reply is not None},
    )


def exported(path: Path) -> Recorded:
    """The record of a run in a file that its export made (JSON). Raises StateConflict for what is none."""
    try:
        told = wire.RunExport.model_validate_json(path.read_bytes())
        settings = {name: getattr(told.run, name) for name in wire.RunSpec.model_fields if hasattr(told.run, name)}
        spec = wire.RunSpec(**settings)
    except ValueError:
        raise StateConflict(f"{path} is no export of a run in JSON") from None
    if told.run.study is None or not told.trials:
        raise StateConflict(f"{told.run.id} has chosen nothing")
    versions = _versions(told)
    return Recorded(told.run.id, spec, told.run.study, told.observations, told.trials, versions, told.run.ended_because)


def _versions(told: wire.RunExport) -> list[Version]:
    """What was told of each query that people answered, as it came: an export tells it trial by trial."""
    rows = {trial.number: (trial.query, trial.row) for trial in told.trials}
    found: dict[tuple[int, int], Version] = {}
    for item in told.versions:
        first, row = rows.get(item.number, (item.number, 0))
        version = found.setdefault(
            (first, item.version), Version(first, item.version, item.after, item.at, [], reply=None)
        )
        answer = None
        if item.y is not None and item.plays is not None and item.passport is not None:
            answer = wire.Answer(row=row, play=1, plays=item.plays, y=item.y, passport=item.passport)
        assert version.answers is not None
        version.answers.append(answer)
    return list(found.values())


def told_of(records: Iterable[Json], run: Recorded) -> Told:
    """What the modeler's own log tells of a run."""
    exchanges = Exchanges()
    spec_sha256, releases = None, set()
    for record in records:
        if record["kind"] == "run.created" and record["details"]["run_id"] == run.identity:
            spec_sha256 = record["details"].get("spec_sha256")
        if not (exchange := record.get("exchange")):
            continue
        exchanges.add(record, run.identity)
        if exchange["path"] == f"/v1/studies/{run.spec.study_id}/candidates" and exchange["status"] in (200, 206):
            releases.add(exchange["reply_sha256"])
    return Told(exchanges, spec_sha256, frozenset(releases))


def candidates_of(run: Recorded, path: Path) -> Matrix:
    """The candidates of a run from their file, checked against the digest. Raises NotFound and StateConflict."""
    if not path.exists():
        raise NotFound(
            f"the candidates are not there: {path.name} is missing. Have them fetched again (by a request for "
            f"suggestions with {run.spec.study_id}, or a run of it), or put the file back from a copy: its SHA-256 is "
            "its name"
        )
    if npy_files.digest(path) != run.study.release_sha256:
        raise StateConflict(f"{path} does not hold the candidates of the run: its SHA-256 is another")
    return opened(path, run.study)


def replay(run: Recorded, told: Told, candidates: Matrix) -> Difference | None:
    """The first difference between the record, the log and what is derived; None where there is none."""
    return next(_differences(run, told, candidates), None)


def _differences(run: Recorded, told: Told, candidates: Matrix) -> Iterator[Difference]:
    if None not in (told.spec_sha256, run.spec_sha256) and told.spec_sha256 != run.spec_sha256:
        yield Difference(None, "the run's settings are not those that the log tells it was created with")
    if told.releases and run.study.release_sha256 not in told.releases:
        yield Difference(None, "the log tells that other candidates were fetched than those of the record")
    past = _Past(run, candidates)
    for first, found in groupby(run.trials, lambda trial: trial.query):
        trials = list(found)
        yield from past.at(first)
        yield from _against_choices(first, trials, past.choosing, told.exchanges.sent.get(first))
        yield from _against_log(run, trials, told.exchanges, past)
        if not all(map(_is_settled, trials)):
            if trials[-1] is not run.trials[-1]:
                yield Difference(first, "has no answer, and others come after it")
            break
        yield from past.take(trials)
    yield from past.at(len(run.trials) + 1)
    yield from _against_end(run, told, past.choosing)


class _Past:
    """What was known at each choice. After a correction the choices follow from all answers as they then were."""

    def __init__(self, run: Recorded, candidates: Matrix) -> None:
        self._run, self._candidates = run, candidates
        self.choosing = self._fresh()
        self.ends = {trial.query: trial.number for trial in run.trials}
        """The last trial of each query, by its first."""
        self.versions: dict[int, list[Version]] = {}
        for version in run.versions:
            self.versions.setdefault(version.first, []).append(version)
        first = {id(version) for told in self.versions.values() for version in [v for v in told if v.version][:1]}
        self._later = [version for version in run.versions if version.version and id(version) not in first]
        self._known: list[tuple[int, wire.Answer | None]] = []

    def _fresh(self) -> RowChooser:
        return RowChooser(self._run.spec, self._run.study, self._candidates, self._run.observations)

    def at(self, number: int) -> Iterator[Difference]:
        """Know what was known when trial ``number`` was chosen."""
        came = [version for version in self._later if version.after < number]
        if not came:
            return
        for version in came:
            self._later.remove(version)
            for place, answer in enumerate(version.answers or [], start=version.first - 1):
                self._known[place] = self._known[place][0], answer
        self.choosing = self._fresh()
        for place, (row, answer) in enumerate(self._known, start=1):
            yield from self._observe(place, row, answer)

    def take(self, trials: list[wire.TrialView]) -> Iterator[Difference]:
        """Know the first answers to a query."""
        told = [version for version in self.versions.get(trials[0].number, []) if version.version]
        answers = (told[0].answers or []) if told else [_answer(trial) for trial in trials]
        for trial, answer in zip(trials, answers, strict=True):
            self._known.append((trial.row, answer))
            yield from self._observe(trial.number, trial.row, answer)

    def _observe(self, number: int, row: int, answer: wire.Answer | None) -> Iterator[Difference]:
        try:
            if answer is None:
                self.choosing.decline(row)
            else:
                self.choosing.observe(row, answer.y, answer.passport)
        except (BlindoptError, ValueError, IndexError) as error:
            yield Difference(number, f"its answer cannot be taken into account: {error}")


def _is_settled(trial: wire.TrialView) -> bool:
    return trial.y is not None or trial.declined


def _answer(trial: wire.TrialView) -> wire.Answer | None:
    if trial.y is None or trial.plays is None or trial.passport is None:
        return None
    return wire.Answer(row=trial.row, play=1, plays=trial.plays, y=trial.y, passport=trial.passport)


def _against_choices(
    first: int, trials: list[wire.TrialView], choosing: RowChooser, exchange: Sent | None
) -> Iterator[Difference]:
    """The trials of one query against the rows that are derived for it."""
    place, proposals = choosing.seen + 1, choosing.next()
    if first != place or [trial.number for trial in trials] != list(range(first, first + len(trials))):
        numbers = {trial.number for trial in trials}
        missing = next(number for number in range(place, place + len(trials) + 1) if number not in numbers)
        later = min((number for number in numbers if number > missing), default=first)
        yield Difference(missing, f"missing: the record goes on with trial {later}")
    asked = [trial.row for trial in trials]
    derived = [proposal.row for proposal in proposals]
    if (told := trials[0].fitted) is not None and _values(told) != _values(choosing.fitted):
        yield Difference(first, "recorded hyper-parameters are not those that are fitted again")
    for trial, found in zip(trials, proposals, strict=False):
        if trial.row != found.row:
            what = f"recorded row {trial.row} ({trial.phase}), derived row {found.row} ({found.phase})"
            if exchange is not None:
                by_log = {_asks(asked): f"row {trial.row}", _asks(derived): f"row {found.row}"}
                what += f"; the log tells that {by_log.get(exchange.request_sha256, 'neither')} was asked"
            yield Difference(trial.number, what)
        for name in ("phase", "ties", "mean", "sd", "acquisition"):
            recorded, again = getattr(trial, name), getattr(found, name)
            if not _is_same(recorded, again):
                what = f"recorded {name} {recorded} of row {trial.row}, derived {again}"
                yield Difference(trial.number, what)
    if len(trials) > len(proposals):
        why = f" ({choosing.ended_because})" if not proposals else ""
        extra = trials[len(proposals)]
        yield Difference(extra.number, f"recorded row {extra.row}, derived an end before it{why}")
    if len(trials) < len(proposals):
        lacking = proposals[len(trials)]
        yield Difference(first + len(trials), f"recorded nothing, derived row {lacking.row} in the same query")


def _values(fitted: wire.Fitted | None) -> Json | None:
    """What choices depend on: those are rounded, and the same on every machine."""
    return None if fitted is None else fitted.model_dump(exclude={"log_likelihood"})


def _is_same(recorded: object, derived: object) -> bool:
    if isinstance(recorded, float) and isinstance(derived, float):
        return isclose(recorded, derived, rel_tol=_NEAR, abs_tol=1e-9)
    return recorded == derived


def _asks(rows: list[int]) -> str:
    return sha256(query_body(query_of(rows)))


def _against_log(run: Recorded, trials: list[wire.TrialView], told: Exchanges, past: _Past) -> Iterator[Difference]:
    """An answered query asked the rows, and was told the answers, that the log has digests of."""
    first, answered = trials[0].number, [_is_settled(trial) for trial in trials]
    exchange, versions = told.sent.get(first), past.versions.get(first, [])
    if exchange is not None and (exchange.status == 202 or versions):
        if exchange.request_sha256 != _asks([trial.row for trial in trials]):
            yield Difference(first, f"recorded and derived row {trials[0].row}, {_OTHER}")
        stored = [_stored(trial) for trial in trials]
        for what in answer_history_check.faults(first, trials[0].query_id, stored, versions, told, past.ends):
            yield Difference(first, what)
        return
    if not all(answered):
        if exchange is not None or any(answered):
            what = "the log tells an answer" if exchange is not None else "others of its query have an answer"
            yield Difference(trials[answered.index(False)].number, f"{what}, the record has none")
        return
    if exchange is None:
        yield Difference(first, "the record has an answer that the log does not tell")
        return
    if exchange.request_sha256 != _asks([trial.row for trial in trials]):
        yield Difference(first, f"recorded and derived row {trials[0].row}, {_OTHER}")
    if run.replies is not None:
        body = run.replies.get(first, b"")
        if exchange.reply_sha256 != sha256(body):
            yield Difference(first, "the stored reply is not the one that the log tells")
            return
        answers = wire.QueryReply.model_validate_json(body).answers
        for trial, said in zip_longest(trials, answers):
            if said is None or trial is None or not _says(said, trial):
                where = f"about row {trial.row} " if trial is not None else ""
                number = trial.number if trial is not None else trials[-1].number
                yield Difference(number, f"the recorded answer {where}is not what the reply says")


def _stored(trial: wire.TrialView) -> answer_history_check.Stored:
    passport = None if trial.passport is None else trial.passport.model_dump_json()
    return trial.y, trial.plays, passport, trial.declined, trial.version


def _says(answer: wire.Answer, trial: wire.TrialView) -> bool:
    told = answer.row, answer.y, answer.plays, answer.passport
    return told == (trial.row, trial.y, trial.plays, trial.passport)


def _against_end(run: Recorded, told: Told, choosing: RowChooser) -> Iterator[Difference]:
    later = [number for number in told.exchanges.sent if number > len(run.trials)]
    if later:
        yield Difference(min(later), "the log tells an answer, the record has no such trial")
    if run.ended_because in ("budget", "exhausted", "target", "improvement"):
        if further := choosing.next():
            what = f"recorded the run's end ({run.ended_because}), derived row {further[0].row}"
            yield Difference(len(run.trials) + 1, what)
        elif choosing.ended_because != run.ended_because:
            what = f"recorded that the run ended by {run.ended_because}, derived by {choosing.ended_because}"
            yield Difference(None, what)
