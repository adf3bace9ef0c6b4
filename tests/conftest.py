"""What the tests share: the services as real processes, small data whose answers are known, a bad network."""

import gc
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any, Self

# One thread of BLAS for the tests and for the services that they start: processes of tests use all cores, and
# threads that wait for each other spin. It is read where numpy is loaded first.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# No verification in the background, which is a process of its own, but where a test is about it.
os.environ.update(BLINDOPT_CURATOR_VERIFY_HOURS="0", BLINDOPT_MODELER_VERIFY_HOURS="0")

import httpx
import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.client import Client, Owner, StudyClient, Vendor, is_ready
from tests import beside, postgres, processes, slow
from tests.builders import IDENTITY, a_run, a_study_of, keep_apart
from tests.tcp_proxy import TcpProxy

Client.patience_s = 0.0  # a test sees the first reply

gc.disable()  # until everything is collected: that makes hardly any garbage
processes.keep_commands()
if postgres.ON:
    postgres.use_everywhere()

START_SECONDS = 240.0
WAIT_SECONDS = 240.0
"""How long a test waits for what must come: a busy machine may be ten times slower. None waits so long for nothing."""
SLOWEST_FIRST = (
    "curator_service/integrity/test_foreign_writes.py",
    "shared/service_kit/web/test_damaged_pages.py",
    "shared/service_kit/web/test_roles_and_openapi.py",
    "shared/service_kit/store/test_postgres.py",
    "modeler_service/runs/test_human_measured.py",
    "modeler_service/runs/test_witness.py",
    "modeler_service/routes/test_api_pause.py",
    "curator_service/routes/test_api_timing.py",
    "system/",
    "browser/",
    "demo/",
)
"""Files and folders that go first where no run has measured its files yet: what begins last must be short."""
SECONDS: Counter[str] = Counter()
"""What each file of this run took so far."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--slow``, of ``tests.slow``."""
    slow.add_option(parser)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What ``--slow`` leaves; files that took longest in the last run come first, so that processes end together.

    Within a file nothing moves.
    """
    slow.select(config, items)
    for item in items if postgres.ON else ():
        if (reason := postgres.reason_to_skip(item.path.name, item.name)) is not None:
            item.add_marker(pytest.mark.skip(reason))
    cache: pytest.Cache | None = getattr(config, "cache", None)
    seconds = cache.get("blindopt/seconds", {}) if cache else {}
    files = {item.path: item.nodeid.partition("::")[0] for item in items}
    rank = {
        path: (-seconds.get(name, 0.0), not name.startswith(tuple(f"tests/{first}" for first in SLOWEST_FIRST)))
        for path, name in files.items()
    }
    items.sort(key=lambda item: rank[item.path])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of each file."""
    SECONDS[report.nodeid.partition("::")[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the seconds to the next run; the processes of xdist report to the first one."""
    cache: pytest.Cache | None = getattr(session.config, "cache", None)
    if cache and SECONDS and not hasattr(session.config, "workerinput"):
        cache.set("blindopt/seconds", cache.get("blindopt/seconds", {}) | SECONDS)


def pytest_collection_finish() -> None:
    """What was collected stays until the end: no collection of garbage goes through it, now or later."""
    gc.freeze()
    gc.enable()


@cache
def _ports() -> Iterator[int]:
    """Ports of this process of tests alone, below those that outgoing connections are given.

    So nothing takes a service's port while it is down, and no client that asks there meets itself.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    range_file = Path("/proc/sys/net/ipv4/ip_local_port_range")  # Linux has it
    given = int(range_file.read_text(encoding="utf-8").split()[0]) if range_file.exists() else 0
    own = range(10_100 + worker % 8, given, 8)  # browsers refuse 10080
    begin = secrets.randbelow(len(own)) if len(own) > 500 else 0  # other tests may run on this machine
    return cycle([*own[begin:], *own[:begin]] if len(own) > 500 else [0])


def _free_port() -> int:
    for port in _ports():
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise AssertionError("there is no free port")


class _Patient(httpx.HTTPTransport):
    """Repeats what a service refuses while it verifies what a command wrote, sooner than Retry-After allows."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        while True:
            response = super().handle_request(request)
            if response.status_code != 503 or b'"code":"verifying"' not in response.read():
                return response
            time.sleep(0.05)


@dataclass
class Service:
    """A service as a process; its folder and its port outlive it, so that it can be killed and started again."""

    name: str
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=_free_port)
    process: processes.Process | None = None
    module: str = ""
    """What runs instead of the service itself: one that is broken on purpose."""
    arguments: tuple[str, ...] = ()
    """What the module takes before ``serve``."""
    fresh: bool = False
    """Whether an interpreter is started, as by who operates it, and not forked: where a start is the subject."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def database(self) -> Path:
        return self.data / f"{self.name}.sqlite"

    @property
    def token(self) -> str:
        return (self.folder / "first-token").read_text()

    @property
    def log(self) -> str:
        return (self.folder / "service.log").read_text()

    @property
    def environment(self) -> dict[str, str]:
        prefix = f"BLINDOPT_{self.name.upper()}_"
        chosen = {
            "DATA_DIR": str(self.data),
            "PORT": str(self.port),
            "FIRST_TOKEN_FILE": str(self.folder / "first-token"),
            # All tests ask from one address, mostly under one token; tests of the limits set their own.
            "RATE_PER_SECOND": "100000",
            "RATE_BURST": "100000",
            "BAD_TOKENS_PER_MINUTE": "100000",
            "PASSWORD_HASH": "minimal",
            "VERIFY_HOURS": "0",  # it is a process of its own
            # Ten times as long as a test waits for an end: a shutdown that waits for no end of its own is told from
            # one that does, however busy the machine is.
            "DRAIN_SECONDS": "2400",
        }
        if postgres.ON:
            chosen["DATABASE_URL"] = postgres.url_of(self.data)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BLINDOPT_")}
        return kept | {prefix + k: v for k, v in (chosen | self.settings).items()}

    def spawn(self) -> processes.Process:
        """A serving process, not waited for."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        module, start = self.module or f"{self.name}_service", processes.fresh if self.fresh else processes.Forked
        with (self.folder / "service.log").open("ab") as log:
            return start(module, *self.arguments, "serve", env=self.environment, stdout=log, stderr=log)

    def start(self) -> Self:
        """Serve until ready."""
        self.process = self.spawn()
        return self.await_ready()

    def await_ready(self) -> Self:
        """Wait until what was spawned is ready."""
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        # It listens before it serves: the first request that can be sent waits for the answer.
        while not (self.listens() and is_ready(self.url)):
            assert self.process.poll() is None, f"the {self.name} ended at its start: {self.log[-2000:]}"
            assert time.monotonic() < deadline, f"the {self.name} did not start: {self.log[-2000:]}"
            time.sleep(0.03)
        return self

    def listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
        return False

    def stop(self, within: float = WAIT_SECONDS) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=within)

    def kill(self) -> None:
        """SIGKILL: nothing is finished, nothing is flushed."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line beside the service."""
        return processes.run(f"{self.name}_service", *arguments, env=self.environment, is_fresh=self.fresh)

    def run_in_process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line in this process, which spares the start of one: where it is a means and not the subject."""
        done = in_process(self, *arguments)
        return subprocess.CompletedProcess(list(arguments), done.exit_code, done.stdout, done.stderr)

    def http(self, token: str | None = None, **headers: str) -> httpx.Client:
        """A bare client; ``token`` is the owner's or vendor's own unless told, "" is none."""
        headers_sent = {"Authorization": f"Bearer {self.token if token is None else token}"} if token != "" else {}
        headers_sent |= headers
        return httpx.Client(base_url=self.url, headers=headers_sent, timeout=120, transport=_Patient(verify=False))

    def rows(self, query: str, *values: object) -> list[Any]:
        """Read the database beside the service."""
        with closing(beside.connect(self.database, self.settings.get("DATABASE_URL"))) as db:
            rows: list[Any] = db.execute(query, values).fetchall()
            return rows

    def records(self) -> list[dict[str, Any]]:
        """The audit log over REST, verified."""
        client = Owner if self.name == "curator" else Vendor
        with client(self.url, self.token) as reader:
            entries = [as_entry(entry) for entry in reader.audit()]
        merkle_log.verify(entries)
        return [entry.record for entry in entries]


def in_process(service: Any, *arguments: str) -> Result:
    """The command line of a service, or of one that is stopped, beside its folder and in this process."""
    umask = os.umask(0o077)
    try:
        settings = {k: v for k, v in service.environment.items() if k.startswith("BLINDOPT_")}
        return CliRunner().invoke(import_module(f"{service.name}_service.cli").app, list(arguments), env=settings)
    finally:
        os.umask(umask)


def as_entry(entry: wire.AuditEntry) -> merkle_log.Entry:
    """An entry as it travels, as it is verified."""
    return merkle_log.Entry(entry.seq, entry.body.encode(), bytes.fromhex(entry.leaf), bytes.fromhex(entry.peaks))


@dataclass(frozen=True)
class Small:
    """400 rows with two features, all distinct, and a smooth outcome."""

    x: np.ndarray
    y: np.ndarray
    names: tuple[str, str, str] = ("zq_left", "zq_right", "zq_yield")
    bounds: tuple[float, float] = (-3.21875, 3.46875)
    scale: float = 0.65625

    @property
    def csv(self) -> bytes:
        lines = [",".join(self.names)]
        lines += [f"{a!r},{b!r},{y!r}" for (a, b), y in zip(self.x.tolist(), self.y.tolist(), strict=True)]
        return ("\n".join(lines) + "\n").encode()

    @property
    def features(self) -> list[wire.Feature]:
        lower, upper = self.bounds
        return [wire.Feature(column=c, lower=lower, upper=upper, scale=self.scale) for c in self.names[:2]]

    @property
    def kernel(self) -> wire.Kernel:
        """Smooth and nearly free of noise, like the outcome: GP-UCB finds the best row within 30 queries."""
        return wire.Kernel(lengthscale=3.0, signal_variance=1.0, noise_variance=1e-4)

    @property
    def scaled(self) -> np.ndarray:
        """The rows in scaled units, in the order of the file."""
        return (self.x - sum(self.bounds) / 2) / self.scale

    def place_of(self, z: np.ndarray) -> np.ndarray:
        """For each row of an identity release, which row of the file it is."""
        distance = np.linalg.norm(z[:, None, :] - self.scaled[None, :, :], axis=2)
        position = distance.argmin(axis=1)
        assert distance[np.arange(len(z)), position].max() < 1e-9, "a candidate that is no row of the file"
        return position


@dataclass(frozen=True)
class Opened:
    """A released study with a modeler's grant."""

    id: str
    token: str
    sha256: str
    view: wire.StudyOwnerView
    grant_id: str
    kid: str


GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="4", delta=1e-5)
PO_GP_UCB = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="4", delta=1e-5, r=2, acknowledge_refuted=True)


