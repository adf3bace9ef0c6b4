"""Open measurements as a spreadsheet, and the reading of one that was filled in."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Literal, get_args

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.formats.numbers import WHICH_SIGN, DecimalSigns, number_of
from blindopt.formats.safe_csv import plain
from blindopt.formats.tables import SmallTable
from curator_service.queries.measurement_entries import NewEntry

COLUMNS = ("measurement_id", "study", "record", "file_row", "question", "unit", "value", "decline_reason", "note")
NEEDED = ("measurement_id", "value")
LABEL, SHOWN = "label: ", "shown: "
"""Before the name of a label or a shown column, which may be called anything."""
ESTIMATE = "vendor's estimate that it is good"
FAULTS_MAX = 1_000
CELL_MAX = 2_000
Commas = Literal["ask", "decimal", "thousands"]
_SIGNS: dict[Commas, wire.DecimalSign | None] = {"ask": None, "decimal": ",", "thousands": "."}
_NO_NUMBER = "must be a finite number, with the decimal sign of the other numbers"
_FIRST_VALUES = 5
_ID = re.compile(r"msr_[0-9a-f]{16}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_REASONS = get_args(wire.DeclineReason)
_FORM = "the first line must name the columns, measurement_id and value among them, as in the file that was exported"


@dataclass(slots=True)
class Sheet:
    """The entries of a file, each with its line; the number of lines without one; the faults."""

    entries: list[tuple[int, NewEntry]] = field(default_factory=list)
    blank: int = 0
    faults: list[dict[str, object]] = field(default_factory=list)
    decimal: wire.DecimalSign = "."
    first: list[wire.ReadValue] = field(default_factory=list)
    """The first five values, as they are written and as they were read."""

    def blame(self, line: int, column: str | None, message: str) -> None:
        """Add a fault. Its message never quotes the file."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append({"line": line, **({"column": column} if column else {}), "message": message})


def export(items: Sequence[wire.InboxItem]) -> bytes:
    """CSV in UTF-8 with the byte order mark that spreadsheets need. Text that would be a formula is quoted."""
    rows = [
        {LABEL + plain(cell.column): plain(cell.text) for cell in item.labels}
        | {SHOWN + plain(cell.column): plain(cell.text) for cell in item.in_words}
        | ({} if item.probability is None else {ESTIMATE: f"{item.probability:.3g}"})
        for item in items
    ]
    of_records = sorted(dict.fromkeys(name for row in rows for name in row), key=lambda name: name.startswith(SHOWN))
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow([COLUMNS[0], *of_records, *COLUMNS[1:]])
    for item, row in zip(items, rows, strict=True):
        places = [plain(item.study), item.record, "" if item.file_row is None else item.file_row]
        ends = [plain(item.question or ""), plain(item.unit or ""), "", "", ""]
        writer.writerow([item.id, *(row.get(name, "") for name in of_records), *places, *ends])
    return file.getvalue().encode("utf-8-sig")


def read(body: bytes, commas: Commas = "ask") -> Sheet:
    """Read a filled-in file, separated by commas, semicolons, tabs or bars. Raises Invalid for any other file.

    ``commas``: whether the decimal sign of the file is a comma, or commas group thousands; "ask": its sure cells say
    it, and if there are none, Invalid asks.
    """
    table = SmallTable(body)
    header = [cell.strip() for cell in next(iter(table), (1, []))[1]]
    if any(header.count(name) != 1 for name in NEEDED) or any(header.count(name) > 1 for name in COLUMNS):
        raise Invalid.of([{"line": 1, "message": _FORM}])
    sheet, seen = Sheet(), set[str]()
    position = header.index("value")
    signs = DecimalSigns(cells[position] for _, cells in table if len(cells) == len(header))
    if (sign := _SIGNS[commas] or signs.of_file(table.separator)) is None:
        readings = [reading.model_dump() for reading in signs.unsure]
        raise Invalid.of([{"column": "value", "message": WHICH_SIGN, "readings": readings}])
    sheet.decimal = sign
    for line, cells in islice(table, 1, None):
        if any(cells):  # else an empty line
            _line(sheet, line, header, cells, seen)
        if len(sheet.entries) > wire.MEASUREMENTS_MAX:
            raise Invalid(f"a file may hold {wire.MEASUREMENTS_MAX} measurements at most: split it")
    return sheet


def _line(sheet: Sheet, line: int, header: list[str], cells: list[str], seen: set[str]) -> None:
    if len(cells) != len(header):
        sheet.blame(line, None, f"has {len(cells)} cells, the first line {len(header)}")
        return
    by_column = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    measurement_id, number = by_column["measurement_id"], by_column["value"]
    value = number_of(number, sheet.decimal)
    reason, note = by_column.get("decline_reason", ""), by_column.get("note", "")
    if not number and not reason:
        sheet.blank += 1
        if note:
            sheet.blame(line, "note", "is about nothing: give a value or a reason too")
        return
    if not _ID.fullmatch(measurement_id):
        sheet.blame(line, "measurement_id", "is no id of a measurement: msr_ and 16 digits")
    elif measurement_id in seen:
        sheet.blame(line, "measurement_id", "is there twice")
    elif number and reason:
        sheet.blame(line, "decline_reason", "give a value or a reason, not both")
    elif number and (value is None or not isfinite(value)):
        sheet.blame(line, "value", _NO_NUMBER)
    elif reason and reason not in _REASONS:
        sheet.blame(line, "decline_reason", f"must be one of {', '.join(_REASONS)}")
    elif len(note) > CELL_MAX or _CONTROL.search(note):
        sheet.blame(line, "note", f"must be text of {CELL_MAX} characters at most")
    else:
        sheet.entries.append((line, NewEntry(measurement_id, value, _reason(reason), note or None)))
        if value is not None and len(sheet.first) < _FIRST_VALUES:
            sheet.first.append(wire.ReadValue(line=line, cell=number, value=value))
    seen.add(measurement_id)


def _reason(cell: str) -> wire.DeclineReason | None:
    return next((reason for reason in _REASONS if reason == cell), None)
