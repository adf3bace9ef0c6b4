"""The file that candidates are fetched to before it is whole, and who fetches which section of it."""

import fcntl
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO

from blindopt.formats.release_files import Section, sections_of
from blindopt.wire import ReleasePart

SIDE_BY_SIDE = 4
"""Parts that are fetched at a time, each over a connection of its own."""
LOOK_SECONDS = 1.0
"""How often it is looked whether to give up while nothing arrives."""


@dataclass(slots=True)
class Piece:
    """A section of a release that is fetched from ``path``: at most ``most`` bytes, of which ``received`` arrived."""

    path: str
    section: Section
    most: int
    received: int = 0
    is_whole: bool = False


def pieces_of(path: str, sha256: str, parts: Sequence[ReleasePart], max_bytes: int) -> list[Piece]:
    """What is fetched of a release: its parts, or all of it from ``path``."""
    sections = sections_of(0, sha256, parts)
    if not parts:
        return [Piece(path, sections[0], max_bytes)]
    return [Piece(f"{path}/parts/{number}", section, section.size or 0) for number, section in enumerate(sections)]


@contextmanager
def unfinished(target: Path, *, resumed: bool) -> Iterator[Path]:
    """The file beside ``target`` that the caller alone fetches to.

    With ``resumed`` it may hold what an earlier caller left, and is left to a later one; unless another one is at work
    on that: then it is deleted at the end.
    """
    unshared = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    for path in [target.with_name(f"{target.name}.part")] * resumed + [unshared]:
        with path.open("ab") as file:
            if _is_locked(file) and _is_at(file, path):
                try:
                    yield path
                finally:
                    unshared.unlink(missing_ok=True)
                return


def delete_unused(path: Path) -> None:
    """Delete such a file unless somebody fetches to it, or begins to."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        if _is_locked(file):
            path.unlink()


def _is_locked(file: BinaryIO) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still at its path: the one who held its lock may have renamed it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def each_in_threads(
    pieces: list[Piece],
    fetch_in_turn: Callable[[Iterator[Piece], Callable[[Callable[[], None]], None]], None],
    check: Callable[[], None],
    stop: Callable[[], None],
) -> None:
    """Call ``fetch_in_turn`` in SIDE_BY_SIDE threads, which share ``pieces``, until all are fetched or one fails.

    It passes what this thread is to call to its second argument. ``check`` is called in between, also while nothing
    arrives, and raises to give up; ``stop`` then makes the threads end.
    """
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
    waiting = deque(pieces)

    def turns() -> Iterator[Piece]:
        with suppress(IndexError):
            while True:
                yield waiting.popleft()

    def wake(_: "Future[None]") -> None:
        calls.put(check)

    with ThreadPoolExecutor(min(SIDE_BY_SIDE, len(pieces)), thread_name_prefix="part") as pool:
        futures = [pool.submit(fetch_in_turn, turns(), calls.put) for _ in range(min(SIDE_BY_SIDE, len(pieces)))]
        for future in futures:
            future.add_done_callback(wake)
        try:
            while not (calls.empty() and all(future.done() for future in futures)):
                with suppress(Empty):
                    calls.get(timeout=LOOK_SECONDS)()
                check()
                if calls.empty():  # what a thread observed comes before its error
                    _raise_error_of(future for future in futures if future.done())
            _raise_error_of(futures)
        finally:
            waiting.clear()
            stop()


def _raise_error_of(ended: "Iterable[Future[None]]") -> None:
    for future in ended:
        future.result()
