"""What a study costs: the tight figure against other ways to the same number, and prices before anything is spent."""

import math
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.optimize import brentq
from scipy.stats import norm

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service.budget.ledger import Balance, RowBalance, charge_answers, charge_corrections, charge_release
from curator_service.privacy import accounting
from curator_service.privacy.accounting import Pair, distribution_epsilon, renyi_epsilon, tight_epsilon
from curator_service.privacy.calibration import gaussian_sd, planar_slope
from curator_service.privacy.prices import release_delta
from tests.builders import BY_HAND, COLUMN, IDENTITY, a_study, laplace
from tests.scale import scaled

GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
PLANAR = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
PROJECTION = wire.GaussianProjectionRelease(mechanism="gaussian_projection", epsilon="1", delta=1e-5, r=1)
REFUTED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True)
AUTO = wire.AutoRelease(mechanism="auto", epsilon="1", delta=1e-5)
NONE = wire.NoAnswerNoise(mechanism="none")


def study(release=GAUSSIAN, answers=laplace("0.2"), unit="row", *, d=2, **more):
    return a_study(release, answers, unit, d=d, **more)


# --- other ways to the same number ----------------------------------------------------------------


def balle_wang(size: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism (Balle & Wang 2018, Theorem 8), size = sensitivity / sd."""
    return float(norm.cdf(size / 2 - epsilon / size) - math.exp(epsilon + norm.logcdf(-size / 2 - epsilon / size)))


@cache
def _lies(epsilon_0: float, times: int) -> list[mpf]:
    """The chance of each number of lies among ``times`` randomized responses, to 60 digits."""
    with mp.workdps(60):
        truth = 1 / (1 + mp.exp(-mpf(epsilon_0)))
        lie = 1 - truth
        return [mp.binomial(times, k) * truth ** (times - k) * lie**k for k in range(times + 1)]


def randomized_responses(epsilon_0: float, times: int, epsilon: float) -> float:
    """Delta of many randomized responses at ``epsilon``: the binomial formula (Kairouz et al. 2015), to 60 digits."""
    with mp.workdps(60):
        chances, much = _lies(epsilon_0, times), mp.exp(mpf(epsilon))
        one_and_other = zip(chances, reversed(chances), strict=True)
        return float(sum((max(first - much * other, mpf(0)) for first, other in one_and_other), mpf(0)))


def _chances(pair: Pair, edges: np.ndarray) -> np.ndarray:
    """P(loss <= edge) of one release, from the law of the loss itself."""
    size = pair.size
    if pair.kind == "gaussian":
        return norm.cdf(edges, size**2 / 2, size)
    if pair.kind == "laplace":  # loss |x - size| - |x| for x from Laplace(0, 1)
        return np.where(edges >= size, 1.0, np.where(edges < -size, 0.0, np.exp(-(size - edges) / 2) / 2))
    return np.where(edges >= size, 1.0, np.where(edges < -size, 0.0, 1 / (1 + math.exp(size))))


def convolved(pairs: list[Pair], epsilon: float, step: float, *, up: bool) -> float:
    """Delta of ``pairs`` at ``epsilon`` with each loss rounded up, or down, to the grid; convolved term by term."""
    whole, offset = np.ones(1), 0
    for pair in pairs:
        reach = pair.size if pair.kind != "gaussian" else pair.size**2 / 2 + 9 * pair.size
        half = math.ceil(reach / step) + 1
        grid = np.arange(-half, half + 1)
        slack = 1e-9 * step  # a loss that lies on the grid stays there
        edges = grid * step + (slack if up else step - slack)
        chance = np.diff(_chances(pair, edges), prepend=0.0)
        for _ in range(pair.times):
            whole = np.convolve(whole, chance)
            offset -= half
    losses = (np.arange(len(whole)) + offset) * step
    return float((np.maximum(-np.expm1(epsilon - losses[losses > epsilon]), 0) * whole[losses > epsilon]).sum())


@pytest.mark.parametrize(("epsilon", "delta"), [("0.1", 1e-3), ("1", 1e-5), ("1", 1e-15), ("4", 1e-6), ("20", 1e-9)])
def test_one_gaussian_release_has_its_analytic_value(epsilon, delta):
    size = 1 / gaussian_sd(Decimal(epsilon), delta, 1.0, 1)
    for at in (delta, 1e-3, 1e-8):
        exact = brentq(lambda e, at=at: balle_wang(size, e) - at, 0, 200, xtol=1e-12)
        assert distribution_epsilon([Pair("gaussian", size)], at) == pytest.approx(exact, abs=1e-3 * max(1.0, exact))
    release = wire.GaussianRelease(mechanism="gaussian", epsilon=epsilon, delta=delta)
    (row,) = accounting.report(study(release), {0: 9}, 0, delta).rows
    assert row.epsilon == epsilon
    assert float(epsilon) * (1 - 1e-3) <= row.tight_epsilon <= float(epsilon)


def test_a_release_and_five_answers_cost_less_than_their_sum():
    (row,) = accounting.report(study(), {5: 1}, 5, 1e-5).rows
    assert row.epsilon == "2"
    assert row.tight_epsilon == pytest.approx(1.76, abs=0.005)


@pytest.mark.parametrize(("epsilon", "tight"), [("0.01", 4.368), ("0.1", 89.43)])
def test_ten_thousand_answers_cost_what_the_literature_s_method_says(epsilon, tight):
    spec = study(IDENTITY, laplace(epsilon))
    costs = accounting.Costs.of(spec)
    assert costs.loss_of(0, 10_000, 1e-5).tight_epsilon == pytest.approx(tight, rel=2e-4)
    assert tight_epsilon([Pair("laplace", float(epsilon), 10_000)], 1e-5) == pytest.approx(tight, rel=2e-4)


RESPONSES = [(0.1, 20), (0.1, 100), (0.05, 500), (0.01, 3_000), (2.0, 30), (0.001, 200)]


@pytest.mark.slow(every=4)
@pytest.mark.parametrize(("epsilon_0", "times"), RESPONSES)
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8, 2e-9, 1e-12, 1e-18])
def test_many_one_bit_answers_are_counted_soundly_and_tightly(epsilon_0, times, delta):
    """One bit is exactly randomized response, whose composition has a closed form."""
    tight = tight_epsilon([Pair("pure", epsilon_0, times)], delta)
    assert randomized_responses(epsilon_0, times, tight) <= delta * (1 + 1e-9)
    renyi = renyi_epsilon([Pair("pure", epsilon_0, times)], delta)
    assert randomized_responses(epsilon_0, times, renyi) <= delta * (1 + 1e-9)
    if delta >= 2e-9 and 0 < tight < 0.99 * epsilon_0 * times:
        assert randomized_responses(epsilon_0, times, tight * (1 - 1e-3)) > delta


@pytest.mark.parametrize(("epsilon_0", "times"), RESPONSES[:4])
def test_an_accountant_that_halves_the_sensitivity_is_caught(epsilon_0, times):
    tight = tight_epsilon([Pair("pure", epsilon_0 / 2, times)], 1e-5)
    assert randomized_responses(epsilon_0, times, tight) > 100e-5


def test_a_distribution_convolved_in_doubles_is_not_asked_for_a_tiny_delta():
    """Control of the guard: the library by itself tells an epsilon whose delta is 200 times what was asked."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    single = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(0.1, 0), value_discretization_interval=0.025
    )
    alone = single.self_compose(100, 1e-30).get_epsilon_for_delta(1e-18)
    assert randomized_responses(0.1, 100, alone) > 100e-18
    assert distribution_epsilon([Pair("pure", 0.1, 100)], 1e-18) == math.inf


