"""The forms of a new study, step by step, and the study that they make."""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from math import sqrt
from types import MappingProxyType
from typing import Any

from curator_service.console import groups
from service_kit.console import Form

STEPS = (
    ("data", "Dataset"),
    ("features", "Features"),
    ("measurement", "Outcome"),
    ("release", "Release"),
    ("answers", "Answers"),
    ("budget", "Budget"),
    ("review", "Review"),
)
NAMES = tuple(name for name, _ in STEPS)
_OF_STEP = {
    "data": ("name", "dataset_id"),
    "features": ("use_", "lower_", "upper_", "scale_", "pasted", "bounds_file"),
    "measurement": (
        *("direction", "source", "column", "column_noise", "question", "unit"),
        *("y_lower", "y_upper", "y_noise", "due_hours", "shown_"),
    ),
    "release": ("release", "hide", "hidden_change_", "rows_per_person", "find", "parts_", "groups_"),
    "answers": ("answers", "privacy_unit"),
    "budget": ("budget", "kernel", "reply_after_ms"),
}
SOUND = ("auto", "planar_laplace", "gaussian", "gaussian_projection")
WITH_DELTA = ("auto", "planar_laplace", "gaussian", "gaussian_projection", "po_gp_ucb")
ANSWERS_PER_ROW = 5
"""The number of answers about one row that a new study's suggested cap allows."""
WITH_R = ("gaussian_projection", "po_gp_ucb")
DIAL = ("0.1", "0.2", "0.3", "0.5", "0.7", "1", "1.5", "2", "3", "4", "5", "6", "8", "10")
"""The values of epsilon on the dial of the release step; the number field takes any other."""
SMALL_SHARE = 0.05
"""The share of a feature's public range that the release step suggests to hide, to one digit."""
PLANAR_FEATURES_MAX = 20
"""Up to so many features a release needs no delta, whatever epsilon is."""
Body = dict[str, Any]


def step_of(field: str) -> str | None:
    """The step that shows a field, or None."""
    for step, names in _OF_STEP.items():
        for name in names:
            own = field == name or (name.endswith("_") and field.startswith(name))
            if own or (name in ("release", "answers", "budget", "kernel") and field.startswith(f"{name}_")):
                return step
    return None


def carried(form: Form, step: str) -> list[tuple[str, str]]:
    """The values of other steps, for hidden fields of this one."""
    others = ((name, form.all(name)) for name in form.values if step_of(name) not in (None, step))
    return [(name, value) for name, values in others for value in values]


def body_of(form: Form, dataset: Mapping[str, Any], upto: str) -> Body:
    """The study as the API takes it, from the steps up to ``upto``, inclusive; faults are added to ``form.errors``."""
    steps = NAMES[: NAMES.index(upto) + 1]
    body: Body = {"name": form.text("name", "A name"), "dataset_id": dataset["id"]}
    if "features" in steps:
        body["features"] = _features(form, dataset)
    if "measurement" in steps:
        body["measurement"] = _measurement(form, dataset)
    if "release" in steps:
        if groups.is_chosen(form):
            body |= groups.release(form, dataset)
        else:
            body["release"] = _release(form, body["features"])
        if dataset["person_column"] is None:  # else it is the dataset's
            body["rows_per_person"] = form.integer("rows_per_person", needed=False) or 1
    if "answers" in steps:
        body["answers"] = groups.answers(form) if groups.is_chosen(form) else _answers(form)
        body["privacy_unit"] = "row" if groups.is_chosen(form) else form.get("privacy_unit") or "row"
    if "budget" in steps:
        body["budget"] = _budget(form) | groups.cap(form)
        body["kernel"] = _kernel(form) if form.has("kernel") else None
        body["reply_after_ms"] = form.integer("reply_after_ms", needed=False)
    return body


def used(form: Form, dataset: Mapping[str, Any]) -> list[int]:
    """Indices of the columns that are features."""
    return [i for i in range(len(dataset["columns"])) if form.has(f"use_{i}")]


