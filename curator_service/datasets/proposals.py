"""How the columns of a file are read unless its owner says otherwise."""

from collections.abc import Iterable
from typing import Literal

from blindopt.wire import LABELS_MAX, ColumnChoice, SurveyedColumn


def proposed(columns: Iterable[SurveyedColumn], person: str | None = None) -> list[ColumnChoice]:
    """A choice for each column that can be read without a question; ``person`` is the column of persons.

    Rows with gaps are left out. Text of which no two cells are equal is kept as a label. Other text, types that cannot
    be read, empty columns and an index are not read.
    """
    choices = [choice for column in columns if column.name != person and (choice := _of(column)) is not None]
    labels = [choice for choice in choices if choice.kind == "label"]
    return [choice for choice in choices if choice not in labels[LABELS_MAX:]] if len(labels) < len(choices) else []


def _of(column: SurveyedColumn) -> ColumnChoice | None:
    gaps: Literal["leave_out", "refuse"] = "leave_out" if column.missing or column.odd else "refuse"
    if (column.holds == "number" or column.odd) and not column.unnamed:
        return ColumnChoice(column=column.name, missing=gaps, missing_values=column.odd)
    if column.holds == "date" and len(column.date_formats) == 1:
        return ColumnChoice(column=column.name, kind="date", date_format=column.date_formats[0], missing=gaps)
    if column.distinct:
        return ColumnChoice(column=column.name, kind="label")
    return None
