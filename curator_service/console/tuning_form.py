"""The form of a tuning, with an input for each field of its method, and the tuning that it makes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from service_kit.console import Form
from service_kit.console.forms import Body, inlined
from service_kit.console.words import words

AXES = 6
"""Most hyper-parameters that the API takes."""
METHODS = wire.TUNING_METHODS
OFFERED = {name: method for name, method in METHODS.items() if name != "kusner_1"}
"""Methods in the list of a new tuning. ``kusner_1`` is no better than a random value up to epsilon 10: REST has it."""
ASSUMING = [name for name, method in METHODS.items() if "prior" in method.model_fields]
"""Rest on a declared prior, and are private but for a delta."""
LIPSCHITZ = [name for name, method in METHODS.items() if "search" in method.model_fields]
"""Rest on convex training: for the built-in score alone, with a loss that has a slope."""


@dataclass(frozen=True, slots=True)
class Input:
    """The input of a field of the API: its name is its label, and its description is its help."""

    name: str
    """Its path."""
    kind: str
    """Its type in JSON Schema, or ``choice`` if it has options."""
    options: list[str]
    help: str
    default: Any

    @property
    def label(self) -> str:
        """The name in words; symbols as they are."""
        name = self.name.rpartition(".")[2]
        return words(name).capitalize() if len(name) > 3 else name


@cache
def inputs(model: type[wire.Request], within: str) -> list[Input]:
    """An input for each field of a wire model at this path, but for constants and nested models."""
    fields = []
    for name, schema in inlined(model)["properties"].items():
        options = schema.get("enum") or schema.get("items", {}).get("enum", [])
        kind = "choice" if "enum" in schema else schema.get("type", "object")
        if kind != "object" and "const" not in schema:
            path = f"{within}.{name}"
            fields.append(Input(path, kind, options, schema["description"], schema.get("default")))
    return fields


def score_inputs(score: str) -> list[Input]:
    """The inputs of a kind of score, but for the columns of records."""
    if score == "http":
        return inputs(wire.HttpScore, "score")
    names = ("score.threshold", "score.loss", "score.clip")
    return [field for field in inputs(wire.LogisticScore, "score") if field.name in names]


def method_inputs(method: str) -> list[Input]:
    """The inputs of a method, but for those of its Gaussian process."""
    return inputs(METHODS[method], "method")


def process_inputs(method: str) -> dict[str, list[Input]]:
    """The inputs of a method's Gaussian process, by its path; empty without one."""
    models = {"prior": wire.TuningPrior, "search": wire.TuningSearch}
    paths = {f"method.{name}": model for name, model in models.items() if name in METHODS[method].model_fields}
    return {path: inputs(model, path) for path, model in paths.items()}


def defaults(method: str, score: str) -> dict[str, object]:
    """The initial values of a form. Assumptions of a guarantee are left empty: only the owner can know them."""
    process = process_inputs(method)
    # Simulated neighbours must be 7 / delta or more.
    delta = 0.005 if method == "gp_ucb_simulated" else 1e-6
    return {
        **({"grid.0.values": "0.001, 0.01, 0.1, 1, 10", "grid.0.scale": "log10"} if score == "logistic" else {}),
        **{field.name: field.default for field in chain(score_inputs(score), method_inputs(method), *process.values())},
        **({"score.loss": "ramp"} if method in LIPSCHITZ else {}),
        **{f"{path}.lengthscale": 1.0 for path in process},
        "budget.epsilon": "1",
        "budget.index_share": "0.5",
        "budget.delta": delta,
        "caps.epsilon": "2",
        "caps.delta": 2 * delta if method in ASSUMING else None,
    }


def body_of(form: Form) -> Body:
    """The tuning that a form makes; faults are added to ``form.errors``."""
    method = form.get("method.name")
    without = {"grid", "score.features.*.hidden_change", "score.features.*.scale"}
    without |= set() if method in ASSUMING else {"budget.delta"}
    without |= set() if METHODS[method].releases_choice else {"budget.index_share"}
    body = form.read(wire.TuningCreate, without)
    axes = form.items("grid", "name", "values")
    if not axes:
        form.wrong("grid.0.name", "At least one hyper-parameter is needed")
    # First its values: where an error about a whole axis stands.
    body["grid"] = {i: {"values": []} | form.read(wire.TuningAxis, within=f"grid.{i}") for i in axes}
    if form.get("score.kind") == "logistic":
        _check_logistic(form, body)
    return body


def _check_logistic(form: Form, body: Body) -> None:
    features = body["score"]["features"]
    for i in features:
        form.interval(f"score.features.{i}.lower", f"score.features.{i}.upper", "the smallest")
    if not features:
        form.wrong("score.features.0.column", "Choose at least one feature")
    needs_slope = form.get("method.name") in LIPSCHITZ or body["method"].get("use_weights")
    if needs_slope and body["score"]["loss"] == "zero_one":
        form.wrong("score.loss", "This needs a loss that has a slope: ramp, or clipped logistic")


def whole(form: Form) -> dict[str, str]:
    """The inputs where errors about a whole object stand, by its path."""
    return {
        "score": "score.lower" if form.get("score.kind") == "http" else "score.label",
        "method": "method.whole_grid",
    }


def digest(body: Mapping[str, Any]) -> str:
    """A digest of a tuning as it was typed, so that only the tuning that was shown is started."""
    return sha256(json.dumps(body, sort_keys=True).encode())


def again(spec: Mapping[str, Any], columns: Sequence[str]) -> Form:
    """The form of another tuning like this one; ``columns`` are those of both datasets."""
    score = dict(spec["score"])
    if "features" in score:
        score["features"] = {columns.index(f["column"]): f for f in score["features"] if f["column"] in columns}
    grid = {i: axis | {"values": ", ".join(map(_plain, axis["values"]))} for i, axis in enumerate(spec["grid"])}
    form = Form.blank(**{"budget.index_share": "0.5"})
    form.fill({**spec, "name": f"{spec['name']} (again)", "score": score, "grid": grid})
    return form


def _plain(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
