"""The words of a guarantee, with the numbers of the study; and what the dial shows of beliefs, against oracles."""

import math
import re
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import integrate, stats

from blindopt import wire
from curator_service.privacy import accounting, guarantees
from curator_service.privacy.calibration import concrete
from curator_service.privacy.guarantees import (
    EXACT_ANSWERS,
    GAPS,
    SANDBOX,
    SIMULATION,
    belief,
    guarantee,
    neighbours,
    not_protected,
    of_bounds,
    unit_of_privacy,
    whole,
)
from curator_service.privacy.prices import ONE_FEATURE
from tests.builders import BY_HAND, COLUMN, EXACT, IDENTITY, a_study, group_release
from tests.curator_service.releases.attacks.attack_data import planar

GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1.25", delta=2e-6, sensitivity=0.4)
PUBLISHED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1.25", delta=2e-6, r=3, acknowledge_refuted=True)
PRIVATE = {"epsilon": "0.75", "value_bound": 1.0}
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", **PRIVATE)
ONE_BIT = wire.OneBitAnswers(mechanism="one_bit", **PRIVATE)
PIECEWISE = wire.PiecewiseAnswers(mechanism="piecewise", **PRIVATE)
AUTO_ANSWERS = wire.AutoAnswers(mechanism="auto", **PRIVATE)
PLANAR = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1.25", sensitivity=0.4)
PROJECTION = wire.GaussianProjectionRelease(
    mechanism="gaussian_projection", epsilon="1.25", delta=2e-6, sensitivity=0.4, r=2
)
AUTO = wire.AutoRelease(mechanism="auto", epsilon="1.25", delta=2e-6, sensitivity=0.4)
RELEASES = [GAUSSIAN, PLANAR, PROJECTION, AUTO, PUBLISHED, IDENTITY]
ANSWERS = [EXACT, LAPLACE, ONE_BIT, PIECEWISE, AUTO_ANSWERS]


def study(release, d=3, answers=EXACT, unit="row", cap=None, pace=None, **more):
    return a_study(release, answers, unit, d=d, epsilon_per_row=cap, reply_after_ms=pace, **more)


def text_of(release: wire.ReleaseSpec, *given, **more) -> str:
    return guarantee(study(release, *given, **more))


def test_a_sound_release_is_stated_with_its_parameters():
    text = text_of(GAUSSIAN)
    assert "(1.25, 2e-06)-differential privacy" in text
    assert "at most 0.4 in scaled units" in text


@pytest.mark.parametrize("d", [1, 4, 20])
def test_the_published_release_is_stated_to_be_refuted(d):
    text = text_of(PUBLISHED, d)
    assert "refuted" in text
    assert "no differential privacy" in text
    assert f"{d + 1} known records reconstruct" in text
    assert "1.25" not in text  # an epsilon that means nothing is not told


def test_an_unprotected_release_promises_nothing():
    text = text_of(IDENTITY)
    assert text.startswith("None")
    assert "differential" not in text


@pytest.mark.parametrize("release", [GAUSSIAN, PUBLISHED, IDENTITY], ids=lambda s: s.mechanism)
def test_answers_without_noise_are_stated_to_be_exact_and_no_others(release):
    assert text_of(release).endswith(EXACT_ANSWERS)
    assert "without privacy noise" in EXACT_ANSWERS
    assert EXACT_ANSWERS not in text_of(release, answers=LAPLACE)


def test_private_answers_are_stated_with_their_epsilon_and_how_they_add_up():
    sentence = "Each answer is 0.75-differentially private"
    alone = text_of(GAUSSIAN, answers=LAPLACE, unit="answer")
    summed = text_of(GAUSSIAN, answers=LAPLACE)
    capped = text_of(GAUSSIAN, answers=LAPLACE, cap="6.5")
    for text in (alone, summed, capped):
        assert sentence in text
        assert "the vendor chooses which candidates" in text
    assert "another person's" in alone
    assert "add up" not in alone
    assert summed.endswith("add up, with the release: the study sets no cap on the sum.")
    assert capped.endswith("add up, with the release, to (6.5, 2e-06) at most.")
    assert text_of(PLANAR, answers=LAPLACE, cap="6.5").endswith("add up, with the release, to 6.5 at most.")
    assert text_of(AUTO, answers=LAPLACE, cap="6.5").endswith("add up, with the release, to 6.5 at most.")  # it is pure
    assert text_of(PROJECTION, answers=LAPLACE, cap="6.5").endswith("with the release, to (6.5, 2e-06) at most.")


