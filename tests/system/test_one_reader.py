"""One table of texts with their reading at every door where people hand in numbers."""

import io

import pytest

from blindopt import wire
from blindopt.errors import DatasetInvalid
from curator_service.console import private_bounds
from curator_service.datasets.findings import Limits
from curator_service.datasets.reading import read_table
from curator_service.queries.inbox import spreadsheet
from modeler_service.use_cases import imports
from service_kit.console import Form

MEASUREMENT = "msr_0123456789abcdef"
REFUSED = "refused"


def typed(text):
    """In a field of a page: None if the page asks which of two readings is meant."""
    form = Form.blank(number=text)
    value = form.real("number")
    return None if form.unclear else REFUSED if form.errors else value


def sheet(text):
    """In a sheet of measurements that is separated by semicolons."""
    filled = spreadsheet.read(f"measurement_id;value\n{MEASUREMENT};{text}\n".encode())
    if filled.faults:
        return None if "two ways" in str(filled.faults[0]["message"]) else REFUSED
    return filled.entries[0][1].value


def bounds(text):
    """In bounds that are pasted, separated by semicolons."""
    form = Form.blank(pasted=f"age;-1e9;{text}\n")
    dataset = wire.DatasetView.model_construct(columns=[wire.Column(name="age", minimum=0.0, maximum=1.0)])
    private_bounds.fill_in(form, dataset, None)
    return REFUSED if form.errors else float(form.get("features.0.upper"))


def past(text):
    """In a CSV file of past measurements."""
    read = imports.of_csv(f'row,y\n3,"{text}"\n'.encode())
    return REFUSED if read.faults else read.observations[0][1].y


def record(text):
    """In a table of records, separated by semicolons."""
    file = io.BytesIO(f"age;b\n{text};1\n".encode())
    try:
        with read_table(file, Limits(rows=9, columns=9), parquet=False) as table:
            (block,) = table.blocks
            return float(block[0, 0])
    except DatasetInvalid:
        return REFUSED


DOORS = (typed, sheet, bounds, past, record)
#          typed    sheet    bounds   past     record
READINGS = {
    "1.5": (1.5, 1.5, 1.5, 1.5, 1.5),
    "-1e-3": (-1e-3, -1e-3, -1e-3, -1e-3, -1e-3),
    "44,25": (44.25, 44.25, 44.25, REFUSED, 44.25),
    "1,034": (None, None, REFUSED, REFUSED, REFUSED),
    "1,034.5": (1034.5, 1034.5, 1034.5, REFUSED, REFUSED),
    "1.234,5": (1234.5, 1234.5, 1234.5, REFUSED, REFUSED),
    "2.500": (2.5, 2.5, 2.5, 2.5, 2.5),
    "1e400": (REFUSED, REFUSED, REFUSED, REFUSED, REFUSED),
    "nan": (REFUSED, REFUSED, REFUSED, REFUSED, REFUSED),
    "1_000": (REFUSED, REFUSED, REFUSED, REFUSED, REFUSED),
    "5%": (REFUSED, REFUSED, REFUSED, REFUSED, REFUSED),
    "x": (REFUSED, REFUSED, REFUSED, REFUSED, REFUSED),
}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_text_has_this_reading(door):
    column = DOORS.index(door)
    assert {text: door(text) for text in READINGS} == {text: row[column] for text, row in READINGS.items()}
