"""A modeler's client of one study at a curator."""

import os
import re
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import httpx
from pydantic import BaseModel

from blindopt import wire
from blindopt.audit.merkle_log import RECEIPT_HEADER, Exchange, sha256
from blindopt.client.connection import (
    Client,
    Reply,
    Watch,
    check_writer,
    exchange_of,
    is_recorded,
    log_exchange,
    received_of,
)
from blindopt.client.downloads import Piece, each_in_threads, pieces_of, unfinished
from blindopt.client.transport import Reach, require_identity, transport_errors
from blindopt.errors import ProtocolViolated, Remote, Unreachable
from blindopt.formats.npy_files import MEDIA_TYPE

EMPTY_SHA256 = sha256(b"")
DOWNLOAD_ATTEMPTS = 5
PROGRESS_BYTES = 1 << 20
SLOWEST = 10
"""Timeouts within which PROGRESS_BYTES of the candidates must arrive."""
STOPPED = "stopped while fetching the candidates"
_OF_CURATOR = (Unreachable, Remote, ProtocolViolated)
_UNRECORDED = ("/v1/audit/", "/v1/meta")
_WITHOUT_RECEIPT = (401, 408, 429, *range(500, 600))
"""Statuses that a curator also sends before it has recorded anything."""
SETTLED = (
    "release_sha256", "n", "r", "direction", "kernel", "measurement_noise_variance", "answers", "noise", "privacy_unit",
    "measurement_source", "left_out", "refine",
)  # fmt: skip
"""The fields of a study that the choices of a run depend on: they may not change during the run."""


_STUDY_BYTES, _SMALL_BYTES, _ANSWER_BYTES = 8 << 20, 1 << 16, 1 << 10
"""The most of a study, message or page of the log, of a reply without a list, and of an answer beside the others."""
_REFINED_BYTES = 2 * wire.NUMBER_MAX
"""The most of a number of a second draw, with its share of the salt."""


class _Meta(BaseModel):
    service: str


