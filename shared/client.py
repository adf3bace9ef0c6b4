"""HTTP clients of both services. The only module that imports httpx.

One synchronous httpx.Client is kept open per client: it is faster than the asynchronous one and costs
26 ms to create. Every call tells the exchange that took place, for the caller's audit log.
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from shared import wire
from shared.audit import RECEIPT_HEADER, Exchange, sha256
from shared.errors import LogBroken, ProtocolViolated, Remote, Unreachable
from shared.matrix import MEDIA_TYPE, digest
from shared.notes import unverified

R = TypeVar("R", bound=BaseModel)
EMPTY_SHA256 = sha256(b"")
DOWNLOAD_ATTEMPTS = 5
REPLY_MAX_BYTES = 64 << 20
STUDY_REPLY_MAX_BYTES = 8 << 20
PROGRESS_BYTES = 1 << 20
GRANT = re.compile("grt_[0-9a-f]{16}")


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
            code=problem.code,
            status=self.status,
            detail=problem.detail,
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
        context: ssl.SSLContext | bool = (
            ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
        )
        with _transport_errors():
            self._http = httpx.Client(
                base_url=base_url,
                headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
                timeout=timeout_s,
                verify=context,
                trust_env=False,  # a proxy of the environment would read the token
            )
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
        deadline = time.monotonic() + allowed_s
        with (
            _transport_errors(),
            self._http.stream(
                method,
                path,
                content=body,
                headers=headers,
                params=params,
                files=multipart,
                data=data,
                timeout=httpx.Timeout(allowed_s),
            ) as response,
        ):
            received = bytearray()
            _not_encoded(response)
            for chunk in response.iter_raw():
                received += chunk
                if len(received) > self._reply_max_bytes:
                    raise ProtocolViolated(f"the reply is larger than {self._reply_max_bytes} bytes")
                if time.monotonic() > deadline:  # httpx bounds each read alone
                    raise Unreachable("the other party did not answer in time")
        exchange, receipt = _exchange(response, path, study_id, key, sha256(body or b""), sha256(bytes(received)))
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


def is_ready(base_url: str) -> bool:
    """Whether a service at this address can take requests."""
    try:
        return httpx.get(f"{base_url}/readyz", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _not_encoded(response: httpx.Response) -> None:
    # A few bytes of gzip inside gzip unfold to gigabytes; and digests are of the bytes as sent.
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ProtocolViolated("the reply is encoded, though identity was asked for")


def _at_most(response: httpx.Response, most: int) -> Iterator[bytes]:
    _not_encoded(response)
    got = 0
    for chunk in response.iter_raw():
        got += len(chunk)
        if got > most:
            raise ProtocolViolated(f"the reply is larger than {most} bytes")
        yield chunk


def query_body(query: wire.QueryRequest) -> bytes:
    """The exact bytes of a query as it is sent."""
    return query.model_dump_json().encode()


def new_key() -> str:
    """A fresh idempotency key."""
    return secrets.token_hex(16)


def _exchange(
    response: httpx.Response, path: str, study_id: str, key: str | None, sent: str, received: str
) -> tuple[Exchange, str | None]:
    """The exchange as this side tells it, and the other side's signed note about its place."""
    request = response.request
    grant_id, position, note = _receipt(response.headers.get(RECEIPT_HEADER, ""))
    exchange = Exchange(
        study_id=study_id,
        grant_id=grant_id,
        position=position,
        request_id=request.headers["X-Request-ID"],
        method=request.method,
        path=path,  # without what a proxy in front of the other party adds
        idempotency_key=key,
        request_sha256=sent,
        status=response.status_code,
        reply_sha256=received,
        replayed=response.headers.get("Idempotency-Replayed") == "true",
    )
    return exchange, note


def _receipt(told: str) -> tuple[str | None, int | None, str | None]:
    """Grant, position and note of a receipt; nothing of what is none. Whether it is true is the witness's."""
    position, _, encoded = told.partition(" ")
    try:
        note = base64.b64decode(encoded, validate=True).decode()
        checkpoint = unverified(note)
    except (ValueError, LogBroken):
        return None, None, None
    grant = checkpoint.origin.rpartition("/")[2]
    if (
        not re.fullmatch("[0-9]{1,15}", position)
        or checkpoint.head.size != int(position) + 1
        or not GRANT.fullmatch(grant)
    ):
        return None, None, None
    return grant, int(position), note


