"""A curator that answers as a test wants: on a real socket, with a key and a shared log of its own."""

import base64
import io
import json
import math
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Checkpoint, Signer, Verifier
from blindopt.audit.merkle_log import Exchange, Head

Headers = dict[str, str]


def note_of(signer: Signer, origin: str, size: int, root: str) -> str:
    return signer.sign(Checkpoint(origin, Head(size, root)))


def receipt(position: object, note: str) -> str:
    """A receipt as the header has it."""
    return f"{position} {base64.b64encode(note.encode()).decode()}"


class FakeCurator:
    """Honest, until a test replaces ``receipt_of``, ``checkpoint``, ``entries`` or ``on_query``.

    ``study`` is the reply of a real curator, whose ids and key are replaced.
    """

    def __init__(self, study: dict[str, Any], key: bytes | None = None) -> None:
        self.signer = Signer.of("curator", key or secrets.token_bytes(32))
        self.grant, self.study_id = f"grt_{secrets.token_hex(8)}", f"std_{secrets.token_hex(8)}"
        file = io.BytesIO()
        # The same distances, and so the same choices, every time; moved, so that no other test has fetched this file.
        np.save(file, np.random.default_rng(7).normal(size=(40, 2)) + math.ldexp(secrets.randbits(53), -53))
        self.candidates = file.getvalue()
        self.study = study | {
            "id": self.study_id,
            "grant_id": self.grant,
            "log_key": self.signer.verifier.vkey,
            "n": 40,
            "r": 2,
            "release_sha256": merkle_log.sha256(self.candidates),
        }
        self.bodies: list[bytes] = []
        self.replies: dict[str, bytes] = {}
        self.countersignatures: list[tuple[str, str]] = []
        self.query_count = 0
        self.receipt_of: Callable[[int], str | None] = lambda position: receipt(position, self.note(position + 1))
        self.checkpoint: Callable[[], str] = lambda: self.note(len(self.bodies))
        self.entries: Callable[[int], list[bytes]] = lambda after: self.bodies[after + 1 :]
        self.after: Callable[[str, str], None] = lambda method, path: None
        """Called when an exchange is in its log; ConnectionAbortedError loses the reply."""
        self.before: Callable[[CuratorRequest], None] = lambda request: None
        """Called when a request arrives, which waits for it."""
        self.on_query: Callable[[int], None] = lambda number: None
        self.lost: set[int] = set()
        """Numbers of the queries, from 1, whose reply is lost."""
        self.lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    # --- signatures ----------------------------------------------------------------------------

    def peaks(self, bodies: list[bytes]) -> bytes:
        peaks = b""
        for index, body in enumerate(bodies):
            peaks = merkle_log.grow(peaks, index, merkle_log.leaf_hash(body))
        return peaks

    def root(self, bodies: list[bytes]) -> str:
        return merkle_log.root(self.peaks(bodies)).hex()

    def note(self, size: int, *, grant: str | None = None, bodies: list[bytes] | None = None) -> str:
        """A checkpoint of its log, or of another, up to ``size``."""
        logged = (self.bodies if bodies is None else bodies)[:size]
        return note_of(self.signer, f"{self.signer.name}/{grant or self.grant}", size, self.root(logged))

    def add_exchange(self, **changes: Any) -> bytes:
        """Add an exchange to its log that never took place."""
        values: dict[str, Any] = {
            "study_id": self.study_id,
            "grant_id": self.grant,
            "position": len(self.bodies),
            "request_id": secrets.token_hex(16),
            "method": "GET",
            "path": f"/v1/studies/{self.study_id}",
            "idempotency_key": None,
            "request_sha256": merkle_log.sha256(b""),
            "status": 200,
            "reply_sha256": merkle_log.sha256(b"x"),
        }
        body = changes.pop("body", None)
        self.bodies.append(body or Exchange(**{**values, **changes}).body)
        return self.bodies[-1]

    def countersigned_heads(self) -> list[Head]:
        """The heads that the modeler countersigned; each signature is checked."""
        return [Verifier.parse(key).verify_countersignature(note)[0].head for note, key in self.countersignatures]

    # --- replies --------------------------------------------------------------------------

    def reply(self, request: "CuratorRequest") -> tuple[int, bytes, Headers]:
        path, _, query = request.path.partition("?")
        match request.command, path.removeprefix("/v1"):
            case "GET", "/audit/checkpoint":
                note = self.checkpoint()
                head = {"size": len(self.bodies), "root": self.root(self.bodies), "note": note}
                return 200, json.dumps(head).encode(), {}
            case "GET", "/audit/entries":
                after = int(query.partition("page_token=")[2] or -1)
                entries = [
                    {"seq": after + 1 + i, "body": body.decode(), "leaf": "0" * 64, "peaks": "0" * 64}
                    for i, body in enumerate(self.entries(after))
                ]
                return 200, json.dumps({"entries": entries, "next_page_token": None}).encode(), {}
            case "POST", "/audit/countersignatures":
                signed = json.loads(request.body)
                self.countersignatures.append((signed["note"], signed["key"]))
                size = len(self.bodies)
                return 201, json.dumps({"grant_id": self.grant, "size": size, "time": 1}).encode(), {}
        return self.log_and_reply(request, path)

    def log_and_reply(self, request: "CuratorRequest", path: str) -> tuple[int, bytes, Headers]:
        status, reply, headers = self.exchange(request, path)
        if (request.command, status) == ("GET", 202):  # a poll without an answer is in neither log
            return status, reply, headers
        key, digest, position = request.headers["Idempotency-Key"], merkle_log.sha256(reply), len(self.bodies)
        self.bodies.append(
            Exchange(
                study_id=self.study_id,
                grant_id=self.grant,
                position=position,
                request_id=request.headers["X-Request-ID"],
                method=request.command,
                path=path,
                idempotency_key=key,
                request_sha256=merkle_log.sha256(request.body),
                status=status,
                reply_sha256=digest,
                replayed="Idempotency-Replayed" in headers,
            ).body
        )
        self.after(request.command, path)
        if path.endswith("/queries"):
            self.query_count += 1
            self.on_query(self.query_count)
            if self.query_count in self.lost:
                raise ConnectionAbortedError
        if (header := self.receipt_of(position)) is not None:
            headers["Blindopt-Receipt"] = header
        return status, reply, headers

    def exchange(self, request: "CuratorRequest", path: str) -> tuple[int, bytes, Headers]:
        key, headers = request.headers["Idempotency-Key"], {}
        if path.endswith("/candidates"):
            return 200, self.candidates, {"ETag": f'"sha256-{merkle_log.sha256(self.candidates)}"'}
        if not path.endswith("/queries"):
            return 200, json.dumps(self.study).encode(), {}
        if key in self.replies:
            headers["Idempotency-Replayed"] = "true"
        else:
            self.replies[key] = self._answer(json.loads(request.body)["rows"][0]["row"])
        return 201, self.replies[key], headers

    def _answer(self, row: int) -> bytes:
        answer = {"row": row, "play": 1, "y": float(row % 7), "passport": {"measurement_variance": 0.0}}
        reply = {
            "id": f"qry_{secrets.token_hex(8)}",
            "study_id": self.study_id,
            "state": "answered",
            "created_at": "2026-11-21T00:00:00Z",
            "answers": [answer],
            "salt": secrets.token_hex(16),
        }
        return json.dumps(reply).encode()

    # --- on a socket ------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FakeCurator":
        curator = self

        class Bound(CuratorRequest):
            def answer(self) -> tuple[int, bytes, Headers]:
                curator.before(self)
                with curator.lock:
                    return curator.reply(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()


class CuratorRequest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    body = b""

    def answer(self) -> tuple[int, bytes, Headers]:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            status, reply, headers = self.answer()
        except ConnectionAbortedError:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass
