"""Charges where a person has several rows, and which answers are charged to the record behind a candidate."""

import pytest

from curator_service.budget import ledger
from curator_service.budget.ledger import Balance, RowBalance
from curator_service.privacy import prices
from curator_service.privacy.prices import units
from tests.curator_service.budget.test_ledger_refusals import refusal, study
from tests.curator_service.privacy import test_prices as of_groups

PERSONS = {0: (0, 2, 5), 2: (0, 2, 5), 5: (0, 2, 5), 1: (1,), 3: (3, 4), 4: (3, 4)}
"""The rows of the person behind each row."""
BALANCES = {2: RowBalance(1, 1, units("0.25")), 5: RowBalance(2, 3, units("0.75")), 3: RowBalance(1, 2, units("0.5"))}
BEFORE = Balance(units("1"), units("2.5"), 6)


def charge(spec, rows):
    return ledger.charge_answers(spec, BEFORE, rows, BALANCES, PERSONS.__getitem__)


def test_what_a_person_has_spent_is_the_sum_over_all_rows_and_all_of_the_query():
    """By hand: the release cost 1, A had 1 in rows 2 and 5, C 0.5 in row 3, and B nothing; an answer costs 0.25."""
    charges = charge(study(), [(0, 1), (3, 2), (2, 1), (1, 1), (4, 1), (0, 2)])
    assert [(each.row, prices.text(each.used)) for each in charges] == [
        (0, "2.25"), (3, "2"), (2, "2.5"), (1, "1.25"), (4, "2.25"), (0, "3"),
    ]  # fmt: skip
    assert [prices.text(each.row_after.total) for each in charges] == ["0.25", "1", "0.5", "0.25", "0.25", "0.75"]
    assert charges[-1].after == Balance(units("1"), units("4.5"), 14)


@pytest.mark.parametrize(
    ("rows", "cap", "refused"),
    [
        ([(0, 1)], "2.25", None),
        ([(0, 1)], "2.249", (0, "0.25", "2")),
        ([(2, 1), (5, 1)], "2.5", None),
        ([(2, 1), (5, 1)], "2.499", (5, "0.25", "2.25")),
        ([(1, 1), (4, 3)], "2.25", None),
        ([(1, 1), (4, 3)], "2.2", (4, "0.75", "1.5")),
        ([(3, 1), (1, 1), (4, 1)], "1.9", (4, "0.25", "1.75")),
    ],
)
def test_the_cap_counts_release_and_answers_about_all_rows_of_a_person(rows, cap, refused):
    spec = study(epsilon_per_row=cap)
    if refused is None:
        assert len(charge(spec, rows)) == len(rows)
        return
    row, requested, spent = refused
    assert refusal(charge, spec, rows) == {
        "cap": "epsilon_per_row", "row": row, "requested": requested, "spent": spent, "limit": cap,
    }  # fmt: skip


def test_only_answers_about_single_records_are_charged_to_the_record_behind_them():
    groups = of_groups.study("0.5", "0.5")
    of_each = [prices.Prices.of(spec) for spec in (study(), study(unit="answer"), groups)]
    assert [each.by_record for each in of_each] == [True, False, False]
    assert [each.adds_up for each in of_each] == [True, False, True]


def test_a_refusal_about_groups_names_the_cap_the_group_and_what_the_worst_record_had_lost():
    """0.5 for the numbers and half of 2 answers of 0.5 about the group; a third one would make 1.5 of its own group."""
    spec = of_groups.study("0.5", "0.5", cap="1.2")
    before, balances = Balance(units("0.5"), units("1.5"), 2), {1: RowBalance(2, 2, units("1"))}
    assert refusal(ledger.charge_answers, spec, before, [(1, 1)], balances) == {
        "cap": "epsilon_per_row", "row": 1, "requested": "0.5", "spent": "1", "limit": "1.2",
    }  # fmt: skip


def test_without_any_answer_a_record_of_a_group_has_lost_the_release_alone():
    spec = of_groups.study("0.5", "0.5")
    assert prices.Prices.of(spec).worst([]) == units("0.5")
    assert prices.Prices.of(spec).worst([units("0.5")]) == units("0.75")
