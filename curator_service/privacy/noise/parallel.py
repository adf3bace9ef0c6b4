"""Noise for many rows: in this process, or spread over as many as there are processors.

The workers are fresh processes (spawn), so that none can share a generator's state with another, and each draws from
the operating system and OpenDP for itself. They get one piece of the rows at a time, of a fraction of a second's work,
and hold nothing else. A worker that fails or dies ends the whole draw with an error: no piece is drawn in another way.
They cannot outlive the parent: a worker whose pipe is closed, whatever closed it, ends after the piece in hand.
"""

import gc
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

PIECE_DRAWS = 25_000
"""About a quarter of a second of one processor; OpenDP takes some 300 bytes for each."""
PARALLEL_DRAWS = 300_000
"""Fewer are drawn faster here than it takes workers to start."""
_DONE = b"done"
_Noisy = Generator[tuple[slice, Matrix], None, None]


class Law(Protocol):
    """Noise for blocks of rows; frozen, and small enough to be sent to another process."""

    @property
    def draws_per_row(self) -> float:
        """Expected number of draws from the lattice sampler for one row: what it costs."""
        ...

    def add(self, block: Matrix) -> Matrix:
        """``block`` (m, d) with noise. Raises NumericalFailure for a value that is not finite."""
        ...


def _as_it_is(block: Matrix) -> Matrix:
    return block


def apply(
    law: Law,
    blocks: Iterable[tuple[slice, Matrix]],
    out: Matrix,
    told: Callable[[float], None],
    total_rows: int,
    *,
    finish: Callable[[Matrix], Matrix] = _as_it_is,
) -> None:
    """Fill ``out`` (n, r) with ``finish`` of the noisy blocks, each at its place; tell the share that is done.

    Raises NumericalFailure where a value is not finite or a worker dies, and whatever a draw raises here.
    """
    pieces = _pieces(blocks, max(1, int(PIECE_DRAWS / law.draws_per_row)))
    workers = processors()
    parallel = workers > 1 and total_rows * law.draws_per_row > PARALLEL_DRAWS
    done = 0
    # Closed at once where anything fails: an error that is kept must not keep workers.
    with closing(_spread(law, pieces, workers) if parallel else _here(law, pieces)) as noisy:
        for place, piece in noisy:
            out[place] = finish(piece)
            forget_pages(out)
            done += len(piece)
            told(done / total_rows)


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


def _pieces(blocks: Iterable[tuple[slice, Matrix]], rows: int) -> Iterator[tuple[slice, Matrix]]:
    for place, block in blocks:
        for start in range(0, len(block), rows):
            part = block[start : start + rows]
            begin = place.start + start
            yield slice(begin, begin + len(part)), part


def _here(law: Law, pieces: Iterator[tuple[slice, Matrix]]) -> _Noisy:
    for place, piece in pieces:
        yield place, _drawn(law, piece)


def _drawn(law: Law, piece: Matrix) -> Matrix:
    noisy = law.add(piece)
    gc.collect(1)  # OpenDP 0.16 ties the values into reference cycles: left alone, they pile up, piece upon piece
    return noisy


def _spread(law: Law, pieces: Iterator[tuple[slice, Matrix]], count: int) -> _Noisy:
    idle: list[_Worker] = []
    busy: dict[connection.Connection, _Worker] = {}
    every: list[_Worker] = []
    try:
        for place, piece in pieces:
            if not idle and len(every) < count:
                every.append(_Worker.start(law))
                idle.append(every[-1])
            if not idle:
                for worker in _ready(busy):
                    yield worker.receive()
                    idle.append(worker)
            worker = idle.pop()
            worker.send(place, piece)
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
    place: slice = field(default_factory=lambda: slice(0))
    shape: tuple[int, ...] = ()

    @classmethod
    def start(cls, law: Law) -> Self:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, law), daemon=True)
        process.start()
        theirs.close()  # so that its end closes with the process
        return cls(process, ours)

    def send(self, place: slice, piece: Matrix) -> None:
        self.place, self.shape = place, piece.shape
        try:
            self.pipe.send_bytes(repr(piece.shape[1]).encode())
            self.pipe.send_bytes(np.ascontiguousarray(piece).data.cast("B"))
        except OSError:
            raise self._died() from None

    def receive(self) -> tuple[slice, Matrix]:
        try:
            if (said := self.pipe.recv_bytes()) != _DONE:
                raise NumericalFailure(said.decode())
            drawn = np.frombuffer(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._died() from None
        if drawn.size != math.prod(self.shape):
            raise self._died()
        return self.place, drawn.reshape(self.shape)

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
    """A worker's life: pieces in, noisy pieces out, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with suppress(EOFError, OSError), pipe:
        while True:
            columns = int(pipe.recv_bytes())
            block = np.frombuffer(pipe.recv_bytes()).reshape(-1, columns)
            try:
                noisy = _drawn(law, block)
            except BaseException as error:  # whatever it is, nothing is drawn; its text might quote a value
                known = isinstance(error, NumericalFailure)
                pipe.send_bytes((str(error) if known else f"a draw of noise failed: {type(error).__name__}").encode())
                return
            pipe.send_bytes(_DONE)
            pipe.send_bytes(np.ascontiguousarray(noisy).data.cast("B"))
