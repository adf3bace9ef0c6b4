"""The schema and statements of the services in PostgreSQL's SQL: what SQLAlchemy's own dialect does otherwise.

Integers are BIGINT and text compares by code point (collation "C"), as in SQLite. A sequence number is one more than
the largest, which needs one writer at a time. Functions of SQLite that statements use are created in the schema; what
they take out of JSON has no NUL, as ``postgres_session.without_nul`` stores text.
"""

from typing import Any

from sqlalchemy import LargeBinary
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql import psycopg as base
from sqlalchemy.dialects.postgresql.base import PGDDLCompiler, PGTypeCompiler
from sqlalchemy.sql.sqltypes import String

NAME = "blindopt_postgresql"
FUNCTIONS = r"""
CREATE FUNCTION as_text(body bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT convert_from(body, 'UTF8') $$;
CREATE FUNCTION as_json(body text) RETURNS json LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT CASE WHEN strpos(body, '\u000') = 0 THEN body ELSE replace(replace(replace(body,
    '\\', '\u005c'), '\u0001', '\u0001\u0002'), '\u0000', '\u0001\u0001') END::json $$;
CREATE FUNCTION kind_of(body bytea) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN RETURN SCHEMA.as_json(convert_from(body, 'UTF8')) ->> 'kind';
EXCEPTION WHEN data_exception THEN RETURN NULL; END $$;
CREATE FUNCTION json_extract(body text, path text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT SCHEMA.as_json(body) #>> string_to_array(substr(path, 3), '.') $$;
CREATE FUNCTION json_each(body text) RETURNS TABLE (value text) LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT json_array_elements_text(SCHEMA.as_json(body)) $$;
CREATE FUNCTION instr(body bytea, part bytea) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT position(part IN body)::bigint $$;
CREATE FUNCTION instr(body text, part text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT position(part IN body)::bigint $$;
CREATE FUNCTION substr(body bytea, first bigint, count bigint) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT AS $$
SELECT substring(body FROM first::integer FOR count::integer) $$
"""


class _Types(PGTypeCompiler):
    def visit_INTEGER(self, type_: Any, **kw: Any) -> str:  # noqa: N802  SQLAlchemy's name
        return "BIGINT"

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        return "DOUBLE PRECISION"

    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:  # noqa: N802
        return "TEXT"


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
        """Negative: no limit, as in SQLite."""
        text = ""
        if select._limit_clause is not None:
            value = getattr(select._limit_clause, "value", None)
            if self.dialect.paramstyle == "numeric_dollar" and isinstance(value, int) and value >= 0:
                text += f" \n LIMIT {value}"  # of a ``PreparedStatement``: the plan is for so few
            else:
                text += f" \n LIMIT NULLIF({self.process(select._limit_clause, **kw)}, -1)"
        if select._offset_clause is not None:
            text += f" OFFSET {self.process(select._offset_clause, **kw)}"
        return text

    def visit_cast(self, cast: Any, **kwargs: Any) -> str:
        """Bytes as text are UTF-8."""
        if isinstance(cast.clause.type, LargeBinary) and isinstance(cast.type, String):
            return f"as_text({cast.clause._compiler_dispatch(self, **kwargs)})"
        return str(super().visit_cast(cast, **kwargs))


class Dialect(base.PGDialect_psycopg):
    """PostgreSQL by psycopg 3, for the tables of the services."""

    supports_statement_cache = True
    type_compiler_cls = _Types
    ddl_compiler = _Tables
    statement_compiler = _Statements


registry.register(NAME, __name__, "Dialect")
