"""Which database a service has: a file of SQLite, or a schema of PostgreSQL (extra ``postgres``)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, MetaData

from blindopt.errors import StateConflict
from service_kit.store.prepared_statement import Ahead, Driver, PreparedStatement
from service_kit.store.sqlite import reader_of as sqlite_reader


class Backend(Protocol):
    """What both databases do for ``Database``; ``Sqlite`` and ``Postgres`` say more."""

    @property
    def schema(self) -> Any: ...

    def writer(self) -> Connection: ...
    def begin(self, driver: Driver, ahead: Sequence[Ahead], /) -> tuple[Any, list[Any]]: ...
    def readers(self) -> Engine: ...
    def row(self, statement: PreparedStatement, values: dict[str, Any], /) -> Any: ...
    def check_pages(self, db: Connection, metadata: tuple[MetaData, ...], /) -> None: ...
    def size_bytes(self) -> int: ...
    def close(self) -> None: ...


def lead(path: Path, url: str) -> bool:
    """Wait for the lock of the leader of a schema; False after some seconds. Raises AuditUnavailable, StateConflict.

    The next database of this process at ``url`` writes in the session that has the lock.
    """
    return bool(postgres().lead(url, path.stem))


def reader_of(path: Path, url: str | None) -> Engine:
    """An engine that only reads."""
    if url is None:
        return sqlite_reader(path)
    engine: Engine = postgres().Postgres(url, path.stem).readers()
    return engine


def postgres() -> Any:
    """The module of PostgreSQL. Raises StateConflict without psycopg."""
    try:
        from service_kit.store import postgres as module
    except ImportError:
        raise StateConflict(
            "PostgreSQL needs psycopg: in a checkout of blindopt, pip install ./shared '.[postgres]'"
        ) from None
    return module
