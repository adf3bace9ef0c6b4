"""Links to modelers: this curator opens the connections, takes requests over them, and opens no port to anybody.

A request is fed into the curator's own application with the token of its grant, as over a socket: the same routes,
limits, keys, receipts and bytes of the log. Whatever a modeler stores, only what a grant may send is let in.
"""

import asyncio
import base64
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Scope

from blindopt import wire
from blindopt.addresses import is_plain_abroad
from blindopt.certificates import expires_at, file_problem
from blindopt.errors import Forbidden, ProtocolViolated, RecordChanged, StateConflict, Unauthenticated, Unreachable
from curator_service.link_file import address_of, read
from curator_service.settings import Settings
from service_kit.certificates import WARN_BEFORE
from service_kit.context.context import ServiceContext
from service_kit.web import problems
from service_kit.web.metrics import Figures, gauge
from service_kit.web.peers import PeerErrors, PeerGone

if TYPE_CHECKING:
    from blindopt.client.link import LinkConnection

log = logging.getLogger("blindopt.links")
_HEADERS = frozenset(
    ("authorization", "content-type", "idempotency-key", "accept", "accept-encoding", "prefer", "user-agent")
) | {"range", "if-range", "if-none-match", "x-request-id"}
_NOT_HERE = "a link carries only what a grant may send"
_LOOK_SECONDS = 2.0
_PAUSE_MAX_S = 30.0
_FORGIVEN_S = 600.0
"""How long after a wrong reply of a modeler the pause after the next one is longer, also between right ones."""
_REPLY_SECONDS = 60.0
_CARRY_SECONDS = 0.03
"""How long a pull waits for a reply to carry: longer than an answer takes that nobody has to measure."""
Routes = list[tuple[str, re.Pattern[str]]]


def routes_of_grants(routes: Iterable[Any]) -> Routes:
    """Method and path of every documented route that a grant's token opens, from the routes themselves."""
    opened: Routes = []
    for route in routes:
        if isinstance(route, APIRoute):
            roles = [getattr(depends.dependency, "roles", ()) for depends in route.dependencies]
            if any("modeler" in of_route for of_route in roles):
                opened += [(method, route.path_regex) for method in route.methods or ()]
    return opened


class Links:
    """Every link of the file, each with a task on the event loop; the file is looked at while the service runs."""

    def __init__(
        self,
        app: ASGIApp,
        context: ServiceContext,
        routes: Routes,
        settings: Settings,
        peers: PeerErrors | None = None,
    ) -> None:
        self.peers = peers or PeerErrors()
        self._app, self._context, self._routes, self._path = app, context, routes, settings.links_path
        self.settings = settings
        self._links: dict[str, _Link] = {}
        self._seen: tuple[int, int] | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            await _cancelled(self._watching)
        for link in self._links.values():
            await link.stop()

    def status(self) -> list[wire.LinkStatus]:
        return [link.status() for link in self._links.values()]

    def gauges(self) -> Figures:
        yield gauge("blindopt_links", "Links to modelers by state.", self._by_state, ("state",))
        about = "Seconds until the first client certificate of a link expires; negative once it has."
        yield gauge("blindopt_link_certificate_expires_seconds", about, self._first_end)

    def _by_state(self) -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {("connected",): 0, ("trying",): 0}
        for link in list(self._links.values()):
            counts[link.status().state,] += 1
        return counts

    def _first_end(self) -> dict[tuple[str, ...], float]:
        ends = [end for link in list(self._links.values()) if (end := link.certificate_end()) is not None]
        return {(): round((min(ends) - self._context.clock()).total_seconds())} if ends else {}

    async def _watch(self) -> None:
        while True:
            try:
                stat = self._path.stat()
                seen = stat.st_mtime_ns, stat.st_size
            except OSError:
                seen = (0, 0)
            if seen != self._seen:
                self._seen = seen
                await self._apply()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _apply(self) -> None:
        try:
            files = {file.id: file for file in read(self._path)}
        except StateConflict as error:
            log.error("links", extra={"fields": {"problem": str(error)}})
            return
        for link_id, link in list(self._links.items()):
            if files.get(link_id) != link.file:
                await self._links.pop(link_id).stop()
        for link_id, file in files.items():
            if link_id not in self._links:
                self._links[link_id] = _Link(file, self)

    async def respond(self, link: "_Link", request: wire.LinkRequest) -> None:
        """Feed a request into the application, and send its reply over the link."""
        reply = _ReplyParts(link, request.id)
        path, _, query = request.target.partition("?")
        headers = {name.lower(): value for name, value in request.headers.items() if name.lower() in _HEADERS}
        try:
            await self._check(request.method, unquote(path), headers.get("authorization", ""))
            body = base64.b64decode(request.body, validate=True)
        except (Forbidden, ValueError) as error:
            request_id = headers.get("x-request-id", request.id)
            self.peers.note("not_allowed", link.name, request_id=request_id[:64])
            await _refuse(reply, error, path, request_id)
            return
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": link.file.url.partition(":")[0],
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(n.encode("latin-1"), v.encode("latin-1", "replace")) for n, v in _sent(headers, body)],
            "client": (link.name, 0),
            "server": None,
        }
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            for message in messages:
                return message
            await asyncio.Event().wait()  # the reply ends this
            raise AssertionError

        await self._app(scope, receive, reply.send)

    async def _check(self, method: str, path: str, authorization: str) -> None:
        """Raise Forbidden for what no grant may send, and for the token of anybody but a modeler."""
        if not any(method == allowed and pattern.fullmatch(path) for allowed, pattern in self._routes):
            raise Forbidden(_NOT_HERE)
        with suppress(Unauthenticated, RecordChanged):  # the application refuses it, as over a socket
            if (await self._context.authentication.authenticate(authorization)).role != "modeler":
                raise Forbidden(_NOT_HERE)