def _features(form: Form, dataset: Mapping[str, Any]) -> list[Body]:
    chosen = used(form, dataset)
    if not chosen:
        form.wrong("use_0", "Choose at least one feature")
    features = []
    for i in chosen:
        column = dataset["columns"][i]["name"]
        lower, upper = form.interval(f"lower_{i}", f"upper_{i}")
        hides = "everything" if groups.is_chosen(form) else form.get("hide") or "small"
        hidden = form.real(f"hidden_change_{i}", needed=False) if hides == "small" else None
        has_scale = hides in ("small", "own") or groups.is_chosen(form)
        scale = form.real(f"scale_{i}", needed=False) if has_scale else None
        if hidden is not None and scale is not None:
            form.wrong(f"scale_{i}", "Leave it empty, or the hidden change: that is the unit where it is stated")
        bounds = {"column": column, "lower": lower, "upper": upper}
        features.append(bounds | {"hidden_change": hidden, "scale": scale})
    return features


def _measurement(form: Form, dataset: Mapping[str, Any]) -> Body:
    source = form.get("source") or "column"
    body: Body = {"source": source, "direction": form.get("direction") or "maximize"}
    if source == "column":
        return body | {
            "column": form.text("column", "A column"),
            "noise_variance": form.real("column_noise", needed=False) or 0.0,
        }
    names = [column["name"] for column in dataset["columns"]]
    body |= {
        "shown": [names[i] for i in range(len(names)) if form.has(f"shown_{i}")],
        "unit": form.get("unit") or None,
        "lower": form.real("y_lower", needed=False),
        "upper": form.real("y_upper", needed=False),
        "noise_variance": form.real("y_noise", needed=False) or 0.0,
        "due_hours": form.real("due_hours", needed=False),
    }
    return body | ({"question": form.text("question", "A question")} if source == "inbox" else {})


def _sensitivity(form: Form, features: Sequence[Mapping[str, Any]]) -> float | None:
    """Delta in scaled units, from what must not be learned about one record."""
    match form.get("hide") or "small":
        case "everything":
            return sqrt(len(features))
        case "most":
            return 1.0
        case "own":
            return form.real("release_sensitivity")
    if all(feature["hidden_change"] is None for feature in features):
        form.wrong("hide", "Enter a change for one feature at least, or choose one of the other two")
    return 1.0


def _release(form: Form, features: Sequence[Mapping[str, Any]]) -> Body:
    mechanism = form.get("release") or "auto"
    body: Body = {"mechanism": mechanism}
    if mechanism == "identity":
        return body
    body["epsilon"] = form.text("release_epsilon", "epsilon")
    body["sensitivity"] = _sensitivity(form, features)
    if mechanism in WITH_DELTA:
        body["delta"] = form.real("release_delta", needed=mechanism not in ("auto", "planar_laplace"))
    if mechanism in WITH_R:
        body["r"] = form.integer("release_r")
    elif mechanism in SOUND:
        body["rotate"] = form.has("release_rotate")
    if mechanism == "po_gp_ucb":
        body["acknowledge_refuted"] = form.has("release_acknowledge_refuted")
        if not form.has("release_acknowledge_refuted"):
            form.wrong("release_acknowledge_refuted", "Needed: this release is not private")
    return body


def _answers(form: Form) -> Body:
    mechanism = form.get("answers") or "auto"
    if mechanism == "none":
        return {"mechanism": mechanism}
    return {
        "mechanism": mechanism,
        "epsilon": form.text("answers_epsilon", "epsilon"),
        "value_bound": form.real("answers_value_bound"),
        "noise_bound": form.real("answers_noise_bound", needed=False) or 0.0,
        "centre": form.real("answers_centre", needed=False) or 0.0,
        "plays": form.get("answers_plays") or "each",
    }


def _budget(form: Form) -> Body:
    return {
        "epsilon_per_row": form.get("budget_epsilon_per_row") or None,
        "epsilon_total": form.get("budget_epsilon_total") or None,
        "queries": _queries(form),
    }


def _queries(form: Form) -> int | None:
    """The cap on measurements, which the owner has to decide on."""
    if form.has("budget_uncapped"):
        if form.get("budget_queries"):
            form.wrong("budget_queries", "Leave it empty, or do not tick that there is no cap")
        return None
    if not form.get("budget_queries"):
        form.wrong("budget_queries", "Enter a whole number, or tick that there is no cap")
    return form.integer("budget_queries", needed=False)


