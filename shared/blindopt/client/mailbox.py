"""Requests that wait for a curator to fetch them, and the replies that it brings: a socket turned round.

The modeler's clients send through a ``LinkTransport``; the curator pulls the requests, at least once each, and sends
the replies in parts. Requests are in memory alone: a run repeats its own under the same idempotency key.
"""

import asyncio
import base64
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakValueDictionary

import httpx
from pydantic import ValidationError

from blindopt import wire
from blindopt.client.transport import LINK_POSTED
from blindopt.errors import Busy, NotFound, Unreachable

SCHEME = "link"
WAITING_MAX = 256
"""The most requests of one link that wait or have no whole reply."""
CONNECTED_SECONDS = 45.0
"""A curator that has not pulled for so long is absent; it pulls every 25 seconds at least."""
BODY_MAX_BYTES = 64 << 10
_ABSENT = "the curator of this link is not connected: it takes requests when its service runs and reaches this one"
_PARTS_HELD = 2
_Part = tuple[wire.LinkReply, bytes]
LONG_MAX = {"held": 32, "transfer": 16}
"""The most requests at once that the curator holds until there is news, and whose replies are candidates.

They leave LINK_REQUESTS_MAX - 48 to all others, which are answered in a moment.
"""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request and the parts of its reply that nobody has read yet."""

    request: wire.LinkRequest
    delivered: bool = False
    next_part: int = 0
    parts: "queue.Queue[_Part | None]" = field(default_factory=lambda: queue.Queue(_PARTS_HELD))
    is_ended: bool = False

    @property
    def kind(self) -> str:
        """One of LONG_MAX, or short."""
        path, _, query = self.request.target.partition("?")
        if "/candidates" in path:
            return "transfer"
        return (
            "held" if any(name == "wait" and value not in ("0", "0.0") for name, value in parse_qsl(query)) else "short"
        )

    def take(self, seconds: float | None) -> "_Part":
        """The next part of the reply. Raises queue.Empty if none comes in time, or once the wait was ended."""
        part = None if self.is_ended else self.parts.get(timeout=seconds)
        if part is None:
            raise queue.Empty
        return part

    def end(self) -> None:
        """Let nobody wait for a part any more; from any thread."""
        self.is_ended = True
        with suppress(queue.Full):  # then nobody waits for one
            self.parts.put_nowait(None)


@dataclass(eq=False, slots=True)
class _Pull:
    """A curator that waits for a request."""

    event: asyncio.Event
    loop: asyncio.AbstractEventLoop

    def wake(self) -> None:
        """Let it look again; from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self.event.set)


class Mailbox:
    """The requests of one link. Clients use it from threads; ``pull`` and ``reply`` belong to an event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._lock = threading.Lock()
        self._pull: _Pull | None = None
        self._pulled_at = float("-inf")

    @property
    def is_connected(self) -> bool:
        """Whether the curator waits for requests, or did a moment ago."""
        return self._pull is not None or self._clock() - self._pulled_at < CONNECTED_SECONDS

    @property
    def seconds_since_pull(self) -> float | None:
        """Seconds since the curator last took requests; 0 while it waits for one; None: never."""
        if self._pull is not None:
            return 0.0
        return None if self._pulled_at == float("-inf") else round(self._clock() - self._pulled_at, 1)

    @property
    def waiting(self) -> int:
        """The number of requests without a whole reply."""
        return len(self._waiting)

    def wake(self) -> None:
        """Let the curator that waits look again; from any thread, and in the handler of a signal: it takes no lock."""
        if (pull := self._pull) is not None:
            pull.wake()

    # --- the side of the clients ------------------------------------------------------------------

    def post(self, request: wire.LinkRequest) -> "_Waiting":
        """Add a request. Raises Unreachable if too many wait."""
        item = _Waiting(request)
        with self._lock:
            if len(self._waiting) >= WAITING_MAX:
                raise Unreachable("too many requests wait for the curator of this link")
            self._waiting[request.id] = item
        self.wake()
        return item

    def forget(self, request_id: str) -> None:
        """Give a request up, or end it: a later part of its reply is refused."""
        with self._lock:
            self._waiting.pop(request_id, None)
            pull = self._pull if any(not item.delivered for item in self._waiting.values()) else None
        if pull is not None:  # one that had to wait for this one
            pull.wake()

    # --- the side of the curator ------------------------------------------------------------------

    async def pull(self, working: frozenset[str], seconds: float) -> list[wire.LinkRequest]:
        """Requests that the curator does not have, as soon as there is one; none after ``seconds``.

        ``working``: those that it has. One that was delivered and is not among them was lost on the way. The newest
        pull alone is served: one before it, which perhaps nobody reads any more, ends without a request.
        """
        mine = _Pull(asyncio.Event(), asyncio.get_running_loop())
        with self._lock:
            before, self._pull = self._pull, mine
            for request_id, item in self._waiting.items():
                if item.delivered and not item.next_part and request_id not in working:
                    item.delivered = False
        if before is not None:
            before.wake()
        try:
            taken = self._take(mine)
            if not taken and seconds > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(mine.event.wait(), seconds)
                taken = self._take(mine)
            return taken
        finally:
            with self._lock:
                self._pulled_at = self._clock()
                if self._pull is mine:
                    self._pull = None

    def _take(self, pull: _Pull) -> list[wire.LinkRequest]:
        with self._lock:
            if self._pull is not pull:
                return []
            taken: list[_Waiting] = []
            under_way = Counter(item.kind for item in self._waiting.values() if item.delivered)
            for item in self._waiting.values():
                if item.delivered or under_way[item.kind] >= LONG_MAX.get(item.kind, WAITING_MAX):
                    continue
                if len(taken) == wire.LINK_PULLED_MAX:
                    break
                item.delivered = True
                under_way[item.kind] += 1
                taken.append(item)
        return [item.request for item in taken]

    def reply(self, head: wire.LinkReply, body: bytes) -> int:
        """Take a part of a reply, and return the number of the next; one that came before is ignored.

        Raises NotFound if nobody waits for it any more, and Busy while the parts before it are not read.
        """
        with self._lock:
            item = self._waiting.get(head.request)
            if item is None or head.part > item.next_part:
                raise NotFound("nobody waits for this part of a reply")
            if head.part < item.next_part:
                return item.next_part
            try:
                item.parts.put_nowait((head, body))
            except queue.Full:
                raise Busy("the parts before it are not read yet", seconds=1) from None
            item.next_part += 1
            return item.next_part


class LinkTransport(httpx.BaseTransport):
    """Sends requests of an httpx client through a mailbox. Its time limits are those of the requests."""

    def __init__(self, mailbox: Mailbox, wait_s: float = 5.0) -> None:
        """``wait_s``: how long a curator that is absent may take to connect."""
        self._mailbox = mailbox
        self._wait_s = wait_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The reply to a request. Raises httpx.ReadTimeout, and Unreachable while the curator is absent."""
        until = time.monotonic() + self._wait_s
        item = self._mailbox.post(_as_item(request))
        limit = request.extensions.get("timeout", {}).get("read")
        if (trace := request.extensions.get("trace")) is not None:
            trace(LINK_POSTED, {"end": item.end})
        try:
            while True:
                try:
                    head, body = item.take(min(limit or self._wait_s, self._wait_s))
                    break
                except queue.Empty:
                    if not self._mailbox.is_connected and time.monotonic() >= until:
                        raise Unreachable(_ABSENT) from None
                    if item.is_ended or (limit is not None and time.monotonic() >= until - self._wait_s + limit):
                        raise httpx.ReadTimeout("no reply came in time", request=request) from None
            stream = _Parts(self._mailbox, item, head, body, limit, request)
            return httpx.Response(head.status, headers=head.headers, stream=stream, request=request)
        except BaseException:
            self._mailbox.forget(item.request.id)
            raise


