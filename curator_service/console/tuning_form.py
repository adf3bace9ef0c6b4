"""The form of a tuning, with fields of their own for each method and score, and the tuning that it makes."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from blindopt.audit.merkle_log import sha256
from service_kit.console import Form

AXES = 6
"""Most hyper-parameters that the API takes."""
SCORES = (
    (
        "logistic",
        "Built in: logistic regression",
        "For each lambda it is trained on public records, and scored on the private ones, one by one.",
    ),
    (
        "http",
        "My own program, over HTTP",
        (
            "Any model, with up to six hyper-parameters. The program runs inside your network, at the address that the "
            "curator's settings name (SCORER_URL)."
        ),
    ),
)
METHODS = (
    (
        "grid_exponential",
        "Grid, exponential mechanism",
        "Scores every value and draws one. Worst-case promise: the one to take, unless you know why not.",
    ),
    (
        "gp_design",
        "Gaussian process, fixed design",
        (
            "Scores a sequence fixed beforehand. The promise holds on average over a declared prior: from epsilon "
            "1 or 5, depending on it."
        ),
    ),
    (
        "gp_ucb_simulated",
        "GP-UCB, simulated neighbours",
        "Searches by GP-UCB. The same kind of promise, measured in simulation: from epsilon 5 to 10.",
    ),
    (
        "kusner_1",
        "Kusner et al. (2015), Algorithm 1",
        "To compare with the paper: of no use below epsilon 10. The same kind of promise.",
    ),
    (
        "kusner_2",
        "Kusner et al. (2015), Algorithm 2",
        "Releases the best score alone. The same kind of promise, with two constants that nothing public determines.",
    ),
    (
        "kusner_3",
        "Kusner et al. (2015), Algorithm 3",
        (
            "Releases the best score alone. Worst-case promise, built-in score: useful only where every lambda is 1 "
            "or more and epsilon 10 or more."
        ),
    ),
    (
        "public_weights",
        "Public weights",
        (
            "Releases the best score alone. Worst-case promise, built-in score: for trained weights that are close "
            "together."
        ),
    ),
)
ASSUMING = ("gp_design", "gp_ucb_simulated", "kusner_1", "kusner_2")
"""Rest on a declared prior, and are private but for a delta."""
LIPSCHITZ = ("kusner_3", "public_weights")
"""Rest on convex training: for the built-in score alone, with a loss that has a slope."""
VALUE_ALONE = ("kusner_2", *LIPSCHITZ)
LOSSES = (
    ("zero_one", "Share of wrong labels (zero-one)"),
    ("ramp", "Ramp: (1 - margin) / 2"),
    ("clipped_logistic", "Logistic, clipped"),
)
KERNELS = (
    ("squared_exponential", "squared exponential"),
    ("matern_52", "Matérn 5/2"),
    ("matern_32", "Matérn 3/2"),
    ("matern_12", "Matérn 1/2"),
)
ESTIMATED = ("one_minus_k1", "lengthscale", "scaling", "noise_sd")
_CHOICES = {
    "grid_exponential": ("selection",),
    "gp_design": ("selection", "value_at"),
    "gp_ucb_simulated": ("selection", "value_at"),
    "kusner_1": ("q", "delta_split", "index_bound"),
    "kusner_3": ("form",),
}
Body = dict[str, Any]


def defaults(method: str, score: str) -> dict[str, object]:
    """The initial values of a form. Assumptions of a guarantee are left empty: only the owner can know them."""
    return {
        **({"values_0": "0.001, 0.01, 0.1, 1, 10", "scale_0": "log10"} if score == "logistic" else {}),
        "threshold": 0.5,
        "loss": "zero_one",
        "clip": 1.0,
        "reply": "mean",
        "selection": "permute_and_flip",
        "value_at": "chosen",
        "pairs": 2_000,
        "seed": 0,
        "q": "corrected",
        "delta_split": "corrected",
        "index_bound": "paper",
        "form": "corrected",
        "kernel": "squared_exponential",
        "lengthscale": 1.0,
        "noise_sd": 0.1,
        "noise": "added",
        "evaluations": 100,
        "epsilon": "1",
        "index_share": "0.5",
        "cap_epsilon": "2",
        **({"loss": "ramp"} if method in LIPSCHITZ else {}),
        # Simulated neighbours must be 7 / delta or more.
        "delta": 0.005 if method == "gp_ucb_simulated" else 1e-6,
        "cap_delta": 0.01 if method == "gp_ucb_simulated" else 2e-6 if method in ASSUMING else None,
    }


def body_of(form: Form) -> Body:
    """The tuning as the API takes it; faults are added to ``form.errors``."""
    method, is_http = form.get("method"), form.get("score") == "http"
    assumes = method in ASSUMING
    share = None if method in VALUE_ALONE else form.get("index_share") or None
    return {
        "name": form.text("name", "A name"),
        "grid": _grid(form) if is_http else [_axis(form, 0, "lambda")],
        "score": _http(form) if is_http else _logistic(form),
        "validation_dataset_id": form.text("validation", "A dataset"),
        "method": _method(form, method),
        "budget": {
            "epsilon": form.text("epsilon", "epsilon"),
            "delta": _delta(form) if assumes else 0.0,
            "index_share": share,
        },
        "caps": {
            "epsilon": form.text("cap_epsilon", "A cap"),
            "delta": form.real("cap_delta", needed=False),
        },
    }


def digest(body: Body) -> str:
    """A digest of a tuning as it was typed, so that only the tuning that was shown is started."""
    return sha256(json.dumps(body, sort_keys=True).encode())


def _delta(form: Form) -> float | None:
    delta = form.real("delta")
    if delta is not None and delta <= 0:
        form.wrong("delta", "This method is private but for a delta: write one larger than 0")
    return delta


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
    for part in form.text(field, "At least one value").replace(";", ",").split(","):
        try:
            values.append(float(part.replace("_", "?")))  # Python reads 1_000 as a number
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
    loss = form.get("loss") or "zero_one"
    if loss == "zero_one" and (form.get("method") in LIPSCHITZ or form.has("use_weights")):
        form.wrong("loss", "This needs a loss that has a slope: ramp, or clipped logistic")
    body: Body = {
        "kind": "logistic",
        "training_dataset_id": form.text("training", "A public dataset"),
        "features": features,
        "label": form.text("label", "A column"),
        "threshold": form.real("threshold"),
        "loss": loss,
    }
    return body | ({"clip": form.real("clip")} if loss == "clipped_logistic" else {})


def _http(form: Form) -> Body:
    lower, upper = form.interval("lower", "upper", "the smallest")
    body = {"kind": "http", "model": form.text("model", "A name"), "reply": form.get("reply") or "mean"}
    return body | {"lower": lower, "upper": upper}


def used(form: Form) -> list[int]:
    """Indices of the columns that are features, in ascending order."""
    indices = (name.removeprefix("use_") for name in form.values if name.startswith("use_"))
    return sorted(int(index) for index in indices if index.isdecimal())


# --- the method -------------------------------------------------------------------------------------


def _method(form: Form, name: str) -> Body:
    body: Body = {"name": name} | {key: chosen for key in _CHOICES.get(name, ()) if (chosen := form.get(key))}
    if name in ASSUMING:
        body["prior"] = _search(form) | {
            "one_minus_k1": form.real("one_minus_k1"),
            "noise": form.get("noise") or "added",
            "estimated": [part for part in ESTIMATED if form.has(f"estimated_{part}")],
        }
    if name in LIPSCHITZ:
        body["search"] = _search(form)
    if name == "grid_exponential":
        body["use_weights"] = form.has("use_weights")
    if name == "gp_ucb_simulated":
        body |= {"pairs": form.integer("pairs"), "seed": form.integer("seed")}
    if name == "kusner_2" and form.has("whole_grid"):
        body["whole_grid"] = True
    elif name == "kusner_2":
        body |= {"a": form.real("a"), "tau": form.real("tau"), "last": form.integer("last")}
    return body


def _search(form: Form) -> Body:
    return {
        "kernel": form.get("kernel") or "squared_exponential",
        "lengthscale": form.real("lengthscale"),
        "noise_sd": form.real("noise_sd"),
        "centre": form.real("centre", needed=False),
        "scale": form.real("scale", needed=False),
        "evaluations": form.integer("evaluations"),
    }


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
    kept = ("label", "threshold", "loss", "clip", "model", "lower", "upper")
    initial |= {name: value for name, value in score.items() if name in kept}
    initial |= {"training": score.get("training_dataset_id"), "reply": score.get("reply")}
    for feature in score.get("features", []):
        if feature["column"] in columns:
            i = columns.index(feature["column"])
            initial |= {f"use_{i}": "yes", f"lower_{i}": feature["lower"], f"upper_{i}": feature["upper"]}
    steering = method.pop("prior", None) or method.pop("search", None) or {}
    initial |= {f"estimated_{part}": "yes" for part in steering.pop("estimated", [])}
    for name in ("use_weights", "whole_grid"):
        initial[name] = "yes" if method.pop(name, False) else None
    return initial | method | steering
