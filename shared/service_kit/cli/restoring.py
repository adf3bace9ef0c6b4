"""`restore`: a backup in the place of what was lost, or a database that was put back to an earlier state."""

from pathlib import Path

from blindopt.audit.merkle_log import Head
from blindopt.errors import Invalid, StateConflict
from service_kit.cli import backup
from service_kit.cli.program import Program, S
from service_kit.cli.verifying import verified
from service_kit.context import erased_list
from service_kit.store import sessions
from service_kit.store.database import Connection
from service_kit.store.folder_lock import only_process


def from_backup(program: Program[S], settings: S, source: Path, secrets: Path, erased: Path | None) -> Head:
    """Put a backup into the empty DATA_DIR; return the head of its log. Raises Invalid, StateConflict and LogBroken.

    What the file ``erased`` of DATA_DIR and the given one name is erased again. A given one that is not there is a
    mistyped path: without it erased records would be back.
    """
    if erased and not erased.is_file():
        raise Invalid(f"--erased: there is no file {erased}. Leave it out only where nothing was ever erased")
    with only_process(settings.data_dir):
        gone = erased_list.read(settings.data_dir / erased_list.NAME, *([erased] if erased else []))
        partial = backup.unpack(source, settings.data_dir, secrets)
        as_files = {"data_dir": partial, "database_url": None, "database_url_file": None}
        with program.open_context(settings.model_copy(update=as_files)) as opened:
            backup.check(source, opened, program.files)
            head = verified(program, opened)[0].head
            opened.database.write(lambda db: program.restored(db, opened, gone))
            opened.database.write(lambda db: sessions.end_all(db, opened.clock()))
            backup.drop_unnamed(partial, source, opened, program.files)
            if settings.database_address is not None:
                opened.database.copy_to(settings.database_address)
        if settings.database_address is not None:
            opened.database.path.unlink()
        if gone:
            erased_list.add(settings.data_dir / erased_list.NAME, gone)
        backup.settle(partial)
    return head


def from_database(program: Program[S], settings: S) -> tuple[Head, int]:
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
