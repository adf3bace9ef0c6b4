"""Users of a console: name, role, and a slow hash of the password."""

import hmac
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Integer, LargeBinary, Table, Text, bindparam, select, update

from blindopt.errors import NotFound, RecordChanged, StateConflict
from service_kit.identity.tokens import Principal, Role
from service_kit.store.base import METADATA, MacOf, stamp
from service_kit.store.prepared_statement import PreparedStatement

users = Table(
    "users",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("disabled_at", Text),
    Column("mac", LargeBinary),
)
_NAMED = PreparedStatement(select(users).where(users.c.name == bindparam("name")))
_BY_ID = PreparedStatement(select(users).where(users.c.id == bindparam("id")))


@dataclass(frozen=True, slots=True)
class User:
    """A user. The repr omits the hash."""

    id: str
    name: str
    role: Role
    password_hash: str
    created_at: str
    disabled_at: str | None
    mac: bytes | None = None

    def __repr__(self) -> str:
        return f"User({self.id}, {self.role})"

    @property
    def principal(self) -> Principal:
        return Principal(id=self.id, kid=self.id, role=self.role, name=self.name)


def _user(row: Any) -> User:
    return User(*row[1:])


def _mac(row: Any, mac_of: MacOf) -> bytes:
    return mac_of("user", row.id, row.name, row.role, row.password_hash, row.disabled_at)


def is_sealed(row: Any, mac_of: MacOf) -> bool:
    """Whether a row, or a ``User``, is as this service wrote it."""
    return hmac.compare_digest(row.mac or b"", _mac(row, mac_of))


def seal(db: Connection, row: Any, mac_of: MacOf) -> None:
    db.execute(update(users).where(users.c.id == row.id).values(mac=_mac(row, mac_of)))


def add(db: Connection, user: User, mac_of: MacOf) -> None:
    """Store a new user. Raises StateConflict if the name is taken."""
    if _NAMED.row(db, name=user.name) is not None:
        raise StateConflict("there is a user of this name, maybe a disabled one: names are never given twice")
    db.execute(users.insert().values(asdict(user) | {"mac": _mac(user, mac_of)}))


def by_name(db: Connection, name: str) -> User | None:
    row = _NAMED.row(db, name=name)
    return None if row is None else _user(row)


def is_live(db: Connection, identity: str) -> bool:
    row = _BY_ID.row(db, id=identity)
    return row is not None and row.disabled_at is None


def set_hash(db: Connection, identity: str, password_hash: str, mac_of: MacOf) -> None:
    """Replace the password hash of a user. Raises NotFound, and RecordChanged for a row that was changed by hand."""
    _change(db, identity, mac_of, password_hash=password_hash)


def disable(db: Connection, identity: str, now: datetime, mac_of: MacOf) -> None:
    """Refuse a user from now on. Disabling it again changes nothing. Raises as ``set_hash``."""
    if is_live(db, identity):
        _change(db, identity, mac_of, disabled_at=stamp(now))


def _change(db: Connection, identity: str, mac_of: MacOf, **values: str) -> None:
    if (row := _BY_ID.row(db, id=identity)) is None:
        raise NotFound("there is no such user")
    if not is_sealed(row, mac_of):
        raise RecordChanged("the stored record of this user was changed: nothing was done")
    db.execute(update(users).where(users.c.id == identity).values(**values))
    seal(db, _BY_ID.row(db, id=identity), mac_of)


def names(db: Connection, ids: Collection[str]) -> dict[str, str]:
    rows = db.execute(select(users.c.id, users.c.name).where(users.c.id.in_(sorted(ids))))
    return {row.id: row.name for row in rows}


def list_all(db: Connection) -> list[User]:
    return [_user(row) for row in db.execute(select(users).order_by(users.c.seq))]
