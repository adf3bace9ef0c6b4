"""The forms of a tuning: every method and every score, as a browser without JavaScript meets them."""

import json
import re
from decimal import Decimal

import pytest

from blindopt import wire
from blindopt.client import Owner
from tests.curator_service.tuning.scoring.scorer import KEY, serving
from tests.curator_service.tuning_case import FEATURES, NAMES, registered

WAIT = 60


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    secret = tmp_path_factory.mktemp("scorer") / "key"
    secret.write_text(KEY + "\n")

    def reply(request, count):
        point = request["hyperparameters"]
        return 200, json.dumps({"score": 0.2 * point["depth"] + point["rate"]}).encode()

    with serving(reply) as scorer:
        yield {"scorer_url": scorer.url, "scorer_secret_file": str(secret)}


@pytest.fixture(scope="module")
def api(service):
    with Owner(service.url, service.token, timeout_s=60) as client:
        yield client


@pytest.fixture(scope="module")
def case(api):
    return registered(api)


def _choose(owner, case, method, score="logistic"):
    training = case.training.id if score == "logistic" else ""
    owner.get(f"/tunings/new?validation={case.validation.id}&score={score}&training={training}&method={method}&go=form")


SCORE = {"name": "a tuning", "label": NAMES[2], "cap_epsilon": "100000", "cap_delta": "0.5"} | {
    f"{part}_{i}": value for i in (0, 1) for part, value in (("use", "yes"), ("lower", "-2"), ("upper", "2"))
}
PRIOR = {"one_minus_k1": "1e-4", "lengthscale": "1.5", "evaluations": "4", "centre": "-0.5"}
ASSUMED = {"one_minus_k1": 1e-4, "lengthscale": 1.5, "evaluations": 4, "centre": -0.5}
SEARCH = {"lengthscale": 1.5, "evaluations": 4, "centre": -0.5}
STEER = {k: v for k, v in PRIOR.items() if k != "one_minus_k1"}
# Of each method: what is typed, the method that it must make, and whether it has a delta.
FORMS = {
    "grid_exponential": (
        {"use_weights": "yes", "loss": "ramp", "selection": "exponential"},
        wire.GridExponential(name="grid_exponential", use_weights=True, selection="exponential"),
        0.0,
    ),
    "gp_design": (
        PRIOR | {"value_at": "maximum", "kernel": "matern_32", "scale": "0.3"},
        wire.GpDesign(
            name="gp_design",
            prior=wire.TuningPrior(**ASSUMED, kernel="matern_32", scale=0.3),
            value_at="maximum",
        ),
        1e-6,
    ),
    "gp_ucb_simulated": (
        PRIOR | {"delta": "0.05", "pairs": "400", "seed": "7", "estimated_lengthscale": "yes"},
        wire.GpUcbSimulated(
            name="gp_ucb_simulated",
            prior=wire.TuningPrior(**ASSUMED, estimated=["lengthscale"]),
            pairs=400,
            seed=7,
        ),
        0.05,
    ),
    "kusner_1": (
        PRIOR | {"q": "paper", "delta_split": "paper", "index_bound": "clip"},
        wire.Kusner1(
            name="kusner_1",
            prior=wire.TuningPrior(**ASSUMED),
            q="paper",
            delta_split="paper",
            index_bound="clip",
        ),
        1e-6,
    ),
    "kusner_2": (
        PRIOR | {"a": "2", "tau": "0.5", "last": "3", "noise": "own"},
        wire.Kusner2(name="kusner_2", prior=wire.TuningPrior(**ASSUMED, noise="own"), a=2.0, tau=0.5, last=3),
        1e-6,
    ),
    "kusner_3": (
        STEER | {"form": "paper", "loss": "clipped_logistic", "clip": "0.8"},
        wire.Kusner3(name="kusner_3", search=wire.TuningSearch(**SEARCH), form="paper"),
        0.0,
    ),
    "public_weights": (
        STEER | {"loss": "ramp"},
        wire.PublicWeights(name="public_weights", search=wire.TuningSearch(**SEARCH)),
        0.0,
    ),
}


def _ended(owner, api):
    """Wait, and open the page of the tuning again."""
    identity = owner.path.rpartition("/")[2]
    tuning = api.wait_tuning(identity, timeout_s=WAIT, poll_s=0.05)
    owner.get(f"/tunings/{identity}")
    return tuning


