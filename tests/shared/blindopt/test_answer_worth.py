"""What private answers are worth: figures and sentences against laws that are integrated or enumerated here."""

import math
import re

import numpy as np
import pytest

from blindopt import wire
from blindopt.answer_worth import carried, law_of, meaning, unplaced
from curator_service.privacy.answers import mechanism_of

KINDS = {
    "laplace": wire.LaplaceAnswers,
    "one_bit": wire.OneBitAnswers,
    "piecewise": wire.PiecewiseAnswers,
}
EVERY = pytest.mark.parametrize("epsilon", ["0.5", "1", "2", "4", "8"])


NEEDED = (
    "To know one record to within 1.7 % (a tenth of the range) takes about 450 answers about it. They use epsilon "
    "450, by the sum."
)


def answers(name, epsilon, **more):
    return KINDS[name](mechanism=name, epsilon=epsilon, **({"value_bound": 8.5, "centre": 11.5} | more))


def masses(name, epsilon, y, bound):
    """Points and probabilities of an answer about an offset y, from the papers' definitions."""
    e = math.exp(epsilon)
    if name == "one_bit":  # Duchi et al. (2018), eq. 23
        size = bound * (e + 1) / (e - 1)
        up = 0.5 + y * (e - 1) / (2 * bound * (e + 1))
        return np.array([-size, size]), np.array([1 - up, up])
    if name == "laplace":
        x = np.linspace(-400, 400, 800_001) * bound / epsilon / 10
        mass = np.exp(-np.abs(x - y) * epsilon / (2 * bound))
        return x, mass / mass.sum()
    c = (math.exp(epsilon / 2) + 1) / (math.exp(epsilon / 2) - 1)  # Wang et al. (2019), eq. 5 to 8
    x = np.linspace(-c, c, 800_001)
    low = (c + 1) / 2 * y / bound - (c - 1) / 2
    mass = np.where((x >= low) & (x <= low + c - 1), e, 1.0)
    return x * bound, mass / mass.sum()


@EVERY
@pytest.mark.parametrize("name", KINDS)
def test_the_variance_is_that_of_the_law_at_its_worst_outcome(name, epsilon):
    law = law_of(answers(name, epsilon))
    variances = []
    for y in (0.0, 4.0, 8.5):
        points, mass = masses(name, float(epsilon), y, 8.5)
        assert mass @ points == pytest.approx(y, abs=1e-3)  # without bias
        variances.append(mass @ points**2 - (mass @ points) ** 2)
    assert law.variance == pytest.approx(max(variances), rel=1e-4)
    drawn = mechanism_of(answers(name, epsilon)).noise
    assert (law.size, law.variance) == pytest.approx((drawn.scale, drawn.variance), rel=1e-9)


@EVERY
@pytest.mark.parametrize("name", KINDS)
def test_sentences_hold_for_the_law(name, epsilon):
    """The numbers of each sentence, read back, against the law: to the three digits that are shown."""
    points, mass = masses(name, float(epsilon), 7.25 - 11.5, 8.5)
    belief, sent, needed, worth = meaning(answers(name, epsilon), 30, "%").sentences
    surest = math.exp(float(epsilon)) / (1 + math.exp(float(epsilon)))
    assert 0 <= float(re.findall(r"[\d.]+ %", belief)[-1][:-2]) / 100 - surest <= 0.0011
    numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", sent)]
    assert numbers[0] == 7.25
    if name == "laplace":
        within = mass[np.abs(points + 4.25) <= numbers[1]].sum()
        assert within == pytest.approx(0.95, abs=0.003)
    else:
        assert numbers[1:3] == pytest.approx([points[0] + 11.5, points[-1] + 11.5], abs=0.06)
        if name == "one_bit":
            assert numbers[3] == pytest.approx(100 * mass[1], abs=0.51)
        else:
            inside = mass[(points + 11.5 >= numbers[5]) & (points + 11.5 <= numbers[6])].sum()
            assert numbers[3] == pytest.approx(100 * inside, abs=1.5)
    variance = max(m @ x**2 - (m @ x) ** 2 for x, m in (masses(name, float(epsilon), y, 8.5) for y in (0.0, 8.5)))
    exact = 3.84 * variance / 1.7**2
    about = float(re.search(r"about ([\d,]+) answers", needed)[1].replace(",", ""))
    assert exact - 1e-3 * exact <= about <= exact * 1.1 + 1
    assert float(re.search(r"epsilon ([\d,.e+]+),", needed)[1].replace(",", "")) >= about * float(epsilon) * 0.89
    share = 30 / (1 + variance / 4.25**2)
    assert ("less than 1" in worth) if share < 1 else (f" {math.floor(share + 1e-6)} exact answer" in worth)


def test_the_clinic_of_thirty_answers_reads_what_it_gets():
    """From 3 to 20, epsilon 1, 30 answers: figures that an outside review computed by hand."""
    shown = meaning(wire.AutoAnswers(epsilon="1", value_bound=8.5, centre=11.5), 30, "%")
    assert shown.sentences == [
        "From one answer, someone undecided (50/50) between any two outcomes becomes at most 73.2 % sure.",
        "An outcome of 7.25 % is sent as -6.89 % or 29.9 %, the higher one 38 times in 100.",
        NEEDED,
        "Your 30 answers carry about as much as 1 exact answer.",
    ]
    levels = [(level.epsilon, level.sent_as, round(level.error, 1), int(level.worth)) for level in shown.levels]
    assert levels == [("1", "two values", 18.4, 1), ("4", "an interval", 4.2, 15)]
    assert meaning(wire.NoAnswerNoise(mechanism="none"), 30) is None
    assert len(meaning(wire.AutoAnswers(epsilon="8", value_bound=1.0), None).levels) == 1  # no larger one is shown


def test_worth_is_what_the_variance_of_a_mean_says():
    """Means of 400 answers about outcomes that spread over half of B, against means of as many exact ones."""
    rng, law = np.random.default_rng(1), law_of(answers("laplace", "2", centre=0.0))
    outcomes = rng.normal(0, 4.25, (4_000, 400))
    private = (outcomes + rng.laplace(0, law.size, outcomes.shape)).mean(axis=1)
    as_many = 4.25**2 / private.var()  # exact answers whose mean varies as much
    assert law.worth(400) == pytest.approx(as_many, rel=0.08)
    assert carried(law, 400).startswith("Your 400 answers carry about as much as ")


def test_an_interval_that_places_nothing_is_said_so_with_what_it_would_take():
    """Of the clinic: 450 answers, as the owner reads; a run that used 30 of 30 has none left."""
    private = wire.AutoAnswers(epsilon="1", value_bound=8.5, centre=11.5)
    assert unplaced(private, [3.0, 20.0], 0) == (
        "The answers cannot tell candidates apart yet. The interval covers the whole possible range, 3 to 20. About "
        "450 answers about the candidate would place it to within 1.7, and 0 are left."
    )
    assert "covers 88 % of the possible range" in unplaced(private, [5.0, 20.0], 1)
    assert unplaced(private, [5.0, 20.0], None).endswith("to within 1.7.")
    assert unplaced(private, [8.0, 20.0], 0) is None
    assert unplaced(wire.NONE, [3.0, 20.0], 0) is None
