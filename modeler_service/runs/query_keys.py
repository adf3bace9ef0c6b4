"""The idempotency keys of a run's queries and messages, and which bodies were sent under each."""

from collections.abc import Iterable

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.client import query_body
from blindopt.optimizer.chooser import Proposal
from modeler_service import store
from modeler_service.store import TrialRow
from service_kit.store import audit_log
from service_kit.store.database import Connection


def query_of(choices: Iterable[TrialRow | Proposal]) -> wire.QueryRequest:
    return wire.QueryRequest(rows=[wire.RowPlays(row=item.row, probability=item.probability) for item in choices])


def message_key(run_id: str, number: int) -> str:
    """The idempotency key of a run's message to the owner of its study."""
    return f"{run_id}:m{number}"


def is_run_query(db: Connection, key: str, request_sha256: str | None) -> bool:
    """Whether a run chose the query, or wrote the message, under this key, with a body of this digest (None: any)."""
    digests = _digests(db, key) or _digests_before_deletion(db, key)
    return any(request_sha256 in (None, digest) for digest in digests)


def _digests(db: Connection, key: str) -> list[str]:
    """Digests of the bodies that a stored run may have sent under a key."""
    run_id, _, number = key.rpartition(":")
    if number.startswith("m") and number[1:].isdecimal() and len(number) < 10:
        body = store.message_body(db, run_id, int(number[1:]))
        return [] if body is None else [sha256(body.encode())]
    if not (number.isdecimal() and len(number) < 10):
        return []
    choices = [store.chosen_together(db, run_id, int(number))]
    trial = store.find_trial(db, run_id, int(number))
    if trial is not None and (trial.asked_at is not None or store.takes_time(db, run_id)):
        choices.append([trial])  # where people measure, and after a refusal, each candidate is queried alone
    return [sha256(query_body(query_of(trials))) for trials in choices if trials]


def _digests_before_deletion(db: Connection, key: str) -> list[str]:
    """The same for a deleted run, from the log: what was answered, and what was not when the run was deleted."""
    run_id = key.rpartition(":")[0]
    for record in audit_log.of_kind(db, "run.deleted"):
        if record["details"]["run_id"] == run_id:
            answered = [other["exchange"]["request_sha256"] for other in audit_log.exchanges_under(db, key)]
            return [*answered, *record["details"]["unanswered"].get(key, [])]
    return []


def unanswered(db: Connection, run_id: str) -> dict[str, list[str]]:
    """Keys of a run's queries and messages without an answer, each with the digests of the bodies that were sent.

    The curator's log may have them, and this side's log does not: a witness needs them after the run is deleted.
    """
    numbers = {number for trial in store.unanswered_trials(db, run_id) for number in (trial.query, trial.number)}
    keys = [f"{run_id}:{number}" for number in sorted(numbers)]
    keys += [message_key(run_id, row.number) for row in store.message_page(db, run_id) if row.reply is None]
    return {key: digests for key in keys if (digests := _digests(db, key))}
