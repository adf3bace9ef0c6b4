"""Statements of the hot path: built with SQLAlchemy, compiled once, run on the driver's own cursor.

SQLAlchemy's execution and result machinery costs five to nine times what SQLite needs for such a query (measured).
Statements that do not run at each exchange use it all the same.
"""

import sqlite3
from collections import namedtuple
from typing import Any, cast

from sqlalchemy import Connection, Insert, Select, Update
from sqlalchemy.dialects.sqlite import pysqlite

_RAW = "blindopt_driver_connection"


class PreparedStatement:
    """One statement. Parameters are the names of its ``bindparam``s, or the columns of an insert."""

    def __init__(self, statement: Select[Any] | Insert | Update, columns: list[str] | None = None) -> None:
        compiled = statement.compile(dialect=pysqlite.dialect(), column_keys=columns)
        self.sql = str(compiled)
        self._names: list[str] = list(compiled.positiontup or ())
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        columns = [str(column.key) for column in statement.selected_columns] if isinstance(statement, Select) else []
        self._row: Any = namedtuple("Row", columns) if columns else tuple

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

    def row_on(self, connection: sqlite3.Connection, **values: Any) -> Any:
        """The only row, or None, on a connection of the driver."""
        fields = connection.execute(self.sql, self._bound(values)).fetchone()
        return None if fields is None else self._row._make(fields)

    def _bound(self, values: dict[str, Any]) -> list[Any]:
        if not self._fixed:
            return [values[name] for name in self._names]
        return [values[name] if name in values else self._fixed[name] for name in self._names]


def raw(db: Connection) -> sqlite3.Connection:
    """The driver's connection behind ``db``."""
    connection: sqlite3.Connection | None = db.__dict__.get(_RAW)
    if connection is None:  # it is the same for the life of ``db``
        connection = db.__dict__[_RAW] = db.connection.driver_connection
    return cast(sqlite3.Connection, connection)
