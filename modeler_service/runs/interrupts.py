"""How the worker of a run is interrupted, and how it reports progress."""

import threading
import time


class Interrupted(Exception):
    """The run must halt (stop, pause, another token), was given to another worker, or the service closes."""


class Pending(Exception):
    """The query of the run waits to be measured by people: the run waits for it without a worker."""


class Interrupt:
    """A flag that interrupts one worker, and the time of its last progress. Safe to use from several threads."""

    def __init__(self) -> None:
        self._halt = threading.Event()
        self.last_step = time.monotonic()

    def halt(self) -> None:
        """Ask the worker to leave the run after the request under way."""
        self._halt.set()

    def is_set(self) -> bool:
        """Whether the worker is to halt."""
        return self._halt.is_set()

    def check(self) -> None:
        """Raise Interrupted if the worker is to halt."""
        if self._halt.is_set():
            raise Interrupted

    def wait(self, seconds: float) -> None:
        """Sleep; raise Interrupted as soon as the worker is to halt."""
        self.last_step = time.monotonic() + seconds
        if self._halt.wait(seconds):
            raise Interrupted

    def progress(self) -> None:
        """Note that the worker made progress."""
        self.last_step = time.monotonic()