def test_where_one_stored_value_is_behind_all_answers_about_a_row_they_add_up_and_a_public_one_is_a_simulation():
    """A dataset that is not public has such a study in old databases alone: it is refused today."""
    for cap, end in ((None, "the study sets no cap on the sum."), ("6.5", "to (6.5, 2e-06) at most.")):
        spec = study(GAUSSIAN, answers=LAPLACE, unit="answer", cap=cap, measurement=COLUMN)
        old, simulated = guarantee(spec), guarantee(spec, public=True)
        assert old == text_of(GAUSSIAN, answers=LAPLACE, cap=cap)
        assert old.endswith(end)
        assert simulated == f"{SIMULATION} {old}"
        gaps = {sentence.partition(":")[0] for sentence in not_protected(spec)}
        assert ("Answers about one record" in gaps, "Answers about one person" in gaps) == (cap is None, False)
    assert SIMULATION.startswith("A simulation: no person is behind it.")
    for unit, measurement in (("row", COLUMN), ("answer", BY_HAND), ("row", BY_HAND)):
        spec = study(IDENTITY, answers=LAPLACE, unit=unit, measurement=measurement)
        assert SIMULATION not in guarantee(spec, public=True)


def test_a_cap_on_the_study_caps_what_is_said_of_a_row():
    for per_row, total, told_cap in ((None, "4", "4"), ("5", "4", "4"), ("3", "10", "3")):
        spec = study(GAUSSIAN, answers=LAPLACE)
        spec = spec.model_copy(update={"budget": wire.Budget(epsilon_per_row=per_row, epsilon_total=total)})
        assert guarantee(spec).endswith(f"add up, with the release, to ({told_cap}, 2e-06) at most.")
        assert not any(sentence.startswith("Answers about one record") for sentence in not_protected(spec))


def test_pure_privacy_is_stated_without_a_delta():
    text = text_of(PLANAR)
    assert text.startswith("1.25-differential privacy")
    assert "at most 0.4 in scaled units" in text
    assert "2e-06" not in text


def test_planar_laplace_with_a_delta_is_stated_as_the_pair():
    spread = PLANAR.model_copy(update={"delta": 2e-6})
    assert text_of(spread) == text_of(GAUSSIAN)
    assert guarantee(study(spread, answers=LAPLACE, cap="3")).endswith("to (3, 2e-06) at most.")
    assert text_of(AUTO, 8) == text_of(spread, 8)  # which spends the delta where that pays


def test_auto_promises_what_it_takes_and_a_study_what_ran():
    assert text_of(AUTO) == text_of(PLANAR)  # at d = 3 the smaller noise
    assert guarantee(study(AUTO), GAUSSIAN) == text_of(GAUSSIAN)


@pytest.mark.parametrize("answers", ANSWERS[1:], ids=lambda a: a.mechanism)
def test_each_answer_mechanism_is_stated_with_its_epsilon(answers):
    text = text_of(GAUSSIAN, answers=answers)
    assert "Each answer is 0.75-differentially private (clipped" in text
    assert "released once, as their mean" not in text
    mean = answers.model_copy(update={"plays": "mean"})
    assert "released once, as their mean" in text_of(GAUSSIAN, answers=mean)


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.mechanism)
def test_a_withdrawn_mechanism_is_stated_first_with_its_reason(release):
    text = guarantee(study(release, answers=LAPLACE), withdrawn="its proof has a hole.")
    assert text.startswith("Withdrawn: its proof has a hole. Do not rely on")
    assert "until its owner closes it" in text
    assert "Each answer is 0.75-differentially private" in text  # that promise stands by itself


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.mechanism)
@pytest.mark.parametrize("answers", ANSWERS, ids=lambda a: a.mechanism)
@pytest.mark.parametrize("unit", ["row", "answer"])
def test_every_guarantee_fits_what_the_protocol_allows(release, answers, unit):
    """StudyView.guarantee has 4,000 characters, and a reason 2,000."""
    longest = guarantee(study(release, 1_000, answers, unit, "123456.123456789012"), withdrawn="x" * 2_000)
    assert len(longest) <= 4_000


