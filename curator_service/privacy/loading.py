"""Imports dp_accounting in the background, so that no request waits for it.

The import takes a second of a processor and some 70 MB. The command line rarely needs it, so no module imports it at
its head. Each process that the curator starts (for draws, jobs, attacks) runs an interpreter of its own, so no fork
inherits the lock of an import under way.
"""

import threading

from service_kit import collector

FIRST_SECONDS = 1.0
"""Delay after the start, for the first requests."""
_LOCK = threading.Lock()
_loaded = False


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
