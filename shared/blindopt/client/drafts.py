"""From what an owner or a vendor writes in Python to requests of the wire."""

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from blindopt import faults, wire
from blindopt.display import counted
from blindopt.errors import Invalid
from blindopt.wire.base import parsed, plain

Columns: TypeAlias = Sequence[str | wire.ColumnChoice | Mapping[str, Any]]
Outcome: TypeAlias = str | wire.MeasurementSpec | Mapping[str, Any]
Privacy: TypeAlias = float | Decimal | str | Mapping[str, Any] | wire.ReleaseSpec
Tuning: TypeAlias = wire.TuningCreate | Mapping[str, Any]


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
    columns = list(features) if isinstance(features, Mapping) else []
    measured = {"column": outcome, "direction": direction} if isinstance(outcome, str) else outcome
    if isinstance(measured, Mapping):
        measured = {"direction": direction, **({"source": "inbox"} if "question" in measured else {}), **measured}
    return parsed(
        wire.StudyCreate,
        {
            **body,
            "features": _features(features),
            "measurement": _fields("outcome", measured, "the name of a column"),
            "release": _fields("privacy", _release(privacy), 'a number, "public"'),
            "answers": _answers(answers),
        },
        {
            **{f"features.{number}": f"features.{column}" for number, column in enumerate(columns)},
            "measurement.direction": "direction",
            "measurement": "outcome",
            "release": "privacy",
        },
    )


def _fields(argument: str, value: object, short: str) -> object:
    """Refuse an argument that is neither fields nor ``short``, which stands for some."""
    if not isinstance(value, Mapping | BaseModel):
        raise Invalid.at(argument, f"must be {short} or a dict")
    return value


def _features(features: Mapping[str, Sequence[float]] | Sequence[wire.Feature]) -> Sequence[object]:
    if not isinstance(features, Mapping):
        return features
    for column, values in features.items():
        if isinstance(values, str) or not hasattr(values, "__len__") or len(values) not in (2, 3):
            argument = faults.dotted(("features", column))
            raise Invalid.at(argument, "must be (lower, upper) or (lower, upper, hidden change)")
    names = ("lower", "upper", "hidden_change")
    return [{"column": column} | dict(zip(names, values, strict=False)) for column, values in features.items()]


def _release(privacy: Privacy) -> object:
    if isinstance(privacy, str) and privacy == "public":
        return {"mechanism": "identity"}
    return {"epsilon": privacy} if isinstance(privacy, Real | Decimal | str) else privacy


def _answers(answers: object) -> object:
    if answers is None:  # the request says what to state
        return None
    is_exact = isinstance(answers, str) and answers == "exact"
    return _fields("answers", {"mechanism": "none"} if is_exact else answers, '"exact"')


def columns_of(columns: Columns) -> list[str | wire.ColumnChoice]:
    """Choices of columns. Raises Invalid for one that cannot be right."""

    def argument(path: str) -> str:
        return f"columns.{path}".removesuffix(".body")

    request = json.dumps(plain(columns, argument))
    choices: list[str | wire.ColumnChoice] = faults.parse(list[wire.ChosenColumn], request, argument)
    return choices


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
        if column.odd:
            gaps = json.dumps(column.odd, ensure_ascii=False)
            choice = f'{{"column": {name}, "missing_values": {gaps}, "missing": "leave_out"}}'
            notes.append(f"{column.name} holds numbers, but for {counted(column.wrong, 'cell')}: choose {choice}.")
            continue
        if column.distinct:
            notes.append(f'{column.name} holds labels: leave it out, or choose {{"column": {name}, "kind": "label"}}.')
        elif column.holds in ("text", "other", "empty"):
            choice = f'{{"column": {name}, "kind": "one_hot", "values": [...]}} with a public list of values'
            notes.append(f"{column.name} holds no numbers: leave it out of columns, or choose {choice}.")
        elif column.holds == "date":
            choice = f'{{"column": {name}, "kind": "date", "date_format": "{column.date_formats[0]}"}}'
            notes.append(f"{column.name} holds dates: choose {choice}.")
        if column.missing and column.holds != "empty":
            choice = f'{{"column": {name}, "missing": "leave_out"}} or "fill" with a public number'
            notes.append(f"{column.name} has {counted(column.missing, 'missing cell')}: choose {choice}.")
    return notes
