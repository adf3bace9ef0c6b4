"""A client of a service: how requests are sent, replies read, and exchanges observed.

Each thread of a client keeps one synchronous httpx.Client open: it is faster than the asynchronous one. Every exchange
is passed to ``observe``, for the caller's audit log.
"""

import base64
import logging
import math
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Protocol, Self, TypeVar

import httpx
from pydantic import BaseModel, JsonValue

from blindopt import bodies, wire
from blindopt.addresses import is_plain_abroad
from blindopt.arguments import checked, checked_methods
from blindopt.audit.checkpoints import parse_unverified
from blindopt.audit.merkle_log import RECEIPT_HEADER, Exchange, sha256
from blindopt.client.transport import (
    REPLY_MAX_BYTES,
    ClientCertificate,
    Connection,
    Patience,
    Reach,
    transport_errors,
)
from blindopt.errors import (
    ClientCertificateNeeded,
    Invalid,
    LogBroken,
    ProtocolViolated,
    Remote,
    StillRunning,
    Unreachable,
    sentence,
)
from blindopt.values import value

R = TypeVar("R", bound=BaseModel)
P = TypeVar("P", bound=wire.Page)
DETAIL_MAX = 300
FAULTS_MAX = 20
PATIENCE_S = 60.0
FIRST_PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
"""Pauses before a request is repeated: each is twice as long as the one before."""
log = logging.getLogger("blindopt.exchanges")
_ID = re.compile("[a-z]{1,4}_[0-9a-f]{16}")
_GRANT = re.compile("grt_[0-9a-f]{16}")
_JSON = ("application/json", "application/problem+json")
_CODE = re.compile(r"[a-z_]{1,60}")
_TOKEN_TEXT = re.compile(r"[!-~]+")
_PATH = re.compile(r"(/(?!\.\.?(/|$))[\w.:~-]+)+", re.ASCII)
_KEY = re.compile(r"[ -~]{1,200}")
_TOKEN = re.compile(r"blindopt_[0-9a-f]{16}\.\S+")


class _Job(Protocol):
    """A view of a job, such as a run."""

    @property
    def state(self) -> str: ...

    @property
    def ended_at(self) -> datetime | None: ...


J = TypeVar("J", bound=_Job)


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers and exact bytes of a reply, the exchange that it ended, and its receipt: a signed note."""

    status: int
    headers: httpx.Headers
    body: bytes
    exchange: Exchange
    receipt: str | None
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Sentences in place of those of the other party, by the code of its problem."""

    def read(self, model: type[R]) -> R:
        """Parse the body as ``model``.

        Raises ProtocolViolated for something else with a receipt, which signs it; Unreachable for one without.
        """
        try:
            read: R = bodies.parse(self.body, model)
            return read
        except Invalid as error:
            kind = Unreachable if self.receipt is None else ProtocolViolated
            raise kind("the reply is not what this version of the protocol says") from error

    def check(self) -> Self:
        """Return the reply itself; raise Remote for a problem document."""
        if self.status < 400:
            return self
        try:
            problem: wire.Problem = bodies.parse(self.body, wire.Problem)
        except Invalid:
            raise Unreachable(f"the other side answered {self.status} without a problem document") from None
        error = Remote(
            code=problem.code if _CODE.fullmatch(problem.code) else "error",
            status=self.status,
            detail=self.refusals.get(problem.code, _masked(problem.detail)),
            retryable=problem.retryable,
            retry_after_s=_seconds(self.headers.get("Retry-After", "")),
        )
        if problem.budget is not None:
            error.cap, error.row = problem.budget.cap, problem.budget.row
        error.faults = tuple(_faults(problem))
        for fault in error.other_faults:
            error.add_note(fault)
        raise error

    @property
    def repeat_after_s(self) -> float | None:
        """Seconds after which the same request may succeed; None if repeating it would not help."""
        try:
            self.check()
        except Unreachable:
            return 0.0
        except Remote as error:
            return (error.retry_after_s or 0.0) if error.remote_retryable else None
        return None


@dataclass(frozen=True, slots=True)
class Watch:
    """What the user of a client is told: each exchange with its receipt, and progress; and whether to give up.

    ``id_of`` makes the id of a request from its method, path and idempotency key.
    """

    observe: Callable[[Exchange, str | None], None] = lambda exchange, receipt: None
    cancelled: Callable[[], bool] = lambda: False
    progress: Callable[[], None] = lambda: None
    id_of: Callable[[str, str, str | None], str] = lambda method, path, key: secrets.token_hex(16)


@value
class _Request:
    """A request. Without ``record``, only its refusal is observed; ``longer_s``: beside the time of any request.

    ``reply_max_bytes``: the most that a reply to it can have; None: what the connection allows.
    """

    method: str
    path: str
    body: bytes | None = None
    key: str | None = None
    study_id: str = ""
    params: dict[str, Any] | None = None
    multipart: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    media: str = "application/json"
    longer_s: float = 0.0
    record: bool = True
    reply_max_bytes: int | None = None


