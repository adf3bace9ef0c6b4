"""The two services: started as processes on loopback, or running at given addresses."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from blindopt.client import is_ready
from blindopt.errors import BlindoptError

START_SECONDS = 60.0


class StartFailed(Exception):
    """A service did not start; the message names its log file."""


def status_of(work: Callable[[], None]) -> int:
    """The exit status of a demo: 0, 1 after an error that is printed, 130 where it was interrupted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the services too
    try:
        work()
    except KeyboardInterrupt:
        return 130
    except (BlindoptError, StartFailed, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class Party:
    """A running service: its address, a token, and its folder of data where the demo has started it."""

    name: str
    url: str
    token: str
    folder: str

    def __repr__(self) -> str:
        return f"Party({self.name}, {self.url})"


@contextmanager
def start_services(folder: Path, engine: str = "process", database: str | None = None) -> Iterator[tuple[Party, Party]]:
    """Start curator and modeler as two processes with their own folders; stop them at the end of the block.

    ``database``: the address of PostgreSQL, if the tables are there.
    ``engine``: what the modeler computes with. Its parts are small, so that the demo's candidates make several.
    """
    parts = {"CANDIDATES_ENGINE": engine, "ENGINE_PARTITION_ROWS": "64"}
    at = {} if database is None else {"DATABASE_URL": database}
    with ExitStack() as stack:
        curator = stack.enter_context(_process("curator", folder / "curator", **at))
        modeler = stack.enter_context(_process("modeler", folder / "modeler", **parts, **at))
        yield _party("curator", *curator), _party("modeler", *modeler)


@contextmanager
def curator_alone(folder: Path) -> Iterator[Party]:
    """Start a curator as a process with its own folder; stop it at the end of the block."""
    with _process("curator", folder / "curator") as process:
        yield _party("curator", *process)


def link(folder: Path, curator: Party, modeler: Party) -> str:
    """Let the curator open the connections: the two commands that vendor and owner give; the address in grants."""
    file = folder / "link.json"
    _command(modeler, "link", "create", "demo", "--url", modeler.url, "--save", str(file))
    _command(curator, "link", "add", str(file))
    return link_address(file)


def link_address(file: Path) -> str:
    return f"link://{json.loads(file.read_text(encoding='utf-8'))['id']}"


def _command(party: Party, *arguments: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BLINDOPT_")}
    environment[f"BLINDOPT_{party.name.upper()}_DATA_DIR"] = party.folder
    command = [sys.executable, "-m", f"{party.name}_service", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartFailed(f"{arguments[0]} {arguments[1]}: {done.stderr.strip()}")


@contextmanager
def _process(name: str, folder: Path, **settings: str) -> Iterator[tuple[str, Path, subprocess.Popen[bytes]]]:
    try:
        folder.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise StartFailed(f"{folder} exists already: choose another folder") from None
    port = _free_port()
    prefix = f"BLINDOPT_{name.upper()}_"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BLINDOPT_")} | {
        f"{prefix}DATA_DIR": str(folder / "data"),
        f"{prefix}PORT": str(port),
        f"{prefix}FIRST_TOKEN_FILE": str(folder / "first-token"),
    }
    environment |= {prefix + setting: value for setting, value in settings.items()}
    with (folder / "service.log").open("wb") as log:
        command = [sys.executable, "-m", f"{name}_service", "serve"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            yield f"http://127.0.0.1:{port}", folder, process
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _party(name: str, url: str, folder: Path, process: subprocess.Popen[bytes]) -> Party:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise StartFailed(f"the {name} did not start: see {folder / 'service.log'}")
        time.sleep(0.05)
    return Party(name, url, (folder / "first-token").read_text(), str(folder / "data"))


def wait_for(name: str, url: str, token_file: Path) -> Party:
    """Wait until a running service is ready and its first token is written."""
    deadline = time.monotonic() + START_SECONDS
    while not (is_ready(url) and token_file.exists()):
        if time.monotonic() > deadline:
            raise StartFailed(f"no {name} is ready at {url}, or {token_file} is missing")
        time.sleep(0.2)
    return Party(name, url, token_file.read_text(encoding="utf-8").strip(), "")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
