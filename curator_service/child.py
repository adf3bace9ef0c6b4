"""A process of our own for work over the records that must not hold up the exchange, and can be ended at any moment.

The job goes in on the standard input, what it comes to comes out on the standard output, a line of JSON each. Nothing
is written to a file or to the command line. Where the curator ends, its end of the pipe closes, and the child ends
with it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

Part = bytes | memoryview


class Child:
    """The process, seen from the curator."""

    def __init__(self, program: Path) -> None:
        # A session of its own: an interrupt from the keyboard is the curator's, who ends the child.
        self._process = subprocess.Popen(  # noqa: S603  this interpreter, a file of ours
            [sys.executable, "-P", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback may quote a value
            start_new_session=True,
        )
        self.killed = False

    def lines(self, *parts: Part) -> Iterator[bytes]:
        """Send the parts of a job and yield each whole line that is told, until the process has ended."""
        self.send(*parts)
        yield from self.told()

    def send(self, *parts: Part) -> None:
        """Send the parts of a job."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended early: there is no news
            for part in parts:
                self._process.stdin.write(part)
            self._process.stdin.flush()

    def told(self) -> Iterator[bytes]:
        """Yield each whole line that is told, until the process has ended, or until nobody asks for more."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # else it was killed in the middle of it
                yield line

    def end(self) -> int:
        """Kill it if it still runs; its exit status."""
        self._process.kill()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return status

    def kill(self) -> None:
        """Kill it; whoever reads its news sees the end of them."""
        self.killed = True
        self._process.kill()


def take_core(turn: int) -> None:
    """In the child: stay on one core. The ``turn``-th from the end, round and round where there are fewer.

    Each kind of work has a turn of its own: two kinds at once share no core while there is another.
    """
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    os.sched_setaffinity(0, {cores[turn % len(cores)]})


def end_with(source: BinaryIO) -> None:
    """In the child, once the job is read: end this process where the curator's end of the pipe closes."""
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()


def _end_with(source: BinaryIO) -> None:
    os.read(source.fileno(), 1)  # nothing more is ever sent: it returns where the other end closes
    os._exit(1)
