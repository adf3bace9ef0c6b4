"""Groups: the exact privacy loss of numbers and answers together, over all neighbours and many transcripts.

The noise is replaced by one that makes the noisy values those of a chosen transcript, and that notes which values it
was added to, and its scale. Discrete Laplace noise gives an output o the probability of exp(-|o - value| / scale), but
for a constant, so that the loss of a transcript is a sum of fractions. The last tests look at the noise itself.
"""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from blindopt.errors import NumericalFailure
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.measurement import groups as of_answers
from curator_service.privacy.measurement.groups import measure_groups
from curator_service.privacy.noise import add_integer_laplace, least_epsilon
from curator_service.releases.mechanisms import groups as of_release
from curator_service.releases.mechanisms.registry import mechanism_of
from tests.builders import a_study, group_release, laplace
from tests.curator_service.replaced_noise import replace_integer_laplace, replace_moves_of_group_answers

OF_NUMBERS, OF_ANSWER = Fraction("0.25"), Fraction("0.5")
FAR = 2**40
"""Beyond every true value."""
LOW, HIGH = -1.0, 7.0
"""Values of y: one at an end of the clip, one far beyond the other."""


class Forced:
    """Noise that makes every noisy value the next one of a transcript."""

    def __init__(self, outputs):
        self.outputs, self.calls = iter(outputs), []

    def __call__(self, values, sensitivity, epsilon):
        outputs = [next(self.outputs) for _ in values]
        rate = Fraction(epsilon) / sensitivity
        self.calls += [(value, output, rate) for value, output in zip(values, outputs, strict=True)]
        return outputs


def loss(all_calls):
    """The largest log P(transcript) under any of these datasets, less the smallest one."""
    laws = [[call[1:] for call in calls] for calls in all_calls]
    assert all(law == laws[0] for law in laws)
    logs = [-sum(abs(output - value) * rate for value, output, rate in calls) for calls in all_calls]
    return max(logs) - min(logs)


def draft(parts, k=1):
    release = group_release(f"{float(OF_NUMBERS)}", (parts,), 1)
    answers = laplace(f"{float(OF_ANSWER)}")
    return a_study(release, answers, upper=float(parts), rows_per_person=k, person_column=k > 1)


def transcript(monkeypatch, spec, records, plan, outputs):
    """All that leaves of a study on ``records`` (group, y) that is queried by ``plan``, and the noise's calls."""
    forced = Forced(outputs)
    replace_integer_laplace(monkeypatch, forced)
    values, y = np.array([[group + 0.5] for group, _ in records]), np.array([y for _, y in records])
    divided = mechanism_of(spec, spec.release).divide(ScaledRows(values, [0], spec.features, np.arange(len(values))))
    sent = [divided.kept.tolist(), divided.counts, divided.centres.tolist()]
    for row in plan:
        query = [wire.RowPlays(row=row)]
        total = of_answers.steps(y[divided.candidates == row], spec.answers)
        sent += measure_groups([total], [divided.counts[row]], query, spec)
    return sent, forced.calls


