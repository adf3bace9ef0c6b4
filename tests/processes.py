"""Services and their commands as processes that start in a tenth of the time: forks of one that has imported them.

``Forked`` is what ``subprocess.Popen`` of `python -m MODULE ARGUMENTS` is, but for imports: a real process with an
environment, a folder and descriptors of its own, nothing inherited, which runs the module as ``__main__`` and ends as
an interpreter ends, except that it does not take its modules apart. A server forks it: one for each process of tests,
started by `python -m tests.processes`, with one thread and nothing open but a socket to the tests. Once that is closed,
however the tests ended, the server kills what it forked and ends.

The processes in which a forked curator does the work of owners, over the records, are forks of the server too.

Not for tests whose subject is a start: what a command imports, and how long that takes.
"""

import asyncio
import atexit
import ctypes
import fcntl
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn, Self

import typer.main
import typer.testing
from pydantic import BaseModel
from pydantic.errors import PydanticUndefinedAnnotation

ROOT = Path(__file__).parent.parent
PRELOADED = (
    *("curator_service.cli", "curator_service.app", "modeler_service.cli", "modeler_service.app", "uvicorn"),
    *("opendp.domains", "opendp.measurements", "opendp.metrics", "opendp.mod", "dp_accounting", "scipy.interpolate"),
    # What the services import late, at the first use.
    *("scipy.linalg", "scipy.optimize", "scipy.spatial.distance", "scipy.special", "scipy.stats", "scipy.ndimage"),
    *("dp_accounting.pld.privacy_loss_distribution", "opendp.measures", "pyarrow.parquet", "sklearn.linear_model"),
    *(
        "blindopt.client.link",
        "anyio._backends._asyncio",
        "uvicorn.lifespan.on",
        "uvicorn.loops.auto",
        "uvicorn.protocols.http.auto",
    ),
    *("uvicorn.protocols.websockets.auto", "uvicorn.loops.uvloop", "typer._adapters", "httpcore", "certifi"),
)
_STATUS_BYTES, _REQUEST_BYTES = 8, 1 << 17
_NETWORK = 0x40000000  # CLONE_NEWNET of Linux


class Forked:
    """`python -m MODULE ARGUMENTS` in a fork; what is used of ``subprocess.Popen``."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        cwd: Path = ROOT,
        stdin: int | None = None,
        session: str | None = None,
        files: Sequence[int] = (),
        network: str | None = None,
    ) -> None:
        """With ``session``, in a session of its own and listed by that name. It has ``files`` by the same numbers.

        ``network``: the name of the network namespace in which it runs, as `ip netns exec` would (needs root).
        """
        self.args = [module, *arguments]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        umask = os.umask(0o077)  # it can only be read by setting it
        os.umask(umask)
        request = {"module": module, "arguments": arguments, "env": dict(env), "cwd": str(cwd), "umask": umask}
        request |= {"session": session, "files": list(files), "network": network}
        self._status, theirs = os.pipe()
        try:
            more = [*files] if stdin is None else [stdin, *files]
            socket.send_fds(
                _server(), [json.dumps(request).encode()], [theirs, stdout.fileno(), stderr.fileno(), *more]
            )
        finally:
            os.close(theirs)
        self.pid = self._read()

    def _read(self) -> int:
        said = os.read(self._status, _STATUS_BYTES)
        assert len(said) == _STATUS_BYTES, "the server that forks has ended"
        return int.from_bytes(said, "little", signed=True)

    def poll(self) -> int | None:
        """Its exit status; negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
                self.returncode = self._read()
                os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; TimeoutExpired after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since, and the server has waited for it
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def fresh(
    module: str, *arguments: str, env: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes], cwd: Path = ROOT
) -> subprocess.Popen[bytes]:
    """`python -m MODULE ARGUMENTS` in a new interpreter."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=cwd)


Process = subprocess.Popen[bytes] | Forked


def _worker_name(curator: int) -> str:
    return f"works for {curator % 100_000}"


def workers_of(curator: int) -> list[int]:
    """Processes that work for the curator of this process number, by the name that the system lists."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            is_named = (process / "comm").read_text().strip() == _worker_name(curator)
            if is_named and _stat(int(process.name))[0] != "Z":
                pids.append(int(process.name))
    return pids


