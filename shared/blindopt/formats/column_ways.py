"""The ways in which a column of a file may be read, in words: for the console, the terminal and Python."""

from dataclasses import dataclass, field
from typing import Any

from blindopt.wire import ColumnChoice, DateFormat, Separator, SurveyedColumn

DATES: dict[DateFormat, str] = {
    "iso": "2024-12-31",
    "d.m.y": "31.12.2024",
    "d/m/y": "31/12/2024",
    "m/d/y": "12/31/2024",
}
SEPARATORS: dict[Separator, str] = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
LISTED = ("one_hot", "codes")
"""Keys of the ways that need a public list of categories."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to read a column: its key, in words, and the fields of its choice."""

    key: str
    words: str
    fields: dict[str, Any] = field(default_factory=dict)


DROP, NUMBER = Way("drop", "Leave the column out"), Way("number", "Numbers")
LABEL = Way("label", "Keep it as a label, for measurers and the record page only", {"kind": "label"})
_LISTED = (
    Way("one_hot", "Turn it into yes/no columns, one for each category", {"kind": "one_hot"}),
    Way("codes", "Turn it into codes 1, 2, 3 … in the order of the list", {"kind": "codes"}),
)


def ways(column: SurveyedColumn) -> list[Way]:
    """The ways to read a column that may be right."""
    if column.holds == "number":
        return [NUMBER, DROP, *(_LISTED if column.values else [])]
    if column.holds == "date":
        words = "Days since a public date, from dates such as"
        formats = {name: f"{words} {DATES[name]}" for name in column.date_formats}
        return [*(Way(key, text, {"kind": "date", "date_format": key}) for key, text in formats.items()), DROP]
    if column.holds == "text" and column.odd:
        cells = "this cell counts" if column.wrong == 1 else f"these {column.wrong:,} cells count"
        return [Way("gaps", f"Numbers, {cells} as missing", {"missing_values": column.odd}), *_LISTED, LABEL, DROP]
    return [DROP, LABEL, *_LISTED, NUMBER] if column.holds == "text" else [DROP]


def key_of(choice: ColumnChoice | None) -> str:
    """The key of the way that a choice takes; None is a column that is left out.

    >>> key_of(None), key_of(ColumnChoice(column="x", missing="leave_out", missing_values=["<5"]))
    ('drop', 'gaps')
    """
    if choice is None:
        return DROP.key
    return choice.date_format or "iso" if choice.kind == "date" else "gaps" if choice.missing_values else choice.kind


def categories(column: SurveyedColumn) -> list[str]:
    """The list that is proposed for a column: none where no two cells are equal, since each would name a record."""
    return [] if column.distinct else column.values or []


def is_problem(column: SurveyedColumn) -> bool:
    """Whether a column cannot be read as numbers at once, just as they are."""
    return bool(column.holds != "number" or column.missing or column.unnamed or column.rounded)


def contents(column: SurveyedColumn, rows: int) -> str:
    """What a column of a file with so many ``rows`` holds, in words."""
    facts = [_holds(column, rows)]
    if column.missing and column.holds != "empty":
        facts.append(f"missing in {column.missing:,} {'record' if column.missing == 1 else 'records'}")
    if column.unnamed:
        facts.append("no name in the file, as an index has")
    if column.constant:
        facts.append("the same in every record")
    if column.rounded:
        numbers = "1 number is" if column.rounded == 1 else f"{column.rounded:,} numbers are"
        facts.append(f"{numbers} stored as another: whole numbers beyond 2^53, or too close to 0")
    return "; ".join(facts)


def _holds(column: SurveyedColumn, rows: int) -> str:
    if column.holds == "number":
        return f"Numbers, {len(column.values)} different" if column.values else "Numbers"
    filled = rows - column.missing
    if column.holds == "text" and 2 * column.wrong < filled:
        return f"Numbers, but for {column.wrong:,} of {filled:,} filled cells: {', '.join(column.odd)}".removesuffix(
            ": "
        )
    if column.distinct:
        return "Text, all different"
    if column.holds == "text" and column.values is not None:
        return f"Text: {len(column.values)} different"
    return {
        "text": "Text: more than 100 different, long, of several lines, or too much in all columns",
        "date": "Dates",
        "empty": "Every cell is empty",
    }.get(column.holds, "A type that cannot be read")