def largest_loss(monkeypatch, parts, plan, k=1):
    """The largest loss over all pairs of neighbours among the datasets of two persons with k records each."""
    spec, worst = draft(parts, k), Fraction(0)
    kinds = list(itertools.product(range(parts), (LOW, HIGH)))
    persons = list(itertools.product(kinds, repeat=k))
    others = persons[:: len(persons) // parts]  # one in each group
    numbers = [*itertools.product((1, FAR), repeat=parts)]
    if parts > 2:  # one group that is no candidate, and none that is
        numbers += [(1, FAR, -FAR), (FAR, 1, -FAR)]
    signs = [*itertools.product((-FAR, FAR), repeat=len(plan))]
    for outputs in ((*first, *rest) for first in numbers for rest in signs):
        for other in others:
            seen = [transcript(monkeypatch, spec, [*other, *person], plan, outputs) for person in persons]
            assert all(sent == seen[0][0] for sent, _ in seen), "what leaves depends on the records beside the noise"
            worst = max(worst, loss([calls for _, calls in seen]))
    return worst


PLANS = [(0,), (0, 0), (0, 1), (0, 1, 0)]


def exact(plan, parts):
    """Theorem C: what a record loses that stays in its group, or that moves between two of them."""
    sums = sorted((plan.count(row) * OF_ANSWER for row in range(parts)), reverse=True)
    return max(sums[0], OF_NUMBERS + (sums[0] + sums[1]) / 2)


def charged(plan):
    """What the ledger counts for a record."""
    return OF_NUMBERS + max(map(plan.count, plan)) * OF_ANSWER


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_the_largest_loss_is_that_of_the_theorem_and_never_above_what_is_charged(plan, monkeypatch):
    most = largest_loss(monkeypatch, 3, plan)
    assert most == exact(plan, 3) <= charged(plan)
    if plan == (0, 1):  # two groups that are queried equally often
        assert most == charged(plan) == OF_NUMBERS + OF_ANSWER


def test_all_records_of_a_person_together_lose_what_one_record_does(monkeypatch):
    assert largest_loss(monkeypatch, 2, (0, 1), k=2) == charged((0, 1))


def halve_numbers(monkeypatch):
    monkeypatch.setattr(of_release, "COUNT_MOVE", 1)


def halve_answers(monkeypatch):
    replace_moves_of_group_answers(monkeypatch, lambda answers: of_answers.LEVELS * answers.rows)


def forget_the_clip(monkeypatch):
    def steps(values, answers):
        return int(np.rint((values - answers.centre) / answers.bound * of_answers.LEVELS).sum())

    monkeypatch.setattr("curator_service.privacy.measurement.groups.steps", steps)


@pytest.mark.parametrize("fault", [halve_numbers, halve_answers, forget_the_clip])
def test_controls_lose_more_than_is_charged(fault, monkeypatch):
    fault(monkeypatch)
    assert largest_loss(monkeypatch, 2, (0, 1)) > charged((0, 1))


def test_a_person_without_larger_noise_loses_more(monkeypatch):
    replace_moves_of_group_answers(monkeypatch, lambda answers: 2 * of_answers.LEVELS)
    assert largest_loss(monkeypatch, 2, (0,), k=2) > charged((0,))


def _misfit(draws, scale):
    """p of a chi-square test of draws against discrete Laplace noise of a scale, by the law written down here."""
    edge = int(4 * scale)
    seen = np.bincount(np.clip(draws, -edge, edge) + edge, minlength=2 * edge + 1)
    q = np.exp(-1 / scale)
    law = (1 - q) / (1 + q) * q ** np.abs(np.arange(-edge, edge + 1))
    law[[0, -1]] = q**edge / (1 + q)
    return stats.chisquare(seen, len(draws) * law).pvalue


def test_the_noise_follows_its_law():
    draws = np.array(add_integer_laplace([0] * 4_000, 2, wire.amount("1")))
    assert _misfit(draws, 2.0) > 1e-6
    assert _misfit(draws // 2, 2.0) < 1e-6


def test_the_noise_costs_its_epsilon_by_the_library_too():
    for epsilon in ("0.000001", "0.3", "0.75", "1000"):
        assert len(add_integer_laplace([0, 2**60], 2 * of_answers.LEVELS, wire.amount(epsilon))) == 2
    assert len(add_integer_laplace([0], 1, wire.amount("1"))) == 1
    for sensitivity, epsilon in ((0, Decimal(1)), (1, Decimal(0)), (1, Decimal(-1)), (1, Decimal("Infinity"))):
        with pytest.raises(ValueError, match="positive"):
            add_integer_laplace([0], sensitivity, epsilon)


def test_noise_that_does_not_fit_64_bits_is_refused_and_at_the_least_epsilon_its_variance_is_that_described():
    """Below, draws would end at 2^63: the variance would not be the one that a noise description says."""
    move = 2 * of_answers.LEVELS
    least = least_epsilon(move)
    assert least == wire.amount("0.000000014902")  # 2^31 / 2^57, rounded up
    drawn = np.array(add_integer_laplace([2**61, -(2**61)] * 1_000, move, least), dtype=float)
    assert np.abs(drawn).max() < 2**63 - 2**20
    spread = np.abs(drawn - np.tile([2.0**61, -(2.0**61)], 1_000)).mean() / (move / float(least))
    assert abs(spread - 1) < 6 / np.sqrt(2_000)
    with pytest.raises(ValueError, match="64 bits"):
        add_integer_laplace([0], move, least - wire.amount("0.000000000001"))


@pytest.mark.parametrize(("declared", "is_known"), [(0.0, False), (0.25, True)])
def test_the_noise_description_follows_from_public_values(declared, is_known):
    spec = draft(3)
    spec = spec.model_copy(update={"answers": spec.answers.model_copy(update={"noise_bound": declared})})
    passport = of_answers.GroupAnswers.of(spec).passport(50)
    c, (b, s) = 1 + declared, (1.0, declared or 1.0)
    assert passport.clip == (-c, c)
    assert passport.privacy.variance == pytest.approx(2 * (2 * c / 0.5) ** 2 / 50**2)
    assert passport.measurement_variance == pytest.approx(s**2 / 50 + b**2 * 2 * (2 / 0.25) ** 2 / 50**2)
    assert passport.measurement_variance_known is is_known


@pytest.mark.parametrize("count", [-3, 1, 50])
@pytest.mark.parametrize("k", [1, 3])
def test_the_variance_of_an_answer_is_that_of_its_noise_and_of_its_number(k, count):
    """Clipped at C = 2 + 0.5, B = 2; epsilon 0.5 of an answer, and 0.25 of the numbers beside centres of 0.125."""
    spec = draft(3, k)
    cells = wire.PrivateCells(kind="private", number=3, epsilon="0.125")
    of_numbers = wire.GroupsRelease(mechanism="groups", epsilon="0.375", cells=cells)
    of_y = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=2.0, noise_bound=0.5, centre=1.0)
    mechanism = of_answers.GroupAnswers.of(spec.model_copy(update={"release": of_numbers, "answers": of_y}))
    n = max(count, 1)
    of_sum, of_number = 2 * (2 * 2.5 * k / 0.5 / n) ** 2, 2.0**2 * 2 * (2 * k / 0.25) ** 2 / n**2
    assert mechanism.number_variance(count) == pytest.approx(of_number, rel=1e-12)
    assert mechanism.variance(count) == pytest.approx(of_sum + of_number, rel=1e-12)
    passport = mechanism.passport(count)
    assert (passport.privacy.family, passport.privacy.bound, passport.clip) == ("laplace", 2.5, (-1.5, 3.5))
    assert passport.privacy.scale == pytest.approx(2 * 2.5 * k / 0.5 / n, rel=1e-12)
    assert passport.measurement_variance == pytest.approx(0.5**2 / n + of_number, rel=1e-12)
    assert mechanism.move == 2**31 * k


def test_a_sum_is_exact_where_doubles_are_not(monkeypatch):
    """Twice 2^52 steps and one more."""
    monkeypatch.setattr(of_answers, "LEVELS", 2**52)
    of_y = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=3.0, centre=1.0)
    assert of_answers.steps(np.array([4.0, 4.0, 1 + 3 * 2.0**-52]), of_y) == 2**53 + 1


