"""An exchange with its checks, written straight down: how much of its cost is our own layers.

``benchmarks.floor`` checks nothing. This is the same route with what a curator must do besides, for one record and an
exact answer, each step in the shortest code that these libraries allow: limits and rate, the earlier reply, the state,
balances and caps, the charge, both records as canonical JSON, the reply, its receipt and headers, a line of the access
log. It knows one study, one mechanism and no refusal but a fault, follows no log, and compares no table with it. So a
curator with roles, mechanisms and refusals costs more.
"""

import base64
import hashlib
import json
import re
import secrets
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from benchmarks import floor
from blindopt import wire

_PATH = re.compile(r"/v1/studies/std_[0-9a-f]{16}/queries")
_KEY, _REQUEST_ID = re.compile(r"[ -~]{1,200}"), re.compile(r"[0-9A-Za-z_-]{1,64}")
_BODY_MAX, _ROW_MAX, _PLAYS_MAX, _CAP = 1 << 20, 1_000, 100, 10**18
_RATE = 1e6
_HEADERS = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_EXACT = wire.NoisePassport(measurement_variance=0.0)


class Rows(floor.Rows):
    """The rows of exchanges, each charged, recorded and answered."""

    def __init__(self, path: str, model: str) -> None:
        super().__init__(path, model)
        self._state, self._spent, self._plays = "open", 0, 0
        self._of_row: dict[int, tuple[int, int]] = {}
        self._y = [0.25 * row for row in range(_ROW_MAX)]

    def answer(
        self, grant: str, key: str, path: str, body: bytes, query: wire.QueryRequest, request_id: str
    ) -> floor.Written:
        """Charge and answer a query; return the reply, and the note to sign of the log with this grant."""
        execute, seq = self.db.execute, self._count + 1
        body_sha256 = hashlib.sha256(body).hexdigest()
        request_sha256 = hashlib.sha256(f"POST {path} {body_sha256}".encode()).hexdigest()
        earlier = "SELECT body FROM replies WHERE principal = ? AND idempotency_key = ?"
        begun = "SELECT id FROM queries WHERE grant_id = ? AND idempotency_key = ?"
        is_live = "SELECT revoked_at FROM tokens WHERE principal = ?"
        assert execute(earlier, (grant, key)).fetchone() is None
        assert execute(is_live, (grant,)).fetchone() == (None,)
        assert self._state == "open"
        assert execute(begun, (grant, key)).fetchone() is None
        now = datetime.now(UTC)
        at, query_id = now.isoformat(timespec="microseconds").replace("+00:00", "Z"), "qry_" + secrets.token_hex(8)
        rows = [(item.row, item.plays) for item in query.rows]
        for row, plays in rows:
            cost = int(Decimal("0") * plays)
            queries, of_row = self._of_row.get(row, (0, 0))
            assert self._spent + cost <= _CAP
            assert of_row + cost <= _CAP
            self._spent, self._plays = self._spent + cost, self._plays + plays
            self._of_row[row] = queries + 1, of_row + cost
            line = seq, floor.STUDY, "answers", query_id, row, plays, str(cost), None, self._spent, self._plays
            execute(floor.SQL["ledger"], (*line, 0, queries + 1, plays, of_row + cost, at))
        charge = {"epsilon": "0", "query_id": query_id, "rows": rows, "study_id": floor.STUDY}
        self._record("charge", grant, charge, at)
        text = query.model_dump_json()
        execute(floor.SQL["queries"], (seq, query_id, floor.STUDY, grant, key, request_sha256, text, at))
        reply = wire.QueryReply(
            id=query_id,
            study_id=floor.STUDY,
            state="answered",
            created_at=now,
            answers=[wire.Answer(row=r, play=1, plays=n, y=self._y[r], passport=_EXACT) for r, n in rows],
            salt=secrets.token_hex(16),
        )
        answer = reply.model_dump_json().encode()
        shared = self._shared.setdefault(grant, floor.MerkleLog())
        exchange = {
            "grant_id": grant,
            "idempotency_key": key,
            "method": "POST",
            "path": path,
            "position": shared.size,
            "replayed": False,
            "reply_sha256": hashlib.sha256(answer).hexdigest(),
            "request_id": request_id,
            "request_sha256": body_sha256,
            "status": 201,
            "study_id": floor.STUDY,
        }
        leaf = _canonical(exchange)
        execute(floor.SQL["shared"], (grant, shared.size, leaf.encode(), *shared.append(leaf.encode())))
        self._record("exchange", grant, {"query_id": query_id}, at, f'"exchange":{leaf},')
        execute(floor.SQL["replies"], (grant, key, request_sha256, 201, answer, 0, at, self._log.size))
        self._count = seq
        return answer, floor.note_of(grant, shared)

    def _record(self, kind: str, grant: str, details: dict[str, Any], at: str, exchange: str = "") -> None:
        seq = self._log.size
        body = (
            f'{{"actor":"grant:{grant}","details":{_canonical(details)},{exchange}"kind":"{kind}","seq":{seq},'
            f'"time":"{at}","v":1}}'
        ).encode()
        self.db.execute(floor.SQL["log"], (seq, body, *self._log.append(body)))


