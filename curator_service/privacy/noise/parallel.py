"""Noise for many rows, drawn in this process or in one process for each processor.

The workers are fresh processes (spawn), and each draws from the operating system by itself. A worker gets one piece of
the rows at a time, a fraction of a second's work, and holds no other data. If a worker fails or dies, the whole draw
fails: no piece is drawn in another way. Workers cannot outlive the parent: a worker ends after its current piece once
its pipe is closed, for whatever reason.
"""

import math
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Protocol, Self

import numpy as np

from blindopt.arrays import Matrix
from blindopt.errors import NumericalFailure
from blindopt.formats.npy_files import forget_pages

PIECE_DRAWS = 100_000
"""Draws in one piece: at most a few tenths of a second of one processor."""
PARALLEL_DRAWS = 300_000
"""Up to so many draws, this process is done before workers would have started."""
_DONE = b"done"
OnProgress = Callable[[float], None]
"""A callback that gets the share of the work that is done, from 0 to 1."""
_Noisy = Generator[tuple[slice, Matrix], None, None]


def ignore_progress(share: float) -> None:
    """The progress callback that does nothing."""


class Law(Protocol):
    """Noise for blocks of rows. Immutable, and small enough to send to another process."""

    @property
    def draws_per_row(self) -> float:
        """Expected number of draws from the lattice sampler for one row."""
        ...

    def add(self, block: Matrix) -> Matrix:
        """Return ``block`` (m, d) with noise. Raises NumericalFailure for a value that is not finite."""
        ...


def _unchanged(block: Matrix) -> Matrix:
    return block


def apply(
    law: Law,
    blocks: Iterable[tuple[slice, Matrix]],
    out: Matrix,
    on_progress: OnProgress,
    total_rows: int,
    *,
    finish: Callable[[Matrix], Matrix] = _unchanged,
    workers: int | None = None,
    piece_draws: float = PIECE_DRAWS,
) -> None:
    """Fill the rows of ``out`` (n, r) that each block is for with ``finish`` of the noisy block.

    Reports the share of ``total_rows`` that is done. Raises NumericalFailure where a value is not finite or a worker
    dies, and what a draw in this process raises. ``workers``: the number of other processes that draw, by default one
    for each processor, or none with one processor or up to PARALLEL_DRAWS draws.
    """
    pieces = _pieces(blocks, max(1, int(piece_draws / law.draws_per_row)))
    if workers is None:
        workers = processors() if total_rows * law.draws_per_row > PARALLEL_DRAWS else 0
    done = 0
    # Close the generator at once on failure: a stored traceback must not keep workers alive.
    in_process = ((index, law.add(piece)) for index, piece in pieces)
    with closing(_in_workers(law, pieces, workers) if workers > 1 else in_process) as noisy:
        for index, piece in noisy:
            out[index] = finish(piece)
            forget_pages(out)
            done += len(piece)
            on_progress(done / total_rows)


def processors() -> int:
    return len(os.sched_getaffinity(0))


def _pieces(blocks: Iterable[tuple[slice, Matrix]], rows: int) -> Iterator[tuple[slice, Matrix]]:
    for index, block in blocks:
        for start in range(0, len(block), rows):
            piece = block[start : start + rows]
            begin = index.start + start
            yield slice(begin, begin + len(piece)), piece


def _in_workers(law: Law, pieces: Iterator[tuple[slice, Matrix]], count: int) -> _Noisy:
    idle: list[_Worker] = []
    busy: dict[connection.Connection, _Worker] = {}
    every: list[_Worker] = []
    try:
        for index, piece in pieces:
            if not idle and len(every) < count:
                every.append(_Worker.start(law))
                idle.append(every[-1])
            if not idle:
                for worker in _ready(busy):
                    yield worker.receive()
                    idle.append(worker)
            worker = idle.pop()
            worker.send(index, piece)
            busy[worker.pipe] = worker
        while busy:
            for worker in _ready(busy):
                yield worker.receive()
    finally:
        for worker in every:
            worker.end()


def _ready(busy: "dict[connection.Connection, _Worker]") -> "list[_Worker]":
    return [busy.pop(pipe) for pipe in connection.wait(list(busy)) if isinstance(pipe, connection.Connection)]


@dataclass(slots=True)
class _Worker:
    """A process that adds noise to one piece at a time."""

    process: BaseProcess
    pipe: connection.Connection
    index: slice = field(default_factory=lambda: slice(0))
    shape: tuple[int, ...] = ()

    @classmethod
    def start(cls, law: Law) -> Self:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, law), daemon=True)
        process.start()
        theirs.close()  # so that its end closes with the process
        return cls(process, ours)

    def send(self, index: slice, piece: Matrix) -> None:
        self.index, self.shape = index, piece.shape
        try:
            self.pipe.send_bytes(repr(piece.shape[1]).encode())
            self.pipe.send_bytes(np.ascontiguousarray(piece).data.cast("B"))
        except OSError:
            raise self._died() from None

    def receive(self) -> tuple[slice, Matrix]:
        try:
            if (reply := self.pipe.recv_bytes()) != _DONE:
                raise NumericalFailure(reply.decode())
            noisy = np.frombuffer(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._died() from None
        if noisy.size != math.prod(self.shape):
            raise self._died()
        return self.index, noisy.reshape(self.shape)

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def _died(self) -> NumericalFailure:
        return NumericalFailure("a process that draws noise ended before its time: nothing of this draw may be used")


def work(pipe: connection.Connection, law: Law) -> None:
    """Add noise to each piece that arrives, until the pipe is closed. Runs in a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    with suppress(EOFError, OSError), pipe:
        while True:
            columns = int(pipe.recv_bytes())
            block = np.frombuffer(pipe.recv_bytes()).reshape(-1, columns)
            try:
                noisy = law.add(block)
            except BaseException as error:  # after any error the draw is void; its text might quote a value
                is_public = isinstance(error, NumericalFailure)
                pipe.send_bytes(
                    (str(error) if is_public else f"a draw of noise failed: {type(error).__name__}").encode()
                )
                return
            pipe.send_bytes(_DONE)
            pipe.send_bytes(np.ascontiguousarray(noisy).data.cast("B"))
