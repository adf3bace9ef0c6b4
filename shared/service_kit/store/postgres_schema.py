"""The schema in PostgreSQL: its version, its guards, and how an older one is brought to this version."""

import time
import zlib
from typing import cast

from sqlalchemy import Connection, MetaData, text
from sqlalchemy.schema import CreateColumn, CreateIndex

from blindopt.errors import AuditUnavailable, StateConflict
from service_kit.settings import ARCHIVED_AFTER_DAYS
from service_kit.store import StoreFault, postgres_dialect, schema
from service_kit.store.base import ARCHIVED_KINDS, ERASABLE, SEGMENT_RECORDS
from service_kit.store.postgres_session import Session
from service_kit.store.prepared_statement import raw

VERBS = ("UPDATE", "DELETE", "TRUNCATE")
_NO_ROOM_S = 10.0
_WRITES = 0x626F7002
_CREATE = r"""
CREATE TABLE state (version bigint NOT NULL, writer text NOT NULL);
INSERT INTO state VALUES (0, '');
"""
_FUNCTIONS = r"""
CREATE OR REPLACE FUNCTION is_erased(before text, after text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN after IS NULL OR after IN ('', before) THEN true
    WHEN CASE WHEN starts_with(after, '\x7b') THEN convert_from(after::bytea, 'UTF8') ELSE after END
        ~ '^{"erased":"[a-z]+_[0-9a-z]+"}$' THEN true
    WHEN starts_with(after, '{') AND starts_with(before, '{') THEN (
        SELECT bool_and(new.value = 'null' OR new.value = before::jsonb -> new.key) AND count(*) = (
            SELECT count(*) FROM jsonb_object_keys(before::jsonb)) FROM jsonb_each(after::jsonb) new)
    ELSE false END $$;
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('blindopt.unguarded', true) IN (TG_TABLE_NAME, '*') THEN
        IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
            RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
        ELSIF TG_OP = 'UPDATE' THEN
            IF (SELECT bool_and(SCHEMA.is_erased(a.value, b.value)) FROM jsonb_each_text(to_jsonb(OLD)) a
                JOIN jsonb_each_text(to_jsonb(NEW)) b USING (key)) THEN RETURN NEW; END IF;
        END IF;
    END IF;
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE OR REPLACE FUNCTION write_anew(of text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = SCHEMA, pg_temp AS $$
BEGIN
    EXECUTE (SELECT format('CLUSTER %s USING %I', indrelid::regclass, relname) FROM pg_index JOIN pg_class c
        ON c.oid = indexrelid WHERE indisprimary AND indrelid = format('SCHEMA.%I', of)::regclass);
END $$;
REVOKE EXECUTE ON FUNCTION write_anew(text) FROM PUBLIC;
CREATE OR REPLACE FUNCTION delete_archived() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = SCHEMA, pg_temp AS $$
DECLARE last record; archived bigint;
BEGIN
    SELECT number, size, positions INTO STRICT last FROM segments ORDER BY number DESC LIMIT 1;
    SELECT coalesce(max(size), 0) INTO archived FROM segments WHERE number < last.number;
    IF last.number <> (SELECT count(*) - 1 FROM segments) OR last.size NOT BETWEEN archived + 1
        AND least(archived + SEGMENT_RECORDS, (SELECT max(seq) + 1 FROM log)) OR EXISTS (
            SELECT FROM json_each_text(last.positions::json) p LEFT JOIN shared s
            ON s.grant_id = p.key AND s.seq = p.value::bigint WHERE s.seq IS NULL)
        OR EXISTS (WITH records AS (
                SELECT as_json(convert_from(body, 'UTF8')) r FROM log WHERE seq BETWEEN archived AND last.size - 1)
            SELECT FROM records WHERE (r ->> 'time')::timestamptz > now() - interval 'ARCHIVED_AFTER_DAYS days'
            UNION ALL SELECT FROM json_each_text(last.positions::json) p WHERE NOT EXISTS (SELECT FROM records
                WHERE r -> 'exchange' ->> 'grant_id' = p.key AND r -> 'exchange' ->> 'position' = p.value))
    THEN
        RAISE EXCEPTION 'the last segment is of young records, or does not follow the one before it'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    PERFORM set_config('blindopt.unguarded', 'log', true);
    DELETE FROM log WHERE seq < last.size - 1 AND kind IN (ARCHIVED_KINDS);
    PERFORM set_config('blindopt.unguarded', 'shared', true);
    DELETE FROM shared USING json_each_text(last.positions::json) p WHERE grant_id = p.key AND seq < p.value::bigint;
    PERFORM set_config('blindopt.unguarded', '', true);
END $$;
REVOKE EXECUTE ON FUNCTION delete_archived() FROM PUBLIC;
CREATE OR REPLACE FUNCTION note_writer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(WRITERS);
    UPDATE SCHEMA.state SET writer = coalesce(current_setting('blindopt.writer', true), 'another')
    WHERE writer <> coalesce(current_setting('blindopt.writer', true), 'another');
    RETURN NULL;
END $$;
"""
_NEXT = """
CREATE OR REPLACE FUNCTION next_of_{table}() RETURNS bigint LANGUAGE plpgsql AS
$$ BEGIN RETURN (SELECT coalesce(max(seq), 0) + 1 FROM {schema}.{table}); END $$
"""


