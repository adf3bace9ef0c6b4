"""What no exchange can do without: HTTP, a token, a parsed body, durable rows, hashes, a signature.

An ASGI function without a framework, which writes the rows of the curator's own tables (of the same sizes, with their
indexes) and commits them with synchronous=FULL before it replies; requests that arrive together share a commit. It
checks no budget, no state and no log, draws nothing, and forgets what it did. So it bounds what any curator with these
parts (uvicorn, httptools, SQLite, Ed25519, pydantic) can reach. ``FloorVendor`` is the same for the modeler.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import TypeAdapter

from blindopt import wire

_TABLES = ("tokens", "ledger", "queries", "replies", "log", "shared")
STUDY, _STAMP = "std_" + "0" * 16, "2026-11-23T11:21:00.821069Z"
BODY = TypeAdapter(wire.QueryRequest)
_BYTES = {"reply": 414, "charge": 213, "exchange": 609, "shared": 445}
"""Sizes of the curator's bodies for a query of one record with an exact answer."""
_HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % _BYTES["reply"]),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
_COLUMNS = {"ledger": 15, "queries": 8, "replies": 8, "log": 4, "shared": 5}
_STORED = {"log": " (seq, body, leaf, peaks)"}  # its others are computed
SQL = {name: f"INSERT INTO {name}{_STORED.get(name, '')} VALUES ({', '.join('?' * n)})" for name, n in _COLUMNS.items()}
"""The statement that adds a row, by table."""
_TEXTS = "SELECT sql FROM model.sqlite_master WHERE tbl_name = ? AND type IN ('table', 'index') AND sql <> ''"


class MerkleLog:
    """The peaks of a Merkle tree that grows: one hash for a record, and one for each pair that is complete."""

    def __init__(self) -> None:
        self.size, self._peaks = 0, list[bytes]()

    def append(self, body: bytes) -> tuple[bytes, bytes]:
        """Return the hash of a record, and all peaks after it."""
        leaf = node = hashlib.sha256(b"\0" + body).digest()
        rest = self.size
        while rest & 1:
            node, rest = hashlib.sha256(b"\1" + self._peaks.pop() + node).digest(), rest >> 1
        self._peaks.append(node)
        self.size += 1
        return leaf, b"".join(self._peaks)

    def root(self) -> bytes:
        """Return the root of the tree."""
        node = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            node = hashlib.sha256(b"\1" + peak + node).digest()
        return node


class Rows:
    """The rows of exchanges, in tables like the curator's, durable once ``commit`` returns."""

    def __init__(self, path: str, model: str) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("ATTACH ? AS model", (model,))
        for name in _TABLES:  # without the triggers
            for (sql,) in self.db.execute(_TEXTS, (name,)).fetchall():
                self.db.execute(sql)
        self.db.execute("INSERT INTO main.tokens SELECT * FROM model.tokens")
        self.db.execute("DETACH model")
        self._log, self._shared, self._count = MerkleLog(), dict[str, MerkleLog](), 0
        self._filler = secrets.token_hex(1_024)

    def add(self, grant: str, key: str, digest: str, request: str) -> tuple[bytes, bytes]:
        """Insert the rows of an exchange; return the reply, and the note to sign of the log with this grant."""
        execute, self._count = self.db.execute, self._count + 1
        query, seq = "qry_" + secrets.token_hex(8), self._count
        text = {name: (query + self._filler)[:size].encode() for name, size in _BYTES.items()}
        execute(SQL["ledger"], (seq, STUDY, "answers", query, 7, 1, "0", None, seq, seq, 0, 0, 0, seq, _STAMP))
        execute(SQL["queries"], (seq, query, STUDY, grant, key, digest, request, _STAMP))
        execute(SQL["replies"], (grant, key, digest, 201, text["reply"], 0, _STAMP, seq))
        hashlib.sha256(text["reply"]).hexdigest()
        shared = self._shared.setdefault(grant, MerkleLog())
        execute(SQL["shared"], (grant, shared.size, text["shared"], *shared.append(text["shared"])))
        for name in ("charge", "exchange"):
            body = b'{"kind":"' + name.encode() + b'","text":"' + text[name][len(name) + 20 :] + b'"}'
            execute(SQL["log"], (self._log.size, body, *self._log.append(body)))
        return text["reply"], note_of(grant, shared)


def note_of(grant: str, shared: MerkleLog) -> bytes:
    """Return what is signed of the log with a grant: its name, size and root."""
    return b"curator/%s\n%d\n%s\n" % (grant.encode(), shared.size, base64.b64encode(shared.root()))


