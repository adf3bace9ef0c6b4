"""Both stories in a real browser: from nothing to a found house, each page looked at, by whoever may see it."""

import csv
import os
import re

import pytest
from playwright.sync_api import expect

import curator_service.console
import modeler_service.console
from tests import console_errors, postgres
from tests.browser import hostile_names, user_actions
from tests.browser.conftest import Visitor
from tests.browser.two_services import BOUNDS, PASSWORD, PEOPLE, InContainers, houses, houses_csv, opened, price
from tests.house_words import HOUSE_WORDS

KERNEL = {
    "I give the vendor a kernel": True,
    "Length scale": "0.6",
    "Signal variance": "40000",
    "Noise variance": "100",
    "Prior mean": "350",
}


@pytest.fixture(scope="module")
def services(make_service, tmp_path_factory):
    """Both services, and everybody who may log in; nothing else. BLINDOPT_CONTAINERS has ports of running ones."""
    if ports := os.environ.get("BLINDOPT_CONTAINERS"):
        yield InContainers(*ports.split())
        return
    with opened(make_service, tmp_path_factory.mktemp("services")) as services:
        yield services


@pytest.fixture(scope="module")
def people(services, browser):
    """Who has logged in so far."""
    visitors = {}
    yield visitors
    for visitor in visitors.values():
        visitor.close()


@pytest.fixture
def enter(services, browser, people):
    """Lets somebody in, each at a browser of their own; who was in already is at the first page again."""
    entered = []

    def come(name, **more):
        if (key := (name, *more)) in people:
            people[key].open("/console")
        else:
            people[key] = Visitor(browser, services.address_of(name), **more)
            people[key].login(name, PASSWORD)
        entered.append(people[key])
        return people[key]

    yield come
    for visitor in entered:
        visitor.leave()


def by_hand(scripts=True):
    """The steps of a study that people measure."""
    return {
        "Features": {"Name of the study": "Most valued house"}
        | {
            f"{part} of {name}": str(bound)
            for name, pair in BOUNDS.items()
            for part, bound in zip(("smallest", "largest"), pair, strict=True)
        }
        | ({} if scripts else dict.fromkeys(BOUNDS, True)),  # a script ticks what bounds are typed for
        "Outcome": {
            "People measure it": True,
            "Question": "Visit the house and estimate what it would sell for.",
            "Unit of the outcome": "k€",
            "Smallest allowed value": "50",
            "Largest allowed value": "2000",
            "house": True,
            "area_m2": True,
            "built": True,
        },
        "Release": {"epsilon": "6", "area_m2: hide a change of": "22", "built: hide a change of": "12.5"},
        "Answers": {"Exactly": True, "How many measurements may the vendor query in total?": "100", **KERNEL},
    }


@pytest.mark.slow(sibling="test_own_data.py::test_own_data_from_the_upload_to_an_accepted_recommendation")
def test_both_stories_from_an_empty_installation(services, enter):
    olga, vera, mia, ada = (enter(name) for name in ("olga", "vera", "mia", "ada"))
    access = owner_opens_a_study(olga)
    assert access.address == services.handed_over
    run = vendor_starts_a_run(vera, access)
    measurer_answers_ten(mia)
    vendor_finds_the_house(vera, run)
    owner_opens_the_record(olga, vera, run)
    auditor_verifies(ada, access.study)
    services.verify()


def owner_opens_a_study(olga):
    page = olga.page
    expect(page.get_by_text("There is no dataset yet.")).to_be_visible()
    dataset = refused_then_taken(olga)
    expect(page.get_by_role("table", name="Columns")).to_contain_text("area_m2")

    def look(step):
        olga.audit(dark=False)  # the first step is looked at in the dark with all other pages
        olga.shoot(f"draft-{step.lower()}")
        if step == "Release":
            expect(page.get_by_role("table", name="Noise and confusion by feature")).to_be_visible()
            olga.audit()

    study = user_actions.draft(olga, dataset, by_hand(), look)
    expect(page.get_by_role("region", name="What attacks recover")).to_be_visible()
    olga.audit()
    olga.shoot("study-previewed")
    user_actions.release(olga)
    access = user_actions.grant(olga, study, "Vera of House Finders")
    assert access.study == study
    olga.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy all").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == access.file.decode()
    page.set_viewport_size({"width": 320, "height": 860})
    assert page.evaluate(WIDE) == []
    page.set_viewport_size({"width": 1200, "height": 860})
    olga.audit()
    return access


