"""What answers about groups cost the record that loses most (Theorem C), and what a study charges a file."""

import itertools
import math
import random
from decimal import Decimal
from fractions import Fraction

import pytest

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service.budget.ledger import Balance, RowBalance, charge_answers
from curator_service.privacy import accounting, cautions
from curator_service.privacy.prices import (
    Prices,
    answers_are_unbounded,
    exact_sum,
    group_delta,
    release_delta,
    release_is_unbounded,
    text,
)
from tests.builders import a_study, group_release, laplace

GROUPS = 4


def study(numbers, answer, centres=None, cap=None):
    """A study of groups; epsilons are decimals."""
    cells = wire.GridCells(kind="grid", parts=[GROUPS])
    if centres is not None:
        cells = wire.PrivateCells(kind="private", number=GROUPS, epsilon=centres)
    of_release = wire.amount(numbers) + (wire.amount(centres) if centres else 0)
    release = group_release(str(of_release), cells=cells, min_count=1)
    return a_study(release, laplace(answer), scale=1.0, epsilon_per_row=cap)


def largest(numbers, answer, centres, counts):
    """The largest loss over where a record is and where it moves, group by group, in exact fractions.

    A group that is no candidate is among these: nobody asks about it.
    """
    losses = []
    answers = [*counts, 0]
    for before, after in itertools.product(range(len(answers)), repeat=2):
        if before == after:
            losses.append(answers[before] * answer)
        else:
            losses.append(numbers + (answers[before] + answers[after]) * answer / 2)
    return centres + max(losses)


def amounts(numbers, answer, centres):
    return Fraction(numbers), Fraction(answer), Fraction(centres or 0)


EPSILONS = [("0.5", "0.5", None), ("0.25", "0.75", None), ("2", "0.1", None), ("0.5", "0.5", "0.25")]


@pytest.mark.parametrize("epsilons", EPSILONS, ids=repr)
def test_the_cost_is_that_of_the_worst_pair_for_every_history_and_each_charge_adds_what_it_grows_by(epsilons):
    spec, exact = study(*epsilons), amounts(*epsilons)
    release = Fraction(spec.release.epsilon)
    for counts in itertools.product(range(4), repeat=3):
        cost = Prices.of(spec).worst([int(n * exact[1] * 10**12) for n in counts])
        assert Fraction(cost, 10**12) == largest(*exact, counts)
        assert Fraction(cost, 10**12) <= release + max(counts) * exact[1]
        more = Prices.of(spec).worst([int(n * exact[1] * 10**12) for n in (counts[0] + 1, *counts[1:])])
        assert cost <= more <= cost + int(exact[1] * 10**12)


@pytest.mark.parametrize("fault", ["without the numbers", "half of an answer"])
def test_a_cost_that_forgets_something_is_found(fault):
    """The negative control: the sums over pairs above tell such a cost from the right one."""
    numbers, answer, centres = amounts("0.5", "0.5", None)
    wrong = (Fraction(0), answer) if fault == "without the numbers" else (numbers, answer / 2)
    assert any(
        largest(*wrong, centres, counts) < largest(numbers, answer, centres, counts)
        for counts in itertools.product(range(4), repeat=3)
    )


def test_half_a_unit_is_rounded_up():
    spec = study("0.5", "0.000001000001")
    assert text(Prices.of(spec).worst([1_000_001])) == "0.500000500001"


@pytest.mark.parametrize("epsilons", EPSILONS, ids=repr)
def test_the_cap_on_a_record_refuses_the_first_answer_that_would_pass_it_and_no_other(epsilons):
    exact, order = amounts(*epsilons), random.Random(22)
    cap = exact[0] + exact[2] + 2 * exact[1]
    spec = study(*epsilons, cap=str(float(cap)))
    balances, counts, balance = {}, [0] * GROUPS, Balance(0, 0, 0)
    refused = 0
    for _ in range(60):
        row = order.randrange(GROUPS)
        then = [n + (group == row) for group, n in enumerate(counts)]
        if largest(*exact, then) > cap:
            with pytest.raises(BudgetExhausted) as refusal:
                charge_answers(spec, balance, [(row, 1)], balances)
            assert Fraction(refusal.value.budget["spent"]) == largest(*exact, counts)
            assert refusal.value.budget["row"] == row
            refused += 1
            continue
        (charge,) = charge_answers(spec, balance, [(row, 1)], balances)
        balances[row], balance, counts = charge.row_after, charge.after, then
    assert refused
    assert largest(*exact, counts) <= cap


