"""One kept connection to a service: how requests are sent, replies read, and exchanges told.

One synchronous httpx.Client is kept open per client: it is faster than the asynchronous one. Every call reports the
exchange that took place, for the caller's audit log.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from blindopt import wire
from blindopt.audit.merkle_log import Exchange, sha256
from blindopt.client.deadlines import Sockets
from blindopt.client.exchanges import exchange_of
from blindopt.client.transport import not_encoded, tls_context, transport_errors
from blindopt.errors import ProtocolViolated, Remote, Unreachable

R = TypeVar("R", bound=BaseModel)
REPLY_MAX_BYTES = 64 << 20
DETAIL_MAX = 300
_CODE = re.compile(r"[a-z_]{1,60}")
_TOKEN = re.compile(r"blindopt_[0-9a-f]{16}\.\S+")
Observe = Callable[[Exchange, str | None], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers and exact bytes of a reply, the exchange that it ended, and its receipt: a signed note."""

    status: int
    headers: httpx.Headers
    body: bytes
    exchange: Exchange
    receipt: str | None

    def read(self, model: type[R]) -> R:
        """The body as ``model``; ProtocolViolated if it is something else."""
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise ProtocolViolated("the reply is not what this version of the protocol says") from error

    def check(self) -> Self:
        """Itself, or Remote for a problem document."""
        if self.status < 400:
            return self
        try:
            problem = wire.Problem.model_validate_json(self.body)
        except ValidationError:
            raise Unreachable(f"the other side answered {self.status} without a problem document") from None
        raise Remote(
            code=problem.code if _CODE.fullmatch(problem.code) else "error",
            status=self.status,
            detail=_told(problem.detail),
            retryable=problem.retryable,
            retry_after_s=_seconds(self.headers.get("Retry-After", "")),
        )


class Client:
    """What the clients share: one connection, one token, one way to send and to tell."""

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        timeout_s: float = 30.0,
        verify: str | bool = True,
        observe: Observe | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        progress: Callable[[], None] = lambda: None,
        reply_max_bytes: int = REPLY_MAX_BYTES,
    ) -> None:
        with transport_errors():
            self._http = httpx.Client(
                base_url=base_url,
                headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
                timeout=timeout_s,
                verify=tls_context(verify),
                trust_env=False,  # a proxy of the environment would read the token
            )
        self._sockets = Sockets()
        self._timeout_s = self._allowed_s = timeout_s
        self._cancelled = cancelled
        self._progress = progress
        self._reply_max_bytes = reply_max_bytes
        self._observe = observe or (lambda exchange, receipt: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _wait(self, longer_s: float) -> None:
        """Give a reply so much more than the timeout."""
        self._allowed_s = self._timeout_s + longer_s

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        key: str | None = None,
        study_id: str = "",
        params: dict[str, Any] | None = None,
        multipart: dict[str, Any] | None = None,
        data: dict[str, Any] | None = None,
        media: str = "application/json",
        longer_s: float = 0.0,
        tell: bool = True,
    ) -> Reply:
        headers = {"X-Request-ID": secrets.token_hex(16)}
        if key is not None:
            headers["Idempotency-Key"] = key
        if body is not None:
            headers["Content-Type"] = media
        allowed_s = self._allowed_s + longer_s
        with (
            self._sockets.within(allowed_s),
            transport_errors(),
            self._http.stream(
                method,
                path,
                content=body,
                headers=headers,
                params=params,
                files=multipart,
                data=data,
                timeout=httpx.Timeout(allowed_s),
                extensions={"trace": self._sockets.trace},
            ) as response,
        ):
            received = bytearray()
            not_encoded(response)
            for chunk in response.iter_raw():
                received += chunk
                if len(received) > self._reply_max_bytes:
                    raise ProtocolViolated(f"the reply is larger than {self._reply_max_bytes} bytes")
        exchange, receipt = exchange_of(response, path, study_id, key, sha256(body or b""), sha256(bytes(received)))
        if is_told(method, response.status_code) and (
            tell or (response.status_code >= 400 and not path.startswith("/v1/audit/"))
        ):
            self._observe(exchange, receipt)
        return Reply(response.status_code, response.headers, bytes(received), exchange, receipt)

    def _get(self, path: str, model: type[R], **params: Any) -> R:
        chosen = {k: v for k, v in params.items() if v is not None}
        return self._send("GET", path, params=chosen or None).check().read(model)

    def _post(self, path: str, model: type[R], body: BaseModel | None = None, key: str | None = None) -> R:
        content = body.model_dump_json().encode() if body is not None else b""
        reply = self._send("POST", path, body=content, key=key or new_key())
        return reply.check().read(model)


def is_told(method: str, status: int) -> bool:
    """Whether an exchange is recorded in the logs. A look at what is still pending tells nothing, and is not."""
    return (method, status) != ("GET", 202)


def new_key() -> str:
    """A fresh idempotency key."""
    return secrets.token_hex(16)


def _told(detail: str) -> str:
    """The other party's words, short and without a token: they are stored, and shown to who may not have it."""
    masked = _TOKEN.sub("blindopt_***", detail)
    return masked if len(masked) <= DETAIL_MAX else f"{masked[: DETAIL_MAX - 1]}…"


def _seconds(told: str) -> float | None:
    return float(told) if re.fullmatch("[0-9]{1,6}", told) else None
