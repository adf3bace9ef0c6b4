"""A study's records as mechanisms, measurements and attacks take them: scaled rows, and the measurement column."""

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Vector
from curator_service import store
from curator_service.datasets.scaling import ScaledRows
from curator_service.datasets.withheld_records import kept_records
from curator_service.vault import Vault
from service_kit.store.database import Connection


def scaled_rows(
    db: Connection, vault: Vault, spec: wire.StudyCreate, order: NDArray[np.int64] | None = None
) -> ScaledRows:
    """The features of a study's dataset in ``order``; by default in the order of the file, without withheld records."""
    values = vault.dataset(spec.dataset_id)
    return ScaledRows(
        values=values,
        columns=column_indices(db, spec)[0],
        features=spec.features,
        order=kept_records(db, vault, spec.dataset_id) if order is None else order,
    )


def outcomes(db: Connection, vault: Vault, spec: wire.StudyCreate) -> Vector | None:
    """The measurement column (n,) in the order of the file, memory-mapped; None where y is not measured yet."""
    _, index = column_indices(db, spec)
    return None if index is None else vault.dataset(spec.dataset_id)[:, index]


def column_indices(db: Connection, spec: wire.StudyCreate) -> tuple[list[int], int | None]:
    """Indices in its dataset's file of a study's features, and of its measurement if that is a column."""
    names = _columns(db, spec)
    y = names.index(spec.measurement.column) if isinstance(spec.measurement, wire.ColumnMeasurement) else None
    return [names.index(feature.column) for feature in spec.features], y


def _columns(db: Connection, spec: wire.StudyCreate) -> list[str]:
    return store.column_names(store.find(db, store.datasets, spec.dataset_id))
