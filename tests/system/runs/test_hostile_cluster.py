"""A hostile scheduler or worker runs its program in the process that connects to it, and reaches nothing from there."""

import io
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress

import numpy as np
import pytest
from pydantic import ValidationError

from blindopt.errors import EngineUnavailable, NumericalFailure
from blindopt.gp.parts import Leaders
from modeler_service.engines import remote
from modeler_service.engines.cluster import LINE_BYTES
from modeler_service.engines.remote import PartsCluster, _Handle
from modeler_service.settings import Settings
from service_kit import landlock
from tests.system.runs import hostile_cluster, unconfined
from tests.system.runs.dask_cluster import DaskProcesses, until

needs_landlock = pytest.mark.skipif(not landlock.version(), reason="this kernel or container permits no Landlock")
REFUSED = ("read", "list", "write", "memory", "environment", "child", "local socket", "limits")


class Spy:
    """Takes what hostile programs say that they could do."""

    def __init__(self):
        self.seen, self._listener = [], socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self):
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                with connection, connection.makefile() as source:
                    self.seen.append(json.loads(source.readline()))

    def close(self):
        self._listener.close()


@pytest.fixture
def spy():
    made = Spy()
    yield made
    made.close()


@pytest.fixture
def key(tmp_path):
    """A secret of the service."""
    path = tmp_path / "data" / "seal.key"
    path.parent.mkdir()
    path.write_bytes(b"secret")
    return path


@pytest.fixture
def hostile(tmp_path, spy, key, monkeypatch):
    """A cluster in which a scheduler or the workers are hostile."""
    opened = []

    def start(by):
        monkeypatch.setenv("HOSTILE", json.dumps({"file": str(key), "port": spy.port, "by": by}))
        (tmp_path / "dask").mkdir()
        opened.append(DaskProcesses(tmp_path / "dask", workers=0, tls=False, preload=[hostile_cluster.__file__]))
        opened[0].add_worker()
        return opened[0]

    yield start
    for processes in opened:
        processes.close()


@needs_landlock
@pytest.mark.parametrize("by", ["scheduler", pytest.param("worker", marks=pytest.mark.slow)])
def test_a_program_that_a_hostile_cluster_sends_reaches_no_file_memory_or_process(hostile, by, spy, monkeypatch):
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    monkeypatch.setenv("BLINDOPT_MODELER_SECRET", "of the service")
    processes = hostile(by)

    def attempts(program, read):
        """What a hostile program that could ``read`` did in a process that connects and asks as a run does."""
        monkeypatch.setattr(remote, "PROGRAM", program)

        def connect():
            with suppress(EngineUnavailable), closing(PartsCluster(processes.address, None)) as cluster:
                cluster.workers()
                cluster.check()
            return [seen for seen in spy.seen if seen["read"] == read]

        return until(connect)[0]

    refused = dict.fromkeys(REFUSED, "PermissionError") | {"child": "ZeroDivisionError"}
    confined = attempts(remote.PROGRAM, "PermissionError")
    assert {name: confined[name] for name in REFUSED} == refused
    assert (confined["signal"] == "PermissionError") == (landlock.version() >= 6)
    assert set(confined["names"]) <= {"LC_CTYPE"}  # which Python sets itself
    free = attempts(unconfined.__name__, "done")  # a control
    assert free["files"] == []  # it has its pipes alone; a confined one cannot even look
    assert {name: free[name] for name in REFUSED} == dict.fromkeys(REFUSED, "done")


CONFINED = """
import ctypes, errno, os, resource, socket, sys
from pathlib import Path
from service_kit import landlock
if sys.argv[1] == "confined":
    landlock.confine(landlock.code_paths("service_kit"))
def attempt(work):
    try:
        return work()
    except OSError as error:
        return type(error).__name__
def received():
    with socket.socket(socket.AF_UNIX) as local:
        local.connect(sys.argv[2])
        data, files, *_ = socket.recv_fds(local, 9, 1)
        return os.read(files[0], 9).decode()
def ring():
    libc = ctypes.CDLL(None, use_errno=True)
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(425, 1, None) < 0 else "done"
core = resource.getrlimit(resource.RLIMIT_CORE)
print(attempt(received))
print(attempt(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE, core) and "done"))
print(ring())
print(attempt(lambda: resource.prlimit(0, resource.RLIMIT_CORE, core) and "done"))
print(attempt(lambda: [end.close() for end in socket.socketpair()] and "done"))
print(attempt(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), timeout=60).close() or "done"))
"""
"""What a process receives by a socket of this machine, and what it can do to its parent's limits, and to its own."""


