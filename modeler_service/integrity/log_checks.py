"""Checks of the modeler's tables against its audit log: part of `audit verify`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.audit.numbered_digests import NumberedDigests
from blindopt.client import query_body
from blindopt.errors import LogBroken
from modeler_service import store
from modeler_service.runs.query_keys import message_key, query_of
from modeler_service.runs.record import Version, is_refused, queries_of, versions_of
from modeler_service.store import deletion
from service_kit.context.log_summaries import PrincipalLogSummary, summarize
from service_kit.store.database import Connection

Stored = tuple[float | None, int | None, str | None, bool, int | None]
"""y, plays, passport, whether it was declined, and version of one trial."""


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
class Exchanges:
    """The queries of one run in the modeler's own log."""

    sent: dict[int, Sent] = field(default_factory=dict)
    """By the number of the query's first trial."""
    fetched: dict[str, list[Fetched]] = field(default_factory=dict)
    """By query id, in the order of arrival."""
    refused: dict[int, str] = field(default_factory=dict)
    """Digests of queries that a cap refused, by the number of the first trial."""
    last: int = 0

    def add(self, record: Json, identity: str) -> None:
        """Take the next record of the log into account. Messages of the run, whose keys have an m, are no queries."""
        exchange = record["exchange"]
        owner, _, number = str(exchange["idempotency_key"]).rpartition(":")
        is_query = owner == identity and number.isdecimal()
        if is_query and exchange["method"] == "POST" and exchange["status"] in (201, 202):
            self.last = int(number)
            self.sent[self.last] = Sent(exchange["request_sha256"], exchange["reply_sha256"], exchange["status"])
        elif is_query and exchange["status"] == 403:
            self.refused[int(number)] = exchange["request_sha256"]
        elif record["actor"] == identity and exchange["method"] == "GET" and exchange["status"] == 200:
            parent, _, query_id = str(exchange["path"]).rpartition("/")
            if parent.endswith("/queries"):
                self.fetched.setdefault(query_id, []).append(Fetched(exchange["reply_sha256"], self.last))


def findings(db: Connection, records: Iterable[Json]) -> Iterator[LogBroken]:
    """Check every table against the log, and yield the first finding in each group of tables."""
    yield from summarize(db, records, [PrincipalLogSummary(), _RunLogSummary(db)])


