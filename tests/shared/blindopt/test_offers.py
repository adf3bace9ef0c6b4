"""What an owner offers a vendor, in sentences: for each kind of answers and each source of outcomes."""

import math
import re

import pytest

from blindopt import wire
from blindopt.offers import Offer, sought
from tests.shared.blindopt.optimizer.small_runs import study

RANGE = {"centre": 11.5, "value_bound": 8.5, "epsilon": "1"}
PEOPLE = {"n": 1161, "r": 5, "measurement_source": "inbox", "budget": wire.Budget(queries=30)}


def answer_of(answers, **more):
    """The sentence about an answer, and the numbers in it."""
    (sentence,) = (s for s in Offer(study(answers=answers, **more)).sentences if s.startswith("Each answer"))
    return sentence, [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", sentence)]


def test_the_offer_of_a_clinic_is_told_whole():
    answers = wire.OneBitAnswers(mechanism="one_bit", **RANGE)
    noise = wire.NoiseLaw(family="planar_laplace", sd=1.22)
    assert str(Offer(study(answers=answers, noise=noise, **PEOPLE))) == (
        "1,161 candidates, 5 columns with planar Laplace noise (standard deviation 1.22 in scaled units). The owner "
        "looks for the largest outcome.\n"
        "People measure, so an answer takes hours or days.\n"
        "Each answer is one of two values, -6.894 or 29.89. It uses epsilon 1 of its record.\n"
        "The owner allows 30 measurements.\n"
        "Your 30 answers carry about as much as 1 exact answer."
    )


def test_an_answer_is_described_by_its_law():
    odds = math.exp(1)
    size = 8.5 * (odds + 1) / (odds - 1)  # Duchi et al. (2018), eq. 23
    _, numbers = answer_of(wire.OneBitAnswers(mechanism="one_bit", **RANGE))
    assert numbers[:2] == pytest.approx([11.5 - size, 11.5 + size], rel=1e-3)
    _, numbers = answer_of(wire.LaplaceAnswers(mechanism="laplace", **RANGE))
    assert numbers[0] == pytest.approx(17 * math.log(20), rel=3e-3)  # P(|X| > 17 log 20) = 1 / 20, of scale 17
    half = math.exp(0.5)
    size = 8.5 * (half + 1) / (half - 1)  # Wang et al. (2019), eq. 5
    _, numbers = answer_of(wire.PiecewiseAnswers(mechanism="piecewise", **RANGE))
    assert numbers[:2] == pytest.approx([11.5 - size, 11.5 + size], rel=1e-3)
    assert answer_of(wire.NONE)[0] == "Each answer is the outcome as it was measured."
    sentence, _ = answer_of(wire.LaplaceAnswers(mechanism="laplace", **RANGE), mechanism="groups")
    assert "the mean outcome of a group" in sentence


@pytest.mark.parametrize(
    ("goal", "direction", "words"),
    [
        (wire.BEST, "minimize", "the smallest outcome"),
        (wire.FindMany(threshold=7.25), "maximize", "as many good ones as possible: at least 7.25"),
        (wire.FindMany(threshold=7.25), "minimize", "as many good ones as possible: at most 7.25"),
        (wire.FindMany(share=0.02), "maximize", "as many good ones as possible: the best 2 %"),
    ],
)
def test_what_is_looked_for_is_told(goal, direction, words):
    assert sought(goal, direction) == words
    assert f"looks for {words}." in Offer(study(goal=goal, direction=direction)).sentences[0]


@pytest.mark.parametrize(
    ("source", "words"), [("column", "at once"), ("inbox", "People measure"), ("webhook", "A system of the owner")]
)
def test_who_measures_is_told(source, words):
    assert words in Offer(study(measurement_source=source)).sentences[1]


@pytest.mark.parametrize(
    ("budget", "used", "remaining", "words"),
    [
        (wire.Budget(queries=30), 12, 18, "The owner allows 30 measurements, of which your runs used 12."),
        (wire.Budget(queries=30), 31, 0, "of which your runs used 31"),  # another vendor's are nobody's business
        (wire.Budget(), 5, None, "No cap limits your measurements."),
        (wire.Budget(epsilon_per_row="3"), 0, None, "at most epsilon 3 of one record"),
        (wire.Budget(epsilon_total="40"), 0, None, "at most epsilon 40 in total"),
    ],
)
def test_what_is_left_is_the_cap_less_what_this_vendor_used(budget, used, remaining, words):
    offer = Offer(study(budget=budget), used)
    assert offer.remaining == remaining
    assert words in str(offer)
