"""What every table shares: one schema, one way to write time."""

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import MetaData

Clock = Callable[[], datetime]
METADATA = MetaData()
APPEND_ONLY = ("log", "shared", "receipts", "keys", "countersignatures", "replies")


def stamp(moment: datetime) -> str:
    """RFC 3339 UTC with microseconds: sorts as text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def moment(text: str) -> datetime:
    """The reverse of ``stamp``."""
    return datetime.fromisoformat(text)
