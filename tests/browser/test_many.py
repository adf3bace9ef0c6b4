"""A hospital looks for many: what counts as good is stated, the list comes back, and all records are opened at once."""

import csv
import io

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.test_own_data import Person, diabetes, owner_opens_a_study
from tests.browser.two_services import opened

GOOD = 280.0


@pytest.fixture(scope="module")
def services(make_service, tmp_path_factory):
    with opened(make_service, tmp_path_factory.mktemp("services")) as services:
        yield services


@pytest.mark.slow(
    sibling="test_find_many.py::test_a_run_follows_the_goal_of_the_study_and_the_owner_opens_all_that_it_found"
)
def test_many_patients_are_looked_for_and_opened_as_a_table_and_a_file(services, browser):
    olga, vera = (Person(browser, services.address_of(name), name) for name in ("olga", "vera"))
    grant = owner_opens_a_study(
        olga,
        direction="Large ones",
        queries="40",
        goal=say_what_is_good,
        drafted="as many good records as possible: at least 280",
    )
    listed = vendor_hands_over_the_list(vera, grant)
    owner_opens_the_records(olga, listed)
    for person in (olga, vera):
        person.visitor.close()


def say_what_is_good(olga):
    olga.tick("As many good records as possible")
    olga.fill("Good means at least", str(GOOD))
    olga.visitor.audit()


def vendor_hands_over_the_list(vera, grant):
    """The page has the yield beside that of random records; the list is a table and a file."""
    vera.follow("Start a run")
    vera.file("Grant file", "grant.json", grant)
    vera.press("Start the run")
    expect(vera.page.get_by_text("All its queries were answered.").last).to_be_visible()
    expect(vera.page.locator("main")).to_contain_text(
        "of 40 queried candidates are good (at least 280); of as many random ones"
    )
    vera.press("Hand over this recommendation")
    expect(vera.page.locator("main")).to_contain_text("good candidates")
    vera.follow("All of them")
    vera.visitor.audit()
    rows = list(csv.DictReader(io.StringIO(vera.download("CSV").decode())))
    assert vera.page.locator("main tbody tr").count() == len(rows) > 0
    return rows


def owner_opens_the_records(olga, listed):
    olga.follow("Home")
    olga.follow("The vendor recommends")
    expect(olga.page.locator("main")).to_contain_text(f"The vendor recommends {len(listed)} candidate")
    with olga.page.expect_download() as downloading:
        olga.page.get_by_role("button", name="Save as CSV").click()
    records = list(csv.DictReader(io.StringIO(downloading.value.path().read_text(encoding="utf-8"))))
    assert [record["candidate"] for record in records] == [row["candidate"] for row in listed]
    names, values = diabetes()
    measured = [float(record["progression"]) for record in records if record["measured"] == "1"]
    queried = [row for row in listed if row["queried"] == "true"]
    assert len(measured) == len(queried)
    assert all(value >= GOOD for value in measured)
    share = np.mean(values[~np.isnan(values).any(axis=1)][:, names.index("progression")] >= GOOD)
    olga.press("Open the records")
    olga.visitor.audit()
    assert olga.page.locator("main tbody tr").count() == len(listed)
    olga.follow("Studies")
    olga.follow("Study 1 on diabetes")
    olga.follow("Results by feature")
    main = olga.page.locator("main")
    expect(main).to_contain_text(f"{len(measured)} of 40 queried candidates are good (at least 280).")
    expect(main).to_contain_text(f"As many random ones have about {40 * share:.2g} good ones.")
    olga.visitor.audit()