class Client:
    """A client with a token. Threads may share it: each has a connection of its own.

    ``url`` is the address of the service, ``token`` the secret of a user or a grant. ``verify`` is a file of
    certificate authorities, or False for no check of the certificate; ``client_cert`` are files in PEM, a certificate
    and its key, for a service that requires one. ``timeout_s`` bounds one reply. For ``patience_s`` a request is
    repeated, with the same idempotency key, while that may help: the connection failed, another machine answered, or
    the reply says so. An address at which nothing has answered yet is tried once. ``proxy`` is the address of an HTTP
    proxy; none is taken from the environment, because it would read the token.

    Methods take ids as listings show them: ``study_id``, ``dataset_id``, ``grant_id``, ``run_id``, ``query_id``,
    ``measurement_id``, ``message_id``, ``forecast_id``, ``tuning_id``, ``upload_id``. ``key`` is the idempotency key of
    a request: None makes a new one. ``poll_s`` is the pause between two looks, in seconds.

    Raises Invalid for plain http to another machine, unless ``plain_http`` allows it.
    """

    party = "the service"
    """Whom it asks, in words."""
    patience_s: ClassVar[float] = PATIENCE_S
    """Seconds of patience, unless a client is given its own."""
    _reply_max_bytes: ClassVar[int] = REPLY_MAX_BYTES
    _transport: httpx.BaseTransport | None = None
    _reach: Reach | None = None
    _watch = Watch()
    _is_quiet: ClassVar[bool] = False
    """Whether nobody reads standard error, unless it is given patience."""
    _start: ClassVar[str] = ", and that the service runs"
    _refusals: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @checked
    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        patience_s: float | None = None,
        verify: str | Path | bool = True,
        client_cert: ClientCertificate | None = None,
        proxy: str | None = None,
        plain_http: bool = False,
    ) -> None:
        if not _TOKEN_TEXT.fullmatch(token):
            raise Invalid.at("token", "must be the secret as it was shown, without spaces or line ends")
        if not plain_http and is_plain_abroad(url):
            raise Invalid(f"a token is not sent over plain http to another machine: use https for {url}")
        self.url = url.rstrip("/")
        self._connect = partial(
            Connection,
            url,
            headers={"Authorization": f"Bearer {token}"},
            timeout_s=timeout_s,
            verify=str(verify) if isinstance(verify, Path) else verify,
            reply_max_bytes=self._reply_max_bytes,
            proxy=proxy,
            client_cert=client_cert,
            transport=self._transport,
            reach=self._reach,
        )
        self._has_answered = False
        self._connections = {threading.get_ident(): self._connect()}
        self._patience_s = self.patience_s if patience_s is None else patience_s
        self._timeout_s = self._allowed_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    def close(self) -> None:
        """Close the connections. A later request opens one again."""
        while self._connections:
            self._connections.popitem()[1].close()

    def cut(self) -> None:
        """End the requests that are under way, and those that begin now; from any thread."""
        for connection in list(self._connections.values()):
            connection.sockets.cut()

    @property
    def _connection(self) -> Connection:
        thread = threading.get_ident()
        connection = self._connections.get(thread)
        if connection is None:
            connection = self._connections[thread] = self._connect()
        return connection

    def _send(self, method: str, path: str, **options: Any) -> Reply:
        """Send a request, repeated as ``patience_s`` allows. ``options`` are those of ``_Request``."""
        request = _Request(method, path, **options)
        if not _PATH.fullmatch(path):
            raise Invalid("an id has letters, digits and _ alone: take it from a listing")
        if request.key is not None and not _KEY.fullmatch(request.key):
            raise Invalid.at("key", "must be 1 to 200 printable characters of ASCII")
        may_repeat = method != "POST" or request.key is not None
        until = time.monotonic() + (self._patience_s if may_repeat else 0.0)
        patience = None
        if not self._is_quiet or self._patience_s:
            patience = Patience(self.url, max(self._patience_s, self._timeout_s), self._connection.sockets)
        try:
            return self._send_until(request, until, patience)
        finally:
            if patience is not None:
                patience.end()

    def _send_until(self, request: "_Request", until: float, patience: Patience | None) -> Reply:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                reply = self._send_once(request)
                if (least_s := reply.repeat_after_s) is None or time.monotonic() + max(least_s, pause_s) > until:
                    return reply
            except Unreachable as error:
                is_wrong = not self._has_answered and isinstance(
                    error.__cause__, httpx.ConnectError | httpx.ConnectTimeout
                )
                if is_wrong or self._watch.cancelled() or time.monotonic() + pause_s > until:
                    raise
                if patience is not None:
                    patience.failed(error)
                least_s = 0.0
            # Jitter keeps many clients from repeating in step; it is no secret and decides nothing.
            time.sleep(max(least_s, pause_s * random.uniform(0.5, 1.0)))  # noqa: S311
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _send_once(self, request: "_Request") -> Reply:
        method, path, key, body = request.method, request.path, request.key, request.body
        headers = {"X-Request-ID": self._watch.id_of(method, path, key)}
        status, began = 0, time.perf_counter()
        if key is not None:
            headers["Idempotency-Key"] = key
        if body is not None:
            headers["Content-Type"] = request.media
        connection, allowed_s = self._connection, self._allowed_s + request.longer_s
        if request.params or request.multipart:
            form: dict[str, Any] = {"params": request.params, "files": request.multipart, "data": request.data}
            form |= {"timeout": allowed_s, "extensions": {"trace": connection.sockets.trace}}
            sent = connection.http.stream(method, path, content=body, headers=headers, **form)
        else:
            sent = connection.exchange(method, path, headers, body, allowed_s)
        try:
            with connection.sockets.within(allowed_s), transport_errors(self._start), sent as response:
                self._has_answered, status = True, response.status_code
                received = received_of(connection, response, request.reply_max_bytes)
        finally:
            log_exchange(headers, method, path, status, began)
        exchange, receipt = exchange_of(response, path, request.study_id, key, sha256(body or b""), sha256(received))
        reply = Reply(response.status_code, response.headers, received, exchange, receipt, self._refusals)
        self._check_writer(reply)
        if is_recorded(method, response.status_code) and (
            request.record or (response.status_code >= 400 and not path.startswith("/v1/audit/"))
        ):
            self._watch.observe(exchange, receipt)
        return reply

    def _check_writer(self, reply: Reply) -> None:
        """Raise Unreachable for a reply that the service did not write."""
        check_writer(reply.status, reply.headers, reply.body, self.party, always_json=False)

    def _get(self, path: str, model: type[R], **params: Any) -> R:
        params = {name: value for name, value in params.items() if value is not None}
        return self._send("GET", path, params=params).check().read(model)

    def _pages(self, path: str, model: type[P], **params: Any) -> Iterator[P]:
        token: str | None = None
        while True:
            page = self._get(path, model, page_token=token, **{"page_size": 1_000} | params)
            yield page
            if (token := page.next_page_token) is None:
                return

    def _post(self, path: str, model: type[R], body: BaseModel | None = None, key: str | None = None) -> R:
        content = body.model_dump_json().encode() if body is not None else b""
        reply = self._send("POST", path, body=content, key=key or new_key())
        return reply.check().read(model)

    def _put(self, path: str, model: type[R], body: BaseModel, key: str | None = None) -> R:
        content = body.model_dump_json().encode()
        return self._send("PUT", path, body=content, key=key or new_key()).check().read(model)


