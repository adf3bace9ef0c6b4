"""Real schedulers and workers, over TLS: they are killed, stopped and cut off, and the choices stay the same."""

import os
import signal
import socket
import ssl
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra dask is not installed")

from blindopt.errors import EngineUnavailable
from blindopt.formats import npy_files
from blindopt.gp.acquisition import UpperConfidenceBound, beta
from blindopt.gp.kernels import SquaredExponential
from blindopt.gp.posterior import Posterior
from modeler_service.engines.host import TESTED
from modeler_service.engines.remote import Workers
from tests.modeler_service.engines.fake_cluster import sections
from tests.system.runs.dask_cluster import ALWAYS, TIMES, DaskProcesses, until

N, STEPS = 20_000, 30
THIRD = N * 6 * 8 // 3
"""Bytes of the parts of the release: there are four, the last with two candidates."""
slow = pytest.mark.skipif(ALWAYS not in os.environ, reason="make test-engine runs it")
every_time = pytest.mark.parametrize("time", range(TIMES))


@cache
def candidates(n=N):
    return np.random.default_rng(4).normal(size=(n, 6))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "z.npy"
    with path.open("wb") as written:
        npy_files.write(written, [candidates()])
    return path


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    made = DaskProcesses(tmp_path_factory.mktemp("dask"))
    yield made
    made.close()


class Hooks:
    """What a test does at the moments of a run: in a tick, while it waits for a worker."""

    tick = staticmethod(lambda: None)


@pytest.fixture
def hooks():
    return Hooks()


@pytest.fixture
def cluster(processes):
    """Two living workers that were reached by nobody's cut wire."""
    while len(processes.workers) < 2:
        processes.add_worker()
    return processes.connected(2)


@pytest.fixture
def engine(cluster, file, hooks):
    """An engine at these workers, which it leaves at the end."""
    made = Workers(cluster, str(file), sections(file, THIRD), 60.0, lambda: hooks.tick())
    yield made
    made.drop()


def walk(engine=None, dtype=np.float64, at=None):
    """The choices of a run; ``at`` is called with the number of the step before each."""
    z = candidates()
    posterior = Posterior(
        z, SquaredExponential(2.0), noise_variance=1e-3, nugget=0.01, capacity=STEPS, dtype=dtype, executor=engine
    )
    chosen = []
    for step in range(1, STEPS + 1):
        if at is not None:
            at(step)
        hidden = np.unique([choice.row for choice in chosen[-5:]]).astype(np.intp)
        bound = UpperConfidenceBound(beta(N, step, 0.025))
        chosen.append(posterior.argmax(bound, lambda step=step: np.random.default_rng([1, step]), hidden))
        posterior.observe(chosen[-1].row, float(np.sin(z[chosen[-1].row]).sum()))
    return [(c.row, c.ties, c.acquisition) for c in chosen]


@cache
def whole():
    return walk()


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=slow)])
def test_two_workers_choose_as_one_process_does(engine, dtype):
    assert walk(engine, dtype) == whole()


# --- faults -------------------------------------------------------------------------------------------------


def killed_before(processes, engine, hooks, process):
    processes.kill(process)


def killed_in(processes, engine, hooks, process):
    """It has the question, and has not answered: it hangs until the modeler looks whether it lives."""
    processes.kill(process, signal.SIGSTOP)
    hooks.tick = lambda: process in processes.workers and processes.kill(process)


def killed_after(processes, engine, hooks, process):
    each = engine.each

    def once(method, arguments):
        engine.each = each
        results = each(method, arguments)
        processes.kill(process)
        return results

    engine.each = once


def both_killed(processes, engine, hooks, process):
    processes.kill_all()
    processes.add_worker()
    until(lambda: len(is_living(engine)) == 1)


def stopped(processes, engine, hooks, process):
    engine.step_seconds = 5.0
    processes.kill(process, signal.SIGSTOP)


def cut_off(processes, engine, hooks, process):
    processes.wires[process].cut(silent=False)


def silent(processes, engine, hooks, process):
    engine.step_seconds = 5.0
    processes.wires[process].cut(silent=True)


def is_living(engine):
    try:
        return engine.living()
    except EngineUnavailable:
        return {}


@slow
@every_time
@pytest.mark.parametrize("fault", [killed_before, killed_in, killed_after, both_killed, stopped, cut_off, silent])
def test_workers_that_end_hang_or_are_cut_off_cost_time_and_change_nothing(processes, engine, hooks, fault, time):
    step, process = 3 + 5 * time % (STEPS - 3), processes.workers[time % 2]
    try:
        assert walk(engine, at=lambda number: number == step and fault(processes, engine, hooks, process)) == whole()
        assert process not in processes.workers or fault in (stopped, cut_off, silent)
    finally:
        if process in processes.workers:
            processes.kill(process)