MIXES = [
    [Pair("gaussian", 0.268), Pair("laplace", 0.2, 5)],
    [Pair("gaussian", 0.9), Pair("pure", 0.5, 4)],
    [Pair("laplace", 1.0), Pair("pure", 0.25, 6)],
    [Pair("pure", 1.0), Pair("laplace", 0.3, 6)],
    [Pair("laplace", 0.7, 3), Pair("pure", 0.7, 3), Pair("gaussian", 0.4)],
]


@pytest.mark.parametrize("pairs", MIXES, ids=lambda pairs: " ".join(f"{p.kind}*{p.times}" for p in pairs))
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_a_mix_of_mechanisms_is_counted_like_a_convolution_term_by_term(pairs, delta):
    """Losses rounded down give less than the truth, rounded up more: the told epsilon lies between, within 1 %."""
    tight = tight_epsilon(pairs, delta)
    assert convolved(pairs, tight, 2e-3, up=False) <= delta
    assert convolved(pairs, tight * 0.99 - 0.002 * 7, 2e-3, up=True) > delta
    halved = [replace(pair, size=pair.size / 2) for pair in pairs]
    assert convolved(pairs, tight_epsilon(halved, delta), 2e-3, up=False) > 5 * delta  # the control


PARTS = st.builds(
    Pair,
    st.sampled_from(["gaussian", "laplace", "pure"]),
    st.floats(1e-5, 20).map(lambda x: round(x, 6)).filter(lambda x: x > 0),
    st.integers(1, 60),
)


