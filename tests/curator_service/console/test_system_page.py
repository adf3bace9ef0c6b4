"""The page of the system that measures: its failures, and the button that tries again."""

import pytest

from tests.curator_service.queries.inbox.measured_study import open_measured_study
from tests.curator_service.queries.inbox.owners_system import KEY, serve_owners_system

BUSY = 503, b"said by the system alone", {"Retry-After": "3000", "X-Told": "said by the system alone"}
WRONG = 200, b'{"value": "said by the system alone"}', {}


@pytest.fixture(scope="module")
def owners_system():
    with serve_owners_system() as system:
        yield system


@pytest.fixture(scope="module")
def settings(tmp_path_factory, owners_system):
    """The owner's system is called; a measurement that fails three times is given up."""
    secret = tmp_path_factory.mktemp("system") / "secret"
    secret.write_text(KEY)
    return {"measurer_url": owners_system.url, "measurer_secret_file": str(secret), "measurer_hours": "0.00001"}


@pytest.fixture(scope="module")
def study(service, small):
    with open_measured_study(small, service, source="webhook") as study:
        yield study


def test_one_that_was_given_up_is_seen_and_tried_again(owners_system, study, measurer, until):
    owners_system.fails = lambda call, before: WRONG
    query = study.ask(3)
    (item,) = until(lambda: [item for item in study.items(query.id) if item.problem])
    measurer.get("/inbox")
    assert "The system that measures" in measurer.shown
    measurer.get("/inbox/system")
    assert "Given up, left to people 1" in measurer.shown
    assert '"value" must be a number' in measurer.shown
    assert f"/inbox/{item.id}" in measurer.text
    assert f"{item.id},{item.query_id}," in measurer.get("/inbox/system?as=csv").text
    measurer.get(f"/inbox/{item.id}")
    assert "given up" in measurer.shown
    owners_system.fails = lambda call, before: None
    measurer.submit(f"/inbox/{item.id}:try_again")
    assert "Your system is called for it now" in measurer.shown
    assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
    assert owners_system.worked[item.id] == 1
    measurer.get(f"/inbox/{item.id}")
    assert "Try now" not in measurer.shown
    measurer.get("/inbox/system")
    assert "No measurement waits for the system" in measurer.shown


def test_a_busy_system_is_reported_and_all_are_tried_by_one_button(owners_system, study, owner, until):
    owners_system.fails = lambda call, before: BUSY
    queries = [study.ask(row, key=f"busy {row}") for row in (11, 12)]
    until(lambda: study.measurer.system().given_up == 2)  # it was asked, is old, and comes back in an hour
    owner.get("/inbox/system")
    assert "does not answer" in owner.shown
    assert "the other party answered 503" in owner.shown
    assert "Given up, left to people 2" in owner.shown
    assert "said by the system" not in owner.text
    owners_system.fails = lambda call, before: None
    owner.submit("/inbox/system:try_again")
    assert "Brought forward: 2" in owner.shown
    for query in queries:
        assert study.modeler.query(query.id, wait_s=50)[0].state == "answered"
    assert "said by the system" not in study.service.log + str(study.service.records())