@slow
@every_time
def test_workers_of_another_version_are_refused_with_a_list(processes, cluster, engine, tmp_path, time):
    """They are named before the run; and where one takes the place of a lost one, it gets no question."""
    about = tmp_path / "blindopt-9.9.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: blindopt\nVersion: 9.9\n")
    bare = tmp_path / "numpy" / "__init__.py"
    bare.parent.mkdir()
    bare.write_text("raise ImportError")
    usual = set(engine.living())
    cluster.check()
    for before, words in ((tmp_path / "no", "blindopt 9.9 instead of"), (tmp_path, "no blindopt services")):
        other = tmp_path / "no"
        other.mkdir(exist_ok=True)
        if before == other:
            (other / about.parent.name).mkdir()
            (other / about.parent.name / "METADATA").write_text(about.read_text())
        process = processes.add_worker(before=[before])
        until(lambda: len(is_living(engine)) == 3)
        with pytest.raises(EngineUnavailable, match=words):
            cluster.check()
        if before == other:
            (address,) = set(engine.living()) - usual
            engine._failures |= dict.fromkeys(usual, 9)
            with pytest.raises(EngineUnavailable, match=words):
                walk(engine)
            assert processes.of(address) is process
        processes.kill(process)


# --- what is refused ----------------------------------------------------------------------------------------


def greeting(processes, security=None, send=b""):
    """What a scheduler sends first, as far as one can read it."""
    try:
        with socket.create_connection(("127.0.0.1", processes.port), timeout=20) as plain:
            end = plain if security is None else security.wrap_socket(plain)
            end.sendall(send)
            return end.recv(100)
    except OSError:
        return b""


@slow
def test_who_shows_no_certificate_gets_nothing_from_the_scheduler(processes, engine):
    """Not even the greeting that each end of a connection begins with."""
    ca, cert, key = processes.certificates
    security = ssl.create_default_context(cafile=ca)
    security.check_hostname = False
    assert greeting(processes, send=b"0" * 64)[:1] in (b"", b"\x15")  # the end, or an alert of TLS in the clear
    assert greeting(processes, security) == b""
    security.load_cert_chain(cert, key)
    assert greeting(processes, security) != b""  # a control


@slow
def test_workers_without_the_tested_configuration_are_noticed(processes, cluster, engine, caplog):
    def noted():
        return [record.fields for record in caplog.records if record.name == "blindopt.engine"]

    cluster.check()
    assert not noted()
    process = processes.add_worker(configured=False)
    until(lambda: len(is_living(engine)) == 3)
    cluster.check()
    assert noted() == [{"keys": sorted(TESTED)}]
    processes.kill(process)


# --- memory -------------------------------------------------------------------------------------------------

LARGE, LIMIT, CAPACITY = 3_000_000, 3_000 << 20, 100
IN_ONE = """
import sys
from tests.system.runs.test_dask import in_large
print(in_large(sys.argv[1]))
"""


def in_large(path, engine=None, dtype=np.float64):
    z = np.load(path, mmap_mode="r")
    posterior = Posterior(
        z, SquaredExponential(4.0), noise_variance=1e-3, capacity=CAPACITY, dtype=dtype, executor=engine
    )
    rows = []
    for step in range(1, 16):
        bound = UpperConfidenceBound(beta(LARGE, step, 0.025))
        rows.append(posterior.argmax(bound, lambda step=step: np.random.default_rng([1, step])).row)
        posterior.observe(rows[-1], float(np.sin(z[rows[-1]]).sum()))
    return rows


@slow
def test_two_workers_hold_what_one_process_has_no_memory_for(tmp_path):
    path = tmp_path / "z.npy"
    with path.open("wb") as written:
        npy_files.write(written, [np.random.default_rng(5).normal(size=(LARGE, 15))])
    command = ["prlimit", f"--as={LIMIT}", "--", sys.executable, "-c", IN_ONE, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "MemoryError" in ended.stderr
    processes = DaskProcesses(tmp_path, workers=0)
    try:
        for _ in range(2):
            processes.add_worker(most_bytes=LIMIT)
        engine = Workers(processes.connected(2), str(path), sections(path), 600.0, lambda: None)
        rows = in_large(path, engine)
        engine.drop()
    finally:
        processes.close()
    assert rows == in_large(path, dtype=np.float32)
