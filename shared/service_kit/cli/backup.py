"""Backups: a consistent copy of a service's data while it runs, and its restoration.

A backup holds the database and the files that it names, never the keys. Copy ``secrets/`` separately, so that neither
copy alone opens what is sealed.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from blindopt.audit.merkle_log import Head
from blindopt.errors import Invalid, LogBroken, StateConflict
from blindopt.formats.npy_files import digest
from service_kit.cli.findings import verified
from service_kit.cli.program import Program, S
from service_kit.context import erased_list
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log, sealed, sessions
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.store.folder_lock import LOCK, only_process

MANIFEST = "manifest.json"
PARTIAL = ".restoring"
_OF_DISK = "lost+found"
"""A folder that every new disk of Linux has."""


class Manifest(BaseModel):
    """The contents of a backup: SHA-256 by path, and a signed checkpoint of the log."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    service: str
    created_at: str
    checkpoint: str
    files: dict[str, str]


def backup(context: ServiceContext, data: Path, target: Path, named: Callable[[Connection], Iterable[str]]) -> int:
    """Copy the database, then the files that this copy names (paths under ``data``), to a new folder.

    Return the number of files, which are all durable by then. Raises StateConflict if ``target`` exists, or the folder
    beside it in which the copy is made.
    """
    partial = target.parent / f"{target.name}.part"  # also where the target has no name of its own, such as "."
    for folder in (target, partial):
        if folder.exists():
            raise StateConflict(f"{folder} exists: a backup goes to a new folder, and is made in its .part beside it")
    partial.mkdir(parents=True, mode=0o700)
    try:
        count = _copy(context, data, partial, named)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # this call created it
        raise
    partial.rename(target)
    _sync(target.parent)
    return count