@settings(max_examples=scaled(40), deadline=None, derandomize=True)
@given(st.lists(PARTS, max_size=3), st.sampled_from([1e-18, 1e-12, 1e-9, 1e-6, 1e-3, 0.1]))
def test_more_releases_cost_no_less_and_a_larger_delta_no_more(pairs, delta):
    tight = tight_epsilon(pairs, delta)
    assert tight >= 0
    # Both are upper bounds, each rounded up in steps of its own: large losses in coarser ones.
    assert tight_epsilon([*pairs, Pair("laplace", 0.5, 3)], delta) >= tight * (1 - 1e-2) - 1e-9
    assert tight_epsilon(pairs, 0.1) <= tight * (1 + 1e-9)
    if all(pair.kind != "gaussian" for pair in pairs):
        assert tight <= sum(pair.size * pair.times for pair in pairs) * (1 + 1e-12)


EPSILONS = st.integers(1, 40_000).map(lambda n: format(Decimal(n) / 10_000, "f"))
RELEASES = st.builds(
    lambda release, epsilon: release.model_copy(update={"epsilon": epsilon}),
    st.sampled_from([GAUSSIAN, PLANAR, PROJECTION, AUTO]),
    EPSILONS,
)


@settings(max_examples=scaled(60), deadline=None, derandomize=True)
@given(
    RELEASES,
    EPSILONS,
    st.sampled_from([wire.LaplaceAnswers, wire.OneBitAnswers, wire.PiecewiseAnswers, wire.AutoAnswers]),
    st.integers(0, 200),
    st.sampled_from([1e-5, 1e-4, 1e-1]),
    st.sampled_from(["row", "answer"]),
    st.integers(1, 3),
)
def test_a_report_never_exceeds_pure_composition(release, epsilon, kind, answers, delta, unit, d):
    name = {"LaplaceAnswers": "laplace", "OneBitAnswers": "one_bit", "PiecewiseAnswers": "piecewise"}
    given = kind(mechanism=name.get(kind.__name__, "auto"), epsilon=epsilon, value_bound=1.0)
    spec = study(release, given, unit, d=d)
    report = accounting.report(spec, {0: 5, answers: 1}, answers, delta)
    for loss in (*report.rows, report.study):
        assert 0 <= loss.tight_epsilon <= float(loss.epsilon)
    exact = Decimal(release.epsilon) + answers * Decimal(epsilon)
    assert Decimal(report.study.epsilon) == exact
    alone = max(Decimal(release.epsilon), Decimal(epsilon) if answers else 0)
    assert Decimal(report.rows[-1].epsilon) == (alone if unit == "answer" else exact)


