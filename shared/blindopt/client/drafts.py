"""From what an owner or a vendor writes in Python to requests of the wire."""

import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, TypeAdapter

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.wire.base import checked

M = TypeVar("M", bound=BaseModel)
Columns: TypeAlias = Sequence[str | wire.ColumnChoice | Mapping[str, Any]]
Outcome: TypeAlias = str | wire.MeasurementSpec
Privacy: TypeAlias = float | str | Mapping[str, Any] | wire.ReleaseSpec
Tuning: TypeAlias = wire.TuningCreate | Mapping[str, Any]
_COLUMNS: TypeAdapter[list[str | wire.ColumnChoice]] = wire.validator_of(list[wire.ChosenColumn])
_DECIMAL = ("epsilon", "epsilon_per_row", "epsilon_total")
"""Fields that are decimal strings on the wire."""


def study_of(
    body: Mapping[str, Any],
    *,
    features: Mapping[str, Sequence[float]] | Sequence[wire.Feature],
    outcome: Outcome,
    direction: Literal["maximize", "minimize"],
    privacy: Privacy,
    answers: wire.Answers | Mapping[str, Any] | Literal["exact"],
) -> wire.StudyCreate:
    """The draft of a study. Raises Invalid, with the field, for what cannot be right."""
    measured = {"column": outcome, "direction": direction} if isinstance(outcome, str) else outcome
    return parsed(
        wire.StudyCreate,
        {
            **body,
            "features": _features(features),
            "measurement": measured,
            "release": _release(privacy),
            "answers": {"mechanism": "none"} if answers == "exact" else answers,
        },
    )


def _features(features: Mapping[str, Sequence[float]] | Sequence[wire.Feature]) -> Sequence[object]:
    if not isinstance(features, Mapping):
        return features
    for column, values in features.items():
        if len(values) not in (2, 3):
            raise Invalid(f"features: {column} needs (lower, upper) or (lower, upper, hidden change)")
    names = ("lower", "upper", "hidden_change")
    return [{"column": column} | dict(zip(names, values, strict=False)) for column, values in features.items()]


def _release(privacy: Privacy) -> object:
    if privacy == "public":
        return {"mechanism": "identity"}
    return {"epsilon": privacy} if isinstance(privacy, Real | str) else privacy


def columns_of(columns: Columns) -> list[str | wire.ColumnChoice]:
    """Choices of columns. Raises Invalid for one that cannot be right."""
    with checked("columns"):
        return _COLUMNS.validate_json(json.dumps([_plain(column) for column in columns]))


def tuning_of(tuning: Tuning) -> wire.TuningCreate:
    """A request for a private tuning. Raises Invalid for what cannot be right."""
    return tuning if isinstance(tuning, wire.TuningCreate) else parsed(wire.TuningCreate, tuning)


def undecided(survey: Iterable[wire.SurveyedColumn], columns: Sequence[str | wire.ColumnChoice] | None) -> list[str]:
    """Return a note for each column of a file that cannot be stored as it is, with what to choose.

    ``columns`` are the requested ones; None: all.
    """
    names = None if columns is None else {c if isinstance(c, str) else c.column for c in columns}
    notes = []
    for column in survey:
        if names is not None and column.name not in names:
            continue
        name = json.dumps(column.name)
        if column.holds in ("text", "other", "empty"):
            choice = f'{{"column": {name}, "kind": "one_hot", "values": [...]}} with a public list of values'
            notes.append(f"{column.name} holds no numbers: leave it out of columns, or choose {choice}.")
        elif column.holds == "date":
            choice = f'{{"column": {name}, "kind": "date", "date_format": "{column.date_formats[0]}"}}'
            notes.append(f"{column.name} holds dates: choose {choice}.")
        if column.missing and column.holds != "empty":
            choice = f'{{"column": {name}, "missing": "leave_out"}} or "fill" with a public number'
            notes.append(f"{column.name} has {column.missing} missing cells: choose {choice}.")
    return notes


def parsed(model: type[M], body: Mapping[str, Any]) -> M:
    """The request with these fields. Raises Invalid, with the field, for what cannot be right."""
    with checked():
        return model.model_validate_json(json.dumps(_plain(body)))


def _plain(value: object, name: str = "") -> object:
    """The JSON of a value, in which an epsilon is a decimal string."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # an array or a number of numpy, which is not imported for this
        return _plain(value.tolist(), name)
    if isinstance(value, Mapping):
        return {key: _plain(item, key) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if name in _DECIMAL and isinstance(value, int | float):
        return decimal(value)
    return value


def decimal(value: float | str) -> str:
    """A number as a decimal string.

    >>> decimal(0.5), decimal(3), decimal(1e-6), decimal("2.50")
    ('0.5', '3', '0.000001', '2.50')
    """
    return value if isinstance(value, str) else f"{value:.12f}".rstrip("0").rstrip(".")