@needs_landlock
def test_a_confined_process_receives_no_file_by_a_socket_and_sets_no_limits_of_others(tmp_path, key):
    """A process of the same user that would send an open file is enough: Landlock looks at no file that is open."""
    path = str(tmp_path / "socket")
    server = socket.create_server(("127.0.0.1", 0))
    with socket.socket(socket.AF_UNIX) as listener, key.open("rb") as secret, server:
        listener.bind(path)
        listener.listen()

        def send():
            with suppress(OSError):  # closed
                connection, _ = listener.accept()
                with connection:
                    socket.send_fds(connection, [b"key"], [secret.fileno()])

        threading.Thread(target=send, daemon=True).start()

        def seen(how):
            run = [sys.executable, "-c", CONFINED, how, path, str(server.getsockname()[1])]
            return subprocess.run(run, capture_output=True, encoding="utf-8", check=True, timeout=100).stdout.split()

        assert seen("confined") == ["PermissionError", "PermissionError", "EPERM", "done", "done", "done"]
        received, limits, _, *own = seen("free")  # a control: whether io_uring is permitted depends on the machine
        assert (received, limits, own) == ("secret", "done", ["done"] * 3)


# --- what the process replies -------------------------------------------------------------------------------


def npy(array, **how):
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def reply(*arrays, number=0, **values):
    """A reply to the first request, which is the one to connect, or to another."""
    head = {"number": number, "arrays": [len(array) for array in arrays], **values}
    return json.dumps(head).encode() + b"\n" + b"".join(arrays)


CONNECTED, PART = reply(), _Handle(0, 10)
LEADERS = Leaders(np.arange(3), np.zeros(3), np.ones(3))
LARGE = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
    + b"\n"
)
ODD = {
    "no JSON": b"?\n",
    "a line without an end": b" " * (LINE_BYTES + 9),
    "an unknown name": reply(number=1, program="x"),
    "a reply to nothing": reply(number=7),
    "a text without end": reply(number=1, error="x" * 400),
    "more than was asked for": reply(npy(np.zeros(1_000)), number=1),
    "an array of objects": reply(npy(np.array([{}], dtype=object)), number=1),
    "an array that is larger than its bytes": reply(LARGE, number=1),
    "another number of arrays": reply(*[npy(np.zeros(1))] * 4, number=1),
    "the end": b"",
}


class Process:
    """A process that sends one of these replies for each request."""

    def __init__(self, replies):
        source, sink = os.pipe()
        self.stdin, self._source = os.fdopen(sink, "wb"), os.fdopen(source, "rb")
        source, sink = os.pipe()
        self.stdout, self._sink = os.fdopen(source, "rb"), os.fdopen(sink, "wb")
        threading.Thread(target=self._serve, args=(replies,), daemon=True).start()
        self.is_killed = threading.Event()

    def _serve(self, replies):
        with self._source, self._sink, suppress(EOFError, OSError):
            pickle.load(self._source)  # how to connect
            for sent in replies:
                pickle.load(self._source)
                self._sink.write(sent)
                self._sink.flush()

    def kill(self):
        self.is_killed.set()

    def wait(self):
        pass


@pytest.fixture
def replying(monkeypatch):
    """A connection whose process sends these replies."""
    monkeypatch.setattr(remote, "find_spec", lambda name: True)

    def go(*replies):
        process = Process(replies)
        monkeypatch.setattr(remote, "start", lambda *arguments, **options: process)
        return PartsCluster("tcp://127.0.0.1:1", None), process

    return go


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_reply_ends_the_process_and_the_engine_is_not_available(replying, kind):
    cluster, process = replying(CONNECTED, ODD[kind])
    with pytest.raises(EngineUnavailable):
        cluster.call(PART, "leaders").result(60)
    assert process.is_killed.wait(60)
    with pytest.raises(EngineUnavailable):
        cluster.workers()


def test_a_right_reply_is_read_and_an_error_of_a_worker_ends_nothing(replying):
    """A control of the odd ones."""
    failed = reply(number=2, error="NumericalFailure", detail="not finite")
    other = reply(number=3, error="ConnectionError")
    cluster, process = replying(CONNECTED, reply(*map(npy, LEADERS), number=1), failed, other, reply(number=4), b"")
    for mine, theirs in zip(cluster.call(PART, "leaders").result(60), LEADERS, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(NumericalFailure, match="not finite"):
        cluster.call(PART, "leaders").result(60)
    with pytest.raises(EngineUnavailable, match="ConnectionError"):
        cluster.call(PART, "leaders").result(60)
    assert cluster.call(PART, "leaders").result(60) is None
    assert not process.is_killed.is_set()
    cluster.close()


# --- where a cluster is refused -----------------------------------------------------------------------------


def settings(**changes):
    return Settings(candidates_engine="dask://127.0.0.1:8786", **changes)


def test_a_cluster_without_landlock_is_refused_at_the_start_in_words(monkeypatch):
    monkeypatch.setattr(landlock, "version", lambda: 0)
    with pytest.raises(ValidationError, match=r"CANDIDATES_ENGINE.*Landlock"):
        settings()
    assert Settings(candidates_engine="threads").candidates_engine == "threads"


@needs_landlock
def test_a_data_folder_that_the_client_of_a_cluster_could_read_is_refused(tmp_path):
    with pytest.raises(ValidationError, match=r"DATA_DIR.*/usr"):
        settings(data_dir="/usr/local/share/modeler")
    assert settings(data_dir=tmp_path).data_dir == tmp_path
