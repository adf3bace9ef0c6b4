"""The result comes back: from a vendor's run to the record in the owner's file, and a request for more budget."""

import csv
import io

import pytest
from playwright.sync_api import expect

from blindopt import wire
from blindopt.client import Owner, Vendor
from tests.browser import hostile_names
from tests.browser.conftest import Visitor
from tests.browser.two_services import PASSWORD

WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(params=[True, False], ids=["scripts", "no scripts"])
def enter(services, browser, request):
    """Lets somebody in, with scripts or without."""
    visitors = []

    def come(name):
        person = Visitor(browser, services.address_of(name), java_script_enabled=request.param)
        person.login(name, PASSWORD)
        person.expects("status of 422")
        visitors.append(person)
        return person

    come.scripts = request.param
    yield come
    for visitor in visitors:
        visitor.close()


@pytest.fixture
def spent(services):
    """A run that used up the four measurements of its study, and what it recommends."""
    with (
        Owner(services.curator.url, services.curator.token, timeout_s=120) as owner,
        Vendor(services.modeler.url, services.modeler.token, timeout_s=120) as vendor,
    ):
        column = wire.ColumnMeasurement(column=hostile_names.COLUMNS[2], direction="maximize")
        dataset = owner.register("houses", hostile_names.csv(), public=True).id
        study = owner.create_study(hostile_names.spec(dataset, column, budget=wire.Budget(queries=4))).id
        owner.release(study)
        token = owner.grant(study, wire.GrantCreate(name="Valuation Ltd")).token
        chosen = {"algorithm": wire.RandomRows(name="random"), "initial_rows": 2, "iterations": 9}
        start = wire.RunCreate(curator_url=services.curator.url, study_id=study, token=token, **chosen)
        run = vendor.wait(vendor.start(start).id, timeout_s=120)
        assert (run.trials, run.ended_because) == (4, "refused")
        return run, vendor.recommendation(run.id)


@pytest.mark.slow(every=2)
def test_a_recommendation_and_a_request_go_to_the_owner_and_back(services, enter, spent):
    run, best = spent
    vera, olga = enter("vera"), enter("olga")

    def look(person, name):
        person.shoot(name)
        if enter.scripts:
            person.audit()
            for width in (320, 390, 1200):
                person.page.set_viewport_size({"width": width, "height": 860})
                assert person.page.evaluate(WIDE) <= 0, (name, width)
                if width == 390:
                    person.shoot(f"{name}-phone")

    # The vendor hands over, and requests more.
    vera.open(f"/console/runs/{run.id}")
    expect(vera.page.get_by_text("The owner's limit of 4 measurements is used up")).to_be_visible()
    vera.page.get_by_label("Note for the owner").fill("<b>look</b> at this one")
    vera.press("Hand over this recommendation")
    expect(vera.page.get_by_text("Sent: the owner sees it.")).to_be_visible()
    vera.page.get_by_text("Request more budget").click()
    vera.page.get_by_label("More measurements").fill("10")
    vera.page.get_by_label("Why, for the owner").fill("two are close")
    vera.press("Send the request")
    look(vera, "modeler-run-messages")

    # The owner's home says so; the record is opened, and the recommendation accepted.
    olga.open("/console")
    expect(olga.page.get_by_role("heading", name="Needs your attention")).to_be_visible()
    expect(olga.page.get_by_text("cap reached: queries are refused").first).to_be_visible()
    look(olga, "curator-home-messages")
    olga.page.get_by_role("link", name=f"The vendor recommends candidate {best.row}").last.click()
    expect(olga.page.get_by_text("<b>look</b> at this one")).to_be_visible()
    look(olga, "curator-message")
    olga.press("Open the record")
    shown = dict(
        zip(
            olga.page.locator("main tbody th").all_inner_texts(),
            olga.page.locator("main tbody td:nth-of-type(1)").all(),
            strict=True,
        )
    )
    heading = olga.page.get_by_role("heading", level=1).inner_text()
    number = int(heading.removeprefix("Row ").removesuffix(" of the file"))  # the header is row 1
    line = list(csv.DictReader(io.StringIO(hostile_names.csv().decode())))[number - 2]
    assert {name: float(cell.inner_text()) for name, cell in shown.items()} == {
        name: float(value) for name, value in line.items()
    }
    look(olga, "curator-record")
    olga.page.get_by_label("Candidate number").fill("0")  # one that was perhaps never measured
    olga.press("Open the record")
    expect(olga.page.get_by_text("Candidate 0 of")).to_be_visible()
    olga.open("/console")
    olga.page.get_by_role("link", name=f"The vendor recommends candidate {best.row}").last.click()
    olga.press("Save")
    expect(olga.page.get_by_text("Choose one").first).to_be_visible()
    olga.page.get_by_label("Accepted").check()
    olga.page.get_by_label("Answer to the vendor").fill("we take it")
    olga.press("Save")
    expect(olga.page.get_by_text("Saved: accepted.")).to_be_visible()

    # The request is approved, for less than was requested.
    olga.open("/console")
    olga.page.get_by_role("link", name="The vendor requests more budget").last.click()
    look(olga, "curator-message-budget")
    olga.page.get_by_label("Measurements in total").fill("15")
    olga.press("Approve")
    expect(olga.page.get_by_text("must be at most 14, which was requested").first).to_be_visible()
    olga.page.get_by_label("Measurements in total").fill("6")
    olga.press("Approve")
    expect(olga.page.get_by_text("Saved: approved.")).to_be_visible()
    expect(olga.page.get_by_text("measurements 4 to 6")).to_be_visible()
    look(olga, "curator-study-result")
    olga.press("Raise a cap", "link")
    look(olga, "curator-caps")
    olga.page.get_by_label("Measurements in total").fill("five")
    olga.page.get_by_label("Reason").fill("agreed by phone")
    olga.press("Raise")
    olga.page.get_by_label("Measurements in total").fill("8")
    olga.press("Raise")
    expect(olga.page.get_by_text("measurements 6 to 8")).to_be_visible()

    # The vendor reads both decisions.
    for _ in range(2):
        vera.open(f"/console/runs/{run.id}")
        waiting = vera.page.get_by_role("row").filter(has_text="open").get_by_role("button", name="Look for an answer")
        with vera.page.expect_navigation():
            waiting.first.click()
    expect(vera.page.get_by_text("we take it")).to_be_visible()
    expect(vera.page.get_by_text("approved").first).to_be_visible()
