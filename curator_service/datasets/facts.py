"""What the values of a dataset show its owner alone: histograms, values far from the rest, copies, equal labels.

They are computed from the stored values when they are first needed, and kept in memory until the data are erased.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.formats import npy_files
from curator_service.datasets.labels import Labels
from curator_service.datasets.statistics import Statistics
from curator_service.privacy import cautions
from curator_service.privacy.cautions import Clipped, ColumnFacts
from curator_service.privacy.guarantees import CHOOSING
from curator_service.vault import Vault
from service_kit.store.database import Connection

BINS = 20
_BLOCK = 16_384
Ends = tuple[float, float]


@dataclass(slots=True, repr=False)
class _Column:
    """The counts of a column between two ends, and what lies next to its middle."""

    low: float
    high: float
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    under: float = -np.inf
    over: float = np.inf
    lower_half: int = 0

    def add(self, values: Vector) -> None:
        middle = self.low / 2 + self.high / 2
        is_lower = values <= middle
        self.lower_half += int(is_lower.sum())
        self.under = max(self.under, float(values[is_lower].max(initial=-np.inf)))
        self.over = min(self.over, float(values[~is_lower].min(initial=np.inf)))
        with np.errstate(all="ignore"):
            bins = np.nan_to_num(BINS * (values / 2 - self.low / 2) / (self.high / 2 - self.low / 2), nan=0.0)
        self.counts += np.bincount(np.clip(bins, 0, BINS - 1).astype(np.int64), minlength=BINS)

    def far(self, rows: int) -> int:
        """How many lie beyond an empty stretch wider than half the range, which its middle is in.

        None do where all values are one of two: these are no outliers.
        """
        is_empty = self.over / 2 - self.under / 2 > (self.high / 2 - self.low / 2) / 2
        has_two = self.under == self.low and self.over == self.high
        return min(self.lower_half, rows - self.lower_half) if is_empty and not has_two else 0


def picture(vault: Vault, labels: Labels, db: Connection, dataset: wire.DatasetView) -> wire.DatasetPicture:
    if (earlier := vault.pictures.get(dataset.id)) is not None:
        return earlier
    values, statistics = vault.dataset(dataset.id), Statistics()
    columns = [_Column(column.minimum, column.maximum) for column in dataset.columns]
    for block in statistics.collect(_blocks(values, dataset.rows)):
        for seen, of_column in zip(columns, block.T, strict=True):
            seen.add(of_column)
    encoded = made_columns(dataset)
    views = [
        wire.ColumnPicture(
            column=column.name,
            low=column.minimum,
            high=column.maximum,
            counts=seen.counts.tolist(),
            far=0 if column.name in encoded else seen.far(dataset.rows),
        )
        for column, seen in zip(dataset.columns, columns, strict=True)
    ]
    repeated = _repeated(labels, db, dataset)
    made_once = wire.DatasetPicture(
        rows=dataset.rows, columns=views, copies=statistics.copies, labels_repeated=repeated, caution=CHOOSING
    )
    vault.pictures[dataset.id] = made_once
    return made_once


def _blocks(values: Matrix, rows: int) -> Iterator[Matrix]:
    for start in range(0, rows, _BLOCK):
        yield np.asarray(values[start : start + _BLOCK])
        npy_files.forget_pages(values)


def _repeated(labels: Labels, db: Connection, dataset: wire.DatasetView) -> int:
    """How many records have a filled label that another one has too, column by column."""
    names = dataset.reading.labels if dataset.reading else []
    if not names:
        return 0
    seen = Counter((i, hash(label)) for texts in labels.all(db, dataset.id) for i, label in enumerate(texts) if label)
    return sum(count for count in seen.values() if count > 1)


def made_columns(dataset: wire.DatasetView) -> set[str]:
    """The columns that were made from a public list of categories."""
    choices = dataset.reading.columns if dataset.reading else []
    return {name for choice in choices if choice.kind in ("one_hot", "codes") for name in choice.stored}


def clipped(vault: Vault, dataset: wire.DatasetView, ends: Sequence[tuple[str, Ends]]) -> list[Clipped]:
    if not ends:
        return []
    names = [column.name for column in dataset.columns]
    positions = [names.index(name) for name, _ in ends]
    lower, upper = np.array([pair for _, pair in ends]).T
    below, above = np.zeros(len(ends), dtype=np.int64), np.zeros(len(ends), dtype=np.int64)
    for block in _blocks(vault.dataset(dataset.id), dataset.rows):
        below += (block[:, positions] < lower).sum(axis=0)
        above += (block[:, positions] > upper).sum(axis=0)
    return [Clipped(int(under), int(over)) for under, over in zip(below, above, strict=True)]


def cautions_from_records(
    vault: Vault, labels: Labels, db: Connection, spec: wire.StudyCreate, dataset: wire.DatasetView
) -> list[wire.Caution]:
    """Cautions about a study that follow from its dataset, for its owner alone; about privacy if it is private."""
    seen, encoded = picture(vault, labels, db, dataset), made_columns(dataset)
    facts = {
        column.column: ColumnFacts(dataset.rows, column.low, column.high, column.far, column.column in encoded)
        for column in seen.columns
    }
    ends: list[tuple[str, Ends]] = [(feature.column, (feature.lower, feature.upper)) for feature in spec.features]
    of_answers = cautions.answer_range(spec)
    if isinstance(spec.measurement, wire.ColumnMeasurement) and of_answers is not None:
        ends.append((spec.measurement.column, of_answers))
    counts = dict(zip([name for name, _ in ends], clipped(vault, dataset, ends), strict=True))
    has_persons = dataset.person_column is not None
    useful = [
        *cautions.of_values(spec, facts, counts),
        *cautions.of_copies(seen.copies, dataset.rows, has_persons=has_persons),
        *cautions.of_labels(seen.labels_repeated),
    ]
    if dataset.public:
        return [*map(cautions.with_fix, useful)]
    read = dataset.reading.columns if dataset.reading is not None else []
    one_hot = {choice.column: choice.stored for choice in read if choice.kind == "one_hot"}
    extremes = {c.name: (c.minimum, c.maximum) for c in dataset.columns if c.name not in encoded}
    of_columns = cautions.of_categories(spec, one_hot) + cautions.of_bounds(spec, extremes)
    return [*map(cautions.with_fix, useful + of_columns)]
