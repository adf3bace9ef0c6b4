"""Work that is done once at a time: another caller waits for a while, and is then refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from blindopt.errors import BlindoptError


@contextmanager
def exclusive(lock: Lock, wait_s: float, refusal: BlindoptError) -> Iterator[None]:
    """Hold ``lock``. Raises ``refusal`` if it does not become free within ``wait_s`` seconds."""
    if not lock.acquire(timeout=wait_s):
        raise refusal
    try:
        yield
    finally:
        lock.release()
