"""Files that hold a secret."""

import os
from pathlib import Path

from blindopt.errors import StateConflict


def save_secret(path: str | Path, text: str) -> None:
    """Write a new file that only this user can read (mode 0600). Raises StateConflict where there is one already."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise StateConflict(f"{path} exists: name another file, a secret is not written over") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
