"""What the budget refuses of those who measure is in the log, however it came."""

import pytest

from blindopt import wire
from service_kit.store import audit_log
from tests.curator_service.use_cases.inbox.in_process_curator import House
from tests.curator_service.use_cases.inbox.measured_study import LAPLACE


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("how", ["one by one", "by a file"])
def test_a_late_answer_that_the_budget_refuses_is_told_by_the_log(how, house, small, study_of):
    """The mean of a row's plays was told once; a second one would cost what the row has not left."""
    answers = LAPLACE.model_copy(update={"plays": "mean"})
    budget = wire.Budget(epsilon_per_row="0.7")
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=answers, budget=budget))
    query = house.ask(study, [1], 2)
    first, second = house.items(query)
    assert house.tell("answer", query, [first], 1.0).status_code == 200
    body = {"measurement_ids": [second["id"]], "reason": "consent"}
    house.done("measurer", "POST", f"/v1/queries/{query}:decline", json=body)
    before = house.context.audit_trail.head().size
    if how == "one by one":
        refused = house.tell("answer", query, [second], 2.0)
    else:
        csv = f"measurement_id,value\n{second['id']},2.0".encode()
        refused = house.send("measurer", "POST", "/v1/inbox:import", content=csv, headers={"Content-Type": "text/csv"})
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    with house.context.database.read() as db:
        told = [entry.record for entry in audit_log.walk(db, after=before - 1)]
    assert [record["kind"] for record in told] == ["correction.refused"]
    details = told[0]["details"]
    assert (details["study_id"], details["query_id"], details["row"]) == (study, query, 1)
    house.check()
