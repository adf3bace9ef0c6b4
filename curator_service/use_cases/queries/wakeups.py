"""Tells coroutines that wait for something that it has come: no thread and no connection is held meanwhile."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INBOX = "inbox"
"""Rung when something is asked of, or told by, those who measure."""


class Bells:
    """One for each name, rung from any thread. A ring says that something may have changed: look again."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: dict[str, set[asyncio.Event]] = {}
        self._callbacks: list[tuple[str, Callable[[], None]]] = []
        self.closing = False

    def attach(self) -> None:
        """Serve those who wait on the running event loop."""
        self._loop = asyncio.get_running_loop()

    def also(self, name: str, act: Callable[[], None]) -> None:
        """Call ``act`` at each ring of a bell, on the thread that rings. It must be quick and raise nothing."""
        self._callbacks.append((name, act))

    def ring(self, name: str) -> None:
        """Wake all who listen to a bell."""
        for known, act in self._callbacks:
            if known == name:
                act()
        self._on_loop(lambda: self._wake(self._listening.get(name, ())))

    def close(self) -> None:
        """Wake all who wait, and let nobody wait any more: the service is ending."""
        self.closing = True
        self._on_loop(lambda: [self._wake(events) for events in self._listening.values()])

    @contextmanager
    def listening(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set at each ring: clear it, look, then wait for it, and no ring is lost."""
        event = asyncio.Event()
        self._listening.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            (left := self._listening[name]).discard(event)
            if not left:
                del self._listening[name]

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for a ring; False where none came in time, or none will."""
        if self.closing or seconds <= 0:
            return False
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _on_loop(self, act: Callable[[], object]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    @staticmethod
    def _wake(events: set[asyncio.Event] | tuple[()]) -> None:
        for event in events:
            event.set()
