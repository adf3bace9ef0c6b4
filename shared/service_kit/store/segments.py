"""Archived segments of the own log: what stays of them in the database, and the deletion of their records."""

import json
from typing import Any

from sqlalchemy import Column, Connection, Integer, Table, Text, select, text, update

from blindopt.audit.merkle_log import Json, sha256
from blindopt.audit.segments import name_of
from blindopt.errors import Archived
from service_kit.store.base import ARCHIVED_KINDS, ERASABLE, METADATA
from service_kit.store.prepared_statement import PreparedStatement
from service_kit.store.schema import is_postgres, unguarded

_segments = Table(
    "segments",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("size", Integer, nullable=False),  # of the log at its end
    Column("sha256", Text, nullable=False),  # of its file
    Column("note", Text, nullable=False),  # the signed checkpoint of its end
    Column("positions", Text, nullable=False),  # the last of each grant's exchanges in it
    Column("summary", Text, info=ERASABLE),  # of all records until its end; null once there is a later segment
)
LAST = PreparedStatement(select(_segments).order_by(_segments.c.number.desc()).limit(1), kept=True)
_SIZE = PreparedStatement(select(_segments.c.size).order_by(_segments.c.number.desc()).limit(1), kept=True)
"""Without the summary, which may have millions of characters."""


def every(db: Connection) -> list[Any]:
    return list(db.execute(select(_segments).order_by(_segments.c.number)))


def size(db: Connection) -> int:
    """How many records of the own log are archived."""
    last = _SIZE.row(db)
    return 0 if last is None else int(last.size)


def details(row: Any) -> Json:
    """What the record ``log.archived`` has of a segment."""
    return {
        "segment": name_of(row.number),
        "size": row.size,
        "sha256": row.sha256,
        "note_sha256": sha256(row.note.encode()),
        "positions_sha256": sha256(row.positions.encode()),
        "summary_sha256": sha256((row.summary or "").encode()),
    }


def add(db: Connection, **row: Any) -> Json:
    """Add a segment, delete its records and the shared ones before the last of each grant; details for the log.

    The last record of the segment stays, as do those of the kinds that are read at any age.
    """
    with unguarded(db, _segments.name):
        db.execute(update(_segments).where(_segments.c.summary.is_not(None)).values(summary=None))
    db.execute(_segments.insert().values(row))
    if is_postgres(db):
        db.execute(text("SELECT delete_archived()"))
    else:
        with unguarded(db, "log"), unguarded(db, "shared"):
            kinds = ", ".join(f"'{kind}'" for kind in ARCHIVED_KINDS)
            db.execute(text(f"DELETE FROM log WHERE seq < :end AND kind IN ({kinds})"), {"end": row["size"] - 1})
            for grant, position in json.loads(row["positions"]).items():
                values = {"grant": grant, "position": position}
                db.execute(text("DELETE FROM shared WHERE grant_id = :grant AND seq < :position"), values)
    return details(LAST.row(db))


def check_present(db: Connection, grant_id: str | None, position: int) -> None:
    """Raise Archived for a position of the own log, or of one that is shared with a grant, in an archived segment."""
    rows = every(db)
    lasts = [row.size - 1 if grant_id is None else json.loads(row.positions).get(grant_id, -1) for row in rows]
    for row, last in zip(rows, lasts, strict=True):
        if position <= last and position != max(lasts):
            raise Archived(f"the record is in the archived segment {name_of(row.number)}")
