"""Verification of a service's own data: for `audit verify` and `restore`, and for the service that runs in it.

The latter (`audit findings`) prints JSON lines, and opens the database read-only: a service takes a write by another
process as a reason to verify again.
"""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from blindopt.audit.merkle_log import Json
from blindopt.audit.verification import Verification
from blindopt.errors import LogBroken
from service_kit import collector
from service_kit.cli.program import Program, S
from service_kit.context.audit_trail import StoredRecords, read_note
from service_kit.context.context import ServiceContext
from service_kit.context.keys import signer
from service_kit.context.log_archive import ArchiveFiles
from service_kit.context.log_summaries import Part
from service_kit.store import audit_log
from service_kit.store.database import Database
from service_kit.verification import Findings

NICENESS = 10
"""As other work that nobody waits for; at 19 a busy machine takes minutes for what should take seconds."""
_SHOWN_EVERY = 10_000


@collector.paused()
def print_findings(
    folder: Path,
    kind: str,
    findings: Findings,
    write: Callable[[str], object],
    url: str | None = None,
    archive: Path | None = None,
    *,
    only_first: bool = False,
) -> None:
    """Verify logs, signatures and tables; write each finding, and at the end size and root of the own log.

    ``url`` is the address of PostgreSQL, if the database is there. ``only_first``: the first part alone, which begins
    at the summary of archived segments; else it reads their files in the folder ``archive``.
    """
    saved = read_note(folder / "checkpoint")  # before the log, which may only be newer
    with Database.read_from(folder / f"{kind}.sqlite", url) as db:
        changes = [record["details"] for record in audit_log.of_kind(db, "key.changed")]
        log_changes = [change for change in changes if change["key"] == "log"]
        log_key = signer(folder / "secrets" / "log.key", kind, log_changes, is_new=False)
        export = StoredRecords(db, log_key, saved)
        files = None if only_first else ArchiveFiles(db, archive or folder / "archive", log_key.first.vkey)
        parts: list[Part] = ["first"] if only_first else ["first", "second"]
        for part in parts:
            try:
                verification = Verification(export, only_own=part == "first")
            except LogBroken as error:
                _write(write, part=part, finding=str(error), about=None, others=[])
                _write(write, size=export.size, root="", shared_logs=0, unread=0)
                return
            records = verification.records() if files is None else files.followed_by(verification.records())
            for finding in findings(db, _counted(records, write), part, folder):
                _write(write, part=part, finding=str(finding), about=finding.about, others=finding.others)
        for finding in [] if files is None else files.damaged:
            _write(write, part="second", finding=str(finding), about=finding.about, others=[])
        head, unread = verification.head, 0 if files is None else files.unread
        _write(write, size=head.size, root=head.root, shared_logs=len(export.grants()), unread=unread)


def _counted(records: Iterable[Json], write: Callable[[str], object]) -> Iterator[Json]:
    for count, record in enumerate(records, start=1):
        yield record
        if count % _SHOWN_EVERY == 0:
            _write(write, verified=count)


def _write(write: Callable[[str], object], **message: Any) -> None:
    write(json.dumps(message))


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
        files = ArchiveFiles(db, opened.archive, opened.signer.first.vkey)
        for finding in program.findings(db, files.followed_by(records), None, opened.database.path.parent):
            raise finding
        if files.damaged:
            raise files.damaged[0]
        return verification, "\n".join(filter(None, (files.words, program.erased(db))))


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