def _copy(context: ServiceContext, data: Path, partial: Path, named: Callable[[Connection], Iterable[str]]) -> int:
    database = context.database.path
    context.database.copy(partial / database.name)
    with context.database.read_from(partial / database.name) as db:
        head, files = audit_log.head(db), sorted(named(db))
    for name in files:  # a file never changes once the database names it
        (partial / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(data / name, partial / name)
    digests = {name: digest(partial / name) for name in (database.name, *files)}
    name, now = context.signer.name, stamp(context.clock())
    manifest = Manifest(service=name, created_at=now, checkpoint=context.audit_trail.sign(head), files=digests)
    (partial / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    _make_durable(partial)
    return len(digests)


def _make_durable(folder: Path) -> None:
    """Sync every file of a folder, and its folders, so that none is empty after a power cut."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unpack(source: Path, data: Path, secrets: Path) -> Path:
    """Copy a backup and the keys to a new folder inside the empty ``data``, from which ``_settle`` moves them.

    Raises StateConflict for a folder that is not empty, a missing key, or a changed file.
    """
    if data.exists() and {path.name for path in data.iterdir()} - {
        LOCK,
        PARTIAL,
        erased_list.NAME,
        _OF_DISK,
        "archive",
    }:
        raise StateConflict(f"{data.absolute()} is not empty: a backup goes into an empty folder")
    for needed in (source / MANIFEST, secrets / "seal.key", secrets / "log.key"):
        if not needed.is_file():
            raise StateConflict(f"{needed} is missing: a backup needs its manifest and the keys of its service")
    manifest = _manifest(source)
    for name, expected in manifest.files.items():
        path = source / name
        if not path.resolve().is_relative_to(source.resolve()) or not path.is_file() or digest(path) != expected:
            raise StateConflict(f"{name} of the backup is missing or was changed: nothing was restored")
    partial = data / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    keys = [path.name for path in secrets.glob("*.key")]
    copies = {partial / name: source / name for name in manifest.files}
    copies |= {partial / "secrets" / name: secrets / name for name in keys}
    for target, path in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(path, target)
        target.chmod(0o600)
    _make_durable(partial)
    return partial


def check(source: Path, context: ServiceContext, named: Callable[[Connection], Iterable[str]]) -> None:
    """Check an unpacked log against the signed checkpoint of its manifest, and files and keys against the database.

    Raises LogBroken for another key, another log, or a missing database; StateConflict for a missing file, or a key
    that does not open what is sealed.
    """
    manifest = _manifest(source)
    signed, head = context.signer.first.verify(manifest.checkpoint).head, context.audit_trail.head()
    if signed != head:
        raise LogBroken(
            f"the backup has a log of {head.size} records, its signed checkpoint is of another of {signed.size}"
        )
    with context.database.read() as db:
        for name in sorted(set(named(db)) - manifest.files.keys()):
            raise StateConflict(f"{name} is not in the backup, and its database needs it")
        for value in sealed.values(db):
            context.seal.open(value)


def _manifest(source: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((source / MANIFEST).read_bytes())
    except ValidationError:
        raise StateConflict(f"{source / MANIFEST} is no manifest of a backup") from None


def _settle(partial: Path) -> None:
    """Move unpacked and verified files to their final paths, the database last: a service needs it to start."""
    for path in sorted(partial.iterdir(), key=lambda path: path.suffix == ".sqlite"):
        path.rename(partial.parent / path.name)
        _sync(partial.parent)  # so that the database appears after all else is durable
    partial.rmdir()


def restore_backup(
    program: Program[S], settings: S, source: Path, secrets: Path, erased: Path | None
) -> tuple[Head, str]:
    """Put a backup into the empty DATA_DIR; return the head of its log, and what was archived or erased, in words.

    What the file ``erased`` of DATA_DIR and the given one name is erased again. A given one that is not there is a
    mistyped path: without it erased records would be back. Raises Invalid, StateConflict and LogBroken.
    """
    if erased and not erased.is_file():
        raise Invalid(f"--erased: there is no file {erased}. Leave it out only where nothing was ever erased")
    with only_process(settings.data_dir):
        gone = erased_list.read(settings.data_dir / erased_list.NAME, *([erased] if erased else []))
        partial = unpack(source, settings.data_dir, secrets)
        as_files = {"data_dir": partial, "database_url": None, "database_url_file": None}
        as_files["log_archive_dir"] = settings.archive_dir
        with program.open_context(settings.model_copy(update=as_files)) as opened:
            check(source, opened, program.files)
            verification, words = verified(program, opened)
            opened.database.write(lambda db: program.restored(db, opened, gone))
            opened.database.write(lambda db: sessions.end_all(db, opened.clock()))
            with opened.database.read() as db:
                file_names = {opened.database.path.name, *program.files(db)}
            for name in _manifest(source).files.keys() - file_names:  # of datasets that were erased since the backup
                (partial / name).unlink()
            if settings.database_address is not None:
                opened.database.copy_to(settings.database_address)
        if settings.database_address is not None:
            opened.database.path.unlink()
        if gone:
            erased_list.add(settings.data_dir / erased_list.NAME, gone)
        _settle(partial)
    return verification.head, words


def restore_database(program: Program[S], settings: S) -> tuple[Head, int]:
    """Go on with an earlier state of the database, in one transaction; return its head, and how many records are lost.

    Raises LogBroken if the database does not verify by itself; StateConflict where another process serves, where the
    checkpoint in DATA_DIR is not ahead of the log, and where a file is missing that the database names.
    """
    if settings.database_address is None and not program.database_file(settings).exists():
        raise StateConflict(f"there is no database in {settings.data_dir.absolute()}: restore a backup")
    with program.alone(settings), program.open_context(settings) as opened:
        trail, gone = opened.audit_trail, erased_list.read(settings.data_dir / erased_list.NAME)
        lost = trail.lost()
        head = verified(program, opened, saved=not lost)[0].head
        if not lost:
            raise StateConflict("the log has every record of the checkpoint in DATA_DIR: nothing was put back")

        def accept(db: Connection) -> None:
            program.restored(db, opened, gone)
            for name in sorted(program.files(db)):
                if not (settings.data_dir / name).exists():
                    raise StateConflict(f"{name} is missing, and the database needs it: restore a backup")
            sessions.end_all(db, opened.clock())

        opened.database.write(accept)
        trail.close()  # saves a checkpoint of what the log is now
    return head, lost
