"""The forms of a tuning: every method and every score, as a browser without JavaScript meets them."""

import json
import re
from decimal import Decimal
from urllib.parse import urlencode

import pytest

from blindopt import wire
from blindopt.client import Owner
from tests.curator_service.console.inputs import fields_of, inputs_of
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
    query = {"validation_dataset_id": case.validation.id, "score.kind": score, "score.training_dataset_id": training}
    owner.get(f"/tunings/new?{urlencode(query | {'method.name': method, 'go': 'form'})}")


SCORE = {"name": "a tuning", "score.label": NAMES[2], "caps.epsilon": "100000", "caps.delta": "0.5"} | {
    f"score.features.{i}.{part}": value
    for i in (0, 1)
    for part, value in (("column", FEATURES[i].column), ("lower", "-2"), ("upper", "2"))
}
STEER = {"lengthscale": "1.5", "evaluations": "4", "centre": "-0.5"}
PRIOR = {f"method.prior.{name}": value for name, value in (STEER | {"one_minus_k1": "1e-4"}).items()}
ASSUMED = {"one_minus_k1": 1e-4, "lengthscale": 1.5, "evaluations": 4, "centre": -0.5}
SEARCH = {"lengthscale": 1.5, "evaluations": 4, "centre": -0.5}
STEERED = {f"method.search.{name}": value for name, value in STEER.items()}
# Of each method: what is typed, the method that it must make, and whether it has a delta.
FORMS = {
    "grid_exponential": (
        {"method.use_weights": "yes", "score.loss": "ramp", "method.selection": "exponential"},
        wire.GridExponential(name="grid_exponential", use_weights=True, selection="exponential"),
        0.0,
    ),
    "gp_design": (
        PRIOR | {"method.value_at": "maximum", "method.prior.kernel": "matern_32", "method.prior.scale": "0.3"},
        wire.GpDesign(
            name="gp_design", prior=wire.TuningPrior(**ASSUMED, kernel="matern_32", scale=0.3), value_at="maximum"
        ),
        1e-6,
    ),
    "gp_ucb_simulated": (
        PRIOR
        | {"budget.delta": "0.05", "method.pairs": "400", "method.seed": "7", "method.prior.estimated": "lengthscale"},
        wire.GpUcbSimulated(
            name="gp_ucb_simulated", prior=wire.TuningPrior(**ASSUMED, estimated=["lengthscale"]), pairs=400, seed=7
        ),
        0.05,
    ),
    "kusner_1": (
        PRIOR | {"method.q": "paper", "method.delta_split": "paper", "method.index_bound": "clip"},
        wire.Kusner1(
            name="kusner_1", prior=wire.TuningPrior(**ASSUMED), q="paper", delta_split="paper", index_bound="clip"
        ),
        1e-6,
    ),
    "kusner_2": (
        PRIOR | {"method.a": "2", "method.tau": "0.5", "method.last": "3", "method.prior.noise": "own"},
        wire.Kusner2(name="kusner_2", prior=wire.TuningPrior(**ASSUMED, noise="own"), a=2.0, tau=0.5, last=3),
        1e-6,
    ),
    "kusner_3": (
        STEERED | {"method.form": "paper", "score.loss": "clipped_logistic", "score.clip": "0.8"},
        wire.Kusner3(name="kusner_3", search=wire.TuningSearch(**SEARCH), form="paper"),
        0.0,
    ),
    "public_weights": (
        STEERED | {"score.loss": "ramp"},
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
def test_what_is_typed_for_a_method_is_the_tuning_that_is_shown_charged_and_run(owner, api, method):
    """On a file of its own: after a promise on average no cap can hold, and a tuning in the worst case has one."""
    typed, expected, delta = FORMS[method]
    case = registered(api, seed=100 + list(FORMS).index(method))
    _choose(owner, case, method)
    assert owner.status == 200, owner.shown
    before = api.uses(case.validation.id)
    owner.submit("/tunings/new", go="look", **SCORE | typed)
    assert owner.status == 200, owner.shown[-1500:]
    assert "Nothing is charged yet" in owner.shown
    assert api.uses(case.validation.id) == before
    looked, typed_in = owner.shown, _numbers(owner.form("/tunings/new"))
    owner.submit("/tunings/new", go="start")
    assert "Charged, and under way" in owner.shown, owner.shown[-1500:]
    tuning = _ended(owner, api)
    assert tuning.state == "completed", tuning.problem
    assert tuning.spec == _expected(case, typed, expected, delta)
    assert len(api.uses(case.validation.id)) == len(before) + 1
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
        k: [value(part) for part in v.split(", ")] if k.endswith(".values") else value(v)
        for k, v in sent.items()
        if k not in ("_key", "_csrf", "seen")
    }


def _account(api, case):
    """What tunings on the private records have spent."""
    return sum(Decimal(c.epsilon) for c in api.uses(case.validation.id) if c.kind == "tuning")


def _expected(case, typed, method, delta):
    """The same, written by hand as the API's own client would."""
    loss = typed.get("score.loss", "zero_one")
    fields = {"loss": loss} | ({"clip": 0.8} if loss == "clipped_logistic" else {})
    share = None if method.name in ("kusner_2", "kusner_3", "public_weights") else "0.5"
    budget = wire.TuningBudget(epsilon="1", delta=delta, index_share=share)
    features = [wire.Feature(column=f.column, lower=f.lower, upper=f.upper) for f in FEATURES]
    of_training = {"training_dataset_id": case.training.id, "features": features, "label": NAMES[2]}
    score = wire.LogisticScore(kind="logistic", **of_training, **fields)
    caps = wire.TuningCaps(epsilon="100000", delta=0.5)
    return case.spec(cap="100000", method=method, budget=budget, caps=caps).model_copy(update={"score": score})


WITHOUT_INPUT = {f"score.features.*.{field}": "of a study" for field in ("hidden_change", "scale")}


def test_every_field_of_a_tuning_has_an_input(owner, case):
    names = set()
    for method, score in (*((name, "logistic") for name in FORMS), ("gp_design", "http")):
        _choose(owner, case, method, score)
        names |= inputs_of(owner.text)
    assert fields_of(wire.TuningCreate) - names == set(WITHOUT_INPUT)


HTTP = {
    "name": "trees", "score.model": "trees", "score.lower": "0", "score.upper": "1", "score.reply": "whole",
    "grid.0.name": "depth", "grid.0.values": "1, 2, 3", "grid.0.scale": "linear",
    "grid.3.name": "rate", "grid.3.values": "0.1; 0.2", "grid.3.scale": "log10",
    "caps.epsilon": "100000", "caps.delta": "0.5",
}  # fmt: skip


def test_a_program_of_ones_own_scores_several_hyperparameters(owner, api, case):
    _choose(owner, case, "grid_exponential", "http")
    owner.submit("/tunings/new", go="look", **HTTP | {"budget.epsilon": "100"})
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
    ("gp_design", {"method.prior.one_minus_k1": ""}, "method.prior.one_minus_k1"),
    ("gp_design", {"method.prior.lengthscale": "-1"}, "method.prior.lengthscale"),
    ("gp_design", {"method.prior.centre": "3"}, "method.prior.centre"),  # outside the range of the score
    ("gp_design", {"budget.delta": "0"}, "budget.delta"),
    ("gp_design", {"method.prior.evaluations": "5000"}, "method.prior.evaluations"),
    ("gp_ucb_simulated", {"method.pairs": "200", "budget.delta": "0.005"}, "method.pairs"),
    ("kusner_2", {"method.a": "2", "method.tau": "", "method.last": "1"}, "method.whole_grid"),
    ("kusner_2", {"method.a": "2", "method.tau": "1", "method.last": "5"}, "method.last"),
    ("kusner_3", {"score.loss": "zero_one"}, "score.loss"),
    ("grid_exponential", {"score.loss": "zero_one", "method.use_weights": "yes"}, "score.loss"),
    ("grid_exponential", {"score.loss": "clipped_logistic", "score.clip": "1000"}, "score.clip"),
    ("grid_exponential", {"grid.0.values": "1, nan"}, "grid.0.values"),
    ("grid_exponential", {"grid.0.values": "1, 1"}, "grid.0.values"),
    ("grid_exponential", {"grid.0.values": "1e9"}, "grid.0.values"),
    ("grid_exponential", {"budget.index_share": "2"}, "budget.index_share"),
    ("grid_exponential", {"budget.epsilon": "0"}, "budget.epsilon"),
    ("grid_exponential", {"caps.epsilon": "much"}, "caps.epsilon"),
    ("grid_exponential", {"score.features.1.lower": "2", "score.features.1.upper": "1"}, "score.features.1.upper"),
    ("grid_exponential", {"score.label": NAMES[0]}, "score.label"),
    ("grid_exponential", {"score.threshold": "9"}, "score.threshold"),  # all of one class
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
    owner.submit("/tunings/new", go="look", **HTTP | PRIOR | {"method.prior.centre": "", "grid.3.values": "0, 1"})
    assert owner.status == 422
    assert 'id="e-grid.3.values"' in owner.text  # log10 needs values above 0: the second axis, in the fourth row


def test_what_was_changed_after_a_look_is_shown_again_before_it_is_charged(owner, api, case):
    _choose(owner, case, "grid_exponential")
    owner.submit("/tunings/new", go="look", **SCORE)
    before = _account(api, case)
    owner.submit("/tunings/new", go="start", **{"budget.epsilon": "9"})
    assert "nothing was charged" in owner.shown
    assert "Charge epsilon 9" in owner.shown
    assert _account(api, case) == before
    owner.submit("/tunings/new", go="start")
    assert "Charged, and under way" in owner.shown
    assert _account(api, case) == before + 9


def test_a_cap_that_is_spent_is_reported_and_charges_nothing(owner, api):
    own = registered(api, seed=77)
    _choose(owner, own, "grid_exponential")
    owner.submit("/tunings/new", go="look", **SCORE | {"caps.epsilon": "0.5"})
    owner.submit("/tunings/new", go="start")
    assert owner.status == 403
    assert _account(api, own) == 0


def test_the_first_step_says_what_does_not_go_together(owner, case):
    _choose(owner, case, "kusner_3", "http")
    assert owner.status == 422
    assert "for the built-in score alone" in owner.shown
    owner.get(
        f"/tunings/new?validation_dataset_id={case.validation.id}&score.kind=logistic&method.name=gp_design&go=form"
    )
    assert owner.status == 422
    assert 'id="e-score.training_dataset_id"' in owner.text
    owner.get("/tunings/new?go=form&score.kind=none&method.name=none")
    assert owner.status == 422
    owner.get(f"/tunings/new?validation_dataset_id={case.validation.id}")
    assert owner.status == 200
    assert f'<option value="{case.validation.id}" selected>' in owner.text
    usual, folded = owner.text.split("<summary>As published, for comparison</summary>")
    assert {name: (f'value="{name}"' in usual, f'value="{name}"' in folded) for name in FORMS} == {
        name: (not name.startswith("kusner"), name in {"kusner_2", "kusner_3"}) for name in FORMS
    }
