"""Deadlines that pass: a query with a fault stops no other."""

from datetime import timedelta

import pytest

from blindopt.errors import StorageUnavailable
from curator_service.queries.answer_versions import AnswerVersions
from curator_service.queries.inbox.inbox import AGAIN_SECONDS, Inbox
from tests.curator_service.queries.inbox.measured_study import LAPLACE


class FaultyVersions(AnswerVersions):
    """Fails to draw for the queries in ``faulty``; after ``crashed``, draws nothing until it is reset."""

    faulty = frozenset()
    crashed = False

    def settle(self, query_ids):
        if not self.crashed:
            super().settle(query_ids)

    def _next(self, db, query_id):
        if query_id in self.faulty:
            raise ZeroDivisionError("a value")
        return super()._next(db, query_id)


class FaultyInbox(Inbox):
    """Fails to decline what is past its deadline for the queries in ``faulty``."""

    faulty = frozenset()
    error = ZeroDivisionError

    def expire(self, db, query_id):
        if query_id in self.faulty:
            raise self.error("a value")
        super().expire(db, query_id)


@pytest.fixture
def versions(in_process):
    curator = in_process.curator
    versions = FaultyVersions(in_process.context, curator.released, curator.budgets, curator.wakeups)
    in_process.use(versions, FaultyInbox)
    return versions


def test_a_query_with_a_fault_keeps_no_other_deadline_from_passing(in_process, versions, small, draft_of, caplog):
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=LAPLACE, measurement={"due_hours": 1}))
    inbox = in_process.curator.inbox
    bad, good = (in_process.ask(study, [row]) for row in (3, 4))
    owed = [in_process.ask(study, [row]) for row in (5, 6)]
    versions.crashed = True
    for query in owed:
        in_process.enter("answer", query, in_process.items(query), 1.0)
    versions.crashed = False
    in_process.later = timedelta(hours=2)
    inbox.faulty, versions.faulty = {bad}, {owed[0]}
    for _ in range(2):
        assert in_process.curator.deadlines.look() == AGAIN_SECONDS
    assert [in_process.items(query)[0]["state"] for query in (bad, good)] == ["open", "overdue"]
    assert in_process.send("modeler", "GET", f"/v1/studies/{study}/queries/{owed[0]}").status_code == 202
    assert in_process.reply(study, owed[1]).version == 1
    faults = [record.fields for record in caplog.records if record.name == "blindopt.overdue"]
    assert faults == [{"query": query, "kind": "ZeroDivisionError"} for query in (owed[0], bad)] * 2
    inbox.faulty = versions.faulty = frozenset()
    in_process.curator.deadlines.look()
    assert in_process.items(bad)[0]["state"] == "overdue"
    assert in_process.reply(study, owed[0]).version == 1
    in_process.check()


def test_a_fault_of_the_storage_is_raised_and_not_logged_for_each_query(in_process, versions, small, draft_of, caplog):
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=LAPLACE, measurement={"due_hours": 1}))
    query = in_process.ask(study, [3])
    in_process.later = timedelta(hours=2)
    in_process.curator.inbox.faulty, in_process.curator.inbox.error = {query}, StorageUnavailable
    with pytest.raises(StorageUnavailable):
        in_process.curator.deadlines.look()
    assert not [record for record in caplog.records if record.name == "blindopt.overdue"]
