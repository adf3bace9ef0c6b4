"""Figures of a report and a price, to the last digit: each against its formula, worked out in the test."""

import math
import re
from dataclasses import replace
from decimal import Decimal

import pytest

from blindopt import wire
from curator_service.privacy import accounting
from curator_service.privacy.accounting import Pair, tight_epsilon
from curator_service.privacy.calibration import gaussian_sd, slope_of_row
from tests.curator_service.privacy import test_prices as groups
from tests.curator_service.privacy.test_accounting import (
    AUTO,
    GAUSSIAN,
    IDENTITY,
    NONE,
    PLANAR,
    PROJECTION,
    REFUTED,
    laplace,
    study,
)

LATTICE = 2.0**-40
SD = gaussian_sd(Decimal(1), 1e-5, 1.0, 1)
OF_GAUSSIAN = Pair("gaussian", 1 / (SD / (1 + 2 * SD * LATTICE)))
PURE = Pair("pure", 1.0)
NOTHING = wire.Loss(epsilon=None, tight_epsilon=None)


def tight(pairs, delta, noisy):
    """The composition of ``pairs``; the lattice of each of ``noisy`` draws costs a factor of e^(2^-40) (docs)."""
    return tight_epsilon(pairs, delta * (1 - noisy * LATTICE)) + noisy * LATTICE


# --- the release and answers of a study -------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9, 1e-15])
@pytest.mark.parametrize("answers", [0, 1, 40, 10**9])
@pytest.mark.parametrize(
    ("release", "pair", "failure"),
    [(IDENTITY, None, 0.0), (GAUSSIAN, OF_GAUSSIAN, 1e-5), (PLANAR, PURE, 0.0), (PROJECTION, PURE, 1e-5)],
    ids=["identity", "gaussian", "planar_laplace", "gaussian_projection"],
)
def test_a_loss_is_the_sum_where_it_holds_or_the_composition_of_the_noise_there_was(
    release, pair, failure, answers, delta
):
    """With and without the release: its delta counts only with it, its noise only where it has any."""
    costs = accounting.Costs.of(study(release, laplace("0.2" if answers < 10**9 else "0.000001")))
    each = 0.2 if answers < 10**9 else 1e-6
    of_answers = [Pair("laplace", each, answers)] if answers else []
    for releases in (0, 1):
        noise = releases if pair else 0
        remaining = delta - failure if noise and release is PROJECTION else delta
        pairs = [pair] * noise + of_answers
        composed = tight(pairs, remaining, noise + answers) if remaining > 0 else math.inf
        sum_ = releases * (release is not IDENTITY) + answers * Decimal(str(each))
        holds = failure <= delta or not noise
        expected = min(float(sum_) if holds else math.inf, composed) if pairs else 0.0
        loss = costs.loss_of(releases, answers, delta)
        assert Decimal(loss.epsilon) == sum_
        assert loss.tight_epsilon == (None if math.isinf(expected) else expected)


@pytest.mark.parametrize(("release", "answers"), [(REFUTED, laplace()), (PLANAR, NONE)])
def test_what_has_no_bound_counts_only_where_it_takes_part(release, answers):
    costs = accounting.Costs.of(study(release, answers))
    assert costs.loss_of(1, 1, 1e-5) == NOTHING
    assert (costs.loss_of(1, 0, 1e-5) == NOTHING) == (release is REFUTED)
    assert (costs.loss_of(0, 1, 1e-5) == NOTHING) == (answers is NONE)


@pytest.mark.parametrize("epsilon", ["0.000001", "0.01", "1"])
def test_a_row_of_a_gaussian_release_moves_by_delta_and_two_steps_of_the_lattice(epsilon):
    """The noise of a small epsilon is so wide that its lattice, of 2^-40 of it, counts."""
    release = wire.GaussianRelease(mechanism="gaussian", epsilon=epsilon, delta=1e-9)
    sd = gaussian_sd(Decimal(epsilon), 1e-9, 1.0, 1)  # one dimension has the least noise
    pair = accounting.Costs.of(study(release)).release_pair
    assert pair.size * sd - 1 == pytest.approx(2 * sd * LATTICE, abs=1e-15)


