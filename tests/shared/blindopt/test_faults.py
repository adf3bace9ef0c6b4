"""What is wrong with a request is said in words, at a path that its sender wrote."""

import json
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

import blindopt as bo
from blindopt import faults, wire
from blindopt.client.drafts import columns_of
from blindopt.client.owner import Dataset, Draft, ReleasedStudy
from blindopt.errors import Invalid, sentence
from blindopt.wire.base import Request
from tests.builders import ALGORITHMS
from tests.console_errors import NOT_SAID
from tests.spoilt_bodies import CANARY, SPOILS, a_body, changed, nodes, wrong_words

REQUESTS = {
    name: model
    for name, model in vars(wire).items()
    if isinstance(model, type) and issubclass(model, Request) and model.model_fields
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_spoilt_request_is_told_its_first_fault_in_words_at_a_path_that_was_written(name):
    model = REQUESTS[name]
    schema = model.model_json_schema()
    whole, refused, wrong = a_body(schema, schema), 0, {}
    for path in nodes(whole):
        for spoil, act in SPOILS.items():
            if path or spoil not in ("taken out", "misspelt"):
                body = changed(whole, path, act)
                try:
                    faults.parse(model, json.dumps(body))
                except Invalid as error:
                    refused += 1
                    if reported := wrong_words(str(error), error.errors, body):
                        wrong[f"{'.'.join(map(str, path))} {spoil}"] = reported
    assert wrong == {}
    assert refused > 5


def test_what_a_validator_says_by_itself_does_not_pass():
    """The control: its words, its paths, a value, and a summary in place of the first fault."""
    body = {"release": {"epsilon": 2.5, "mechanism": CANARY}}

    def reported(field, message, detail=None):
        fault = {"field": field, "message": message}
        return wrong_words(detail or sentence(fault), [fault], body)

    assert reported("release.epsilon", "is a number: write it in quotes") == []
    assert reported("release.delta", "is missing") == []
    assert reported("release.auto.epsilon", "is a number") == ["release.auto.epsilon"]
    assert reported("release.epsilon", "Input should be a valid string")
    assert reported("release.epsilon", r"must match ^[0-9]{1,6}$")
    assert reported("release.mechanism", f"is {CANARY}")
    assert reported("release.epsilon", "is a number", "the request cannot be read")
    with pytest.raises(ValidationError) as refused:
        wire.StudyCreate.model_validate(body)
    (error, *_) = [e for e in refused.value.errors() if "release" in e["loc"]]
    assert reported(".".join(map(str, error["loc"])), error["msg"])


def test_every_pattern_of_the_wire_is_told_in_words():
    def patterns(schema):
        if isinstance(schema, dict):
            yield from [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
            schema = list(schema.values())
        if isinstance(schema, list):
            for part in schema:
                yield from patterns(part)

    models = [
        model
        for model in vars(wire).values()
        if isinstance(model, type) and issubclass(model, BaseModel) and model is not BaseModel
    ]
    written = {pattern for model in models for pattern in patterns(model.model_json_schema())}
    assert len(written) > 20
    assert [pattern for pattern in sorted(written) if NOT_SAID.search(faults._spelled(pattern))] == []
    assert NOT_SAID.search(faults._spelled("^x$"))


STUDY = {
    "name": "n",
    "dataset_id": "ds_0123456789abcdef",
    "features": [{"column": "a", "lower": 0, "upper": 1}],
    "measurement": {"column": "b", "direction": "maximize"},
    "release": {"epsilon": "1"},
    "answers": {"mechanism": "none"},
}


@pytest.mark.parametrize(
    ("part", "detail"),
    [
        ({"release": {"epsilon": 2.5}}, "release.epsilon is a number: write a decimal number without sign"),
        ({"release": {"epsilon": "1,5"}}, "release.epsilon must be a number from 0.000001 to 1000, with at most"),
        (
            {"release": {"epsilon": "1000000000"}},
            "release.epsilon must be a number from 0.000001 to 1000, with at most",
        ),
        ({"release": {"epsilon": "1e9"}}, "release.epsilon must be a number from 0.000001 to 1000, with at most"),
        ({"release": {"epsilon": "1\n"}}, "release.epsilon must be a number from 0.000001 to 1000, with at most"),
        ({"answers": {"mechanisme": "none"}}, 'answers.mechanisme is no field here: did you mean "mechanism"?'),
        ({"answers": {"mechanism": "laplce"}}, 'answers.mechanism must be one of "none", "laplace", "one_bit", "pie'),
        ({"release": {"mechanism": "gausian"}}, 'release.mechanism must be one of "auto", "planar_laplace", "gaussi'),
        ({"release": None}, "release is null: write an object in braces"),
        ({"measurement": {"column": "b"}}, "measurement.direction is missing"),
        ({"measurement": {"source": "inbox", "direction": 3}}, 'measurement.direction must be one of "maximize" or "'),
        ({"features": [{"column": "a", "lower": 2, "upper": 1}]}, "features.0: lower must be smaller than upper"),
        ({"features": []}, "features must have at least 1 items"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "a" * 201}, "name must have at most 200 characters"),
    ],
)
def test_the_first_fault_is_the_detail(part, detail):
    with pytest.raises(Invalid) as refused:
        faults.parse(wire.StudyCreate, json.dumps(STUDY | part))
    assert str(refused.value).startswith(detail)
    faults.parse(wire.StudyCreate, json.dumps(STUDY))


@pytest.mark.parametrize(
    ("kind", "name"), [(wire.ReleaseSpec, "mechanism"), (wire.MeasurementSpec, "source"), (wire.Answers, "mechanism")]
)
def test_a_kind_that_does_not_exist_is_said_with_the_field_that_names_it(kind, name):
    """Found by hand: a mechanism with a typing mistake was "_kind() must be one of"."""
    with pytest.raises(Invalid, match=f'^{name} must be one of "'):
        faults.parse(kind, json.dumps({name: "other"}))


def test_what_is_no_json_is_told_where_it_ends_to_be():
    with pytest.raises(Invalid, match=r"^body is not JSON: expected value at line 1 column 10\n"):
        faults.parse(wire.StudyCreate, '{"name": x}')


def test_of_a_large_body_the_fault_says_what_is_right_alone():
    body = json.dumps(STUDY | {"release": {"epsilon": 2.5}}) + " " * faults.SMALL_BYTES
    with pytest.raises(Invalid, match=r"^release\.epsilon must be a decimal number without sign"):
        faults.parse(wire.StudyCreate, body)


def test_a_parameter_of_a_path_has_no_body():
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(int).validate_python("x")
    assert str(faults.invalid([{**refused.value.errors()[0], "loc": ("page_size",)}])) == (
        "page_size must be a whole number"
    )


GRID = np.eye(3)
DATASET = Dataset(None, SimpleNamespace(id="ds_0123456789abcdef"))
NO_CAP = SimpleNamespace(budget=wire.Budget())
DRAFT = Draft(None, SimpleNamespace(id="std_0123456789abcdef", spec_sha256="0" * 64, spec=NO_CAP))
RELEASED = ReleasedStudy(SimpleNamespace(_post=None), "std_0123456789abcdef")
IN_PYTHON = {"features": {"age": (0, 100)}, "outcome": "stay", "privacy": 1, "answers": "exact"}
HALF = "\udcff"  # as the command line has a byte that is no UTF-8
ENDLESS = []
ENDLESS.append(ENDLESS)


def drafted(**changes):
    return lambda: DATASET.study("n", **{**IN_PYTHON, **changes})


def searched(**settings):
    return lambda: bo.Optimizer(GRID, **settings)


CALLS = [
    (searched(algorithm="ucb"), f'algorithm is none of the {ALGORITHMS} that exist: did you mean "gp_ucb"?'),
    (searched(algoritm="ei"), 'algoritm is no field here: did you mean "algorithm"?'),
    (searched(queries="x"), "queries must be a whole number or None"),
    (searched(iterations="x"), "iterations is text: write a whole number without quotes"),
    (searched(kernel={"kind": "rbf"}), 'kernel.kind must be one of "squared_exponential", "matern_12"'),
    (lambda: bo.Optimizer(GRID).tell(0, "x"), "y must be a finite number"),
    (lambda: bo.Optimizer(GRID).tell(0, 1.0, variance=-1), "variance must be at least 0"),
    (drafted(features={"stay_days": 60.0}), "features.stay_days must be (lower, upper) or (lower, upper, hidden ch"),
    (drafted(features={"age": (2, 1)}), "features.age: lower must be smaller than upper"),
    (drafted(features={"age": ("a", 1)}), "features.age.lower is text: write a number without quotes"),
    (drafted(features=5), "features is a number: write a list in brackets"),
    (drafted(features={"age": (0, object())}), "features.age.upper is of the type object: write numbers"),
    (drafted(features={"age": (0, 1), "stay": (Decimal("NaN"), 1)}), "features.stay.lower is of the type Decimal:"),
    (drafted(privacy=True), "privacy.epsilon is true: write a decimal number"),
    (drafted(privacy={"epsilon": Decimal("NaN")}), "privacy.epsilon is of the type Decimal: write numbers"),
    (drafted(outcome={1}), "outcome must be the name of a column or a dict"),
    (drafted(outcome={"column": {1}}), "outcome.column is of the type set: write numbers"),
    (lambda: bo.Optimizer(GRID).tell(0, 1.0, variance={1}), "variance must be a number or None"),
    (searched(kernel={"kind": {1}}), "kernel.kind is of the type set: write numbers"),
    (searched(algorithm={"name": {1}}), "algorithm is of the type set: write numbers"),
    (lambda: columns_of({1}), "columns is of the type set: write numbers"),
    (lambda: columns_of(["a", {"column": {1}}]), "columns.1.column is of the type set: write numbers"),
    (drafted(outcome=HALF), "outcome.column must be text in UTF-8"),
    (drafted(features={HALF: (0, 1)}), r"features.\udcff.column must be text in UTF-8"),
    (drafted(features={HALF: 1}), r"features.\udcff must be (lower, upper) or (lower, upper, hidden change)"),
    (drafted(privacy={HALF: 1}), r"privacy.\udcff must be text in UTF-8"),
    (drafted(features={"age": (0, 10**5_000)}), "features.age.upper must have at most 300 digits"),
    (drafted(budget={"queries": -(10**5_000)}), "budget.queries must have at most 300 digits"),
    (drafted(privacy=10**400), "privacy.epsilon must have at most 300 digits"),
    (
        drafted(outcome={"column": ENDLESS}),
        "outcome has lists or dicts in more than 20 others: check that none holds itself",
    ),
    (drafted(privacy={"epsilon": ENDLESS}), "privacy has lists or dicts in more than 20 others: check that none"),
    (drafted(outcome=5), "outcome must be the name of a column or a dict"),
    (drafted(answers="exac"), 'answers must be "exact" or a dict'),
    (drafted(privacy=None), 'privacy must be a number, "public" or a dict'),
    (drafted(privacy=1e9), "privacy.epsilon must be a number from 0.000001 to 1000"),
    (drafted(privacy="1001"), "privacy.epsilon must be a number from 0.000001 to 1000"),
    (lambda: columns_of(["a", 5]), "columns.1 is a number: write text in quotes, or an object in braces"),
    (drafted(direction="maximise"), 'direction must be one of "maximize" or "minimize": did you mean "maximize"?'),
    (drafted(privacy={"epsilo": 1}), 'privacy.epsilo is no field here: did you mean "epsilon"?'),
    (drafted(privacy=-1), "privacy.epsilon must be a number from 0.000001 to 1000"),
    (drafted(budget={"querys": 5}), 'budget.querys is no field here: did you mean "queries"?'),
    (lambda: DRAFT.forecast([None]), "epsilons.0 is null: write a decimal number"),
    (lambda: DRAFT.forecast([1], rows="recods"), 'rows must be one of "public" or "records": did you mean "records"?'),
    (lambda: DRAFT.release(confirm_high_risk="yes"), "confirm_high_risk is text: write true or false without quotes"),
    (lambda: RELEASED.grant("a", days="x"), "days is text: write a whole number without quotes"),
    (lambda: RELEASED.open_record("x"), "candidate is text: write a whole number without quotes"),
    (lambda: columns_of(5), "columns is a number: write a list in brackets"),
    (lambda: columns_of([{"column": "a", "kind": "one_hott"}]), 'columns.0.kind must be one of "number", "one_hot"'),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_wrong_argument_is_named_as_it_is_in_python(number):
    call, message = CALLS[number]
    with pytest.raises(Invalid) as refused:
        call()
    assert str(refused.value).startswith(message)
    assert str(refused.value).encode()
    assert not NOT_SAID.search(str(refused.value))