def refused_then_taken(olga):
    """A file with a gap is refused by row and column; mended, it is understood."""
    olga.expects("status of 422")
    olga.open("/console/datasets/new")
    broken = houses_csv().replace(b"\n7,", b"\n7,,")
    olga.page.get_by_label("File").set_input_files([{"name": "houses.csv", "mimeType": "text/csv", "buffer": broken}])
    olga.press("Check and store")
    expect(olga.page.get_by_role("alert")).to_be_visible()
    expect(olga.page.locator("main")).to_contain_text("house")
    olga.audit(dark=False)
    olga.shoot("dataset-refused")
    return user_actions.upload(olga, "Houses", houses_csv())


def vendor_starts_a_run(vera, access):
    page = vera.page
    vera.open("/console/start")

    def look():
        page.get_by_role("button", name="Test the connection").click()
        expect(page.get_by_text("A run can be started.")).to_be_visible()
        vera.audit()

    fields = {
        "Queries": "10",
        "Candidates queried first": "4",
        "Candidates queried together": "2",
        "Name of the run": "houses",
    }
    run = user_actions.start(vera, access, fields, look)
    expect(page.locator("main")).to_contain_text("for a person or a laboratory")
    vera.audit()
    return run


def measurer_answers_ten(mia):
    page = mia.page
    mia.expects("status of 422")
    mia.press("Open the inbox", "link")
    value = page.get_by_label("Value")
    for answered in range(10):
        if value.count() == 0:  # the next ones are asked for, and appear by themselves
            value.wait_for()
        expect(value).to_be_focused()
        shown = user_actions.shown(mia)
        typed = str(price(shown["area_m2"], shown["built"]))
        if answered == 1:
            refuse_a_slip(mia, value, typed)
        if answered == 0:
            mia.picture("owner-5-inbox", 790)
            with page.expect_navigation():  # passed over, and asked again
                page.keyboard.press("s")
            shown = user_actions.shown(mia)
            typed = str(price(shown["area_m2"], shown["built"]))
        value.fill(typed)
        with page.expect_navigation():
            page.keyboard.press("Enter")
        expect(page.get_by_role("status").filter(has_text="of the file")).to_be_visible()
    mia.open("/console/inbox/told")
    expect(page.get_by_role("row")).to_have_count(11)


def refuse_a_slip(mia, value, typed):
    """What lies outside of what can be is refused beside its field, and the field has the focus again."""
    value.fill(typed + "0000")
    with mia.page.expect_navigation():
        mia.page.keyboard.press("Enter")
    expect(mia.page.locator("#e-value")).to_be_visible()
    expect(value).to_be_focused()
    mia.audit(dark=False)


def vendor_finds_the_house(vera, run):
    page = vera.page
    expect(page.get_by_text("All its queries were answered.").last).to_be_visible()  # without a reload
    best = float(page.locator("dt", has_text="Best answer").locator("+ dd").inner_text().split()[0].replace(",", ""))
    prices = [price(area, built) for _, area, built in houses()]
    assert best >= sorted(prices)[int(0.8 * len(prices))], (best, max(prices))
    vera.open(f"/console/runs/{run}")
    vera.shoot("run")
    vera.press("Model", "link")
    expect(page.get_by_role("group", name=re.compile("expects of each"))).to_be_visible()