class _Parts(httpx.SyncByteStream):
    """The body of a reply, part by part."""

    def __init__(
        self,
        mailbox: Mailbox,
        item: _Waiting,
        head: wire.LinkReply,
        first: bytes,
        limit: float | None,
        request: httpx.Request,
    ) -> None:
        self._mailbox, self._item, self._head, self._first = mailbox, item, head, first
        self._limit, self._request = limit, request

    def __iter__(self) -> Iterator[bytes]:
        head, body = self._head, self._first
        while True:
            yield body
            if head.last:
                return
            try:
                head, body = self._item.take(self._limit)
            except queue.Empty:
                raise httpx.ReadTimeout("the reply stopped", request=self._request) from None

    def close(self) -> None:
        self._mailbox.forget(self._item.request.id)


def _as_item(request: httpx.Request) -> wire.LinkRequest:
    body = request.read()
    if len(body) > BODY_MAX_BYTES:
        raise Unreachable(f"a request over a link may have {BODY_MAX_BYTES} bytes")
    skipped = ("host", "connection", "content-length", "transfer-encoding")
    try:
        return wire.LinkRequest.model_validate(
            {
                "id": secrets.token_hex(16),
                "method": request.method,
                "target": request.url.raw_path.decode("ascii"),
                "headers": {name: value for name, value in request.headers.items() if name not in skipped},
                "body": base64.b64encode(body).decode(),
            }
        )
    except ValidationError:  # its text may quote a token
        raise Unreachable("the address or a header is too long for a request over a link") from None


class Mailboxes:
    """The mailbox of each link of a process.

    Anybody who may name a curator names links, also such as nobody ever made: their mailboxes are not kept.
    """

    def __init__(self) -> None:
        self._in_use: WeakValueDictionary[str, Mailbox] = WeakValueDictionary()
        self._kept: dict[str, Mailbox] = {}
        self._lock = threading.Lock()

    def of(self, link: str) -> Mailbox:
        """The mailbox of a link that was made. It is kept."""
        with self._lock:
            return self._kept.setdefault(link, self._shared(link))

    def leave(self) -> None:
        """End the wait of every curator: the service is ending."""
        for mailbox in list(self._in_use.values()):
            mailbox.wake()

    def transport(self, url: str) -> LinkTransport | None:
        """What carries requests to a curator's address; None for http and https."""
        address = urlsplit(url)
        if address.scheme != SCHEME:
            return None
        with self._lock:
            return LinkTransport(self._shared(address.netloc))

    def _shared(self, link: str) -> Mailbox:
        """The mailbox of a link for as long as anybody uses it: the same for its curator and for all clients."""
        mailbox = self._in_use.get(link)
        if mailbox is None:
            mailbox = self._in_use[link] = Mailbox()
        return mailbox