def test_a_sum_is_of_whole_steps_about_the_centre_and_never_beyond_the_clip():
    of_y = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=3.0, centre=1.0)
    assert of_answers.steps(np.array([4.0, -2.0, 1e9, 1.0]), of_y) == 2**30
    assert of_answers.steps(np.array([1 + 3 * 2.0**-30, 1 - 1.4 * 3 * 2.0**-30, -1e9]), of_y) == -(2**30)
    assert of_answers.steps(np.full(2**14, 9.0), of_y) == 2**44
    assert of_answers.steps(np.array([]), of_y) == 0
    for far in (1e300, -1e300):  # as steps it would be no double
        assert of_answers.steps(np.array([far]), of_y) == math.copysign(2**30, far)
    with pytest.raises(NumericalFailure):
        of_answers.steps(np.array([0.0, np.nan]), of_y)


def test_answers_spread_as_their_description_says(monkeypatch):
    """1,000 answers about 40 records, with noise of the same law from numpy: mean and variance within five sd."""
    rng, spec, scale = np.random.default_rng(1), draft(3), 2 * of_answers.LEVELS / 0.5
    replace_integer_laplace(monkeypatch, lambda v, *_: [int(value + rng.laplace(scale=scale)) for value in v])
    y = np.linspace(-0.5, 1.5, 40)
    query = [wire.RowPlays(row=0, plays=1_000)]
    answers = measure_groups([of_answers.steps(y, spec.answers)], [40], query, spec)
    drawn, described = np.array([answer.y for answer in answers]), answers[0].passport.privacy.variance
    assert abs(drawn.mean() - np.clip(y, -1, 1).mean()) < 5 * np.sqrt(described / 1_000)
    assert abs(drawn.var() / described - 1) < 5 * np.sqrt(5 / 1_000)  # the kurtosis of Laplace noise is 6