def owner_opens_the_record(olga, vera, run):
    """The vendor hands the recommendation over; the record behind it is one of the best fifth, and is accepted."""
    vera.open(f"/console/runs/{run}")
    vera.press("Hand over this recommendation")
    olga.open("/console")
    with olga.page.expect_navigation():
        olga.page.get_by_role("link", name="The vendor recommends candidate").click()
    decide = olga.page.url
    olga.press("Open the record")
    shown = olga.page.locator("main tbody tr").all_inner_texts()
    record = {name: float(value.replace(",", "")) for name, value, _ in (row.split("\t") for row in shown)}
    prices = sorted(price(area, built) for _, area, built in houses())
    assert price(record["area_m2"], record["built"]) >= prices[int(0.8 * len(prices))], record
    olga.press("Write the letter")
    expect(olga.page.locator("main")).to_contain_text("A blurred copy of your data was sent")
    olga.audit()
    olga.open(decide)
    olga.page.get_by_label("Accepted").check()
    olga.press("Save")
    expect(olga.page.locator("main")).to_contain_text("accepted")


def auditor_verifies(ada, study):
    page = ada.page
    ada.open(f"/console/accounts/{study}")
    expect(page.get_by_role("table", name=re.compile("Ledger"))).to_be_visible()
    ada.open("/console/log")
    ada.press("Verify the full log")
    expect(page.get_by_role("status").filter(has_text="Verified: ")).to_be_visible()
    ada.audit()


# --- every page, with hostile content -----------------------------------------------------------------

CONSOLES = {"curator": curator_service.console.build(), "modeler": modeler_service.console.build()}
MORE = {
    "curator": [
        "/studies/new?from={study_id}",
        "/studies/new?from={study_id}&epsilon=4",
        "/studies/new?from={groups_id}&epsilon=4",
        "/studies/{groups_id}",
        "/studies/{groups_id}/groups",
        "/datasets/{dataset_id}/account",
        "/inbox/told?state=declined",
        "/tunings/new?from={tuning_id}",
        "/tunings/new?validation_dataset_id={dataset_id}&score.kind=http&method.name=gp_ucb_simulated&go=form",
        "/tunings/new?validation_dataset_id={dataset_id}&score.kind=http&method.name=kusner_2&go=form",
    ],
    "modeler": ["/start?like={run_id}", "/compare?run={run_id}", "/runs/nothing-here"],
}
"""Addresses whose query decides what the page is."""
ASK = """async (path) => {
  const reply = await fetch(path, { headers: { Accept: "*/*" } });
  const type = reply.headers.get("content-type") ?? "";
  if (type.startsWith("text/event-stream")) { await reply.body.cancel(); return [reply.status, type, ""]; }
  return [reply.status, type, await reply.text()];
}"""
HARM = """() => [
  ...document.querySelectorAll("[style], [onclick], [onerror], script:not([src]), style, img[src=x], main b"),
].map((e) => e.outerHTML.slice(0, 200))"""
TURNING = r"""() => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walk.nextNode()) {
    const text = walk.currentNode, turns = /[\u202a-\u202e\u2066-\u2069]/.test(text.data);
    if (turns && !text.parentElement.closest("bdi, option, textarea, svg, .unseen"))
      found.push(text.parentElement.outerHTML.slice(0, 200));
  }
  return found;
}"""
"""Text that could turn what stands around it."""
WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth && !e.closest(".box, svg"))
  .map((e) => e.outerHTML.slice(0, 160)).slice(0, 5)"""
"""What makes the page wider than the window; wide tables scroll inside their box."""


SMALL = """() => [
  ...[...document.querySelectorAll("header.top")].filter((e) => e.getBoundingClientRect().height >= 100),
  ...[...document.querySelectorAll("input[type=checkbox], input[type=radio]")]
    .filter((e) => e.checkVisibility() && Math.min(e.offsetWidth, e.offsetHeight) < 24),
  ...[...document.querySelectorAll(".chart svg text")].filter((e) => {
    const svg = e.ownerSVGElement, scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return scale > 0 && parseFloat(getComputedStyle(e).fontSize) * scale < 11;
  }),
].map((e) => `size: ${e.outerHTML.slice(0, 160)}`)"""
"""Text of charts below 11 px, a menu that takes too much of a phone's screen, and boxes that are too small for a finger
(WCAG 2.5.8)."""


@pytest.fixture(scope="module")
def ids(services):
    return vars(hostile_names.furnished(services))


def addresses(service, role, ids):
    """Every page that a role may look at, from the console's own list: a new page is found by itself."""
    entries = [e for e in CONSOLES[service].entries if e.method == "GET" and role in e.roles]
    more = [path for path in MORE[service] if any(path.startswith(e.path.split("{")[0]) for e in entries)]
    return ["/console" + path.format(**ids) for path in (*(e.path for e in entries), *more)]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("service", "name"), [("curator", "olga"), ("modeler", "vera")])
