"""The form of a tuning, with an input for each field of its method, and the tuning that it makes."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from service_kit.console import Form
from service_kit.console.words import words

AXES = 6
"""Most hyper-parameters that the API takes."""
METHODS = wire.TUNING_METHODS
ASSUMING = [name for name, method in METHODS.items() if "prior" in method.model_fields]
"""Rest on a declared prior, and are private but for a delta."""
LIPSCHITZ = [name for name, method in METHODS.items() if "search" in method.model_fields]
"""Rest on convex training: for the built-in score alone, with a loss that has a slope."""
Body = dict[str, Any]
_NEEDED = object()
"""The default of a field that has none."""


@dataclass(frozen=True, slots=True)
class Input:
    """The input of a field of the API: its name is its label, and its description is its help."""

    name: str
    kind: str
    """Its type in JSON Schema, or ``choice`` if it has options."""
    options: list[str]
    help: str
    default: Any

    @property
    def label(self) -> str:
        """The name in words; symbols as they are."""
        return words(self.name).capitalize() if len(self.name) > 3 else self.name

    def read(self, form: Form) -> Any:
        """The value that was typed, ticked or chosen. A field whose default is null may stay empty."""
        if self.kind == "choice":
            return form.get(self.name) or self.default
        if self.kind == "array":
            return [option for option in self.options if form.has(f"{self.name}_{option}")]
        if self.kind == "string":
            return form.text(self.name)
        if self.kind == "boolean":
            return form.has(self.name)
        return (form.integer if self.kind == "integer" else form.real)(self.name, needed=self.default is not None)


@cache
def inputs(model: type[wire.Request]) -> list[Input]:
    """An input for each field of a wire model, but for constants and nested models."""
    fields = []
    for name, schema in model.model_json_schema()["properties"].items():
        schema |= schema.get("anyOf", [{}])[0]
        options = schema.get("enum") or schema.get("items", {}).get("enum", [])
        kind = "choice" if "enum" in schema else schema.get("type", "")
        if kind and "const" not in schema:
            fields.append(Input(name, kind, options, schema["description"], schema.get("default", _NEEDED)))
    return fields


def score_inputs(score: str) -> list[Input]:
    """The inputs of a kind of score, but for the columns of records."""
    if score == "http":
        return inputs(wire.HttpScore)
    return [field for field in inputs(wire.LogisticScore) if field.name in ("threshold", "loss", "clip")]


def process_inputs(method: str) -> dict[str, list[Input]]:
    """The inputs of a method's Gaussian process, by its field; empty without one."""
    models = {"prior": wire.TuningPrior, "search": wire.TuningSearch}
    return {name: inputs(model) for name, model in models.items() if name in METHODS[method].model_fields}


def defaults(method: str, score: str) -> dict[str, object]:
    """The initial values of a form. Assumptions of a guarantee are left empty: only the owner can know them."""
    fields = [*score_inputs(score), *inputs(METHODS[method]), *chain(*process_inputs(method).values())]
    # Simulated neighbours must be 7 / delta or more.
    delta = 0.005 if method == "gp_ucb_simulated" else 1e-6
    return {
        **({"values_0": "0.001, 0.01, 0.1, 1, 10", "scale_0": "log10"} if score == "logistic" else {}),
        **_shown({field.name: field.default for field in fields if field.default is not _NEEDED}),
        **({"loss": "ramp"} if method in LIPSCHITZ else {}),
        "lengthscale": 1.0,
        "epsilon": "1",
        "index_share": "0.5",
        "cap_epsilon": "2",
        "delta": delta,
        "cap_delta": 2 * delta if method in ASSUMING else None,
    }


def _shown(fields: Mapping[str, Any]) -> dict[str, object]:
    """Values of the API as the form shows them: a box that is ticked has ``yes``."""
    shown: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, list):
            shown |= {f"{name}_{option}": "yes" for option in value}
        else:
            shown[name] = value if not isinstance(value, bool) else "yes" if value else None
    return shown


def body_of(form: Form) -> Body:
    """The tuning as the API takes it; faults are added to ``form.errors``."""
    method, is_http = form.get("method"), form.get("score") == "http"
    share = form.get("index_share") or None if METHODS[method].releases_choice else None
    process = {name: _read(form, fields) for name, fields in process_inputs(method).items()}
    return {
        "name": form.text("name", "A name"),
        "grid": _grid(form) if is_http else [_axis(form, 0, "lambda")],
        "score": _read(form, score_inputs(form.get("score"))) | ({"kind": "http"} if is_http else _logistic(form)),
        "validation_dataset_id": form.text("validation", "A dataset"),
        "method": {"name": method, **_read(form, inputs(METHODS[method])), **process},
        "budget": {
            "epsilon": form.text("epsilon", "epsilon"),
            "delta": form.real("delta") if method in ASSUMING else 0.0,
            "index_share": share,
        },
        "caps": {
            "epsilon": form.text("cap_epsilon", "A cap"),
            "delta": form.real("cap_delta", needed=False),
        },
    }


