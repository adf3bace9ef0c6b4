"""Groups of records by a partition of the declared box: Z holds their centres, and how many each has is noised.

Nothing about a record leaves but by a sum over its group, so whole records are protected (docs/privacy.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.errors import ReleaseImpossible
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.measurement.groups import COUNT_MOVE, LEVELS, numbers_epsilon
from curator_service.privacy.noise import OnProgress, add_integer_laplace, ignore_progress, least_epsilon
from curator_service.privacy.prices import exact
from curator_service.releases.mechanisms.mechanism import Assessment, Drawn, Mechanism
from curator_service.releases.mechanisms.private_centres import PrivateCentres, nearest

FEATURES_MAX = 20
RANGE_MIN = 1e-100
"""The least range of a feature in scaled units: with less, squared distances and the reach of centres may be 0."""
WITHHELD, NO_CANDIDATE = -2, -1
"""What stands for the candidate of a record that was withheld, and of one whose group is none."""
_BLOCK = 2_048
Cells = wire.GridCells | wire.CentreCells | wire.PrivateCells


@dataclass(frozen=True, slots=True, repr=False)
class Divided:
    """The groups that are candidates: number in the partition, noisy number of records, and centre (m, d) of each.

    ``candidates`` (records,): the candidate that each stored record belongs to. It never leaves the curator.
    """

    kept: NDArray[np.int64]
    counts: list[int]
    centres: Matrix
    candidates: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups(Mechanism):
    """Divides records by a partition, and releases how many are in each part with discrete Laplace noise.

    Claims epsilon-DP of all these numbers together, for replacing one record, or all records of a person with ``rows``
    of them, by any other: two numbers move by one each for each record. Which groups are candidates follows from the
    noisy numbers and the public ``min_count``. Centres are public, or private ones that cost ``cells.epsilon`` besides.
    Claims nothing about y, nor about how many records there are in all.
    """

    features: list[wire.Feature]
    cells: Cells
    epsilon: Decimal
    """Of the numbers of records."""
    min_count: int
    rows: int = 1
    """Rows of one person."""

    name: ClassVar[str] = "groups"
    version: ClassVar[int] = 1
    status: ClassVar[wire.Status] = "sound"
    claim: ClassVar[str] = (
        "epsilon-differential privacy of the numbers of records by group, and of centres that are made from the "
        "records (discrete Laplace noise), for replacing a whole record, or all records of a person."
    )
    whole_records: ClassVar[bool] = True

    @classmethod
    def of(cls, spec: wire.StudyCreate, release: wire.GroupsRelease) -> "Groups":
        """The mechanism of a study, calibrated to all rows of a person."""
        return cls(spec.features, release.cells, numbers_epsilon(release), release.min_count, spec.protected_rows)

    @property
    def number(self) -> int:
        if isinstance(self.cells, wire.PrivateCells):
            return self.cells.number
        return prod(self.cells.parts) if isinstance(self.cells, wire.GridCells) else len(self.cells.centres)

    @property
    def private(self) -> PrivateCentres | None:
        """What draws the centres from the records, where they are not public."""
        if not isinstance(self.cells, wire.PrivateCells):
            return None
        return PrivateCentres(self.features, self.cells.number, wire.amount(self.cells.epsilon), self.rows)

    def noise(self, d: int) -> wire.NoiseLaw:
        """The law of Z, which holds the centres that divide the records: no noise."""
        return wire.NoiseLaw(family="none")

    def draw(self, rows: ScaledRows, out: Matrix, on_progress: OnProgress = ignore_progress) -> Assessment:
        """Raise ReleaseImpossible: Z has no row for each record."""
        raise ReleaseImpossible("a release of groups has no candidate for each record")

    def candidates(self, records: int) -> int:
        return self.number

    def release(self, rows: ScaledRows, new_file: Callable[[int, int], Matrix], on_progress: OnProgress) -> Drawn:
        """Divide the records, and write the centres of the groups that are candidates."""
        divided = self.divide(rows, on_progress)
        new_file(*divided.centres.shape)[:] = divided.centres
        return Drawn(Assessment(), divided.candidates, divided.counts)

    def holds(self, drawn: NDArray[np.int64], records: list[int]) -> bool:
        """Whether one of these records is in a group, or in a part that is none."""
        return bool(np.any(drawn[records] != WITHHELD))

    def parts_of(self, x: Matrix, centres: Matrix | None = None) -> NDArray[np.int64]:
        """The part that each row (m, d), in scaled units within the bounds, belongs to: by the row alone.

        ``centres`` (number, d): those that were drawn, where they are private.
        """
        if isinstance(self.cells, wire.GridCells):
            widths = np.array([(f.upper - f.lower) / f.unit for f in self.features])
            shape = np.array(self.cells.parts)
            cell = np.clip(np.floor((x / widths + 0.5) * shape).astype(np.int64), 0, shape - 1)
            numbers: NDArray[np.int64] = np.ravel_multi_index(tuple(cell.T), tuple(self.cells.parts)).astype(np.int64)
            return numbers
        return nearest(x, self.centres() if centres is None else centres)

    def centres(self) -> Matrix:
        """The centre of each part of a public partition (number, d), in scaled units."""
        middle, unit = self._middle_and_unit()
        centres: Matrix = (self.raw_centres() - middle) / unit
        return centres

    def in_raw_units(self, centres: Matrix) -> Matrix:
        """Private centres (m, d) in raw units."""
        middle, unit = self._middle_and_unit()
        return centres * unit + middle

    def _middle_and_unit(self) -> tuple[Matrix, Matrix]:
        return np.array([(f.lower + f.upper) / 2 for f in self.features]), np.array([f.unit for f in self.features])

    def raw_centres(self) -> Matrix:
        if isinstance(self.cells, wire.CentreCells):
            return np.array(self.cells.centres, dtype=float)
        lower, upper = self.bounds()
        middle: Matrix = (lower + upper) / 2
        return middle

    def bounds(self) -> tuple[Matrix, Matrix]:
        """Lower and upper bounds of each part of a grid (number, d), in raw units."""
        assert isinstance(self.cells, wire.GridCells)
        at = np.stack(np.unravel_index(np.arange(self.number), tuple(self.cells.parts)), axis=1)
        low = np.array([f.lower for f in self.features])
        step = (np.array([f.upper for f in self.features]) - low) / np.array(self.cells.parts)
        return low + at * step, low + (at + 1) * step

    def noisy(self, counts: list[int]) -> list[int]:
        """Numbers of records with noise. Point of no return: charge the release before."""
        return add_integer_laplace(counts, COUNT_MOVE * self.rows, self.epsilon)

    def chosen(self, noisy: list[int]) -> NDArray[np.int64]:
        """The parts that are candidates: those with ``min_count`` records or more; where none has, the largest one.

        So a release never fails: to draw another one after a failure would be a release that nobody accounts for.
        """
        counts = np.array(noisy)
        candidates = np.flatnonzero(counts >= self.min_count)
        return candidates if len(candidates) else np.array([int(counts.argmax())])

    def divide(self, rows: ScaledRows, on_progress: OnProgress = ignore_progress) -> Divided:
        """Divide the records of ``rows``, and draw how many are in each part."""
        private, cells = self.private, np.empty(rows.n, dtype=np.int64)
        before = 0 if private is None else private.rounds  # as many passes over the records, of the same length
        passes = before + 1
        centres = self.centres() if private is None else private.seek(rows, lambda x: on_progress(x * before / passes))
        for index, block in rows.blocks(_BLOCK):
            cells[index] = self.parts_of(block, centres)
            on_progress((before + index.stop / rows.n) / passes)
        noisy = self.noisy(np.bincount(cells, minlength=self.number).tolist())
        offered = self.chosen(noisy)
        candidate = np.full(self.number, NO_CANDIDATE, dtype=np.int64)
        candidate[offered] = np.arange(len(offered))
        candidates = np.full(len(rows.values), WITHHELD, dtype=np.int64)
        candidates[rows.order] = candidate[cells]
        return Divided(offered, [noisy[at] for at in offered], centres[offered], candidates)


def faults(spec: wire.StudyCreate) -> list[dict[str, object]]:
    """Errors of a draft of groups: what the kind does not take."""
    if not isinstance(release := spec.release, wire.GroupsRelease):
        return []
    d, wrong = len(spec.features), []
    if d > FEATURES_MAX:
        wrong.append(("features", f"groups take {FEATURES_MAX} features at most"))
    wrong += [
        (f"features.{i}.hidden_change", "groups hide every change of a record: leave it out")
        for i, feature in enumerate(spec.features)
        if feature.hidden_change is not None
    ]
    wrong += [
        (f"features.{i}.scale", "too large against the range of this feature for double precision")
        for i, feature in enumerate(spec.features)
        if (feature.upper - feature.lower) / feature.unit < RANGE_MIN
    ]
    wrong += _cell_faults(release.cells, spec.features)
    if numbers_epsilon(release) <= 0:
        what = "the numbers of records need a part of the release's epsilon: take less for the centres"
        wrong.append(("release.cells.epsilon", what))
    if (private := Groups.of(spec, release).private) is not None and private.epsilon < private.least:
        wrong.append(("release.cells.epsilon", f"noise does not fit 64 bits: take {exact(private.least)} or more"))
    if spec.measurement.source != "column":
        wrong.append(
            (
                "measurement.source",
                "groups need an outcome that is a column: a group's answer is a mean over its records",
            )
        )
    elif spec.measurement.noise_variance:
        wrong.append(("measurement.noise_variance", "groups add no measurement noise: leave it out"))
    if spec.privacy_unit != "row":
        wrong.append(("privacy_unit", "groups protect each record: take row"))
    if not isinstance(spec.answers, wire.LaplaceAnswers | wire.AutoAnswers):
        wrong.append(("answers.mechanism", "groups answer with Laplace noise: take laplace"))
    elif wire.amount(spec.answers.epsilon) < (least := least_epsilon(2 * LEVELS * spec.protected_rows)):
        wrong.append(("answers.epsilon", f"noise does not fit 64 bits: take {exact(least)} or more"))
    elif spec.answers.plays == "mean":
        wrong.append(("answers.plays", "each measurement of a group is a private mean of its own: take each"))
    return [{"field": field, "message": message} for field, message in wrong]


def _cell_faults(cells: Cells, features: list[wire.Feature]) -> list[tuple[str, str]]:
    d = len(features)
    if isinstance(cells, wire.PrivateCells):
        return []
    if isinstance(cells, wire.GridCells):
        if len(cells.parts) != d:
            return [("release.cells.parts", f"a number of parts for each of the {d} features")]
        if (number := prod(cells.parts)) > wire.CELLS_MAX:
            message = (
                f"this grid has {number:,} groups, and {wire.CELLS_MAX:,} are allowed: take fewer parts, or centres"
            )
            return [("release.cells.parts", message)]
        return []
    inside = [
        len(centre) == d and all(f.lower <= at <= f.upper for f, at in zip(features, centre, strict=True))
        for centre in cells.centres
    ]
    if not all(inside):
        return [(f"release.cells.centres.{inside.index(False)}", f"a centre has {d} values, each within its bounds")]
    if len({tuple(centre) for centre in cells.centres}) < len(cells.centres):
        return [("release.cells.centres", "two centres are the same")]
    return []