def _seconds(told: str) -> float | None:
    return float(told) if re.fullmatch("[0-9]{1,6}", told) else None


@contextmanager
def _transport_errors() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unreachable("the other party did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last: no name that could be looked up
        raise Unreachable(f"the connection to the other party failed ({type(error).__name__})") from error


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
        with _transport_errors(), self._http.stream("GET", path, headers=headers) as response:
            if response.status_code >= 400:
                body = b"".join(_at_most(response, self._reply_max_bytes))
                exchange, receipt = _exchange(response, path, self._study_id, None, EMPTY_SHA256, sha256(body))
                self._observe(exchange, receipt)
                Reply(response.status_code, response.headers, body, exchange, receipt).check()
            _not_encoded(response)
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
                        self._progress()
            told = response.headers.get("ETag", "").strip('"').removeprefix("sha256-")
            if not re.fullmatch("[0-9a-f]{64}", told):
                raise ProtocolViolated("the candidates come without a digest")
            self._observe(*_exchange(response, path, self._study_id, None, EMPTY_SHA256, told))


class OwnerClient(Client):
    """A data owner's view of a curator."""

    def register(
        self,
        name: str,
        file: bytes,
        *,
        filename: str = "data.csv",
        public: bool = False,
        columns: list[str] | None = None,
        key: str | None = None,
    ) -> wire.DatasetView:
        """Register a CSV or Parquet file; only ``columns`` are read where given."""
        data = {"name": name, "public": "true" if public else "false"}
        if columns is not None:
            data["columns"] = json.dumps(columns)
        files = {"file": (filename, file)}
        reply = self._send("POST", "/v1/datasets", key=key or new_key(), multipart=files, data=data)
        return reply.check().read(wire.DatasetView)

    def create_study(self, study: wire.StudyCreate, *, key: str | None = None) -> wire.StudyOwnerView:
        """Make a draft."""
        return self._post("/v1/studies", wire.StudyOwnerView, study, key)

    def change_study(self, study_id: str, change: wire.StudyChange, *, key: str | None = None) -> wire.StudyOwnerView:
        """Put another draft in the place of one that was never charged."""
        content = change.model_dump_json().encode()
        reply = self._send("PUT", f"/v1/studies/{study_id}", body=content, key=key or new_key())
        return reply.check().read(wire.StudyOwnerView)

    def preview(self, study_id: str) -> wire.ReleaseReport:
        """What a release would be, and what attackers get from a trial. Remote ``busy`` while another is made."""
        return self._post(f"/v1/studies/{study_id}:preview", wire.ReleaseReport)

    def release(self, study_id: str, *, key: str | None = None) -> wire.StudyOwnerView:
        """Draw and publish Z; the study is then open."""
        return self._post(f"/v1/studies/{study_id}:release", wire.StudyOwnerView, None, key)

    def close_study(self, study_id: str, *, key: str | None = None) -> wire.StudyOwnerView:
        """Refuse further queries."""
        return self._post(f"/v1/studies/{study_id}:close", wire.StudyOwnerView, None, key)

    def study(self, study_id: str) -> wire.StudyOwnerView:
        """A study with its report."""
        return self._get(f"/v1/studies/{study_id}", wire.StudyOwnerView)

    def grant(self, study_id: str, grant: wire.GrantCreate, *, key: str | None = None) -> wire.GrantReply:
        """A token for one modeler."""
        return self._post(f"/v1/studies/{study_id}/grants", wire.GrantReply, grant, key)

    def rotate(
        self, study_id: str, grant_id: str, rotation: wire.Rotation, *, key: str | None = None
    ) -> wire.GrantReply:
        """A further token for a grant."""
        return self._post(f"/v1/studies/{study_id}/grants/{grant_id}:rotate", wire.GrantReply, rotation, key)

    def grants(self, study_id: str) -> list[wire.GrantView]:
        """The first thousand grants of a study, with their tokens' state."""
        return self._get(f"/v1/studies/{study_id}/grants", wire.GrantPage, page_size=1_000).grants

    def revoke(self, study_id: str, grant_id: str) -> wire.GrantView:
        """Refuse all tokens of a grant from now on."""
        return self._post(f"/v1/studies/{study_id}/grants/{grant_id}:revoke", wire.GrantView)

    def revoke_token(self, study_id: str, grant_id: str, kid: str) -> wire.GrantView:
        """Refuse one token of a grant from now on."""
        return self._post(f"/v1/studies/{study_id}/grants/{grant_id}/tokens/{kid}:revoke", wire.GrantView)

    def start_forecast(
        self, study_id: str, forecast: wire.ForecastCreate, *, key: str | None = None
    ) -> wire.ForecastView:
        """Begin to simulate what each privacy level would cost in quality."""
        return self._post(f"/v1/studies/{study_id}/forecasts", wire.ForecastView, forecast, key)

    def forecast(self, study_id: str, forecast_id: str) -> wire.ForecastView:
        """A forecast, with its points once it is completed."""
        return self._get(f"/v1/studies/{study_id}/forecasts/{forecast_id}", wire.ForecastView)

    def forecasts(self, study_id: str) -> list[wire.ForecastView]:
        """Every forecast of a study, in order of creation."""
        path = f"/v1/studies/{study_id}/forecasts"
        pages = _pages(lambda token: self._get(path, wire.ForecastPage, page_token=token, page_size=1_000))
        return [forecast for page in pages for forecast in page.forecasts]

    def cancel_forecast(self, study_id: str, forecast_id: str, *, key: str | None = None) -> wire.ForecastView:
        """End a forecast now."""
        return self._post(f"/v1/studies/{study_id}/forecasts/{forecast_id}:cancel", wire.ForecastView, None, key)

    def wait_forecast(
        self, study_id: str, forecast_id: str, *, timeout_s: float, poll_s: float = 0.1
    ) -> wire.ForecastView:
        """Ask until the forecast has ended; Unreachable after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while (forecast := self.forecast(study_id, forecast_id)).ended_at is None:
            if time.monotonic() > deadline:
                raise Unreachable(f"forecast {forecast_id} has not ended within {timeout_s} s")
            time.sleep(poll_s)
        return forecast

    def preview_tuning(self, tuning: wire.TuningCreate) -> wire.TuningReport:
        """What a tuning would cost, promise and be expected to find. Spends nothing."""
        return self._post("/v1/tunings:preview", wire.TuningReport, tuning)

    def start_tuning(self, tuning: wire.TuningCreate, *, key: str | None = None) -> wire.TuningView:
        """Charge a tuning and begin it."""
        return self._post("/v1/tunings", wire.TuningView, tuning, key)

    def tuning(self, tuning_id: str) -> wire.TuningView:
        """A tuning, with its result once it is completed."""
        return self._get(f"/v1/tunings/{tuning_id}", wire.TuningView)

    def tunings(self) -> list[wire.TuningView]:
        """Every tuning, in order of creation."""
        pages = _pages(lambda token: self._get("/v1/tunings", wire.TuningPage, page_token=token, page_size=1_000))
        return [tuning for page in pages for tuning in page.tunings]

    def cancel_tuning(self, tuning_id: str, *, key: str | None = None) -> wire.TuningView:
        """End a tuning now; what it was charged stays spent."""
        return self._post(f"/v1/tunings/{tuning_id}:cancel", wire.TuningView, None, key)

    def wait_tuning(
        self,
        tuning_id: str,
        *,
        timeout_s: float,
        poll_s: float = 0.1,
        told: Callable[[wire.TuningView], None] = lambda view: None,
    ) -> wire.TuningView:
        """Ask until the tuning has ended, and tell each view; Unreachable after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while (tuning := self.tuning(tuning_id)).ended_at is None:
            told(tuning)
            if time.monotonic() > deadline:
                raise Unreachable(f"tuning {tuning_id} has not ended within {timeout_s} s")
            time.sleep(poll_s)
        return tuning

    def tuning_charges(self, dataset_id: str) -> list[wire.TuningCharge]:
        """What tunings spent on a dataset's file."""
        path = f"/v1/datasets/{dataset_id}/ledger"
        pages = _pages(lambda token: self._get(path, wire.TuningLedger, page_token=token, page_size=1_000))
        return [charge for page in pages for charge in page.charges]

    def ledger(self, study_id: str) -> Iterator[wire.LedgerEntry]:
        """Every charge and refusal of a study."""
        path = f"/v1/studies/{study_id}/ledger"
        for page in _pages(lambda token: self._get(path, wire.LedgerPage, page_token=token, page_size=1_000)):
            yield from page.entries

    def balance(self, study_id: str) -> wire.LedgerPage:
        """What a study has spent, without the lines."""
        return self._get(f"/v1/studies/{study_id}/ledger", wire.LedgerPage, page_size=1)

    def exposure(self, study_id: str) -> Iterator[wire.RowExposure]:
        """Every row that was asked, and what it cost."""
        path = f"/v1/studies/{study_id}/exposure"
        for page in _pages(lambda token: self._get(path, wire.ExposurePage, page_token=token, page_size=1_000)):
            yield from page.rows

    def accounting(self, study_id: str, *, delta: float | None = None) -> wire.Accounting:
        """What a study has cost so far, by the sum and tightly at ``delta``."""
        return self._get(f"/v1/studies/{study_id}/accounting", wire.Accounting, delta=delta)

    def withdraw(self, advisory: wire.AdvisoryCreate, *, key: str | None = None) -> wire.AdvisoryView:
        """Withdraw a version of a release mechanism, for good."""
        return self._post("/v1/advisories", wire.AdvisoryView, advisory, key)

    def advisories(self) -> list[wire.AdvisoryView]:
        """The first thousand withdrawn mechanisms, with the studies that used them."""
        return self._get("/v1/advisories", wire.AdvisoryPage, page_size=1_000).advisories

    def notices(self) -> list[wire.NoticeView]:
        """Every notice that is kept, oldest first."""
        return _notices(self._get)

    def test_notices(self) -> wire.NoticeTest:
        """Send a test notice to the curator's receiver."""
        return self._post("/v1/notices:test", wire.NoticeTest)

    def audit(self, grant_id: str | None = None) -> Iterator[wire.AuditEntry]:
        """The whole log, or the shared one of a grant."""
        yield from _audit(self._get, grant_id)

    def checkpoint(self, grant_id: str | None = None) -> wire.Checkpoint:
        """The signed head of the log, or of the shared one of a grant."""
        return self._get("/v1/audit/checkpoint", wire.Checkpoint, grant_id=grant_id)

    def consistency(self, first: int, second: int, grant_id: str | None = None) -> wire.Consistency:
        """Proof that the log has only grown between two sizes."""
        return self._get("/v1/audit/consistency", wire.Consistency, first=first, second=second, grant_id=grant_id)


class WebhookClient:
    """A curator's view of a system in its owner's network, which it calls: one that scores, or one that measures.

    Each body is signed: ``Blindopt-Signature: t=<seconds since 1970>,v1=<HMAC-SHA256 of "<t>.<body>", in hex>``.
    Redirects are not followed; a reply has ``timeout_s`` until its last byte, and ``reply_max_bytes``. For one thread.
    """

    def __init__(
        self,
        url: str,
        secret: bytes,
        *,
        timeout_s: float,
        verify: str | bool = True,
        reply_max_bytes: int = REPLY_MAX_BYTES,
    ) -> None:
        context: ssl.SSLContext | bool = (
            ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
        )
        self._url = url
        self._secret = secret
        self._timeout_s = timeout_s
        self._reply_max_bytes = reply_max_bytes
        self._http = httpx.Client(
            headers={"Accept-Encoding": "identity"}, timeout=timeout_s, verify=context, trust_env=False
        )
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(self, body: bytes, *, key: str, at: int) -> bytes:
        """The body of a 200 reply. Raises Unreachable where another try may help, else ProtocolViolated."""
        told = self.ask_or_later(body, key=key, at=at, later=())
        assert told is not None
        return told

    def ask_or_later(self, body: bytes, *, key: str, at: int, later: tuple[int, ...] = (202,)) -> bytes | None:
        """The same; None for a reply that says that the answer comes ``later``."""
        status, received = self._posted(body, key, at)
        if status in (408, 409, 425, 429) or status >= 500:
            raise Unreachable(f"the other party answered {status}")
        if status in later:
            return None
        if status != 200:
            raise ProtocolViolated(f"the other party answered {status}, which asking again would not mend")
        return received

    def status(self, body: bytes, *, key: str, at: int) -> int:
        """The status of a reply, of which nothing else is read. Raises Unreachable where none came."""
        return self._posted(body, key, at, read=False)[0]

    def _posted(self, body: bytes, key: str, at: int, *, read: bool = True) -> tuple[int, bytes]:
        """Status and body of one reply, in time or not at all."""
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": key,
            "Blindopt-Signature": f"t={at},v1={webhook_signature(self._secret, body, at)}",
        }
        late = threading.Event()

        def cut() -> None:
            late.set()
            if self._socket is not None:
                with suppress(OSError):  # it is closed already
                    # Not SSLSocket's own, which would take its state from under the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

        # httpx bounds each read alone: a byte now and then, of the head too, would hold it up for ever.
        timer = threading.Timer(self._timeout_s, cut)
        timer.daemon = True
        timer.start()
        try:
            return self._asked(body, headers, read)
        except Unreachable:
            if late.is_set():
                raise Unreachable("the other party did not answer in time") from TimeoutError()
            raise
        finally:
            timer.cancel()

    def _asked(self, body: bytes, headers: dict[str, str], read: bool) -> tuple[int, bytes]:
        def connected(event: str, told: dict[str, Any]) -> None:
            if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                self._socket = told["return_value"].get_extra_info("socket")

        said: dict[str, Any] = {"content": body, "headers": headers, "extensions": {"trace": connected}}
        with _transport_errors(), self._http.stream("POST", self._url, **said) as response:
            return response.status_code, b"".join(_at_most(response, self._reply_max_bytes)) if read else b""


