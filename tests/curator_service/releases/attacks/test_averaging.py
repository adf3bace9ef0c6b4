"""Averaging answers about one row: as many as the ledger itself allows, and as near as their noise lets the mean."""

import time
from math import sqrt

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service.budget.ledger import Balance, charge_answers, charge_release
from curator_service.privacy.answers import measure, passport_of
from curator_service.privacy.prices import units
from curator_service.releases.attacks import averaging
from tests.builders import EXACT, a_study
from tests.curator_service.privacy import test_prices as groups
from tests.curator_service.seeded_noise import seed_answers
from tests.interventions import fail_at

GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1.5", delta=1e-5)
Y = np.random.default_rng(0).uniform(-5, 5, size=300)


def spec(answers=None, noise_variance=0.0, **more):
    return a_study(more.pop("release", GAUSSIAN), answers or EXACT, variance=noise_variance, **more)


def laplace(epsilon="0.5", bound=5.0):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=bound)


def finding_of(spec, y=Y, seed=1):
    return averaging.attack(spec, y, np.random.default_rng(seed))


@pytest.fixture
def seeded(monkeypatch):
    """For verdicts on the median of 25 errors: one time in three chance alone moves it by a quarter or more."""
    seed_answers(monkeypatch, 1)


ENDLESS = 2_000
"""More answers than any cap of these tests allows."""


def allowed(spec):
    """The oracle: ask the ledger again and again until it refuses; None where it does not."""
    before = charge_release(spec, Balance()).after
    balances = {}
    for k in range(ENDLESS):
        try:
            (charge,) = charge_answers(spec, before, [(0, 1)], balances)
        except BudgetExhausted:
            return k
        before, balances = charge.after, {0: charge.row_after}
    return None


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


@pytest.mark.parametrize("epsilons", [("0.5", "0.5", None), ("0.5", "0.3", "0.1"), ("2", "0.1", None)], ids=repr)
def test_as_many_answers_about_one_group_are_averaged_as_the_ledger_allows(epsilons):
    """A record that moves to the group loses half of each answer about it, so that twice as many may fit."""
    for cap in ("1.1", "2.6", "3.15"):
        study = groups.study(*epsilons, cap=cap)
        if units(cap) >= units(study.release.epsilon):
            assert averaging.answers_about_a_row(study) == allowed(study)
    capped = groups.study("0.5", "0.5", cap="9").model_copy(update={"budget": wire.Budget(queries=3)})
    assert averaging.answers_about_a_row(capped) == 3


def test_a_study_that_can_ask_nothing_has_no_finding():
    study = spec(laplace("2"), budget=wire.Budget(epsilon_per_row="3.4"))
    assert (averaging.answers_about_a_row(study), finding_of(study)) == (0, None)


def test_an_exact_answer_is_exact_at_once():
    finding = finding_of(spec())
    assert (finding.figure, finding.low, finding.high) == (0.0, 0.0, 0.0)
    assert "One query reveals the exact outcome" in finding.sentence


def simulated_error(scale, k, bound):
    """The oracle: the median error of a mean of k Laplace values about an outcome, moved into the public range."""
    rng = np.random.default_rng(2)
    truth = rng.uniform(-bound, bound, size=20_000)
    mean = truth + np.array([rng.laplace(0, scale, k).mean() for _ in truth])
    return float(np.median(np.abs(np.clip(mean, -bound, bound) - truth)))


@pytest.mark.parametrize(("cap", "k", "other"), [("26.5", 5, 50), ("251.5", 50, 5)])
def test_the_mean_of_laplace_answers_is_as_wrong_as_its_noise_makes_it(cap, k, other, seeded):
    study = spec(laplace("5"), budget=wire.Budget(epsilon_per_row=cap))
    finding = finding_of(study)
    # The interval of a median of 25 has the true one inside 95 times of 100: under this seed it does.
    expected, control = (simulated_error(2 * 5.0 / 5, n, 5.0) for n in (k, other))
    assert finding.low < expected < finding.high
    assert not finding.low < control < finding.high
    assert finding.unit == "error of the outcome, in its own unit"
    assert f"{k} times, with epsilon {k * 5} in total" in finding.sentence


@pytest.mark.parametrize("kind", [wire.OneBitAnswers, wire.PiecewiseAnswers])
def test_bounded_answers_average_to_the_truth_too(kind):
    """Without bias: the mean of k answers of variance v is off by about 0.67 sqrt(v / k).

    The noise is the curator's own. An error is below a 20th of sqrt(v / k) with a probability of 0.05 at most, above
    2.02 of it with 0.043: 13 of 25 are with one of 4e-11.
    """
    private = kind(mechanism="one_bit" if kind is wire.OneBitAnswers else "piecewise", epsilon="1", value_bound=5.0)
    study = spec(private, budget=wire.Budget(queries=200))
    finding = finding_of(study)
    sd = passport_of(study).privacy.variance ** 0.5
    assert sd / sqrt(200) / 20 < finding.figure < 3 * 0.6745 * sd / sqrt(200)


def test_more_answers_tell_more(seeded):
    few, many = (finding_of(spec(laplace("5"), budget=wire.Budget(queries=n)), seed=3) for n in (1, 100))
    assert many.figure < few.figure / 3
    assert "once, with epsilon 5 in total" in few.sentence


def test_noise_of_the_measurement_averages_out():
    """Over 1,000 answers of sd 2: a median error of 0.6745 sd / sqrt(1000), by 1,000 rows to within 15 %."""
    finding = finding_of(spec(noise_variance=4.0, budget=wire.Budget(queries=1_000)))
    assert finding.figure == pytest.approx(0.6745 * 2 / sqrt(1_000), rel=0.15)
    assert finding.unit == "error of the outcome, in its own unit"
    assert "1,000 times knows it" in finding.sentence


