"""Statements of the hot path: built with SQLAlchemy, compiled once, run on the driver's own cursor.

SQLAlchemy's execution and result machinery costs five to nine times what SQLite needs for such a query (measured).
Statements that do not run at each exchange use it all the same.

A statement may be ``kept``: the one connection that writes remembers its row until its table is written, by whatever
statement, a transaction or a part of it is undone, or another connection has written (``Database``). An insert by a
``PreparedStatement`` changes only the rows that are looked up by values that it has. Rows that were read ahead, at the
begin of a transaction, are in the same memory, until they are used.
"""

from collections import namedtuple
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, cast

from sqlalchemy import Connection, Dialect, Insert, Select, Update, event
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList, ColumnClause

_RAW = "blindopt_driver_connection"
_MEMORY = "blindopt_memory"
_DIALECT = pysqlite.dialect(paramstyle="named")  # the driver takes the values by name: no list is made of them
REMEMBERED_MAX = 1_000
"""Rows of one table."""
Memory = dict[str, dict[Any, Any]]
"""What a connection remembers, by table."""
Ahead = tuple["PreparedStatement", dict[str, Any]]
"""A statement, with its values, whose row a transaction will read."""


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
    _remembered: ClassVar[dict[str, set["PreparedStatement"]]] = {}
    """Those whose rows may be in memory, by table."""

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
        self.table = str(tables[0].name) if len(tables) == 1 and hasattr(tables[0], "name") else ""
        """The table that it writes or reads; empty where it reads several."""
        self._kept = kept
        self._by = _equalities(statement) if isinstance(statement, Select) else {}
        self._is_insert = isinstance(statement, Insert)
        if kept:
            self._remembered.setdefault(self.table, set()).add(self)

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
            self._forget(memory, values)
        return raw(db).execute(self.sql, self.bound(values)).rowcount

    def _forget(self, memory: Memory, values: dict[str, Any]) -> None:
        rows = memory.get(self.table)
        for reader in self._remembered.get(self.table, ()) if rows else ():
            assert rows is not None
            if not self._is_insert or reader._by is None or not values.keys() >= set(reader._by.values()):
                rows.clear()
            else:
                rows.pop((reader, *[values[column] for column in reader._by.values()]), None)

    def _key(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return (self, *([values[name] for name in self._by] if self._by is not None else values.values()))

    def row(self, db: Connection, **values: Any) -> Any:
        """The only row, or None."""
        memory = remembered(db, self.table)
        if memory:
            key = self._key(values)
            if key in memory:
                return memory[key] if self._kept else memory.pop(key)
        fields = raw(db).execute(self.sql, self.bound(values)).fetchone()
        row = self.made(fields)
        if self._kept and memory is not None:
            memory[self._key(values)] = row
        return row

    def is_known(self, db: Connection, values: Mapping[str, Any]) -> bool:
        """Whether its row is in the memory of a connection."""
        return self._key(values) in (remembered(db, self.table) or {})

    def read_ahead(self, db: Connection, fields: Any, values: Mapping[str, Any]) -> None:
        """Remember the row that was read at the begin of a transaction, until ``row`` returns it."""
        memory = remembered(db, self.table)
        if memory is not None and self._by is not None:
            self._remembered.setdefault(self.table, set()).add(self)
            memory[self._key(values)] = self.made(fields)

    def remember(self, db: Connection, row: tuple[Any, ...], /, **values: Any) -> None:
        """Remember the row of a kept statement, after a write of its table by which the caller knows it."""
        memory = remembered(db, self.table)
        if memory is not None:
            memory[self._key(values)] = self._row._make(row)

    def rows(self, db: Connection, **values: Any) -> list[Any]:
        """All rows."""
        return [self._row._make(fields) for fields in raw(db).execute(self.sql, self.bound(values))]

    def row_on(self, connection: Driver, **values: Any) -> Any:
        """The only row, or None, on a connection of the driver."""
        return self.made(connection.execute(self.sql, self.bound(values)).fetchone())

    def made(self, fields: Any) -> Any:
        """The row with these fields, in order; None of None."""
        return None if fields is None else self._row._make(fields)

    def bound(self, values: dict[str, Any]) -> dict[str, Any]:
        """All its parameters."""
        return {**self._fixed, **values} if self._fixed else values


def _equalities(statement: Select[Any]) -> dict[str, str] | None:
    """By parameter, the column that it must equal; None where a parameter is used otherwise.

    Whatever else a row must be only makes rows fewer: a row without these values is not among them.
    """
    where = statement.whereclause
    parts = (
        list(where.clauses) if isinstance(where, BooleanClauseList) and where.operator is operators.and_ else [where]
    )
    by = {
        part.right.key: str(part.left.key)
        for part in parts
        if isinstance(part, BinaryExpression) and part.operator is operators.eq
        if isinstance(part.left, ColumnClause) and isinstance(part.right, BindParameter) and part.right.required
    }
    required = {each.key for each in _parameters(statement) if each.required}
    return by if required == by.keys() else None


def _parameters(statement: Select[Any]) -> Iterator[BindParameter[Any]]:
    return (each for each in visitors.iterate(statement) if isinstance(each, BindParameter))


def raw(db: Connection) -> Driver:
    """The driver's connection behind ``db``."""
    connection: Driver | None = db.__dict__.get(_RAW)
    if connection is None:  # it is the same for the life of ``db``
        connection = db.__dict__[_RAW] = db.connection.driver_connection
    return cast(Driver, connection)


def remember_rows(db: Connection) -> Memory:
    """Let a connection that is the only one to write remember; return what it remembers, for its owner to clear.

    A statement that SQLAlchemy runs on it and that may write clears it.
    """
    memory: Memory = db.__dict__.setdefault(_MEMORY, {})

    @event.listens_for(db.engine, "before_cursor_execute")
    def on_execute(db: object, cursor: object, statement: str, *more: object) -> None:
        if not statement.lstrip().upper().startswith("SELECT"):
            memory.clear()

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
