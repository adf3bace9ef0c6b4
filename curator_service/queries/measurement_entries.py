"""Entries about measurements (values, declines, corrections): which are allowed, and how they are stored."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from blindopt import wire
from blindopt.errors import Invalid, StateConflict
from blindopt.formats.numbers import grouped
from curator_service.privacy.answers import draws_nothing
from curator_service.queries import table as inbox_store
from curator_service.queries.table import Entry, MeasuredQuery, Measurement
from service_kit.identity.tokens import new_id
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection

Act = Literal["answer", "decline", "correct", "explain"]
"""explain: another reason for a decline, which a file may bring."""
FROM: dict[Act, tuple[str, ...]] = {
    "answer": ("open", "declined", "overdue"),
    "decline": ("open", "overdue"),
    "correct": ("answered",),
    "explain": ("declined",),
}
INSTEAD = {"open": "answer or decline it", "answered": "correct it", "declined": "answer it", "overdue": "answer it"}


@dataclass(frozen=True, slots=True, repr=False)
class NewEntry:
    """What a person or system enters for one measurement: a value, or the reason why there is none."""

    measurement_id: str
    value: float | None = None
    reason: wire.DeclineReason | None = None
    note: str | None = None
    expected_version: int | None = None
    """The number of answers that the measurement had when its author last looked."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes an entry: ``actor`` in the audit log, ``name`` in the inbox."""

    actor: str
    name: str


CURATOR = Author("curator", "curator")
SYSTEM = Author("curator", "the owner's system")


def append(
    db: Connection,
    query: MeasuredQuery,
    entries: Sequence[tuple[NewEntry, Measurement]],
    author: Author,
    now: datetime,
    kind: str = "",
) -> dict[str, Any]:
    """Store entries, each with its measurement, all of one query.

    Returns the details for the audit log: the first and last sequence number, and a salted digest of the entries.
    """
    stored = inbox_store.add_entries(
        db,
        [
            Entry(
                seq=0,  # numbered in the store
                measurement_id=measurement.id,
                query_id=query.query_id,
                kind=kind or ("declined" if entry.value is None else "answered"),
                version=measurement.version + (entry.value is not None),
                value=entry.value,
                reason=entry.reason,
                note=entry.note,
                actor=author.actor,
                name=author.name,
                salt=secrets.token_hex(16),
                created_at=stamp(now),
            )
            for entry, measurement in entries
        ],
    )
    ends = {"first": stored[0].seq, "last": stored[-1].seq}
    return {"study_id": query.study_id, "query_id": query.query_id, **ends, "sha256": inbox_store.digest(stored)}


def values_of(request: wire.AnswerCreate | wire.CorrectCreate) -> list[NewEntry]:
    return [
        NewEntry(item.measurement_id, item.value, note=request.note, expected_version=item.expected_version)
        for item in request.values
    ]


def corrections_of(request: wire.CorrectCreate) -> list[NewEntry]:
    """The entries of a correction: other values first, then answers that are declared void."""
    void = [
        NewEntry(measurement_id, reason=request.reason, note=request.note, expected_version=request.undo_version)
        for measurement_id in request.void
    ]
    return values_of(request) + void


def latest_values(db: Connection, query_id: str, measurements: dict[str, Measurement]) -> dict[str, float]:
    """The latest value of each measurement of a query that has one, by measurement id."""
    values = inbox_store.values(db, query_id, inbox_store.last_entry(db, query_id))
    return {
        measurement.id: values[measurement.position, measurement.play]
        for measurement in measurements.values()
        if (measurement.position, measurement.play) in values
    }


