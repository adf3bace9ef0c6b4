"""Both stories in a real browser: from nothing to a found house, each page looked at, by whoever may see it."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser import acts
from tests.browser.conftest import Visitor
from tests.browser.town import BOUNDS, houses, houses_csv, opened, price

KERNEL = {
    "I tell the modeler a kernel": True,
    "Length scale": "0.35",
    "Signal variance": "40000",
    "Noise variance": "100",
    "Prior mean": "350",
}


@pytest.fixture(scope="module")
def town(make_service, tmp_path_factory, browser):
    """Both services, and everybody who may log in; nothing else."""
    visitors = []

    def visit(url, **more):
        visitors.append(Visitor(browser, url, **more))
        return visitors[-1]

    with opened(make_service, tmp_path_factory.mktemp("town"), visit) as town:
        yield town
    for visitor in visitors:
        visitor.close()


def by_hand(scripts=True):
    """The steps of a study that people measure."""
    return {
        "Dataset": {"Name of the study": "Most valued house"},
        "Features": {
            f"{part} of {name}": str(bound)
            for name, pair in BOUNDS.items()
            for part, bound in zip(("smallest", "largest"), pair, strict=True)
        }
        | ({} if scripts else dict.fromkeys(BOUNDS, True)),  # a script ticks what bounds are typed for
        "Outcome": {
            "People measure it": True,
            "Question": "Visit the house and estimate what it would sell for.",
            "Unit of y": "k€",
            "Smallest value that can be": "50",
            "Largest value that can be": "2000",
            "house": True,
            "area_m2": True,
            "built": True,
        },
        "Release": {"epsilon": "6", "Delta": "0.1"},
        "Answers": {"Nothing": True},
        "Budget": {"Most measurements": "100", **KERNEL},
    }


def test_both_stories_from_an_empty_installation(town):
    olga, vera, mia, ada = (town.enter(name) for name in ("olga", "vera", "mia", "ada"))
    access = owner_opens_a_study(olga)
    run = vendor_starts_a_run(vera, access)
    measurer_answers_ten(mia)
    vendor_finds_the_house(vera, run)
    auditor_verifies(ada, access.study)
    for service in (town.curator, town.modeler):
        verified = service.told("audit", "verify")
        assert verified.returncode == 0, verified.stderr


def owner_opens_a_study(olga):
    page = olga.page
    expect(page.get_by_text("There is no dataset yet.")).to_be_visible()
    olga.audit()
    dataset = refused_then_taken(olga)
    expect(page.get_by_role("table", name="What was understood")).to_contain_text("area_m2")
    olga.picture("owner-1-understood", 640)

    def look(step):
        olga.audit()
        olga.shoot(f"draft-{step.lower()}")
        if step == "Features":
            olga.picture("owner-2-features", 900)
        if step == "Release":
            olga.press("Show what this means")
            expect(page.get_by_role("table", name="What this means")).to_be_visible()
            olga.audit()

    study = acts.draft(olga, dataset, by_hand(), look)
    olga.press("Preview")
    expect(page.get_by_role("region", name="What attacks recover")).to_be_visible()
    olga.audit()
    page.locator("#preview").scroll_into_view_if_needed()
    olga.picture("owner-3-preview", 1100)
    olga.shoot("study-previewed")
    acts.release(olga)
    olga.audit()
    access = acts.grant(olga, study, "Vera of House Finders")
    assert access.study == study
    olga.audit()
    return access


def refused_then_taken(olga):
    """A file with a gap is refused by row and column; mended, it is understood."""
    olga.expects("status of 422")
    olga.open("/console/datasets/new")
    broken = houses_csv().replace(b"\n7,", b"\n7x,")
    olga.page.get_by_label("File").set_input_files(
        [{"name": "houses.csv", "mimeType": "text/csv", "buffer": broken}]
    )
    olga.press("Check and store")
    expect(olga.page.get_by_role("alert")).to_be_visible()
    expect(olga.page.locator("main")).to_contain_text("house")
    olga.audit()
    olga.shoot("dataset-refused")
    return acts.upload(olga, "Houses", houses_csv())


def vendor_starts_a_run(vera, access):
    page = vera.page
    vera.audit()
    vera.open("/console/start")
    vera.audit()

    def look():
        page.get_by_role("button", name="Test the connection").click()
        expect(page.get_by_text("A run can be started.")).to_be_visible()
        vera.audit()
        vera.picture("vendor-1-start", 900)

    fields = {"Queries": "6", "Rows asked first": "4", "Rows asked together": "2", "Name of the run": "houses"}
    run = acts.start(vera, access, fields, look)
    expect(page.locator("main")).to_contain_text("for a person or a laboratory")
    vera.audit()
    vera.picture("vendor-2-waiting", 900)
    return run


def measurer_answers_ten(mia):
    page = mia.page
    mia.expects("status of 422")
    mia.press("Open the inbox", "link")
    value = page.get_by_label("Value")
    for answered in range(10):
        if value.count() == 0:  # the next ones are asked for, and appear by themselves
            page.get_by_role("link", name="begin").wait_for()
            mia.audit(dark=False)
            page.get_by_role("link", name="begin").press("Enter")
        expect(value).to_be_focused()
        found = acts.shown(mia)
        typed = str(price(found["area_m2"], found["built"]))
        if answered == 1:
            refuse_a_slip(mia, value, typed)
        if answered == 0:
            mia.audit()
            mia.picture("owner-5-inbox", 860)
            with page.expect_navigation():  # passed over, and asked again
                page.keyboard.press("s")
            found = acts.shown(mia)
            typed = str(price(found["area_m2"], found["built"]))
        value.fill(typed)
        with page.expect_navigation():
            page.keyboard.press("Enter")
        expect(page.get_by_role("status").filter(has_text="Saved record")).to_be_visible()
    mia.open("/console/inbox/told")
    expect(page.get_by_role("row")).to_have_count(11)


def refuse_a_slip(mia, value, typed):
    """What lies outside of what can be is refused beside its field, and the field has the focus again."""
    value.fill(typed + "0000")
    with mia.page.expect_navigation():
        mia.page.keyboard.press("Enter")
    expect(mia.page.locator("#e-value")).to_be_visible()
    expect(value).to_be_focused()
    mia.audit()


def vendor_finds_the_house(vera, run):
    page = vera.page
    expect(page.get_by_text("All its queries were answered.")).to_be_visible()  # without a reload
    best = float(page.locator("dt", has_text="Best answer").locator("+ dd").inner_text().split()[0].replace(",", ""))
    prices = [price(area, built) for _, area, built in houses()]
    assert best >= np_quantile(prices, 0.9), (best, max(prices))
    page.mouse.move(0, 0)
    vera.audit()
    vera.picture("vendor-3-found", 1000)
    vera.shoot("run")
    vera.press("What is believed of the candidates", "link")
    expect(page.get_by_role("img", name=re.compile("believed"))).to_be_visible()
    vera.picture("vendor-4-posterior", 900)


def np_quantile(values, share):
    return sorted(values)[int(share * len(values))]


def auditor_verifies(ada, study):
    page = ada.page
    ada.open(f"/console/accounts/{study}")
    expect(page.get_by_role("table", name=re.compile("Ledger"))).to_be_visible()
    ada.picture("owner-6-account", 1000)
    ada.open("/console/log")
    ada.press("Verify all of it now")
    expect(page.get_by_role("status").filter(has_text="Verified: ")).to_be_visible()
    ada.audit()
    ada.picture("owner-7-log", 900)
