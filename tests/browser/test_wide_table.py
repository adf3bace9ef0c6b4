"""A table of 400 columns: every page of a new study and of its draft stays short, with and without a script."""

import json
from collections import Counter

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.test_own_data import Person
from tests.browser.two_services import PASSWORD

COUNT = 397
HEIGHT_MAX = {1440: 3000, 390: 5000}
HEIGHT_OPEN_MAX = {1440: 5000, 390: 8000}
NAMES = [f"gene_{i:03}" for i in range(COUNT)]
CATEGORIES = ("female", "male")
CHANGES = dict.fromkeys(NAMES, "0.5") | {"gene_005": "2"}
"""A twentieth of each range, with one exception."""


def genes_csv():
    draw = np.random.default_rng(4)
    lines = [",".join([*NAMES, "sex", "response"])]
    for row in draw.uniform(1, 9, (40, COUNT + 1)).round(3).tolist():
        lines.append(",".join([*map(str, row[:-1]), CATEGORIES[len(lines) % 2], str(row[-1])]))
    return "\n".join(lines).encode()


def is_short(person, name):
    """The page is short on a desk, and on a phone for its one column; axe finds nothing."""
    person.visitor.look(f"wide-{name}")
    without_script(person, name, HEIGHT_MAX)


def without_script(person, name, heights=HEIGHT_OPEN_MAX):
    """The same without axe, which is a script; the fields of every choice stand open."""
    for width, most in heights.items():
        person.page.set_viewport_size({"width": width, "height": 900})
        height = person.page.locator("body").bounding_box()["height"]
        assert height < most, (name, width, height)
    person.page.set_viewport_size({"width": 1200, "height": 860})


def to_release(person, lines, look=is_short):
    """Features, bounds and whatever else ``lines`` paste, then the column of the outcome."""
    person.press("New study on this dataset", "link")
    person.fill("Name of the study", "Best response")
    person.page.get_by_text("Paste names and bounds").click()
    person.fill("Name, smallest, largest", lines)
    person.press("Fill in")
    for value in CATEGORIES:
        person.page.locator(f"[value='sex={value}']").check()
    look(person, "features")
    person.press("Next")
    person.tick("People measure it")
    look(person, "measured")
    person.tick("A column of the dataset")
    person.fill("Column of the outcome", "response")
    look(person, "outcome")
    person.press("Next")


def to_draft(person, look=is_short):
    """From *Release* to the draft; its address, and what its file says of the study."""
    person.press("Next")
    person.tick("Exactly")
    person.fill("How many measurements", "20")
    look(person, "answers")
    person.press("Next")
    look(person, "review")
    person.page.get_by_role("button", name="Make the draft").last.click()
    person.page.get_by_role("heading", name="Best response").wait_for()
    address = person.page.url
    person.page.get_by_role("link", name="Settings").click()
    return address, json.dumps(json.loads(person.download("The study as JSON"))["spec"])


@pytest.mark.slow(
    sibling="test_public_inputs_pages.py::test_more_than_12_features_have_one_rule_and_a_fold_of_exceptions"
)
def test_every_page_of_400_columns_is_short_and_one_rule_makes_the_study_of_398_fields(services, browser, visit):
    olga = Person(browser, services.address_of("olga"), "olga")
    olga.visitor.open("/console/datasets/new")
    olga.file("File", "genes.csv", genes_csv())
    olga.press("Check and store")
    olga.fill("sex, read as", "one_hot")
    olga.tick("The lists of categories that I use are public")
    olga.press("Store these columns")
    dataset = olga.page.url

    to_release(olga, "\n".join(f"{name},0,10" for name in NAMES))
    panel = olga.page.get_by_label("Noise and confusion by feature, in its own unit", exact=True)
    expect(panel.locator("tbody tr")).to_have_count(5)
    expect(olga.page.get_by_label("sex: hide which category a record has")).to_be_checked()
    expect(olga.page.get_by_label("Hide a change of this share of each range")).to_have_value("5")
    is_short(olga, "release")
    olga.tick("The best kind of record")
    is_short(olga, "groups")
    olga.page.get_by_label("The best record", exact=True).check()
    olga.page.locator("summary", has_text="Exceptions").click()
    olga.page.get_by_label("Filter features by name").fill("gene_005")
    expect(olga.page.locator("#exceptions tbody tr:visible")).to_have_count(1)
    olga.fill("gene_005: hide a change of", "2")
    is_short(olga, "exceptions")
    address, ruled = to_draft(olga)
    olga.page.goto(address)
    expect(olga.page.get_by_text("What attacks recover").first).to_be_visible()
    for tab in ("", "/forecasts", "/promise", "/settings"):
        olga.page.goto(address + tab)
        is_short(olga, f"draft{tab.replace('/', '-')}")
    olga.visitor.open("/console/studies/new?step=release&change=" + address.rpartition("/")[2])
    expect(olga.page.get_by_label("Hide a change of this share of each range")).to_have_value("5")
    expect(olga.page.get_by_label("gene_005: hide a change of")).to_have_value("2")
    is_short(olga, "changed")
    olga.visitor.close()

    blind = Person.__new__(Person)
    blind.visitor = visit(services.address_of("olga"), java_script_enabled=False)
    blind.page, blind.acts = blind.visitor.page, Counter()
    blind.visitor.login("olga", PASSWORD)
    blind.page.goto(dataset)
    to_release(blind, "\n".join(f"{name},0,10,{change}" for name, change in CHANGES.items()), without_script)
    without_script(blind, "release")
    blind.fill("Hide a change of this share of each range", "")
    _, typed = to_draft(blind, without_script)
    assert ruled == typed
    assert '"hidden_change": 1.42' in typed