SPREAD = PLANAR.model_copy(update={"delta": 1e-5})
ONE_BIT = wire.OneBitAnswers(mechanism="one_bit", epsilon="0.2", value_bound=1.0)
PIECEWISE = wire.PiecewiseAnswers(mechanism="piecewise", epsilon="0.2", value_bound=1.0)
LARGE = wire.AutoAnswers(mechanism="auto", epsilon="30", value_bound=1.0)  # above 20 it is Laplace


@pytest.mark.parametrize(
    ("answers", "kind", "size"),
    [
        (laplace("0.2"), "laplace", 0.2),
        (laplace("1.5"), "laplace", 1.5),
        (ONE_BIT, "pure", 0.2),
        (PIECEWISE, "pure", 0.2),
        (LARGE, "laplace", 30.0),
    ],
    ids=lambda value: getattr(value, "mechanism", value),
)
def test_only_laplace_answers_about_records_lose_as_little_as_laplace_noise(answers, kind, size):
    """Randomized response dominates all others, answers about groups included: a record may move between two."""
    assert accounting.Costs.of(study(answers=answers)).answer_pair == Pair(kind, size)
    of_groups = groups.study("0.5", "0.2").model_copy(update={"answers": answers})
    assert accounting.Costs.of(of_groups).answer_pair == Pair("pure", size)


@pytest.mark.parametrize(
    ("release", "d", "pair"),
    [
        (IDENTITY, 2, None),
        (REFUTED, 2, None),
        (GAUSSIAN, 2, OF_GAUSSIAN),
        (PROJECTION, 2, PURE),
        (PLANAR, 1, Pair("laplace", 1.0)),
        (PLANAR, 2, PURE),
        (groups.study("0.75", "0.2", "0.25").release, 1, PURE),
    ],
    ids=lambda value: getattr(value, "mechanism", None),
)
def test_each_release_is_counted_by_the_pair_that_dominates_it(release, d, pair):
    costs = accounting.Costs.of(study(release, d=d))
    assert costs.release_pair == pair
    assert costs.failure == (1e-5 if release in (GAUSSIAN, PROJECTION) else 0.0)
    assert costs.black_box == (release is PROJECTION)
    assert costs.centres == (250_000_000_000 if release.mechanism == "groups" else 0)
    assert accounting.Costs.of(study(release, d=d), REFUTED).release is None


# --- answers of other persons -----------------------------------------------------------------------


def of_another(release, answers, **more):
    return study(release, answers, unit="answer", **more)


@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_corrected_answer_about_another_person_counts_as_often_as_it_was_released(again):
    """The release or the answers that one person is behind, whichever costs more; never more of these than released."""
    report = accounting.report(of_another(PLANAR, laplace("0.8")), {0: 1, 1: 1, 9: 1}, 10, 1e-6, again=again)
    assert [row.epsilon for row in report.rows] == ["1", "1", {1: "1", 2: "1.6", 3: "2.4"}[again]]
    of_answers = min(again * 0.8, tight([Pair("laplace", 0.8, again)], 1e-6, again))
    assert report.rows[2].tight_epsilon == max(report.rows[0].tight_epsilon, of_answers)
    assert accounting.report(of_another(PLANAR, laplace("0.8")), {9: 1}, 9, 1e-6).rows[0].epsilon == "1"


def test_answers_about_other_persons_are_priced_as_released_once():
    price = accounting.price(of_another(PLANAR, laplace("0.8"), queries=9))
    assert (price.answers_per_row, price.row_epsilon) == (9, "1")
    assert "Each answer uses epsilon 0.8, of another person each time." in price.sentence
    assert accounting.price(of_another(PLANAR, laplace("1.25"), queries=9)).row_epsilon == "1.25"


@pytest.mark.parametrize(
    ("release", "answers", "ran"), [(REFUTED, laplace(), None), (GAUSSIAN, NONE, None), (PLANAR, laplace(), REFUTED)]
)
def test_without_a_bound_on_either_a_person_behind_an_answer_has_none(release, answers, ran):
    (row,) = accounting.report(of_another(release, answers), {4: 1}, 4, 1e-5, release=ran).rows
    assert (row.epsilon, row.tight_epsilon) == (None, None)