# --- what is reported ------------------------------------------------------------------------------


@pytest.mark.parametrize(("release", "answers"), [(REFUTED, laplace()), (IDENTITY, NONE), (GAUSSIAN, NONE)])
def test_where_nothing_is_bounded_no_number_is_stated(release, answers):
    report = accounting.report(study(release, answers), {0: 3, 2: 1}, 2, 1e-6)
    queried = report.rows[1]
    assert (queried.answers, queried.rows, queried.epsilon, queried.tight_epsilon) == (2, 1, None, None)
    assert (report.study.epsilon, report.study.tight_epsilon) == (None, None)
    assert "without a bound" in report.sentence
    assert (report.rows[0].epsilon is None) == (answers is not NONE)  # a sound release by itself is bounded


@pytest.mark.parametrize("unit", ["row", "answer"])
def test_a_release_of_public_records_costs_0_and_the_answers_cost_what_they_cost(unit):
    spec = study(IDENTITY, laplace("0.2"), unit=unit, epsilon_per_row="1")
    report = accounting.report(spec, {0: 3, 5: 1}, 5, 1e-5)
    assert (report.rows[0].epsilon, report.rows[0].tight_epsilon) == ("0", 0.0)
    assert (report.rows[1].epsilon, report.study.epsilon) == ("1" if unit == "row" else "0.2", "1")
    of_five = tight_epsilon([Pair("laplace", 0.2, 5)], 1e-5)
    assert report.study.tight_epsilon == pytest.approx(of_five, rel=1e-9)
    priced = accounting.price(spec)
    assert (priced.release_epsilon, priced.answer_epsilon) == ("0", "0.2")
    assert priced.row_epsilon == ("1" if unit == "row" else "0.2")
    assert priced.sentence.startswith(
        "The release uses no epsilon: its records are declared public. Each answer uses epsilon 0.2"
    )


@pytest.mark.parametrize("release", [GAUSSIAN, PLANAR, PROJECTION, AUTO], ids=lambda r: r.mechanism)
def test_nothing_bounds_what_a_refuted_release_costs_and_its_caps_count_what_they_counted(release):
    spec = study(release, laplace("0.5"), epsilon_per_row="3")
    before, after = (accounting.report(spec, {0: 2, 3: 1}, 3, 1e-5, release=ran) for ran in (None, REFUTED))
    assert [row.epsilon for row in before.rows] == ["1", "2.5"]
    assert [(row.epsilon, row.tight_epsilon) for row in (*after.rows, after.study)] == [(None, None)] * 3
    assert "without a bound" in after.sentence
    assert "without a bound" not in before.sentence
    sound, priced = (accounting.price(spec, ran) for ran in (None, REFUTED))
    assert (sound.release_epsilon, sound.row_epsilon) == ("1", "3")
    assert (priced.release_epsilon, priced.row_epsilon, priced.tight_row_epsilon) == (None, None, None)
    assert priced.answer_epsilon == "0.5"  # y has a promise of its own
    assert priced.answers_per_row == sound.answers_per_row == 4  # the charge of the release stands
    assert priced.sentence.startswith("The release has no finite epsilon")


def test_below_the_release_s_own_delta_the_sum_does_not_hold_and_the_tight_figure_may_be_more():
    row = accounting.report(study(), {0: 1}, 0, 1e-9).rows[0]
    assert row.epsilon == "1"
    size = 1 / gaussian_sd(Decimal(1), 1e-5, 1.0, 1)
    assert row.tight_epsilon == pytest.approx(brentq(lambda e: balle_wang(size, e) - 1e-9, 0, 20), rel=1e-3)
    assert row.tight_epsilon > 1.4