def test_every_page_is_accessible_and_shows_hostile_text_as_text(enter, ids, service, name):
    person = enter(name)
    person.expects("status of 404")
    if service == "curator":
        ids = ids | {"upload_id": user_actions.pending(person, hostile_names.text_csv())}
    wrong, files, seen = [], set(), ""
    for address in addresses(service, PEOPLE[service][name], ids):
        status, kind, text = person.page.evaluate(ASK, address)
        assert status == (404 if "nothing" in address else 200), (address, text[:500])
        if "csv" in kind:
            files.add(address)
        if text.startswith("<!doctype html>"):
            person.open(address)
            wrong += looked_at(person)
            person.shoot(f"{service}-{re.sub('(_[0-9a-f]{16})|[^a-z]+', '-', address.partition('console/')[2])}")
            seen += person.page.locator("body").inner_text()
            links = person.page.locator("a[download], a[href*='as=csv'], a[href*='format=csv']").all()
            files |= {link.get_attribute("href") for link in links}
    assert wrong == [], "\n".join(map(str, wrong))
    shown = (
        [hostile_names.markup(hostile_names.STUDY), hostile_names.COLUMNS[1]]
        if service == "curator"
        else [hostile_names.script(hostile_names.RUN)]
    )
    for text in shown:
        assert text in seen
    kinds = {re.sub(r"_[0-9a-f]{16}|\d+", "_", address): address for address in files}
    assert len(kinds) > 3
    for address in kinds.values():  # one of each kind: ids and numbers make no other export
        check_file(person, address)


WRITTEN = """() => {
  const body = document.body.cloneNode(true);
  body.querySelectorAll("bdi, pre, code, svg, script, textarea").forEach((e) => e.remove());
  return body.textContent.replace(/\\s+/g, " ");
}"""
"""The text that the project wrote, without names and values."""


IDS = """() => [...document.querySelectorAll("a")].map((link) => link.textContent.trim())
  .filter((shown) => /\\b[a-z]{2,4}_[0-9a-f]{16}\\b/.test(shown))"""
"""Ids that are the text of a link: a page says a name there."""


def looked_at(person):
    """What is wrong with the page that is open."""
    page = person.page
    words = HOUSE_WORDS.findall(page.evaluate(WRITTEN))
    wrong = [
        *words,
        *console_errors.faults_of(page.content()),
        *page.evaluate(HARM),
        *page.evaluate(TURNING),
        *page.evaluate(IDS),
        *person.faults(),
    ]
    for width in (320, 1200):
        page.set_viewport_size({"width": width, "height": 860})
        wrong += page.evaluate(WIDE)
        wrong += page.evaluate(SMALL) if width == 320 else []
    assert page.evaluate("window.ran") is None
    return [(page.url, fault) for fault in wrong]


def check_file(person, address):
    """No cell of an export would be run by a spreadsheet."""
    status, kind, text = person.page.evaluate(ASK, address)
    assert status == 200, address
    assert "html" not in kind
    if "csv" in kind:
        cells = [cell for row in csv.reader(text.splitlines(keepends=True)) for cell in row]
        formulas = [
            c for c in cells if c[:1] in tuple("=+-@\t\r|%") and not re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", c)
        ]
        assert formulas == [], address


