"""Archived segments of a log: compressed files that verify by themselves, without a database.

The first line is a signed head with the checkpoint of the segment's end. Each further line is the body of a record as
it was hashed. The same records make the same bytes.
"""

import gzip
import json
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict, JsonValue

from blindopt import bodies
from blindopt.audit import signed_documents
from blindopt.audit.checkpoints import Checkpoint, Signer, Verifier
from blindopt.audit.merkle_log import Entry, Head, LogWalk, grow, leaf_hash
from blindopt.errors import Invalid, LogBroken, StateConflict

_TITLE = "blindopt log segment, version 1"
_LINE_BYTES = 1 << 26
"""Of the longest line that is read: the head, which has the summary."""


class SegmentHead(BaseModel):
    """Whose log a segment is of, its place in that log, and what all records until its end say about the tables."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    service: str
    key: str
    first: int
    peaks: str
    size: int
    root: str
    summary: dict[str, Any]


def name_of(number: int) -> str:
    """The name of a segment's file."""
    return f"log-{number:06}.jsonl.gz"


def write(file: IO[bytes], head: SegmentHead, bodies: Iterable[bytes], signer: Signer) -> str:
    """Write a segment, and return the checkpoint at its end, which is in its first line.

    Raises StateConflict for a summary that would be too long to read.
    """
    note, shown = signer.sign(Checkpoint(f"{signer.name}/log", Head(head.size, head.root))), head.model_dump()
    line = {"checkpoint": note, "head": shown, "signature": signed_documents.sign(signer, _TITLE, shown)}
    first = json.dumps(line, sort_keys=True).encode() + b"\n"
    if len(first) > _LINE_BYTES:
        raise StateConflict(
            f"the log is not archived further: the summary would have {len(first)} bytes, and {_LINE_BYTES} are read"
        )
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0, filename="") as packed:
        packed.write(first)
        packed.writelines(body + b"\n" for body in bodies)
    return note


def is_segment(path: Path) -> bool:
    """Whether a file begins as a segment does."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def verified(path: Path, key: str | None = None) -> str:
    """Verify a segment, and describe it. Raises LogBroken."""
    segment = SegmentFile(path, key)
    deque(segment.entries(), maxlen=0)
    head = segment.head
    return f"records {head.first} to {head.size - 1} of {head.service}, root {head.root}, signed by {head.key}"


class SegmentFile:
    """A segment in a file. ``key`` is the party's verifier key from another source, by default the one in the file."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        """Read and check the head. Raises LogBroken, and OSError for a missing file."""
        self._path = path
        with gzip.open(path) as file, self._named():
            try:
                line: Any = bodies.parse(self._next(file), JsonValue)
                self.head = SegmentHead.model_validate(line["head"])
                note, signature = str(line["checkpoint"]), str(line["signature"])
            except (Invalid, ValueError, LookupError, TypeError):
                raise LogBroken("this is no segment of a log, or it was cut") from None
            own = Verifier.parse(key or self.head.key)
            checkpoint, signer = own.follow(note)
            own.verify(note, "log")
            signed_documents.verify(signer, _TITLE, line["head"], signature)
            if checkpoint.head != Head(self.head.size, self.head.root):
                raise LogBroken("its checkpoint is of another end than its head")
        self.note = note

    def entries(self) -> Iterator[Entry]:
        """Yield each record, which is verified by then. Raises LogBroken that names the first fault."""
        walk = LogWalk(index="seq", after=self.head.first, peaks=bytes.fromhex(self.head.peaks))
        with gzip.open(self._path) as file, self._named():
            self._next(file)
            while line := self._next(file):
                body = line.removesuffix(b"\n")
                leaf = leaf_hash(body)
                entry = Entry(walk.size, body, leaf, grow(walk.peaks, walk.size, leaf))
                walk.take(entry)
                yield entry
            if walk.end() != Head(self.head.size, self.head.root):
                raise LogBroken("its records are not those that were signed: one was changed, is missing or was added")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except LogBroken as error:
            raise LogBroken(f"{self._path.name}: {error}") from None

    @staticmethod
    def _next(file: gzip.GzipFile) -> bytes:
        try:
            return file.readline(_LINE_BYTES)
        except (EOFError, OSError, zlib.error):  # a wrong checksum is an OSError
            raise LogBroken("it cannot be unpacked: it was changed or cut") from None
