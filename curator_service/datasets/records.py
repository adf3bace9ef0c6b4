"""The records of a dataset as studies take them: those that are not withheld, scaled, and the measurement column.

Also what a person reads of a record: its row in the file, and its columns in the words of the file.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Vector
from blindopt.errors import Erased, Invalid, NotFound
from curator_service import store
from curator_service.budget.ledger_lines import account_name
from curator_service.datasets import table as withheld
from curator_service.datasets.scaling import ScaledRows
from curator_service.vault import Vault
from service_kit.store.database import Connection

_SAMPLE = "a sample is a dataset that is declared public, with the features of the study as columns"
SAMPLE_ROWS_MIN = 10


def withheld_records(db: Connection, vault: Vault, dataset_id: str) -> list[int]:
    """The indices, from 0, of the stored records of a dataset that are withheld: by their number, or their person.

    Raises Erased.
    """
    dataset = store.find(db, store.datasets, dataset_id)
    if dataset.erased_at is not None:
        raise Erased("the dataset was erased by its owner")
    units = withheld.units(db, account_name(db, dataset))
    if not units:
        return []
    return [int(record) for record in np.flatnonzero(of_units(vault, dataset, units))]


def count_withheld(db: Connection, dataset: Any) -> int:
    """How many records and persons of a dataset's file are withheld."""
    return len(withheld.units(db, account_name(db, dataset)))


def of_units(vault: Vault, dataset: Any, units: Iterable[str]) -> NDArray[np.bool_]:
    """Which stored records of a dataset these units name: by their number, or their person (n,)."""
    numbers, persons = withheld.numbers_and_persons(units)
    records: NDArray[np.bool_] = np.isin(file_numbers(vault, dataset), list(numbers))
    if persons and dataset.person_column is not None:
        records |= np.array([digest.tobytes() in persons for digest in vault.persons(dataset.id)])
    return records


def file_numbers(vault: Vault, dataset: Any) -> NDArray[np.int64]:
    """The number in the file, from 1, of each stored record of a dataset (n,)."""
    return vault.numbers(dataset.id) if store.is_renumbered(dataset) else np.arange(1, dataset.rows + 1)


def kept_records(db: Connection, vault: Vault, dataset_id: str) -> NDArray[np.int64]:
    """The indices of the stored records that are not withheld, in the order of the file."""
    rows = int(store.find(db, store.datasets, dataset_id).rows)
    return np.delete(np.arange(rows), withheld_records(db, vault, dataset_id))


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


def sample_rows(db: Connection, vault: Vault, spec: wire.StudyCreate, *, is_drawn: bool = False) -> ScaledRows | None:
    """The rows of the public sample that a study's release names, scaled as its records; None without one.

    Raises Invalid for a sample that is not public, lacks a feature, or has too few rows. Returns None for it where the
    candidates are stored already: they need no sample any more.
    """
    if (name := getattr(spec.release, "sample_dataset_id", None)) is None:
        return None
    try:
        columns = public_sample(db, name, spec.features, "release.sample_dataset_id")
        order = kept_records(db, vault, name)
        if len(order) < SAMPLE_ROWS_MIN:
            raise Invalid.at("release.sample_dataset_id", f"has fewer than {SAMPLE_ROWS_MIN} records: {_SAMPLE}")
    except Invalid:
        if is_drawn or spec.release_of is not None:
            return None
        raise
    return ScaledRows(vault.dataset(name), columns, spec.features, order)


