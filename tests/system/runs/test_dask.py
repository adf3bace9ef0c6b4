"""Real schedulers and workers, over TLS: they are killed and stopped, and the choices stay the same."""

import os
import signal
import socket
import ssl
from functools import cache

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra dask is not installed: make test-engine brings it")

from blindopt import wire
from blindopt.client import VendorClient
from blindopt.errors import EngineUnavailable
from blindopt.formats import npy_files
from blindopt.gp.acquisition import beta
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.posterior import Posterior
from modeler_service.engines.dask import DaskCluster
from modeler_service.engines.remote import RemoteEngine
from tests.system.runs.dask_cluster import DaskProcesses, until
from tests.system.runs.test_engines import ALGORITHMS, choices, start

N, STEPS = 20_000, 30
TIMES = int(os.environ.get("BLINDOPT_ENGINE_TIMES", "1"))
"""How often each fault is made, each time at another step."""


@cache
def candidates():
    return np.random.default_rng(4).normal(size=(N, 6))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("release") / "z.npy"
    with path.open("wb") as written:
        npy_files.write(written, [candidates()])
    return path


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    made = DaskProcesses(tmp_path_factory.mktemp("dask"))
    yield made
    made.close()


@pytest.fixture
def engine(processes, file):
    """An engine at two living workers."""
    while len(processes.workers) < 2:
        processes.add_worker()
    cluster = connected(processes)
    until(lambda: len(cluster.workers()) == 2)
    made = RemoteEngine(cluster, str(file), npy_files.digest(file), 5.0, lambda: None)
    yield made
    made.drop()


def connected(processes):
    last = []

    def try_it():
        try:
            last.append(DaskCluster(processes.address, processes.certificates))
        except EngineUnavailable:
            return False
        return True

    until(try_it)
    return last[0]


def walk(engine=None, dtype=np.float64, at=None):
    """The choices of a run; ``at`` is called with the number of the step before each."""
    z = candidates()
    posterior = Posterior(
        z, SquaredExponential(2.0), noise_variance=1e-3, nugget=0.01, capacity=STEPS, dtype=dtype, parts=engine
    )
    chosen = []
    for step in range(1, STEPS + 1):
        if at is not None:
            at(step)
        posterior.hide(np.array([choice.row for choice in chosen[-5:]], dtype=np.intp))
        chosen.append(posterior.choose(beta(N, step, 0.025), lambda step=step: np.random.default_rng([1, step])))
        posterior.observe(chosen[-1].row, float(np.sin(z[chosen[-1].row]).sum()))
    return [(c.row, c.ties, c.acquisition) for c in chosen]


@cache
def whole():
    return walk()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_two_workers_choose_as_one_process_does(engine, dtype):
    assert walk(engine, dtype) == whole()


@pytest.mark.parametrize("time", range(TIMES))
@pytest.mark.parametrize("fault", ["one is killed", "both are killed", "one is stopped"])
def test_workers_that_end_or_hang_cost_time_and_change_nothing(processes, engine, fault, time):
    step, stopped = 3 + 5 * time % (STEPS - 3), []

    def at(number):
        if number != step:
            return
        if fault == "one is stopped":
            stopped.append(processes.workers[0])
            processes.kill(processes.workers[0], signal.SIGSTOP)
            return
        for process in processes.workers[: 1 if fault == "one is killed" else 2]:
            processes.kill(process)
        processes.add_worker()
        if fault == "both are killed":
            until(lambda: any(engine_workers(engine)))

    try:
        assert walk(engine, at=at) == whole()
    finally:
        for process in stopped:
            processes.kill(process)


def engine_workers(engine):
    try:
        return engine.living()
    except EngineUnavailable:
        return {}


def test_without_its_scheduler_an_engine_is_not_available(processes, file):
    cluster = connected(processes)
    until(lambda: cluster.workers())
    engine = RemoteEngine(cluster, str(file), npy_files.digest(file), 5.0, lambda: None)

    def at(step):
        if step == 5:
            processes.kill(processes.scheduler)
            for process in list(processes.workers):
                processes.kill(process)

    with pytest.raises(EngineUnavailable):
        walk(engine, at=at)
    engine.drop()
    processes.start_scheduler()


def greeting(processes, security=None, send=b""):
    """What a scheduler sends first, as far as one can read it."""
    try:
        with socket.create_connection(("127.0.0.1", processes.port), timeout=20) as plain:
            end = plain if security is None else security.wrap_socket(plain)
            end.sendall(send)
            return end.recv(100)
    except OSError:
        return b""


def test_who_shows_no_certificate_gets_nothing_from_the_scheduler(processes):
    """Not even the greeting that each end of a connection begins with."""
    connected(processes).close()
    ca, cert, key = processes.certificates
    security = ssl.create_default_context(cafile=ca)
    security.check_hostname = False
    assert greeting(processes, send=b"0" * 64)[:1] in (b"", b"\x15")  # the end, or an alert of TLS in the clear
    assert greeting(processes, security) == b""
    security.load_cert_chain(cert, key)
    assert greeting(processes, security) != b""  # a control


def test_a_run_at_a_cluster_chooses_the_same_and_waits_for_its_engine(
    processes, make_service, tmp_path_factory, curator, owner, dataset, open_study, vendor
):
    """Through both services; scheduler and workers die in between, and the run goes on by itself."""
    study = open_study(owner, dataset).id
    grants = [owner.grant(study, wire.GrantCreate(name=name)) for name in ("whole", "divided")]
    ca, cert, key = processes.certificates
    folder = tmp_path_factory.mktemp("clustered")
    settings = {"CANDIDATES_ENGINE": processes.address, "WAIT_SECONDS_FIRST": "0.5", "WAIT_SECONDS_MAX": "1"}
    files = {"ENGINE_TLS_CA": ca, "ENGINE_TLS_CERT": cert, "ENGINE_TLS_KEY": key}
    modeler = make_service("modeler", folder, fresh=True, **settings, **files).start()
    with VendorClient(modeler.url, modeler.token) as divided:
        processes.kill(processes.scheduler)
        for process in list(processes.workers):
            processes.kill(process)
        whole_run, run = (
            start(v, curator, grant, ALGORITHMS[0]) for v, grant in zip((vendor, divided), grants, strict=True)
        )
        until(lambda: divided.run(run).waiting_for == "engine")
        assert divided.run(run).problem.code == "engine_unavailable"
        processes.start_scheduler()
        processes.add_worker()
        processes.add_worker()
        assert divided.wait(run, timeout_s=240).state == "completed", modeler.log[-3000:]
        assert vendor.wait(whole_run, timeout_s=240).state == "completed"
        assert choices(divided, run) == choices(vendor, whole_run)
        assert divided.run(run).engine.name == "dask"
    modeler.stop()
