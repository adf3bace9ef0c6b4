"""Centres of groups from the records, epsilon-differentially private: Lloyd's k-means with exact integer noise.

A few rounds begin at public points. Each moves every centre by the mean offset of its records, from a noisy sum and a
noisy number of records. The proof is in docs/privacy.md. Source: Blum, Dwork, McSherry & Nissim (2005), SuLQ k-means;
offsets from the centre, and centres without records beside large groups, are ours.
"""

from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix
from blindopt.wire import Feature
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.measurement.groups import COUNT_MOVE, LEVELS
from curator_service.privacy.noise import OnProgress, add_integer_laplace, ignore_progress, least_epsilon

ROUNDS = 8
_BLOCK = 2_048
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
_STEP = 0.3
"""A step that is expected without noise, as a share of the reach: steps that are mostly noise are shortened."""
_SMALL = 0.25
"""Centres with fewer records, as a share of the mean over all centres, move beside a large group."""

Totals = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Numbers of records (k,), and sums of offsets (k, d) in whole steps."""


@dataclass(frozen=True, slots=True)
class PrivateCentres:
    """``number`` centres (k, d) of the records in scaled units.

    Claims epsilon-DP of all that ``rounds`` draw, for replacing one record, or all ``rows`` of a person, by any other.
    """

    features: list[Feature]
    number: int
    epsilon: Decimal
    rows: int = 1
    rounds: int = ROUNDS

    def seek(self, rows: ScaledRows, on_progress: OnProgress = ignore_progress) -> Matrix:
        """Draw the centres. Point of no return: charge the release before."""
        centres = self.start()

        def in_round(turn: int, share: float) -> None:
            on_progress((turn + share) / self.rounds)

        for turn in range(self.rounds):
            totals = self.totals(rows, centres, partial(in_round, turn))
            centres = self.moved(centres, self.noisy(totals), rows.n, turn)
        return centres

    def start(self) -> Matrix:
        """Public points, spread evenly over the box: Halton's sequence."""
        return (self._even() - 0.5) * self._ranges()

    def totals(self, rows: ScaledRows, centres: Matrix, on_progress: OnProgress = ignore_progress) -> Totals:
        """How many records are nearest to each centre, and the sums of their clipped offsets from it."""
        sizes, sums = np.zeros(self.number, dtype=np.int64), np.zeros(centres.shape, dtype=np.int64)
        reach = self._reach()
        for index, block in rows.blocks(_BLOCK):
            closest = nearest(block, centres)
            steps = np.rint(np.clip((block - centres[closest]) / reach, -1.0, 1.0) * LEVELS).astype(np.int64)
            np.add.at(sizes, closest, 1)
            np.add.at(sums, closest, steps)
            on_progress(index.stop / rows.n)
        return sizes, sums

    def noisy(self, totals: Totals) -> Totals:
        numbers, sums = (
            np.array(add_integer_laplace(exact.ravel().tolist(), move, self.share)).reshape(exact.shape)
            for exact, move in zip(totals, self.moves, strict=True)
        )
        return numbers, sums

    @property
    def share(self) -> Decimal:
        """Epsilon of the numbers of a round, and of its sums. Exact: a sixteenth."""
        return self.epsilon / (2 * self.rounds)

    @property
    def moves(self) -> tuple[int, int]:
        """How far a record, or a person's records, move the numbers of a round, and its sums: in all, absolutely.

        A record that keeps its centre moves each coordinate of a sum by 2 LEVELS at most. One that changes it moves two
        numbers by one, and each coordinate of two sums by LEVELS.
        """
        return COUNT_MOVE * self.rows, 2 * LEVELS * len(self.features) * self.rows

    @property
    def least(self) -> Decimal:
        """The least epsilon of the centres: with less, noise does not fit 64 bits."""
        return 2 * self.rounds * least_epsilon(max(self.moves))

    def moved(self, centres: Matrix, noisy_totals: Totals, n: int, turn: int) -> Matrix:
        """The centres after a round, from what was drawn and from public values alone."""
        sizes, sums = noisy_totals
        small, reach, half = sizes < _SMALL * n / self.number, self._reach(), self._ranges() / 2
        count = np.maximum(sizes, 1)[:, None]
        noise = 2 * (self.moves[1] / LEVELS / float(self.share) / count) ** 2
        step = np.clip(sums / LEVELS / count, -1.0, 1.0) * reach * _STEP**2 / (_STEP**2 + noise)
        after = centres + np.where(small[:, None], 0.0, step)
        if turn < self.rounds - 1:
            order = np.argsort(-sizes, kind="stable")
            idle = np.flatnonzero(small)[: self.number // 2]
            after[idle] = after[order[: len(idle)]] + (self._even()[idle] - 0.5) * reach / 2**turn
        return np.clip(after, -half, half)

    def _even(self) -> Matrix:
        """Halton's sequence (k, d) in the unit box, from its second point on."""
        return np.array(
            [[_radical_inverse(i, base) for base in _PRIMES[: len(self.features)]] for i in range(1, self.number + 1)]
        )

    def _ranges(self) -> Matrix:
        return np.array([(f.upper - f.lower) / f.unit for f in self.features])

    def _reach(self) -> Matrix:
        """How far an offset counts, by feature: the width of a part, were the box divided evenly."""
        reach: Matrix = self._ranges() * self.number ** (-1 / len(self.features))
        return reach


def _radical_inverse(number: int, base: int) -> float:
    """The digits of ``number`` behind the point, in reverse."""
    value, weight = 0.0, 1.0
    while number:
        weight /= base
        number, digit = divmod(number, base)
        value += digit * weight
    return value


def nearest(x: Matrix, centres: Matrix) -> NDArray[np.int64]:
    """The centre (k, d) that is nearest to each row (m, d): by the row alone."""
    from scipy.spatial.distance import cdist  # each distance by itself: no other row changes it

    closest: NDArray[np.int64] = cdist(x, centres, "sqeuclidean").argmin(axis=1).astype(np.int64)
    return closest
