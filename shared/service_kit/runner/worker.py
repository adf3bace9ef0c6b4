"""The curator's end of the protocol."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic

import numpy as np

from blindopt.arrays import Matrix
from service_kit.runner.program import Message, Program, ReplyT


def start(
    module: str, files: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a process that does the jobs of the PROGRAM in a module, and has these open files by their descriptors.

    It has this ``environment``, or that of this process. In a session of its own: an interrupt from the keyboard
    reaches the service alone, which then ends the child.
    """
    return subprocess.Popen(  # noqa: S603  this interpreter, a file of ours
        [sys.executable, "-P", str(Path(__file__).with_name("__main__.py")), module, *folders_of(module)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a traceback may quote a value
        start_new_session=True,
        pass_fds=files,
        env=environment,
    )


def folders_of(module: str) -> list[str]:
    """The folders that hold a module and the library: they need not be installed, as in a container."""
    packages = (sys.modules[name] for name in (module.partition(".")[0], "blindopt"))
    return list(dict.fromkeys(str(Path(package.__path__[0]).parent) for package in packages))


class Worker(Generic[ReplyT]):
    """A child process that does the jobs of a program."""

    def __init__(self, program: Program[Any, ReplyT], files: Sequence[int] = ()) -> None:
        self._program = program
        self._process = start(program.module, files) if files else start(program.module)
        self.killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended by itself, or was killed."""
        return self._process.poll() is not None

    def work(self, job: Message, array: Matrix | None = None) -> Iterator[ReplyT]:
        """Send a job, with an array where it needs one, and yield its replies up to the last one.

        There is no last one where the process ends before.
        """
        self._send(job, array)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):  # the process was killed in the middle of a line
                return
            reply = self._program.reply.model_validate_json(line)
            yield reply
            if reply.is_last:
                return

    def _send(self, job: Message, array: Matrix | None) -> None:
        assert self._process.stdin is not None
        shape = None if array is None else array.shape
        with suppress(BrokenPipeError):  # the process has ended: there will be no reply
            self._process.stdin.write(job.model_dump_json().encode() + b"\n" + json.dumps(shape).encode() + b"\n")
            if array is not None:
                self._process.stdin.write(np.ascontiguousarray(array, dtype=np.float64).data)
            self._process.stdin.flush()

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[threading.Event]:
        """Kill the process ``seconds`` from now, unless the block ends before; the event is set if it was killed."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            self.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()

    def kill(self) -> None:
        """Kill the process: ``work`` yields what it sent before, then ends."""
        self.killed = True
        self._process.kill()

    def end(self) -> int:
        """Kill the process if it still runs, release its pipes, and return its exit status."""
        self._process.kill()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return status