def test_a_projection_is_a_black_box():
    """Its delta is an event about which nothing is known: at its own delta the sum is all, below there is no bound."""
    spec = study(PROJECTION)
    assert accounting.report(spec, {5: 1}, 5, 1e-5).rows[0].tight_epsilon == 2.0
    assert accounting.report(spec, {5: 1}, 5, 0.9e-5).rows[0].tight_epsilon is None
    more = accounting.report(spec, {50: 1}, 50, 2e-5).rows[0].tight_epsilon
    assert more == pytest.approx(tight_epsilon([Pair("pure", 1.0), Pair("laplace", 0.2, 50)], 1e-5), rel=1e-9)
    assert more < 11


def test_in_one_dimension_planar_laplace_is_a_laplace_mechanism():
    line, plane = (accounting.report(study(PLANAR, d=d), {0: 1}, 0, 1e-2).rows[0].tight_epsilon for d in (1, 2))
    # Laplace: delta = 1 - e^((e - 1) / 2); randomized response: (e^1 - e^e) / (1 + e^1)
    assert line == pytest.approx(1 + 2 * math.log1p(-1e-2), rel=1e-3)
    assert plane == pytest.approx(math.log(math.e - 1e-2 * (1 + math.e)), rel=1e-3)
    assert line < plane < 1


def test_planar_laplace_with_a_delta_is_charged_as_a_pair_and_counts_as_pure_of_its_slope():
    spread = PLANAR.model_copy(update={"delta": 1e-5})
    spec = study(spread, laplace("0.2"), d=8, epsilon_per_row="3")
    assert accounting.Costs.of(spec).failure == 1e-5
    assert accounting.price(spec).sentence.startswith("The release uses epsilon 1 and delta 1e-05 for each record. ")
    slope = float(planar_slope(Decimal(1), 1e-5, 8))
    at_its_delta, below = (accounting.report(spec, {5: 1}, 5, delta).rows[0] for delta in (1e-5, 1e-9))
    assert (at_its_delta.epsilon, below.epsilon) == ("2", "2")
    assert at_its_delta.tight_epsilon <= 2
    assert 2 < below.tight_epsilon <= slope + 1  # the sum does not hold there
    pairs = [Pair("pure", slope), Pair("laplace", 0.2, 5)]
    assert below.tight_epsilon == pytest.approx(tight_epsilon(pairs, 1e-9), rel=1e-6)
    assert (release_delta(spread), release_delta(PLANAR)) == (Decimal("0.00001"), 0)
    line = accounting.Costs.of(study(spread, d=1)).release_pair
    assert (line.kind, line.size) == ("laplace", pytest.approx(1 - 2 * math.log1p(-1e-5), rel=2e-6))
    of_three = study(spread, d=8).model_copy(update={"rows_per_person": 3, "person_column": True})
    each = float(planar_slope(Decimal(1) / 3, 1e-5 / 3, 8))
    assert accounting.Costs.of(of_three).release_pair.size == pytest.approx(3 * each, rel=1e-6)


def test_each_answer_about_another_person_does_not_add_up_for_a_row_and_does_for_the_study():
    report = accounting.report(study(PLANAR, laplace("1.5"), unit="answer"), {0: 1, 4: 1, 9: 2}, 22, 1e-6)
    assert [row.epsilon for row in report.rows] == ["1", "1.5", "1.5"]
    assert report.rows[1].tight_epsilon == report.rows[2].tight_epsilon <= 1.5
    assert report.study.epsilon == "34"


