"""A modeler as a process, people logged in at its console, and a run that has ended."""

from dataclasses import replace

import pytest

from blindopt import wire
from blindopt.client import Vendor
from modeler_service.context import open_context
from modeler_service.settings import Settings
from tests.plain_browser import add_people, logged_in

ROLES = ("vendor", "viewer")


@pytest.fixture(scope="module")
def service(make_service, tmp_path_factory):
    made = make_service("modeler", tmp_path_factory.mktemp("console"), logins_per_minute="1000")
    with open_context(Settings(data_dir=made.data)) as context:
        add_people(context, ROLES)
    return made.start()


@pytest.fixture(scope="module")
def browsers(service):
    """A browser for each role, logged in."""
    with logged_in(service.url, ROLES) as browsers:
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
