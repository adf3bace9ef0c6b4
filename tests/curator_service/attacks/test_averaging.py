"""Averaging answers about one row: as many as the ledger itself allows, and as near as their noise lets the mean."""

from math import sqrt

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service.attacks import averaging
from curator_service.measurement.privatize import passport_of
from curator_service.privacy.ledger import Balance, charge_answers, charge_release
from tests.curator_service.seeded_noise import seed_answers

GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1.5", delta=1e-5)
Y = np.random.default_rng(0).uniform(-5, 5, size=300)


def spec(answers=None, noise_variance=0.0, **more):
    return wire.StudyCreate(
        name="s",
        dataset_id="dst_1",
        features=[wire.Feature(column="a", lower=0.0, upper=1.0)],
        measurement=wire.ColumnMeasurement(column="y", direction="maximize", noise_variance=noise_variance),
        release=more.pop("release", GAUSSIAN),
        answers=answers or wire.NoAnswerNoise(mechanism="none"),
        **more,
    )


def laplace(epsilon="0.5", bound=5.0):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=bound)


def finding_of(spec, y=Y, seed=1, answer_seconds=1e-9):
    """By answers that seem to take no time, on any machine: as many as the caps allow, about ROWS_MAX = 25 rows."""
    return averaging.attack(spec, y, np.random.default_rng(seed), answer_seconds=answer_seconds)


@pytest.fixture
def seeded(monkeypatch):
    """For verdicts on the median of 25 errors: one time in three chance alone moves it by a quarter or more."""
    seed_answers(monkeypatch, 1)


def allowed(spec):
    """The oracle: ask the ledger again and again until it refuses."""
    before = charge_release(spec, Balance()).after
    balances = {}
    for k in range(averaging.ANSWERS_MAX):
        try:
            (charge,) = charge_answers(spec, before, [(0, 1)], balances)
        except BudgetExhausted:
            return k
        before, balances = charge.after, {0: charge.row_after}
    return averaging.ANSWERS_MAX


@pytest.mark.parametrize("unit", ["row", "answer"])
@pytest.mark.parametrize(
    "budget",
    [
        wire.Budget(),
        wire.Budget(epsilon_per_row="2"),
        wire.Budget(epsilon_per_row="4.2"),
        wire.Budget(epsilon_total="3.3", queries=2),
        wire.Budget(epsilon_total="11", epsilon_per_row="9", queries=900),
    ],
    ids=repr,
)
def test_as_many_answers_are_averaged_as_the_ledger_allows(budget, unit):
    by_hand = (
        {} if unit == "row" else {"measurement": wire.InboxMeasurement(question="How much?", direction="maximize")}
    )
    study = spec(laplace("0.3"), budget=budget, privacy_unit=unit).model_copy(update=by_hand)
    assert averaging.answers_about_a_row(study) == allowed(study)


def test_a_study_that_can_ask_nothing_has_no_finding():
    study = spec(laplace("2"), budget=wire.Budget(epsilon_per_row="3.4"))
    assert (averaging.answers_about_a_row(study), finding_of(study)) == (0, None)


def test_an_exact_answer_is_exact_at_once():
    finding = finding_of(spec())
    assert (finding.figure, finding.low, finding.high) == (0.0, 0.0, 0.0)
    assert "once gets it as it is" in finding.sentence


def simulated_error(scale, k, bound):
    """The oracle: the median error of a mean of k Laplace values about an outcome, moved into the public range."""
    rng = np.random.default_rng(2)
    truth = rng.uniform(-bound, bound, size=20_000)
    mean = truth + np.array([rng.laplace(0, scale, k).mean() for _ in truth])
    return float(np.median(np.abs(np.clip(mean, -bound, bound) - truth))) / bound


@pytest.mark.parametrize(("cap", "k", "other"), [("26.5", 5, 50), ("251.5", 50, 5)])
def test_the_mean_of_laplace_answers_is_as_wrong_as_its_noise_makes_it(cap, k, other, seeded):
    study = spec(laplace("5"), budget=wire.Budget(epsilon_per_row=cap))
    finding = finding_of(study)
    # The interval of a median of 25 has the true one inside 95 times of 100: under this seed it does.
    expected, control = (simulated_error(2 * 5.0 / 5, n, 5.0) for n in (k, other))
    assert finding.low < expected < finding.high
    assert not finding.low < control < finding.high
    assert finding.unit == "error of y, in units of C"
    assert f"{k} times, which cost epsilon {k * 5} together" in finding.sentence


@pytest.mark.parametrize("kind", [wire.OneBitAnswers, wire.PiecewiseAnswers])
def test_bounded_answers_average_to_the_truth_too(kind):
    """Without bias: the mean of k answers of variance v is off by about 0.67 sqrt(v / k).

    The noise is the curator's own. An error is below a 20th of sqrt(v / k) with a probability of 0.05 at most, above
    2.02 of it with 0.043: 13 of 25 are with one of 4e-11.
    """
    private = kind(mechanism="one_bit" if kind is wire.OneBitAnswers else "piecewise", epsilon="1", value_bound=5.0)
    study = spec(private, budget=wire.Budget(queries=200))
    finding = finding_of(study)
    sd = passport_of(study).privacy.variance ** 0.5 / 5.0
    assert sd / sqrt(200) / 20 < finding.figure < 3 * 0.6745 * sd / sqrt(200)


def test_more_answers_tell_more(seeded):
    few, many = (finding_of(spec(laplace("5"), budget=wire.Budget(queries=n)), seed=3) for n in (1, 100))
    assert many.figure < few.figure / 3
    assert "once, which cost epsilon 5 together" in few.sentence


def test_noise_of_the_measurement_averages_out(seeded):
    """Over 1,000 answers of sd 2: a median error of 0.67 sd / sqrt(1000), within a factor of two."""
    finding = finding_of(spec(noise_variance=4.0))
    expected = 0.6745 * 2 / sqrt(1_000)
    assert expected / 2 < finding.figure < 2 * expected
    assert finding.unit == "error of y, in its own unit"
    assert "1,000 times knows it" in finding.sentence


def test_slow_answers_are_tried_fewer_times_and_the_sentence_says_so():
    finding = finding_of(spec(laplace("5")), answer_seconds=60.0)
    assert f"{averaging.ANSWERS_MIN} times, which cost epsilon 500" in finding.sentence


def test_noise_that_hides_more_than_the_range_tells_is_compared_with_a_guess():
    """Outcomes lie within a tenth of the range: the middle, which is public, is nearer than so noisy a mean."""
    narrow = np.random.default_rng(2).uniform(-0.5, 0.5, size=300)
    said = spec(laplace("0.01"), budget=wire.Budget(epsilon_per_row="1.6"))
    finding = finding_of(said, narrow)
    assert "does no better than by guessing the middle" in finding.sentence
    assert 0.02 < finding.figure < 0.08
    assert finding.low <= finding.figure <= finding.high
