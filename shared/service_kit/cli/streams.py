"""The standard streams, which the program that starts a command decides: closed, full, cut off, or no terminal."""

import io
import logging
import os
import select
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger("blindopt.streams")


class _Stream(io.FileIO):
    """A stream to write to. What it cannot take is dropped, so that the work goes on, and ``problem`` says why.

    With ``tries_again`` each write is tried: a disk that was full has room again.
    """

    problem: OSError | None = None
    tries_again = False

    def write(self, data: Any) -> int:
        while self.problem is None or self.tries_again:
            try:
                written: int | None = super().write(data)
            except OSError as error:
                self.problem = error
                break
            if written is not None:
                return written
            select.select([], [self], [])  # another program made it non-blocking
        return len(memoryview(data).cast("B"))


def open_streams() -> None:
    """Let this process write any text to its streams, whatever they are; one that is closed becomes an empty one.

    To a file or a pipe in UTF-8, at a terminal with ? for what it does not have.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # a file or a connection would take its number, and get what is printed
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout, sys.stderr = _writer(1, sys.stdout), _writer(2, sys.stderr)


def _writer(descriptor: int, before: Any) -> io.TextIOWrapper:
    stream = _Stream(descriptor, "wb", closefd=False)
    stream.tries_again = is_log = descriptor == 2
    is_terminal = stream.isatty()
    return io.TextIOWrapper(
        io.BufferedWriter(stream),
        encoding=getattr(before, "encoding", None) if is_terminal else "utf-8",
        errors="replace",
        line_buffering=is_terminal or is_log,
        write_through=is_log,
    )


def say(words: str) -> None:
    """Print what a service that goes on says at its start; what cannot be printed goes to the log."""
    print(words, flush=True)  # noqa: T201
    stream = _stream_of(sys.stdout)
    if stream is not None and stream.problem is not None:
        log.warning("standard output cannot be written", extra={"fields": {"said": words}})
        stream.problem = None


def run(command_line: Callable[[], Any]) -> None:
    """Run a command, and exit with its status; with 1 if its output was lost."""
    status: Any = 0
    try:
        command_line()
    except SystemExit as end:
        status = end.code
    sys.stdout.flush()
    stream = _stream_of(sys.stdout)
    if stream is not None and (problem := stream.problem) is not None:
        status = status or 1
        if not isinstance(problem, BrokenPipeError):  # the reader has what it wanted
            sys.stderr.write(f"error: standard output cannot be written: {str(problem.strerror).lower()}\n")
    sys.exit(status)


def _stream_of(output: Any) -> _Stream | None:
    stream = getattr(getattr(output, "buffer", None), "raw", None)
    return stream if isinstance(stream, _Stream) else None
