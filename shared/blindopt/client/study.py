"""A modeler's client of one study at a curator."""

import re
import secrets
from pathlib import Path
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.client.connection import Client, Reply, is_told
from blindopt.client.exchanges import exchange_of
from blindopt.client.transport import at_most, not_encoded, transport_errors
from blindopt.errors import ProtocolViolated, Unreachable
from blindopt.formats.npy_files import MEDIA_TYPE, digest

EMPTY_SHA256 = sha256(b"")
DOWNLOAD_ATTEMPTS = 5
STUDY_REPLY_MAX_BYTES = 8 << 20
PROGRESS_BYTES = 1 << 20
SLOWEST = 10
"""Timeouts in which so many bytes of the candidates must come."""


class StudyClient(Client):
    """A modeler's view of one study at a curator. ``observe`` gets every exchange, refusals too."""

    def __init__(self, base_url: str, token: str, study_id: str, **options: Any) -> None:
        super().__init__(base_url, token, reply_max_bytes=STUDY_REPLY_MAX_BYTES, **options)
        self._study_id = study_id
        self._path = f"/v1/studies/{study_id}"

    def study(self) -> wire.StudyView:
        """What the curator tells of the study. Where its replies keep a deadline, this client waits so much longer."""
        view = self._send("GET", self._path, study_id=self._study_id).check().read(wire.StudyView)
        self._wait((view.reply_after_ms or 0) / 1000)
        return view

    def ask(self, query: wire.QueryRequest, *, key: str) -> tuple[wire.QueryReply | wire.QueryPending, Reply]:
        """Measure rows: answered, or pending until somebody has measured.

        The caller records the exchange of either, together with what it stores of it.
        """
        body = query_body(query)
        reply = self._send("POST", f"{self._path}/queries", body=body, key=key, study_id=self._study_id, tell=False)
        return self._read(reply), reply

    def query(
        self, query_id: str, *, wait_s: float = 0.0, version: int | None = None
    ) -> tuple[wire.QueryReply | wire.QueryPending, Reply]:
        """The latest answer of a query, once there is one (of ``version`` or later): for which it waits up to 60 s.

        The caller records the exchange of an answer, together with the answer; a pending one is not told in any log.
        """
        params: dict[str, Any] = {"wait": wait_s} | ({} if version is None else {"version": version})
        path = f"{self._path}/queries/{query_id}"
        reply = self._send("GET", path, study_id=self._study_id, params=params, longer_s=wait_s, tell=False)
        return self._read(reply), reply

    def _read(self, reply: Reply) -> wire.QueryReply | wire.QueryPending:
        try:
            reply.check()
            return reply.read(wire.QueryPending) if reply.status == 202 else reply.read(wire.QueryReply)
        except ProtocolViolated:
            if is_told(reply.exchange.method, reply.status):
                self._observe(reply.exchange, reply.receipt)
            raise

    def revisions(self, after: int = 0, *, page_size: int = 1_000) -> wire.RevisionPage:
        """Answers to pending queries of this grant, and corrections, that came after the revision ``after``."""
        params = {"page_size": page_size} | ({"page_token": str(after)} if after else {})
        path = f"{self._path}/revisions"
        return self._send("GET", path, study_id=self._study_id, params=params).check().read(wire.RevisionPage)

    def checkpoint(self) -> wire.Checkpoint:
        """The curator's signed head of the log that both share."""
        return self._quiet("GET", "/v1/audit/checkpoint").read(wire.Checkpoint)

    def shared_entries(self, after: int) -> list[wire.AuditEntry]:
        """Up to 1,000 entries of the shared log that follow place ``after`` (-1: from the first)."""
        params: dict[str, Any] = {"page_size": 1_000} | ({"page_token": str(after)} if after >= 0 else {})
        return self._quiet("GET", "/v1/audit/entries", params=params).read(wire.AuditPage).entries

    def countersign(self, told: wire.Countersigning, *, key: str) -> wire.Countersigned:
        """Give the curator a countersigned checkpoint."""
        body = told.model_dump_json().encode()
        return self._quiet("POST", "/v1/audit/countersignatures", body=body, key=key).read(wire.Countersigned)

    def _quiet(self, method: str, path: str, **options: Any) -> Reply:
        """What is about the log is not told in it."""
        return self._send(method, path, study_id=self._study_id, tell=False, **options).check()

    def download(self, target: Path, expected_sha256: str, *, max_bytes: int) -> None:
        """Stream the candidates to ``target``, which then holds exactly what the digest says.

        A broken transfer is resumed by Range. Raises ProtocolViolated if the bytes do not match, or are
        more than ``max_bytes``.
        """
        partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
        try:
            for remaining in reversed(range(DOWNLOAD_ATTEMPTS)):
                try:
                    self._fetch(partial, expected_sha256, max_bytes)
                    break
                except Unreachable:
                    if not remaining:
                        raise
            if digest(partial) != expected_sha256:
                raise ProtocolViolated("the candidates do not match the digest of their release")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _fetch(self, partial: Path, expected_sha256: str, max_bytes: int) -> None:
        """Bring what is missing of ``partial``; a broken connection leaves what came."""
        have = partial.stat().st_size if partial.exists() else 0
        headers = {"X-Request-ID": secrets.token_hex(16), "Accept": MEDIA_TYPE}
        if have:
            headers |= {"Range": f"bytes={have}-", "If-Range": f'"sha256-{expected_sha256}"'}
        path = f"{self._path}/candidates"
        traced = {"trace": self._sockets.trace}
        with (
            self._sockets.within(self._timeout_s) as deadline,
            transport_errors(),
            self._http.stream("GET", path, headers=headers, extensions=traced) as response,
        ):
            if response.status_code >= 400:
                body = b"".join(at_most(response, self._reply_max_bytes))
                exchange, receipt = exchange_of(response, path, self._study_id, None, EMPTY_SHA256, sha256(body))
                self._observe(exchange, receipt)
                Reply(response.status_code, response.headers, body, exchange, receipt).check()
            not_encoded(response)
            deadline.extend(SLOWEST * self._timeout_s)
            came = 0
            with partial.open("ab" if response.status_code == 206 else "wb") as file:
                for chunk in response.iter_raw():
                    if self._cancelled():
                        raise Unreachable("told to stop while fetching the candidates")
                    if file.tell() + len(chunk) > max_bytes:
                        raise ProtocolViolated("the candidates are larger than their study says")
                    file.write(chunk)
                    if (came := came + len(chunk)) >= PROGRESS_BYTES:
                        came = 0
                        deadline.extend(SLOWEST * self._timeout_s)
                        self._progress()
            told = response.headers.get("ETag", "").strip('"').removeprefix("sha256-")
            if not re.fullmatch("[0-9a-f]{64}", told):
                raise ProtocolViolated("the candidates come without a digest")
            self._observe(*exchange_of(response, path, self._study_id, None, EMPTY_SHA256, told))


def query_body(query: wire.QueryRequest) -> bytes:
    """The exact bytes of a query as it is sent."""
    return query.model_dump_json().encode()
