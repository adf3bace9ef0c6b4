"""A Dask scheduler and worker processes on loopback, with certificates of their own and the tested configuration."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

from tests.processes import ROOT

WAIT_SECONDS = 120


class DaskProcesses:
    """A scheduler that keeps its address when it is killed, and workers without a nanny: a process is a worker."""

    def __init__(self, folder, workers=2):
        self.folder = folder
        subprocess.run([ROOT / "deploy" / "dask" / "certificates", folder / "tls"], check=True, capture_output=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"tls://127.0.0.1:{self.port}"
        self._number, self.workers = 0, []
        self.start_scheduler()
        for _ in range(workers):
            self.add_worker()

    @property
    def certificates(self):
        tls = self.folder / "tls"
        return str(tls / "ca.crt"), str(tls / "engine.crt"), str(tls / "engine.key")

    def _spawn(self, *arguments):
        ca, cert, key = self.certificates
        files = ["--tls-ca-file", ca, "--tls-cert", cert, "--tls-key", key]
        self._number += 1
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment = {k: v for k, v in os.environ.items() if k != "MALLOC_TRIM_THRESHOLD_"} | threads
        environment |= {
            "DASK_CONFIG": str(ROOT / "deploy" / "dask"),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")]),
        }
        with (self.folder / f"dask-{self._number}.log").open("wb") as log:
            command = [sys.executable, "-m", "dask", *arguments, *files, "--no-dashboard"]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)

    def start_scheduler(self):
        self.scheduler = self._spawn("scheduler", "--host", self.address)

    def add_worker(self):
        limit = ["--nthreads", "1", "--memory-limit", "4GiB", "--no-nanny", "--death-timeout", "600"]
        folder = str(self.folder / f"worker-{self._number}")
        self.workers.append(self._spawn("worker", self.address, *limit, "--local-directory", folder))

    def kill(self, process, number=signal.SIGKILL):
        os.kill(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()
            if process in self.workers:
                self.workers.remove(process)

    def close(self):
        for process in [*self.workers, self.scheduler]:
            with suppress(ProcessLookupError):
                process.kill()
                process.wait()


def until(what, within=WAIT_SECONDS):
    deadline = time.monotonic() + within
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)
