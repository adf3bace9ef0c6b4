"""The tables of private bounds and labels, by dataset, and of withheld records, append-only by the file's account."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    delete,
    select,
    update,
)

from curator_service.store.base import METADATA
from service_kit.store.database import Connection
from service_kit.store.prepared_statement import PreparedStatement

bounds = Table(
    "bounds",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("spec", Text, nullable=False),
    Column("result", Text),  # null: charged, and interrupted before its draw
    Column("created_at", Text, nullable=False),
)


def find_bounds(db: Connection, bounds_id: str) -> Any:
    return db.execute(select(bounds).where(bounds.c.id == bounds_id)).one_or_none()


def add_bounds(db: Connection, bounds_id: str, dataset_id: str, spec: str, at: str) -> None:
    """Record bounds without a result, in the transaction of their charge."""
    values = {"id": bounds_id, "dataset_id": dataset_id, "spec": spec, "created_at": at}
    db.execute(bounds.insert(), values)


def settle_bounds(db: Connection, bounds_id: str, result: str) -> None:
    """Store the result of bounds that have none; the first one stays."""
    where = (bounds.c.id == bounds_id) & bounds.c.result.is_(None)
    db.execute(update(bounds).where(where).values(result=result))


def bounds_of(db: Connection, dataset_ids: Iterable[str], *, after: int, limit: int) -> list[Any]:
    where = bounds.c.dataset_id.in_(list(dataset_ids)) & (bounds.c.seq > after)
    return list(db.execute(select(bounds).where(where).order_by(bounds.c.seq).limit(limit)))


labels = Table(
    "labels",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("dataset", Text, ForeignKey("datasets.id"), nullable=False),
    Column("block", Integer, nullable=False),
    Column("sealed_texts", LargeBinary, nullable=False),
    UniqueConstraint("dataset", "block"),
)


def add_labels(db: Connection, dataset_id: str, blocks: Iterable[bytes]) -> None:
    rows = [{"dataset": dataset_id, "block": i, "sealed_texts": block} for i, block in enumerate(blocks)]
    if rows:
        db.execute(labels.insert(), rows)


def label_block(db: Connection, dataset_id: str, block: int) -> bytes | None:
    where = (labels.c.dataset == dataset_id) & (labels.c.block == block)
    sealed: bytes | None = db.execute(select(labels.c.sealed_texts).where(where)).scalar_one_or_none()
    return sealed


def label_blocks(db: Connection, dataset_id: str) -> Iterable[bytes]:
    query = select(labels.c.sealed_texts).where(labels.c.dataset == dataset_id).order_by(labels.c.block)
    return db.execute(query).scalars()


def forget_labels(db: Connection, dataset_id: str) -> None:
    """Delete the labels of a dataset; the database overwrites them."""
    db.execute(delete(labels).where(labels.c.dataset == dataset_id))


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
ANY_WITHHELD = PreparedStatement(
    select(withheld.c.seq).where(withheld.c.account == bindparam("account")).limit(1), kept=True
)


def record_unit(number: int) -> str:
    """The unit of a record by its number in the file, from 1."""
    return f"record {number}"


def person_unit(digest: bytes) -> str:
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
    db.execute(withheld.insert(), {"account": account, "unit": unit, "salt": salt, "created_at": at})


def units(db: Connection, account: str) -> frozenset[str]:
    if ANY_WITHHELD.row(db, account=account) is None:
        return frozenset()
    return frozenset(db.execute(select(withheld.c.unit).where(withheld.c.account == account)).scalars())


def of_persons(db: Connection) -> list[str]:
    return list(db.execute(select(withheld.c.unit).where(withheld.c.unit.startswith("person ")).distinct()).scalars())
