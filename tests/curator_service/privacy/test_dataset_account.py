"""What a study charges every record of a file, and what is charged to a person or is not bounded."""

import math
from decimal import Decimal

import pytest

from blindopt import wire
from curator_service.privacy.prices import (
    Prices,
    answers_are_unbounded,
    exact_sum,
    group_delta,
    release_delta,
    release_is_unbounded,
)
from tests.builders import a_study, laplace

UNIT = 10**12
IDENTITY = wire.IdentityRelease(mechanism="identity")
REFUTED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-6, r=1, acknowledge_refuted=True)
GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1.25", delta=2e-6)
PEOPLE = wire.WebhookMeasurement(source="webhook", direction="maximize")


def study(epsilon="0.5", **more):
    return a_study(**({"release": GAUSSIAN, "answers": laplace(epsilon)} | more))


def test_answers_of_other_persons_cost_everybody_the_one_that_was_released_most_often_if_that_is_more():
    others = study(privacy_unit="answer", measurement=PEOPLE)
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
    exact = study(answers=wire.NoAnswerNoise(mechanism="none"))
    assert answers_are_unbounded(exact, public=True) is None
    assert "no noise" in answers_are_unbounded(exact, public=False)
    assert answers_are_unbounded(study(), public=False) is None


def test_sums_of_deltas_are_exact_beyond_the_digits_of_a_usual_decimal():
    assert str(exact_sum(Decimal(10**30), Decimal("1e-30"))) == f"1{'0' * 30}.{'0' * 29}1"
    assert group_delta(Decimal(0), Decimal(f"0.{'3' * 50}"), 3) == Decimal("1")  # rounded up to six digits
