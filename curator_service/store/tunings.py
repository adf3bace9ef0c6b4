"""The tables of tunings: the jobs, and the append-only ledger of their charges by validation file."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, Table, Text, func, select, update

from blindopt.errors import NotFound
from curator_service.privacy.ledger import exact
from curator_service.store import datasets
from curator_service.store.base import METADATA
from service_kit.store.database import Connection

tunings = Table(
    "tunings",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("dataset_id", Text, ForeignKey("datasets.id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("report", Text, nullable=False),
    Column("progress", Float, nullable=False),
    Column("outcome", Text),
    Column("salt", Text, nullable=False),
    Column("problem", Text),
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
)
_ledger = Table(
    "tuning_ledger",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("account", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("tuning_id", Text),
    Column("epsilon", Text, nullable=False),
    Column("delta", Text, nullable=False),
    Column("cap", Text),
    Column("cap_epsilon", Text),
    Column("cap_delta", Text),
    Column("total_epsilon", Text, nullable=False),
    Column("total_delta", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Index("tuning_ledger_by_account", "account", "seq"),
)
_RUNNING = tunings.c.state == "running"


@dataclass(frozen=True, slots=True)
class Account:
    """The amounts that tunings on one file have spent, and their caps (None: none was declared yet)."""

    epsilon: Decimal = Decimal(0)
    delta: Decimal = Decimal(0)
    cap_epsilon: Decimal | None = None
    cap_delta: Decimal | None = None
    closed: bool = False


def find(db: Connection, identity: str) -> Any:
    """The tuning with this id. Raises NotFound."""
    row = db.execute(select(tunings).where(tunings.c.id == identity)).one_or_none()
    if row is None:
        raise NotFound("there is no such tuning")
    return row


def page(db: Connection, *, after: int, limit: int) -> list[Any]:
    """Tunings in order of sequence number."""
    return list(db.execute(select(tunings).where(tunings.c.seq > after).order_by(tunings.c.seq).limit(limit)))


def running(db: Connection) -> list[str]:
    """Ids of tunings that have not ended."""
    return list(db.execute(select(tunings.c.id).where(_RUNNING).order_by(tunings.c.seq)).scalars())


def count_running(db: Connection) -> int:
    """How many tunings have not ended."""
    return int(db.execute(select(func.count()).where(_RUNNING)).scalar_one())


def end(db: Connection, identity: str, **values: Any) -> bool:
    """End a tuning; False, and nothing is changed, if it has ended already."""
    where = (tunings.c.id == identity) & _RUNNING
    return bool(db.execute(update(tunings).where(where).values(**values)).rowcount)


def every(db: Connection) -> Iterable[Any]:
    """All tunings in order; streamed."""
    return db.execute(select(tunings).order_by(tunings.c.seq))


def account_name(db: Connection, dataset: Any) -> str:
    """The account of a dataset: the id under which its file was registered first, since its records are the same."""
    same = select(datasets.c.id).where(datasets.c.sha256 == dataset.sha256)
    return str(db.execute(same.order_by(datasets.c.seq).limit(1)).scalar_one())


def accounts(db: Connection) -> list[str]:
    """Every account that is not closed."""
    first = select(func.min(datasets.c.seq)).group_by(datasets.c.sha256)
    query = select(datasets.c.id).where(datasets.c.seq.in_(first)).order_by(datasets.c.seq)
    return [account for account in db.execute(query).scalars() if not account_of(db, account).closed]


def account_of(db: Connection, account: str) -> Account:
    """The account with this name."""
    last = select(_ledger).where(_ledger.c.account == account).order_by(_ledger.c.seq.desc()).limit(1)
    row = db.execute(last).one_or_none()
    if row is None:
        return Account()
    return Account(
        Decimal(row.total_epsilon),
        Decimal(row.total_delta),
        None if row.cap_epsilon is None else Decimal(row.cap_epsilon),
        None if row.cap_delta is None else Decimal(row.cap_delta),
        row.kind == "closed",  # no line follows one that closes
    )


def add(
    db: Connection,
    account: str,
    kind: str,
    *,
    after: Account,
    at: str,
    tuning_id: str | None = None,
    epsilon: Decimal = Decimal(0),
    delta: Decimal = Decimal(0),
    cap: str | None = None,
) -> None:
    """Add a line, in the transaction that checked it."""
    values = {
        "account": account,
        "kind": kind,
        "tuning_id": tuning_id,
        "epsilon": exact(epsilon),
        "delta": exact(delta),
        "cap": cap,
        "cap_epsilon": None if after.cap_epsilon is None else exact(after.cap_epsilon),
        "cap_delta": None if after.cap_delta is None else exact(after.cap_delta),
        "total_epsilon": exact(after.epsilon),
        "total_delta": exact(after.delta),
        "created_at": at,
    }
    db.execute(_ledger.insert().values(values))


def lines(db: Connection, account: str, *, after: int, limit: int) -> list[Any]:
    """Lines of an account in order."""
    where = (_ledger.c.account == account) & (_ledger.c.seq > after)
    return list(db.execute(select(_ledger).where(where).order_by(_ledger.c.seq).limit(limit)))


def all_lines(db: Connection) -> Iterable[Any]:
    """All lines of all accounts in order; streamed."""
    return db.execute(select(_ledger).order_by(_ledger.c.seq))