def test_a_query_of_several_groups_is_charged_as_they_come_one_after_the_other():
    spec = study("0.5", "0.5", cap="1")
    with pytest.raises(BudgetExhausted):
        charge_answers(spec, Balance(), [(0, 1), (1, 2)], {})
    charges = charge_answers(spec, Balance(5 * 10**11, 5 * 10**11, 0), [(0, 1), (1, 1)], {})
    assert [charge.used for charge in charges] == [75 * 10**10, 10**12]
    with pytest.raises(BudgetExhausted):
        charge_answers(spec, charges[-1].after, [(2, 2)], {row: RowBalance(1, 1, 5 * 10**11) for row in (0, 1)})


@pytest.mark.parametrize("epsilons", EPSILONS, ids=repr)
def test_a_report_says_of_each_group_what_a_record_in_it_may_have_lost(epsilons):
    """Also of groups that nobody asked about: a record of theirs may move to one that was."""
    spec, exact = study(*epsilons), amounts(*epsilons)
    for counts in itertools.product(range(3), repeat=GROUPS):
        rows = {k: counts.count(k) for k in sorted(set(counts))}
        losses = accounting.report(spec, rows, sum(counts), 1e-6).rows
        for loss in losses:
            own = counts.index(loss.answers)
            others = [n for group, n in enumerate(counts) if group != own] + [0]
            moves = exact[0] + (loss.answers + max(others)) * exact[1] / 2
            assert Fraction(loss.epsilon) == exact[2] + max(loss.answers * exact[1], moves)
            assert 0 <= loss.tight_epsilon <= float(loss.epsilon)
        assert Fraction(losses[-1].epsilon) == largest(*exact, counts)


@pytest.mark.parametrize(
    ("epsilons", "caps", "most"),
    [
        (("0.5", "0.3", None), {"epsilon_per_row": "1"}, "0.95"),
        (("0.5", "0.75", "0.25"), {"epsilon_per_row": "2.7"}, "2.625"),
        (("6", "3", None), {"epsilon_per_row": "11.9"}, "10.5"),
        (("0.5", "0.5", None), {"epsilon_per_row": "1.3", "queries": 3}, "1.25"),
        (("0.25", "1", "1"), {"epsilon_per_row": "2.5", "epsilon_total": "3.25"}, "2.25"),
        (("0.25", "0.000001000001", None), {"epsilon_per_row": "0.250003"}, "0.250002500003"),
    ],
    ids=repr,
)
def test_a_price_says_the_most_that_any_answers_within_the_caps_cost_a_record(epsilons, caps, most):
    """It was that of as many answers about each of several groups: more of them fit about one group, or about two.

    The oracle tries all numbers of answers about two groups. Those about a third one add nothing to the largest pair.
    """
    spec, exact = study(*epsilons).model_copy(update={"budget": wire.Budget(**caps)}), amounts(*epsilons)
    total = Fraction(caps.get("epsilon_total", 100)) - Fraction(spec.release.epsilon)
    losses = [
        math.ceil(10**12 * largest(*exact, (first, second)))
        for first in range(13)
        for second in range(13)
        if first + second <= caps.get("queries", 100) and (first + second) * exact[1] <= total
    ]
    whole = max(loss for loss in losses if loss <= 10**12 * Fraction(caps["epsilon_per_row"]))
    assert accounting.price(spec).row_epsilon == text(whole) == most


def test_a_price_of_groups_that_lets_a_record_lose_more_than_10_has_the_caution():
    spec = study("6", "3", cap="11.9")
    raised = cautions.of_study(spec, spec.release, accounting.price(spec), n=1_000, is_public=False)
    assert "row_epsilon_large" in {caution.code for caution in raised}