GROUPS = wire.GroupsRelease(mechanism="groups", epsilon="0.25", cells=wire.GridCells(kind="grid", parts=[2, 2, 2]))
PERSONS = {"person_column": True, "rows_per_person": 7}


def persons(spec: wire.StudyCreate) -> wire.StudyCreate:
    return spec.model_copy(update=PERSONS)


def test_the_unit_of_privacy_is_a_record_a_person_or_for_answers_of_others_each_person():
    record, groups = study(GAUSSIAN, answers=LAPLACE), study(GROUPS, answers=LAPLACE)
    others = study(GAUSSIAN, answers=LAPLACE, unit="answer")
    units = [unit_of_privacy(spec) for spec in (record, persons(record), groups, persons(groups), others)]
    assert [unit.partition(":")[0].partition(",")[0] for unit in units] == [
        "One record", "One person", "One record", "One person",
        "One record for its features. For each answer the person behind it",
    ]  # fmt: skip
    assert ["7 records at most" in unit for unit in units] == [False, True, False, True, False]
    assert ["whole" in unit for unit in units] == [False, False, True, True, False]
    assert "a different person each time" in units[-1]


def test_neighbours_differ_in_what_the_release_hides():
    same = "Two datasets with the same number of records, where "
    value, whole = "the value behind its answers is replaced by any other", "is replaced by any other"
    moved = f"the features move by at most 0.4 in scaled units and {value}."
    seven = "each of the records of one person, 7 at most"
    local, groups = study(PLANAR, answers=LAPLACE), study(GROUPS, answers=LAPLACE)
    assert neighbours(local) == f"{same}in one record {moved}"
    assert neighbours(persons(local)) == f"{same}in {seven}, {moved}"
    assert neighbours(groups) == f"{same}one record {whole}."
    assert neighbours(persons(groups)) == f"{same}{seven} {whole}."
    for release in (IDENTITY, PUBLISHED):
        assert neighbours(study(release)) == f"{same}in one record {value}."
    assert neighbours(study(AUTO), IDENTITY) == f"{same}in one record {value}."  # the one that ran
    gaps = neighbours(local, None, ["cut", "price"])
    assert gaps.startswith(f"{same}in one record {moved} Both files have the same gaps ")
    assert gaps.endswith(" in cut, price.")


def test_a_release_is_promised_for_a_record_or_for_all_records_of_a_person():
    two = study(PLANAR).model_copy(update=PERSONS | {"rows_per_person": 2})
    assert "each person's features" in guarantee(two)
    assert "differ in the records of one person, 2 at most, each moved by at most 0.4 in scaled units" in guarantee(two)
    alone = two.model_copy(update={"rows_per_person": 1})
    assert "differ in the record of one person, moved by at most 0.4" in guarantee(alone)
    centres = GROUPS.model_copy(update={"cells": wire.PrivateCells(kind="private", number=3, epsilon="0.125")})
    declared, drawn = (guarantee(study(release, answers=LAPLACE)) for release in (GROUPS, centres))
    assert declared.startswith("0.25-differential privacy of the numbers of records by group, for a whole record")
    assert "if one record is replaced by any other, features" in declared
    assert " The groups themselves are public. " in declared
    assert "of the groups' centres (epsilon 0.125) and the numbers of records by group together, for" in drawn
    assert " A record belongs to the nearest centre. " in drawn
    replaced = "if the records of one person, 7 at most, are replaced by any others, features"
    assert replaced in guarantee(persons(study(GROUPS, answers=LAPLACE)))


