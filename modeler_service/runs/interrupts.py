"""How a run's worker is told to halt, and tells that it makes progress."""

import threading
import time


class Interrupted(Exception):
    """The run was told to halt (stop, pause, another token), was given to another worker, or the service ends."""


class Pending(Exception):
    """People measure what the run asked, and have not yet: it waits for them without a worker."""


class Signal:
    """Between one worker and those who watch it."""

    def __init__(self) -> None:
        self._halt = threading.Event()
        self.last_step = time.monotonic()

    def halt(self) -> None:
        """Tell the worker to leave the run after the request under way."""
        self._halt.set()

    def is_set(self) -> bool:
        """Whether it was told."""
        return self._halt.is_set()

    def check(self) -> None:
        """Interrupted if it was told."""
        if self._halt.is_set():
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Sleep; Interrupted as soon as it is told."""
        self.last_step = time.monotonic() + seconds
        if self._halt.wait(seconds):
            raise Interrupted

    def progress(self) -> None:
        """The worker made a step."""
        self.last_step = time.monotonic()