def check(
    act: Act,
    entries: Sequence[NewEntry],
    measurements: dict[str, Measurement],
    spec: wire.StudyCreate,
    latest: dict[str, float],
) -> None:
    """Raise Invalid, which names each wrong field, or StateConflict, if any of the entries is not allowed."""
    faults: list[dict[str, object]] = []
    stale: list[str] = []
    seen: set[str] = set()
    values = sum(entry.value is not None for entry in entries)  # they come first
    for index, entry in enumerate(entries):
        if entry.value is not None:
            field, id_field = f"values.{index}", f"values.{index}.measurement_id"
        else:
            field = id_field = f"measurement_ids.{index}" if act in ("decline", "explain") else f"void.{index - values}"
        measurement = measurements.get(entry.measurement_id)
        if entry.measurement_id in seen:
            faults.append({"field": id_field, "message": "is there twice"})
        elif measurement is None:
            faults.append({"field": id_field, "message": "is no measurement of this query"})
        elif measurement.state not in FROM[act]:
            stale.append(f"{field} is {measurement.state}: {INSTEAD[measurement.state]}")
        elif entry.expected_version not in (None, measurement.version):
            stale.append(f"{field} was answered again meanwhile: look again")
        elif entry.value is not None:
            message = fault_of(entry.value, spec)
            if latest.get(measurement.id) == entry.value:
                message = "is the value that is stored already: nothing to correct"
            if message:
                faults.append({"field": f"{field}.value", "message": message})
        seen.add(entry.measurement_id)
    if faults:
        raise Invalid.of(faults[:1_000])
    if stale:
        raise StateConflict(f"nothing was stored: {'; '.join(stale[:20])}")


def fault_of(value: float, spec: wire.StudyCreate) -> str | None:
    """Why a value cannot be a measurement of a study, or None."""
    measurement = spec.measurement
    assert not isinstance(measurement, wire.ColumnMeasurement)
    if not abs(value) <= wire.OUTCOME_MAX:  # NaN too
        return "must be a finite number"
    if measurement.lower is not None and value < measurement.lower:
        return f"is less than the smallest allowed value, {_with_unit(measurement.lower, measurement.unit)}"
    if measurement.upper is not None and value > measurement.upper:
        return f"is more than the largest allowed value, {_with_unit(measurement.upper, measurement.unit)}"
    return None


def _with_unit(value: float, unit: str | None) -> str:
    return f"{grouped(value)} {unit}" if unit else grouped(value)


def costs_again(query: MeasuredQuery, spec: wire.StudyCreate) -> bool:
    """Whether a private answer of a query has left (its version is drawn): another value is charged as a correction."""
    return query.begun > 0 and not draws_nothing(spec)


def system_of(row: Measurement) -> wire.SystemAsked | None:
    """The state of a measurement at the owner's system; None if people measure it or it is not open."""
    if row.state != "open" or (row.next_at is None and row.problem is None and not row.attempts):
        return None
    state: wire.MeasurerState = "waiting"
    if row.next_at is None:
        state = "expected" if row.problem is None else "given_up"
    next_at = moment(row.next_at) if row.next_at else None
    return wire.SystemAsked(state=state, attempts=row.attempts, next_at=next_at, problem=row.problem)


def ask(
    db: Connection,
    spec: wire.StudyCreate,
    query_id: str,
    study_id: str,
    grant_id: str,
    rows: Sequence[wire.RowPlays],
    now: datetime,
) -> datetime | None:
    """Add one open measurement for each play of each row of a query, in the transaction that charges it.

    Returns when they become overdue; None if the study sets no deadline.
    """
    measurement, shared = spec.measurement, {"query_id": query_id, "study_id": study_id}
    assert not isinstance(measurement, wire.ColumnMeasurement)
    due_at = None if measurement.due_hours is None else now + timedelta(hours=measurement.due_hours)
    query = {"grant_id": grant_id, "due_at": stamp(due_at) if due_at else None, "created_at": stamp(now)}
    next_at = stamp(now) if measurement.source == "webhook" else None
    requested = [
        shared
        | {"id": new_id("msr"), "place": index, "row": item.row}
        | {"play": play, "plays": item.plays, "next_at": next_at}
        for index, item in enumerate(rows)
        for play in range(1, item.plays + 1)
    ]
    inbox_store.add_query(db, shared | query, requested)
    return due_at
