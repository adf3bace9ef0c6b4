"""Imports dp_accounting in the background, so that no request waits for it.

The import takes a second of a processor and some 70 MB. The command line rarely needs it, so no module imports it at
its head. Each process that the curator starts (for draws, jobs, attacks) runs an interpreter of its own, so no fork
inherits the lock of an import under way.
"""

import threading

from service_kit import collector

FIRST_SECONDS = 1.0
"""Delay after the start, for the first requests."""
CLOSE_SECONDS = 5.0
_LOCK = threading.Lock()
_loaded = False


class Loading:
    """A thread that imports the library once the service has started."""

    def __init__(self, after_seconds: float = FIRST_SECONDS) -> None:
        self._after_seconds = after_seconds
        self._closing = threading.Event()
        # A daemon, so that a process that ends need not wait for it.
        self._thread = threading.Thread(target=self._load, daemon=True, name="loading")

    def start(self) -> None:
        """Start the thread, which waits for a moment first."""
        self._thread.start()

    def close(self) -> None:
        """Cancel an import that has not begun, or wait for one that has."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _load(self) -> None:
        if not self._closing.wait(self._after_seconds):
            load()


def load() -> None:
    """Import the library. Call this before any use of it.

    If two threads import it at once by different names, they wait for each other's modules, and Python raises an error
    in one of them; here the second waits for the whole import. Other threads run meanwhile. The garbage collector is
    off, because it would scan all objects several times and hold all threads for a quarter of a second.
    """
    global _loaded
    if _loaded:
        return
    with _LOCK:
        with collector.paused():
            import dp_accounting.pld.privacy_loss_distribution  # noqa: F401  the only part in use
        _loaded = True