@pytest.fixture(scope="module", autouse=True)
def _temporary_folder() -> Iterator[None]:
    """A curator in this process moves temporary files to its folder: the next file of tests has the usual one."""
    before = tempfile.tempdir
    yield
    tempfile.tempdir = before


@pytest.fixture
def unset_tempdir() -> Iterator[None]:
    """No folder for temporary files is chosen yet; a curator that is built in the test chooses its own."""
    before, tempfile.tempdir = tempfile.tempdir, None
    yield
    tempfile.tempdir = before


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """Processes that work over records are forks of one that has imported what they need."""
    with processes.workers_started_by(processes.Worker):
        yield


@pytest.fixture(scope="session")
def releases() -> dict[str, wire.ReleaseSpec]:
    """A release by each mechanism."""
    return {"identity": IDENTITY, "gaussian": GAUSSIAN, "po_gp_ucb": PO_GP_UCB}


@pytest.fixture(scope="session")
def small() -> Small:
    rng = np.random.default_rng(5)
    x = np.round(rng.uniform(-3, 3, size=(400, 2)), 6)
    y = np.round(np.exp(-0.3 * ((x - [1.1, -0.7]) ** 2).sum(axis=1)), 9)
    assert len(np.unique(x, axis=0)) == len(np.unique(y)) == 400
    return Small(x, y)