def test_a_release_without_a_tight_figure_leaves_none_to_the_person_behind_an_answer():
    """Below the delta of a projection only its sum is stated, which holds at that delta."""
    (row,) = accounting.report(of_another(PROJECTION, laplace("0.2")), {4: 1}, 4, 0.9e-5).rows
    assert (row.epsilon, row.tight_epsilon) == ("1", None)


# --- groups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
@pytest.mark.parametrize(("answers", "others"), [(60, 0), (60, 50), (3, 2)])
@pytest.mark.parametrize("centres", [None, "0.25", "2"])
@pytest.mark.parametrize("numbers", ["0.1", "4"])
def test_a_record_of_a_group_stays_or_moves_and_the_larger_loss_counts(numbers, centres, answers, others, delta):
    """It stays: centres and its group's answers. It moves: the release, and half of each answer about both."""
    costs = accounting.Costs.of(groups.study(numbers, "0.25", centres))
    of_centres = [Pair("pure", float(centres))] if centres else []
    release = Decimal(numbers) + Decimal(centres or 0)
    stays, moves = Decimal(centres or 0) + answers * Decimal("0.25"), release + (answers + others) * Decimal("0.125")
    stay = tight([*of_centres, Pair("pure", 0.25, answers)], delta, answers + bool(centres))
    both = [Pair("pure", float(release)), Pair("pure", 0.125, answers + others)]
    move = tight(both, delta, 1 + answers + others)
    loss = costs.loss_in_group(answers, others, delta)
    assert Decimal(loss.epsilon) == max(stays, moves)
    assert loss.tight_epsilon == max(min(float(stays), stay), min(float(moves), move))


def test_a_group_that_has_no_other_beside_it_is_compared_with_none():
    spec = groups.study("0.5", "0.5")
    losses = [accounting.report(spec, rows, 3, 1e-6).rows[-1].epsilon for rows in ({3: 1}, {0: 1, 3: 1}, {3: 2})]
    assert losses == ["1.5", "1.5", "2"]  # 3 * 0.5; 0.5 + 3 * 0.25 is less, 0.5 + (3 + 3) * 0.25 is more
    alone = accounting.report(spec, {1: 1}, 1, 1e-6).rows[0].epsilon
    assert alone == "0.75"  # 0.5 + 0.25


@pytest.mark.parametrize("missing", ["release", "answer", "answer_pair"])
def test_groups_without_a_bound_on_something_have_none(missing):
    costs = accounting.Costs.of(groups.study("0.5", "0.5"))
    assert costs.loss_in_group(2, 1, 1e-6).epsilon == "1.25"
    assert replace(costs, **{missing: None}).loss_in_group(2, 1, 1e-6) == NOTHING
    report = accounting.report(groups.study("0.5", "0.5"), {0: 1, 2: 1}, 2, 1e-6, release=REFUTED)
    assert [(row.epsilon, row.tight_epsilon) for row in report.rows] == [(None, None)] * 2


def test_groups_whose_release_had_a_delta_would_have_no_tight_figure_below_it():
    costs = replace(accounting.Costs.of(groups.study("0.5", "0.5")), failure=1e-5, black_box=True)
    assert costs.loss_in_group(2, 1, 1e-6) == wire.Loss(epsilon="1.25", tight_epsilon=None)


# --- persons ----------------------------------------------------------------------------------------


def of_persons(release, k, column=True, **more):
    return study(release, **more).model_copy(update={"rows_per_person": k, "person_column": column})


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_person_loses_the_slope_of_all_her_rows_rounded_up(d, k):
    pair = accounting.Costs.of(of_persons(SPREAD, k, d=d)).release_pair
    exact = k * Decimal(slope_of_row(Decimal(1), 1e-5, d, k))
    assert 1 < exact <= Decimal(pair.size) <= exact * (1 + Decimal(2) ** -48)
    assert pair.kind == ("laplace" if d == k == 1 else "pure")
    without = accounting.Costs.of(of_persons(PLANAR, k, d=d)).release_pair
    assert (without.kind, without.size) == ("laplace" if d == k == 1 else "pure", 1.0)


# --- the same in words ------------------------------------------------------------------------------


