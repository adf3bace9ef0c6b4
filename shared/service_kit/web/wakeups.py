"""Wake coroutines that wait for an event, without holding a thread or a connection meanwhile."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")
INBOX = "inbox"
"""The name that a curator notifies when a measurement is requested, answered, declined or corrected."""


async def while_connected(request: Request, waiting: Coroutine[Any, Any, T]) -> T | None:
    """What ``waiting`` returns; None once the client of a request, whose body was read, has gone."""
    task, gone = asyncio.create_task(waiting), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        gone.cancel()


class Wakeups:
    """Notifications by name, from any thread: what is waited for may have changed, so look again."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: dict[str, set[asyncio.Event]] = {}
        self._callbacks: list[tuple[str, Callable[[], None]]] = []
        self.closing = False

    def attach(self) -> None:
        """Wake coroutines on the running event loop from now on."""
        self._loop = asyncio.get_running_loop()

    def on(self, name: str, act: Callable[[], None]) -> None:
        """Call ``act`` at each notification, on the thread that notifies. It must be quick and raise nothing."""
        self._callbacks.append((name, act))

    def notify(self, name: str) -> None:
        """Run the callbacks of ``name`` and wake the coroutines that listen to it."""
        for callback_name, act in self._callbacks:
            if callback_name == name:
                act()
        self._on_loop(lambda: self._wake(self._listening.get(name, ())))

    def close(self) -> None:
        """Wake every coroutine, and let none wait any more: the service is ending."""
        self.closing = True
        self._on_loop(lambda: [self._wake(events) for events in self._listening.values()])

    @contextmanager
    def listening(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set at each notification: clear it, look, then wait, and no notification is lost."""
        event = asyncio.Event()
        self._listening.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            (listeners := self._listening[name]).discard(event)
            if not listeners:
                del self._listening[name]

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for a notification; False if none came in time, or the service is ending."""
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