def test_answers_add_up_by_row_or_person_and_corrections_and_means_are_added():
    once = LAPLACE.model_copy(update={"plays": "mean"})
    assert "Answers about one record add up, with" in text_of(PLANAR, answers=LAPLACE)
    assert "Answers about the records of one person add up, with" in guarantee(persons(study(PLANAR, answers=LAPLACE)))
    for measurement, corrected in ((COLUMN, False), (BY_HAND, True)):
        text = text_of(PLANAR, answers=once, measurement=measurement)
        parts = ["Each answer is 0.75", "released once, as their mean: this holds for all", "A corrected answer"]
        assert [part in text for part in parts] == [True, True, corrected]
    assert "as their mean: this holds for each of them" in text_of(PLANAR, answers=once, unit="answer")


def test_the_guarantee_of_a_sandbox_begins_with_what_it_is():
    text = text_of(PLANAR, answers=LAPLACE)
    sandbox = guarantee(study(PLANAR, answers=LAPLACE), sandbox=True)
    assert sandbox == f"{SANDBOX} For real records the same settings mean: {text}"


def test_the_cap_on_a_record_bounds_all_of_it_where_groups_protect_it_whole():
    capped = study(GROUPS, answers=LAPLACE, cap="3")
    assert whole(capped, GROUPS) == "3"
    assert whole(study(GROUPS, answers=LAPLACE), GROUPS) is None
    assert whole(study(PLANAR, answers=LAPLACE, cap="3"), PLANAR) is None


def test_answers_of_groups_are_promised_up_to_the_lower_cap_and_with_the_release_unless_it_is_withdrawn():
    def of(cap=None, total=None, withdrawn=None, **more):
        budget = wire.Budget(epsilon_per_row=cap, epsilon_total=total)
        spec = study(GROUPS, answers=LAPLACE).model_copy(update={"budget": budget} | more)
        return guarantee(spec, withdrawn=withdrawn)

    assert "Laplace noise: 0.75-differentially private for a change within" in of()
    assert of().endswith("however many others were queried: the study sets no cap on it.")
    end = "for replacing everything about it."
    assert of("3").endswith(f"queried: at most 3, with the release, {end}")
    assert of("3", "10").endswith(f"queried: at most 3, with the release, {end}")
    assert of("10", "4").endswith(f"queried: at most 4, with the release, {end}")
    assert of("3", withdrawn="a hole").endswith(f"queried: at most 3 {end}")
    assert ". A record uses at most the epsilon of the group" in of()
    assert ". The records of one person use at most the epsilon of the group" in of(**PERSONS)


def test_private_bounds_are_promised_for_a_record_or_for_a_person():
    record, person = of_bounds("0.5", 1, person=False), of_bounds("0.5", 4, person=True)
    assert record.startswith("0.5-differential privacy of each record, without a delta: replacing one record by any ")
    assert person.startswith("0.5-differential privacy of each person, with up to 4 records, without a delta: ")
    assert "replacing the records of one person by any others makes" in person
    assert "more than e^0.5 times as probable" in record


# --- what is not promised --------------------------------------------------------------------------


def headings(*given, **more) -> set[str]:
    return {sentence.partition(":")[0] for sentence in not_protected(study(*given, **more))}


ALWAYS = {
    "Sizes", "Queries", "Public inputs", "Several studies of one dataset", "What holds for many", "Other readers",
    "Withdrawal of consent", "Decisions of the owner", "Timing",
}  # fmt: skip


def test_what_is_not_protected_follows_from_the_study():
    sound, bare = {"Changes larger than the hidden change", "A person with several records"}, {"Features"}
    assert headings(GAUSSIAN) == ALWAYS | sound | {"Outcomes"}
    assert headings(GAUSSIAN, pace=50) == ALWAYS | sound | {"Outcomes"}
    assert headings(AUTO, answers=LAPLACE, cap="3", pace=50) == ALWAYS | sound
    assert headings(PLANAR, answers=ONE_BIT, pace=50) == ALWAYS | sound | {"Answers about one record"}
    by_hand = {"Answers about one person", "Measuring"}
    assert headings(PLANAR, answers=ONE_BIT, unit="answer", pace=50) == ALWAYS | sound | by_hand
    for release in (PUBLISHED, IDENTITY):
        assert headings(release, answers=LAPLACE, cap="3", pace=50) == ALWAYS | bare