class StudyClient(Client):
    """A modeler's view of one study at a curator.

    A reply that the curator would have recorded and that comes without a receipt is not the curator's: Unreachable.
    """

    party = "the curator"
    patience_s = 0.0
    """A run waits by itself, and says for whom."""
    _is_quiet = True
    _reply_max_bytes = _STUDY_BYTES
    _refusals = MappingProxyType(
        {"unauthenticated": "the curator refused this grant: mistyped, expired or revoked. Ask the owner for a new one"}
    )

    def __init__(
        self,
        url: str,
        token: str,
        study_id: str,
        *,
        watch: Watch = Client._watch,
        transport: httpx.BaseTransport | None = None,
        reach: Reach | None = None,
        **options: Any,
    ) -> None:
        self._watch, self._transport, self._reach = watch, transport, reach
        options = {"plain_http": True} | options
        super().__init__(url, token, **options)
        self._another = partial(StudyClient, url, token, study_id, transport=transport, reach=reach, **options)
        self._study_id, self._answer_bytes = study_id, _ANSWER_BYTES
        self._path = f"/v1/studies/{study_id}"

    def study(self, trust: Callable[[wire.StudyView, str | None], None] = lambda view, note: None) -> wire.StudyView:
        """Return the study; later requests wait longer by the delay of its replies (``reply_after_ms``).

        ``trust`` checks its key, with the note of the receipt, before the exchange is observed.
        """
        reply = self._send("GET", self._path, study_id=self._study_id, record=False).check()
        view = reply.read(wire.StudyView)
        trust(view, reply.receipt)
        self._watch.observe(reply.exchange, reply.receipt)
        self._allowed_s = self._timeout_s + (view.reply_after_ms or 0) / 1000
        self._answer_bytes = _ANSWER_BYTES + (_REFINED_BYTES * view.r if view.refine else 0)
        return view

    def is_curator(self) -> bool:
        """Whether the service at this address says that it is a curator: it does so without a token."""
        try:
            return self._send_unrecorded("GET", "/v1/meta").read(_Meta).service == "blindopt-curator"
        except (Remote, Unreachable):
            return False

    def _check_writer(self, reply: Reply) -> None:
        check_writer(reply.status, reply.headers, reply.body, self.party, always_json=True)
        self._check_receipt(reply)

    def _check_receipt(self, reply: Reply) -> None:
        """Raise Unreachable for a reply to another request, or one without the receipt that it must have."""
        exchange = reply.exchange
        if reply.headers.get("X-Request-ID", exchange.request_id) != exchange.request_id:
            raise Unreachable(
                "the reply to another request arrived: something between you and the curator repeats replies, or "
                "changes the header X-Request-ID"
            )
        has_receipt = reply.receipt is not None or exchange.path.startswith(_UNRECORDED)
        if not has_receipt and is_recorded(exchange.method, reply.status) and reply.status not in _WITHOUT_RECEIPT:
            raise Unreachable(
                f"a reply ({reply.status}) arrived without the curator's receipt: something between you and the "
                f"curator wrote it, or removes the header {RECEIPT_HEADER}"
            )

    def ask(self, query: wire.QueryRequest, *, key: str) -> tuple[wire.QueryReply | wire.QueryPending, Reply]:
        """Send a query: the reply is answered, or pending until somebody has measured.

        The caller records the exchange, in one transaction with what it stores of the reply.
        """
        body = query_body(query)
        size = _SMALL_BYTES + self._answer_bytes * sum(item.plays for item in query.rows)
        of_query: dict[str, Any] = {"study_id": self._study_id, "record": False, "reply_max_bytes": size}
        reply = self._send("POST", f"{self._path}/queries", body=body, key=key, **of_query)
        return self._answer(reply), reply

    def query(
        self, query_id: str, *, wait_s: float = 0.0, version: int | None = None, answers: int = wire.ROWS_MAX
    ) -> tuple[wire.QueryReply | wire.QueryPending, Reply]:
        """Return the latest answer of a query (of ``version`` or later); the curator waits for one for up to 60 s.

        ``answers``: how many were requested. The caller records the exchange of an answer, together with the answer; no
        log records a pending reply.
        """
        params: dict[str, Any] = {"wait": wait_s} | ({} if version is None else {"version": version})
        path = f"{self._path}/queries/{query_id}"
        size = _SMALL_BYTES + self._answer_bytes * answers
        of_query: dict[str, Any] = {"study_id": self._study_id, "record": False, "reply_max_bytes": size}
        reply = self._send("GET", path, params=params, longer_s=wait_s, **of_query)
        return self._answer(reply), reply

    def _answer(self, reply: Reply) -> wire.QueryReply | wire.QueryPending:
        try:
            reply.check()
            return reply.read(wire.QueryPending) if reply.status == 202 else reply.read(wire.QueryReply)
        except ProtocolViolated:
            if is_recorded(reply.exchange.method, reply.status):
                self._watch.observe(reply.exchange, reply.receipt)
            raise

    def answers(self, n: int) -> wire.QueryReply:
        """Return the answers about all ``n`` groups that the owner requested at once. Raises Remote before there are.

        They are the same bytes for every grant of the study.
        """
        of_study: dict[str, Any] = {"study_id": self._study_id, "reply_max_bytes": _SMALL_BYTES + _ANSWER_BYTES * n}
        return self._send("GET", f"{self._path}/answers", **of_study).check().read(wire.QueryReply)

    def revisions(self, after: int = 0, *, page_size: int = 1_000) -> wire.RevisionPage:
        """Return answers to pending queries of this grant, and corrections, after the revision ``after``."""
        params = {"page_size": page_size} | ({"page_token": str(after)} if after else {})
        return self._revisions(params).check().read(wire.RevisionPage)

    def news(self, after: int, *, wait_s: float) -> wire.RevisionPage | None:
        """Return revisions after ``after`` as soon as there is one; None if none came within ``wait_s``.

        A curator of an earlier version does not wait, and returns an empty page at once.
        """
        params: dict[str, Any] = {"wait": wait_s} | ({"page_token": str(after)} if after else {})
        reply = self._revisions(params, longer_s=wait_s).check()
        return None if reply.status == 202 else reply.read(wire.RevisionPage)

    def _revisions(self, params: dict[str, Any], **options: Any) -> Reply:
        size = 4 * _SMALL_BYTES  # a thousand revisions have half of it
        of_study: dict[str, Any] = {"study_id": self._study_id, "params": params, "reply_max_bytes": size}
        return self._send("GET", f"{self._path}/revisions", **of_study, **options)

    def send_message(self, message: wire.MessageCreate, *, key: str) -> bytes:
        """Send the owner a message; return the reply, a MessageView, as it came."""
        path, body = f"{self._path}/messages", message.model_dump_json().encode()
        sent = self._send("POST", path, body=body, key=key, study_id=self._study_id, reply_max_bytes=_STUDY_BYTES)
        return self._message(sent)

    def message(self, message_id: str) -> bytes:
        """Return a message of this grant with the owner's decision, a MessageView, as it came."""
        path = f"{self._path}/messages/{message_id}"
        return self._message(self._send("GET", path, study_id=self._study_id, reply_max_bytes=_STUDY_BYTES))

    @staticmethod
    def _message(reply: Reply) -> bytes:
        reply.check().read(wire.MessageView)
        return reply.body

    def checkpoint(self) -> wire.Checkpoint:
        """Return the curator's signed head of the shared log."""
        return self._send_unrecorded("GET", "/v1/audit/checkpoint", reply_max_bytes=_SMALL_BYTES).read(wire.Checkpoint)

    def shared_entries(self, after: int) -> list[wire.AuditEntry]:
        """Return up to 1,000 entries of the shared log after position ``after`` (-1: from the first).

        Reports progress, since there may be many pages. Raises Unreachable once the client is to give up.
        """
        if self._watch.cancelled():
            raise Unreachable("stopped while fetching the shared log")
        params: dict[str, Any] = {"page_size": 1_000} | ({"page_token": str(after)} if after >= 0 else {})
        page = self._send_unrecorded("GET", "/v1/audit/entries", params=params).read(wire.AuditPage)
        self._watch.progress()
        return page.entries

    def countersign(self, countersigning: wire.Countersigning, *, key: str) -> wire.Countersigned:
        """Send the curator a countersigned checkpoint."""
        body = countersigning.model_dump_json().encode()
        sent: dict[str, Any] = {"body": body, "key": key, "reply_max_bytes": _SMALL_BYTES}
        return self._send_unrecorded("POST", "/v1/audit/countersignatures", **sent).read(wire.Countersigned)

    def _send_unrecorded(self, method: str, path: str, **options: Any) -> Reply:
        """Send a request about the log, which the log does not record."""
        return self._send(method, path, study_id=self._study_id, record=False, **options).check()

    def download(
        self, target: Path, expected_sha256: str, *, max_bytes: int, parts: Sequence[wire.ReleasePart] = ()
    ) -> None:
        """Stream the candidates to ``target``, which then holds exactly what the digest, or those of all parts, say.

        Parts are fetched side by side. A broken transfer is resumed by Range; parts that an interrupted call fetched
        are not fetched again, unless a fault on this side, such as a full disk, ended it. Raises Unreachable if the
        bytes that arrive do not match, or are more than ``max_bytes``, and ProtocolViolated if the curator signs
        another digest.
        """
        pieces = pieces_of(f"{self._path}/candidates", expected_sha256, parts, max_bytes)
        with unfinished(target, resumed=bool(parts)) as unfinished_file:
            missing = pieces
            if unfinished_file.stat().st_size:  # left by a call that was interrupted
                missing = [piece for piece in pieces if not piece.section.is_in(unfinished_file)]
            try:
                if len(missing) > 1:
                    self._fetch_in_threads(unfinished_file, missing)
                else:
                    self._fetch_pieces(unfinished_file, missing)
                os.truncate(unfinished_file, sum(part.bytes for part in parts) or pieces[0].received)
                unfinished_file.replace(target)
            except BaseException as error:
                has_whole = len(missing) < len(pieces) or any(piece.is_whole for piece in pieces)
                is_ours = isinstance(error, Exception) and not isinstance(error, _OF_CURATOR)
                if is_ours or not has_whole:  # a full disk is not kept full
                    unfinished_file.unlink(missing_ok=True)
                raise

    def _fetch_in_threads(self, unfinished_file: Path, pieces: list[Piece]) -> None:
        """Fetch pieces over connections of their own; what is observed is observed in this thread."""
        clients: list[StudyClient] = []
        stopped = threading.Event()

        def fetch(turns: Iterator[Piece], call: Callable[[Callable[[], None]], None]) -> None:
            def observe(exchange: Exchange, receipt: str | None) -> None:
                call(lambda: self._watch.observe(exchange, receipt))

            watch = Watch(observe, stopped.is_set, lambda: call(self._watch.progress), self._watch.id_of)
            with self._another(watch=watch) as client:
                clients.append(client)
                client._fetch_pieces(unfinished_file, turns)

        def check() -> None:
            if self._watch.cancelled():
                raise Unreachable(STOPPED)

        def stop() -> None:
            stopped.set()
            for client in clients:
                client.cut()

        each_in_threads(pieces, fetch, check, stop)

    def _fetch_pieces(self, unfinished_file: Path, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            for remaining in reversed(range(DOWNLOAD_ATTEMPTS)):
                try:
                    self._fetch(unfinished_file, piece)
                    break
                except Unreachable:
                    if not remaining or self._watch.cancelled():
                        raise
            if piece.section.size is None:
                os.truncate(unfinished_file, piece.received)
            piece.is_whole = piece.section.is_in(unfinished_file)
            if not piece.is_whole:
                raise Unreachable("the candidates that arrived do not match the digest of their release")

    def _fetch(self, unfinished_file: Path, piece: Piece) -> None:
        """Write the missing bytes of a piece to ``unfinished_file``; a broken connection leaves those that arrived."""
        path = piece.path
        headers = {"X-Request-ID": self._watch.id_of("GET", path, None), "Accept": MEDIA_TYPE}
        if piece.received:
            headers |= {"Range": f"bytes={piece.received}-", "If-Range": f'"sha256-{piece.section.sha256}"'}
        connection = self._connection
        traced = {"trace": connection.sockets.trace}
        began = time.perf_counter()
        with (
            connection.sockets.within(self._timeout_s) as deadline,
            transport_errors(),
            connection.http.stream("GET", path, headers=headers, extensions=traced) as response,
        ):
            log_exchange(headers, "GET", path, response.status_code, began)
            etag = response.headers.get("ETag", "").strip('"').removeprefix("sha256-")
            if response.status_code not in (200, 206) or not re.fullmatch("[0-9a-f]{64}", etag):
                self._refuse_candidates(response, path)
            require_identity(response)
            exchange, receipt = exchange_of(response, path, self._study_id, None, EMPTY_SHA256, etag)
            self._check_receipt(Reply(response.status_code, response.headers, b"", exchange, receipt))
            deadline.extend(SLOWEST * self._timeout_s)
            unreported = 0
            piece.received *= response.status_code == 206
            with unfinished_file.open("r+b") as file:
                file.seek(piece.section.first + piece.received)
                for chunk in response.iter_raw():
                    if self._watch.cancelled():
                        raise Unreachable(STOPPED)
                    if piece.received + len(chunk) > piece.most:
                        piece.received = 0
                        raise Unreachable("the candidates that arrived are larger than their study says")
                    file.write(chunk)
                    piece.received += len(chunk)
                    if (unreported := unreported + len(chunk)) >= PROGRESS_BYTES:
                        unreported = 0
                        deadline.extend(SLOWEST * self._timeout_s)
                        self._watch.progress()
            self._watch.observe(exchange, receipt)
            if etag != piece.section.sha256:
                raise ProtocolViolated("the curator's candidates are not those of their release")

    def _refuse_candidates(self, response: httpx.Response, path: str) -> NoReturn:
        """Raise for a reply that brings no candidates: Remote for a refusal, else Unreachable."""
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        if response.status_code in (200, 206) and not is_page:
            raise Unreachable("the candidates came without a digest: something on the way removes the header ETag")
        body = received_of(self._connection, response)
        exchange, receipt = exchange_of(response, path, self._study_id, None, EMPTY_SHA256, sha256(body))
        reply = Reply(response.status_code, response.headers, body, exchange, receipt)
        self._check_writer(reply)
        self._watch.observe(exchange, receipt)
        reply.check()
        raise Unreachable(f"the reply to a request for candidates brings none ({reply.status})")


def query_body(query: wire.QueryRequest) -> bytes:
    """Return the exact bytes of a query, as sent: the same as before there were probabilities, where it has none."""
    return query.model_dump_json(exclude_none=True).encode()


def check_same_study(first: wire.StudyView, study: wire.StudyView) -> None:
    """Raise ProtocolViolated if a study is not the one that a run, or a loop, began with."""
    if first.grant_id != study.grant_id:
        # Its idempotency keys mean other requests there: a query that was charged would be charged again.
        raise ProtocolViolated("the token is of another grant than the one that the run began with")
    for name in SETTLED:
        if getattr(first, name) != getattr(study, name):
            raise ProtocolViolated(f"the study's {name} is not what it was when the run began")


def answers_of(reply: wire.QueryReply, rows: list[int]) -> list[wire.Answer | None]:
    """Return the answer of each requested row, in order; None for a declined row. Each row is measured once.

    The noise description of an answer has the second draw of its row that the reply has.

    If a row was requested several times and not all of its measurements were made, the first ones have the answers.
    Raises ProtocolViolated for a reply about other rows, or one that leaves a row out or draws one twice.
    """
    answers_by_row: dict[int, deque[wire.Answer]] = defaultdict(deque)
    for answer in reply.answers:
        answers_by_row[answer.row].append(answer)
    answers = [answers_by_row[row].popleft() if answers_by_row[row] else None for row in rows]
    # The reply must be in the order of the request, with nothing else in it and nothing silently left out.
    missing = {row for row, answer in zip(rows, answers, strict=True) if answer is None}
    measured = {answer.row for answer in reply.answers}
    declined = set(reply.declined)
    if [answer for answer in answers if answer is not None] != reply.answers or not declined <= missing - measured:
        raise ProtocolViolated("the curator answered other rows than those queried")
    if not missing <= declined | measured:
        raise ProtocolViolated("the curator left out a row without saying that it is declined")
    draws = {refinement.row: refinement.z for refinement in reply.refined}
    has_others = any(answer.passport.z is not None for answer in reply.answers)
    if has_others or len(draws) < len(reply.refined) or not draws.keys() <= measured:
        raise ProtocolViolated("the curator sent second draws of other rows than those that it answered")
    if draws:
        return [answer and answer.refined(draws.get(answer.row)) for answer in answers]
    return answers
