"""A modeler as a process, people logged in at its console, and a run that has ended."""

from dataclasses import replace

import httpx
import pytest

from blindopt import wire
from blindopt.client import Vendor
from modeler_service.context import open_context
from modeler_service.settings import Settings
from service_kit.cli import users
from service_kit.identity import passwords
from tests.plain_browser import Browser

PASSWORD = "correct horse battery staple"
ROLES = ("vendor", "viewer")


@pytest.fixture(scope="module")
def service(make_service, tmp_path_factory):
    made = make_service("modeler", tmp_path_factory.mktemp("console"), logins_per_minute="1000")
    cheap = passwords.hash_of(PASSWORD, "minimal")
    with open_context(Settings(data_dir=made.data)) as context:
        for role in ROLES:
            context.database.write(lambda db, role=role: users.add_user(db, context, role, role, cheap))
    return made.start()


@pytest.fixture(scope="module")
def browsers(service):
    """A browser for each role, logged in."""
    nothing = httpx.Cookies()
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60, verify=False, cookies=nothing) as client:
        browsers = {role: Browser(service.url, client) for role in ROLES}
        for role, browser in browsers.items():
            browser.send("POST", "/console/login", data={"name": role, "password": PASSWORD})
            assert browser.path == "/console/"
        yield browsers


@pytest.fixture(scope="module")
def api(service):
    with Vendor(service.url, service.token, timeout_s=60) as client:
        yield client


@pytest.fixture(scope="module")
def ended(api, curator, owner, opened, run_of, until):
    """The id of a run of six trials, under a grant of its own: a shared log has one modeler."""
    mine = replace(opened, token=owner.grant(opened.id, wire.GrantCreate(name="console")).token)
    made = api.start(run_of(curator.url, mine, iterations=4, initial_rows=2, seed=3))
    until(lambda: api.run(made.id).view.ended_at)
    ended = api.run(made.id).view
    assert (ended.state, ended.problem) == ("completed", None)
    return made.id