UNIT = 10**12
IDENTITY = wire.IdentityRelease(mechanism="identity")
REFUTED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-6, r=1, acknowledge_refuted=True)
GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1.25", delta=2e-6)
PEOPLE = wire.WebhookMeasurement(source="webhook", direction="maximize")


def study_of_file(epsilon="0.5", **more):
    return a_study(**({"release": GAUSSIAN, "answers": laplace(epsilon)} | more))


def test_answers_of_other_persons_cost_everybody_the_one_that_was_released_most_often_if_that_is_more():
    others = study_of_file(privacy_unit="answer", measurement=PEOPLE)
    prices, release, answers = Prices.of(others), 125 * UNIT // 100, 175 * UNIT // 100
    used = {again: prices.used(release, answers, again=again) for again in (1, 2, 3, 7)}
    assert used == {1: 1.25 * UNIT, 2: 1.25 * UNIT, 3: 1.5 * UNIT, 7: 3.5 * UNIT}
    assert prices.used(UNIT // 4, answers) == UNIT // 2
    assert prices.used(UNIT // 4, 0, again=7) == UNIT // 4  # nothing was answered


def test_the_delta_of_a_release_is_what_it_spends():
    assert release_delta(GAUSSIAN) == Decimal("0.000002")
    planar = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
    assert [release_delta(release) for release in (IDENTITY, REFUTED, planar)] == [0, 0, 0]


@pytest.mark.parametrize(("epsilon", "delta", "k"), [("0.5", "1e-5", 3), ("1.25", "2e-6", 2), ("0.001", "3e-9", 40)])
def test_the_delta_of_a_group_is_that_of_the_lemma_rounded_up(epsilon, delta, k):
    exact = k * math.exp((k - 1) * float(epsilon)) * float(delta)
    bound = group_delta(Decimal(epsilon), Decimal(delta), k)
    assert exact * (1 - 1e-9) <= float(bound) <= exact * (1 + 1e-5)
    assert len(bound.as_tuple().digits) <= 6


def test_the_delta_of_a_group_is_1_at_most_and_that_of_one_record_or_of_pure_privacy_is_itself():
    assert group_delta(Decimal("2"), Decimal("0.1"), 5) == 1
    assert group_delta(Decimal(10_001), Decimal("1e-9"), 2) == 1
    assert group_delta(Decimal(10**9), Decimal("1e-9"), 2) == 1  # e to this is no decimal
    assert group_delta(Decimal(10_000), Decimal("1e-5000"), 2) == Decimal("1.76137E-657")
    assert group_delta(Decimal(10_001), Decimal("1e-5000"), 2) == 1
    for epsilon in (Decimal(1), Decimal(10**9)):
        assert group_delta(epsilon, Decimal("0.1234567891"), 1) == Decimal("0.1234567891")
        assert group_delta(epsilon, Decimal(0), 7) == 0


def test_what_has_no_finite_epsilon_is_named_with_its_reason():
    assert release_is_unbounded(REFUTED, public=True) == release_is_unbounded(REFUTED, public=False)
    assert "po_gp_ucb" in release_is_unbounded(REFUTED, public=True)
    assert release_is_unbounded(IDENTITY, public=True) is None
    assert "as they are" in release_is_unbounded(IDENTITY, public=False)
    assert release_is_unbounded(GAUSSIAN, public=False) is None
    exact = study_of_file(answers=wire.NoAnswerNoise(mechanism="none"))
    assert answers_are_unbounded(exact, public=True) is None
    assert "no noise" in answers_are_unbounded(exact, public=False)
    assert answers_are_unbounded(study_of_file(), public=False) is None


def test_sums_of_deltas_are_exact_beyond_the_digits_of_a_usual_decimal():
    assert str(exact_sum(Decimal(10**30), Decimal("1e-30"))) == f"1{'0' * 30}.{'0' * 29}1"
    assert group_delta(Decimal(0), Decimal(f"0.{'3' * 50}"), 3) == Decimal("1")  # rounded up to six digits
