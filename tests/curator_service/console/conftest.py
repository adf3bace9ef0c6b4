"""A curator as a process, and people logged in at its console."""

import httpx
import pytest

from curator_service.context import open_context
from curator_service.settings import Settings
from service_kit.cli import users
from service_kit.identity import passwords
from tests.plain_browser import Browser

PASSWORD = "correct horse battery staple"
ROLES = ("owner", "measurer", "auditor")


@pytest.fixture(scope="module")
def settings():
    """More settings of the service, for a module to say."""
    return {}


@pytest.fixture(scope="module")
def service(make_service, tmp_path_factory, settings):
    made = make_service("curator", tmp_path_factory.mktemp("console"), logins_per_minute="1000", **settings)
    cheap = passwords.hash_of(PASSWORD, "minimal")
    with open_context(Settings(data_dir=made.data)) as context:
        for role in ROLES:
            context.database.write(lambda db, role=role: users.add_user(db, context, role, role, cheap))
    return made.start()


@pytest.fixture(scope="module")
def people(service):
    """A browser for each role, logged in."""
    # Without cookies of its own: those of the console are for TLS, and browsers take a loopback address for that.
    nothing = httpx.Cookies()
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60, verify=False, cookies=nothing) as client:
        browsers = {role: Browser(service.url, client) for role in ROLES}
        for role, person in browsers.items():
            person.send("POST", "/console/login", data={"name": role, "password": PASSWORD})
            assert person.path == "/console/"
        yield browsers


@pytest.fixture
def owner(people):
    return people["owner"]


@pytest.fixture
def measurer(people):
    return people["measurer"]


@pytest.fixture
def auditor(people):
    return people["auditor"]