class Curator(floor.Curator):
    """An ASGI application of one route, with its checks."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, rows.answer)
        self._buckets: dict[str, tuple[float, float]] = {}
        self._counts: Counter[tuple[str, int]] = Counter()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        started, status = time.perf_counter(), 0
        headers = dict(reversed(scope["headers"]))
        proposed = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = proposed if _REQUEST_ID.fullmatch(proposed) else secrets.token_hex(16)
        try:
            reply, receipt = await self._ask(scope["path"], headers, receive, request_id)
            status = 201
            more = (b"content-length", b"%d" % len(reply)), (b"x-request-id", request_id.encode())
            start = {"type": "http.response.start", "status": status}
            await send(start | {"headers": [*_HEADERS, *more, (b"blindopt-receipt", receipt)]})
            await send({"type": "http.response.body", "body": reply})
        finally:
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "level": "info",
                "logger": "blindopt.access",
                "message": "request",
                "request_id": request_id,
                "client": scope["client"][0],
                "method": "POST",
                "route": "/v1/studies/{study_id}/queries",
                "status": status,
                "ms": round((time.perf_counter() - started) * 1_000, 2),
            }
            sys.stderr.write(f"{json.dumps(line)}\n")
            sys.stderr.flush()
            self._counts["POST", status] += 1

    async def _ask(self, path: str, headers: dict[bytes, bytes], receive: Any, request_id: str) -> tuple[bytes, bytes]:
        grant = self._grant_of(headers)
        tokens, counted_at = self._buckets.get(grant, (_RATE, time.monotonic()))
        now = time.monotonic()
        tokens = min(_RATE, tokens + (now - counted_at) * _RATE)
        assert tokens >= 1
        self._buckets[grant] = tokens - 1, now
        assert _PATH.fullmatch(path)
        assert int(headers.get(b"content-length", b"0")) <= _BODY_MAX
        assert headers[b"content-type"] == b"application/json"
        body, is_complete = b"", False
        while not is_complete:
            message = await receive()
            body, is_complete = body + message["body"], not message.get("more_body")
            assert len(body) <= _BODY_MAX
        query = floor.BODY.validate_json(body)
        assert all(item.row < _ROW_MAX and item.plays <= _PLAYS_MAX for item in query.rows)
        key = headers[b"idempotency-key"].decode("latin-1")
        assert _KEY.fullmatch(key)
        reply, note = await self._stored(grant, key, path, body, query, request_id)
        return reply, base64.b64encode(note + self._key.sign(note))


if __name__ == "__main__":
    *files, number = sys.argv[1:]
    floor.main(Curator(Rows(*files)), number)
