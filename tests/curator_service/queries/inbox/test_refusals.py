"""Entries that the budget refuses are in the log, however they came."""

import pytest

from blindopt import wire
from service_kit.store import audit_log
from tests.curator_service.queries.inbox.measured_study import LAPLACE


@pytest.mark.parametrize("how", ["one by one", "by a file"])
def test_a_late_answer_that_the_budget_refuses_is_in_the_log(how, in_process, small, draft_of):
    """The mean of a row's plays was released once; a second one would cost more than the row has left."""
    answers = LAPLACE.model_copy(update={"plays": "mean"})
    budget = wire.Budget(epsilon_per_row="0.7")
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=answers, budget=budget))
    query = in_process.ask(study, [1], 2)
    first, second = in_process.items(query)
    assert in_process.enter("answer", query, [first], 1.0).status_code == 200
    body = {"measurement_ids": [second["id"]], "reason": "consent"}
    in_process.call("measurer", "POST", f"/v1/queries/{query}:decline", json=body)
    before = in_process.context.audit_trail.head().size
    if how == "one by one":
        refused = in_process.enter("answer", query, [second], 2.0)
    else:
        csv = f"measurement_id,value\n{second['id']},2.0".encode()
        refused = in_process.send(
            "measurer", "POST", "/v1/inbox:import", content=csv, headers={"Content-Type": "text/csv"}
        )
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    with in_process.context.database.read() as db:
        records = [entry.record for entry in audit_log.walk(db, after=before - 1)]
    assert [record["kind"] for record in records] == ["correction.refused"]
    details = records[0]["details"]
    assert (details["study_id"], details["query_id"], details["row"]) == (study, query, 1)
    in_process.check()
