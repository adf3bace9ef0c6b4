"""A checkpoint of the log outside the database: a log that was cut, or put back to an older state, is found."""

import os
import time
from contextlib import suppress
from pathlib import Path

from blindopt.audit.checkpoints import Signer
from blindopt.audit.merkle_log import Head
from blindopt.errors import LogBroken
from service_kit.store import audit_log
from service_kit.store.database import Connection

_SECONDS = 1.0


class SavedCheckpoint:
    """A file with a signed checkpoint, at most a second old."""

    def __init__(self, file: Path, signer: Signer) -> None:
        self._file = file
        self._signer = signer
        self._at = 0.0

    def note(self) -> str | None:
        """The signed note, or none yet. Read it before the log is looked at, which may only be newer."""
        try:
            return self._file.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return None

    def head(self) -> Head | None:
        """What it says; LogBroken if the service did not sign it."""
        note = self.note()
        return None if note is None else self._signer.verifier.verify(note).head

    def check(self, db: Connection, head: Head) -> None:
        """LogBroken unless the log, which ends in ``head``, begins with what was kept."""
        if (told := self.head()) is None:
            return
        if told.size > head.size:
            raise LogBroken(f"the tail was cut: the log ends after {head.size} records, it had {told.size}")
        if audit_log.root_at(db, None, told.size) != told.root:
            raise LogBroken(f"the first {told.size} records of the log are not those that were")

    def is_due(self) -> bool:
        """Whether the last one is a second old."""
        return time.monotonic() - self._at >= _SECONDS

    def keep(self, note: str) -> None:
        """Put a newer one in its place, or leave it where the disk refuses: the next commit says so."""
        self._at = time.monotonic()
        partial = self._file.with_suffix(".part")
        with suppress(OSError):
            with partial.open("w") as file:
                file.write(note)
                file.flush()
                os.fsync(file.fileno())  # else a power cut may leave an empty file in its place
            partial.replace(self._file)
