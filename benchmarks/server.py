"""Servers as separate processes, with their CPU time."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from blindopt.client import is_ready

START_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A benchmark did not run as intended; the message says why."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server on loopback."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu_seconds(self) -> float:
        """User and system time of all threads since the start, in steps of 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory_mib(self) -> float:
        """Memory of the process now, in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        return float(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def memory_group(mebibytes: int) -> Iterator[Path | None]:
    """Make a group of processes that have so much memory together, as a container has; None without the right to."""
    old = Path("/sys/fs/cgroup/memory")
    group = (old if old.exists() else old.parent) / f"bench-{os.getpid()}"
    try:
        group.mkdir()
        limit = "memory.limit_in_bytes" if old.exists() else "memory.max"
        (group / limit).write_text(str(mebibytes << 20), encoding="utf-8")
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a temporary folder on the project's disk: /tmp may be in memory, where a durable commit costs nothing."""
    out = Path(__file__).parent.parent / "out"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix="bench-") as name:
        yield Path(name)


def environment(settings: dict[str, str]) -> dict[str, str]:
    """Return the environment of this process, with only these settings of a service.

    What is installed is compiled: a service that had to compile itself at every start would take half as long again.
    """
    left_out = ("BLINDOPT_", "PYTHONDONTWRITEBYTECODE")
    return {k: v for k, v in os.environ.items() if not k.startswith(left_out)} | settings


@contextmanager
def bare(mode: str, folder: Path) -> Iterator[Server]:
    """Start ``benchmarks.bare`` in one of its modes."""
    port = _free_port()
    command = ["benchmarks.bare", mode, str(folder / f"{mode}.sqlite"), str(port)]
    with _started(command, {}, port, folder / f"{mode}.log") as server:
        yield server


@contextmanager
def floor(folder: Path, module: Literal["floor", "straight_line"] = "floor") -> Iterator[Server]:
    """Start ``benchmarks.floor``, or the same with checks, beside the curator of ``folder``, whose tables it copies."""
    port = _free_port()
    model = folder / "curator-data" / "curator.sqlite"
    command = [f"benchmarks.{module}", str(folder / f"{module}.sqlite"), str(model), str(port)]
    with _started(command, {}, port, folder / f"{module}.log") as server:
        yield server


@contextmanager
def curator(folder: Path, settings: dict[str, str], group: Path | None = None) -> Iterator[tuple[Server, str]]:
    """Start a curator with its own data folder, in a group of processes; yield it and the owner's token."""
    with _service("curator", folder, settings, group) as service:
        yield service


@contextmanager
def modeler(folder: Path, settings: dict[str, str]) -> Iterator[tuple[Server, str]]:
    """Start a modeler with its own data folder; yield it and the vendor's token."""
    with _service("modeler", folder, settings) as service:
        yield service


@contextmanager
def _service(
    name: str, folder: Path, settings: dict[str, str], group: Path | None = None
) -> Iterator[tuple[Server, str]]:
    port, token = _free_port(), folder / f"{name}-first-token"
    prefix = f"BLINDOPT_{name.upper()}_"
    chosen = {
        f"{prefix}DATA_DIR": str(folder / f"{name}-data"),
        f"{prefix}PORT": str(port),
        f"{prefix}FIRST_TOKEN_FILE": str(token),
    }
    with _started([f"{name}_service", "serve"], chosen | settings, port, folder / f"{name}.log", group) as server:
        yield server, token.read_text()


@contextmanager
def _started(
    module: list[str], settings: dict[str, str], port: int, log: Path, group: Path | None = None
) -> Iterator[Server]:
    joins = [] if group is None else ["sh", "-c", f'echo $$ > {group / "cgroup.procs"} && exec "$@"', "-"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*joins, sys.executable, "-m", *module],
            env=environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            server = Server(port, process.pid)
            deadline = time.monotonic() + START_SECONDS
            while not is_ready(server.url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Failed(f"{module[0]} did not start: {log.read_text(encoding='utf-8')[-1_000:]}")
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
