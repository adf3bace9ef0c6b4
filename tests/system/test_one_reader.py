"""What people hand in as numbers, at every door: the number that was meant, or a question; never another number."""

import csv
import io
import re
from decimal import Decimal

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt import wire
from blindopt.errors import DatasetInvalid, Invalid
from blindopt.formats.numbers import DecimalSigns
from curator_service.cli import daily
from curator_service.console import private_bounds
from curator_service.datasets.reading import read_table
from curator_service.datasets.sources import Limits
from curator_service.queries.inbox import spreadsheet
from modeler_service.use_cases import imports
from service_kit.console import Form

REFUSED = "refused"
QUESTION = "asked"


def written(header, rows, separator):
    text = io.StringIO()
    csv.writer(text, delimiter=separator).writerows([header, *rows])
    return text.getvalue().encode()


def typed(cells, separator):
    """In a field of a page, each alone."""
    forms = [Form.blank(number=cell) for cell in cells]
    values = [form.real("number") for form in forms]
    if any(form.unclear for form in forms):
        return QUESTION
    return REFUSED if any(form.errors for form in forms) else values


def commanded(cells, separator):
    """On the command line, each alone."""
    try:
        return [daily.typed_number(cell) for cell in cells]
    except typer.BadParameter as error:
        return QUESTION if "can be read in one way" in str(error) else REFUSED


def sheet(cells, separator):
    """In a sheet of measurements."""
    rows = [[f"msr_{i:016x}", cell] for i, cell in enumerate(cells)]
    try:
        filled = spreadsheet.read(written(["measurement_id", "value"], rows, separator))
    except Invalid as error:
        return QUESTION if "readings" in error.errors[0] else REFUSED
    return REFUSED if filled.faults else [entry.value for _, entry in filled.entries]


def bounds(cells, separator):
    """In bounds that are pasted."""
    names = [f"x{i}" for i in range(len(cells))]
    rows = [[name, "0", cell] for name, cell in zip(names, cells, strict=True)]
    form = Form.blank(pasted=written(["name", "smallest", "largest"], rows, separator).decode())
    columns = [wire.Column(name=name, minimum=0.0, maximum=1.0) for name in names]
    private_bounds.fill_in(form, wire.DatasetView.model_construct(columns=columns), None)
    if form.errors:
        return QUESTION if "can be read in one way" in form.errors["pasted"] else REFUSED
    return [float(form.get(f"features.{i}.upper")) for i in range(len(cells))]


def past(cells, separator):
    """In a file of past measurements."""
    try:
        read = imports.of_csv(written(["row", "y"], [[str(i), cell] for i, cell in enumerate(cells)], separator))
    except Invalid as error:
        return QUESTION if "can be read in one way" in str(error) else REFUSED
    return REFUSED if read.faults else [observation.y for _, observation in read.observations]


def record(cells, separator):
    """In a table of records, beside whole numbers."""
    file = io.BytesIO(written(["age", "b"], [[cell, "1"] for cell in cells], separator))
    try:
        with read_table(file, Limits(rows=99, columns=9), parquet=False) as table:
            return [float(row[0]) for block in table.blocks for row in block]
    except DatasetInvalid as error:
        return QUESTION if "readings" in error.errors[0] else REFUSED


ALONE, TOGETHER = (typed, commanded), (sheet, bounds, past, record)
READINGS = {
    "1.5": 1.5, "-1e-3": -1e-3, "44,25": 44.25, "1,034.5": 1034.5, "1.234,5": 1234.5, "1'234.5": 1234.5,
    "1 234": 1234.0, "0.125": 0.125, "1234.500": 1234.5, "1.234.567": 1234567.0,
    **dict.fromkeys(("1,034", "2.500", "-12.000"), QUESTION),
    **dict.fromkeys(("1e400", "nan", "1_000", "5%", "x", "1.2.3", "1,5,5", "12.34.567,8"), REFUSED),
}  # fmt: skip


@pytest.mark.parametrize("door", [*ALONE, *TOGETHER], ids=lambda door: door.__name__)
@pytest.mark.parametrize("text", READINGS)
def test_a_text_has_this_reading_at_every_door(door, text):
    expected = READINGS[text]
    for separator in ";\t|":
        assert door([text], separator) == (expected if isinstance(expected, str) else [expected])


# --- as the spreadsheets of ten countries write numbers ----------------------------------------------

COUNTRIES = {
    # name: decimal sign, mark between groups, minus
    "Germany": (",", ".", "-"),
    "Brazil": (",", ".", "-"),
    "Italy": (",", "", "-"),
    "France": (",", "\u202f", "-"),
    "Poland": (",", "\u00a0", "-"),
    "Sweden": (",", "\u00a0", "\u2212"),
    "Switzerland": (".", "\u2019", "-"),
    "United States": (".", ",", "-"),
    "Japan": (".", "", "-"),
    "India": (".", "lakh", "-"),
}


def as_in(country, number):
    """A number in a country's spreadsheet, with as many decimals as it has."""
    sign, mark, minus = COUNTRIES[country]
    whole, _, decimals = f"{abs(number):f}".partition(".")
    if mark == "lakh":
        whole = re.sub(r"(?<=\d)(?=(?:\d\d)*\d{3}$)", ",", whole)
    else:
        whole = re.sub(r"(?<=\d)(?=(?:\d{3})+$)", mark, whole)
    return (minus if number < 0 else "") + whole + (sign + decimals if decimals else "")


def check(country, numbers, separator):
    cells = [as_in(country, number) for number in numbers]
    meant = [float(number) for number in numbers]
    for door in TOGETHER:
        assert door(cells, separator) in (meant, QUESTION), (door.__name__, cells)
    for door in ALONE:
        for cell, number in zip(cells, meant, strict=True):
            assert door([cell], separator) in ([number], QUESTION), (door.__name__, cell)


FRACTIONS = st.decimals(-(10**9), 10**9, places=None, allow_nan=False).map(lambda number: round(number, 6))
WITH_DECIMALS = st.builds(
    lambda whole, decimals: Decimal(whole) + Decimal(decimals).scaleb(-len(str(decimals))) * (-1 if whole < 0 else 1),
    st.integers(-(10**7), 10**7),
    st.integers(1, 999_999),
)
NUMBERS = st.lists(
    st.one_of(st.integers(-(10**9), 10**9).map(Decimal), WITH_DECIMALS, FRACTIONS), min_size=1, max_size=8
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(COUNTRIES)), NUMBERS, st.sampled_from(",;\t|"))
def test_numbers_of_ten_countries_are_read_as_they_were_meant_or_asked_back(country, numbers, separator):
    if separator == "," and COUNTRIES[country][0] == ",":
        numbers = [*numbers, Decimal("0.5")]  # cells that are cut at commas have decimal points, if none says otherwise
    check(country, numbers, separator)


def test_a_file_with_a_sure_cell_is_not_asked_back():
    assert sheet(["1,5", "2.500", "875", "12.000"], ";") == record(["1,5", "2.500", "875", "12.000"], ";")
    assert sheet(["1,5", "2.500", "875", "12.000"], ";") == [1.5, 2500.0, 875.0, 12000.0]


def test_the_control_a_point_that_is_always_decimal_is_found_out(monkeypatch):
    monkeypatch.setattr(DecimalSigns, "of_file", lambda signs, separator: ".")
    with pytest.raises(AssertionError, match=r"2\.500"):
        check("Germany", [Decimal("2500"), Decimal("12000")], ";")
    check("Japan", [Decimal("2.5"), Decimal("1e3"), Decimal("12.125")], ";")
