"""Names of a file's columns, and which of them are read, and how."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blindopt.errors import Fault, Invalid
from blindopt.faults import nearest
from blindopt.formats.numbers import number_of
from blindopt.wire import LABELS_MAX, ColumnChoice, ReadingChoice
from curator_service.datasets.sources import Limits, refuse

_NAME_MAX = 200
_OF_INDEX = re.compile(r"Unnamed: [0-9]+|__index_level_[0-9]+__")
Choices = Sequence[str | ColumnChoice]
DETECTED = ReadingChoice()
"""Nothing is declared: all columns are read as numbers."""


def names_of(header: Sequence[str] | None, limits: Limits) -> list[str]:
    """The names of all columns; one without a name is called `column_1` by its position. Raises DatasetInvalid."""
    if not header:
        raise refuse("the file is empty: it needs a header line and one line per row")
    if len(header) > limits.columns:
        raise refuse(f"{len(header)} columns: at most {limits.columns} are allowed", line=1)
    names = [name.strip() or f"column_{number}" for number, name in enumerate(header, start=1)]
    alike = [unicodedata.normalize("NFC", name).casefold() for name in names]
    for number, name in enumerate(names, start=1):
        if len(name) > _NAME_MAX or not name.isprintable():
            raise refuse(f"column {number} has no usable name (1 to {_NAME_MAX} printable characters)", line=1)
        if names.index(name) != number - 1:
            raise refuse(f"columns {names.index(name) + 1} and {number} have the same name", line=1)
        if (earlier := alike.index(alike[number - 1])) != number - 1:
            differ = "differ only in case, or in how a letter is composed: rename one"
            raise refuse(f"the names of columns {earlier + 1} and {number} {differ}", line=1)
        if number_of(name) is not None:
            raise refuse(f"the name of column {number} is a number: the first line must be a header", line=1)
    return names


def unnamed(names: Sequence[str], header: Sequence[str]) -> list[str]:
    """The columns without a name of somebody's: an index has none, or what a data frame calls it."""
    return [name for name, cell in zip(names, header, strict=True) if not cell.strip() or _OF_INDEX.fullmatch(cell)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns that are read, how, and which are not."""

    choices: list[ColumnChoice]
    stored: list[str]
    """Names of the columns that are stored."""
    dropped: list[str]


def choose(names: Sequence[str], reading: ReadingChoice, limits: Limits) -> Chosen:
    """Which columns of a file are read, and how: all as numbers by default. Raises DatasetInvalid."""
    person = None if reading.person is None else reading.person.strip()
    if person is not None and person not in names:
        raise refuse(f"person: {_unknown(person, names)}")
    requested: Choices = [name for name in names if name != person] if reading.columns is None else reading.columns
    choices = [ColumnChoice(column=choice) if isinstance(choice, str) else choice for choice in requested]
    read = [choice.column for choice in choices]
    if not read or len(set(read)) != len(read):
        raise refuse("columns must name at least one column, and none twice")
    for number, name in enumerate(read):
        if name not in names:
            raise refuse(f"columns: {_unknown(name, names)}", field=f"columns.{number}")
        if name == person:
            raise refuse(f"columns.{number} is the person column, which is never stored: leave it out of columns")
    return Chosen(choices, _stored(choices, limits), [name for name in names if name not in (*read, person)])


def _stored(choices: Sequence[ColumnChoice], limits: Limits) -> list[str]:
    labels = [choice.column for choice in choices if choice.kind == "label"]
    if len(labels) > LABELS_MAX:
        raise refuse(f"at most {LABELS_MAX} columns can be labels")
    stored = [name for choice in choices for name in choice.stored]
    if not stored:
        raise refuse("columns must name at least one column that is no label: a study needs numbers")
    if len(stored) > limits.columns:
        raise refuse(f"the choices make {len(stored)} columns: at most {limits.columns} are allowed")
    if len(set(stored)) < len(stored) or any(len(name) > _NAME_MAX for name in stored):
        raise refuse(f"the choices make two columns with the same name, or one of more than {_NAME_MAX} characters")
    if both := [name for name in labels if name in stored]:
        raise refuse(f'the label "{both[0]}" has the name of a column that the choices make: rename one')
    return stored


def _unknown(name: str, names: Sequence[str]) -> str:
    """The fault of a name that no column has. It is repeated only beside one that it resembles: it may be a secret."""
    near = difflib.get_close_matches(name, names, n=1)
    return f'no column "{name}"; did you mean "{near[0]}"?' if near else "no column of the file has this name"


def no_column(name: str, columns: Iterable[str]) -> str:
    return f"names no column of the dataset{nearest(name, columns)}"


def check_columns(requested: Sequence[str], names: Sequence[str]) -> None:
    """Raise Invalid for the columns of a request that the dataset does not have."""
    faults: list[Fault] = [
        {"field": f"columns.{i}.column", "message": no_column(column, names)}
        for i, column in enumerate(requested)
        if column not in names
    ]
    if faults:
        raise Invalid.of(faults)
