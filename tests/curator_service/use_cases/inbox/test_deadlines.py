"""Dates that pass: one query with a fault stops no other."""

from datetime import timedelta

import pytest

from blindopt.errors import StorageUnavailable
from curator_service.use_cases.inbox import deadlines
from tests.curator_service.use_cases.inbox.in_process_curator import House
from tests.curator_service.use_cases.inbox.measured_study import LAPLACE


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.close()


def bad_for(bad, act, error=ZeroDivisionError):
    """``act``, which fails for one query."""

    def act_or_fail(*args, **kwargs):
        if bad in (*args, *kwargs.values()):
            raise error("a value")
        return act(*args, **kwargs)

    return act_or_fail


def test_a_query_with_a_fault_keeps_no_other_one_s_date_from_passing(house, small, study_of, monkeypatch, caplog):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE, measurement={"due_hours": 1}))
    inbox, made = house.curator.inbox, house.curator.inbox._versions
    bad, good = (house.ask(study, [row]) for row in (3, 4))
    owed = [house.ask(study, [row]) for row in (5, 6)]
    with monkeypatch.context() as crashed:
        crashed.setattr(made, "settle", lambda query_ids: None)
        for query in owed:
            house.tell("answer", query, house.items(query), 1.0)
    house.later = timedelta(hours=2)
    with monkeypatch.context() as broken:
        broken.setattr(inbox, "overdue", bad_for(bad, inbox.overdue))
        broken.setattr(made, "_next", bad_for(owed[0], made._next))
        for _ in range(2):
            assert house.curator.overdue.look() == deadlines.AGAIN_SECONDS
    assert [house.items(query)[0]["state"] for query in (bad, good)] == ["open", "overdue"]
    assert house.send("modeler", "GET", f"/v1/studies/{study}/queries/{owed[0]}").status_code == 202
    assert house.reply(study, owed[1]).version == 1
    told = [record.fields for record in caplog.records if record.name == "blindopt.overdue"]
    assert told == [{"query": query, "kind": "ZeroDivisionError"} for query in (owed[0], bad)] * 2
    house.curator.overdue.look()
    assert house.items(bad)[0]["state"] == "overdue"
    assert house.reply(study, owed[0]).version == 1
    house.check()


def test_what_no_query_can_help_is_tried_again_for_all_of_them(house, small, study_of, monkeypatch, caplog):
    """A full disk: nobody wants a line in the log for each query, each second."""
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE, measurement={"due_hours": 1}))
    query = house.ask(study, [3])
    house.later = timedelta(hours=2)
    monkeypatch.setattr(house.curator.inbox, "overdue", bad_for(query, None, StorageUnavailable))
    with pytest.raises(StorageUnavailable):
        house.curator.overdue.look()
    assert not [record for record in caplog.records if record.name == "blindopt.overdue"]