def prepare(
    db: Connection,
    metadata: tuple[MetaData, ...],
    append_only: tuple[str, ...],
    migrations: tuple[schema.Migrations, ...],
) -> bool:
    """Create the schema or migrate an older one, in the caller's transaction; return whether it was an older one.

    Changes nothing where the version is right, so that a role without the right to create tables will do. Raises
    StateConflict for an encoding other than UTF-8, for a database of a newer program, and for a role without a right.
    """
    if db.execute(text("SHOW server_encoding")).scalar_one() != "UTF8":
        raise StateConflict("the database of PostgreSQL must have the encoding UTF8")
    exists = db.execute(text("SELECT to_regclass('state') IS NOT NULL")).scalar_one()
    version = int(db.execute(text("SELECT version FROM state")).scalar_one()) if exists else 0
    if version == schema.VERSION:
        _check_rights(db, metadata, append_only)
        return False
    if not exists:
        db.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {_name(db)}")
        _execute(db, _CREATE, postgres_dialect.FUNCTIONS)
    _execute(db, _FUNCTIONS)
    _add_columns(db, metadata)
    with schema.unguarded(db, "*"):
        for step in schema.steps(version, migrations) if version else ():
            for statement in (sql for statements in migrations for sql in statements.get(step, ())):
                if " ADD COLUMN " not in statement:  # that was done above, with the types that columns have here
                    db.exec_driver_sql(statement)
    _create_tables(db, metadata)
    for table in (table.name for tables in metadata for table in tables.sorted_tables):
        _guard(db, table, is_append_only=table in append_only)
    db.execute(text("UPDATE state SET version = :version"), {"version": schema.VERSION})
    return version > 0


def _execute(db: Connection, *scripts: str) -> None:
    kinds = ", ".join(f"'{kind}'" for kind in ARCHIVED_KINDS)
    for statements in scripts:  # whatever the search path of the caller
        statements = statements.replace("ARCHIVED_AFTER_DAYS", str(ARCHIVED_AFTER_DAYS))
        statements = statements.replace("ARCHIVED_KINDS", kinds).replace("SEGMENT_RECORDS", str(SEGMENT_RECORDS))
        statements = statements.replace("%", "%%").replace("SCHEMA", _name(db))
        db.exec_driver_sql(statements.replace("WRITERS", writers_lock(_name(db))))


def key_of(schema_name: str) -> int:
    """Second half of the keys of a schema's advisory locks."""
    return zlib.crc32(schema_name.encode()) - (1 << 31)


def writers_lock(schema_name: str) -> str:
    """The key of the advisory lock of a transaction that writes."""
    return f"{_WRITES}, {key_of(schema_name)}"


def _name(db: Connection) -> str:
    return str(db.execute(text("SELECT current_setting('search_path')")).scalar_one())


def _columns(db: Connection, table: str) -> set[str]:
    query = text("SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0")
    return set(db.execute(query, {"name": f'"{table}"'}).scalars())


def _add_columns(db: Connection, metadata: tuple[MetaData, ...]) -> None:
    for table in (table for tables in metadata for table in tables.sorted_tables):
        names = _columns(db, table.name)
        for column in (column for column in table.columns if names and column.name not in names):
            added = CreateColumn(column).compile(dialect=db.dialect)
            db.exec_driver_sql(f'ALTER TABLE "{table.name}" ADD COLUMN {added}')


def _create_tables(db: Connection, metadata: tuple[MetaData, ...]) -> None:
    for table in (table for tables in metadata for table in tables.sorted_tables):
        if not _columns(db, table.name):
            if table.autoincrement_column is not None:
                db.exec_driver_sql(_NEXT.format(schema=_name(db), table=table.name))
            table.create(db, checkfirst=False)
        for index in table.indexes:
            db.execute(CreateIndex(index, if_not_exists=True))


