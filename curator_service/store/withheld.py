"""The table of withheld records: append-only, by the account of the dataset's file."""

from collections.abc import Iterable

from sqlalchemy import Column, Integer, Table, Text, UniqueConstraint, bindparam, select

from curator_service.store.base import METADATA
from service_kit.store.database import Connection
from service_kit.store.prepared_statement import PreparedStatement

withheld = Table(
    "withheld",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("account", Text, nullable=False),
    Column("unit", Text, nullable=False),  # the number of a record, or the digest of a person
    Column("salt", Text, nullable=False),  # of the unit's digest in the log
    Column("created_at", Text, nullable=False),
    UniqueConstraint("account", "unit"),
)
_ANY = PreparedStatement(select(withheld.c.seq).where(withheld.c.account == bindparam("account")).limit(1), kept=True)


def record_unit(number: int) -> str:
    """The unit of a record by its number in the file, from 1."""
    return f"record {number}"


def person_unit(digest: bytes) -> str:
    """The unit of a person by the keyed digest."""
    return f"person {digest.hex()}"


def numbers_and_persons(units: Iterable[str]) -> tuple[set[int], set[bytes]]:
    """The numbers of withheld records, and the digests of withheld persons.

    >>> numbers_and_persons([record_unit(17), person_unit(b"ab")])
    ({17}, {b'ab'})
    """
    named = [unit.split(" ", 1) for unit in units]
    numbers = {int(name) for kind, name in named if kind == "record"}
    return numbers, {bytes.fromhex(name) for kind, name in named if kind == "person"}


def withhold(db: Connection, account: str, unit: str, salt: str, at: str) -> None:
    """Withhold a unit."""
    db.execute(withheld.insert(), {"account": account, "unit": unit, "salt": salt, "created_at": at})


def units(db: Connection, account: str) -> frozenset[str]:
    """The units of an account that are withheld."""
    if _ANY.row(db, account=account) is None:
        return frozenset()
    return frozenset(db.execute(select(withheld.c.unit).where(withheld.c.account == account)).scalars())
