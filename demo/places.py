"""The places of the demo: sales of houses by the squares of a map, and how far a place is from the best one."""

import csv
import io

import numpy as np

from blindopt.arrays import Vector
from blindopt.wire import Feature
from demo.property_data import FEATURES, OUTCOME, csv_bytes

PARTS = 20
LEAST = 20
"""Sales of a place that counts: a mean of fewer says little of a place."""
BOX: list[Feature] = [feature.model_copy(update={"scale": None}) for feature in FEATURES[:2]]


class Sales:
    """The sales by place, which the demo knows because they are public."""

    def __init__(self) -> None:
        rows = list(csv.DictReader(io.StringIO(csv_bytes().decode())))
        outcomes = np.array([float(row[OUTCOME]) for row in rows])
        square = self.square(*(np.array([float(row[feature.column]) for row in rows]) for feature in BOX))
        self.size = np.bincount(square, minlength=PARTS**2)
        self.mean = np.bincount(square, outcomes, minlength=PARTS**2) / np.maximum(self.size, 1)

    @staticmethod
    def square(*values: Vector) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        shares = [(at - f.lower) / (f.upper - f.lower) for at, f in zip(values, BOX, strict=True)]
        parts = [np.clip((share * PARTS).astype(np.int64), 0, PARTS - 1) for share in shares]
        return np.ravel_multi_index((parts[0], parts[1]), (PARTS, PARTS)).astype(np.int64)

    def regret(self, point: list[float]) -> float:
        """How much lower prices are at a point than in the best place that counts, as a share from 0 to 1.

        A place without a sale is as bad as the worst one.
        """
        (square,) = self.square(*(np.array([at]) for at in point))
        mean = self.mean[square] if self.size[square] else self.mean[self.size > 0].min()
        return float(max(0.0, 1 - 10 ** (mean - self.mean[self.size >= LEAST].max())))

    def centres_csv(self) -> bytes:
        """The places that count, as a table: for the search without privacy."""
        lines = [",".join([*(feature.column for feature in BOX), OUTCOME])]
        for square in np.flatnonzero(self.size >= LEAST):
            sides = zip(BOX, np.unravel_index(square, (PARTS, PARTS)), strict=True)
            centre = [f.lower + (k + 0.5) / PARTS * (f.upper - f.lower) for f, k in sides]
            lines.append(",".join(repr(float(value)) for value in (*centre, self.mean[square])))
        return "\n".join(lines).encode()