@pytest.mark.parametrize("answers", [laplace("1"), None], ids=["laplace", "none"])
def test_where_no_cap_ends_it_y_is_known_as_exactly_as_one_likes(answers):
    """Never "no better than by guessing": that is what a busy machine made of a study without a cap."""
    finding = finding_of(spec(answers, noise_variance=0.0 if answers else 1.0))
    assert (finding.figure, finding.low, finding.high) == (0.0, 0.0, 0.0)
    assert "as exactly as it likes, because no cap limits the answers." in finding.sentence
    assert "guessing" not in finding.sentence
    if answers:
        # 0.6745 * 5 sqrt(8 / 1,000) = 0.30, by 1,000 rows
        assert "1,000 answers, with epsilon 1000 in total, reveal its outcome to within" in finding.sentence
        assert 0.25 < float(finding.sentence.split("within ")[1].split()[0]) < 0.36


def test_values_outside_of_the_range_stay_off_by_what_the_clip_takes():
    finding = finding_of(spec(laplace("1", bound=2.0)), np.full(300, 3.0))
    assert finding.figure == pytest.approx(1.0)


def test_no_clock_is_read(monkeypatch):
    """The verdict does not depend on the machine's load: no time is measured at all."""
    for clock in ("perf_counter", "monotonic", "process_time", "time"):
        fail_at(monkeypatch, time, clock, pytest.fail.Exception("a clock was read"))
    counts = [10, 1_000, None]
    for queries in counts:
        assert finding_of(spec(laplace("1"), budget=wire.Budget(queries=queries))).figure < 2.5


KINDS = {
    "laplace": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=5.0),
    "one_bit": wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=5.0),
    "piecewise": wire.PiecewiseAnswers(mechanism="piecewise", epsilon="1", value_bound=5.0),
}


@pytest.mark.slow(every=5)
@pytest.mark.parametrize("truth", [0.0, 3.0, 5.0, 7.0])
@pytest.mark.parametrize("noise_variance", [0.0, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_of_the_mean_is_that_of_exact_draws(kind, noise_variance, truth):
    """2,000 answers drawn by the curator itself: their mean within 5.5 standard errors, and their variance.

    Squares of Laplace noise have long tails: of 600 the variance is off by 0.6 twice in a million times.
    """
    n = 2_000
    study = spec(KINDS[kind], noise_variance=noise_variance)
    request = [wire.RowPlays(row=0, plays=1)] * n
    drawn = np.array([answer.y for answer in measure(np.full(n, truth), request, study)])
    (mean,), (sd,) = averaging.law_of_mean(study, np.array([truth]), 1)
    assert abs(drawn.mean() - mean) < 5.5 * sd / sqrt(n)
    assert abs(drawn.var() / sd**2 - 1) < 0.4
    wrong = 1.5 * sd  # the control
    assert abs(drawn.var() / wrong**2 - 1) > 0.4


@pytest.mark.parametrize("kind", KINDS)
def test_the_median_error_of_many_answers_is_that_of_a_simulation_and_of_the_formula(kind):
    """Of 10 means of 400 answers each by numpy's own draws: an oracle that shares no code; and 0.6745 sd / sqrt(k)."""
    k, rng = 400, np.random.default_rng(3)
    study = spec(KINDS[kind], budget=wire.Budget(queries=k))
    figure = finding_of(study).figure
    truths = rng.uniform(-5, 5, size=1_500)
    errors = np.abs(np.clip(simulated(kind, truths, k, rng), -5, 5) - truths)
    assert figure == pytest.approx(float(np.median(errors)), rel=0.2)
    sd = passport_of(study).privacy.variance ** 0.5
    assert 0.6 < figure / (0.6745 * sd / sqrt(k)) < 1.1


def simulated(kind, truths, k, rng):
    """Means of ``k`` answers of epsilon 1 and C = 5, from the definitions in docs/privacy.md."""
    bound, s = 5.0, np.exp(0.5)
    if kind == "laplace":
        return truths + rng.laplace(0, 2 * bound, size=(k, len(truths))).mean(axis=0)
    if kind == "one_bit":
        size = bound * (s**2 + 1) / (s**2 - 1)
        up = rng.binomial(k, 0.5 + truths / size / 2)
        return size * (2 * up / k - 1)
    # piecewise (Wang et al. 2019): a window of width C' - 1 about the value, with probability s / (s + 1)
    edge = (s + 1) / (s - 1)
    t = truths / bound
    low = (edge + 1) / 2 * t - (edge - 1) / 2
    inside = rng.random((k, len(t))) < s / (s + 1)
    window = low + (edge - 1) * rng.random((k, len(t)))
    outside = -edge + (edge + 1) * rng.random((k, len(t)))
    outside = np.where(outside < low, outside, outside + edge - 1)
    return bound * np.where(inside, window, outside).mean(axis=0)


def test_noise_that_hides_more_than_the_range_tells_is_compared_with_a_guess():
    """Outcomes lie within a tenth of the range: the middle, which is public, is nearer than so noisy a mean."""
    narrow = np.random.default_rng(2).uniform(-0.5, 0.5, size=300)
    said = spec(laplace("0.01"), budget=wire.Budget(epsilon_per_row="1.6"))
    finding = finding_of(said, narrow)
    assert "does no better than by guessing the middle" in finding.sentence
    assert 0.1 < finding.figure < 0.4
    assert finding.low <= finding.figure <= finding.high
