"""Statements of the hot path: built with SQLAlchemy, compiled once, run on the driver's own cursor.

SQLAlchemy's execution and result machinery costs five to nine times what SQLite needs for such a query (measured).
Statements that do not run at each exchange use it all the same.

A statement may be ``kept``: the one connection that writes remembers its row until its table is written, by whatever
statement, a transaction or a part of it is undone, or another connection has written (``Database``).
"""

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

from sqlalchemy import Connection, Dialect, Insert, Select, Update
from sqlalchemy.dialects.sqlite import pysqlite

_RAW = "blindopt_driver_connection"
_MEMORY = "blindopt_memory"
_DIALECT = pysqlite.dialect(paramstyle="named")  # the driver takes the values by name: no list is made of them
REMEMBERED_MAX = 1_000
"""Rows of one table."""
Memory = dict[str, dict[Any, Any]]
"""What a connection remembers, by table."""


class Rows(Protocol):
    """What a driver returns for a statement."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


class Driver(Protocol):
    """The connection of a driver: of ``sqlite3``, or ``postgres_session.Session``."""

    def execute(self, sql: str, parameters: Mapping[str, Any] = ..., /) -> Rows: ...
    @property
    def in_transaction(self) -> bool: ...


class PreparedStatement:
    """One statement. Parameters are the names of its ``bindparam``s, or the columns of an insert.

    Compiled for SQLite; a driver of another database gets the same text and parameters, and runs what ``of`` returns.
    """

    _all: ClassVar[dict[str, "PreparedStatement"]] = {}

    def __init__(
        self, statement: Select[Any] | Insert | Update, columns: list[str] | None = None, *, kept: bool = False
    ) -> None:
        compiled = statement.compile(dialect=_DIALECT, column_keys=columns)
        self.sql = str(compiled)
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        self._statement, self._columns = statement, columns
        self._all[self.sql] = self
        names = [str(column.key) for column in statement.selected_columns] if isinstance(statement, Select) else []
        self._row: Any = namedtuple("Row", names) if names else tuple
        tables = statement.get_final_froms() if isinstance(statement, Select) else [statement.table]
        self.table = "" if isinstance(statement, Select) and not kept else _name(tables)
        """The table that it writes, or that a kept statement reads."""
        self._kept = kept

    @classmethod
    def of(cls, sql: str, dialect: Dialect) -> tuple[str, list[str]] | None:
        """The statement with this text for another database, and the parameters it takes in order; None: no such."""
        statement = cls._all.get(sql)
        if statement is None:
            return None
        plain = statement._statement
        plain = plain.inline() if isinstance(plain, Insert) else plain
        compiled = plain.compile(dialect=dialect, column_keys=statement._columns)
        return str(compiled), list(compiled.positiontup or ())

    def run(self, db: Connection, **values: Any) -> int:
        """Run an insert or an update; the number of rows that it changed."""
        memory = db.__dict__.get(_MEMORY)
        if memory:
            memory.pop(self.table, None)
        return raw(db).execute(self.sql, self._bound(values)).rowcount

    def row(self, db: Connection, **values: Any) -> Any:
        """The only row, or None."""
        memory = remembered(db, self.table) if self._kept else None
        key = (self, *values.values())
        if memory is not None and key in memory:
            return memory[key]
        fields = raw(db).execute(self.sql, self._bound(values)).fetchone()
        row = None if fields is None else self._row._make(fields)
        if memory is not None:
            memory[key] = row
        return row

    def remember(self, db: Connection, row: tuple[Any, ...], **values: Any) -> None:
        """Remember the row of a kept statement, after a write of its table by which the caller knows it."""
        memory = remembered(db, self.table)
        if memory is not None:
            memory[(self, *values.values())] = self._row._make(row)

    def rows(self, db: Connection, **values: Any) -> list[Any]:
        """All rows."""
        return [self._row._make(fields) for fields in raw(db).execute(self.sql, self._bound(values))]

    def row_on(self, connection: Driver, **values: Any) -> Any:
        """The only row, or None, on a connection of the driver."""
        fields = connection.execute(self.sql, self._bound(values)).fetchone()
        return None if fields is None else self._row._make(fields)

    def _bound(self, values: dict[str, Any]) -> dict[str, Any]:
        return {**self._fixed, **values} if self._fixed else values


def _name(tables: Sequence[Any]) -> str:
    (table,) = tables
    return str(table.name)


def raw(db: Connection) -> Driver:
    """The driver's connection behind ``db``."""
    connection: Driver | None = db.__dict__.get(_RAW)
    if connection is None:  # it is the same for the life of ``db``
        connection = db.__dict__[_RAW] = db.connection.driver_connection
    return cast(Driver, connection)


def remember_rows(db: Connection) -> Memory:
    """Let a connection that is the only one to write remember; return what it remembers, for its owner to clear."""
    memory: Memory = db.__dict__.setdefault(_MEMORY, {})
    return memory


def forget_rows(db: Connection) -> None:
    """Forget all that a connection remembers."""
    db.__dict__.get(_MEMORY, {}).clear()


def remembered(db: Connection, table: str) -> dict[Any, Any] | None:
    """What a connection remembers of a table, to read and add to; None for a connection that remembers nothing."""
    memory: Memory | None = db.__dict__.get(_MEMORY)
    if memory is None:
        return None
    rows = memory.setdefault(table, {})
    if len(rows) > REMEMBERED_MAX:
        rows.clear()
    return rows
