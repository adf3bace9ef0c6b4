"""Tokens of people and programs. The table holds hashes, never secrets."""

import hmac
from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Integer, LargeBinary, Table, Text, bindparam, or_, select, update

from blindopt.errors import NotFound
from service_kit.identity.tokens import Principal, Token
from service_kit.store.base import METADATA, MacOf, stamp
from service_kit.store.prepared_statement import PreparedStatement

_tokens = Table(
    "tokens",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("kid", Text, nullable=False, unique=True),
    Column("principal", Text, nullable=False, index=True),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("study_id", Text, index=True),
    Column("secret_sha256", LargeBinary, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
    Column("revoked_at", Text),
    Column("last_used_at", Text),
    Column("mac", LargeBinary),
)
FIND = PreparedStatement(select(_tokens).where(_tokens.c.kid == bindparam("kid")), kept=True)


def add(
    db: Connection, token: Token, principal: Principal, *, created: datetime, expires: datetime, mac_of: MacOf
) -> None:
    db.execute(
        _tokens.insert().values(
            kid=principal.kid,
            principal=principal.id,
            role=principal.role,
            name=principal.name,
            study_id=principal.study_id,
            secret_sha256=token.secret_sha256,
            created_at=stamp(created),
            expires_at=stamp(expires),
        )
    )
    seal(db, find(db, principal.kid), mac_of)


def _mac(row: Any, mac_of: MacOf) -> bytes:
    holder = row.kid, row.principal, row.role, row.name, row.study_id
    return mac_of("token", *holder, row.secret_sha256, row.expires_at, row.revoked_at)


def is_sealed(row: Any, mac_of: MacOf) -> bool:
    """Whether a row is as this service wrote it."""
    return hmac.compare_digest(row.mac or b"", _mac(row, mac_of))


def seal(db: Connection, row: Any, mac_of: MacOf) -> None:
    db.execute(update(_tokens).where(_tokens.c.kid == row.kid).values(mac=_mac(row, mac_of)))


def find(db: Connection, kid: str) -> Any:
    return FIND.row(db, kid=kid)


def is_live(row: Any, now: datetime) -> bool:
    return row.revoked_at is None and stamp(now) < row.expires_at


def list_all(db: Connection) -> list[Any]:
    return list(db.execute(select(_tokens).order_by(_tokens.c.seq)))


def names(db: Connection, ids: Collection[str]) -> dict[str, str]:
    """The names of these tokens and of their holders, by id."""
    listed = sorted(ids)
    query = select(_tokens).where(or_(_tokens.c.kid.in_(listed), _tokens.c.principal.in_(listed)))
    return {identity: row.name for row in db.execute(query) for identity in (row.kid, row.principal)}


def of_principal(db: Connection, principal: str, *, study_id: str | None = None) -> list[Any]:
    """The tokens of a principal, oldest first. Raises NotFound if there is none, or the study is another."""
    query = select(_tokens).where(_tokens.c.principal == principal).order_by(_tokens.c.seq)
    rows = list(db.execute(query))
    if not rows or study_id not in (None, rows[0].study_id):
        raise NotFound("no token belongs to this id: check it (`token list` shows the ids)")
    return rows


def of_study(db: Connection, study_id: str) -> list[Any]:
    return list(db.execute(select(_tokens).where(_tokens.c.study_id == study_id).order_by(_tokens.c.seq)))


def revoke(db: Connection, kid: str, now: datetime, mac_of: MacOf) -> None:
    """Refuse a token from now on. Revoking it again changes nothing. Raises NotFound."""
    if (row := find(db, kid)) is None:
        raise NotFound("no token has this key id: `token list` shows them")
    if row.revoked_at is None:
        db.execute(update(_tokens).where(_tokens.c.kid == kid).values(revoked_at=stamp(now)))
        seal(db, find(db, kid), mac_of)


def record_use(db: Connection, kid: str, at: datetime) -> None:
    db.execute(update(_tokens).where(_tokens.c.kid == kid).values(last_used_at=stamp(at)))
