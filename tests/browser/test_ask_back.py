"""A clinic's own file, as its office wrote it, from the upload to a study: nobody edits the file."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.test_own_data import Person

ROWS = 60
WHOLE = [i for i in range(ROWS) if i % 9 != 4 and i % 10 != 7]
"""The rows with neither a gap nor a value below the limit of detection."""


def clinic_csv() -> bytes:
    """Text, gaps, decimal commas, a number among texts, and values below a limit of detection."""
    lines = ["Patient;Geschlecht;Alter;Größe;Marker;HbA1c"]
    for i in range(ROWS):
        size = "" if i % 9 == 4 else f"{150 + i % 40},{i % 10}"
        marker = ("<5" if i % 20 == 7 else "-") if i % 10 == 7 else f"{5 + i % 17}"
        lines.append(
            f"P-{100 + i};{('weiblich', 'männlich')[i % 2]};{30 + 7 * i % 50};{size};{marker};{4 + i % 7},{i % 10}"
        )
    return ("\r\n".join(lines) + "\r\n").encode("windows-1252")


@pytest.mark.slow(sibling="test_pages.py::test_a_file_is_read_again_counted_and_stored_as_it_was_counted")
def test_a_file_of_an_office_becomes_a_study_in_one_pass(services, browser):
    olga = Person(browser, services.address_of("olga"), "olga")
    page = olga.page
    olga.follow("Upload a dataset")
    olga.file("File", "Praxis.csv", clinic_csv())
    olga.press("Check and store")
    olga.visitor.look("ask-back-pending")
    main = page.locator("main")
    expect(main).to_contain_text("separated by semicolons, with a decimal comma, in Windows-1252")
    expect(main).to_contain_text("Größe")
    expect(main).to_contain_text(re.compile(r"Numbers, but for 6 of 60 filled cells: -, <5"))
    remain = page.get_by_role("heading", name=re.compile("records remain"))
    expect(remain).to_have_text(f"{len(WHOLE)} of 60 records remain")

    page.get_by_label("Decide for each column").check()  # and back: the other choice is one press away
    page.get_by_label("Größe, if a value is missing").select_option("fill")
    page.get_by_label("Größe, number for missing values").fill("170")
    page.get_by_label("Geschlecht, read as").select_option("one_hot")
    page.get_by_label("The lists of categories that I use are public").check()
    olga.press("Count again")
    expect(remain).to_have_text(f"{sum(i % 10 != 7 for i in range(ROWS))} of 60 records remain")
    olga.visitor.look("ask-back-each")
    expect(page.get_by_label("Größe, number for missing values")).to_have_value("170")
    page.get_by_label("Leave those records out").check()
    olga.press("Count again")
    expect(remain).to_have_text(f"{len(WHOLE)} of 60 records remain")

    olga.follow("Home")
    olga.follow("Praxis.csv")  # it waits, as it was decided
    expect(page.get_by_label("Geschlecht, read as")).to_have_value("one_hot")
    page.get_by_label("Read it as Windows-1252 (Excel)").check()
    olga.press("Store these columns")
    expect(main).to_contain_text(f"Registered: {len(WHOLE)} records")
    draft(olga)
    expect(page.get_by_role("heading", level=1)).to_have_text("Whose HbA1c next")
    olga.visitor.close()


def draft(olga):
    """A study of the dataset whose page is open, from its own columns."""
    olga.follow("New study on this dataset")
    olga.fill("Name of the study", "Whose HbA1c next")
    for name, lower, upper in (("Alter", 18, 95), ("Größe", 140, 210), ("Marker", 0, 30)):
        olga.fill(f"smallest of {name}", str(lower))
        olga.fill(f"largest of {name}", str(upper))
    olga.press("Next")
    olga.tick("Small ones")
    olga.fill("Column of the outcome", "HbA1c")
    olga.press("Next")
    olga.fill("epsilon", "6")
    olga.press("Next")
    olga.tick("Exactly")
    olga.fill("How many measurements", "20")
    olga.press("Next")
    olga.press("Make the draft")
