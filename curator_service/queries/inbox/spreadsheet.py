"""Open measurements as a spreadsheet, and the reading of one that was filled in."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.formats.numbers import decimal, readings
from blindopt.formats.safe_csv import plain
from blindopt.formats.tables import SmallTable
from curator_service.queries.measurement_entries import NewEntry

COLUMNS = ("measurement_id", "study", "record", "question", "unit", "value", "decline_reason", "note")
NEEDED = ("measurement_id", "value")
SHOWN = "shown: "
"""Before the name of a shown column, which may be called anything."""
FAULTS_MAX = 1_000
CELL_MAX = 2_000
Commas = Literal["ask", "decimal", "thousands"]
_NO_NUMBER = "must be a finite decimal number with a point; a decimal comma needs semicolons or tabs between cells"
_UNCLEAR = "has a comma before three digits, which can be read in two ways: say what commas mean in this file"
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
    commas: Commas | None = None
    """What commas in numbers mean; None: they separate cells."""

    def blame(self, line: int, column: str | None, message: str) -> None:
        """Add a fault. Its message never quotes the file."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append({"line": line, **({"column": column} if column else {}), "message": message})


def export(items: Sequence[wire.InboxItem]) -> bytes:
    """CSV in UTF-8 with the byte order mark that spreadsheets need. Text that would be a formula is quoted."""
    shown = list(dict.fromkeys(cell.column for item in items for cell in item.shown))
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow([*COLUMNS[:3], *(SHOWN + plain(name) for name in shown), *COLUMNS[3:]])
    for item in items:
        of = {cell.column: cell.value for cell in item.shown}
        cells = [repr(of[name]) if name in of else "" for name in shown]
        ends = [plain(item.question or ""), plain(item.unit or ""), "", "", ""]
        writer.writerow([item.id, plain(item.study), item.record, *cells, *ends])
    return file.getvalue().encode("utf-8-sig")


def read(body: bytes, commas: Commas = "ask") -> Sheet:
    """Read a filled-in file, separated by commas, semicolons or tabs. Raises Invalid for any other file.

    A decimal comma is read where semicolons or tabs separate cells. ``commas``: what a comma before three digits means;
    "ask": it is a fault that asks.
    """
    cells_by_line = SmallTable(body)
    sheet, following = Sheet(commas=None if cells_by_line.separator == "," else commas), iter(cells_by_line)
    header = [cell.strip() for cell in next(following, (1, []))[1]]
    if any(header.count(name) != 1 for name in NEEDED) or any(header.count(name) > 1 for name in COLUMNS):
        raise Invalid.of([{"line": 1, "message": _FORM}])
    seen: set[str] = set()
    for line, cells in following:
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
    meanings = _meanings(number, sheet.commas)
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
    elif number and len(meanings) != 1:
        sheet.blame(line, "value", _UNCLEAR if meanings else _NO_NUMBER)
    elif reason and reason not in _REASONS:
        sheet.blame(line, "decline_reason", f"must be one of {', '.join(_REASONS)}")
    elif len(note) > CELL_MAX or _CONTROL.search(note):
        sheet.blame(line, "note", f"must be text of {CELL_MAX} characters at most")
    else:
        entry = NewEntry(measurement_id, meanings[0] if number else None, _reason(reason), note or None)
        sheet.entries.append((line, entry))
    seen.add(measurement_id)


def _meanings(cell: str, commas: Commas | None) -> tuple[float, ...]:
    if commas is None:
        number = decimal(cell)
        return () if number is None else (number,)
    meanings = readings(cell)
    return meanings if len(meanings) < 2 or commas == "ask" else (meanings[commas == "thousands"],)


def _reason(cell: str) -> wire.DeclineReason | None:
    return next((reason for reason in _REASONS if reason == cell), None)