MAY_NOT_SEE = {
    "mia": {hostile_names.GRANT, hostile_names.DATASET, hostile_names.RUN},
    "ada": {
        hostile_names.COLUMN,
        hostile_names.QUESTION,
        hostile_names.NOTE,
        hostile_names.DATASET,
        hostile_names.RUN,
    },
    "ivo": set(range(1, 8)) - {hostile_names.RUN},
    "vera": set(range(1, 8)) - {hostile_names.RUN},
}


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", MAY_NOT_SEE)
def test_a_role_sees_nothing_that_is_not_its_own(enter, ids, name):
    service = "curator" if name in PEOPLE["curator"] else "modeler"
    role, person = PEOPLE[service][name], enter(name)
    person.expects("status of 40")
    entries = CONSOLES[service].entries
    named = [(e.section or e.nav, e.nav) for e in entries if e.nav is not None and role in e.roles]
    sections = {section: [nav for other, nav in named if other == section] for section, _ in named}
    menu = [section if len(pages) > 1 else pages[0] for section, pages in sections.items()]
    assert person.page.get_by_role("navigation", name="Main").get_by_role("link").all_inner_texts() == menu
    for address in addresses(service, role, ids):
        text = person.page.evaluate(ASK, address)[2]
        assert not {int(n) for n in re.findall(r"window\.ran=(\d)", text)} & MAY_NOT_SEE[name], address
    refused = [e for e in entries if role not in e.roles]
    for entry in refused:
        path = "/console" + re.sub(r"{(\w+)}", lambda m: ids.get(m[1], "grt_0000000000000000"), entry.path)
        script = ASK.replace("headers: {", f'method: "{entry.method}", headers: {{')
        status, _, text = person.page.evaluate(script, path)
        assert status == 403, (entry.method, path)
        assert "window.ran" not in text
    assert refused or role in ("vendor",)


# --- without scripts, and after a kill ----------------------------------------------------------------


@pytest.mark.slow(sibling="test_results.py::test_a_recommendation_and_a_request_go_to_the_owner_and_back")
def test_without_scripts_one_uploads_defines_a_study_measures_and_runs(enter):
    olga, vera, mia = (enter(name, java_script_enabled=False) for name in ("olga", "vera", "mia"))
    dataset = user_actions.upload(olga, "Houses again", houses_csv())
    study = user_actions.draft(olga, dataset, by_hand(scripts=False), lambda step: None)
    user_actions.release(olga)
    access = user_actions.grant(olga, study, "Vera")
    vera.open("/console/start")
    fields = {"Queries": "1", "Candidates queried first": "0", "Algorithm": "random"}
    run = user_actions.start(vera, access, fields, pasted=True)
    mia.again_until(f"/console/inbox?study={study}", "Save and next")
    mia.page.get_by_label("Value").fill("321")
    mia.press("Save and next")
    expect(mia.page.get_by_role("status").filter(has_text="of the file")).to_be_visible()
    vera.again_until(f"/console/runs/{run}", "All its queries were answered.")
    expect(vera.page.locator("main")).to_contain_text("321")
    vera.page.get_by_text("Numbers of this chart").first.click()
    expect(vera.page.get_by_role("cell", name="321").first).to_be_visible()


def test_a_run_that_waits_for_people_outlives_both_services(services, enter):
    mia, vera = enter("mia"), enter("vera")
    for person in (mia, vera):
        person.expects("ERR_CONNECTION_REFUSED")
        person.expects("ERR_INCOMPLETE_CHUNKED_ENCODING")
        person.expects("ERR_CONNECTION_RESET")
        person.expects("ERR_EMPTY_RESPONSE")
        if postgres.ON:
            person.expects("503 (Service Unavailable)")  # it waits to lead until its session of before has ended
    study, run = hostile_names.waiting(services)
    vera.open(f"/console/runs/{run}")
    expect(vera.page.locator("main")).to_contain_text("for a person")
    for service in (services.modeler, services.curator):
        service.kill()
        service.start()
    for value in ("300", "400"):  # under the session of before
        mia.again_until(f"/console/inbox?study={study}", "Save and next")
        mia.page.get_by_label("Value").fill(value)
        mia.press("Save and next")
    # Her page was open all the time: it has found the service again.
    expect(vera.page.get_by_text("All its queries were answered.").last).to_be_visible()
    expect(vera.page.locator("main")).to_contain_text("400")