@pytest.mark.parametrize("method", FORMS)
def test_what_is_typed_for_a_method_is_the_tuning_that_is_shown_charged_and_run(owner, api, case, method):
    typed, expected, delta = FORMS[method]
    _choose(owner, case, method)
    assert owner.status == 200, owner.shown
    before = _account(api, case)
    owner.submit("/tunings/new", go="look", **SCORE | typed)
    assert owner.status == 200, owner.shown[-1500:]
    assert "Nothing is charged yet" in owner.shown
    assert _account(api, case) == before
    looked, typed_in = owner.shown, _numbers(owner.form("/tunings/new"))
    owner.submit("/tunings/new", go="start")
    assert "Charged, and under way" in owner.shown, owner.shown[-1500:]
    tuning = _ended(owner, api)
    assert tuning.state == "completed", tuning.problem
    assert tuning.spec == _expected(case, typed, expected, delta)
    assert _account(api, case) > before
    words = [
        tuning.report.guarantee,
        tuning.report.expected_how,
        *(caution.message for caution in tuning.report.cautions),
    ]
    assert all(word in owner.shown for word in words)
    # Figures of simulated neighbours are those of the tuning's own seed, which no preview has.
    assert all(word in looked for word in words[: 1 if method == "gp_ucb_simulated" else None])
    assert "Released" in owner.shown
    assert ("choice itself is not released" in owner.shown) == (tuning.result.hyperparameters is None)

    owner.get(f"/tunings/new?from={tuning.id}")
    assert _numbers(owner.form("/tunings/new")) == typed_in | {"name": "a tuning (again)"}


def _numbers(sent):
    """What a form would send, numbers by their value; without what is of one rendering."""

    def value(text):
        try:
            return float(text)
        except ValueError:
            return text

    return {
        k: [value(part) for part in v.split(", ")] if k.startswith("values") else value(v)
        for k, v in sent.items()
        if k not in ("_key", "_csrf", "seen")
    }


def _account(api, case):
    """What tunings on the private records have spent."""
    return sum(Decimal(c.epsilon) for c in api.uses(case.validation.id) if c.kind == "tuning")


def _expected(case, typed, method, delta):
    """The same, written by hand as the API's own client would."""
    loss = typed.get("loss", "zero_one")
    fields = {"loss": loss} | ({"clip": 0.8} if loss == "clipped_logistic" else {})
    share = None if method.name in ("kusner_2", "kusner_3", "public_weights") else "0.5"
    return case.spec(
        cap="100000",
        method=method,
        budget=wire.TuningBudget(epsilon="1", delta=delta, index_share=share),
        caps=wire.TuningCaps(epsilon="100000", delta=0.5),
    ).model_copy(
        update={
            "score": wire.LogisticScore(
                kind="logistic",
                training_dataset_id=case.training.id,
                features=[wire.Feature(column=f.column, lower=f.lower, upper=f.upper) for f in FEATURES],
                label=NAMES[2],
                **fields,
            )
        }
    )


HTTP = {
    "name": "trees",
    "model": "trees",
    "lower": "0",
    "upper": "1",
    "reply": "whole",
    "name_0": "depth",
    "values_0": "1, 2, 3",
    "scale_0": "linear",
    "name_3": "rate",
    "values_3": "0.1; 0.2",
    "scale_3": "log10",
    "cap_epsilon": "100000",
    "cap_delta": "0.5",
}


def test_a_program_of_ones_own_scores_several_hyperparameters(owner, api, case):
    _choose(owner, case, "grid_exponential", "http")
    owner.submit("/tunings/new", go="look", epsilon="100", **HTTP)
    assert owner.status == 200, owner.shown[-1500:]
    assert "6 values on 200 records" in owner.shown
    owner.submit("/tunings/new", go="start")
    tuning = _ended(owner, api)
    assert tuning.spec.grid == [
        wire.TuningAxis(name="depth", values=[1.0, 2.0, 3.0], scale="linear"),
        wire.TuningAxis(name="rate", values=[0.1, 0.2], scale="log10"),
    ]
    assert tuning.spec.score == wire.HttpScore(kind="http", model="trees", lower=0.0, upper=1.0, reply="whole")
    assert tuning.state == "completed", tuning.problem
    for name in tuning.result.hyperparameters:
        assert name in owner.shown


