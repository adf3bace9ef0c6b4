"""The plan of a run by its study: what each setting that was left open becomes, and the reason that is shown."""

import pytest

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.optimizer.chooser import RowChooser
from blindopt.optimizer.defaults import PublicCandidates, plan_for
from tests.given_settings import GIVEN
from tests.shared.blindopt.optimizer.small_runs import KERNEL, candidates, study

NOISE = wire.NoiseLaw(family="planar_laplace", sd=0.3)
SPEC = {"curator_url": "http://127.0.0.1:9", "study_id": "std_0123456789abcdef"}
PRIVATE = {"epsilon": "1", "value_bound": 1.0}
ANSWERS = {
    "none": wire.NoAnswerNoise(mechanism="none"),
    "laplace": wire.LaplaceAnswers(mechanism="laplace", **PRIVATE),
    "one_bit": wire.OneBitAnswers(mechanism="one_bit", **PRIVATE),
    "piecewise": wire.PiecewiseAnswers(mechanism="piecewise", **PRIVATE),
}


def plan(view, **wishes):
    past = wishes.pop("past", 0)
    return plan_for(wire.RunSpec.model_validate(SPEC | wishes), view, past)


def view(answers="none", **chosen):
    return study(answers=ANSWERS[answers], **{"kernel": None} | chosen)


# --- the algorithm, and whether it is fitted --------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "wishes", "name", "fitted", "because"),
    [
        (view(), {}, "ei", True, "answers are not randomized"),
        (view(kernel=KERNEL), {}, "ei", "auto", "answers are not randomized"),
        (view(), {"batch_size": 4}, "ei", True, "answers are not randomized"),
        (view(noise=NOISE), {}, "ei_deblurred", True, "noise of a known law"),
        (view(noise=NOISE, kernel=KERNEL), {}, "ei", "auto", "answers are not randomized"),
        (view(noise=NOISE), {"kernel": KERNEL}, "ei", "auto", "answers are not randomized"),
        (view(noise=NOISE), {"batch_size": 2}, "ei", True, "answers are not randomized"),
        (view(noise=NOISE), {"iterations": 495}, "ei_deblurred", True, "noise of a known law"),
        (view(noise=NOISE), {"iterations": 496}, "ei", True, "answers are not randomized"),
        (view("laplace", noise=NOISE, n=3_000), {}, "ei", True, "candidates are more than 2,000"),
        (view(measurement_source="inbox"), {}, "ei", True, "answers are not randomized"),
        (view(), {"stop": {"improvement": 0.1}}, "gp_ucb", True, "promise"),
        (view(), {"stop": {"improvement": 0.1}, "batch_size": 2}, "gp_bucb", True, "promise"),
        (view("laplace"), {}, "laplace_adf", False, "answers have laplace noise"),
        (view("laplace", privacy_unit="answer", kernel=KERNEL), {}, "laplace_adf", False, "answers have laplace noise"),
        (view("one_bit"), {}, "bounded_igp", False, "answers have one-bit noise"),
        (view("piecewise", privacy_unit="answer"), {}, "bounded_igp", False, "answers have piecewise noise"),
        (view("laplace", n=2_000), {}, "laplace_adf", False, "at most 2,000"),
        (view("laplace", n=2_001), {}, "ei", True, "candidates are more than 2,000"),
        (view("one_bit"), {"batch_size": 4}, "bounded_igp", False, "answers have one-bit noise"),
        (view("one_bit"), {"stop": {"expected_improvement": 0.01}}, "ei", True, "stop.expected_improvement"),
        (view("one_bit"), {"fit": {}}, "ei", True, "are to be fitted"),
    ],
)
def test_the_algorithm_follows_from_the_answers_and_the_number_of_candidates(view, wishes, name, fitted, because):
    made = plan(view, **wishes)
    assert (made.algorithm.name, made.fit if made.fit == "auto" else made.fit is not None) == (name, fitted)
    assert made.reasons[0].startswith(f"The algorithm is {name}: ")
    assert because in made.reasons[0]


def test_measurements_with_variances_of_their_own_get_an_algorithm_that_takes_them():
    spec = wire.RunSpec.model_validate(SPEC)
    assert plan_for(spec, view("laplace"), 3, own_variances=True).algorithm.name == "ei"


def test_a_promise_that_no_algorithm_for_the_study_makes_is_refused_by_its_name():
    with pytest.raises(Invalid, match=r"stop\.improvement is for gp_ucb and gp_bucb.*leave it out"):
        plan(view("laplace"), stop={"improvement": 0.1})


