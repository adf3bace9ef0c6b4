"""What must hold between the curator's tables and its log, whatever happened: part of `audit verify`."""

from collections.abc import Iterable
from typing import Any

from curator_service import store
from curator_service.privacy.ledger import text, units
from curator_service.store import ledger as lines
from shared.audit import Json, sha256
from shared.errors import LogBroken
from shared.serving.store import replies
from shared.serving.store.database import Connection

Charges = dict[str, tuple[str, str, list[tuple[int, int]]]]


def check(db: Connection, records: Iterable[Json]) -> None:
    """No charge without a record, none twice, no answer without its charge, no answer changed. Raises LogBroken."""
    charged: Charges = {}
    answered: dict[tuple[str, str], str] = {}
    for record in records:
        details = record.get("details", {})
        exchange = record.get("exchange")
        if record["kind"] == "charge" and "query_id" in details:
            rows = [(row, plays) for row, plays in details["rows"]]
            if details["query_id"] in charged:
                raise LogBroken(f"query {details['query_id']} was charged twice")
            charged[details["query_id"]] = (details["study_id"], details["epsilon"], rows)
        elif exchange and exchange["status"] == 201 and not exchange["replayed"] and "query_id" in details:
            if details["query_id"] not in charged:
                raise LogBroken(f"query {details['query_id']} was answered before it was charged")
            name = exchange["grant_id"], exchange["idempotency_key"]
            if name in answered:
                raise LogBroken(f"query {details['query_id']} was answered twice")
            answered[name] = exchange["reply_sha256"]
    _check_ledger(db, charged)
    _check_queries(db, charged)
    _check_replies(db, answered)


def _check_ledger(db: Connection, charged: Charges) -> None:
    found: Charges = {}
    totals: dict[str, int] = {}
    rows: dict[tuple[str, int], tuple[int, int]] = {}
    for line in lines.every(db):
        cost = 0 if line.kind == "refused" else line.cost
        total = totals[line.study_id] = totals.get(line.study_id, 0) + cost
        if line.total != total:
            raise LogBroken(f"ledger line {line.seq} does not add up: a line before it was changed or removed")
        if line.kind != "answers":
            continue
        place = line.study_id, line.row
        plays, spent = rows.get(place, (0, 0))
        rows[place] = (plays + line.plays, spent + line.cost)
        if rows[place] != (line.row_plays, line.row_total):
            raise LogBroken(f"ledger line {line.seq} does not add up for its row")
        study, epsilon, asked = found.get(line.query_id, (line.study_id, "0", []))
        found[line.query_id] = (study, _plus(epsilon, cost), [*asked, (line.row, line.plays)])
    _compare(charged, found, "ledger")


def _plus(epsilon: str, cost: int) -> str:
    return text(units(epsilon) + cost)


def _check_queries(db: Connection, charged: Charges) -> None:
    told = {row.id for row in store.all_queries(db)}
    for name in told ^ charged.keys():
        where = "the log" if name in told else "the table of queries"
        raise LogBroken(f"query {name} is missing in {where}")


def _compare(told: dict[str, Any], found: dict[str, Any], where: str) -> None:
    for name in told.keys() | found.keys():
        if name not in found:
            raise LogBroken(f"query {name} is in the log and not in the {where}")
        if name not in told:
            raise LogBroken(f"query {name} is in the {where} and not in the log")
        if told[name] != found[name]:
            raise LogBroken(f"query {name}: the {where} does not say what the log says")


def _check_replies(db: Connection, answered: dict[tuple[str, str], str]) -> None:
    left = dict(answered)
    for row in replies.answers(db):
        digest = left.pop((row.principal, row.idempotency_key), None)
        if digest is not None and sha256(row.body) != digest:
            raise LogBroken(f"the stored answer under key {row.idempotency_key} was changed")
    for _, key in left:
        raise LogBroken(f"the stored answer under key {key} is missing")