def _kernel(form: Form) -> Body:
    return {
        "kind": form.get("kernel_kind") or "squared_exponential",
        "lengthscale": form.real("kernel_lengthscale"),
        "signal_variance": form.real("kernel_signal_variance"),
        "noise_variance": form.real("kernel_noise_variance"),
        "mean": form.real("kernel_mean", needed=False) or 0.0,
    }


# --- from a field of the API to one of the form -----------------------------------------------------


def field_of(where: str, form: Form, dataset: Mapping[str, Any]) -> str:
    """The form's field for a field of the API, such as ``release.gaussian.epsilon``."""
    parts = where.split(".")
    first, last = parts[0], parts[-1]
    if groups.is_chosen(form) and (own := groups.field_of(where, form, used(form, dataset))) is not None:
        return own
    if first == "features" and len(parts) > 2:
        index = used(form, dataset)[int(parts[1])]
        return f"{last if last in ('lower', 'upper', 'hidden_change', 'scale') else 'use'}_{index}"
    if first == "measurement":
        is_column = (form.get("source") or "column") == "column"
        fields = {"lower": "y_lower", "upper": "y_upper", "shown": "source"}
        fields["noise_variance"] = "column_noise" if is_column else "y_noise"
        return fields.get(last, last)
    if first in ("release", "answers"):
        if last == "sensitivity" and form.get("hide") != "own":
            return "hide"
        return first if last in (first, "mechanism") else f"{first}_{last}"
    return f"{first}_{last}" if first in ("budget", "kernel") and last != first else first


def labels(dataset: Mapping[str, Any]) -> dict[str, str]:
    """What the errors call the fields of each column."""
    parts = {"use": "use", "lower": "smallest", "upper": "largest", "hidden_change": "hidden change", "scale": "scale"}
    parts["parts"] = "number of parts"
    columns = enumerate(column["name"] for column in dataset["columns"])
    return {f"{part}_{i}": f"{column}, {words}" for i, column in columns for part, words in parts.items()}


# --- initial values ---------------------------------------------------------------------------------


def defaults(dataset: Mapping[str, Any] | None) -> dict[str, object]:
    """The initial values of a new study: a sound mechanism and a small epsilon."""
    is_public = dataset is not None and dataset["public"]
    return {
        "dataset_id": dataset["id"] if dataset else None,
        "direction": "maximize",
        "source": "column",
        "find": "record",
        "release": "identity" if is_public else "auto",
        "release_epsilon": "2",
        "release_r": 10,
        "answers": "none" if is_public else "auto",
        "answers_epsilon": "1",
        "answers_plays": "each",
        "privacy_unit": "row",
        "rows_per_person": 1,
        "kernel_kind": "squared_exponential",
        "kernel_lengthscale": 0.3,
        "kernel_signal_variance": 1.0,
        "kernel_noise_variance": 0.01,
    }


def like(spec: Mapping[str, Any], dataset: Mapping[str, Any]) -> dict[str, object]:
    """The initial values of a form that makes the same study again."""
    index = {column["name"]: i for i, column in enumerate(dataset["columns"])}
    values: dict[str, object] = defaults(dataset) | {"name": spec["name"]}
    for feature in spec["features"]:
        i = index[feature["column"]]
        values |= {f"use_{i}": "yes", f"lower_{i}": feature["lower"], f"upper_{i}": feature["upper"]}
        values |= {f"{name}_{i}": feature.get(name) for name in ("hidden_change", "scale")}
    measured = dict(spec["measurement"])
    values |= {name: measured.get(name) for name in ("direction", "source", "column", "question", "unit", "due_hours")}
    noise = "column_noise" if measured["source"] == "column" else "y_noise"
    values |= {"y_lower": measured.get("lower"), "y_upper": measured.get("upper"), noise: measured["noise_variance"]}
    values |= {f"shown_{index[name]}": "yes" for name in measured.get("shown", [])}
    for part in ("release", "answers"):
        values[part] = spec[part]["mechanism"]
        values |= {
            f"{part}_{k}": v for k, v in spec[part].items() if not isinstance(v, bool | dict) and k != "mechanism"
        }
    values["hide"] = _hides(spec)
    values["release_rotate"] = "yes" if spec["release"].get("rotate") else None
    values |= {f"budget_{name}": value for name, value in spec["budget"].items()}
    values |= {"budget_uncapped": "yes"} if spec["budget"].get("queries") is None else {}
    if spec["kernel"] is not None:
        values |= {f"kernel_{name}": value for name, value in spec["kernel"].items()} | {"kernel": "yes"}
    values |= {name: spec[name] for name in ("privacy_unit", "rows_per_person", "reply_after_ms")}
    return values | groups.like(spec, [index[feature["column"]] for feature in spec["features"]])


