"""A clinic's table with every default: the owner reads what the answers are worth before the release."""

from collections import Counter

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.browser.test_own_data import Person
from tests.browser.two_services import PASSWORD

BOUNDS = {"age_years": (30, 80), "weight_kg": (35, 200), "waist_cm": (50, 160), "systolic_mmHg": (80, 220)}
WORTH = "Your 30 answers carry about as much as 1 exact answer."
MOST = {"buttons": 10, "fields": 7, "pages": 9}
"""Acts from the file to a grant: bounds of three columns are known from their names."""
TICK = "The answers or the forecast are no better than chance, and I release it all the same"


def clinic_csv():
    draw = np.random.default_rng(6)
    columns = [draw.integers(low, high, 300) for low, high in BOUNDS.values()]
    return "\n".join([",".join(BOUNDS), *(",".join(map(str, row)) for row in zip(*columns, strict=True))]).encode()


def to_answers(olga):
    """Every default up to the step *Answers and limits*, where 30 measurements are allowed."""
    olga.follow("New study on this dataset")
    for column in ("age_years", "weight_kg", "systolic_mmHg"):
        olga.page.get_by_role("checkbox", name=column).check()
        olga.acts["choices"] += 1
    olga.fill("smallest of waist_cm", "50")
    olga.fill("largest of waist_cm", "160")
    olga.press("Next")
    olga.tick("People measure it")
    olga.fill("Question", "Measure HbA1c from a venous sample.")
    olga.fill("Unit of the outcome", "%")
    olga.fill("Smallest allowed value", "3")
    olga.fill("Largest allowed value", "20")
    olga.press("Next")
    olga.press("Next")
    olga.fill("How many measurements", "30")


def test_the_default_path_says_that_its_answers_are_like_chance_and_asks_for_a_tick(services, browser):
    olga = Person(browser, services.address_of("olga"), "olga")
    panel, main = olga.page.locator("#effect"), olga.page.locator("main")
    olga.visitor.look("default-home")
    olga.file("File", "clinic.csv", clinic_csv())
    olga.press("Check and store")
    to_answers(olga)
    for sentence in (
        "becomes at most 73.2 % sure.",
        "An outcome of 7.25 % is sent as -6.89 % or 29.9 %, the higher one 38 times in 100.",
        "takes about 450 answers about it. They use epsilon 450, by the sum.",
        WORTH,
        "Fewer than 5 find no better record than chance.",
        "Forecast: the recommended record ends",
    ):
        expect(panel).to_contain_text(sentence)
    rows = [row.split("\t")[:3] for row in panel.get_by_label("Other answers").locator("tbody tr").all_inner_texts()]
    assert rows == [["1", "two values", "18 %"], ["4", "an interval", "4.2 %"], ["exact", "as measured", "0 %"]]
    parts = [float(row.split("\t")[2]) for row in panel.locator("table.parts tbody tr").all_inner_texts()]
    gap = float(panel.locator("table.parts caption").inner_text().split()[-1])
    assert sum(parts) == pytest.approx(gap, rel=0.1)  # each is rounded to two digits
    assert parts[2] > parts[0]  # the answers are the reason
    olga.visitor.look("default-answers")
    olga.press("Next")
    assert main.inner_text().count(WORTH) >= 1
    expect(main).to_contain_text("A search is not useful here")
    olga.visitor.look("default-review")
    olga.press("Make the draft")
    olga.page.get_by_role("button", name="Release").wait_for()
    assert main.inner_text().count(WORTH) == 1
    olga.visitor.look("default-draft")
    olga.page.set_viewport_size({"width": 1440, "height": 900})
    assert olga.page.evaluate("document.documentElement.scrollHeight") <= 2_500
    olga.visitor.expects("422")
    olga.tick("I have read what is promised")
    if (high := olga.page.get_by_label("The preview found a high risk")).count():
        high.check()
    olga.page.get_by_role("button", name="Release").click()
    expect(main).to_contain_text("Tick this too before you release: the vendor finds no better record than chance.")
    olga.page.get_by_label(TICK).check()
    olga.press("Release")
    expect(main).to_contain_text("Released: the study is open.")
    olga.press("Make the grant")
    olga.download("Download grant.json")
    assert olga.acts.pop("choices") <= 8  # a high risk takes a tick
    assert dict(olga.acts) == MOST
    olga.visitor.close()


def test_exact_answers_take_the_verdict_away_without_a_script_too(services, visit):
    """The panel stands without a script; one press takes exact answers, or a larger epsilon."""
    blind = Person.__new__(Person)
    blind.visitor = visit(services.address_of("olga"), java_script_enabled=False)
    blind.page, blind.acts = blind.visitor.page, Counter()
    blind.visitor.login("olga", PASSWORD)
    panel = blind.page.locator("#effect")
    blind.visitor.open("/console/datasets/new")
    blind.page.get_by_label("File").set_input_files(
        [{"name": "second.csv", "mimeType": "text/csv", "buffer": clinic_csv() + b"\n40,80,90,120"}]
    )
    blind.press("Check and store")
    blind.press("New study on this dataset", "link")
    blind.fill("Name of the study", "Exact")
    for i, (column, (lower, upper)) in enumerate(BOUNDS.items()):
        blind.page.locator(f"[name='features.{i}.column']").check()
        blind.fill(f"smallest of {column}", str(lower))
        blind.fill(f"largest of {column}", str(upper))
    blind.press("Next")
    blind.tick("People measure it")
    blind.fill("Question", "Measure HbA1c.")
    blind.fill("Smallest allowed value", "3")
    blind.fill("Largest allowed value", "20")
    blind.press("Next")
    blind.press("Next")
    expect(panel).to_contain_text("becomes at most 73.2 % sure.")
    blind.fill("How many measurements", "30")
    blind.press("Show what this means")
    expect(panel).to_contain_text(WORTH)
    blind.press("Use epsilon 4")
    expect(blind.page.get_by_label("epsilon of each answer")).to_have_value("4")
    expect(panel).to_contain_text("Your 30 answers carry about as much as 15 exact answers.")
    blind.press("Use exact answers")
    expect(panel).to_contain_text("The vendor learns the exact outcome")
    assert "carry" not in panel.inner_text()
    blind.press("Next")
    assert "answers are worth" not in blind.page.locator("main").inner_text()
    expect(blind.page.locator("main")).to_contain_text("A search is the right tool")
