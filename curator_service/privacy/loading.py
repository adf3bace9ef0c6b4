"""Loads the library of tight figures beside the requests, so that nobody who looks at what a study cost waits for it.

Its import takes a second of a processor and some 70 MB. The command line needs it only where it counts something, so
no module imports it at its head. Each process that we start (for draws, jobs, attacks) executes an interpreter of its
own, and is no fork that would inherit the lock of an import under way.
"""

import gc
import threading

FIRST_SECONDS = 1.0
"""After the start: its first requests come first."""
CLOSE_SECONDS = 5.0
_LOCK = threading.Lock()
_loaded = False


class Loading:
    """A thread that imports the library once the service has started, and ends."""

    def __init__(self, after_seconds: float = FIRST_SECONDS) -> None:
        self._after_seconds = after_seconds
        self._closing = threading.Event()
        # A daemon: a process that ends need not wait for it.
        self._thread = threading.Thread(target=self._load, daemon=True, name="loading")

    def start(self) -> None:
        """Begin, a moment from now."""
        self._thread.start()

    def close(self) -> None:
        """Begin no more; what is under way is let go on to its end."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _load(self) -> None:
        if not self._closing.wait(self._after_seconds):
            load()


def load() -> None:
    """Import the library; whoever is about to use it calls this first.

    Two threads that import it at once by different names wait for each other's modules, which Python ends with an error
    in one of them: here the second waits for the whole. Other threads run meanwhile, and none waits longer than for a
    part of a module: the collector of garbage rests, which would look at everything, several times, and hold all
    threads for a quarter of a second.
    """
    global _loaded
    if _loaded:
        return
    with _LOCK:
        collects = gc.isenabled()
        gc.disable()
        try:
            import dp_accounting.pld.privacy_loss_distribution  # noqa: F401  all that anybody uses of it
        finally:
            if collects:
                gc.enable()
        _loaded = True