def _hides(spec: Mapping[str, Any]) -> str:
    """The choice of the release step that makes what a study hides."""
    if any(feature.get("hidden_change") is not None for feature in spec["features"]):
        return "small"
    sensitivity = spec["release"].get("sensitivity", 1.0)
    if sensitivity in (1.0, sqrt(len(spec["features"]))) and not any(f.get("scale") for f in spec["features"]):
        return "most" if sensitivity == 1.0 else "everything"
    return "own"


def _suggest_release(form: Form, columns: int) -> None:
    """Fill in what the release step suggests, from public values alone."""
    chosen = [i for i in range(columns) if form.has(f"use_{i}")]
    if len(chosen) > PLANAR_FEATURES_MAX and not form.get("release_delta"):
        form.values["release_delta"] = ["1e-6"]  # the noise for so many features needs one
    if "hide" in form.values:
        return
    form.values["hide"] = ["small"]
    for i in chosen:
        lower, upper = (_number(form.get(f"{end}_{i}")) for end in ("lower", "upper"))
        if f"hidden_change_{i}" not in form.values and lower is not None and upper is not None and lower < upper:
            form.values[f"hidden_change_{i}"] = [_plain(SMALL_SHARE * (upper - lower))]


def suggest(
    form: Form,
    step: str,
    columns: Sequence[str] = (),
    ranges: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    made: Mapping[str, tuple[str, str, str]] = MappingProxyType({}),
) -> None:
    """Fill in empty fields whose values follow from earlier steps, and bounds: private ``ranges``, ``encoded`` ones."""
    if step == "features":
        for i, column in enumerate(columns):
            if column in made and f"lower_{i}" not in form.values:
                parts = zip(("lower", "upper", "hidden_change"), made[column], strict=True)
                form.values.update({f"{part}_{i}": [text] for part, text in parts})
            if column in ranges and f"lower_{i}" not in form.values and f"upper_{i}" not in form.values:
                form.values[f"lower_{i}"], form.values[f"upper_{i}"] = ([end] for end in ranges[column])
    if step == "release":
        _suggest_release(form, len(columns))
    if step == "answers" and not form.get("answers_value_bound") and (y := private_y(form, ranges)) is not None:
        form.values["answers_centre"], form.values["answers_value_bound"] = ([end] for end in y)
    if step == "answers" and not form.get("answers_value_bound"):
        lower, upper = (_number(form.get(name)) for name in ("y_lower", "y_upper"))
        if form.get("source") in ("inbox", "webhook") and lower is not None and upper is not None and lower < upper:
            form.values["answers_centre"] = [repr((lower + upper) / 2)]
            form.values["answers_value_bound"] = [repr((upper - lower) / 2)]


def private_y(form: Form, ranges: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    """Centre and value bound of a column of y that has private bounds; None for another y."""
    if form.get("source") != "column" or form.get("column") not in ranges:
        return None
    lower, upper = map(float, ranges[form.get("column")])
    return repr((lower + upper) / 2), repr((upper - lower) / 2)


def row_cap(form: Form) -> str | None:
    """The cost of the release and five answers about a row; None if answers are free or other persons'."""
    if groups.is_chosen(form) or form.get("answers") in ("", "none") or form.get("privacy_unit") == "answer":
        return None
    try:
        release = Decimal(0) if form.get("release") == "identity" else Decimal(form.get("release_epsilon"))
        cap = release + ANSWERS_PER_ROW * Decimal(form.get("answers_epsilon"))
    except InvalidOperation:
        return None
    return format(cap, "f") if cap.is_finite() else None


def _plain(value: float) -> str:
    """A number to one significant digit, as a form takes it."""
    return format(Decimal(f"{value:.1g}"), "f") if 1e-6 < value < 1e9 else f"{value:.1g}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
