"""What ``auto`` takes for any bound, and what a draft is told whose epsilon no bounded mechanism can have."""

import pytest

from blindopt import wire
from curator_service.privacy.answers import concrete_answers, faults

BOUNDED = {"one_bit": wire.OneBitAnswers, "piecewise": wire.PiecewiseAnswers}


@pytest.mark.parametrize("bound", [1e-6, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("epsilon", "mechanism"), [("1", "one_bit"), ("1.5", "piecewise"), ("15", "piecewise")])
def test_auto_takes_the_same_mechanism_for_any_bound(bound, epsilon, mechanism):
    auto = wire.AutoAnswers(mechanism="auto", epsilon=epsilon, value_bound=bound)
    assert concrete_answers(auto).mechanism == mechanism


@pytest.mark.parametrize("mechanism", BOUNDED)
def test_bounded_answers_take_an_epsilon_of_20_at_most(mechanism):
    assert faults(BOUNDED[mechanism](mechanism=mechanism, epsilon="20", value_bound=1.0)) == []
    assert faults(BOUNDED[mechanism](mechanism=mechanism, epsilon="20.000000000001", value_bound=1.0)) == [
        {
            "field": "answers.epsilon",
            "message": f"{mechanism} answers take an epsilon of 20 at most: choose laplace or auto",
        }
    ]
    assert faults(wire.LaplaceAnswers(mechanism="laplace", epsilon="1000", value_bound=1.0)) == []
