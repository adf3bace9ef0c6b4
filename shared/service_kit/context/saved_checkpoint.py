"""A checkpoint of the log outside the database. It reveals that the log was cut, or put back to an older state."""

import os
import time
from contextlib import suppress
from pathlib import Path

from blindopt.audit.checkpoints import Signer
from blindopt.audit.merkle_log import Head
from blindopt.errors import LogBroken
from service_kit.store import audit_log
from service_kit.store.database import Connection

_SAVED_EVERY_S = 1.0


class SavedCheckpoint:
    """A file with a signed checkpoint of the log, at most a second older than the log."""

    def __init__(self, file: Path, signer: Signer) -> None:
        self._file = file
        self._signer = signer
        self._saved_at = 0.0

    def note(self) -> str | None:
        """The signed note, or None if there is none yet. Read it before the log, which may only be newer."""
        return read_note(self._file)

    def head(self) -> Head | None:
        """Size and root in the note. Raises LogBroken if this service did not sign it."""
        note = self.note()
        return None if note is None else self._signer.first.verify(note).head

    def check(self, db: Connection, head: Head) -> None:
        """Raise LogBroken unless the log, whose head is ``head``, begins with the log of the checkpoint."""
        if (saved := self.head()) is None:
            return
        if saved.size > head.size:
            raise LogBroken(f"the tail was cut: the log ends after {head.size} records, it had {saved.size}")
        if audit_log.root_at(db, None, saved.size) != saved.root:
            raise LogBroken(f"the first {saved.size} records of the log are not those that were")

    def is_due(self) -> bool:
        """Whether the last checkpoint was saved a second ago or earlier."""
        return time.monotonic() - self._saved_at >= _SAVED_EVERY_S

    def save(self, note: str) -> None:
        """Replace the saved note. A failing disk is ignored: the next commit fails and reports it."""
        self._saved_at = time.monotonic()
        partial = self._file.with_suffix(".part")
        with suppress(OSError):
            with partial.open("w") as file:
                file.write(note)
                file.flush()
                os.fsync(file.fileno())  # otherwise a power cut may leave an empty file
            partial.replace(self._file)


def read_note(file: Path) -> str | None:
    """The note in a file, or None if there is none."""
    try:
        return file.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None