# --- the initial design -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "wishes", "rows", "because"),
    [
        ({}, {}, 5, "a first fit"),
        ({"r": 70}, {}, 5, "a first fit"),
        ({"r": 40}, {"iterations": 4}, 4, "as many as are queried after them"),
        ({}, {"iterations": 1}, 1, "as many as are queried after them"),
        ({"n": 3}, {}, 1, "half of the 3 candidates"),
        ({"n": 1}, {}, 0, "half of the 1 candidates"),
        ({"budget": wire.Budget(queries=6)}, {}, 3, "the study's budget allows"),
        ({"answers": ANSWERS["one_bit"], "epsilon": "2", "budget": wire.Budget(epsilon_total="6")}, {}, 2, "budget"),
        ({"answers": ANSWERS["one_bit"], "epsilon": "2", "budget": wire.Budget(epsilon_total="2")}, {}, 0, "budget"),
        ({"r": 4}, {"past": 3}, 2, "less the 3 past measurements"),
        ({}, {"past": 30}, 0, "less the 30 past measurements"),
        ({"answers": ANSWERS["laplace"]}, {"algorithm": {"name": "ldp_moma"}}, 0, "learns nothing from them"),
    ],
)
def test_the_first_rows_are_spread_and_at_most_half_of_all(chosen, wishes, rows, because):
    made = plan(study(**chosen), **wishes)
    assert (made.initial_rows, made.initial_design) == (rows, "maximin")
    begins = f"{rows} candidates spread over the release are queried first: "
    (reason,) = [reason for reason in made.reasons if reason.startswith(begins)]
    assert because in reason


@pytest.mark.parametrize(
    ("noise", "design"),
    [
        (NOISE, "mixed"),
        (wire.NoiseLaw(family="gaussian", sd=0.1), "mixed"),
        (wire.NoiseLaw(family="gaussian_projection", sd=0.1), "mixed"),
        (wire.NoiseLaw(family="random_projection"), "maximin"),
        (wire.NoiseLaw(family="none"), "maximin"),
    ],
)
def test_of_candidates_with_declared_noise_half_of_the_first_rows_are_random(noise, design):
    made = plan(view(noise=noise))
    assert (made.initial_rows, made.initial_design) == (5, design)
    assert any("half of them spread over the release and half random" in why for why in made.reasons) == (
        design == "mixed"
    )
    assert plan_for(wire.RunSpec.model_validate(SPEC), view(noise=noise), engine=2).initial_design == "maximin"
    assert plan(view(noise=noise), initial_design="random").initial_design == "random"


def test_random_rows_begin_at_random():
    assert plan(study(), algorithm={"name": "random"}).initial_design == "random"


# --- repeats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "repeats", "because"),
    [
        ({}, "never", "exact value of a column"),
        ({"measurement_noise_variance": 0.1}, "after_all", "teaches more than a second measurement"),
        ({"measurement_source": "inbox"}, "after_all", "teaches more than a second measurement"),
        ({"answers": ANSWERS["one_bit"]}, "after_all", "add up in its privacy budget"),
        ({"answers": ANSWERS["one_bit"], "privacy_unit": "answer"}, "algorithm", "each answer is a new draw"),
        (
            {"answers": ANSWERS["one_bit"], "epsilon": "1", "budget": wire.Budget(epsilon_per_row="3")},
            "after_all",
            "add up in its privacy budget",
        ),
        (
            {"answers": ANSWERS["one_bit"], "epsilon": "1", "budget": wire.Budget(epsilon_per_row="2.9")},
            "never",
            "which allows one each",
        ),
        (
            {"answers": ANSWERS["one_bit"], "privacy_unit": "answer", "budget": wire.Budget(epsilon_per_row="3")},
            "after_all",
            "one value is behind all answers",
        ),
    ],
)
def test_a_row_is_asked_again_only_where_that_teaches_something(chosen, repeats, because):
    made = plan(study(**chosen))
    assert made.repeats == repeats
    assert because in made.reasons[-1]


# --- what was given ---------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", ANSWERS)
def test_settings_that_are_given_stay_and_need_no_reason(answers):
    wishes = GIVEN | {"algorithm": {"name": "thompson"}, "kernel": KERNEL}
    made = plan(view(answers), **wishes)
    assert made.reasons == []
    assert (made.algorithm.name, made.fit) == ("thompson", None)
    assert (made.initial_rows, made.initial_design, made.repeats) == (1, "random", "algorithm")


def test_candidates_without_a_study_have_a_plan_too():
    made = plan(PublicCandidates(n=8, r=1, direction="maximize", kernel=None, noise=wire.NoiseLaw(family="none")))
    assert (made.algorithm.name, made.initial_rows, made.repeats) == ("ei", 4, "after_all")


@pytest.mark.parametrize(
    ("r", "noise", "shares"), [(100, {}, 0), (101, {}, 1), (101, {"family": "gaussian", "scale": 1}, 0)]
)
def test_a_plan_says_when_columns_are_too_many_for_length_scales_of_their_own(r, noise, shares):
    law = wire.NoiseLaw.model_validate({"family": "none"} | noise)
    made = plan(PublicCandidates(n=8, r=r, direction="maximize", kernel=None, noise=law))
    assert sum("share one length-scale" in reason for reason in made.reasons) == shares


def test_every_plan_has_an_algorithm_that_can_be_built():
    """The number of outcomes that ei_deblurred takes is counted with all that a run may be shown."""
    settings = study(n=1_000, noise=NOISE, kernel=None)
    spec = wire.RunSpec.model_validate(SPEC | {"iterations": 480})
    past = [wire.Observation(row=row, y=0.0) for row in range(15)]
    for before in (past, [*past, wire.Observation(row=20, y=0.0)]):
        RowChooser(spec, settings, candidates(1_000), before)
