"""What a person reads of a record: its row in the file, and its columns in the words of the file."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

from blindopt import wire

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