def webhook_signature(secret: bytes, body: bytes, at: int) -> str:
    """What who is called compares the signature of a body with, in constant time; ``at``: the t of its header."""
    return hmac.new(secret, b"%d." % at + body, hashlib.sha256).hexdigest()


class MeasurerClient(Client):
    """The view of a curator of those who measure."""

    def inbox(
        self, *, study_id: str | None = None, state: str | None = None, query_id: str | None = None
    ) -> Iterator[wire.InboxItem]:
        """Measurements that were asked for, oldest first; those that are open unless ``state`` says otherwise."""
        for page in _pages(
            lambda token: self.inbox_page(study_id=study_id, state=state, query_id=query_id, page_token=token)
        ):
            yield from page.items

    def inbox_page(self, *, page_size: int = 1_000, **chosen: Any) -> wire.InboxPage:
        """A page of them, and how many are open."""
        return self._get("/v1/inbox", wire.InboxPage, page_size=page_size, **chosen)

    def measurement(self, measurement_id: str) -> wire.InboxItem:
        """One of them."""
        return self._get(f"/v1/inbox/measurements/{measurement_id}", wire.InboxItem)

    def answer(self, query_id: str, told: wire.AnswerCreate, *, key: str | None = None) -> wire.QueryMeasurements:
        """Tell what was measured of a query."""
        return self._post(f"/v1/queries/{query_id}:answer", wire.QueryMeasurements, told, key)

    def decline(self, query_id: str, told: wire.DeclineCreate, *, key: str | None = None) -> wire.QueryMeasurements:
        """Tell what will not be measured of a query."""
        return self._post(f"/v1/queries/{query_id}:decline", wire.QueryMeasurements, told, key)

    def correct(
        self, query_id: str, told: wire.CorrectCreate | wire.AnswerCreate, *, key: str | None = None
    ) -> wire.QueryMeasurements:
        """Replace what was told of a query by what is right."""
        return self._post(f"/v1/queries/{query_id}:correct", wire.QueryMeasurements, told, key)

    def export_csv(self, *, study_id: str | None = None) -> bytes:
        """Open measurements as CSV, to be filled in."""
        return self._send("GET", "/v1/inbox.csv", params={"study_id": study_id} if study_id else None).check().body

    def import_csv(self, file: bytes, *, dry_run: bool = False, key: str | None = None) -> wire.InboxImport:
        """Take what was filled in: all of it or, where a line is wrong, nothing."""
        params = {"dry_run": "true" if dry_run else "false"}
        reply = self._send("POST", "/v1/inbox:import", params=params, body=file, media="text/csv", key=key or new_key())
        return reply.check().read(wire.InboxImport)