def figures(sentence):
    """The amounts that a sentence states, in their order."""
    return re.findall(r"(?:\d[\d.e-]*\d|\d)", sentence)


@pytest.mark.parametrize("rows", [{0: 3, 1: 1}, {0: 3, 2: 1}])
def test_a_report_states_in_words_what_the_one_that_was_queried_most_lost_and_the_study(rows):
    report = accounting.report(study(), rows, 6, 2e-5)
    worst, most = report.rows[-1], max(rows)
    stated = figures(report.sentence)[2], figures(report.sentence)[7]
    for text, loss in zip(stated, (worst, report.study), strict=True):
        assert loss.tight_epsilon <= float(text) < loss.tight_epsilon + 1e-3
    delta = ["1e-05", stated[0], "2e-05"]
    assert figures(report.sentence) == [worst.epsilon, *delta, str(most), "2.2", "1e-05", stated[1], "2e-05"]
    assert f"by {most} answer{'s' if most > 1 else ''}. The study has used" in report.sentence


@pytest.mark.parametrize(
    ("epsilon", "tight", "stated"),
    [
        ("2", 1.7591, "1.76"),
        ("2", 1.75501, "1.756"),
        ("2", 1.755, "1.755"),
        ("0.2", 0.2, "0.2"),
        ("1.234501", 1.234501, "1.234501"),  # the sum holds as well
        ("1.234501", 1.2341, "1.234501"),
        ("1", 1.40001, "1.401"),  # below the delta of the release
        ("30000", 12_345.6, "12350"),
        ("1", 0.00000123451, "0.000001235"),
        ("0", 0.0, "0"),
    ],
)
def test_a_tight_figure_is_never_stated_as_less_than_it_is(epsilon, tight, stated):
    loss = wire.Loss(epsilon=epsilon, tight_epsilon=tight)
    in_words = accounting._loss_in_words(loss, 1.23456e-5, 0.0)
    assert in_words == f"epsilon {epsilon} by the sum, {stated} at delta 1.23456e-05"
    without = accounting._loss_in_words(wire.Loss(epsilon=epsilon, tight_epsilon=None), 0.5, 1e-5)
    assert without == f"epsilon {epsilon} and delta 1e-05 by the sum, no bound at delta 0.5"


def test_before_the_release_its_delta_is_not_stated_as_lost():
    assert figures(accounting.report(study(), {0: 7}, 0, 2e-5, released=False).sentence) == [
        *("0", "0", "2e-05", "0"),
        *("0", "0", "2e-05"),
    ]


@pytest.mark.parametrize(("column", "k"), [(False, 1), (False, 2), (False, 3), (True, 3)])
def test_a_report_says_that_a_person_with_several_records_loses_more_where_only_a_record_is_counted(column, k):
    sentence = accounting.report(of_persons(PLANAR, k, column), {0: 1, 2: 1}, 2, 1e-5).sentence
    assert sentence.startswith(f"The {'person' if column else 'record'} that")
    said = re.search(r"with (\d+) records, .* be (\d+) times that", sentence)
    assert (said and said.groups()) == (None if column or k == 1 else (str(k), str(k)))
    assert said or "by 2 answers. The study has used" in sentence


@pytest.mark.parametrize(
    ("caps", "number", "whole"),
    [
        ({}, None, "1.5"),
        ({"queries": 4}, "4", "1.5"),
        ({"queries": 1}, "1", "1.5"),
        ({"epsilon_per_row": "0.75"}, None, "0.75"),  # not an answer
        ({"epsilon_per_row": "2.25"}, None, "1.5"),
        ({"epsilon_per_row": "2.5"}, None, "1.5"),
        ({"epsilon_per_row": "9", "epsilon_total": "3"}, "3", "1.5"),
    ],
    ids=str,
)
def test_a_price_says_what_answers_about_different_groups_cost_a_record(caps, number, whole):
    spec = groups.study("0.5", "0.75", "0.25").model_copy(update={"budget": wire.Budget(**caps)})
    sentence = accounting.price(spec).sentence
    each, many, in_all = re.search(
        r"Each answer uses epsilon ([\d.]+) for the records .*: (?:(\d+) )?answers .* epsilon ([\d.]+) of the record",
        sentence,
    ).groups()
    assert (each, many, in_all) == ("0.75", number, whole)
    if caps == {"epsilon_per_row": "2.25"}:
        assert sentence.endswith(" The caps allow 2 answers about each group.")
    if caps == {"epsilon_per_row": "2.5"}:  # 3 about each of two would use 0.75 + 3 * 0.75
        assert sentence.endswith(" The caps allow 2 answers about each group (3 about one, if no other is queried).")