def gap(heading, *given, **more):
    """What a study says of this gap."""
    return next(says for says in not_protected(study(*given, **more)) if says.startswith(f"{heading}: "))


def test_a_fixed_reply_time_leaves_the_period_visible():
    assert "when it is ready" in gap("Timing", GAUSSIAN)
    paced = gap("Timing", GAUSSIAN, pace=50)
    assert "the period into which a reply falls" in paced
    assert "when it is ready" not in paced


def test_answers_about_records_say_that_refusals_at_the_cap_of_a_dataset_link_studies():
    says = "With a cap on the dataset, refusals show which candidates of two studies are one record."
    assert says in gap("Queries", PLANAR, answers=LAPLACE, cap="3")
    assert says not in gap("Queries", GAUSSIAN)  # exact answers and such a cap exclude each other
    assert says not in gap("Queries", group_release(), answers=LAPLACE, cap="3")


def test_the_release_that_ran_decides_whether_features_are_protected():
    assert not_protected(study(GAUSSIAN), IDENTITY) == not_protected(study(IDENTITY))


def test_a_declared_number_of_rows_multiplies_what_a_person_loses():
    def gap(**more):
        spec = study(GAUSSIAN).model_copy(update=more)
        return [text for text in not_protected(spec) if text.startswith("A person with several records")]

    assert gap(rows_per_person=1)[0].endswith("times the delta of a record.")
    assert "declares at most 20 records of a person" in gap(rows_per_person=20)[0]
    assert gap(rows_per_person=20)[0].endswith("who uses by the release epsilon 25 with delta 1.")
    assert gap(rows_per_person=20, person_column=True) == []
    words = accounting.price(study(GAUSSIAN).model_copy(update={"rows_per_person": 20})).sentence
    assert "a person with 20 records, as declared, uses 20 times each epsilon" in words
    assert words.endswith("and the release's delta is 1 for this person.")
    pure = study(PLANAR).model_copy(update={"rows_per_person": 2})
    assert accounting.price(pure).sentence.endswith("uses 2 times each epsilon.")


