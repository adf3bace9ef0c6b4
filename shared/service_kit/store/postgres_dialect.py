"""The tables of the services in PostgreSQL's SQL: what SQLAlchemy's own dialect does otherwise.

Integers are BIGINT and text compares by code point (collation "C"), as in SQLite. A sequence number is one more than
the largest, which needs one writer at a time. What ``as_json`` takes out of JSON has no NUL, as
``postgres_session.without_nul`` stores text.
"""

from typing import Any

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql import psycopg as base
from sqlalchemy.dialects.postgresql.base import PGDDLCompiler, PGTypeCompiler
from sqlalchemy.sql.sqltypes import String

NAME = "blindopt_postgresql"
FUNCTIONS = r"""
CREATE FUNCTION as_json(body text) RETURNS json LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT CASE WHEN strpos(body, '\u000') = 0 THEN body ELSE replace(replace(replace(body,
    '\\', '\u005c'), '\u0001', '\u0001\u0002'), '\u0000', '\u0001\u0001') END::json $$;
CREATE FUNCTION kind_of(body bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN RETURN SCHEMA.as_json(convert_from(body, 'UTF8')) ->> 'kind';
EXCEPTION WHEN data_exception THEN RETURN NULL; END $$
"""


class _Types(PGTypeCompiler):
    def visit_INTEGER(self, type_: Any, **kw: Any) -> str:  # noqa: N802  SQLAlchemy's name
        return "BIGINT"


class _Tables(PGDDLCompiler):
    def get_column_specification(self, column: Any, **kwargs: Any) -> str:
        """A column; the sequence number gets the next one where none is given."""
        words = [self.preparer.format_column(column), self.dialect.type_compiler_instance.process(column.type)]
        if isinstance(column.type, String):
            words.append('COLLATE "C"')
        if column.computed is not None:
            words.append("GENERATED ALWAYS AS (kind_of(body)) STORED")
        elif column is column.table.autoincrement_column:
            words.append(f"DEFAULT next_of_{column.table.name}()")
        elif (default := self.get_column_default_string(column)) is not None:
            words.append(f"DEFAULT {default}")
        return " ".join([*words, *([] if column.nullable else ["NOT NULL"])])

    def visit_create_index(self, create: Any, *args: Any, **kw: Any) -> str:
        """An index; where it is of some rows alone, as the table says for SQLite."""
        options = create.element.dialect_options
        options["postgresql"]["where"] = options["sqlite"]["where"]
        return str(super().visit_create_index(create, *args, **kw))


class _Statements(base.PGCompiler_psycopg):
    def limit_clause(self, select: Any, **kw: Any) -> str:
        """A limit; in the text of a ``PreparedStatement`` its number, so that the server plans for so few."""
        limit = getattr(select._limit_clause, "value", None)
        if self.dialect.paramstyle == "numeric_dollar" and limit is not None and select._offset_clause is None:
            return f" \n LIMIT {limit:d}"
        return str(super().limit_clause(select, **kw))


class Dialect(base.PGDialect_psycopg):
    """PostgreSQL by psycopg 3, for the tables of the services."""

    supports_statement_cache = True
    type_compiler_cls = _Types
    ddl_compiler = _Tables
    statement_compiler = _Statements


registry.register(NAME, __name__, "Dialect")
