"""Checks of the modeler's tables against its audit log: part of `audit verify`."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.audit.numbered_digests import NumberedDigests
from blindopt.client import query_body
from blindopt.errors import LogBroken
from modeler_service import store
from modeler_service.runs.query_keys import message_key, query_of
from modeler_service.runs.record import Version, every_version, queries_of, versions_of
from modeler_service.store import MessageRow, TrialRow
from service_kit.context.log_summaries import LogSummary, Part, PrincipalLogSummary, summarize
from service_kit.store.database import Connection


def findings(
    db: Connection, records: Iterable[Json], part: Part | None = None, folder: Path | None = None
) -> Iterator[LogBroken]:
    """Check every table against the log, or none in the second part, and yield what differs."""
    summaries: list[LogSummary] = [] if part == "second" else [PrincipalLogSummary(), _RunLogSummary()]
    yield from summarize(db, records, summaries)


@dataclass(frozen=True, slots=True)
class Sent:
    """A query in the log: digests, and the status of the first reply: 201 answered, 202 pending."""

    request_sha256: str
    reply_sha256: str
    status: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer that was fetched later: its digest, and the first trial of the last query sent before it."""

    reply_sha256: str
    sent: int


@dataclass(slots=True)
class RunInLog:
    """What the modeler's own log records of one run, in little memory: there may be millions of queries."""

    _queries: NumberedDigests = field(default_factory=lambda: NumberedDigests(65))
    fetched: dict[str, list[Fetched]] = field(default_factory=dict)
    """By query id, in the order of arrival."""
    refused: dict[int, str] = field(default_factory=dict)
    """Digests of queries that a cap refused, by the number of the first trial."""
    last: int = 0
    spec_sha256: str | None = None
    plan_sha256: str | None = None

    def follow(self, record: Json) -> None:
        """Take the next record about the run. Its messages, whose keys have an m, are no queries."""
        if not (exchange := record.get("exchange")):
            self.spec_sha256 = record["details"].get("spec_sha256", self.spec_sha256)
            self.plan_sha256 = record["details"].get("plan_sha256", self.plan_sha256)
            return
        number, status = str(exchange["idempotency_key"]).rpartition(":")[2], exchange["status"]
        if number.isdecimal() and exchange["method"] == "POST" and status in (201, 202):
            self.last = int(number)
            digests = bytes.fromhex(exchange["request_sha256"] + exchange["reply_sha256"])
            self._queries.add(self.last, digests + bytes([status]))
        elif number.isdecimal() and status == 403:
            self.refused[int(number)] = exchange["request_sha256"]
        elif exchange["method"] == "GET" and status == 200:
            parent, _, query_id = str(exchange["path"]).rpartition("/")
            if parent.endswith("/queries"):
                self.fetched.setdefault(query_id, []).append(Fetched(exchange["reply_sha256"], self.last))

    def sent(self, first: int) -> Sent | None:
        """The query whose first trial has this number; None if it was not sent, or has no reply."""
        digests = self._queries.get(first)
        return None if digests is None else Sent(digests[:32].hex(), digests[32:64].hex(), digests[64])

    def numbers(self) -> Iterator[int]:
        """The number of the first trial of each query, in order."""
        return (number for number, _ in self._queries)


def run_of(record: Json) -> str | None:
    """The run that a record of the log is about; None if it is about no run."""
    if exchange := record.get("exchange"):
        owner = str(exchange["idempotency_key"]).rpartition(":")[0] or str(record["actor"])
        return owner if owner.startswith("run_") else None
    return record["details"]["run_id"] if record["kind"] in ("run.created", "run.planned") else None