def test_answers_made_from_one_stored_value_add_up_whoever_they_are_said_to_be_about():
    """20 answers of 0.5 about one cell, which their mean shows: a study that counts them apart says 1."""
    caps = {"epsilon_per_row": "11", "queries": 900}
    said = study(PLANAR, laplace("0.5"), unit="answer", measurement=COLUMN, **caps)
    rows = study(PLANAR, laplace("0.5"), **caps)
    report = accounting.report(said, {0: 1, 20: 1}, 20, 1e-6)
    assert [row.epsilon for row in report.rows] == ["1", "11"]
    assert report == accounting.report(rows, {0: 1, 20: 1}, 20, 1e-6)
    assert "has used epsilon 11 by the sum" in report.sentence
    assert accounting.price(said) == accounting.price(rows)
    assert accounting.price(said).row_epsilon == "11"
    apart = study(PLANAR, laplace("0.5"), unit="answer", **caps)
    assert accounting.report(apart, {20: 1}, 20, 1e-6).rows[0].epsilon == "1"  # the control


def test_a_sum_with_a_release_that_has_a_delta_is_a_pair():
    spec = study(GAUSSIAN, laplace("0.5"), epsilon_per_row="3")
    assert accounting.price(spec).sentence.startswith("The release uses epsilon 1 and delta 1e-05 for each record. ")
    assert "has used epsilon 2 and delta 1e-05 by the sum" in accounting.report(spec, {2: 1}, 2, 1e-6).sentence
    pure = study(PLANAR, laplace("0.5"), epsilon_per_row="3")
    assert accounting.price(pure).sentence.startswith(
        "The release uses epsilon 1 for each record. Each answer uses epsilon 0.5."
    )
    assert "has used epsilon 2 by the sum" in accounting.report(pure, {2: 1}, 2, 1e-6).sentence


def test_before_the_release_nothing_is_spent():
    report = accounting.report(study(), {0: 7}, 0, 1e-5, released=False)
    assert (report.study.epsilon, report.study.tight_epsilon) == ("0", 0.0)
    assert [(row.rows, row.epsilon, row.tight_epsilon) for row in report.rows] == [(7, "0", 0.0)]


def test_what_ran_counts_and_not_what_auto_would_take_today():
    spec = study(AUTO, NONE)
    ran = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
    by = [accounting.report(spec, {0: 1}, 0, 1e-7, release=r).rows[0].tight_epsilon for r in (None, ran)]
    assert by[0] <= 1 < by[1]  # planar Laplace needs no delta; the Gaussian costs more at a smaller one


# --- prices ----------------------------------------------------------------------------------------


def test_a_price_says_what_the_budget_buys():
    price = accounting.price(study(answers=laplace("0.5"), epsilon_per_row="5", epsilon_total="100.9"))
    assert (price.release_epsilon, price.answer_epsilon) == ("1", "0.5")
    assert (price.answers_per_row, price.answers, price.row_epsilon) == (8, 199, "5")
    assert price.tight_delta == 1e-5
    assert 3 < price.tight_row_epsilon <= 5
    said = "The release uses epsilon 1 and delta 1e-05 for each record. Each answer uses epsilon 0.5. "
    assert price.sentence == said + "The caps allow 8 answers about each record, and 199 answers in total."


@pytest.mark.parametrize("release", [GAUSSIAN, PLANAR, PROJECTION, AUTO, IDENTITY, REFUTED], ids=lambda r: r.mechanism)
@pytest.mark.parametrize("unit", ["row", "answer"])
@pytest.mark.parametrize(
    "caps",
    [
        {},
        {"queries": 7},
        {"epsilon_per_row": "1.65"},
        {"epsilon_total": "3.05"},
        {"epsilon_per_row": "1.6", "epsilon_total": "2.9", "queries": 9},
        {"epsilon_per_row": "3.1", "epsilon_total": "2.9", "queries": 4},
    ],
    ids=str,
)
def test_a_price_is_what_the_ledger_will_allow(release, unit, caps):
    """The same caps through the ledger itself, answer by answer: to one row, and to ever new ones."""
    spec = study(release, laplace("0.3"), unit=unit, **caps)
    price = accounting.price(spec)
    start = charge_release(spec, Balance()).after

    def until_refused(rows):
        balance, spent, count = start, {}, 0
        for row in rows:
            try:
                (charge,) = charge_answers(spec, balance, [(row, 1)], spent)
            except BudgetExhausted:
                return count, start.release + spent.get(0, RowBalance()).total
            balance, count = charge.after, count + 1
            spent[row] = charge.row_after
        return None, None

    assert until_refused([0] * 60)[0] == price.answers_per_row
    assert until_refused(range(60))[0] == price.answers
    if price.row_epsilon is not None and unit == "row":
        assert until_refused([0] * 60)[1] == Decimal(price.row_epsilon) * 10**12
    assert (price.row_epsilon is None) == (release is REFUTED or (unit == "row" and price.answers_per_row is None))


