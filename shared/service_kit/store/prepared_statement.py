"""Statements of the hot path: built with SQLAlchemy, compiled once, run on the driver's own cursor.

SQLAlchemy's execution and result machinery costs five to nine times what SQLite needs for such a query (measured).
Statements that do not run at each exchange use it all the same.

A statement may be ``kept``: the one connection that writes remembers its row until its table is written, by whatever
statement, a transaction or a part of it is undone, or another connection has written (``Database``). An insert by a
``PreparedStatement`` changes only the rows that are looked up by values that it has. Rows that were read ahead, at the
begin of a transaction, are in the same memory, until they are used.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Protocol

from sqlalchemy import Connection, Dialect, Insert, Select, Update, event
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList, ColumnClause

_RAW = "blindopt_driver_connection"
_MEMORY = "blindopt_memory"
_UNKNOWN = object()
_DIALECT = pysqlite.dialect(paramstyle="qmark")  # by name, the driver looks up each value for each run
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

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Rows: ...
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
        fixed = {name: value for name, value in compiled.params.items() if value is not None}
        self._order = list(compiled.positiontup or ())
        in_order = _tuple_of(self._order)
        self.bound = (lambda values: in_order({**fixed, **values})) if fixed else in_order
        """All its parameters, in order, from those by name that are not fixed."""
        self._statement, self._columns = statement, columns
        self._all[self.sql] = self
        names = [str(column.key) for column in statement.selected_columns] if isinstance(statement, Select) else []
        kind = namedtuple("Row", names) if names else tuple
        self._made: Callable[[Iterable[Any]], Any] = partial(tuple.__new__, kind)
        tables = statement.get_final_froms() if isinstance(statement, Select) else [statement.table]
        self.table = str(tables[0].name) if len(tables) == 1 and hasattr(tables[0], "name") else ""
        """The table that it writes or reads; empty where it reads several."""
        self._kept = kept
        by = _equalities(statement) if isinstance(statement, Select) else {}
        self._values: Callable[[Mapping[str, Any]], Any] = _values if by is None else _tuple_of(list(by))
        self._looked_up = None if by is None else frozenset(by.values())
        """The columns by whose values alone its row is looked up; None: also by others."""
        self._values_of_columns = _tuple_of(list((by or {}).values()))
        self._is_insert = isinstance(statement, Insert)
        if kept:
            self._remembered.setdefault(self.table, set()).add(self)

    @classmethod
    def of(cls, sql: str, dialect: Dialect) -> tuple[str, list[int]] | None:
        """The statement with this text for another database, and where in ``bound`` its parameters are, in order.

        None: there is no such statement.
        """
        statement = cls._all.get(sql)
        if statement is None:
            return None
        plain = statement._statement
        plain = plain.inline() if isinstance(plain, Insert) else plain
        compiled = plain.compile(dialect=dialect, column_keys=statement._columns)
        return str(compiled), [statement._order.index(name) for name in compiled.positiontup or ()]

    def run(self, db: Connection, **values: Any) -> int:
        """Run an insert or an update; the number of rows that it changed."""
        memory: Memory | None = db.__dict__.get(_MEMORY)
        rows = memory.get(self.table) if memory else None
        if rows:
            self._forget(rows, values)
        return raw(db).execute(self.sql, self.bound(values)).rowcount

    def _forget(self, rows: dict[Any, Any], values: dict[str, Any]) -> None:
        for reader in self._remembered.get(self.table, ()):
            if not self._is_insert or reader._looked_up is None or not values.keys() >= reader._looked_up:
                rows.clear()
            else:
                rows.pop((reader, reader._values_of_columns(values)), None)

    def row(self, db: Connection, **values: Any) -> Any:
        memory = db.__dict__.get(_MEMORY)
        rows = None if memory is None else memory.get(self.table)
        if rows:
            key = self, self._values(values)
            row = rows.get(key, _UNKNOWN) if self._kept else rows.pop(key, _UNKNOWN)
            if row is not _UNKNOWN:
                return row
        row = self.row_on(raw(db), **values)
        if self._kept and (rows := remembered(db, self.table)) is not None:
            rows[self, self._values(values)] = row
        return row

    def is_known(self, db: Connection, values: Mapping[str, Any]) -> bool:
        """Whether its row is in the memory of a connection."""
        return (self, self._values(values)) in (remembered(db, self.table) or {})

    def read_ahead(self, db: Connection, fields: Any, values: Mapping[str, Any]) -> None:
        """Remember the row that was read at the begin of a transaction, until ``row`` returns it."""
        rows = remembered(db, self.table)
        if self._looked_up is not None and rows is not None:
            self._remembered.setdefault(self.table, set()).add(self)
            rows[self, self._values(values)] = self.made(fields)

    def remember(self, db: Connection, row: tuple[Any, ...], /, **values: Any) -> None:
        """Remember the row of a kept statement, after a write of its table by which the caller knows it."""
        if (rows := remembered(db, self.table)) is not None:
            rows[self, self._values(values)] = self._made(row)

    def rows(self, db: Connection, **values: Any) -> list[Any]:
        return [self._made(fields) for fields in raw(db).execute(self.sql, self.bound(values))]

    def row_on(self, connection: Driver, **values: Any) -> Any:
        """The only row, or None, on a connection of the driver."""
        fields = connection.execute(self.sql, self.bound(values)).fetchone()
        return None if fields is None else self._made(fields)

    def made(self, fields: Any) -> Any:
        """The row with these fields, in order; None of None."""
        return None if fields is None else self._made(fields)


def _values(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(values.values())


def _tuple_of(names: list[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """What returns the values of these names as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return (lambda values: (values[names[0]],)) if names else lambda values: ()


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
    parameters = (each for each in visitors.iterate(statement) if isinstance(each, BindParameter))
    return by if {each.key for each in parameters if each.required} == by.keys() else None


def raw(db: Connection) -> Driver:
    connection: Driver | None = db.__dict__.get(_RAW)
    if connection is None:  # it is the same for the life of ``db``
        connection = db.__dict__[_RAW] = db.connection.driver_connection
        assert connection is not None
    return connection


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
    db.__dict__.get(_MEMORY, {}).clear()


def remembered(db: Connection, table: str) -> dict[Any, Any] | None:
    """What a connection remembers of a table, to read and add to; None for a connection that remembers nothing."""
    memory: Memory | None = db.__dict__.get(_MEMORY)
    if memory is None:
        return None
    rows = memory.get(table)
    if rows is None:
        rows = memory[table] = {}
    elif len(rows) > REMEMBERED_MAX:
        rows.clear()
    return rows
