"""The verification of a service's own data, for `audit verify` and `restore`."""

import sys
from collections import deque
from collections.abc import Iterator

import typer

from blindopt.audit.merkle_log import Json
from blindopt.audit.verification import Verification
from service_kit import collector
from service_kit.cli.program import Program, S
from service_kit.context.context import ServiceContext


@collector.paused()  # millions of parsed values without cycles: to look through them takes longer than the work
def verified(
    program: Program[S], opened: ServiceContext, key: str | None = None, since: str | None = None, *, saved: bool = True
) -> tuple[Verification, str]:
    """Verify a service's own data: logs, signatures, and its tables against its log; and what was erased, in words.

    With ``since``, a signed checkpoint, the log after it alone: the tables need every record. Without ``saved``, as if
    there were no checkpoint outside the database. Raises LogBroken.
    """
    with opened.database.read() as db:
        export = opened.audit_trail.export(db, saved=saved)
        verification = Verification(export, key=key, since=since)
        records = _with_progress(verification.records(), export.size - verification.since)
        if since is not None:
            deque(records, maxlen=0)
            return verification, ""
        for finding in program.findings(db, records, None, opened.database.path.parent):
            raise finding
        return verification, program.erased(db)


def _with_progress(records: Iterator[Json], size: int) -> Iterator[Json]:
    """Yield records, and show at a terminal how many were verified."""
    if not sys.stderr.isatty():
        yield from records
        return
    for count, record in enumerate(records, start=1):
        yield record
        if count % 1_000 == 0:
            typer.echo(f"\r{count:,} of {size:,} records", err=True, nl=False)
    typer.echo("\r\x1b[K", err=True, nl=False)
