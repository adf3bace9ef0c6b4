"""What every table shares: one schema, one way to write time."""

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import Connection, MetaData, Table, func, select

from service_kit.store.schema import Migrations

Clock = Callable[[], datetime]
METADATA = MetaData()
MIGRATIONS: Migrations = {}
"""Of the tables that both services have."""
APPEND_ONLY = ("log", "shared", "receipts", "keys", "countersignatures", "replies")


def utc_now() -> datetime:
    """The machine's clock, in UTC."""
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """RFC 3339 UTC with microseconds: sorts as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def states(db: Connection, jobs: Table) -> dict[str, int]:
    """How many rows of a table of jobs are in each state."""
    counted = select(jobs.c.state, func.count()).group_by(jobs.c.state)
    return {row[0]: row[1] for row in db.execute(counted)}


def moment(text: str) -> datetime:
    """The reverse of ``stamp``."""
    return datetime.fromisoformat(text)
