"""Which database a service has: a file of SQLite, or a schema of PostgreSQL (extra ``postgres``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, MetaData

from blindopt.errors import StateConflict
from service_kit.store.prepared_statement import Ahead, Driver, PreparedStatement
from service_kit.store.sqlite import Sqlite
from service_kit.store.sqlite import reader_of as sqlite_reader


class Backend(Protocol):
    """What ``Database`` needs of one; ``Sqlite`` and ``Postgres`` say more."""

    @property
    def schema(self) -> Any: ...
    @property
    def is_near(self) -> bool: ...
    @property
    def is_lost(self) -> bool: ...

    def connect(self) -> Connection: ...
    def begin(self, driver: Driver, ahead: Sequence[Ahead], /) -> tuple[Any, list[Any]]: ...
    def version(self, driver: Driver, /) -> Any: ...
    def rewrite(self, db: Connection, /) -> None: ...
    def open_readers(self) -> Engine: ...
    def row(self, statement: PreparedStatement, values: dict[str, Any], /) -> Any: ...
    async def row_soon(self, statement: PreparedStatement, values: dict[str, Any], /) -> Any: ...
    async def answer(self) -> None: ...
    def abandon(self) -> None: ...
    def forget_old_pages(self) -> None: ...
    def copy(self, target: Path, /) -> None: ...
    def size_bytes(self) -> int: ...
    def replicas_behind(self) -> list[int | None]: ...
    def rights_of(self, role: str, metadata: tuple[MetaData, ...], append_only: tuple[str, ...], /) -> str: ...
    def close(self) -> None: ...


def of(path: Path, url: str | None) -> Backend:
    """The database of a file, or with ``url`` the schema that has the name of the file. Raises StateConflict."""
    if url is None:
        return Sqlite(path)
    made: Backend = _postgres().Postgres(url, path.stem)
    return made


def lead(path: Path, url: str) -> bool:
    """Wait for the lock of the leader of a schema; False after some seconds. Raises AuditUnavailable, StateConflict.

    The next database of this process at ``url`` writes in the session that has the lock.
    """
    return bool(_postgres().lead(url, path.stem))


def reader_of(path: Path, url: str | None) -> Engine:
    """An engine that only reads."""
    if url is None:
        return sqlite_reader(path)
    engine: Engine = _postgres().Postgres(url, path.stem).open_readers()
    return engine


def _postgres() -> Any:
    try:
        from service_kit.store import postgres
    except ImportError:
        raise StateConflict("PostgreSQL needs psycopg: pip install 'blindopt-services[postgres]'") from None
    return postgres
