"""The load generator: a separate process with one thread, raw keep-alive sockets and requests built beforehand.

Python's HTTP clients cost more than the servers measured here: httpx takes 370 us of CPU a
request, this generator 20 to 80 (see the tables: least when many replies arrive at once).
"""

import json
import secrets
import select
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


class Refused(Exception):
    """An unexpected reply; the message is the reply."""


@dataclass(frozen=True, slots=True)
class Target:
    """The request to repeat, and where to send it: over one connection for each of ``tokens``."""

    port: int
    path: str
    tokens: list[str]
    body: str
    status: int = 201
    media: str = "application/json"


@dataclass(frozen=True, slots=True)
class Load:
    """Result of one round."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    client_cpu_us: float
    """CPU time of the generator per request."""

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def run(target: Target, requests: int) -> Load:
    """Run one round in a separate process. Raises Refused at the first unexpected reply."""
    command = [sys.executable, "-m", "benchmarks.load"]
    job = json.dumps(asdict(target) | {"requests": requests})
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr.strip().splitlines()[-1])
    return Load(**json.loads(done.stdout))


class _Connection:
    """A keep-alive connection with one open request."""

    def __init__(self, target: Target, token: str) -> None:
        port, body = target.port, target.body.encode()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: {target.media}\r\nContent-Length: {len(body)}\r\n"
        )
        # Idempotency-Key and X-Request-ID are fresh for every request.
        self._before, self._after = head.encode() + b"Idempotency-Key: ", b"\r\nX-Request-ID: "
        self._end = _END + body
        self._run, self._sent = secrets.token_hex(8), 0
        self._received = b""
        self.started = 0.0

    def ask(self) -> None:
        """Send the next request."""
        key = f"{self._run}{self._sent:016x}".encode()
        self._sent += 1
        self.started = time.perf_counter()
        self.socket.sendall(self._before + key + self._after + key + self._end)

    def whole_reply(self, wanted: bytes) -> bool:
        """Read from the socket; return whether the reply is complete. Raises Refused if it is not ``wanted``."""
        chunk = self.socket.recv(1 << 16)
        self._received = reply = self._received + chunk
        if not chunk:
            raise Refused(f"the connection closed after {reply!r}")
        if (end := reply.find(_END)) < 0:
            return False
        head = reply[:end].lower()
        index = head.find(_LENGTH) + len(_LENGTH)
        if len(reply) < end + len(_END) + int(head[index:].split(b"\r", 1)[0]):
            return False
        if not reply.startswith(wanted):
            raise Refused(f"wanted {wanted.decode().strip()}, got {reply!r}")
        self._received = b""
        return True


def _round(target: Target, requests: int) -> Load:
    """Send ``requests`` over all connections, each with one open request."""
    wanted = f"HTTP/1.1 {target.status} ".encode()
    poll, connections = select.epoll(), {}
    latencies: list[float] = []
    for token in target.tokens:
        connection = _Connection(target, token)
        poll.register(connection.socket, select.EPOLLIN)
        connections[connection.socket.fileno()] = connection
    cpu, begun, remaining = time.process_time(), time.perf_counter(), requests
    for connection in list(connections.values())[:requests]:
        connection.ask()
        remaining -= 1
    while len(latencies) < requests:
        for number, _ in poll.poll():
            connection = connections[number]
            if connection.whole_reply(wanted):
                latencies.append(time.perf_counter() - connection.started)
                if remaining:
                    connection.ask()
                    remaining -= 1
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    latencies.sort()
    return Load(
        requests=requests,
        seconds=seconds,
        p50_ms=latencies[requests // 2] * 1e3,
        p99_ms=latencies[requests * 99 // 100] * 1e3,
        client_cpu_us=cpu / requests * 1e6,
    )


def main() -> None:
    """Read a target from standard input, write a load to standard output: the process that ``run`` starts."""
    job: dict[str, Any] = json.load(sys.stdin)
    requests = job.pop("requests")
    print(json.dumps(asdict(_round(Target(**job), requests))))


if __name__ == "__main__":
    main()
