"""A file that waits at the curator: how it was read, what else its columns may be, and how many records remain."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from blindopt import wire
from blindopt.client.drafts import columns_of
from blindopt.display import counted
from blindopt.formats.column_ways import SEPARATORS, contents, is_problem, key_of, ways
from blindopt.wire.base import parsed

Reading: TypeAlias = wire.ReadingChoice | Mapping[str, Any]
OF_CELLS = {"separator", "decimal", "encoding", "missing_values"}
"""Changes of these change what the columns hold."""


def reading_of(reading: Reading) -> wire.ReadingChoice:
    """How a file is to be read. Raises Invalid for what cannot be right."""
    if isinstance(reading, wire.ReadingChoice):
        return reading
    fields = dict(reading)
    if (columns := fields.get("columns")) is not None:
        fields["columns"] = columns_of(columns)
    return parsed(wire.ReadingChoice, fields)


def choices_of(view: wire.PendingUpload) -> list[wire.ColumnChoice]:
    """How each column of a file is read, of those that are."""
    columns: Sequence[str | wire.ColumnChoice] = (view.reading and view.reading.columns) or []
    return [wire.ColumnChoice(column=column) if isinstance(column, str) else column for column in columns]


def remaining(view: wire.PendingUpload) -> str:
    """How many records remain of a file, in words."""
    if view.remaining is None:
        return f"{counted(view.rows, 'record')}; how many remain is not counted yet"
    return f"{view.remaining.rows:,} of {counted(view.rows, 'record')} remain{'s' if view.rows == 1 else ''}"


HEAD = ("Column", "Holds", "Read as", "First cells")


def first_line(view: wire.PendingUpload) -> str:
    """What a file is, in words."""
    signs = ""
    if view.separator is not None:
        sign = "comma" if view.decimal == "," else "point"
        signs = f", separated by {SEPARATORS[view.separator]}, with a decimal {sign}, in {view.encoding}"
    return f"{view.filename}: {counted(view.rows, 'record')}, {counted(len(view.columns), 'column')}{signs}"


def rows_of(view: wire.PendingUpload) -> list[tuple[str, str, str, str]]:
    """What each column holds and how it is read, with those first that need a decision."""
    choices = {choice.column: choice for choice in choices_of(view)}
    rows = []
    for column in sorted(view.columns, key=is_problem, reverse=True):
        key = key_of(choices.get(column.name))
        is_person = view.reading is not None and view.reading.person == column.name
        words = "the person" if is_person else next((way.words for way in ways(column) if way.key == key), key)
        rows.append((column.name, contents(column, view.rows), words, ", ".join(column.first)))
    return rows


def notes(view: wire.PendingUpload) -> list[str]:
    """What else to know of a file: what has to be decided, and what remains.

    What is computed from the records (copies, columns with one value) is for you alone: do not choose by it. You may
    choose by gaps and by how many records remain.
    """
    sentences = []
    if view.samples:
        sentences.append(f"Not UTF-8: check the words that Windows-1252 reads: {', '.join(view.samples)}")
    if view.unsure:
        readings = (f"{each.cell} is {each.point:.15g} or {each.comma:.15g}" for each in view.unsure)
        sentences.append(f"Say which sign is decimal, a point or a comma: {', '.join(readings)}")
    sentences.append(f"{remaining(view)}.")
    if view.remaining is not None and view.remaining.copies:
        are = "is an exact copy" if view.remaining.copies == 1 else "are exact copies"
        sentences.append(f"For you alone: {counted(view.remaining.copies, 'record')} {are} of another.")
    return sentences