def test_what_answers_about_groups_cost_with_a_refuted_release_is_not_stated():
    """It was stated as what one answer costs, as if the release had cost nothing."""
    price = accounting.price(groups.study("0.5", "0.75"), REFUTED)
    assert (price.release_epsilon, price.row_epsilon) == (None, None)
    assert price.sentence.startswith("The release has no finite epsilon")
    assert figures(price.sentence) == ["0.75"]
    exact = accounting.price(groups.study("0.5", "0.75").model_copy(update={"answers": NONE}))
    assert figures(exact.sentence) == ["0.5"]


@pytest.mark.parametrize("release", [GAUSSIAN, PLANAR])
def test_the_price_of_records_of_which_a_person_has_several_is_stated_before_that_of_a_person(release):
    sentence = accounting.price(of_persons(release, 3, column=False, epsilon_per_row="9")).sentence
    both = ["1", "1e-05"] if release is GAUSSIAN else ["1"]
    of_person = ["3", "3", "0.000221672"] if release is GAUSSIAN else ["3", "3"]  # 3 e^2 1e-5, rounded up
    assert figures(sentence) == [*both, "0.2", "40", *of_person]


# --- prices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ran", "pair", "failure"), [(GAUSSIAN, OF_GAUSSIAN, 1e-5), (PLANAR, PURE, 0.0)])
def test_a_price_is_that_of_the_release_that_ran(ran, pair, failure):
    """Whatever ``auto`` would take today."""
    spec = study(AUTO, laplace("0.2"), epsilon_per_row="9")
    price = accounting.price(spec, ran)
    assert (price.answers_per_row, price.row_epsilon, price.tight_delta) == (40, "9", 1e-5)
    assert price.tight_row_epsilon == min(9.0, tight([pair, Pair("laplace", 0.2, 40)], 1e-5, 41))
    assert (f"and delta {failure!r}" in price.sentence) == bool(failure)
    assert accounting.current_price(spec, ran, accounting.price(study())) == price


def test_the_price_of_a_released_study_is_that_of_its_release_until_caps_change_or_it_is_refuted():
    spec = study(GAUSSIAN, laplace("0.2"), epsilon_per_row="9", queries=100)
    before = accounting.price(spec).model_copy(update={"sentence": "as it was"})
    assert accounting.current_price(spec, GAUSSIAN, before) is before
    for caps in ({"epsilon_per_row": "5", "queries": 100}, {"epsilon_per_row": "9", "queries": 99}):
        changed = study(GAUSSIAN, laplace("0.2"), **caps)
        assert accounting.current_price(changed, GAUSSIAN, before) == accounting.price(changed) != before
    refuted = accounting.current_price(spec, REFUTED, before)
    assert refuted == accounting.price(spec, REFUTED)
    assert (refuted.release_epsilon, refuted.row_epsilon, refuted.tight_row_epsilon) == (None, None, None)


def test_answers_about_other_persons_are_priced_tightly_at_the_delta_of_the_study():
    """Without a cap as well: a person is behind the release, or behind one answer."""
    for caps in ({}, {"queries": 9}):
        price = accounting.price(of_another(GAUSSIAN, laplace("1.5"), **caps))
        assert (price.row_epsilon, price.tight_delta) == ("1.5", 1e-5)
        assert price.tight_row_epsilon == min(1.5, tight([Pair("laplace", 1.5)], 1e-5, 1))


@pytest.mark.parametrize("unit", ["row", "answer"])
def test_where_the_caps_allow_no_answer_a_price_is_that_of_the_release(unit):
    price = accounting.price(study(PLANAR, laplace("1.5"), unit=unit, epsilon_total="1.4"))
    assert (price.answers, price.answers_per_row, price.row_epsilon) == (0, 0, "1")