class VendorClient(Client):
    """A vendor's view of a modeler."""

    def start(self, run: wire.RunCreate, *, key: str | None = None) -> wire.RunView:
        """Queue a run."""
        return self._post("/v1/runs", wire.RunView, run, key)

    def run(self, run_id: str) -> wire.RunView:
        """How far a run is."""
        return self._get(f"/v1/runs/{run_id}", wire.RunView)

    def runs(self) -> list[wire.RunView]:
        """All runs, oldest first."""
        pages = _pages(lambda token: self._get("/v1/runs", wire.RunPage, page_token=token, page_size=1_000))
        return [run for page in pages for run in page.runs]

    def stop(self, run_id: str) -> wire.RunView:
        """End a run after the query under way."""
        return self._post(f"/v1/runs/{run_id}:stop", wire.RunView)

    def pause(self, run_id: str) -> wire.RunView:
        """Halt a run after the query under way, until it is resumed."""
        return self._post(f"/v1/runs/{run_id}:pause", wire.RunView)

    def resume(self, run_id: str) -> wire.RunView:
        """Let a paused run go on, and one that waits try at once."""
        return self._post(f"/v1/runs/{run_id}:resume", wire.RunView)

    def replace_token(self, run_id: str, token: str) -> wire.RunView:
        """Let a run go on under another token of its grant."""
        return self._post(f"/v1/runs/{run_id}:replace_token", wire.RunView, wire.TokenReplacement(token=token))

    def wait(self, run_id: str, *, timeout_s: float, poll_s: float = 0.05) -> wire.RunView:
        """Ask until the run has ended; Unreachable after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while (run := self.run(run_id)).ended_at is None:
            if time.monotonic() > deadline:
                raise Unreachable(f"run {run_id} has not ended within {timeout_s} s")
            time.sleep(poll_s)
        return run

    def recommendation(self, run_id: str, over: str = "asked") -> wire.Recommendation:
        """The row to take by the answers so far."""
        return self._get(f"/v1/runs/{run_id}/recommendation", wire.Recommendation, over=over)

    def posterior(self, run_id: str, **chosen: Any) -> wire.PosteriorPage:
        """What is believed of f: ``page_token`` and ``page_size``, or ``top``."""
        return self._get(f"/v1/runs/{run_id}/posterior", wire.PosteriorPage, **chosen)

    def import_observations(
        self, run_id: str, told: wire.ObservationImport, *, dry_run: bool = False, key: str | None = None
    ) -> wire.ImportReport:
        """Give a run that was created with ``hold`` what was measured before."""
        params = {"dry_run": "true" if dry_run else "false"}
        body, path = told.model_dump_json().encode(), f"/v1/runs/{run_id}/observations"
        reply = self._send("POST", path, params=params, body=body, key=key or new_key())
        return reply.check().read(wire.ImportReport)

    def export(self, run_id: str) -> wire.RunExport:
        """Everything needed to redo a run."""
        return self._get(f"/v1/runs/{run_id}/export", wire.RunExport, format="json")

    def export_csv(self, run_id: str) -> str:
        """The trials as CSV."""
        return self._send("GET", f"/v1/runs/{run_id}/export", params={"format": "csv"}).check().body.decode()

    def suggest(self, asked: wire.SuggestionRequest) -> wire.SuggestionReply:
        """Rows to ask next, without a run."""
        body = asked.model_dump_json().encode()
        return self._send("POST", "/v1/suggestions", body=body).check().read(wire.SuggestionReply)

    def notices(self) -> list[wire.NoticeView]:
        """Every notice that is kept, oldest first."""
        return _notices(self._get)

    def test_notices(self) -> wire.NoticeTest:
        """Send a test notice to the modeler's receiver."""
        return self._post("/v1/notices:test", wire.NoticeTest)

    def audit(self, grant_id: str | None = None) -> Iterator[wire.AuditEntry]:
        """The whole log, or the modeler's copy of the shared one of a grant."""
        yield from _audit(self._get, grant_id)


P = TypeVar("P", bound=wire.Page)


def _pages(get: Callable[[str | None], P]) -> Iterator[P]:
    token: str | None = None
    while True:
        page = get(token)
        yield page
        if (token := page.next_page_token) is None:
            return


def _audit(get: Callable[..., wire.AuditPage], grant_id: str | None) -> Iterator[wire.AuditEntry]:
    path = "/v1/audit/entries"
    for page in _pages(lambda t: get(path, wire.AuditPage, page_token=t, page_size=1_000, grant_id=grant_id)):
        yield from page.entries


def _notices(get: Callable[..., wire.NoticePage]) -> list[wire.NoticeView]:
    pages = _pages(lambda token: get("/v1/notices", wire.NoticePage, page_token=token, page_size=1_000))
    return [notice for page in pages for notice in page.notices]
