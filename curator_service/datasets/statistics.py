"""Extremes of the columns of a dataset, collected while its blocks pass."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Column


@dataclass(slots=True)
class Statistics:
    """Number of rows, and smallest and largest value of each column (columns,)."""

    rows: int = 0
    low: Vector = field(default_factory=lambda: np.array([np.inf]))
    high: Vector = field(default_factory=lambda: np.array([-np.inf]))

    def collect(self, blocks: Iterable[Matrix]) -> Iterator[Matrix]:
        """The blocks unchanged; their statistics are collected while they pass."""
        for block in blocks:
            self.rows += len(block)
            self.low = np.minimum(self.low, block.min(axis=0))
            self.high = np.maximum(self.high, block.max(axis=0))
            yield block

    def columns(self, names: list[str], rounded: Mapping[str, int] = MappingProxyType({})) -> list[Column]:
        """The columns with their extremes, by these names, and how many numbers of each were ``rounded``."""
        return [
            Column(name=name, minimum=float(a), maximum=float(b), rounded=rounded.get(name, 0))
            for name, a, b in zip(names, self.low, self.high, strict=True)
        ]
