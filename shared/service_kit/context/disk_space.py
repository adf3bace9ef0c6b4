"""The free space of the disk with the data folder."""

import shutil
from pathlib import Path

from blindopt.errors import StorageUnavailable


class DiskSpace:
    """The free space of the disk with the data folder, below which no new work begins: what has begun needs it."""

    def __init__(self, folder: Path, minimum: int) -> None:
        self._folder, self._minimum = folder, minimum

    @property
    def free(self) -> int:
        return shutil.disk_usage(self._folder).free

    def check(self) -> None:
        """Raise StorageUnavailable if less than the minimum is free."""
        if self.free < self._minimum:
            raise StorageUnavailable(
                f"the disk of the data folder has less than {self._minimum:,} free bytes (DISK_MIN_BYTES): no new work "
                "begins"
            )
