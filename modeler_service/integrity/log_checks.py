"""What must hold between the modeler's tables and its log, whatever happened: part of `audit verify`."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import Json, sha256
from blindopt.client import query_body
from blindopt.errors import LogBroken
from modeler_service import store
from modeler_service.integrity.answer_history_check import Exchanges, faults
from modeler_service.runs.curator_queries import query_of
from modeler_service.runs.record import versions_of
from service_kit.store.database import Connection


def check(db: Connection, records: Iterable[Json]) -> None:
    """Every answered query has the exchange that asked its rows and told its y, and the reverse. Raises LogBroken.

    Of queries that people answer, that holds of each version, in the order and at the time that the log tells.
    """
    answered: dict[str, tuple[str, str]] = {}
    disputed: set[str] = set()
    told_of: dict[str, Exchanges] = {}
    for record in records:
        exchange = record.get("exchange")
        if exchange and str(record["actor"]).startswith("run_"):
            told_of.setdefault(record["actor"], Exchanges()).add(record, record["actor"])
        if exchange and exchange["method"] == "POST" and exchange["status"] == 201:
            told = exchange["request_sha256"], exchange["reply_sha256"]
            answered[str(exchange["idempotency_key"])] = told
        elif record["kind"] == "log.disputed":
            disputed.add(record["actor"])
    later = _check_later(db, told_of, disputed)
    for (run_id, first), found in groupby(store.answered_trials(db), lambda trial: (trial.run_id, trial.query)):
        trials = list(found)
        if (run_id, first) in later:
            answered.pop(f"{run_id}:{first}", None)
            continue
        where = f"trial {first} of {run_id}"
        for place, trial in enumerate(trials, start=first):
            if trial.number != place:
                raise LogBroken(f"trial {trial.number} of {run_id} has an answer that the log does not tell")
        told = answered.pop(f"{run_id}:{first}", ("", ""))
        if told == ("", ""):
            raise LogBroken(f"{where} has an answer that the log does not tell")
        if told[0] != sha256(query_body(query_of([trial.row for trial in trials]))):
            raise LogBroken(f"{where} was changed: the log tells that another row was asked")
        if told[1] != sha256(trials[0].reply or b"") or not _says(trials):
            raise LogBroken(f"{where} was changed: its answer is not what the curator said")
    for key in answered:
        run_id, _, number = key.rpartition(":")
        if run_id not in disputed:  # an answer that was not taken, because it broke the protocol
            raise LogBroken(f"trial {number} of {run_id} lacks the answer that the log tells")


def _check_later(db: Connection, told_of: dict[str, Exchanges], disputed: set[str]) -> set[tuple[str, int]]:
    """Check the queries that people answer, or are still to answer; those that were looked at. Raises LogBroken."""
    seen: set[tuple[str, int]] = set()
    for run_id in store.runs_with_versions(db):
        told, versions = told_of.get(run_id, Exchanges()), versions_of(db, run_id)
        queries: dict[int, list[Any]] = {}
        for trial in store.trial_page(db, run_id):
            queries.setdefault(trial.query, []).append(trial)
        ends = {first: trials[-1].number for first, trials in queries.items()}
        for first in sorted({version.first for version in versions}):
            trials, where = queries.get(first, []), f"trial {first} of {run_id}"
            if first not in told.sent:
                raise LogBroken(f"{where} has an answer that the log does not tell")
            if told.sent[first].request_sha256 != sha256(query_body(query_of([trial.row for trial in trials]))):
                raise LogBroken(f"{where} was changed: the log tells that another row was asked")
            known = [version for version in versions if version.first == first]
            stored = [(t.y, t.plays, t.passport, bool(t.declined), t.version) for t in trials]
            for what in faults(first, trials[0].query_id, stored, known, told, ends):
                if run_id not in disputed:
                    raise LogBroken(f"{where} was changed: {what}")
            seen.add((run_id, first))
    for run_id, told in told_of.items():
        lacking = [first for first, sent in told.sent.items() if sent.status == 202 and (run_id, first) not in seen]
        if lacking and run_id not in disputed:
            raise LogBroken(f"trial {lacking[0]} of {run_id} lacks what the log tells: that its query is pending")
    return seen


def _says(trials: list[Any]) -> bool:
    """Whether the stored reply of a query has its answers, in order."""
    answers = wire.QueryReply.model_validate_json(trials[0].reply).answers
    told = [(answer.y, answer.plays, answer.passport.model_dump_json()) for answer in answers]
    return told == [(trial.y, trial.plays, trial.passport) for trial in trials]
