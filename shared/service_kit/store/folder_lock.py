"""A data folder is served by one process at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blindopt.errors import StateConflict

LOCK = "lock"


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for one serving process. Raises StateConflict if another process serves it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateConflict(f"another process already serves {folder}: stop it first") from None
        yield