def parent_of(pid: int) -> int:
    """The process that forked a process."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


class Piped(Forked):
    """A fork with a pipe to its input and one from its output, in a session of its own that is listed by a name.

    It does work for a service, which may be a fork itself, or inside of the process of tests. A service has threads,
    one of which may hold a lock that its own fork would wait for without end: the server, which has one thread, forks
    in its place.
    """

    def __init__(self, module: str, *arguments: str, session: str, files: Sequence[int] = ()) -> None:
        (source, stdin), (stdout, sink) = os.pipe(), os.pipe()
        with Path(os.devnull).open("wb") as nothing, os.fdopen(sink, "wb") as outgoing:
            super().__init__(
                *(module, *arguments),
                env=os.environ,
                stdout=outgoing,
                stderr=nothing,
                stdin=source,
                session=session,
                files=files,
            )
        os.close(source)
        self.stdin, self.stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


class Worker(Piped):
    """A process that works for a curator, as ``service_kit.runner`` starts one."""

    def __init__(self, module: str, files: Sequence[int] = ()) -> None:
        arguments = ("service_kit.runner", module, str(ROOT / "shared"))
        super().__init__(*arguments, session=_worker_name(os.getpid()), files=files)


class _OfVerifications:
    """What ``service_kit.verification`` uses of ``subprocess``: the processes that verify a log are forks too."""

    PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL

    @staticmethod
    def Popen(command: Sequence[str], **_: object) -> Piped:  # noqa: N802  as the library has it
        return Piped(*command[command.index("-c") + 3 :], session="verifies")


@contextmanager
def workers_started_by(start: Callable[..., Any]) -> Iterator[None]:
    """Processes that work over records are started by ``start``, and those that verify a log are forks."""
    worker, verification = import_module("service_kit.runner.worker"), import_module("service_kit.verification")
    before = worker.start, verification.subprocess
    worker.start, verification.subprocess = start, _OfVerifications
    try:
        yield
    finally:
        worker.start, verification.subprocess = before


def run(
    module: str,
    *arguments: str,
    env: Mapping[str, str],
    is_fresh: bool = False,
    timeout: float = 240,
    cwd: Path = ROOT,
    network: str | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENTS` to its end, and what it said; ``more`` is of ``Forked``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = fresh if is_fresh else partial(Forked, network=network, **more)
        process = start(module, *arguments, env=env, stdout=out, stderr=err, cwd=cwd)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess([module, *arguments], status, *said)


# --- the server -------------------------------------------------------------------------------------

_starting = threading.Lock()
_link: socket.socket | None = None  # in a forked curator: to the server that forked it


def _server() -> socket.socket:
    with _starting:
        return _link or _start()


@cache
def _start() -> socket.socket:
    """Start the server of this process; the socket to it, which it takes requests from."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), *PRELOADED]
        server = subprocess.Popen(
            command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


class _Server:
    """Forks on request and tells how each fork ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._from_curators, self._of_curators = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._status_pipes: dict[int, int] = {}  # by process: where its status is told
        self._wakes, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes)

    def serve(self) -> dict[str, Any]:
        """Returns in each fork, with its request; in the server never."""
        while True:
            ready, _, _ = select.select([self._requests, self._from_curators, self._wakes], [], [])
            if self._wakes in ready:
                os.read(self._wakes, 4096)
                self._reap()
            for source in (self._requests, self._from_curators):
                if source not in ready:
                    continue
                request, descriptors, _, _ = socket.recv_fds(source, _REQUEST_BYTES, 16)
                if not request:
                    self._end()
                if (pid := os.fork()) == 0:
                    return self._leave(json.loads(request), *descriptors[1:])
                self._status_pipes[pid], *standard = descriptors
                for descriptor in standard:
                    os.close(descriptor)
                self._tell(pid, pid)

    def _tell(self, pid: int, number: int) -> None:
        with suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(self._status_pipes[pid], number.to_bytes(_STATUS_BYTES, "little", signed=True))

    def _reap(self) -> None:
        for pid in list(self._status_pipes):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._tell(pid, os.waitstatus_to_exitcode(status))
                os.close(self._status_pipes.pop(pid))

    def _end(self) -> NoReturn:
        for pid in self._status_pipes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise SystemExit

    def _leave(self, request: dict[str, Any], stdout: int, stderr: int, *more: int) -> dict[str, Any]:
        """What is the server's alone stays behind."""
        files = [fcntl.fcntl(number, fcntl.F_DUPFD, 1_000) for number in more[len(more) - len(request["files"]) :]]
        stdin = more[0] if len(more) > len(files) else 0
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for end in (self._requests, self._from_curators):
            end.detach()  # its number may soon be another's
        first, most = 3, os.sysconf("SC_OPEN_MAX")
        if request["module"].endswith("curator_service") or "serve" in request["arguments"]:  # processes work for them
            global _link
            _link = self._of_curators
            os.closerange(first, _link.fileno())
            first = _link.fileno() + 1
        else:
            self._of_curators.detach()
        for number, file in sorted(zip(request["files"], files, strict=True)):
            os.closerange(first, number)
            os.dup2(file, number)
            first = number + 1
        os.closerange(first, most)
        return request


def _build_services() -> None:
    """Build both services once and throw them away: what is made at the first use comes with a fork."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("curator", "modeler"):
            settings = import_module(f"{name}_service.settings").Settings(data_dir=Path(folder) / name)
            app = import_module(f"{name}_service.app").build(settings)
            asyncio.run(_live(app))
            templates = import_module(f"{name}_service.console").build().renderer.templates
            for each in templates.list_templates():
                templates.get_template(each)
            keep_commands()
            typer.main.get_command(import_module(f"{name}_service.cli").app)


def keep_commands() -> None:
    """Build the commands of a command line once in a process, and not for each call of it."""
    if not hasattr(typer.main.get_command, "cache_info"):
        typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)


def _import_packages() -> None:
    """Import every module of the services, and build the validators that models build at their first use."""
    for package in map(import_module, ("curator_service", "modeler_service", "service_kit", "blindopt")):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(".__main__"):
                continue
            with suppress(ModuleNotFoundError) if ".store.postgres" in module.name else nullcontext():  # an extra
                import_module(module.name)
    for model in _subclasses(BaseModel):
        with suppress(PydanticUndefinedAnnotation):
            model.model_rebuild()


def _subclasses(kind: type[Any]) -> set[type[Any]]:
    return {each for sub in kind.__subclasses__() for each in (sub, *_subclasses(sub))}


async def _live(app: Any) -> None:
    async with app.router.lifespan_context(app):
        pass


def _enter(network: Path) -> None:
    """Move this process into a network namespace: ``os.setns`` is there from Python 3.12 on."""
    with network.open(encoding="utf-8") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), "setns", str(network))


def _become(request: dict[str, Any]) -> None:
    """Run the module that a fork is for, as `python -m` does."""
    import_module("service_kit.runner.worker").start = Worker
    if request["module"] in ("curator_service", "modeler_service"):  # one that is broken on purpose starts its own
        import_module("service_kit.verification").subprocess = _OfVerifications
    if name := request["network"]:
        _enter(Path("/run/netns", name))
    if name := request["session"]:
        os.setsid()
        Path("/proc/self/comm").write_text(name, encoding="utf-8")
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    sys.path[0] = request["cwd"]
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[1:] = request["arguments"]
    tempfile.tempdir = None  # TMPDIR may be another
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _end_with(work: Callable[[dict[str, Any]], None], request: dict[str, Any]) -> NoReturn:
    """End as an interpreter ends, but for taking apart what was imported: that is most of a short life."""
    status: object = 0
    try:
        work(request)
    except SystemExit as end:
        status = end.code or 0
    except KeyboardInterrupt:
        raise  # which ends in a signal
    except BaseException as error:  # as an interpreter tells it
        status = 1
        sys.excepthook(type(error), error, error.__traceback__)
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # threads that are no daemons end first
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    interrupts = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests: they close the socket
    for name in sys.argv[2:]:
        import_module(name)
    if "curator_service.app" in sys.argv:
        _import_packages()
        _build_services()
    gc.collect()
    gc.freeze()  # a collection in a fork writes to none of these pages
    assert threading.active_count() == 1
    job = _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    signal.signal(signal.SIGINT, interrupts)
    _end_with(_become, job)
