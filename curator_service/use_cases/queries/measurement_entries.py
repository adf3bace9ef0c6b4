"""What is told of measurements: what may be told of which, and how it is stored."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Invalid, StateConflict
from curator_service.store import inbox as table
from service_kit.store.base import stamp
from service_kit.store.database import Connection

Act = Literal["answer", "decline", "correct"]
FROM: dict[Act, tuple[str, ...]] = {
    "answer": ("open", "declined", "overdue"),
    "decline": ("open", "overdue"),
    "correct": ("answered",),
}
INSTEAD = {"open": "answer or decline it", "answered": "correct it", "declined": "answer it", "overdue": "answer it"}


@dataclass(frozen=True, slots=True, repr=False)
class Told:
    """What is told of one measurement: a value, or why there is none."""

    measurement_id: str
    value: float | None = None
    reason: wire.DeclineReason | None = None
    note: str | None = None
    expected_version: int | None = None
    """How many answers it had had for whoever tells this."""


@dataclass(frozen=True, slots=True)
class Teller:
    """Who tells: as the log names it, and as the inbox does."""

    actor: str
    name: str


CURATOR = Teller("curator", "curator")
SYSTEM = Teller("curator", "the owner's system")


def append(
    db: Connection, known: Any, told: Sequence[tuple[Told, Any]], teller: Teller, now: datetime, kind: str = ""
) -> dict[str, Any]:
    """Store entries about measurements of one query; what the log tells of them: places, and a salted digest."""
    values = [
        {
            "measurement_id": row.id,
            "query_id": known.query_id,
            "kind": kind or ("declined" if one.value is None else "answered"),
            "version": row.version + (one.value is not None),
            "value": one.value,
            "reason": one.reason,
            "note": one.note,
            "actor": teller.actor,
            "name": teller.name,
            "salt": secrets.token_hex(16),
            "created_at": stamp(now),
        }
        for one, row in told
    ]
    first, last = table.enter(db, values)
    details = {"study_id": known.study_id, "query_id": known.query_id, "first": first, "last": last}
    return {**details, "sha256": digest(values)}


def digest(values: Sequence[dict[str, Any]]) -> str:
    """Of entries as they are stored, each with its salt: who reads it learns nothing of them."""
    names = (
        *("measurement_id", "query_id", "kind", "version", "value", "reason", "note"),
        *("actor", "name", "salt", "created_at"),
    )
    told = [[one[name] if name != "value" else _hex(one[name]) for name in names] for one in values]
    return sha256(json.dumps(told, ensure_ascii=True, separators=(",", ":")).encode())


def _hex(value: float | None) -> str | None:
    return None if value is None else float(value).hex()


def values_of(told: wire.AnswerCreate | wire.CorrectCreate) -> list[Told]:
    """What a request tells of values."""
    return [
        Told(one.measurement_id, value=one.value, note=told.note, expected_version=one.expected_version)
        for one in told.values
    ]


def corrections_of(told: wire.CorrectCreate) -> list[Told]:
    """What a request corrects: to other values, and to none."""
    void = [Told(identity, reason=told.reason, note=told.note) for identity in told.void]
    return values_of(told) + void


def latest_values(db: Connection, query_id: str, rows: dict[str, Any]) -> dict[str, float]:
    """What was told last of the measurements of a query, by id."""
    found = table.values(db, query_id, table.last_entry(db, query_id))
    return {row.id: found[row.place, row.play] for row in rows.values() if (row.place, row.play) in found}


def check(
    act: Act, told: Sequence[Told], rows: dict[str, Any], spec: wire.StudyCreate, latest: dict[str, float]
) -> None:
    """Raises Invalid that names each field, or StateConflict."""
    faults: list[dict[str, object]] = []
    stale: list[str] = []
    seen: set[str] = set()
    values = sum(one.value is not None for one in told)  # they come first
    for place, one in enumerate(told):
        part = "values" if one.value is not None else "measurement_ids" if act == "decline" else "void"
        field = f"{part}.{place - values if part == 'void' else place}"
        message = identity = ""
        if one.measurement_id in seen:
            identity = "is there twice"
        elif one.measurement_id not in rows:
            identity = "is no measurement of this query"
        elif (state := rows[one.measurement_id].state) not in FROM[act]:
            stale.append(f"{field} is {state}: {INSTEAD[state]}")
        elif one.expected_version not in (None, rows[one.measurement_id].version):
            stale.append(f"{field} was told anew meanwhile: look again")
        elif one.value is not None:
            message = fault_of(one.value, spec) or ""
            if one.measurement_id in latest and latest[one.measurement_id] == one.value:
                message = "is what was told before: nothing to correct"
        seen.add(one.measurement_id)
        if identity:
            faults.append({"field": f"{field}.measurement_id" if part == "values" else field, "message": identity})
        if message:
            faults.append({"field": f"{field}.value", "message": message})
    if faults:
        raise Invalid("nothing was stored: errors says what is wrong", faults[:1_000])
    if stale:
        raise StateConflict(f"nothing was stored: {'; '.join(stale[:20])}")


def fault_of(value: float, spec: wire.StudyCreate) -> str | None:
    """Why a value cannot be a measurement of a study, or None."""
    measurement = spec.measurement
    assert not isinstance(measurement, wire.ColumnMeasurement)
    if not -1e50 <= value <= 1e50:  # NaN too
        return "must be a finite number"
    if measurement.lower is not None and value < measurement.lower:
        return f"is smaller than the study's lower bound {measurement.lower!r}"
    if measurement.upper is not None and value > measurement.upper:
        return f"is larger than the study's upper bound {measurement.upper!r}"
    return None


def due(spec: wire.StudyCreate, now: datetime) -> datetime | None:
    """When what is asked now is overdue."""
    measurement = spec.measurement
    assert not isinstance(measurement, wire.ColumnMeasurement)
    return None if measurement.due_hours is None else now + timedelta(hours=measurement.due_hours)


def ask(
    db: Connection,
    spec: wire.StudyCreate,
    query_id: str,
    study_id: str,
    grant_id: str,
    rows: Sequence[wire.RowPlays],
    now: datetime,
) -> None:
    """Ask those who measure for each play of each row of a query, in the transaction that charges it."""
    due_at = due(spec, now)
    inquiry = {
        "query_id": query_id,
        "study_id": study_id,
        "grant_id": grant_id,
        "due_at": stamp(due_at) if due_at else None,
        "created_at": stamp(now),
    }
    shared = {
        "query_id": query_id,
        "study_id": study_id,
        "next_at": stamp(now) if spec.measurement.source == "webhook" else None,
    }
    table.ask(
        db,
        inquiry,
        [
            {
                "id": f"msr_{secrets.token_hex(8)}",
                "place": place,
                "row": item.row,
                "play": play,
                "plays": item.plays,
                **shared,
            }
            for place, item in enumerate(rows)
            for play in range(1, item.plays + 1)
        ],
    )
