"""One of several by its score: frequencies against exact probabilities, with controls; what is refused."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from curator_service.privacy.noise import (
    add_laplace_to_number,
    lattice,
    select,
    selection,
    selection_scale,
    sensitivity_scale,
)
from tests.scale import scaled

N = scaled(8_000)
MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests
SCORES = np.array([0.0, 0.31, 0.5, 0.2])
SENSITIVITY, EPSILON = 0.25, Decimal("1.3")


def exponential(scores, scale):
    weights = np.exp(scores / scale)
    return weights / weights.sum()


def permute_and_flip(scores, scale):
    """Its definition: in a random order, each is taken with probability exp((score - best) / scale), until one is."""
    heads = np.exp((scores - scores.max()) / scale)
    probabilities = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        remaining = 1.0
        for index in order:
            probabilities[index] += remaining * heads[index] / len(orders)
            remaining *= 1 - heads[index]
    return probabilities


EXACT = {"exponential": exponential, "permute_and_flip": permute_and_flip}


@pytest.fixture(scope="module", params=sorted(EXACT))
def drawn(request):
    law = request.param
    places = [select(SCORES, SENSITIVITY, EPSILON, law) for _ in range(N)]
    return law, np.bincount(places, minlength=len(SCORES))


def fits(counts, probabilities):
    return stats.chisquare(counts, probabilities * counts.sum()).pvalue


@pytest.mark.slow(every=2)
def test_frequencies_are_those_of_the_law(drawn):
    law, counts = drawn
    assert fits(counts, EXACT[law](SCORES, 2 * SENSITIVITY / float(EPSILON))) > MISTAKEN


@pytest.mark.parametrize("wrong", [0.7, 1.6])
def test_another_scale_would_be_caught(drawn, wrong):
    law, counts = drawn
    assert fits(counts, EXACT[law](SCORES, wrong * 2 * SENSITIVITY / float(EPSILON))) < MISTAKEN


def test_the_other_law_would_be_caught(drawn):
    law, counts = drawn
    (other,) = set(EXACT) - {law}
    assert fits(counts, EXACT[other](SCORES, 2 * SENSITIVITY / float(EPSILON))) < MISTAKEN


@pytest.mark.parametrize("law", sorted(EXACT))
def test_no_neighbour_makes_a_place_more_than_e_to_the_epsilon_times_likelier(law):
    """Exact probabilities, over all neighbours that move each score by the sensitivity one way or the other."""
    scale = selection_scale(SENSITIVITY, EPSILON)
    expected = EXACT[law](SCORES, scale)
    moves = itertools.product((-SENSITIVITY, 0, SENSITIVITY), repeat=len(SCORES))
    most = max(float(np.abs(np.log(expected / EXACT[law](SCORES + move, scale))).max()) for move in moves)
    assert 0.6 * float(EPSILON) < most <= float(EPSILON)
    # The control: at half of the scale it is exceeded.
    assert float(np.abs(np.log(EXACT[law](SCORES, scale / 2) / EXACT[law](-SCORES, scale / 2))).max()) > float(EPSILON)


def test_the_scale_pays_for_rounding_scores_to_the_lattice():
    step = math.ldexp(1.0, lattice(SENSITIVITY))
    assert selection_scale(SENSITIVITY, EPSILON) >= 2 * (SENSITIVITY + step) / float(EPSILON)
    assert step < 2e-12 * SENSITIVITY


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused(bad):
    with pytest.raises(NumericalFailure):
        select(np.array([0.0, bad]), 1.0, Decimal(1), "exponential")
    with pytest.raises(NumericalFailure):
        add_laplace_to_number(bad, 1.0, Decimal(1))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_sensitivity_that_is_not_positive_and_finite_is_refused(bad):
    with pytest.raises(ValueError, match="positive"):
        select(np.zeros(2), bad, Decimal(1), "exponential")
    with pytest.raises(ValueError, match="positive"):
        add_laplace_to_number(0.0, bad, Decimal(1))


@pytest.mark.parametrize("epsilon", ["0.000001", "1000"])
@pytest.mark.parametrize("sensitivity", [1e-40, 1e40])
@pytest.mark.parametrize("law", sorted(EXACT))
def test_extreme_sensitivities_and_epsilons_are_drawn_with(law, sensitivity, epsilon):
    assert select(np.array([0.0, sensitivity]), sensitivity, Decimal(epsilon), law) in (0, 1)
    assert math.isfinite(add_laplace_to_number(sensitivity, sensitivity, Decimal(epsilon)))


def test_one_value_has_laplace_noise_of_its_scale():
    noise = [add_laplace_to_number(7.0, 0.3, Decimal("0.5")) - 7.0 for _ in range(N)]
    scale = sensitivity_scale(0.3, Decimal("0.5"))
    assert scale == pytest.approx(0.6, rel=1e-9)
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > MISTAKEN
    for wrong in (0.7, 1.45):  # at 0.85 it missed one run in a hundred
        assert stats.kstest(noise, stats.laplace(scale=wrong * scale).cdf).pvalue < MISTAKEN


@pytest.mark.parametrize("wrong", [0.0, 1e-300, 0.5, 0.999, 3.0])
@pytest.mark.parametrize("law", sorted(EXACT))
def test_a_scale_that_does_not_cost_epsilon_draws_nothing(law, wrong, monkeypatch):
    """As for Laplace noise: found when the mechanism is built."""
    selection._noisy_max.cache_clear()
    right = selection_scale(SENSITIVITY, EPSILON)
    monkeypatch.setattr(selection, "selection_scale", lambda sensitivity, epsilon: wrong * right)
    with pytest.raises((NumericalFailure, ValueError, dp.OpenDPException)):
        select(SCORES, SENSITIVITY, EPSILON, law)
    monkeypatch.undo()
    selection._noisy_max.cache_clear()
    assert 0 <= select(SCORES, SENSITIVITY, EPSILON, law) < len(SCORES)


@pytest.mark.parametrize(
    ("sensitivity", "epsilon"), [(0.0, "1"), (math.inf, "1"), (-1.0, "0"), (1.0, "0"), (1.0, "Infinity"), (0.0, "0")]
)
def test_a_scale_needs_a_sensitivity_and_an_epsilon(sensitivity, epsilon):
    with pytest.raises(ValueError, match="positive, finite"):
        selection_scale(sensitivity, Decimal(epsilon))


def test_scores_are_a_vector_with_something_in_it():
    for scores in (np.empty(0), np.zeros((2, 2)), np.empty((0, 2))):
        with pytest.raises(ValueError, match="needs scores"):
            select(scores, 1.0, Decimal(1), "permute_and_flip")


@pytest.mark.parametrize("sensitivity", [1.0, 0.3, 1e-9])
def test_the_scale_pays_for_a_step_of_the_lattice_and_no_more(sensitivity):
    exact = 2 * (Fraction(sensitivity) + Fraction(2) ** lattice(sensitivity))
    scale = Fraction(selection_scale(sensitivity, Decimal(1)))
    assert exact <= scale <= exact * (1 + Fraction(2) ** -48)
