"""Copy every table from one database to another, of whichever kind."""

from sqlalchemy import Connection, MetaData, select

from blindopt.errors import StateConflict

_AT_ONCE = 1_000


def copy_tables(source: Connection, target: Connection, metadata: tuple[MetaData, ...]) -> None:
    """Copy all rows into ``target``, in the caller's transactions. Raises StateConflict unless its tables are empty."""
    for table in (table for tables in metadata for table in tables.sorted_tables):
        if target.execute(select(*table.primary_key).limit(1)).first() is not None:
            raise StateConflict("the database to copy to is not empty")
        columns = [column for column in table.columns if column.computed is None]
        query = select(*columns).order_by(*table.primary_key).execution_options(yield_per=_AT_ONCE)
        for rows in source.execute(query).partitions():
            target.execute(table.insert(), [dict(zip((c.key for c in columns), row, strict=True)) for row in rows])