class _RunLogSummary:
    """Queries and messages of runs: each answered query has the exchange with its rows and answers, and the reverse.

    For queries that people answer, this is checked for each version, in the order and at the time of the log.
    """

    kinds = None

    def __init__(self, db: Connection) -> None:
        self._answered: dict[str, NumberedDigests] = {}
        """By run and the query's first trial, the digests of request and reply."""
        self._settings: dict[str, str] = {}
        self._disputed: set[str] = set()
        self._deleted: set[str] = set()
        self._with_versions = set(store.runs_with_versions(db))
        self._exchanges: dict[str, Exchanges] = {}
        self._messages = _MessageExchanges()

    def follow(self, record: Json) -> None:
        """Take the next record of the log."""
        kind, exchange, actor = record["kind"], record.get("exchange"), record["actor"]
        if exchange and "/messages" in str(exchange["path"]):
            self._messages.follow(exchange)
            return
        is_needed = exchange and (actor in self._with_versions or exchange["status"] in _PENDING_OR_REFUSED)
        if is_needed and str(actor).startswith("run_"):
            self._exchanges.setdefault(actor, Exchanges()).add(record, actor)
        if exchange and exchange["method"] == "POST" and exchange["status"] == 201:
            run_id, _, number = str(exchange["idempotency_key"]).rpartition(":")
            if not number.isdecimal():
                raise LogBroken(f"key {exchange['idempotency_key']} is of no query")
            digests = bytes.fromhex(exchange["request_sha256"] + exchange["reply_sha256"])
            self._answered.setdefault(run_id, NumberedDigests(64)).add(int(number), digests)
        elif kind == "run.created" and "spec_sha256" in record["details"]:
            self._settings[record["details"]["run_id"]] = record["details"]["spec_sha256"]
        elif kind == "log.disputed":
            self._disputed.add(actor)
        elif kind == "run.deleted":
            self._deleted.add(record["details"]["run_id"])

    def check(self, db: Connection) -> None:
        """Raise LogBroken if a run, a trial or a message differs from the log."""
        if present := sorted(self._deleted & deletion.run_ids(db)):
            raise LogBroken(f"{present[0]} is stored, and the log records that it was deleted", about=present[0])
        self._check_settings(db)
        disputed = self._disputed | self._deleted  # the answers of deleted runs are gone
        self._messages.check(db, self._deleted)
        checked = _check_versions(db, self._exchanges, disputed)
        used: dict[str, set[int]] = {run_id: set() for run_id in self._answered}
        for (run_id, first), rows in groupby(store.answered_trials(db), lambda trial: (trial.run_id, trial.query)):
            trials = [t for t in rows if (run_id, t.number) not in checked and not self._is_refused(run_id, t)]
            if trials:
                self._check_query(run_id, first, trials)
                used.setdefault(run_id, set()).add(first)
        for run_id, digests in self._answered.items():
            for number, _ in digests:
                lacks = number not in used[run_id] and (run_id, number) not in checked
                if lacks and run_id not in disputed:  # an answer that broke the protocol was not stored
                    what = f"trial {number} of {run_id} lacks the answer that the log records"
                    raise LogBroken(what, about=run_id)

    def _check_settings(self, db: Connection) -> None:
        """Check the settings of each run, its seed among them."""
        for row in store.settings(db):
            if sha256(row.spec.encode()) != self._settings.get(row.id, sha256(row.spec.encode())):
                raise LogBroken(f"the settings of {row.id} were changed: its seed may be another", about=row.id)

    def _is_refused(self, run_id: str, trial: Any) -> bool:
        """Whether no answer about the row of a trial was allowed."""
        if not is_refused(trial):
            return False
        refused = self._exchanges.get(run_id, Exchanges()).refused.get(trial.number)
        return refused == sha256(query_body(query_of([trial.row])))

    def _check_query(self, run_id: str, first: int, trials: list[Any]) -> None:
        name = f"trial {first} of {run_id}"
        request = sha256(query_body(query_of([trial.row for trial in trials])))
        for expected, trial in enumerate(trials, start=first):
            if trial.number != expected:
                what = f"trial {trial.number} of {run_id} has an answer that the log does not record"
                raise LogBroken(what, about=run_id)
        digests = self._answered[run_id].get(first) if run_id in self._answered else None
        if digests is None:
            raise LogBroken(f"{name} has an answer that the log does not record", about=run_id)
        if digests[:32].hex() != request:
            raise LogBroken(f"{name} was changed: the log records another row", about=run_id)
        if digests[32:].hex() != sha256(trials[0].reply or b"") or not _has_answers(trials):
            raise LogBroken(f"{name} was changed: its answer is not what the curator said", about=run_id)


_PENDING_OR_REFUSED = (202, 403)


@dataclass(slots=True)
class _MessageExchanges:
    """Messages to owners in the log: by key what was sent, by path what was read."""

    sent: dict[str, str] = field(default_factory=dict)
    replies: dict[str, set[str]] = field(default_factory=dict)

    def follow(self, exchange: Json) -> None:
        """Take an exchange about a message."""
        if exchange["status"] == 201:
            self.sent[str(exchange["idempotency_key"])] = exchange["request_sha256"]
        if exchange["status"] in (200, 201):
            name = str(exchange["idempotency_key"] or exchange["path"])
            self.replies.setdefault(name, set()).add(exchange["reply_sha256"])

    def check(self, db: Connection, deleted: set[str]) -> None:
        """Raise LogBroken if a message was changed, or is missing and not of a deleted run."""
        for row in store.messages.every(db):
            key = message_key(row.run_id, row.number)
            sent = self.sent.pop(key, None)
            if sent not in (None, sha256(row.body.encode())) or (row.reply is not None and not self._has(key, row)):
                what = f"message {row.number} of {row.run_id} was changed: the log records another one"
                raise LogBroken(what, about=row.run_id)
        for key in (key for key in self.sent if key.partition(":")[0] not in deleted):
            raise LogBroken(f"message {key} is missing: the log records that it was sent")

    def _has(self, key: str, row: Any) -> bool:
        try:
            view, digest = wire.MessageView.model_validate_json(row.reply), sha256(row.reply)
        except (ValueError, TypeError):  # changed by hand, it may be anything
            return False
        read = self.replies.get(f"/v1/studies/{view.study_id}/messages/{view.id}", set())
        return digest in self.replies.get(key, set()) | read