def test_a_price_without_a_finite_number_says_so():
    exact = accounting.price(study(answers=NONE, queries=3))
    assert (exact.release_epsilon, exact.answer_epsilon, exact.row_epsilon, exact.answers) == ("1", None, None, 3)
    assert exact.sentence.endswith(
        "Answers are exact, so epsilon cannot count them. The caps allow 3 answers in total."
    )
    refuted = accounting.price(study(REFUTED))
    assert (refuted.release_epsilon, refuted.tight_row_epsilon, refuted.tight_delta) == (None, None, None)
    assert "no finite epsilon" in refuted.sentence
    assert accounting.price(study()).sentence.endswith("No cap limits the answers.")


def test_a_mean_is_priced_once_for_all_plays():
    price = accounting.price(study(answers=laplace("0.5", plays="mean"), epsilon_per_row="2"))
    assert price.answers_per_row == 2
    assert "The mean of a query's measurements of a record uses epsilon 0.5" in price.sentence


def test_a_study_without_a_delta_has_no_tight_price_and_a_huge_one_is_priced_at_once():
    pure = accounting.price(study(PLANAR, epsilon_per_row="3"))
    assert (pure.row_epsilon, pure.tight_row_epsilon, pure.tight_delta) == ("3", None, None)
    huge = accounting.price(study(IDENTITY, laplace("0.000001"), queries=2**53 - 1))
    assert huge.answers == huge.answers_per_row == 2**53 - 1
    many = accounting.price(study(answers=laplace("0.000001"), queries=10**9))
    assert many.row_epsilon == "1001"
    assert many.tight_row_epsilon < 5


def test_more_tells_do_not_tell_less():
    tight = [accounting.report(study(), {k: 1}, k, 1e-5).rows[0].tight_epsilon for k in (0, 1, 2, 5, 20, 100, 1000)]
    assert all(a < b for a, b in pairwise(tight))


@pytest.mark.parametrize(
    ("unit", "caps"),
    [
        ("answer", {"epsilon_per_row": "4", "queries": 9}),
        ("row", {"queries": 5}),
        ("row", {"epsilon_per_row": "9", "queries": 2}),
        ("row", {"epsilon_per_row": "3"}),
        ("row", {"epsilon_per_row": "9", "queries": 20}),
        ("row", {"epsilon_total": "9"}),
        ("row", {}),
    ],
    ids=repr,
)
def test_a_price_says_where_corrections_may_cost_more_than_it_counts(unit, caps):
    """The oracle: one answer, corrected again and again until the ledger refuses."""
    spec = study(PLANAR, laplace("0.8"), unit=unit, measurement=BY_HAND, **caps)
    balance, spent, again = charge_release(spec, Balance()).after, {}, 0
    with suppress(BudgetExhausted):
        for again in range(30):
            charge = charge_corrections if again else charge_answers
            (line,) = charge(spec, balance, [(0, 1)], spent, *([again] if again else []))
            balance, spent = line.after, {0: line.row_after}
    answers = spent[0].total
    lost = max(balance.release, answers) if unit == "answer" else balance.release + answers
    price = accounting.price(spec)
    more = price.row_epsilon is not None and lost > Decimal(price.row_epsilon) * 10**12
    assert more == ("Each correction of an answer uses as much again, which is not counted here." in price.sentence)
