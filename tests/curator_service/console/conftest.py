"""A curator as a process, and people logged in at its console."""

import pytest

from curator_service.context import open_context
from curator_service.settings import Settings
from tests.plain_browser import add_people, logged_in

ROLES = ("owner", "measurer", "auditor")


@pytest.fixture(scope="module")
def settings():
    """More settings of the service, for a module to say."""
    return {}


@pytest.fixture(scope="module")
def service(make_service, tmp_path_factory, settings):
    made = make_service("curator", tmp_path_factory.mktemp("console"), logins_per_minute="1000", **settings)
    with open_context(Settings(data_dir=made.data)) as context:
        add_people(context, ROLES)
    return made.start()


@pytest.fixture(scope="module")
def people(service):
    """A browser for each role, logged in."""
    with logged_in(service.url, ROLES) as browsers:
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
