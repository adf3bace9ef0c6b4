"""Statements of the hot path: built with SQLAlchemy, compiled once, run on the driver's own cursor.

SQLAlchemy's execution and result machinery costs five to nine times what SQLite needs for such a query (measured).
Statements that do not run at each exchange use it all the same.
"""

from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, cast

from sqlalchemy import Connection, Dialect, Insert, Select, Update
from sqlalchemy.dialects.sqlite import pysqlite

_RAW = "blindopt_driver_connection"


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

    def __init__(self, statement: Select[Any] | Insert | Update, columns: list[str] | None = None) -> None:
        compiled = statement.compile(dialect=pysqlite.dialect(), column_keys=columns)
        self.sql = str(compiled)
        self._names: list[str] = list(compiled.positiontup or ())
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        self._statement, self._columns = statement, columns
        self._all[self.sql] = self
        names = [str(column.key) for column in statement.selected_columns] if isinstance(statement, Select) else []
        self._row: Any = namedtuple("Row", names) if names else tuple

    @classmethod
    def of(cls, sql: str, dialect: Dialect) -> tuple[str, list[int]] | None:
        """The statement with this text for another database, and which of the parameters it takes; None: no such."""
        statement = cls._all.get(sql)
        if statement is None:
            return None
        plain = statement._statement
        plain = plain.inline() if isinstance(plain, Insert) else plain
        compiled = plain.compile(dialect=dialect, column_keys=statement._columns)
        return str(compiled), [statement._names.index(name) for name in compiled.positiontup or ()]

    def run(self, db: Connection, **values: Any) -> int:
        """Run an insert or an update; the number of rows that it changed."""
        return raw(db).execute(self.sql, self._bound(values)).rowcount

    def row(self, db: Connection, **values: Any) -> Any:
        """The only row, or None."""
        fields = raw(db).execute(self.sql, self._bound(values)).fetchone()
        return None if fields is None else self._row._make(fields)

    def rows(self, db: Connection, **values: Any) -> list[Any]:
        """All rows."""
        return [self._row._make(fields) for fields in raw(db).execute(self.sql, self._bound(values))]

    def row_on(self, connection: Driver, **values: Any) -> Any:
        """The only row, or None, on a connection of the driver."""
        fields = connection.execute(self.sql, self._bound(values)).fetchone()
        return None if fields is None else self._row._make(fields)

    def _bound(self, values: dict[str, Any]) -> list[Any]:
        if not self._fixed:
            return [values[name] for name in self._names]
        return [values[name] if name in values else self._fixed[name] for name in self._names]


def raw(db: Connection) -> Driver:
    """The driver's connection behind ``db``."""
    connection: Driver | None = db.__dict__.get(_RAW)
    if connection is None:  # it is the same for the life of ``db``
        connection = db.__dict__[_RAW] = db.connection.driver_connection
    return cast(Driver, connection)
