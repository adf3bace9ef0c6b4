"""A page that follows something ends as a reload shows it: run, release, forecast, tuning, check and inbox."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from blindopt import wire
from blindopt.client import Owner, StudyClient
from tests.browser.conftest import Visitor
from tests.browser.two_services import PASSWORD
from tests.curator_service import tuning_case


def csv(rows, seed=0):
    values = np.random.default_rng(seed).uniform(0, 9, size=(rows, 3)).round(3)
    return ("a,b,y\n" + "\n".join(",".join(map(str, row)) for row in values.tolist()) + "\n").encode()


def spec(dataset, **changed):
    fields = {
        "features": [{"column": name, "lower": 0, "upper": 9} for name in "ab"],
        "measurement": {"source": "column", "column": "y", "direction": "maximize"},
        "release": {"mechanism": "planar_laplace", "epsilon": "2", "sensitivity": 0.1},
        "answers": {"mechanism": "none"},
        "budget": {"queries": 40},
    }
    return wire.StudyCreate(**fields | {"name": "followed", "dataset_id": dataset} | changed)


@pytest.fixture(scope="module")
def owner(services):
    with Owner(services.curator.url, services.curator.token, timeout_s=120) as owner:
        yield owner


@pytest.fixture(scope="module")
def draft(owner):
    return owner.create_study(spec(owner.register("small", csv(60)).id)).id


@pytest.fixture
def visitor_of(services, browser):
    """Somebody who is logged in; at the end nothing unexpected was seen."""
    visitors = []

    def enter(name):
        visitors.append(Visitor(browser, services.address_of(name)))
        visitors[-1].login(name, PASSWORD)
        return visitors[-1]

    yield enter
    for visitor in visitors:
        visitor.close()


def assert_ends_as_a_reload(visitor, began, ended):
    """A page that shows ``began`` comes to show ``ended`` by itself, and is then what a reload shows.

    A fast service may have ended before the page is looked at.
    """
    expect(visitor.page.locator("main")).to_contain_text(re.compile(f"{re.escape(began)}|{re.escape(ended)}"))
    expect(visitor.page.locator("main")).to_contain_text(ended)
    shown = visitor.html()
    visitor.page.reload()
    assert visitor.html() == shown


def test_a_check_ends_with_its_verdict_and_the_form_of_the_release(visitor_of, draft):
    olga = visitor_of("olga")
    olga.open(f"/console/studies/{draft}")
    olga.press("Check")
    assert_ends_as_a_reload(olga, "The check is under way.", "Check again")
    expect(olga.page.get_by_text("risk: ")).to_have_count(1)


def test_a_forecast_ends_with_its_files(visitor_of, draft):
    olga = visitor_of("olga")
    olga.open(f"/console/studies/{draft}/forecasts")
    olga.page.get_by_label("Functions to draw").fill("12")
    olga.press("Start")
    assert_ends_as_a_reload(olga, "12 functions", "The forecast as JSON")


@pytest.mark.slow(sibling="test_a_forecast_ends_with_its_files")
def test_a_tuning_ends_with_its_result(visitor_of, owner):
    tuning = owner.start_tuning(tuning_case.registered(owner, m=60).spec("1", name="followed")).id
    olga = visitor_of("olga")
    olga.open(f"/console/tunings/{tuning}")
    assert_ends_as_a_reload(olga, "started", "Released")


@pytest.mark.slow(sibling="test_a_check_ends_with_its_verdict_and_the_form_of_the_release")
def test_a_release_ends_with_the_form_of_a_grant(visitor_of, owner):
    large = owner.create_study(spec(owner.register("large", csv(80_000, 4)).id)).id
    olga = visitor_of("olga")
    olga.open(f"/console/studies/{large}")
    olga.page.get_by_label("I have read what is promised").check()
    olga.press("Release")
    olga.page.reload()  # a release that ended at once has a notice, which a page says once
    assert_ends_as_a_reload(olga, "being drawn", "Give a modeler a grant")


def test_an_inbox_shows_its_first_measurement_and_its_field_has_the_focus(visitor_of, services, owner):
    by_hand = {"source": "inbox", "direction": "maximize", "question": "How much?"}
    study = owner.create_study(spec(owner.register("by hand", csv(60, 1)).id, measurement=by_hand)).id
    owner.release(study)
    token = owner.grant(study, wire.GrantCreate(name="v")).token
    mia = visitor_of("mia")
    mia.open("/console/inbox")
    expect(mia.page.locator("main")).to_contain_text("When a modeler sends a query")
    with StudyClient(services.curator.url, token, study) as vendor:
        vendor.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row) for row in (3, 4)]), key="two")
        assert_ends_as_a_reload(mia, "measurement", "How much?")
        value = mia.page.get_by_label("Value")
        expect(value).to_be_focused()
        value.fill("4.2")
        vendor.ask(wire.QueryRequest(rows=[wire.RowPlays(row=5)]), key="third")
        expect(mia.page.locator("main")).to_contain_text("3 measurements wait")
        expect(mia.page.get_by_role("table", name="Then").get_by_role("row")).to_have_count(3)
        expect(value).to_have_value("4.2")  # what somebody types stays


def test_a_run_ends_with_the_button_that_hands_its_recommendation_over(visitor_of, services, owner):
    draft = owner.create_study(spec(owner.register("quick", csv(60, 2)).id, reply_after_ms=300))
    study, confirmed = draft.id, wire.ReleaseAsked(spec_sha256=draft.spec_sha256, confirm_chance=True)
    owner.release(study, request=confirmed)
    made = owner.grant(study, wire.GrantCreate(name="v"))
    vera = visitor_of("vera")
    vera.open("/console/start")
    vera.page.get_by_label("Or the grant as text").fill(wire.GrantFile.of(made, services.handed_over).model_dump_json())
    vera.page.get_by_label("Queries", exact=True).fill("12")
    vera.press("Start the run")
    vera.page.get_by_text("Add a note or tags").click()
    note = vera.page.get_by_label("Note", exact=True)
    note.fill("half typed")
    expect(vera.page.locator("main")).to_contain_text("completed")
    expect(note).to_have_value("half typed")
    expect(vera.page.get_by_text("queued")).to_have_count(0)
    note.fill("")
    vera.page.get_by_text("Add a note or tags").click()
    assert_ends_as_a_reload(vera, "completed", "All its queries were answered.")
    vera.press("Hand over this recommendation")
    expect(vera.page.get_by_role("table", name="Messages to the owner")).to_be_visible()