WRONG = [
    ("gp_design", {"one_minus_k1": ""}, "one_minus_k1"),
    ("gp_design", {"lengthscale": "-1"}, "lengthscale"),
    ("gp_design", {"centre": "3"}, "centre"),  # outside the range of the score
    ("gp_design", {"delta": "0"}, "delta"),
    ("gp_design", {"evaluations": "5000"}, "evaluations"),
    ("gp_ucb_simulated", {"pairs": "200", "delta": "0.005"}, "pairs"),
    ("kusner_2", {"a": "2", "tau": "", "last": "1"}, "whole_grid"),
    ("kusner_2", {"a": "2", "tau": "1", "last": "5"}, "last"),
    ("kusner_3", {"loss": "zero_one"}, "loss"),
    ("grid_exponential", {"loss": "zero_one", "use_weights": "yes"}, "loss"),
    ("grid_exponential", {"loss": "clipped_logistic", "clip": "1000"}, "clip"),
    ("grid_exponential", {"values_0": "1, nan"}, "values_0"),
    ("grid_exponential", {"values_0": "1, 1"}, "values_0"),
    ("grid_exponential", {"values_0": "1e9"}, "values_0"),
    ("grid_exponential", {"index_share": "2"}, "index_share"),
    ("grid_exponential", {"epsilon": "0"}, "epsilon"),
    ("grid_exponential", {"cap_epsilon": "much"}, "cap_epsilon"),
    ("grid_exponential", {"lower_1": "2", "upper_1": "1"}, "upper_1"),
    ("grid_exponential", {"label": NAMES[0]}, "label"),
    ("grid_exponential", {"threshold": "9"}, "threshold"),  # all of one class
]


@pytest.mark.parametrize(("method", "typed", "field"), WRONG, ids=[f"{m}-{f}" for m, _, f in WRONG])
def test_what_is_wrong_stands_at_its_field_and_nothing_is_charged(owner, api, case, method, typed, field):
    before = _account(api, case)
    _choose(owner, case, method)
    right = FORMS[method][0]
    owner.submit("/tunings/new", go="look", **SCORE | right | typed)
    assert owner.status == 422, owner.shown[-1500:]
    assert f'id="e-{field}"' in owner.text, re.findall(r'id="e-[^"]*"', owner.text)
    assert len(re.findall(r' id="e-', owner.text)) == 1  # and nowhere else
    for name, value in typed.items():  # what was typed stays
        assert owner.form("/tunings/new")[name] == value
    assert _account(api, case) == before


def test_wrong_rows_of_several_hyperparameters_are_reported_at_their_row(owner, case):
    _choose(owner, case, "gp_design", "http")
    owner.submit("/tunings/new", go="look", **HTTP | PRIOR | {"centre": "", "values_3": "0, 1"})
    assert owner.status == 422
    assert 'id="e-values_3"' in owner.text  # log10 needs values above 0: the second axis, in the fourth row


def test_what_was_changed_after_a_look_is_shown_again_before_it_is_charged(owner, api, case):
    _choose(owner, case, "grid_exponential")
    owner.submit("/tunings/new", go="look", **SCORE)
    before = _account(api, case)
    owner.submit("/tunings/new", go="start", epsilon="9")
    assert "nothing was charged" in owner.shown
    assert "Charge epsilon 9" in owner.shown
    assert _account(api, case) == before
    owner.submit("/tunings/new", go="start")
    assert "Charged, and under way" in owner.shown
    assert _account(api, case) == before + 9


def test_a_cap_that_is_spent_is_reported_and_charges_nothing(owner, api):
    own = registered(api, seed=77)
    _choose(owner, own, "grid_exponential")
    owner.submit("/tunings/new", go="look", **SCORE | {"cap_epsilon": "0.5"})
    owner.submit("/tunings/new", go="start")
    assert owner.status == 403
    assert _account(api, own) == 0


def test_the_first_step_says_what_does_not_go_together(owner, case):
    _choose(owner, case, "kusner_3", "http")
    assert owner.status == 422
    assert "for the built-in score alone" in owner.shown
    owner.get(f"/tunings/new?validation={case.validation.id}&score=logistic&method=gp_design&go=form")
    assert owner.status == 422
    assert 'id="e-training"' in owner.text
    owner.get("/tunings/new?go=form&score=none&method=none")
    assert owner.status == 422
    owner.get(f"/tunings/new?validation={case.validation.id}")
    assert owner.status == 200
    assert f'<option value="{case.validation.id}" selected>' in owner.text
    usual, folded = owner.text.split("<summary>As published, for comparison</summary>")
    assert {name: (f'value="{name}"' in usual, f'value="{name}"' in folded) for name in FORMS} == {
        name: (not name.startswith("kusner"), name.startswith("kusner")) for name in FORMS
    }
