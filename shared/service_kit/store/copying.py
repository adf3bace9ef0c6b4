"""Copy every table from one database to another, of whichever kind."""

from sqlalchemy import Connection, MetaData, select

_AT_ONCE = 1_000


def copy_tables(source: Connection, target: Connection, metadata: tuple[MetaData, ...]) -> None:
    """Copy all rows into the empty tables of ``target``, in the caller's transactions."""
    for table in (table for tables in metadata for table in tables.sorted_tables):
        columns = [column for column in table.columns if column.computed is None]
        query = select(*columns).order_by(*table.primary_key).execution_options(yield_per=_AT_ONCE)
        for rows in source.execute(query).partitions():
            target.execute(table.insert(), [dict(zip((c.key for c in columns), row, strict=True)) for row in rows])
