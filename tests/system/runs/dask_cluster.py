"""A Dask scheduler and worker processes on loopback, with certificates of their own and the tested configuration."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress

from blindopt.errors import EngineUnavailable
from modeler_service.engines.remote import PartsCluster
from tests.processes import ROOT
from tests.tcp_proxy import TcpProxy, connection

WAIT_SECONDS = 240
ALWAYS = "BLINDOPT_ENGINE_TIMES"
TIMES = int(os.environ.get(ALWAYS, "1"))
"""How often each fault is made, each time at another step."""


class Wire(TcpProxy):
    """A proxy that counts what it carries."""

    @property
    def carried(self):
        return [*self.forth, *self.back]

    @property
    def bytes(self):
        return sum(map(len, self.carried))

    @property
    def messages(self):
        """Messages of Dask that were carried in the clear: each begins with its length."""
        count = 0
        for carried in self.carried:
            position = 0
            while position + 8 <= len(carried):
                position += 8 + struct.unpack_from("<Q", carried, position)[0]
                count += 1
        return count


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class DaskProcesses:
    """A scheduler that keeps its address when it is killed, and workers without a nanny: a process is a worker.

    Clients and workers reach the scheduler, and clients the workers, through a ``Wire`` each.
    """

    def __init__(self, folder, workers=2, *, tls=True, preload=()):
        """The scheduler and each worker run the programs ``preload`` when they begin."""
        self.folder, self._scheme, self._preload = folder, "tls" if tls else "tcp", preload
        if tls:
            command = [ROOT / "deploy" / "dask" / "certificates", folder / "tls"]
            subprocess.run(command, check=True, capture_output=True)
        self.port = free_port()
        self.to_scheduler = Wire(self.port)
        self.address = f"{self._scheme}://127.0.0.1:{self.to_scheduler.port}"
        self._number, self.workers, self.wires = 0, [], {}
        self.start_scheduler()
        for _ in range(workers):
            self.add_worker()

    @property
    def certificates(self):
        if self._scheme == "tcp":
            return None
        tls = self.folder / "tls"
        return str(tls / "ca.crt"), str(tls / "engine.crt"), str(tls / "engine.key")

    def _spawn(self, *arguments, before=(), most_bytes=None, configured=True):
        preload = [option for program in self._preload for option in ("--preload", str(program))]
        names = ("--tls-ca-file", "--tls-cert", "--tls-key")
        files = [part for pair in zip(names, self.certificates or (), strict=False) for part in pair]
        self._number += 1
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment = {k: v for k, v in os.environ.items() if k != "MALLOC_TRIM_THRESHOLD_"} | threads
        paths = [*map(str, before), str(ROOT), str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        if configured:
            environment["DASK_CONFIG"] = str(ROOT / "deploy" / "dask")
        limit = [] if most_bytes is None else ["prlimit", f"--as={most_bytes}", "--"]
        with (self.folder / f"dask-{self._number}.log").open("wb") as log:
            command = [*limit, sys.executable, "-m", "dask", *arguments, *files, "--no-dashboard", *preload]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)

    def start_scheduler(self):
        self.scheduler = self._spawn("scheduler", "--host", f"{self._scheme}://127.0.0.1:{self.port}")
        until(lambda: (made := connection(self.port)) is not None and (made.close() or True))

    def add_worker(self, *, before=(), most_bytes=None, configured=True, memory="4GiB", threads=1):
        """Start a worker, with folders ``before`` the others that Python imports from."""
        port = free_port()
        wire = Wire(port)
        where = [f"--listen-address={self._scheme}://127.0.0.1:{port}"]
        where += [f"--contact-address={self._scheme}://127.0.0.1:{wire.port}"]
        limit = ["--nthreads", str(threads), "--memory-limit", memory, "--no-nanny", "--death-timeout", "600"]
        folder = ["--local-directory", str(self.folder / f"worker-{self._number}")]
        process = self._spawn(
            "worker", self.address, *where, *limit, *folder, before=before, most_bytes=most_bytes, configured=configured
        )
        self.workers.append(process)
        self.wires[process] = wire
        return process

    def kill(self, process, number=signal.SIGKILL):
        os.kill(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()
            if process in self.workers:
                self.workers.remove(process)
                self.wires.pop(process).close()

    def kill_all(self):
        for process in list(self.workers):
            self.kill(process)

    def of(self, address):
        """The process of a worker, by the address that the scheduler has of it."""
        port = int(address.rpartition(":")[2])
        return next(process for process in self.workers if self.wires[process].port == port)

    def connected(self, count):
        """A connection to the cluster, once it has exactly so many workers, all of them those that are here."""
        made = []

        def try_it():
            with suppress(EngineUnavailable):
                made.append(PartsCluster(self.address, self.certificates))
            return made

        until(try_it)
        until(lambda: len(made[0].workers()) == count)
        return made[0]

    def client(self):
        """A client of Dask itself."""
        from distributed import Client, Security

        names = ("tls_ca_file", "tls_client_cert", "tls_client_key")
        security = Security(
            require_encryption=self._scheme == "tls", **dict(zip(names, self.certificates or (), strict=False))
        )
        return Client(self.address, security=security, set_as_default=False, direct_to_workers=True)

    def close(self):
        for process in [*self.workers, self.scheduler]:
            with suppress(ProcessLookupError):
                process.kill()
                process.wait()
        for wire in [self.to_scheduler, *self.wires.values()]:
            wire.close()


def until(what, within=WAIT_SECONDS):
    deadline = time.monotonic() + within
    while not (result := what()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return result
