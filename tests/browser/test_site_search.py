"""The search of the documentation site, as a reader uses it."""

import os
import re

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


@pytest.mark.slow(sibling="test_site.py::test_the_search_has_every_page_for_users_and_no_other")
def test_a_word_gives_the_pages_that_explain_it(site, visit):
    reader = visit(site)
    reader.open("/index.html")
    reader.page.get_by_role("button", name="Search").first.click()
    reader.page.keyboard.type("planar laplace")
    expect(reader.page.get_by_text(re.compile(r"^[1-9]\d* results$"))).to_be_visible()


@pytest.mark.slow(sibling="test_site.py::test_the_search_has_every_page_for_users_and_no_other")
def test_a_word_that_no_page_has_leads_nowhere(site, visit):
    reader = visit(site)
    reader.open("/glossary.html")
    reader.page.get_by_role("button", name="Search").first.click()
    reader.page.keyboard.type("zzqqxv")
    expect(reader.page.get_by_text(re.compile(r"^(0|No) results"))).to_be_visible()
