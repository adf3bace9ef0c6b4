"""kill -9 of the modeler at named points of a run that people answer: it ends as if nothing had happened."""

import time

import pytest

from tests.system.crashes.crashing_service import Shot
from tests.system.crashes.test_crash_matrix import PATIENCE_SECONDS, Parties
from tests.system.three_parties import QUICK, ThreeParties

# Each point, and the passage at which it kills.
POINTS = {
    "pending.before-commit": 3,
    "pending.after-commit": 3,
    "look.before": 5,
    "look.after": 5,
    "version.before-commit": 6,
    "version.after-commit": 6,
    "revisions.before": 4,
    "revisions.after": 4,
}


@pytest.fixture(scope="module")
def services(make_service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    made = Parties(make_service("curator", folder), make_service("modeler", folder, **QUICK))
    yield made
    for service in (made.curator, made.modeler):
        service.process.kill()


@pytest.fixture(scope="module")
def parties(services, small):
    made = ThreeParties(services.curator, services.modeler, small)
    yield made
    made.close()


@pytest.mark.slow(every=8)
@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_a_kill_interrupts_while_people_answer_goes_on(point, services, parties, tmp_path):
    """Some rows are declined on the way."""
    study, grant = parties.opened()
    Shot(point, POINTS[point]).aim(services.control(services.modeler))
    with parties.somebody(study, declines=lambda item: item.record % 5 == 0):
        run, deadline = parties.start((study, grant)), time.monotonic() + PATIENCE_SECONDS
        while not services.has_died(services.modeler):
            assert time.monotonic() < deadline, "the point was not passed"
            time.sleep(0.02)
        services.modeler.start()
        ended = parties.vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.trials + ended.declined) == ("completed", 10)
    charged = parties.charges(study)
    assert len({line.query_id for line in charged}) == len(charged) == 10
    parties.check(study, run, folder=tmp_path)
