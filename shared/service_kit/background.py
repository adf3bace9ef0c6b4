"""Work of a service that nobody waits for: a thread that does it once, or again and again until it is closed."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("blindopt.background")
CLOSE_SECONDS = 10.0


class Background:
    """A thread that calls ``act``, first after ``first_s``, then after as many seconds as ``act`` returns.

    Where it returns None, or raises, it is called again after ``every_s``; None: never.
    """

    def __init__(
        self,
        name: str,
        act: Callable[[], float | None],
        *,
        first_s: float = 0.0,
        every_s: float | None = None,
        close_s: float = CLOSE_SECONDS,
    ) -> None:
        self.closing = threading.Event()
        self._name, self._act = name, act
        self._first_s, self._every_s, self._close_s = first_s, every_s, close_s
        self._noticed = threading.Event()
        # A daemon: a process that ends need not wait for it.
        self._thread = threading.Thread(target=self._serve, daemon=True, name=name)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Have it called again now; from any thread."""
        self._noticed.set()

    def close(self) -> None:
        self.closing.set()
        self._noticed.set()
        if self._thread.is_alive():
            self._thread.join(self._close_s)

    def _serve(self) -> None:
        seconds: float | None = self._first_s
        while seconds is not None:
            self._noticed.wait(seconds)
            if self.closing.is_set():
                return
            self._noticed.clear()
            try:
                seconds = self._act()
            except Exception as error:  # its text may quote a value
                if not self.closing.is_set():
                    log.error("fault", extra={"fields": {"work": self._name, "kind": type(error).__name__}})
                seconds = None
            seconds = self._every_s if seconds is None else seconds
