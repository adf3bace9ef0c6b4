"""The npy file of a release, in sections: one, or the parts of a large release. Each has a digest of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blindopt.formats import npy_files
from blindopt.wire import PARTS_MAX, ReleasePart, digest_of_parts


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of a release: ``size`` bytes of its file from number ``first`` on (None: all), and their SHA-256."""

    rows: range
    first: int
    size: int | None
    sha256: str
    zeros: Sequence[range] = ()
    """Bytes of the file that are sent as zeros."""

    def is_in(self, path: Path) -> bool:
        """Whether the file has these bytes there. Raises OSError if it cannot be read."""
        return npy_files.digest(path, self.first, self.size, self.zeros) == self.sha256


def sections_of(n: int, sha256: str, parts: Sequence[ReleasePart], zeros: Sequence[range] = ()) -> list[Section]:
    """The parts of a release of n rows, in order, or the whole of one without parts."""
    if not parts:
        return [Section(range(n), 0, None, sha256, zeros)]
    sections, row, first = [], 0, 0
    for part in parts:
        sections.append(Section(range(row, row + part.rows), first, part.bytes, part.sha256, zeros))
        row, first = row + part.rows, first + part.bytes
    return sections


def parts_of(path: Path, part_bytes: int) -> list[ReleasePart]:
    """Divide the file of a release of more than ``part_bytes`` into parts of so many; none for a smaller one.

    Where that were more than PARTS_MAX, the parts are larger.
    """
    n, r = npy_files.load(path).shape
    if 8 * n * r <= part_bytes:
        return []
    rows = max(1, part_bytes // (8 * r), -(-n // PARTS_MAX))
    first, header, parts = 0, path.stat().st_size - 8 * n * r, []
    for row in range(0, n, rows):
        count = min(rows, n - row)
        size = 8 * r * count + (0 if row else header)
        parts.append(ReleasePart(rows=count, bytes=size, sha256=npy_files.digest(path, first, size)))
        first += size
    return parts


def digest(path: Path, parts: Sequence[ReleasePart] = (), zeros: Sequence[range] = ()) -> str:
    """The digest that identifies the release in a file: of its bytes, or of the list of its parts as they are there.

    ``zeros`` are bytes that count as zeros.
    """
    return digest_of_parts(stored_parts(path, parts, zeros)) if parts else npy_files.digest(path, zeros=zeros)


def stored_parts(path: Path, parts: Sequence[ReleasePart], zeros: Sequence[range] = ()) -> list[ReleasePart]:
    """These parts with the digests of what the file has there. Bytes after the last part count to that."""
    first, there = 0, []
    for part in parts:
        size = None if part is parts[-1] else part.bytes
        there.append(part.model_copy(update={"sha256": npy_files.digest(path, first, size, zeros)}))
        first += part.bytes
    return there
