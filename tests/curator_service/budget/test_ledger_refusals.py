"""What a refusal of the ledger says, and the texts and lines of amounts, number by number."""

from decimal import Decimal

import pytest

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service.budget import ledger
from curator_service.budget.ledger import Balance, RowBalance
from curator_service.privacy import prices
from curator_service.privacy.prices import units
from tests.builders import IDENTITY, a_study, laplace


def study(answers_epsilon="0.25", unit="row", release=IDENTITY, **caps):
    return a_study(release, laplace(answers_epsilon), unit, **caps)


def refusal(charge, *arguments):
    with pytest.raises(BudgetExhausted) as refused:
        charge(*arguments)
    return refused.value.budget


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0"), ("1E-12", "0.000000000001"), ("2.50", "2.5"), ("100", "100"), ("1E+2", "100"), ("070.0", "70"),
     ("0.10", "0.1"), ("10.01", "10.01")],
)  # fmt: skip
def test_an_amount_is_written_without_an_exponent_or_zeros_at_its_end(amount, text):
    assert prices.exact(Decimal(amount)) == text
    assert prices.text(units(amount)) == text


def test_a_refused_correction_names_the_cap_the_row_and_what_was_spent():
    before, balances = Balance(0, units("1"), 4), {7: RowBalance(2, 4, units("1"))}
    assert refusal(ledger.charge_corrections, study(epsilon_total="1.5"), before, [(7, 1), (8, 2)], balances, 1) == {
        "cap": "epsilon_total", "row": None, "requested": "0.75", "spent": "1", "limit": "1.5",
    }  # fmt: skip
    assert refusal(ledger.charge_corrections, study(epsilon_per_row="1.2"), before, [(7, 1)], balances, 1) == {
        "cap": "epsilon_per_row", "row": 7, "requested": "0.25", "spent": "1", "limit": "1.2",
    }  # fmt: skip
    of_persons = study(unit="answer", epsilon_per_row="0.7")
    assert refusal(ledger.charge_corrections, of_persons, before, [(7, 1)], balances, 2) == {
        "cap": "epsilon_per_row", "row": 7, "requested": "0.25", "spent": "0.5", "limit": "0.7",
    }  # fmt: skip


def test_a_correction_adds_its_cost_to_the_row_and_the_sum_and_no_measurement():
    before, balances = Balance(units("0.5"), units("2"), 6), {7: RowBalance(2, 4, units("1"))}
    first, second = ledger.charge_corrections(study(), before, [(7, 2), (9, 1)], balances, 1)
    assert first == ledger.Charge(
        7, 0, units("0.5"), Balance(units("0.5"), units("2.5"), 6), RowBalance(2, 4, units("1.5")), units("2")
    )
    assert second == ledger.Charge(
        9, 0, units("0.25"), Balance(units("0.5"), units("2.75"), 6), RowBalance(0, 0, units("0.25")), units("0.75")
    )
    assert balances == {7: RowBalance(2, 4, units("1"))}


def test_a_correction_counts_what_the_release_spent_on_the_row():
    before = Balance(units("0.5"), units("0.5"), 0)
    assert refusal(ledger.charge_corrections, study(epsilon_per_row="0.7"), before, [(3, 1)], {}, 1) == {
        "cap": "epsilon_per_row", "row": 3, "requested": "0.25", "spent": "0.5", "limit": "0.7",
    }  # fmt: skip
    ledger.charge_corrections(study(epsilon_per_row="0.75"), before, [(3, 1)], {}, 1)


@pytest.mark.parametrize("charge", [ledger.charge_answers, lambda *rest: ledger.charge_corrections(*rest, 1)])
def test_where_no_cap_is_set_the_sum_ends_at_nine_million(charge):
    before = Balance(0, units("8999999.75"), 0)
    assert len(charge(study(), before, [(1, 1)], {})) == 1
    assert refusal(charge, study(), before, [(1, 1), (2, 1)], {}) == {
        "cap": "epsilon_total", "row": None, "requested": "0.5", "spent": "8999999.75", "limit": "9000000",
    }  # fmt: skip


def test_a_refused_answer_of_a_person_names_the_row_and_the_price_of_one_answer():
    spec = study("0.5", unit="answer", epsilon_per_row="0.4")
    assert refusal(ledger.charge_answers, spec, Balance(), [(4, 3)], {}) == {
        "cap": "epsilon_per_row", "row": 4, "requested": "0.5", "spent": "0", "limit": "0.4",
    }  # fmt: skip


def test_a_release_is_refused_under_the_cap_that_it_passes():
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="2", delta=1e-5)
    for cap in ("epsilon_per_row", "epsilon_total"):
        spec = study(release=release, **{cap: "2.5"})
        assert refusal(ledger.charge_release, spec, Balance(units("0.75"), units("0.75"), 3)) == {
            "cap": cap, "row": None, "requested": "2", "spent": "0.75", "limit": "2.5",
        }  # fmt: skip
    line = ledger.charge_release(study(release=release, epsilon_total="9"), Balance(units("0.5"), units("3"), 6))
    assert line == ledger.Charge(None, 0, units("2"), Balance(units("2.5"), units("5"), 6), used=units("2.5"))
    assert line.row_after == RowBalance(0, 0, 0)


def test_the_faults_of_a_draft_name_the_field():
    exact = study().model_copy(update={"answers": wire.NoAnswerNoise(mechanism="none")})
    refuted = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True)
    both = wire.Budget(epsilon_per_row="0.1", epsilon_total="0.2")
    for spec in (exact, study(release=refuted), study()):
        faults = ledger.faults(spec.model_copy(update={"budget": both}))
        assert [(fault["field"], set(fault)) for fault in faults] == [
            ("budget.epsilon_per_row", {"field", "message"}),
            ("budget.epsilon_total", {"field", "message"}),
        ]
        assert all(len(str(fault["message"])) > 20 for fault in faults)