def test_a_study_that_refines_says_what_a_measured_record_and_everybody_are_promised():
    """Theorem R with its limits."""
    refine = {"refine": wire.Refine(epsilon="3", persons=50)}
    spec = study(wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")).model_copy(update=refine)
    words = guarantee(spec)
    assert "a record was not queried are at most e^1 times as probable, and events in which it was queried" in words
    assert "at most e^4 times. Beforehand everybody is promised the second bound alone" in words
    assert "at most 50 persons." in words
    assert any(gap.startswith("Second draws: ") for gap in not_protected(spec))
    with_delta = spec.model_copy(update={"release": spec.release.model_copy(update={"delta": 1e-6})})
    assert "e^1 times as probable plus 1e-06, and events" in guarantee(with_delta)
    persons = spec.model_copy(update={"person_column": True, "rows_per_person": 3})
    assert "k of the person's records were queried at most e^(1 + k 3) times" in guarantee(persons)
    plain = spec.model_copy(update={"refine": None})
    assert "second draw" not in guarantee(plain)
    assert not any(gap.startswith("Second draws") for gap in not_protected(plain))


def test_nothing_is_said_to_be_safe_in_a_list_of_what_is_not():
    assert len({gap.heading for gap in GAPS}) == len(GAPS)
    for gap in GAPS:
        assert gap.whole.endswith(".")
        assert ":" not in gap.heading


UNPLAIN = re.compile(
    r"\b(?:lower|upper|columns?|dataset_id|sigma_min|omega|branch|largest_r|tells?|told|likelier|asked|modelers?|of it|"
    r"by itself|whoever|plays?|[a-z]+_[a-z_]+|[a-z]+\.[a-z_]+)\b"
)
"""What only the owner may know, names of the API, and words that the glossary replaces."""


def test_what_vendors_read_of_a_study_is_in_plain_words_and_names_nothing_of_the_owners():
    texts = {gap.whole for gap in GAPS}
    for release in RELEASES:
        for answers in ANSWERS:
            for plays in ("each", "mean"):
                chosen = answers if answers is EXACT else answers.model_copy(update={"plays": plays})
                for measurement, unit in ((COLUMN, "row"), (BY_HAND, "answer"), (BY_HAND, "row")):
                    spec = study(release, answers=chosen, unit=unit, measurement=measurement)
                    persons = spec.model_copy(update={"person_column": "who", "rows_per_person": 3})
                    refine = {"refine": wire.Refine(epsilon="3", persons=50)}
                    refining = [each.model_copy(update=refine) for each in (spec, persons)]
                    for each in (spec, persons, *refining):
                        ran = concrete(each)[0]
                        words = guarantee(each), belief(ran) or "", unit_of_privacy(each), neighbours(each, ran)
                        texts.update(words, not_protected(each, ran))
    faults = {(match[0], text) for text in texts for match in UNPLAIN.finditer(text)}
    assert len(texts) > 60
    assert faults == set()
    control = "The column tells the modeler, see answers.mechanism and reply_after_ms."
    assert [m[0] for m in UNPLAIN.finditer(control)] == [
        "column",
        "tells",
        "modeler",
        "answers.mechanism",
        "reply_after_ms",
    ]


@pytest.mark.parametrize("epsilon", ["0.1", "1", "3", "10"])
def test_the_surest_belief_is_that_of_the_best_guess_from_randomized_response(epsilon):
    """Randomized response attains every ratio that epsilon allows: its posterior by Bayes is the bound."""
    truth = math.exp(float(epsilon)) / (1 + math.exp(float(epsilon)))
    posterior = 0.5 * truth / (0.5 * truth + 0.5 * (1 - truth))
    assert guarantees.surest(Decimal(epsilon)) == pytest.approx(posterior, rel=1e-12)


@pytest.mark.parametrize("rows", [1, 3])
def test_gaussian_values_that_far_apart_are_told_rightly_three_times_in_four(rows):
    """The oracle: the total variation of the two laws, by quadrature; one coordinate of each row moves."""
    sd = 0.7
    v = guarantees.confused_within(wire.NoiseLaw(family="gaussian", sd=sd), 4, rows)
    moved = v * math.sqrt(rows)  # along the direction in which all rows move together
    first, second = stats.norm(0, sd), stats.norm(moved, sd)
    apart, _ = integrate.quad(lambda z: abs(first.pdf(z) - second.pdf(z)) / 2, -8, 8 + moved, limit=200)
    assert (1 + apart) / 2 == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("d", [1, 2, 6])
def test_planar_values_that_far_apart_are_told_rightly_no_more_often(d):
    """The oracle: the best guess, by the true densities, on noise drawn by its polar form."""
    rng, sd, runs = np.random.default_rng(d), 1.3, 200_000
    v = guarantees.confused_within(wire.NoiseLaw(family="planar_laplace", sd=sd), d)
    z, far = planar(rng, (runs, d), sd), np.zeros(d)

    def right(by):
        far[0] = by
        return np.mean(np.linalg.norm(z, axis=1) < np.linalg.norm(z - far, axis=1))

    error = 4 * math.sqrt(0.25 / runs)
    assert right(v) <= 0.75 + error
    assert right(10 * v) > 0.75 + error  # the control
    assert guarantees.confused_within(wire.NoiseLaw(family="planar_laplace", sd=sd), d, 2) == pytest.approx(v / 2)


def test_the_promise_of_one_feature_at_a_time_is_named_with_what_several_changes_use():
    release = PLANAR.model_copy(update={"promise": "one_feature", "epsilon": "1"})
    said = "between two values of one feature that differ by the hidden change becomes at most 73.2 % sure. "
    assert f"{said}If two features differ so at once: at most 88.1 % sure. Answers" in belief(release)
    assert "If two features differ so at once: at most 99.8 % sure." in belief(release, measured=Decimal(3))
    text = text_of(release)
    assert "moved by at most 0.4 in scaled units, added up over the features, any event is at most e^1 times" in text
    assert ONE_FEATURE in text
    assert "move by at most 0.4 in scaled units, added up over the features, and" in neighbours(study(release))
    assert ONE_FEATURE in accounting.price(study(release)).sentence
    assert ONE_FEATURE in accounting.report(study(release), {1: 2}, 2, 1e-6).sentence
    assert (
        ONE_FEATURE
        not in accounting.price(study(PLANAR)).sentence + accounting.report(study(PLANAR), {}, 0, 0).sentence
    )
    assert "added up" not in text_of(PLANAR) + neighbours(study(PLANAR))


def test_one_feature_that_far_apart_is_told_rightly_no_more_often():
    """The oracle: the total variation of two Laplace laws, 1 - exp(-slope v / 2), whatever the other features are."""
    law = wire.NoiseLaw(family="laplace_each", sd=1.3)
    v = guarantees.confused_within(law, 6)
    assert v == pytest.approx(math.log(3) * 1.3 / math.sqrt(2), rel=1e-12)
    assert (2 - math.exp(-math.sqrt(2) / 1.3 * v / 2)) / 2 <= 0.75
    assert guarantees.confused_within(law, 6, 2) == pytest.approx(v / 2)


def test_planar_values_of_a_slope_of_1_are_confused_within_log_3():
    """Three features and a standard deviation of 2 have the slope sqrt(4) / 2; odds of 3 to 1 are three in four."""
    law = wire.NoiseLaw(family="planar_laplace", sd=2.0)
    assert guarantees.confused_within(law, 3) == pytest.approx(math.log(3), rel=1e-12)
    assert guarantees.confused_within(law, 8, 2) == pytest.approx(math.log(3) / 3, rel=1e-12)


def test_noise_of_no_known_law_confuses_nothing_that_is_proved():
    for law in (wire.NoiseLaw(family="none"), wire.NoiseLaw(family="gaussian_projection", sd=1.0)):
        assert guarantees.confused_within(law, 20) is None


@pytest.mark.parametrize("epsilon", ["0.000001", "0.1", "0.5", "1", "1.098612288668", "2", "3.7", "6", "6.9"])
def test_the_sentence_never_says_less_than_the_surest_belief(epsilon):
    """It was rounded to the nearest percentage of three digits: "at most 73.1 %" for a belief of 73.106 %."""
    release = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon=epsilon)
    stated = re.search(r"at most ([\d.]+) % sure", guarantees.belief(release))[1]
    with localcontext(prec=40):
        exact = 100 / (1 + (-Decimal(epsilon)).exp())
        assert exact <= Decimal(stated) < exact + Decimal("0.1")


