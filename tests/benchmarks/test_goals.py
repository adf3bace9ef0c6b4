"""The table of goals says what is met, by the cells of the tables."""

import json

import pytest

from benchmarks import goals
from benchmarks.table import Table


def _part(*tables):
    return json.loads(json.dumps({"tables": [table.as_json() for table in tables]}))


ROUNDS = Table("A round of a run", ["rounds", "CPU ms of both"], [["1 in a query", 2.6], ["8 in a query", 2.5]])


@pytest.mark.parametrize(("ratio", "met"), [(0.69, "no"), (0.7, "yes")])
def test_a_goal_is_met_by_its_cell_alone(ratio, met):
    rates = Table("Durable exchanges, one after another", ["server", "ratio"], [["bare", 1.0], ["curator", ratio]])
    (row,) = [row for row in goals.table({"exchange": _part(rates)}).rows if "bare route, FULL" in str(row[0])]
    assert row[1:4] == [ratio, "at least 0.7", met]


def test_goals_of_parts_that_were_not_run_are_left_out():
    table = goals.table({"both": _part(ROUNDS)})
    assert [(row[1], row[3]) for row in table.rows] == [(2.6, "no"), (2.5, "yes")]
    assert table.title == "Goals: 1 of 2 met"
    assert goals.table({}).rows == []
