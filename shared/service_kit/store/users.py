"""Users of a console: name, role, and a slow hash of the password."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Integer, Table, Text, bindparam, select, update

from blindopt.errors import NotFound, StateConflict
from service_kit.identity.tokens import Principal, Role
from service_kit.store.base import METADATA, stamp
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

    def __repr__(self) -> str:
        return f"User({self.id}, {self.role})"

    @property
    def principal(self) -> Principal:
        """The principal of this user, with its id as the key id."""
        return Principal(id=self.id, kid=self.id, role=self.role, name=self.name)


def _user(row: Any) -> User:
    return User(row.id, row.name, row.role, row.password_hash, row.created_at, row.disabled_at)


def add(db: Connection, user: User) -> None:
    """Store a new user. Raises StateConflict if the name is taken."""
    if _NAMED.row(db, name=user.name) is not None:
        raise StateConflict("there is a user of this name, maybe a disabled one: names are never given twice")
    db.execute(
        users.insert().values(
            id=user.id,
            name=user.name,
            role=user.role,
            password_hash=user.password_hash,
            created_at=user.created_at,
        )
    )


def by_name(db: Connection, name: str) -> User | None:
    """The user of a name, disabled or not, or None."""
    row = _NAMED.row(db, name=name)
    return None if row is None else _user(row)


def is_live(db: Connection, identity: str) -> bool:
    """Whether the user exists and is not disabled."""
    row = _BY_ID.row(db, id=identity)
    return row is not None and row.disabled_at is None


def set_hash(db: Connection, identity: str, password_hash: str) -> None:
    """Replace the password hash of a user. Raises NotFound."""
    result = db.execute(update(users).where(users.c.id == identity).values(password_hash=password_hash))
    if not result.rowcount:
        raise NotFound("there is no such user")


def disable(db: Connection, identity: str, now: datetime) -> None:
    """Refuse a user from now on. Disabling it again changes nothing."""
    where = (users.c.id == identity) & users.c.disabled_at.is_(None)
    db.execute(update(users).where(where).values(disabled_at=stamp(now)))


def list_all(db: Connection) -> list[User]:
    """All users, in order of creation."""
    return [_user(row) for row in db.execute(select(users).order_by(users.c.seq))]