def test_the_sentence_says_what_is_proved_and_no_more():
    pure = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
    said = (
        "From the release alone, someone undecided (50/50) between two values that differ by the hidden change "
        "becomes at most 73.2 % sure"
    )
    assert guarantees.belief(pure) == f"{said}. Answers add to this."
    spread = pure.model_copy(update={"delta": 1e-6})
    assert guarantees.belief(spread) == f"{said}, except for events that delta allows. Answers add to this."
    again = guarantees.belief(spread, measured=Decimal(4))
    measured = "With the second draw of a measured record: at most 98.3 % sure, except for events that delta allows."
    assert again == f"{said}, except for events that delta allows. {measured} Answers add to this."
    assert "practically certain" in guarantees.belief(pure.model_copy(update={"epsilon": "20"}))
    refuted = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-6, r=1, acknowledge_refuted=True)
    assert guarantees.belief(refuted) is None
    cells = wire.GridCells(kind="grid", parts=[2])
    groups = wire.GroupsRelease(mechanism="groups", epsilon="0.5", cells=cells)
    allowed = "From the release and all answers that the cap on a record allows"
    undecided = "someone undecided (50/50) between any two records becomes at most 73.2 % sure."
    assert guarantees.belief(groups, record="1") == f"{allowed}, {undecided}"
    assert guarantees.belief(wire.IdentityRelease(mechanism="identity")) is None
