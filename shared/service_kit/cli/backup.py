"""Backups: a consistent copy of a service's data while it runs, and how to put it back.

A copy holds the database and the files that it names, never the keys: copy ``secrets/`` by another way, so
that neither alone opens what is sealed.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from blindopt.errors import LogBroken, StateConflict
from blindopt.formats.npy_files import digest
from service_kit.context.context import ServiceContext
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import LOCK, Connection

MANIFEST = "manifest.json"
PARTIAL = ".restoring"


class Manifest(BaseModel):
    """What a backup holds: SHA-256 by path, and the signed head of the log."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    service: str
    created_at: str
    checkpoint: str
    files: dict[str, str]


def backup(context: ServiceContext, data: Path, target: Path, named: Callable[[Connection], Iterable[str]]) -> int:
    """Copy the database, then the files that this copy names (paths under ``data``), to a new folder.

    Returns how many files; all of it is on the disk by then. Raises StateConflict where ``target`` exists, or the
    folder beside it in which the copy is made.
    """
    partial = target.with_name(target.name + ".part")
    for there in (target, partial):
        if there.exists():
            raise StateConflict(f"{there} exists: a backup goes to a new folder, and is made in its .part beside it")
    partial.mkdir(parents=True, mode=0o700)
    try:
        count = _copy(context, data, partial, named)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # ours: it was not there
        raise
    partial.rename(target)
    _sync(target.parent)
    return count


def _copy(context: ServiceContext, data: Path, partial: Path, named: Callable[[Connection], Iterable[str]]) -> int:
    database = context.database.path
    context.database.copy(partial / database.name)
    with context.database.read_from(partial / database.name) as db:
        head, files = audit_log.head(db), sorted(named(db))
    for name in files:  # they never change once the database names them
        (partial / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(data / name, partial / name)
    digests = {name: digest(partial / name) for name in (database.name, *files)}
    name, now = context.signer.name, stamp(context.clock())
    manifest = Manifest(service=name, created_at=now, checkpoint=context.audit_trail.sign(head), files=digests)
    (partial / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    _make_durable(partial)
    return len(digests)


def _make_durable(folder: Path) -> None:
    """Every file of a folder and the folders that name them: after a power cut none is empty."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unpack(source: Path, data: Path, secrets: Path) -> Path:
    """Put a backup and the keys into a new folder inside the empty ``data``, for ``settle`` to move in place.

    Raises StateConflict for a folder that is not empty, a missing key, a changed file.
    """
    if data.exists() and {path.name for path in data.iterdir()} - {LOCK, PARTIAL}:
        raise StateConflict(f"{data.absolute()} is not empty: a backup goes into an empty folder")
    for needed in (source / MANIFEST, secrets / "seal.key", secrets / "log.key"):
        if not needed.is_file():
            raise StateConflict(f"{needed} is missing: a backup needs its manifest and the keys of its service")
    manifest = _manifest(source)
    for name, told in manifest.files.items():
        path = source / name
        if not path.resolve().is_relative_to(source.resolve()) or not path.is_file() or digest(path) != told:
            raise StateConflict(f"{name} of the backup is missing or was changed: nothing was restored")
    partial = data / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    copies = {partial / name: source / name for name in manifest.files}
    copies |= {partial / "secrets" / name: secrets / name for name in ("seal.key", "log.key")}
    for target, path in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(path, target)
        target.chmod(0o600)
    _make_durable(partial)
    return partial


def check(source: Path, context: ServiceContext, named: Callable[[Connection], Iterable[str]]) -> None:
    """Hold what was unpacked against the signed head in its manifest, and the files against its database.

    Raises LogBroken for another key, another log, or a database that is not there; StateConflict for a file.
    """
    manifest = _manifest(source)
    told, head = context.signer.verifier.verify(manifest.checkpoint).head, context.audit_trail.head()
    if told != head:
        raise LogBroken(
            f"the backup has a log of {head.size} records, its signed checkpoint is of another of {told.size}"
        )
    with context.database.read() as db:
        for name in sorted(set(named(db)) - manifest.files.keys()):
            raise StateConflict(f"{name} is not in the backup, and its database needs it")


def _manifest(source: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((source / MANIFEST).read_bytes())
    except ValidationError:
        raise StateConflict(f"{source / MANIFEST} is no manifest of a backup") from None


def settle(partial: Path) -> None:
    """Move what was unpacked and verified in place, the database last: without it there is no service's data."""
    for path in sorted(partial.iterdir(), key=lambda path: path.suffix == ".sqlite"):
        path.rename(partial.parent / path.name)
        _sync(partial.parent)  # in this order: the database is there once all else is
    partial.rmdir()