async def _refuse(reply: "_ReplyParts", error: Exception, path: str, request_id: str) -> None:
    refusal = error if isinstance(error, Forbidden) else Forbidden(_NOT_HERE)
    response = problems.response(refusal, path=path[:200], request_id=request_id[:64])
    start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await reply.send(start)
    await reply.send({"type": "http.response.body", "body": bytes(response.body), "more_body": False})


def _sent(headers: dict[str, str], body: bytes) -> Iterator[tuple[str, str]]:
    yield "host", "link"
    yield from headers.items()
    if body:
        yield "content-length", str(len(body))


class _Link:
    """One link: a task that pulls, and a task for each request."""

    def __init__(self, file: wire.LinkFile, links: Links) -> None:
        self.file, self.name = file, f"link:{file.id}"
        self._links = links
        self.connection: LinkConnection | None = None
        self._working: dict[str, asyncio.Task[None]] = {}
        self._carrier: asyncio.Future[tuple[str, wire.LinkCarried, asyncio.Future[None]]] | None = None
        self._state: Literal["connected", "trying"] = "trying"
        self._problem: str | None = None
        self._since: datetime = links._context.clock()
        self._task = asyncio.create_task(self._run())

    def status(self) -> wire.LinkStatus:
        return wire.LinkStatus(
            id=self.file.id,
            name=self.file.name,
            url=self.file.url,
            address=address_of(self.file),
            state=self._state,
            since=self._since,
            problem=self._problem or self._ending(),
        )

    def certificate_end(self) -> datetime | None:
        """When its client certificate expires; None without a readable one."""
        try:
            return None if self.file.cert is None else expires_at(self.file.cert)
        except (OSError, ValueError):  # the next connection says so
            return None

    def _ending(self) -> str | None:
        """In words that its client certificate expires within 30 days; None for any other."""
        end = self.certificate_end()
        if end is None or end - self._links._context.clock() >= WARN_BEFORE:
            return None
        return f"the client certificate of this link expires on {end:%Y-%m-%d}: put a new one in its place"

    async def stop(self) -> None:
        for task in (self._task, *self._working.values()):
            await _cancelled(task)

    async def _run(self) -> None:
        from blindopt.client.link import LinkConnection  # late: most curators open no connection, and start faster

        loop, pause_s, odd_pause_s, odd_at = asyncio.get_running_loop(), 0.5, 0.0, float("-inf")
        while True:
            try:
                if is_plain_abroad(self.file.url) and not self._links.settings.allow_plain_http:
                    raise Unreachable(
                        "answers are not sent over plain http to another machine: its address must be https"
                    )
                async with LinkConnection(self.file, self._links.settings.proxy_to(self.file.url)) as self.connection:
                    await self._take(await self.connection.pull(list(self._working), 0))
                    self._become("connected", None)
                    pause_s = 0.5
                    while True:
                        await self._take(await self._pull(self.connection))
            except (Unreachable, ProtocolViolated) as error:
                if is_odd := isinstance(error, ProtocolViolated):
                    odd_pause_s = 2 * odd_pause_s if loop.time() - odd_at < _FORGIVEN_S else 0.5
                    odd_at, pause_s = loop.time(), min(max(pause_s, odd_pause_s), _PAUSE_MAX_S)
                self._links.peers.note("protocol_violated" if is_odd else "unreachable", self.name)
                self._become("trying", str(error))
            except OSError as error:  # such as a file of authorities that cannot be read
                self._become("trying", f"the certificates of this link are not usable: {file_problem(error)}")
            except Exception as error:  # the link is tried again; its text may quote a value
                log.error("fault", extra={"fields": {"link": self.file.id, "kind": type(error).__name__}})
                self._become("trying", f"a fault on our side ({type(error).__name__})")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _pull(self, connection: "LinkConnection") -> list[wire.LinkRequest]:
        """Pull, with the first short reply that is ready at once."""
        if not self._working:
            return await connection.pull([])
        self._carrier = carrier = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([carrier], timeout=_CARRY_SECONDS)
        self._carrier = None
        if not done:
            return await connection.pull(list(self._working))
        request, carried, sent = carrier.result()
        try:
            requests = await connection.pull([other for other in self._working if other != request], carried=carried)
        except BaseException as error:
            sent.set_exception(Unreachable(str(error)))
            raise
        sent.set_result(None)
        return requests

    def carry(self, head: wire.LinkReply, body: bytes) -> "asyncio.Future[None] | None":
        """Let the next pull carry a whole short reply; return when it was sent. None: no pull waits for one."""
        carrier = self._carrier
        if carrier is None or carrier.done() or len(body) > wire.LINK_CARRIED_BYTES:
            return None
        carried = wire.LinkCarried(head=head, body=base64.b64encode(body).decode())
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        carrier.set_result((head.request, carried, sent))
        return sent

    def _become(self, state: Literal["connected", "trying"], problem: str | None) -> None:
        if (state, problem) != (self._state, self._problem):
            self._state, self._problem, self._since = state, problem, self._links._context.clock()
            log.info("link", extra={"fields": {"link": self.file.id, "state": state, "problem": problem}})

    async def _take(self, requests: list[wire.LinkRequest]) -> None:
        """Begin to work on requests; those beyond what is worked on at once are pulled again."""
        for request in requests[: wire.LINK_REQUESTS_MAX - len(self._working)]:
            if request.id not in self._working:
                self._working[request.id] = asyncio.create_task(self._answer(request))
        if len(self._working) >= wire.LINK_REQUESTS_MAX:
            await asyncio.wait(self._working.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _answer(self, request: wire.LinkRequest) -> None:
        try:
            await self._links.respond(self, request)
        except PeerGone:
            self._links.peers.note("disconnected", self.name)
        except ConnectionAbortedError:  # of a fault in the midst of a reply, which is logged
            pass
        except Exception as error:  # the modeler sends it again; its text may quote a value
            log.error("fault", extra={"fields": {"link": self.file.id, "kind": type(error).__name__}})
        finally:
            del self._working[request.id]


class _ReplyParts:
    """Sends what the application replies, in parts of at most LINK_PART_BYTES: no more of it is held."""

    def __init__(self, link: _Link, request: str) -> None:
        self._link, self._request = link, request
        self._start: Message = {}
        self._body = bytearray()
        self._part = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._body += message.get("body", b"")
        last = not message.get("more_body")
        while len(self._body) > wire.LINK_PART_BYTES:
            await self._send_part(bytes(self._body[: wire.LINK_PART_BYTES]), last=False)
            del self._body[: wire.LINK_PART_BYTES]
        if last:
            await self._send_part(bytes(self._body), last=True)

    async def _send_part(self, body: bytes, *, last: bool) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._start["headers"]}
        head = wire.LinkReply(
            request=self._request,
            part=self._part,
            last=last,
            status=self._start["status"],
            headers=headers if self._part == 0 else {},
        )
        if last and self._part == 0 and (sent := self._link.carry(head, body)) is not None:
            with suppress(Unreachable):  # then it is sent alone
                await sent
                return
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + _REPLY_SECONDS, 0.05
        while True:
            assert self._link.connection is not None
            try:
                if not await self._link.connection.reply(head, body):
                    raise PeerGone("nobody waits for this reply any more")
                break
            except (Unreachable, RuntimeError):  # RuntimeError: the connection was closed, and a new one is on its way
                if loop.time() > until:
                    raise PeerGone("the modeler cannot be reached") from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 2.0)
        self._part += 1


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