@pytest.fixture(scope="session")
def make_service() -> Iterator[Callable[..., Service]]:
    """Makes services; every process that they start is ended with the session."""
    made: list[Service] = []

    def make(name: str, folder: Path, *, fresh: bool = False, **settings: str) -> Service:
        made.append(Service(name, folder / name, {k.upper(): v for k, v in settings.items()}, fresh=fresh))
        return made[-1]

    yield make
    for service in made:
        if service.process is not None and service.process.poll() is None:
            service.kill()


@pytest.fixture(scope="session")
def curator(make_service: Callable[..., Service], tmp_path_factory: pytest.TempPathFactory) -> Service:
    """One curator for all tests that leave it running."""
    return make_service("curator", tmp_path_factory.mktemp("services")).start()


@pytest.fixture(scope="session")
def modeler(make_service: Callable[..., Service], tmp_path_factory: pytest.TempPathFactory) -> Service:
    """One modeler for all tests that leave it running."""
    # Quick to give up, so that a run against nobody fails within a test.
    return make_service("modeler", tmp_path_factory.mktemp("services"), retry_attempts="5").start()


@pytest.fixture(scope="session")
def owner(curator: Service) -> Iterator[Owner]:
    with Owner(curator.url, curator.token, timeout_s=240) as client:
        yield client


