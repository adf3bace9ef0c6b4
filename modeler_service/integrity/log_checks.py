"""Checks of the modeler's tables against its audit log: part of `audit verify`."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.client import query_body
from blindopt.errors import LogBroken
from modeler_service import store
from modeler_service.integrity.answer_history_check import Exchanges, ends_of, faults
from modeler_service.runs.curator_queries import message_key, query_of
from modeler_service.runs.record import queries_of, versions_of
from modeler_service.store import deletion
from service_kit.store.database import Connection


def check(db: Connection, records: Iterable[Json]) -> None:
    """Check that each answered query has the exchange with its rows and answers, and the reverse. Raises LogBroken.

    For queries that people answer, this is checked for each version, in the order and at the time of the log.
    """
    answered: dict[str, tuple[str, str]] = {}
    disputed: set[str] = set()
    deleted: set[str] = set()
    exchanges_of: dict[str, Exchanges] = {}
    messages = _MessageExchanges()
    for record in records:
        exchange = record.get("exchange")
        if exchange and "/messages" in str(exchange["path"]):
            messages.follow(exchange)
            continue
        if exchange and str(record["actor"]).startswith("run_"):
            exchanges_of.setdefault(record["actor"], Exchanges()).add(record, record["actor"])
        if exchange and exchange["method"] == "POST" and exchange["status"] == 201:
            answered[str(exchange["idempotency_key"])] = exchange["request_sha256"], exchange["reply_sha256"]
        elif record["kind"] == "log.disputed":
            disputed.add(record["actor"])
        elif record["kind"] == "run.deleted":
            deleted.add(record["details"]["run_id"])
    if present := sorted(deleted & deletion.run_ids(db)):
        raise LogBroken(f"{present[0]} is stored, and the log records that it was deleted")
    disputed |= deleted  # its answers are gone
    messages.check(db, deleted)
    checked = _check_versions(db, exchanges_of, disputed)
    for pair in checked:
        answered.pop("{}:{}".format(*pair), None)
    for (run_id, first), rows in groupby(store.answered_trials(db), lambda trial: (trial.run_id, trial.query)):
        trials = [trial for trial in rows if (run_id, trial.number) not in checked]
        if not trials:
            continue
        name = f"trial {first} of {run_id}"
        request = sha256(query_body(query_of([trial.row for trial in trials])))
        if _is_refused(trials) and exchanges_of.get(run_id, Exchanges()).refused.get(first) == request:
            continue  # no answer about its row was allowed
        for expected, trial in enumerate(trials, start=first):
            if trial.number != expected:
                raise LogBroken(f"trial {trial.number} of {run_id} has an answer that the log does not record")
        request_sha256, reply_sha256 = answered.pop(f"{run_id}:{first}", ("", ""))
        if not request_sha256 and not reply_sha256:
            raise LogBroken(f"{name} has an answer that the log does not record")
        if request_sha256 != request:
            raise LogBroken(f"{name} was changed: the log records another row")
        if reply_sha256 != sha256(trials[0].reply or b"") or not _has_answers(trials):
            raise LogBroken(f"{name} was changed: its answer is not what the curator said")
    for key in answered:
        run_id, _, number = key.rpartition(":")
        if run_id not in disputed:  # an answer that broke the protocol was not stored
            raise LogBroken(f"trial {number} of {run_id} lacks the answer that the log records")


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
                raise LogBroken(f"message {row.number} of {row.run_id} was changed: the log records another one")
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
                raise LogBroken(f"{name} has an answer that the log does not record")
            if exchanges.sent[first].request_sha256 != sha256(query_body(query_of([trial.row for trial in trials]))):
                raise LogBroken(f"{name} was changed: the log records another row")
            of_query = [version for version in versions if version.first == first]
            stored = [(t.y, t.plays, t.passport, bool(t.declined), t.version) for t in trials]
            for what in faults(first, trials[0].query_id, stored, of_query, exchanges, ends):
                if run_id not in disputed:
                    raise LogBroken(f"{name} was changed: {what}")
            checked |= {(run_id, trial.number) for trial in trials}
    for run_id, exchanges in exchanges_of.items():
        pending = [first for first, sent in exchanges.sent.items() if sent.status == 202]
        lacking = [first for first in pending if (run_id, first) not in checked]
        if lacking and run_id not in disputed:
            raise LogBroken(f"trial {lacking[0]} of {run_id} lacks what the log records: that its query is pending")
    return checked


def _is_refused(trials: list[Any]) -> bool:
    return all(trial.declined and trial.version is None and trial.y is None for trial in trials)


def _has_answers(trials: list[Any]) -> bool:
    """Whether the stored reply of a query has its answers, in order."""
    answers = wire.QueryReply.model_validate_json(trials[0].reply).answers
    replied = [(answer.y, answer.plays, answer.passport.model_dump_json()) for answer in answers]
    return replied == [(trial.y, trial.plays, trial.passport) for trial in trials]
