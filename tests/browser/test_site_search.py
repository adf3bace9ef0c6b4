"""The documentation site in a browser: its search, its colours, its width on a phone."""

import os
import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from tests import processes
from tests.browser.conftest import served


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    done = processes.run("docs.website", str(folder), "--quick", env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    with served(Starlette(routes=[Mount("/", StaticFiles(directory=folder / "site", html=True))])) as url:
        yield url


PAGES = {
    "install": "install",
    "pip install": "install",
    "quickstart": "quickstart",
    "FAQ": "faq",
    "docker": "docker",
    "kubernetes": "howto/install",
    "upgrade": "howto/upgrade",
    "backup": "howto/back-up-and-restore",
    "forgot password": "howto/lost",
    "lost key": "howto/lost",
    "security": "security",
    "vulnerability": "security",
    "what is epsilon": "howto/choose-epsilon",
    "differential privacy": "privacy-in-two-pages",
    "Bayesian optimization": "two-ideas",
    "GDPR": "data-protection",
    "HIPAA": "data-protection",
    "anonymisation": "data-protection",
    "pseudonymous": "data-protection",
    "consent": "howto/answer-for-the-data",
    "limitations": "limits",
    "when not to use": "what-is-blindopt",
    "how many queries do I need": "how-many-queries",
    "regret": "how-good",
    "Excel": "howto/bring-your-data",
    "categorical": "howto/bring-your-data",
    "missing values": "howto/bring-your-data",
    "dates": "howto/bring-your-data",
    "groups": "howto/groups",
    "hyperparameter": "howto/choose-hyper-parameters",
    "Optuna": "howto/own-loop",
    "BoTorch": "howto/own-loop",
    "firewall": "howto/connect",
    "PostgreSQL": "howto/postgresql",
    "token": "howto/users-and-tokens",
}
"""What newcomers type, and the page that explains it."""
SHOWN = 3
"""How many pages a reader looks at."""
LINKS = """() => {
  const roots = [document], links = [];
  while (roots.length) for (const element of roots.pop().querySelectorAll("*")) {
    if (element.shadowRoot) roots.push(element.shadowRoot);
    if (element.matches("a[href*='?h=']")) links.push(element.href);
  }
  return links;
}"""
"""Addresses of the results, in their order: the search marks its words in them."""


def first_pages(reader, words):
    """The pages that a search shows first."""
    reader.page.keyboard.press("Control+A")
    reader.page.keyboard.press("Delete")
    reader.page.wait_for_function(f"() => !({LINKS})().length")  # none of the words before
    reader.page.keyboard.insert_text(words)
    reader.page.wait_for_function(f"() => ({LINKS})().length")
    addresses = [urlsplit(link).path.removeprefix("/").removesuffix(".html") for link in reader.page.evaluate(LINKS)]
    return list(dict.fromkeys(addresses))[:SHOWN]


@pytest.mark.slow(sibling="test_site.py::test_the_search_has_every_page_for_users_and_no_other")
def test_what_newcomers_type_leads_to_its_page_among_the_first_three(site, visit):
    reader = visit(site)
    reader.open("/index.html")
    reader.page.get_by_role("button", name="Search").first.click()
    shown = {words: first_pages(reader, words) for words in PAGES}
    assert {words: pages for words, pages in shown.items() if PAGES[words] not in pages} == {}
    assert "glossary" not in first_pages(reader, "quickstart")  # not every page is among them


@pytest.mark.slow(sibling="test_site.py::test_the_search_has_every_page_for_users_and_no_other")
def test_a_word_that_no_page_has_leads_nowhere(site, visit):
    reader = visit(site)
    reader.open("/glossary.html")
    reader.page.get_by_role("button", name="Search").first.click()
    reader.page.keyboard.type("zzqqxv")
    expect(reader.page.get_by_text(re.compile(r"^(0|No) results"))).to_be_visible()


@pytest.mark.slow(
    sibling="test_site.py::test_the_site_has_the_icon_and_the_colours_of_the_consoles_in_the_scheme_of_the_system"
)
def test_pages_follow_the_dark_of_the_system_and_fit_a_phone(site, visit):
    reader = visit(site)
    background = "getComputedStyle(document.body).backgroundColor"
    for scheme, colour in (("dark", "rgb(18, 24, 22)"), ("light", "rgb(255, 255, 255)")):
        reader.page.emulate_media(color_scheme=scheme)
        reader.open("/index.html")
        assert reader.page.evaluate(background) == colour
    reader.page.set_viewport_size({"width": 390, "height": 800})
    widths = {}
    for page in (
        "security",
        "privacy",
        "reference/curator/studies",
        "reference/python",
        "notebooks/d-choosing-epsilon",
    ):
        reader.open(f"/{page}.html")
        widths[page] = reader.page.evaluate("document.documentElement.scrollWidth")
    assert set(widths.values()) == {widths["security"]}, widths  # which has neither formulas nor tables