@pytest.fixture(scope="session")
def vendor(modeler: Service) -> Iterator[Vendor]:
    with Vendor(modeler.url, modeler.token, timeout_s=240) as client:
        yield client


@pytest.fixture(scope="session")
def dataset(owner: Owner, small: Small) -> wire.DatasetView:
    """The small data, declared public."""
    return owner.register("small", small.csv, public=True)


@pytest.fixture(scope="session")
def open_study(small: Small) -> Callable[..., Opened]:
    """Creates a study on the small data, releases it and grants it to a modeler."""

    def make(
        owner: Owner,
        dataset: wire.DatasetView,
        release: wire.ReleaseSpec = IDENTITY,
        kernel: wire.Kernel | None = small.kernel,
        noise_variance: float = 0.0,
        **more: Any,
    ) -> Opened:
        of_column = {"noise_variance": noise_variance, "direction": more.pop("direction", "maximize")}
        more |= {"kernel": kernel, "name": "study"}
        keep_apart(owner, dataset)
        draft = owner.create_study(a_study_of(small, dataset.id, release, of_column, **more))
        agreed = wire.ReleaseAsked(spec_sha256=draft.spec_sha256, confirm_consent=True) if "refine" in more else None
        view = owner.release(draft.id, request=agreed)
        assert view.release_sha256 is not None
        grant = owner.grant(draft.id, wire.GrantCreate(name="modeler"))
        return Opened(draft.id, grant.token, view.release_sha256, view, grant.id, grant.kid)

    return make


@pytest.fixture(scope="session")
def opened(owner: Owner, dataset: wire.DatasetView, open_study: Callable[..., Opened]) -> Opened:
    """An open identity study with a kernel."""
    return open_study(owner, dataset)


@pytest.fixture
def study_client(curator: Service, opened: Opened) -> Iterator[StudyClient]:
    with StudyClient(curator.url, opened.token, opened.id) as client:
        yield client


@pytest.fixture(scope="session")
def run_of() -> Callable[..., wire.RunCreate]:
    """The settings of a run against an opened study, none of them left to the defaults."""

    def make(curator_url: str, opened: Opened, **chosen: Any) -> wire.RunCreate:
        if chosen.pop("random", False):
            chosen.setdefault("algorithm", wire.RandomRows(name="random"))
        return a_run(curator_url, opened.id, opened.token, **chosen)

    return make


def _until(what: Callable[[], Any], within: float = WAIT_SECONDS) -> Any:
    begin = time.monotonic()
    while not (value := what()):
        waited = time.monotonic() - begin
        assert waited < within, "what was waited for did not come"
        time.sleep(min(max(0.025, waited / 10), 0.5))  # to ask a service costs it and the test a tenth of the least
    return value


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """Polls until something is true."""
    return _until


@pytest.fixture(scope="session")
def bad_network() -> Callable[..., Any]:
    """``with bad_network(port, cuts) as proxy``."""

    return lambda port, cuts: closing(TcpProxy(port, cuts))
