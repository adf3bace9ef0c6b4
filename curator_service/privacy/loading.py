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
    """Import the library. Other threads run meanwhile: none waits longer than for a part of a module.

    The collector of garbage rests: it would look at everything, several times, and hold all threads for a quarter of a
    second. What others leave to it meanwhile is collected after.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        import dp_accounting.pld.privacy_loss_distribution  # noqa: F401  what composition imports where it is used
    finally:
        if collects:
            gc.enable()