def _guard(db: Connection, table: str, *, is_append_only: bool) -> None:
    leads = "current_setting('blindopt.leads', true) IS DISTINCT FROM '1'"
    create = "CREATE OR REPLACE TRIGGER"
    db.exec_driver_sql(
        f'{create} {table}_writer BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON "{table}"'
        f" FOR EACH STATEMENT WHEN ({leads}) EXECUTE FUNCTION note_writer()"
    )
    for verb in VERBS if is_append_only else ():
        unit = "STATEMENT" if verb == "TRUNCATE" else "ROW"
        db.exec_driver_sql(
            f'{create} {table}_{verb.lower()} BEFORE {verb} ON "{table}"'
            f" FOR EACH {unit} EXECUTE FUNCTION refuse_change()"
        )


def check(db: Connection, append_only: tuple[str, ...]) -> None:
    """Write a row, and check the triggers of the append-only tables. Raises StoreFault.

    The row finds room in its page on a full disk too: what other statements found there counts for ``_NO_ROOM_S``.
    Raises AuditUnavailable.
    """
    if time.monotonic() - cast(Session, raw(db)).found_no_room_at < _NO_ROOM_S:
        raise AuditUnavailable("the database cannot be written (its disk was full some seconds ago)")
    db.execute(text("UPDATE state SET version = :version"), {"version": schema.VERSION})
    query = text(
        "SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid"
        " WHERE relnamespace = current_schema()::regnamespace AND tgenabled IN ('O', 'A')"
        " AND tgname = relname || '_' || split_part(tgname, '_', -1)"
    )
    needed = {f"{table}_{verb.lower()}" for table in append_only for verb in VERBS}
    if not set(db.execute(query).scalars()) >= needed:
        raise StoreFault("an append-only table has lost its trigger")


def rights(schema_name: str, role: str, metadata: tuple[MetaData, ...], append_only: tuple[str, ...]) -> str:
    """The statements that let ``role`` serve without the rights to change an append-only table, or any table's form.

    Columns that an erasure overwrites may be overwritten as one does: the triggers see to it. For the owner of the
    tables to run, after a first start under his name.
    """
    grants = [
        f"GRANT USAGE ON SCHEMA {schema_name} TO {role};",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema_name} TO {role};",
        f"GRANT SELECT, UPDATE ON {schema_name}.state TO {role};",
    ]
    for name, verb, column in _needed(metadata, append_only):
        grants.append(f'GRANT {verb}{column and f" ({column})"} ON {schema_name}."{name}" TO {role};')
    return "\n".join(grants) + "\n"


def _needed(metadata: tuple[MetaData, ...], append_only: tuple[str, ...]) -> list[tuple[str, str, str]]:
    """What a role that serves must be allowed: a table, a verb, and a column or '' for all."""
    needed = []
    for name, relation in sorted((name, relation) for tables in metadata for name, relation in tables.tables.items()):
        verbs = ("SELECT", "INSERT") if name in append_only else ("SELECT", "INSERT", "UPDATE", "DELETE")
        needed += [(name, verb, "") for verb in verbs]
        needed += [(name, "UPDATE", column.name) for column in relation.columns if column.info == ERASABLE]
    return needed


def _check_rights(db: Connection, metadata: tuple[MetaData, ...], append_only: tuple[str, ...]) -> None:
    """Raise StateConflict for a role that may do less than ``rights`` grants, as one of an earlier version's script."""
    needed = ", ".join(map(str, _needed(metadata, append_only)))  # Python writes such rows as SQL does
    missing = (
        f"SELECT name || ': ' || verb FROM (VALUES {needed}) needed (name, verb, of) WHERE NOT CASE of"
        " WHEN '' THEN has_table_privilege(quote_ident(name), verb)"
        " ELSE has_column_privilege(quote_ident(name), of, verb) END UNION ALL SELECT proname || ': EXECUTE'"
        " FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
        " AND NOT has_function_privilege(oid, 'EXECUTE') LIMIT 1"
    )
    if (right := db.exec_driver_sql(missing).scalar_one_or_none()) is not None:
        role = db.exec_driver_sql("SELECT current_user").scalar_one()
        raise StateConflict(f"{role} lacks a right ({right}): as the tables' owner run `database roles {role}`")
