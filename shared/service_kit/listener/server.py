"""The server of a service: uvicorn, with the connections of ``protocol`` and an orderly end."""

import asyncio
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import FrameType

import uvicorn
from fastapi import FastAPI

from blindopt.certificates import look_again
from service_kit.certificates import Certificates
from service_kit.listener.connections import Connections, TrustedProxies, raise_descriptor_limit
from service_kit.listener.protocol import Deadlines, ListenerState, Protocol
from service_kit.settings import ServiceSettings

log = logging.getLogger("blindopt.connections")
LATE_SECONDS = 0.5
"""How long a peer may send or read nothing while the service ends."""
KEEP_ALIVE_SECONDS = 8
"""Longer than the 5 s for which our clients keep a connection, so that they rarely use one that is being closed."""
REPORT_TICKS = 60
ACCEPT_AT_ONCE = 64
"""How many connections are accepted before other work of the event loop goes on."""
ACCEPT_PAUSE_SECONDS = 0.1
"""How long nothing is accepted where no descriptor is left."""


class Server(uvicorn.Server):
    """A server that checks its connections every second, and survives SIGHUP.

    At its end it calls ``app.state.leave``, so that open streams do not delay the shutdown.
    """

    def __init__(self, config: uvicorn.Config, state: ListenerState, app: FastAPI) -> None:
        super().__init__(config)
        self.server_state: ListenerState = state
        self._app = app
        self._certificates: Certificates = app.state.certificates
        self._accepting: list[asyncio.Task[None]] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._must_look = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_awake = asyncio.Event()
        self._has_terminal = os.isatty(2)

    def hang_up(self, sig: int, frame: FrameType | None) -> None:
        """Read certificates again soon: the handler of SIGHUP. Begin the shutdown if the terminal was closed."""
        self._must_look = True
        if self._has_terminal and not os.isatty(2):
            self.handle_exit(signal.SIGTERM, frame)
        self._wake()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; also from another thread."""
        leave: Callable[[], None] | None = getattr(self._app.state, "leave", None)
        if leave is not None:
            leave()
        super().handle_exit(sig, frame)
        self._wake()

    def _wake(self) -> None:
        """End the sleep between two ticks."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_awake.set)

    async def main_loop(self) -> None:
        """Tick once a second, where uvicorn ticks ten times: that took most of the time of a service without work."""
        self._loop = asyncio.get_running_loop()
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            self._is_awake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_awake.wait(), self.server_state.deadlines.tick)
        self._loop = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections ourselves: caps come before the handshake of TLS, and each gets today's certificate."""
        await super().startup(sockets=[])
        if self.started:
            self._accepting = [asyncio.create_task(self._accept(sock)) for sock in sockets or []]

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        listening.listen(self.config.backlog)
        while True:
            try:
                self._connect(*await loop.sock_accept(listening))
                for _ in range(ACCEPT_AT_ONCE):
                    self._connect(*listening.accept())
            except BlockingIOError:  # nobody else waits
                continue
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    await asyncio.sleep(ACCEPT_PAUSE_SECONDS)

    def _connect(self, accepted: socket.socket, peer: object) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol = Protocol(self.config, self.server_state, self.lifespan.state)
        task = asyncio.create_task(protocol.connect(accepted, peer))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def on_tick(self, counter: int) -> bool:
        """Check connections and certificates; every minute, log how many were refused or cut."""
        if self._must_look:
            self._must_look = False
            look_again()
        for connection in self.server_state.open_connections.all():
            connection.check()
        self._certificates.look()
        if counter % REPORT_TICKS == REPORT_TICKS - 1:
            self._report()
        return await super().on_tick(0)  # each of them is one at which it makes the headers anew

    def _report(self) -> None:
        counts = self.server_state.open_connections.report()
        if counts:
            log.warning("connections refused or cut", extra={"fields": {"last_minute": counts}})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests end, and those that are on their way, each with Connection: close."""
        self.server_state.is_draining = True
        for task in self._accepting:
            task.cancel()
        late = asyncio.create_task(self._check_late())
        await super().shutdown(sockets)
        late.cancel()
        self._report()

    async def _check_late(self) -> None:
        """Wait at the end for no peer that sends or reads nothing."""
        state = self.server_state
        head, linger = (min(seconds, LATE_SECONDS) for seconds in (state.deadlines.head, state.deadlines.linger))
        state.deadlines = replace(state.deadlines, head=head, linger=linger)
        while True:
            for connection in state.open_connections.all():
                connection.check()
            await asyncio.sleep(LATE_SECONDS / 5)


def server(app: FastAPI, settings: ServiceSettings, deadlines: Deadlines = Deadlines()) -> Server:
    """A server of ``app`` as the settings say, and the deadlines. Raises the process's limit of open descriptors."""
    room = raise_descriptor_limit()
    if room < settings.connections_max:
        log.warning(
            "fewer connections than CONNECTIONS_MAX: the limit of open files is low", extra={"fields": {"room": room}}
        )
    certificates: Certificates = app.state.certificates
    proxies = TrustedProxies(settings.proxy_networks)
    state = ListenerState(
        Connections(min(settings.connections_max, room), settings.connections_per_address),
        tls=None if settings.tls_cert is None else certificates.server_context,
        needs_certificate=settings.tls_client_ca is not None,
        proxies=proxies,
        deadlines=deadlines,
    )
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anyone can send them: see TrustedProxies
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    return Server(config, state, app)