class _RunLogSummary:
    """Queries and messages of runs: each answered query has the exchange with its rows and answers, and the reverse.

    For queries that people answer, this is checked for each version, in the order and at the time of the log.
    """

    kinds = None

    def __init__(self) -> None:
        self._runs: dict[str, RunInLog] = {}
        self._checked: dict[str, set[int]] = {}
        """By run, the queries of the record that were compared with the log."""
        self._disputed: set[str] = set()
        self._deleted: set[str] = set()
        self._messages = _MessageExchanges()
        self._draws: dict[tuple[Any, int], tuple[Any, str]] = {}
        """By study and candidate, its second draw, and the trial that it came with first."""

    def follow(self, record: Json) -> None:
        kind, exchange, run_id = record["kind"], record.get("exchange"), run_of(record)
        key = str(exchange["idempotency_key"]) if exchange else ""
        if exchange and "/messages" in str(exchange["path"]):
            self._messages.follow(exchange)
        elif exchange and exchange["status"] == 201 and not (run_id and key.rpartition(":")[2].isdecimal()):
            raise LogBroken(f"key {key} is of no query")
        elif run_id is not None:
            self._runs.setdefault(run_id, RunInLog()).follow(record)
        elif kind == "log.disputed":
            self._disputed.add(record["actor"])
        elif kind == "run.deleted":
            self._deleted.add(record["details"]["run_id"])

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in a run, a trial or a message from the log."""
        for run_id in sorted(self._deleted & store.run_ids(db)):
            yield LogBroken(f"{run_id} is stored, and the log records that it was deleted", about=run_id)
        yield from self._messages.check(db, self._deleted)
        studies: dict[str, Any] = {}
        for run_id, spec in store.run_specs(db):
            studies[run_id] = _field_of(spec, "study_id")
            if self._run(run_id).spec_sha256 not in (None, sha256(spec.encode())):
                yield LogBroken(f"the settings of {run_id} were changed: its seed may be another", about=run_id)
        with_versions = store.runs_with_versions(db)
        for run_id in with_versions:
            # Answers that broke the protocol were not stored.
            trials, is_disputed = store.trial_page(db, run_id), run_id in self._disputed
            yield from self._check_draws(studies[run_id], trials)
            yield from self._check_queries(run_id, trials, versions_of(db, run_id), is_disputed=is_disputed)
        for (run_id, _), chosen_together in groupby(store.answered_trials(db), lambda t: (t.run_id, t.query)):
            if run_id not in with_versions:
                trials = list(chosen_together)
                yield from self._check_draws(studies[run_id], trials)
                if len({trial.query_id for trial in trials if not trial.is_refused}) > 1:
                    detail = f"trial {trials[0].number} of {run_id} was changed: the log records another query"
                    yield LogBroken(detail, about=run_id)
                yield from self._check_queries(run_id, trials, [])
        for run_id in self._runs.keys() - self._disputed - self._deleted:
            for number in self._runs[run_id].numbers():
                if number not in self._checked.get(run_id, ()):
                    detail = f"trial {number} of {run_id} lacks the answer that the log records"
                    yield LogBroken(detail, about=run_id)

    def _check_draws(self, study_id: Any, trials: list[TrialRow]) -> Iterator[LogBroken]:
        """Yield each second draw that differs from the one of the same candidate before it, in whichever run."""
        for trial in trials:
            if not trial.passport or (z := _field_of(trial.passport, "z")) is None:
                continue
            name = f"trial {trial.number} of {trial.run_id}"
            first_z, first_name = self._draws.setdefault((study_id, trial.row), (z, name))
            if z != first_z:
                detail = f"the curator of {study_id} sent two different second draws of candidate {trial.row}"
                yield LogBroken(f"{detail}: with {first_name} and {name}", about=trial.run_id)

    def _run(self, run_id: str) -> RunInLog:
        return self._runs.get(run_id, RunInLog())

    def _check_queries(
        self, run_id: str, trials: list[TrialRow], versions: list[Version], *, is_disputed: bool = False
    ) -> Iterator[LogBroken]:
        ends, versions_by_query = ends_of(trials), every_version(versions, trials)
        for first, query in queries_of(trials).items():
            versions = versions_by_query.get(first, [])
            for fault in query_faults(query, versions, self._run(run_id), ends, is_disputed=is_disputed):
                yield LogBroken(f"trial {first} of {run_id} was changed: {fault}", about=run_id)
            self._checked.setdefault(run_id, set()).add(first)


@dataclass(slots=True)
class _MessageExchanges:
    """Messages to owners in the log: by key what was sent, by path what was read."""

    sent: dict[str, str] = field(default_factory=dict)
    replies: dict[str, set[str]] = field(default_factory=dict)

    def follow(self, exchange: Json) -> None:
        if exchange["status"] == 201:
            self.sent[str(exchange["idempotency_key"])] = exchange["request_sha256"]
        if exchange["status"] in (200, 201):
            name = str(exchange["idempotency_key"] or exchange["path"])
            self.replies.setdefault(name, set()).add(exchange["reply_sha256"])

    def check(self, db: Connection, deleted: set[str]) -> Iterator[LogBroken]:
        """Yield each message that was changed, or is missing and not of a deleted run."""
        for row in store.every_message(db):
            key = message_key(row.run_id, row.number)
            sent = self.sent.pop(key, None)
            if sent not in (None, sha256(row.body.encode())) or not self._has_reply(key, row):
                detail = f"message {row.number} of {row.run_id} was changed: the log records another one"
                yield LogBroken(detail, about=row.run_id)
        for key in (key for key in self.sent if key.partition(":")[0] not in deleted):
            what = f"message {key} is missing: the log records that it was sent"
            yield LogBroken(what, about=key.partition(":")[0])

    def _has_reply(self, key: str, row: MessageRow) -> bool:
        if row.reply is None:
            return True
        try:
            view, digest = wire.MessageView.model_validate_json(row.reply), sha256(row.reply)
        except (ValueError, TypeError):  # changed by hand, it may be anything
            return False
        read = self.replies.get(f"/v1/studies/{view.study_id}/messages/{view.id}", set())
        return digest in self.replies.get(key, set()) | read


def _field_of(stored: str, name: str) -> Any:
    """A field of stored JSON; None where there is none, as in what was changed by hand."""
    try:
        return json.loads(stored).get(name)
    except (ValueError, AttributeError):
        return None


# --- one query --------------------------------------------------------------------------------------


def ends_of(trials: Iterable[TrialRow]) -> dict[int, int]:
    """By the number of each trial the number of the last trial that was chosen with it."""
    last: dict[int, int] = {}
    queries = {trial.number: trial.query for trial in trials}
    for number, query in queries.items():
        last[query] = max(number, last.get(query, 0))
    return {number: last[query] for number, query in queries.items()}


def query_faults(
    trials: Sequence[TrialRow],
    versions: Sequence[Version],
    logged: RunInLog,
    ends: Mapping[int, int],
    *,
    is_disputed: bool = False,
) -> Iterator[str]:
    """Describe each fault of a query against the log; of a disputed run those of its answers are not looked for.

    ``versions`` are those of its answer, in the order of arrival, and ``ends`` those of the run's trials.
    """
    first, request = trials[0].number, sha256(query_body(query_of(trials)))
    if (sent := logged.sent(first)) is None:
        if any(trial.y is not None for trial in trials) or (versions and logged.refused.get(first) != request):
            yield "the record has an answer that the log does not record"
    elif sent.request_sha256 != request:
        yield "the log records another query"
    elif not is_disputed:
        fetched = list(logged.fetched.get(trials[0].query_id or "", []))
        if sent.status == 201:
            fetched.insert(0, Fetched(sent.reply_sha256, first))
        else:
            yield from _pending_faults([version for version in versions if not version.version], trials, sent)
        yield from _answer_faults([version for version in versions if version.version], trials, fetched, ends)


def _pending_faults(pending: Sequence[Version], trials: Sequence[TrialRow], sent: Sent) -> Iterator[str]:
    if not pending or pending[0].reply is None:  # an export has no replies
        return
    if sha256(pending[0].reply) != sent.reply_sha256:
        yield "the stored reply, that it is pending, is not the one that the log records"
    elif wire.QueryPending.model_validate_json(pending[0].reply).id != trials[0].query_id:
        yield "the recorded query is not the one that the curator named"


def _answer_faults(
    versions: Sequence[Version], trials: Sequence[TrialRow], fetched: Sequence[Fetched], ends: Mapping[int, int]
) -> Iterator[str]:
    for version, exchange in zip_longest(versions, fetched):
        if version is None:
            yield "the log records an answer that the record has not"
            return
        name = f"version {version.version} of its answer"
        if exchange is None:
            yield f"the log does not record {name}"
            return
        if version.reply is not None and sha256(version.reply) != exchange.reply_sha256:
            yield f"{name}: the stored reply is not the one that the log records"
        elif version.answers is None:
            yield f"{name}: the stored reply is not about it"
        if (after := ends.get(exchange.sent)) != version.after:
            yield f"{name} came after trial {after}, as the log records, and not after trial {version.after}"
    stored = [(trial.y, trial.plays, trial.passport, bool(trial.declined), trial.version) for trial in trials]
    if stored != (_columns_of(versions[-1]) if versions else [(None, None, None, False, None)] * len(stored)):
        yield "the recorded answer is not what the last reply says"


def _columns_of(version: Version) -> list[tuple[float | None, int | None, str | None, bool, int | None]]:
    return [
        (None, None, None, True, version.version)
        if answer is None
        else (answer.y, answer.plays, answer.passport.model_dump_json(), False, version.version)
        for answer in version.answers or []
    ]
