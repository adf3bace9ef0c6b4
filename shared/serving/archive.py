"""Backups: a consistent copy of a service's data while it runs, and how to put it back.

A copy holds the database and the files that it names, never the keys: copy ``secrets/`` by another way, so
that neither alone opens what is sealed.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from shared.errors import StateConflict
from shared.matrix import digest
from shared.serving.desk import Desk
from shared.serving.store import logs
from shared.serving.store.base import stamp
from shared.serving.store.database import Connection

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup holds: SHA-256 by path, and the signed head of the log."""

    service: str
    created_at: str
    checkpoint: str
    files: dict[str, str]


def backup(desk: Desk, data: Path, target: Path, named: Callable[[Connection], Iterable[str]]) -> int:
    """Copy the database, then the files that this copy names (paths under ``data``), to a new folder.

    Returns how many files. Raises StateConflict where ``target`` exists.
    """
    if target.exists():
        raise StateConflict(f"{target} exists: a backup goes to a new folder")
    partial = target.with_name(target.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, mode=0o700)
    database = desk.database.path
    desk.database.copy(partial / database.name)
    with desk.database.read_from(partial / database.name) as db:
        head, files = logs.head(db), sorted(named(db))
    for name in files:  # they never change once the database names them
        (partial / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(data / name, partial / name)
    digests = {name: digest(partial / name) for name in (database.name, *files)}
    manifest = Manifest(desk.signer.name, stamp(desk.clock()), desk.sign(head), digests)
    (partial / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1))
    partial.rename(target)
    return len(digests)


def restore(source: Path, data: Path, secrets: Path) -> Manifest:
    """Put a backup and the keys into an empty data folder. Raises StateConflict, and leaves nothing behind."""
    if data.exists() and any(data.iterdir()):
        raise StateConflict(f"{data.absolute()} is not empty: a backup goes into an empty folder")
    for needed in (source / MANIFEST, secrets / "seal.key", secrets / "log.key"):
        if not needed.is_file():
            raise StateConflict(f"{needed} is missing: a backup needs its manifest and the keys of its service")
    manifest = Manifest(**json.loads((source / MANIFEST).read_text()))
    for name, told in manifest.files.items():
        path = source / name
        if not path.resolve().is_relative_to(source.resolve()) or not path.is_file() or digest(path) != told:
            raise StateConflict(f"{name} of the backup is missing or was changed: nothing was restored")
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in manifest.files:
        (data / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(source / name, data / name)
        (data / name).chmod(0o600)
    (data / "secrets").mkdir(mode=0o700, exist_ok=True)
    for name in ("seal.key", "log.key"):
        shutil.copyfile(secrets / name, data / "secrets" / name)
        (data / "secrets" / name).chmod(0o600)
    return manifest
