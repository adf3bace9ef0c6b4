"""A curator's connection to a modeler over which it takes requests and sends replies. The curator opens it."""

import logging
from types import TracebackType
from typing import Self

import httpx

from blindopt import bodies, wire
from blindopt.certificates import CertificateFiles, FileWatch, file_problem
from blindopt.client.transport import AsyncTransport, require_identity, transport_errors
from blindopt.errors import Invalid, ProtocolViolated, Unreachable
from blindopt.version import VERSION

PULL_SECONDS = 25.0
PULLED_MAX_BYTES = 2 << 20
_LATE_SECONDS = 15.0
log = logging.getLogger("blindopt.certificates")


class LinkConnection:
    """Pulls requests from a modeler and replies to them. Everything that comes from it is bounded and checked."""

    def __init__(self, file: wire.LinkFile, proxy: str | None = None) -> None:
        """Raises OSError for a file of a certificate that cannot be used. ``proxy`` is the address of an HTTP proxy."""
        self._path, self._file, self._proxy = f"/v1/links/{file.id}", file, proxy
        self._files = CertificateFiles(file.ca, file.cert, file.key)
        self._watch = FileWatch(self._files.names)
        self._http = self._opened()
        self._before: httpx.AsyncClient | None = None

    def _opened(self) -> httpx.AsyncClient:
        trusted = None if self._files.ca else httpx.create_ssl_context(trust_env=False)
        return httpx.AsyncClient(
            base_url=self._file.url,
            headers={
                "Authorization": f"Bearer {self._file.token}",
                "Accept-Encoding": "identity",
                "User-Agent": f"blindopt/{VERSION}",
            },
            transport=AsyncTransport(verify=self._files.client_context(trusted), trust_env=False, proxy=self._proxy),
            timeout=httpx.Timeout(PULL_SECONDS + _LATE_SECONDS, connect=_LATE_SECONDS),
            trust_env=False,  # a proxy of the environment would read the token
        )

    async def _renew(self) -> None:
        """Take the certificates that the files hold now, for requests from now on; others end with the old ones."""
        try:
            renewed = self._opened()
        except OSError as error:
            log.warning("certificate files of a link are not usable, the old ones stay: %s", file_problem(error))
            return
        if self._before is not None:
            await self._before.aclose()
        self._before, self._http = self._http, renewed
        log.info("certificates of a link read again")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for client in (self._before, self._http):
            if client is not None:
                await client.aclose()

    async def pull(
        self, working: list[str], seconds: float = PULL_SECONDS, carried: wire.LinkCarried | None = None
    ) -> list[wire.LinkRequest]:
        """Requests that wait, as soon as there is one. Raises Unreachable and ProtocolViolated."""
        if self._watch.has_changed():
            await self._renew()
        body = wire.LinkPull(working=working, carried=carried).model_dump_json()
        path, headers = f"{self._path}:pull", {"Content-Type": "application/json"}
        with transport_errors():
            params = {"wait": seconds}
            async with self._http.stream("POST", path, content=body, headers=headers, params=params) as reply:
                received = await _bounded(reply)
        if reply.status_code != 200:
            raise Unreachable(_refused(reply.status_code, received))
        try:
            requests: wire.LinkRequests = await bodies.parse_beside(received, wire.LinkRequests)
        except Invalid:
            raise ProtocolViolated("the reply is no list of requests: does a modeler answer there?") from None
        return requests.requests

    async def reply(self, head: wire.LinkReply, body: bytes) -> bool:
        """Send a part of a reply; return whether somebody still waits for it. Raises Unreachable."""
        content = head.model_dump_json().encode() + b"\n" + body
        headers = {"Content-Type": "application/octet-stream"}
        with transport_errors():
            async with self._http.stream("POST", f"{self._path}:reply", content=content, headers=headers) as reply:
                received = await _bounded(reply)
        if reply.status_code == 404:
            return False
        if reply.status_code >= 300:
            raise Unreachable(_refused(reply.status_code, received))
        return True


async def _bounded(reply: httpx.Response) -> bytes:
    require_identity(reply)
    body = bytearray()
    async for chunk in reply.aiter_raw():
        body += chunk
        if len(body) > PULLED_MAX_BYTES:
            raise ProtocolViolated(f"the modeler sent more than {PULLED_MAX_BYTES} bytes")
    return bytes(body)


def _refused(status: int, body: bytes) -> str:
    if status in (401, 403):
        return "the modeler refuses the token of this link: it ended, or belongs to another modeler"
    try:
        problem: wire.Problem = bodies.parse(body, wire.Problem, wire.LINK_HEAD_BYTES)
    except Invalid:
        return f"no modeler answers at this address (status {status})"
    return f"the modeler answered {status}: {problem.detail[:200]}"