Written = tuple[bytes, bytes]
"""A reply, and the note to sign."""


class Curator:
    """An ASGI application of one route. ``write`` adds the rows of one exchange, within a transaction of several."""

    def __init__(self, rows: Rows, write: Callable[..., Written]) -> None:
        self._rows, self._write, self._key = rows, write, Ed25519PrivateKey.generate()
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[Written]]] = []

    @classmethod
    def of(cls, path: str, model: str) -> "Curator":
        """Return one that writes its rows to ``path``, in tables like those of ``model``."""
        rows = Rows(path, model)
        return cls(rows, rows.add)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await self._reply(send, 200, b"x" * _BYTES["reply"])
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        grant, body = self._grant_of(headers), (await receive())["body"]
        BODY.validate_json(body)
        digest = hashlib.sha256(body).hexdigest()
        reply, note = await self._stored(grant, headers[b"idempotency-key"].decode(), digest, body.decode())
        receipt = base64.b64encode(note + self._key.sign(note))
        await self._reply(send, 201, reply, (b"blindopt-receipt", receipt))

    def _grant_of(self, headers: dict[bytes, bytes]) -> str:
        kid, _, secret = headers[b"authorization"].decode().removeprefix("Bearer blindopt_").partition(".")
        row = self._rows.db.execute("SELECT principal, secret_sha256 FROM tokens WHERE kid = ?", (kid,)).fetchone()
        assert hmac.compare_digest(hashlib.sha256(secret.encode()).digest(), row[1])
        return str(row[0])

    async def _stored(self, *item: Any) -> Written:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Written] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._commit)
        self._waiting.append((item, done))
        return await done

    async def _reply(self, send: Any, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [*_HEADERS, *more]})
        await send({"type": "http.response.body", "body": body})

    def _commit(self) -> None:
        group, self._waiting = self._waiting, []
        try:
            self._rows.db.execute("BEGIN IMMEDIATE")
            results = [self._write(*item) for item, _ in group]
            self._rows.db.execute("COMMIT")
        except Exception as error:
            self._rows.db.rollback()
            for _, done in group:  # else whoever waits would do so for ever
                done.set_exception(error)
            return
        for (_, done), result in zip(group, results, strict=True):
            done.set_result(result)


class FloorVendor:
    """Queries of one client of ``Curator``, each checked, and stored durably before the next."""

    def __init__(self, port: int, token: str, folder: Path, model: Path) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rows = Rows(str(folder / f"{secrets.token_hex(4)}.sqlite"), str(model))
        self._key = Ed25519PrivateKey.generate()
        self._public, self._token = self._key.public_key(), token

    def query(self, row: int) -> None:
        """Query a row; verify a signature of the reply's size; sign once; commit the rows."""
        request = wire.QueryRequest(rows=[wire.RowPlays(row=row)]).model_dump_json()
        key = secrets.token_hex(16)
        head = (
            f"POST /v1/studies/{STUDY}/queries HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nIdempotency-Key: {key}\r\nContent-Length: {len(request)}\r\n\r\n"
        )
        self._socket.sendall((head + request).encode())
        reply = self._socket.recv(1 << 16)
        while len(reply.partition(b"\r\n\r\n")[2]) < _BYTES["reply"]:
            reply += self._socket.recv(1 << 16)
        assert reply.startswith(b"HTTP/1.1 201")
        self._rows.db.execute("BEGIN IMMEDIATE")
        _, note = self._rows.add("grt_" + "0" * 16, key, hashlib.sha256(reply).hexdigest(), request)
        self._public.verify(self._key.sign(note), note)
        self._rows.db.execute("COMMIT")

    def query_all(self, rows: Iterable[int]) -> tuple[float, float]:
        """Query ``rows``, each chosen as it is read; return the seconds, and the processor time of this process."""
        started, cpu = time.perf_counter(), time.process_time()
        for row in rows:
            self.query(row % 100)
        return time.perf_counter() - started, time.process_time() - cpu

    def close(self) -> None:
        """Close the connection and the file."""
        self._socket.close()
        self._rows.db.close()


def main(application: Any, port: str) -> None:
    """Serve with the services' uvicorn settings."""
    config = uvicorn.Config(
        application, port=int(port), log_config=None, access_log=False, server_header=False, lifespan="off"
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    *files, number = sys.argv[1:]
    main(Curator.of(*files), number)
