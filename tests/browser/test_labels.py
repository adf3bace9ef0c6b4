"""A nurse reads whom to measure, and the owner reads what would keep a study from working."""

import re

import pytest
from playwright.sync_api import expect

from blindopt import wire
from blindopt.client import Owner, StudyClient
from tests.browser.test_own_data import Person

ROWS = 40


def clinic_csv(in_metres=0):
    """A clinic's table with names, of which the first heights may be in metres. Those are other people."""
    lines = ["patient,sex,age,height"]
    for i in range(ROWS):
        height = 150 + (i * 7) % 45
        size = f"{height / 100:.2f}" if i < in_metres else str(height)
        lines.append(
            f"K-{(i * 37) % 1000:04d},{('female', 'male')[i % 2]},{25 + (i * 11) % 60 + (in_metres > 0)},{size}"
        )
    return ("\n".join(lines) + "\n").encode()


def upload(olga, name, content):
    olga.visitor.open("/console/datasets/new")
    olga.file("File", name, content)
    olga.press("Check and store")
    expect(olga.page.get_by_label("patient, read as")).to_have_value("label")
    olga.page.get_by_label("sex, read as").select_option("one_hot")
    olga.page.get_by_label("The lists of categories that I use are public").check()
    olga.press("Store these columns")


def draft_for_people(olga):
    """A study that people measure, whose page is open; the labels are ticked without a press."""
    olga.follow("New study on this dataset")
    olga.fill("Name of the study", "Whose HbA1c next")
    for name in ("sex=female", "sex=male"):  # with the bounds that the service made
        olga.page.get_by_role("checkbox", name=name).check()
    for name, lower, upper in (("age", 18, 95), ("height", 100, 220)):
        olga.fill(f"smallest of {name}", str(lower))
        olga.fill(f"largest of {name}", str(upper))
    olga.press("Next")
    olga.tick("People measure it")
    olga.fill("Question", "Measure HbA1c")
    olga.fill("Unit of the outcome", "%")
    expect(olga.page.get_by_label("patient", exact=True)).to_be_checked()
    for name in ("sex=female", "sex=male", "age"):
        olga.tick(name)
    olga.press("Next")
    olga.fill("epsilon", "6")
    olga.press("Next")
    olga.tick("Exactly")
    olga.fill("How many measurements", "20")
    olga.page.get_by_role("button", name="Next").first.click()


def look_at_the_draft(olga):
    """Each caution stands once, none is about a column that the service made, and the page is short."""
    page = olga.page
    page.get_by_role("button", name="Check again").wait_for()
    olga.visitor.look("draft-check")
    boxes = page.locator("main .notice").all_inner_texts()
    assert len(boxes) == len(set(boxes)) > 0
    assert [box for box in boxes if "sex=" in box and "smallest" in box] == []
    for box in boxes:
        sentence = box.partition(". ")[0]
        assert page.locator("main").inner_text().count(sentence) == 1, sentence
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.evaluate("document.documentElement.scrollHeight") <= 2_500
    for tab in ("Forecast", "Promise", "Settings", "Check"):
        olga.follow(tab)
        olga.visitor.look(f"draft-{tab.lower()}")
    expect(page.get_by_role("region", name="What attacks recover")).to_be_visible()  # as it was


@pytest.mark.slow(
    sibling="test_usefulness.py::test_each_cause_has_its_caution_once_with_a_fix_and_without_the_cause_it_goes"
)
def test_a_nurse_reads_whom_to_measure_and_a_wrong_unit_is_told_once_until_it_is_mended(services, browser):
    olga = Person(browser, services.address_of("olga"), "olga")
    main = olga.page.locator("main")
    upload(olga, "metres.csv", clinic_csv(in_metres=12))
    expect(main).to_contain_text("12 of 40 values lie far from the rest")
    olga.visitor.look("labels-dataset")
    draft_for_people(olga)
    far, clipped = "height: 12 of 40 values lie far from the rest", "height: 12 of 40 values lie outside 100 to 220"
    for said in (far, clipped):
        assert main.inner_text().count(said) == 1
    olga.visitor.look("labels-review")
    olga.page.get_by_role("button", name="Change the bounds").click()
    olga.page.wait_for_load_state()
    expect(olga.page.get_by_label("smallest of height")).to_be_visible()

    upload(olga, "clinic.csv", clinic_csv())
    draft_for_people(olga)
    assert "values lie" not in main.inner_text()
    olga.page.get_by_role("button", name="Make the draft").last.click()
    olga.page.wait_for_url(re.compile("/studies/std_"))
    study = re.search("std_[0-9a-f]+", olga.page.url)[0]
    look_at_the_draft(olga)
    with Owner(services.curator.url, services.curator.token) as owner:
        seen = owner.study(study).view.spec_sha256
        owner.release(study, request=wire.ReleaseAsked(spec_sha256=seen, confirm_high_risk=True))
        token = owner.grant(study, wire.GrantCreate(name="v")).token
        with StudyClient(services.curator.url, token, study) as vendor:
            vendor.ask(wire.QueryRequest(rows=[wire.RowPlays(row=3)]), key="q")
    mia = Person(browser, services.address_of("mia"), "mia")
    mia.visitor.open("/console/inbox")
    said = mia.page.locator("main").inner_text()
    row = int(re.search(r"Row (\d+) of the file", said)[1])
    patient, sex, age, _ = clinic_csv().decode().splitlines()[row - 1].split(",")
    assert f"{patient}, {sex}, {age}" in said
    mia.visitor.look("labels-inbox")
    mia.fill("Value", "7.2")
    mia.press("Save and next")
    expect(mia.page.locator("body")).to_contain_text(f"Saved 7.2 % for {patient} (row {row} of the file)")
    for person in (olga, mia):
        person.visitor.close()
