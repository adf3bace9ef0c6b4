"""Extremes of the columns of a dataset, collected while its blocks pass."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Column

COPIES_MAX = 1_000_000
"""So many rows are compared, by 8 bytes of each: two different rows among them meet with a chance below 1e-7."""


@dataclass(slots=True)
class Statistics:
    """Number of rows, smallest and largest value of each column (columns,), and digests of rows, to find copies."""

    rows: int = 0
    low: Vector = field(default_factory=lambda: np.array([np.inf]))
    high: Vector = field(default_factory=lambda: np.array([-np.inf]))
    _digests: "array[int]" = field(default_factory=lambda: array("Q"))

    def collect(self, blocks: Iterable[Matrix]) -> Iterator[Matrix]:
        """The blocks unchanged; their statistics are collected while they pass."""
        for block in blocks:
            self.rows += len(block)
            self.low = np.minimum(self.low, block.min(axis=0))
            self.high = np.maximum(self.high, block.max(axis=0))
            if self.rows <= COPIES_MAX:
                self._digests.frombytes(_digests(block).tobytes())
            yield block

    @property
    def copies(self) -> int | None:
        """How many rows equal an earlier one in every column; None if there are too many to compare."""
        if self.rows > COPIES_MAX:
            return None
        digests = np.frombuffer(self._digests, dtype=np.uint64)
        digests.sort()  # in place: memory is scarce where files are read
        return int((digests[1:] == digests[:-1]).sum())

    def columns(self, names: list[str], rounded: Mapping[str, int] = MappingProxyType({})) -> list[Column]:
        """The columns with their extremes, by these names, and how many numbers of each were ``rounded``."""
        return [
            Column(name=name, minimum=float(a), maximum=float(b), rounded=rounded.get(name, 0))
            for name, a, b in zip(names, self.low, self.high, strict=True)
        ]


def _digests(block: Matrix) -> NDArray[np.uint64]:
    """A number for each row of a block (m,), which is the same for equal rows."""
    digests = np.zeros(len(block), dtype=np.uint64)
    for column in np.ascontiguousarray(block.T) + 0.0:  # -0.0 equals 0.0
        digests = (digests ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        digests ^= digests >> np.uint64(29)
        digests *= np.uint64(0xBF58476D1CE4E5B9)
        digests ^= digests >> np.uint64(32)
    return digests