@checked_methods
class ServiceClient(Client):
    """What both services offer the people who run them: notices and the audit log."""

    def notices(self) -> list[wire.NoticeView]:
        """Return every stored notice, oldest first."""
        return [notice for page in self._pages("/v1/notices", wire.NoticePage) for notice in page.notices]

    def test_notices(self) -> wire.NoticeTest:
        """Send a test notice to the service's receiver."""
        return self._post("/v1/notices:test", wire.NoticeTest)

    def audit(self, grant_id: str | None = None) -> Iterator[wire.AuditEntry]:
        """Read the service's own log, or its copy of the shared log of a grant."""
        for page in self._pages("/v1/audit/entries", wire.AuditPage, grant_id=grant_id):
            yield from page.entries


def exchange_of(
    response: httpx.Response, path: str, study_id: str, key: str | None, sent: str, received: str
) -> tuple[Exchange, str | None]:
    """Return this side's record of the exchange, and the other side's receipt: a signed note of its position."""
    request = response.request
    grant_id, position, note = _receipt(response.headers.get(RECEIPT_HEADER, ""))
    exchange = Exchange(
        study_id=study_id,
        grant_id=grant_id,
        position=position,
        request_id=request.headers["X-Request-ID"],
        method=request.method,
        path=path,  # without a prefix that a proxy in front of the other party adds
        idempotency_key=key,
        request_sha256=sent,
        status=response.status_code,
        reply_sha256=received,
        replayed=response.headers.get("Idempotency-Replayed") == "true",
    )
    return exchange, note


def log_exchange(headers: dict[str, str], method: str, path: str, status: int, began: float) -> None:
    """Log an exchange that this side began, as the other side's access log does, under the same request id.

    ``status`` is 0 without a reply; ``began`` is of ``perf_counter``. Ids in the path are left out.
    """
    ms = round((time.perf_counter() - began) * 1000, 2)
    of = {"request_id": headers["X-Request-ID"], "method": method, "route": _ID.sub("*", path)}
    log.info("exchange", extra={"fields": {**of, "status": status, "ms": ms}})


