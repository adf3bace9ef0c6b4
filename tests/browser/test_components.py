"""The parts that all pages are made of, in a real browser, with hostile text wherever a person writes."""

import re
from datetime import UTC, datetime

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor, served
from tests.shared.service_kit.console import sample_service


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return sample_service.build(tmp_path_factory.mktemp("gallery"), logins_per_minute=1000)


@pytest.fixture(scope="module")
def url(app):
    with served(app) as url:
        yield url
    app.state.context.database.close()


@pytest.fixture(scope="module")
def ann(browser, url):
    """Logs in once; each test then looks at what its own pages said."""
    visitor = Visitor(browser, url)
    visitor.login("ann", sample_service.PASSWORD)
    yield visitor
    visitor.close()


@pytest.fixture
def owner(ann):
    ann.page.set_viewport_size({"width": 1200, "height": 860})
    yield ann
    ann.leave()


@pytest.mark.parametrize("name", ["hostile", "Regret against answers"])
def test_every_component_is_accessible_and_runs_nothing_that_it_shows(owner, name):
    owner.open(f"/console/gallery?name={name}")
    for query in ("[style]", "[onclick]", "[onerror]", "script:not([src])", "style", "img[src=x]"):
        assert owner.page.locator(query).count() == 0, query
    owner.shoot(f"gallery-{name[:7]}")
    owner.audit()
    width = owner.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    owner.page.set_viewport_size({"width": 360, "height": 700})
    narrow = owner.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]  # wide parts scroll inside their own box
    assert narrow[0] <= narrow[1], owner.page.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > 360 && "
        "!e.closest('.box')).map(e => e.outerHTML.slice(0, 120)).slice(0, 10)"
    )


def test_the_login_page_and_error_pages_are_accessible(visit, url):
    visitor = visit(url)
    visitor.expects("status of 40")
    visitor.open("/console/login")
    visitor.audit()
    visitor.page.get_by_label("Name").fill("ann")
    visitor.page.get_by_label("Password").fill("not this one")
    visitor.page.get_by_role("button", name="Log in").click()
    expect(visitor.page.get_by_role("alert")).to_have_text("The name or the password is wrong.")
    visitor.audit(dark=False)
    visitor.login("aud", sample_service.PASSWORD)
    assert visitor.open("/console/nowhere").status == 404
    visitor.audit(dark=False)
    assert visitor.open("/console/samples").status == 403
    expect(visitor.page.get_by_role("link", name="Samples")).to_have_count(0)


def test_a_form_shows_what_is_wrong_and_then_what_was_done(owner, app):
    owner.expects("status of 422")
    owner.open("/console/samples")
    name, size = owner.page.get_by_label("Name"), owner.page.get_by_label("Size")
    name.fill(sample_service.MARKUP)
    size.fill("-1")
    owner.page.get_by_role("button", name="Make it").click()
    expect(owner.page.locator("#e-size")).to_have_text("must not be negative")
    expect(owner.page.get_by_role("alert")).to_be_focused()
    owner.audit()  # the colours of what is wrong, for all forms
    expect(name).to_have_value(sample_service.MARKUP)
    size.fill("2.5")
    owner.page.get_by_role("button", name="Make it").click()
    expect(owner.page.get_by_role("status")).to_contain_text("Made <script>")
    owner.audit(dark=False)
    owner.open("/console/samples")
    expect(owner.page.get_by_role("status")).to_have_count(0)  # told once


def test_a_live_part_follows_what_happens_elsewhere_and_ends_as_a_reload(owner, app):
    """What was typed stays, what was said once does not, and where the state differs the whole page is another."""
    app.state.samples.clear()
    owner.open("/console/samples")
    name, part = owner.page.get_by_label("Name"), owner.page.get_by_role("region", name="All samples")
    name.fill("first")
    owner.press("Make it")
    name.fill("half typed")
    app.state.samples.append(sample_service.Sample(name="made elsewhere", size=1))
    expect(part).to_contain_text("2 samples, the last made elsewhere")
    rows = owner.page.get_by_role("region", name="Samples", exact=True).get_by_role("row")
    expect(rows).to_have_count(2)  # the state is the same, and the table no live part
    expect(owner.page.get_by_role("status")).to_contain_text("Made first")
    app.state.samples.append(sample_service.Sample(name="made last", size=1))
    expect(rows).to_have_count(4)
    expect(owner.page.get_by_role("status")).to_have_count(0)
    expect(name).to_have_value("half typed")
    expect(name).to_be_focused()
    expect(owner.page.locator("#said")).to_have_text("3 samples, the last made last")
    ended = owner.html()
    owner.page.reload()
    assert owner.html() == ended


def test_without_scripts_pages_and_forms_work_and_times_are_in_utc(visit, url, app):
    visitor = visit(url, java_script_enabled=False)
    visitor.login("ann", sample_service.PASSWORD)
    visitor.open("/console/gallery")
    expect(visitor.page.locator("time").first).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$"))
    assert visitor.page.locator("svg.wide[role=img]").count() == 3
    visitor.page.get_by_text("Numbers of this chart").first.click()
    expect(visitor.page.get_by_role("link", name="CSV").first).to_be_visible()
    visitor.open("/console/samples")
    visitor.page.get_by_label("Name").fill("without a script")
    visitor.page.get_by_role("button", name="Make it").click()
    expect(visitor.page.get_by_role("status")).to_contain_text("Made without a script")
    assert app.state.samples[-1].name == "without a script"


def test_times_are_in_the_readers_zone_and_a_chart_tells_its_numbers_under_the_pointer(owner):
    owner.open("/console/gallery")
    expect(owner.page.locator("time").first).to_have_text("21 Nov 2026, 13:00 CET")
    assert datetime(2026, 11, 21, 12, tzinfo=UTC).hour == 12
    figure = owner.page.locator("figure").first
    figure.locator("rect.hover").nth(9).hover()
    expect(figure.locator(".readout")).to_contain_text(re.compile(r"^10: .*0\.316"))
    with owner.page.expect_download() as download:
        figure.get_by_text("Numbers of this chart").click()
        figure.get_by_role("link", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0].startswith("answers,")
    assert len(lines) == 61


def test_the_menu_is_reached_by_keyboard_and_the_first_stop_skips_it(owner):
    owner.open("/console/samples")
    owner.page.keyboard.press("Tab")
    expect(owner.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    owner.page.keyboard.press("Enter")
    expect(owner.page.locator("main")).to_be_focused()


def test_the_guards_of_these_tests_do_find_what_they_look_for(browser, url):
    """The control: a visitor to a page that breaks the policy and asks elsewhere does not close in peace."""
    visitor = Visitor(browser, url)
    visitor.open("/console/login")
    visitor.page.evaluate("document.body.setAttribute('style', 'color: red')")
    visitor.page.evaluate("fetch('http://outside.example/').catch(() => 0)")
    visitor.page.evaluate("console.error('heard')")
    visitor.page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    )
    visitor.page.evaluate("document.querySelector('label').remove()")
    with pytest.raises(AssertionError, match="label"):
        visitor.audit(dark=False)
    assert visitor.page.evaluate("window.ran") is None
    with pytest.raises(AssertionError):
        visitor.close()
    text = " ".join(visitor.faults_seen)
    assert "heard" in text
    assert "Content Security Policy" in text
