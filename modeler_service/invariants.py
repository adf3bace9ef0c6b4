"""What must hold between the modeler's tables and its log, whatever happened: part of `audit verify`."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from modeler_service import store
from modeler_service.run import query_of
from shared import wire
from shared.audit import Json, sha256
from shared.client import query_body
from shared.errors import LogBroken
from shared.serving.store.database import Connection


def check(db: Connection, records: Iterable[Json]) -> None:
    """Every answered query has the exchange that asked its rows and told its y, and the reverse. Raises LogBroken."""
    answered: dict[str, tuple[str, str]] = {}
    disputed: set[str] = set()
    for record in records:
        exchange = record.get("exchange")
        if exchange and exchange["method"] == "POST" and exchange["status"] == 201:
            told = exchange["request_sha256"], exchange["reply_sha256"]
            answered[str(exchange["idempotency_key"])] = told
        elif record["kind"] == "log.disputed":
            disputed.add(record["actor"])
    for (run_id, first), found in groupby(store.answered_trials(db), lambda trial: (trial.run_id, trial.query)):
        trials = list(found)
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


def _says(trials: list[Any]) -> bool:
    """Whether the stored reply of a query has its answers, in order."""
    answers = wire.QueryReply.model_validate_json(trials[0].reply).answers
    told = [(answer.y, answer.plays, answer.passport.model_dump_json()) for answer in answers]
    return told == [(trial.y, trial.plays, trial.passport) for trial in trials]