def _read(form: Form, fields: Iterable[Input]) -> Body:
    return {field.name: field.read(form) for field in fields}


def digest(body: Body) -> str:
    """A digest of a tuning as it was typed, so that only the tuning that was shown is started."""
    return sha256(json.dumps(body, sort_keys=True).encode())


# --- the grid ---------------------------------------------------------------------------------------


def axes(form: Form) -> list[int]:
    """Indices of the form's rows that hold a hyper-parameter."""
    return [i for i in range(AXES) if form.get(f"name_{i}") or form.get(f"values_{i}")]


def _grid(form: Form) -> list[Body]:
    indices = axes(form)
    if not indices:
        form.wrong("name_0", "At least one hyper-parameter is needed")
    return [_axis(form, i, form.text(f"name_{i}", "A name")) for i in indices]


def _axis(form: Form, i: int, name: str) -> Body:
    field, values = f"values_{i}", []
    for number in form.text(field, "At least one value").replace(";", ",").split(","):
        try:
            values.append(float(number.replace("_", "?")))  # Python reads 1_000 as a number
        except ValueError:
            values.append(math.nan)
    if not all(math.isfinite(value) for value in values):
        form.errors.setdefault(field, "Write numbers, separated by commas")
        values = []
    return {"name": name, "values": values, "scale": form.get(f"scale_{i}") or "linear"}


# --- the score --------------------------------------------------------------------------------------


def _logistic(form: Form) -> Body:
    features = []
    for i in used(form):
        lower, upper = form.interval(f"lower_{i}", f"upper_{i}", "the smallest")
        features.append({"column": form.get(f"column_{i}"), "lower": lower, "upper": upper})
    if not features:
        form.wrong("use_0", "Choose at least one feature")
    if form.get("loss") == "zero_one" and (form.get("method") in LIPSCHITZ or form.has("use_weights")):
        form.wrong("loss", "This needs a loss that has a slope: ramp, or clipped logistic")
    return {
        "kind": "logistic",
        "training_dataset_id": form.text("training", "A public dataset"),
        "features": features,
        "label": form.text("label", "A column"),
    }


def used(form: Form) -> list[int]:
    """Indices of the columns that are features, in ascending order."""
    indices = (name.removeprefix("use_") for name in form.values if name.startswith("use_"))
    return sorted(int(index) for index in indices if index.isdecimal())


# --- from a field of the API to one of the form -----------------------------------------------------


def field_of(where: str, form: Form) -> str:
    """The form's field for a field of the API, such as ``method.gp_design.prior.lengthscale``."""
    parts = [part for part in where.split(".") if part not in ("logistic", "http", form.get("method"))]
    first, last = parts[0], parts[-1]
    if first == "grid":
        indices = axes(form) if form.get("score") == "http" else [0]
        index = indices[int(parts[1])] if len(parts) > 1 else (indices or [0])[0]
        return f"{parts[2] if len(parts) > 2 else 'values'}_{index}"
    if first == "score" and "features" in parts and len(parts) > 3:
        return f"{'use' if last == 'column' else last}_{used(form)[int(parts[2])]}"
    if first == "caps":
        return f"cap_{last}"
    fields = {"validation_dataset_id": "validation", "training_dataset_id": "training", "kind": "score"}
    whole = {"score": "lower" if form.get("score") == "http" else "label", "method": "whole_grid", "budget": "epsilon"}
    return whole[first] if len(parts) == 1 and first in whole else fields.get(last, last)


# --- like another tuning ----------------------------------------------------------------------------


def like(spec: Mapping[str, Any], columns: Sequence[str]) -> dict[str, object]:
    """The initial values of a form for another tuning like this one; ``columns`` are those of both datasets."""
    score, method, budget = spec["score"], dict(spec["method"]), spec["budget"]
    initial = defaults(method["name"], score["kind"]) | {
        "name": f"{spec['name']} (again)",
        "validation": spec["validation_dataset_id"],
        "score": score["kind"],
        "epsilon": budget["epsilon"],
        "delta": budget["delta"] or None,
        "index_share": budget["index_share"] or "0.5",
        "cap_epsilon": spec["caps"]["epsilon"],
        "cap_delta": spec["caps"]["delta"],
        "method": method.pop("name"),
    }
    for i, axis in enumerate(spec["grid"]):
        values = ", ".join(f"{value:g}" if float(f"{value:g}") == value else repr(value) for value in axis["values"])
        initial |= {f"name_{i}": axis["name"], f"values_{i}": values, f"scale_{i}": axis["scale"]}
    as_they_are = ("label", "threshold", "loss", "clip", "model", "lower", "upper", "reply")
    initial |= {name: value for name, value in score.items() if name in as_they_are}
    initial |= {"training": score.get("training_dataset_id")}
    for feature in score.get("features", []):
        if feature["column"] in columns:
            i = columns.index(feature["column"])
            initial |= {f"use_{i}": "yes", f"lower_{i}": feature["lower"], f"upper_{i}": feature["upper"]}
    process = method.pop("prior", None) or method.pop("search", None) or {}
    return initial | _shown(method | process)
