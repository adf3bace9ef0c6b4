"""Every choice of a run derived again from its record, and the first that differs. Offline, changes nothing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path

from modeler_service import store
from modeler_service.candidates import opened
from modeler_service.choosing import Choosing, Proposal
from modeler_service.run import query_of
from modeler_service.views import trial_view
from shared import matrix, wire
from shared.audit import Json, sha256
from shared.client import query_body
from shared.errors import BlindoptError, NotFound, StateConflict
from shared.matrix import Matrix
from shared.serving.store.database import Connection

_NEAR = 1e-9
"""How far a mean, a width or a bound may be off: another machine adds in another order. Rows may not."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a run. ``replies``: what its curator answered, by trial; None for an export, which has none."""

    identity: str
    spec: wire.RunSpec
    study: wire.StudyView
    trials: Sequence[wire.TrialView]
    ended_because: str | None
    spec_sha256: str | None = None
    replies: dict[int, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What the log tells of a run: digests of request and reply by trial, of its settings, of its candidates."""

    exchanges: dict[int, tuple[str, str]]
    spec_sha256: str | None
    releases: frozenset[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that is not as it was recorded; ``trial`` is None where it is about the whole run."""

    trial: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.trial is None else f"trial {self.trial}: {self.what}"


def stored(db: Connection, identity: str) -> Record:
    """The record of a run in the modeler's database. Raises NotFound, and StateConflict for one that chose nothing."""
    row = store.run(db, identity)
    if row.study is None:
        raise StateConflict(f"{identity} has not reached its curator: it has chosen nothing")
    trials = store.trial_page(db, identity)
    if not trials:
        raise StateConflict(f"{identity} has chosen nothing")
    return Record(
        identity,
        wire.RunSpec.model_validate_json(row.spec),
        wire.StudyView.model_validate_json(row.study),
        [trial_view(trial) for trial in trials],
        row.ended_because,
        sha256(row.spec.encode()),
        {trial.number: trial.reply for trial in trials if trial.reply is not None},
    )


def exported(path: Path) -> Record:
    """The record of a run in a file that its export made (JSON). Raises StateConflict for what is none."""
    try:
        told = wire.RunExport.model_validate_json(path.read_bytes())
        settings = {name: getattr(told.run, name) for name in wire.RunSpec.model_fields if hasattr(told.run, name)}
        spec = wire.RunSpec(**settings)
    except ValueError:
        raise StateConflict(f"{path} is no export of a run in JSON") from None
    if told.run.study is None:
        raise StateConflict(f"{told.run.id} has not reached its curator: it has chosen nothing")
    return Record(told.run.id, spec, told.run.study, told.trials, told.run.ended_because)


def told_of(records: Iterable[Json], run: Record) -> Told:
    """What the modeler's own log tells of a run."""
    exchanges: dict[int, tuple[str, str]] = {}
    spec_sha256, releases = None, set()
    for record in records:
        if record["kind"] == "run.created" and record["details"]["run_id"] == run.identity:
            spec_sha256 = record["details"].get("spec_sha256")
        if not (exchange := record.get("exchange")):
            continue
        owner, _, number = str(exchange["idempotency_key"]).rpartition(":")
        if owner == run.identity and exchange["status"] == 201:
            exchanges[int(number)] = exchange["request_sha256"], exchange["reply_sha256"]
        elif exchange["path"] == f"/v1/studies/{run.spec.study_id}/candidates" and exchange["status"] in (200, 206):
            releases.add(exchange["reply_sha256"])
    return Told(exchanges, spec_sha256, frozenset(releases))


def candidates_of(run: Record, path: Path) -> Matrix:
    """The candidates of a run from their file, checked against the digest. Raises NotFound and StateConflict."""
    if not path.exists():
        raise NotFound(
            f"the candidates are not there: {path.name} is missing. Have them fetched again (by a request for "
            f"suggestions with {run.spec.study_id}, or a run of it), or put the file back from a copy: its SHA-256 is "
            "its name"
        )
    if matrix.digest(path) != run.study.release_sha256:
        raise StateConflict(f"{path} does not hold the candidates of the run: its SHA-256 is another")
    return opened(path, run.study)


def replay(run: Record, told: Told, candidates: Matrix) -> Difference | None:
    """The first difference between the record, the log and what is derived; None where there is none."""
    return next(_differences(run, told, candidates), None)


def _differences(run: Record, told: Told, candidates: Matrix) -> Iterator[Difference]:
    if None not in (told.spec_sha256, run.spec_sha256) and told.spec_sha256 != run.spec_sha256:
        yield Difference(None, "the run's settings are not those that the log tells it was created with")
    if told.releases and run.study.release_sha256 not in told.releases:
        yield Difference(None, "the log tells that other candidates were fetched than those of the record")
    choosing = Choosing(run.spec, run.study, candidates)
    waiting: list[Proposal] = []
    for place, trial in enumerate(run.trials, start=1):
        if trial.number != place:
            yield Difference(place, f"missing: the record goes on with trial {trial.number}")
        waiting = waiting or choosing.next()
        if not waiting:
            what = f"recorded row {trial.row}, derived that the run had ended before it ({choosing.ended_because})"
            yield Difference(place, what)
        yield from _against_choice(trial, waiting.pop(0), told.exchanges.get(place))
        yield from _against_log(run, trial, told.exchanges.get(place))
        if trial.y is None:
            if place < len(run.trials):
                yield Difference(place, "has no answer, and others come after it")
            break
        try:
            choosing.observe(trial.row, trial.y, trial.passport)
        except (BlindoptError, ValueError, IndexError) as error:
            yield Difference(place, f"its answer cannot be taken into account: {error}")
    yield from _against_end(run, told, choosing)


def _against_choice(trial: wire.TrialView, found: Proposal, exchange: tuple[str, str] | None) -> Iterator[Difference]:
    if trial.row != found.row:
        what = f"recorded row {trial.row} ({trial.phase}), derived row {found.row} ({found.phase})"
        if exchange is not None:
            asked = [row for row in (trial.row, found.row) if exchange[0] == _asks(row)]
            what += f"; the log tells that {f'row {asked[0]}' if asked else 'neither'} was asked"
        yield Difference(trial.number, what)
    for name in ("phase", "ties", "mean", "sd", "acquisition"):
        recorded, again = getattr(trial, name), getattr(found, name)
        if not _is_same(recorded, again):
            what = f"recorded {name} {recorded} of row {trial.row}, derived {again}"
            yield Difference(trial.number, what)


def _is_same(recorded: object, derived: object) -> bool:
    if isinstance(recorded, float) and isinstance(derived, float):
        return isclose(recorded, derived, rel_tol=_NEAR, abs_tol=1e-12)
    return recorded == derived


def _asks(row: int) -> str:
    return sha256(query_body(query_of(row)))


def _against_log(run: Record, trial: wire.TrialView, exchange: tuple[str, str] | None) -> Iterator[Difference]:
    """An answered trial asked the row, and was told the answer, that the log has digests of."""
    if trial.y is None:
        if exchange is not None:
            yield Difference(trial.number, "the log tells an answer, the record has none")
        return
    if exchange is None:
        yield Difference(trial.number, "the record has an answer that the log does not tell")
        return
    if exchange[0] != _asks(trial.row):
        yield Difference(
            trial.number, f"recorded and derived row {trial.row}, but the log tells that another was asked"
        )
    if run.replies is not None:
        body = run.replies.get(trial.number, b"")
        if exchange[1] != sha256(body):
            yield Difference(trial.number, "the stored reply is not the one that the log tells")
        elif not _says(body, trial):
            yield Difference(trial.number, f"the recorded answer about row {trial.row} is not what the reply says")


def _says(body: bytes, trial: wire.TrialView) -> bool:
    answers = wire.QueryReply.model_validate_json(body).answers
    return [(a.row, a.y, a.plays, a.passport) for a in answers] == [(trial.row, trial.y, trial.plays, trial.passport)]


def _against_end(run: Record, told: Told, choosing: Choosing) -> Iterator[Difference]:
    later = [number for number in told.exchanges if number > len(run.trials)]
    if later:
        yield Difference(min(later), "the log tells an answer, the record has no such trial")
    if run.ended_because in ("budget", "exhausted", "target", "improvement"):
        if further := choosing.next():
            what = f"recorded the run's end ({run.ended_because}), derived row {further[0].row}"
            yield Difference(len(run.trials) + 1, what)
        elif choosing.ended_because != run.ended_because:
            what = f"recorded that the run ended by {run.ended_because}, derived by {choosing.ended_because}"
            yield Difference(None, what)
