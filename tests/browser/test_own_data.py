"""The first ten minutes with data of one's own: from a file as pandas writes it to an accepted recommendation."""

import math
from collections import Counter

import numpy as np
from playwright.sync_api import expect

from tests.browser.conftest import Visitor
from tests.browser.two_services import PASSWORD

MOST = {
    "owner": {"buttons": 11, "choices": 8, "fields": 10, "pages": 10},
    "vendor": {"buttons": 3, "choices": 1, "pages": 3},
}
"""Acts of each kind from a file to a grant, eight of the fields bounds, and from the grant to a recommendation.

Ticks, files and lists are choices. A link is a button.
"""
BOUNDS = {"age": (18, 90), "bmi": (15, 50), "bp": (50, 150), "s5": (2, 8)}


def diabetes():
    """scikit-learn's table of 442 patients, whose target is to be small, and where 30 values are missing."""
    from sklearn.datasets import load_diabetes  # late: every process of tests would load it

    table = load_diabetes(scaled=False)
    values = np.column_stack([table.data, table.target])
    rng = np.random.default_rng(3)
    for name in ("bmi", "s3"):
        values[rng.choice(len(values), 15, replace=False), table.feature_names.index(name)] = math.nan
    return [*table.feature_names, "progression"], values


def diabetes_csv():
    """The same bytes as of ``DataFrame.to_csv()`` of pandas 3.1, with its index; sex as text."""
    names, values = diabetes()
    lines = [",".join(["", *names])]
    for index, row in enumerate(values.tolist()):
        cells = ["" if math.isnan(cell) else repr(cell) for cell in row]
        cells[names.index("sex")] = {1.0: "female", 2.0: "male"}[row[names.index("sex")]]
        lines.append(",".join([str(index), *cells]))
    return ("\n".join(lines) + "\n").encode()


class Person:
    """Somebody at a browser whose acts are counted, and to whom no page shows an error."""

    def __init__(self, browser, address, name):
        self.visitor = Visitor(browser, address)
        self.page = self.visitor.page
        self.acts = Counter()
        self.visitor.open("/console")
        self.fill("Name", name)
        self.fill("Password", PASSWORD)
        self.press("Log in")
        self.acts.clear()

    def _done(self, *kinds):
        self.acts.update(kinds)
        for wrong in (".wrong", ".error", "[aria-invalid=true]", "[role=alert]", ".notice.bad[role=status]"):
            assert self.page.locator(wrong).all_inner_texts() == [], (self.page.url, wrong)

    def fill(self, label, text):
        """Type into a field, or choose from a list."""
        field = self.page.get_by_label(label, exact=label == "epsilon")
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(text)
            self._done("choices")
        else:
            field.fill(text)
            self._done("fields")

    def tick(self, label):
        """Tick a box, or take a choice."""
        self.page.get_by_label(label).check()
        self._done("choices")

    def file(self, label, name, content):
        """Choose a file."""
        self.page.get_by_label(label).set_input_files([{"name": name, "mimeType": "text/plain", "buffer": content}])
        self._done("choices")

    def press(self, name, role="button"):
        """Press a button, or follow a link."""
        with self.page.expect_navigation():
            self.page.get_by_role(role, name=name).first.click()
        self._done("buttons", "pages")

    def follow(self, name):
        """Follow a link."""
        self.press(name, "link")

    def download(self, name):
        """Press a link that is a file; its content."""
        with self.page.expect_download() as downloading:
            self.page.get_by_role("link", name=name).click()
        self._done("buttons")
        return downloading.value.path().read_bytes()


def test_own_data_from_the_upload_to_an_accepted_recommendation(services, browser):
    olga, vera = (Person(browser, services.address_of(name), name) for name in ("olga", "vera"))
    grant = owner_opens_a_study(olga)
    counts = {"owner": dict(olga.acts)}
    vendor_runs(vera, grant)
    assert counts | {"vendor": dict(vera.acts)} == MOST
    owner_accepts(olga)
    for person in (olga, vera):
        person.visitor.close()


def owner_opens_a_study(olga, direction="Small ones", queries="20", goal=None, drafted=None):
    """From the file to grant.json; ``goal`` fills in what is to be found, ``drafted`` is the text of the review."""
    olga.file("File", "diabetes.csv", diabetes_csv())
    olga.press("Check and store")
    decide_the_columns(olga)
    olga.follow("New study on this dataset")
    expect(olga.page.get_by_label("Name of the study")).to_have_value("Study 1 on diabetes")
    for column, (lower, upper) in BOUNDS.items():
        olga.fill(f"smallest of {column}", str(lower))
        olga.fill(f"largest of {column}", str(upper))
    olga.press("Next")
    olga.tick(direction)
    if goal is not None:
        goal(olga)
    olga.fill("Column of the outcome", "progression")
    olga.press("Next")
    olga.fill("epsilon", "6")
    olga.press("Next")
    olga.tick("Exactly")
    olga.fill("How many measurements", queries)
    olga.press("Next")
    if drafted is not None:
        expect(olga.page.locator("main")).to_contain_text(drafted)
    olga.press("Make the draft")
    olga.tick("I have read what is promised and what is not")
    olga.tick("The preview found a high risk")
    olga.press("Release")
    olga.press("Make the grant")
    return olga.download("Download grant.json")


def decide_the_columns(olga):
    """The index is left out, sex becomes yes/no columns of a confirmed list, rows with gaps are left out."""
    expect(olga.page.get_by_role("heading", name="columns need a decision")).to_be_visible()
    olga.fill("sex, read as", "one_hot")
    olga.tick("The lists of categories that I use are public")
    olga.press("Store these columns")
    kept = int((~np.isnan(diabetes()[1]).any(axis=1)).sum())
    expect(olga.page.locator("main")).to_contain_text(f"{kept} records")


def vendor_runs(vera, grant):
    vera.follow("Start a run")
    vera.file("Grant file", "grant.json", grant)
    vera.press("Start the run")
    expect(vera.page.get_by_text("All its queries were answered.").last).to_be_visible()
    vera.press("Hand over this recommendation")


def owner_accepts(olga):
    olga.follow("Home")
    olga.follow("The vendor recommends candidate")
    decide = olga.page.url
    olga.press("Open the record")
    shown = dict(row.split("\t")[:2] for row in olga.page.locator("main tbody tr").all_inner_texts())
    names, values = diabetes()
    record = [float(shown[name]) for name in names if name != "sex"]
    rest = np.delete(values, names.index("sex"), axis=1)
    assert (rest == record).all(axis=1).any()  # a patient of the file
    assert record[-1] <= np.quantile(values[:, -1], 0.5)
    olga.page.goto(decide)
    olga.tick("Accepted")
    olga.press("Save")
    expect(olga.page.locator("main")).to_contain_text("accepted")