def public_sample(db: Connection, dataset_id: str, features: Sequence[wire.Feature], field: str) -> list[int]:
    """The indices of the ``features`` in a dataset that is declared public. Raises Invalid, which names ``field``."""
    try:
        sample = store.find(db, store.datasets, dataset_id)
    except NotFound:
        raise Invalid.at(field, f"is no dataset of this curator: {_SAMPLE}") from None
    if not sample.public or sample.erased_at is not None:
        raise Invalid.at(field, f"is {'erased' if sample.public else 'not declared public'}: {_SAMPLE}")
    if not all(row.public for row in store.registrations(db, sample.sha256)):
        raise Invalid.at(field, f"is the same file as a dataset that is not declared public: {_SAMPLE}")
    names = store.column_names(sample)
    if missing := {feature.column for feature in features} - set(names):
        raise Invalid.at(field, f"has no column {min(missing)}: {_SAMPLE}")
    return [names.index(feature.column) for feature in features]


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


_DAY_ZERO = date(1970, 1, 1)
_DATE: Mapping[wire.DateFormat, str] = {
    "iso": "%Y-%m-%d",
    "d.m.y": "%d.%m.%Y",
    "d/m/y": "%d/%m/%Y",
    "m/d/y": "%m/%d/%Y",
}


def reading_of(dataset: Any) -> wire.FileReading | None:
    """How the file of a stored dataset was read, where that is recorded."""
    return None if dataset.reading is None else wire.FileReading.model_validate_json(dataset.reading)


def person_ids_of(row: Any) -> wire.PersonIds:
    """How ids of persons of a stored dataset are compared; earlier versions took them as they were written."""
    reading = reading_of(row)
    return (reading.person_ids if reading is not None else None) or "as_written"


def file_row(reading: wire.FileReading | None, record: int) -> int | None:
    """The row of a record as a spreadsheet counts it, by its number in the file, from 1; None if nobody knows.

    >>> csv = wire.FileReading(separator=",", decimal=".", columns=[])
    >>> file_row(csv, 127), file_row(csv.model_copy(update={"separator": None}), 127)
    (128, 127)
    """
    if reading is None:
        return None
    return record if reading.separator is None else record + 1


def in_words(reading: wire.FileReading | None, values: Mapping[str, float]) -> list[wire.RecordText]:
    """Stored ``values`` of a record, by column, as texts: those of one category column are one.

    >>> sex = wire.ColumnChoice(column="sex", kind="one_hot", values=["f", "m"])
    >>> reading = wire.FileReading(separator=",", decimal=".", columns=[sex, wire.ColumnChoice(column="age")])
    >>> [(each.column, each.text) for each in in_words(reading, {"sex=f": 0.0, "sex=m": 1.0, "age": 34.0})]
    [('sex', 'm'), ('age', '34')]
    """
    choices = {name: choice for choice in (reading.columns if reading else []) for name in choice.stored}
    texts: dict[str, str] = {}
    for name, value in values.items():
        choice = choices.get(name, wire.ColumnChoice(column=name))
        if choice.kind == "one_hot":
            texts[choice.column] = _category(choice, values)
        else:
            texts[choice.column] = _text(choice, value)
    return [wire.RecordText(column=column, text=text) for column, text in texts.items()]


def _category(choice: wire.ColumnChoice, values: Mapping[str, float]) -> str:
    """The category of a record; where the one that it has is not among the ``values``, those that it has not."""
    named = dict(zip(choice.stored, choice.values or [], strict=True))
    seen = {named[name].strip(): values[name] for name in named if name in values}
    return next((name for name, value in seen.items() if value), f"not {' or '.join(seen)}")


def _text(choice: wire.ColumnChoice, value: float) -> str:
    categories: Sequence[str] = choice.values or []
    if choice.kind == "codes" and value.is_integer() and 1 <= value <= len(categories):
        return categories[int(value) - 1].strip()
    if choice.kind == "date":
        try:
            moment = datetime.combine(choice.since or _DAY_ZERO, time()) + timedelta(days=value)
        except OverflowError:
            return _number(value)
        hours = " %H:%M" if moment.time() != time() else ""
        return moment.strftime(_DATE[choice.date_format or "iso"] + hours)
    return _number(value)


def _number(value: float) -> str:
    return repr(value).removesuffix(".0")