def _receipt(header: str) -> tuple[str | None, int | None, str | None]:
    """Return grant, position and note of a receipt; None for each if it is malformed. Signatures are not checked."""
    position, _, encoded = header.partition(" ")
    try:
        note = base64.b64decode(encoded, validate=True).decode()
        checkpoint = parse_unverified(note)
    except (ValueError, LogBroken):
        return None, None, None
    grant = checkpoint.origin.rpartition("/")[2]
    if (
        not re.fullmatch("[0-9]{1,15}", position)
        or checkpoint.head.size != int(position) + 1
        or not _GRANT.fullmatch(grant)
    ):
        return None, None, None
    return grant, int(position), note


def check_writer(status: int, headers: httpx.Headers, body: bytes, party: str, *, always_json: bool) -> None:
    """Raise Unreachable, in plain words, for a reply that no service of this project writes, or its listener alone.

    Proxies, filters and login pages in between write such replies. Nothing in them is signed, so they are no word of
    the other party: the request is repeated under the same key. ``party`` is who was asked, in words. ``always_json``:
    whether every body must be JSON, whatever its type says.
    """
    media = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if 300 <= status < 400:
        raise _unreachable(party, f"a redirect ({status}), perhaps to a login page")
    if media in ("text/html", "application/xhtml+xml") or body[:200].lstrip()[:1] == b"<":
        raise _unreachable(party, f"a web page ({status})", ": a login page, a filter or the error page of a proxy")
    if not body:
        raise _unreachable(party, f"an empty reply ({status})")
    if not (always_json or media in _JSON):
        return
    try:
        document = bodies.parse(body, JsonValue)
    except Invalid:
        detail = f"the reply of {party} ({status}) did not arrive as it was sent: it is not the JSON of the protocol"
        raise Unreachable(f"{detail}; something on the way cut or changed it") from None
    code = document.get("code") if isinstance(document, dict) else None
    if (status, code) == (ClientCertificateNeeded.status, ClientCertificateNeeded.code):
        needed = ClientCertificateNeeded(f"{party} requires a client certificate, and got none")
        raise Unreachable(str(needed)) from needed


def _unreachable(party: str, reply: str, more: str = "") -> Unreachable:
    return Unreachable(f"something between you and {party} answered with {reply}{more}")


def received_of(connection: Connection, response: httpx.Response, max_bytes: int | None = None) -> bytes:
    """Read the body of a reply. Raises Unreachable if it is too long: nobody has signed it."""
    try:
        return connection.body_of(response, max_bytes)
    except ProtocolViolated as error:
        raise Unreachable(str(error)) from None


def wait_until_ended(get: Callable[[], J], name: str, *, timeout_s: float | None, poll_s: float) -> J:
    """Read a job until it has ended. Raises StillRunning after ``timeout_s``.

    Reads begin ``poll_s`` apart, later a tenth of the time that was waited, at most a second or ``poll_s``; one that
    the service held for longer is followed by the next at once.
    """
    limit_s = math.inf if timeout_s is None else timeout_s
    begin = sent_at = time.monotonic()
    while (job := get()).ended_at is None:
        now = time.monotonic()
        if (waited := now - begin) > limit_s:
            raise StillRunning(f"{name} is {job.state} after {timeout_s} s")
        pause = min(max(poll_s, min(waited / 10, 1.0)), max(limit_s - waited, poll_s))
        time.sleep(max(0.0, pause - (now - sent_at)))
        sent_at = time.monotonic()
    return job


def is_recorded(method: str, status: int) -> bool:
    """Whether an exchange is recorded in the logs: all are, except a poll of a query that is still pending."""
    return (method, status) != ("GET", 202)


def new_key() -> str:
    """Make a fresh idempotency key."""
    return secrets.token_hex(16)


def _masked(detail: str) -> str:
    """The other party's text, cut short and with tokens masked: it is stored, and shown to others."""
    masked = _TOKEN.sub("blindopt_***", detail)
    return masked if len(masked) <= DETAIL_MAX else f"{masked[: DETAIL_MAX - 1]}…"


def _faults(problem: wire.Problem) -> Iterator[str]:
    """A line for each of the first faults that the other party lists: where it is, what is wrong, which ids it asks."""
    errors = problem.errors or []
    for error in errors[:FAULTS_MAX]:
        pairs = "; ".join(" and ".join(pair) for pair in error.spellings or [])
        yield _masked(sentence(error.model_dump()) + (f": {pairs}" if pairs else ""))
    if len(errors) > FAULTS_MAX:
        yield f"and {len(errors) - FAULTS_MAX} more"


def _seconds(header: str) -> float | None:
    return float(header) if re.fullmatch("[0-9]{1,6}", header) else None