def _check_versions(db: Connection, exchanges_of: dict[str, Exchanges], disputed: set[str]) -> set[tuple[str, int]]:
    """Check the queries that people answered or have yet to answer; return their trials. Raises LogBroken."""
    checked: set[tuple[str, int]] = set()
    for run_id in store.runs_with_versions(db):
        exchanges, versions = exchanges_of.get(run_id, Exchanges()), versions_of(db, run_id)
        page = store.trial_page(db, run_id)
        queries, ends = queries_of(page), ends_of(page)
        for first in sorted({version.first for version in versions}):
            trials, name = queries.get(first, []), f"trial {first} of {run_id}"
            if first not in exchanges.sent:
                raise LogBroken(f"{name} has an answer that the log does not record", about=run_id)
            if exchanges.sent[first].request_sha256 != sha256(query_body(query_of([trial.row for trial in trials]))):
                raise LogBroken(f"{name} was changed: the log records another row", about=run_id)
            of_query = [version for version in versions if version.first == first]
            stored = [(t.y, t.plays, t.passport, bool(t.declined), t.version) for t in trials]
            for what in faults(first, trials[0].query_id, stored, of_query, exchanges, ends):
                if run_id not in disputed:
                    raise LogBroken(f"{name} was changed: {what}", about=run_id)
            checked |= {(run_id, trial.number) for trial in trials}
    for run_id, exchanges in exchanges_of.items():
        pending = [first for first, sent in exchanges.sent.items() if sent.status == 202]
        lacking = [first for first in pending if (run_id, first) not in checked]
        if lacking and run_id not in disputed:
            what = f"trial {lacking[0]} of {run_id} lacks what the log records: that its query is pending"
            raise LogBroken(what, about=run_id)
    return checked


def _has_answers(trials: list[Any]) -> bool:
    """Whether the stored reply of a query has its answers, in order."""
    answers = wire.QueryReply.model_validate_json(trials[0].reply).answers
    replied = [(answer.y, answer.plays, answer.passport.model_dump_json()) for answer in answers]
    return replied == [(trial.y, trial.plays, trial.passport) for trial in trials]


# --- answers that come later, and corrections ---------------------------------------------------------


def ends_of(trials: Iterable[Any]) -> dict[int, int]:
    """By the number of each trial the number of the last trial that was chosen with it."""
    queries: dict[int, int] = {}
    numbers = []
    for trial in trials:
        queries[trial.query] = max(trial.number, queries.get(trial.query, 0))
        numbers.append((trial.number, trial.query))
    return {number: queries[query] for number, query in numbers}


def faults(
    first: int,
    query_id: str | None,
    stored: Sequence[Stored],
    versions: Sequence[Version],
    exchanges: Exchanges,
    ends: Mapping[int, int],
) -> Iterator[str]:
    """Describe each fault of the query that begins with trial ``first``. ``ends``: ``ends_of`` the run.

    ``versions`` are the stored versions of its answer, in the order of arrival.
    """
    sent, fetched = exchanges.sent[first], list(exchanges.fetched.get(query_id or "", []))
    if sent.status == 201:
        fetched.insert(0, Fetched(sent.reply_sha256, first))
    else:
        yield from _pending_faults([version for version in versions if not version.version], query_id, sent)
    answered = [version for version in versions if version.version]
    for version, exchange in zip_longest(answered, fetched):
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
    if list(stored) != (_values(answered[-1]) if answered else [(None, None, None, False, None)] * len(stored)):
        yield "the recorded answer is not what the last reply says"


def _pending_faults(pending: Sequence[Version], query_id: str | None, sent: Sent) -> Iterator[str]:
    if not pending or pending[0].reply is None:  # an export has no replies
        return
    if sha256(pending[0].reply) != sent.reply_sha256:
        yield "the stored reply, that it is pending, is not the one that the log records"
    elif wire.QueryPending.model_validate_json(pending[0].reply).id != query_id:
        yield "the recorded query is not the one that the curator named"


def _values(version: Version) -> list[Stored]:
    return [
        (None, None, None, True, version.version)
        if answer is None
        else (answer.y, answer.plays, answer.passport.model_dump_json(), False, version.version)
        for answer in version.answers or []
    ]
