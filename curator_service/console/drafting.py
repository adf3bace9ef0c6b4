"""The forms of a new study, step by step, and the study that they make.

What a page derives has inputs of its own: ``hide``, ``hide_share``, ``categories``, ``find``, ``groups``,
``column_error``, ``people_error``, ``budget.uncapped``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import sqrt
from types import MappingProxyType
from typing import Any

from blindopt import wire
from blindopt.formats.numbers import readings
from curator_service.console import groups, private_bounds
from service_kit.console import Form
from service_kit.console.forms import Body

STEPS = (
    ("data", "Dataset"),
    ("features", "Features"),
    ("measurement", "Outcome"),
    ("release", "Release"),
    ("answers", "Answers and limits"),
    ("review", "Review"),
)
NAMES = tuple(name for name, _ in STEPS)
_RELEASE = ("release", "hide", "hide_share", "categories", "exceptions", "find", "groups", "rows_per_person")
_ANSWERS = ("answers", "outcomes", "privacy_unit", "budget", "refine", "kernel", "reply_after_ms")
_STEP_OF = {
    **dict.fromkeys(("dataset_id", "release_of", "processing"), "data"),
    **dict.fromkeys(("name", "features", "pasted", "bounds_file"), "features"),
    **dict.fromkeys(("measurement", "goal", "column_error", "people_error"), "measurement"),
    **dict.fromkeys(_RELEASE, "release"),
    **dict.fromkeys(_ANSWERS, "answers"),
}
ANSWERS_PER_ROW = 5
"""The number of answers about one row that a new study's suggested cap allows."""
DIAL = ("0.1", "0.2", "0.3", "0.5", "0.7", "1", "1.5", "2", "3", "4", "5", "6", "8", "10")
"""The values of epsilon on the dial of the release step; the number field takes any other."""
SMALL_SHARE = 0.05
"""The share of a feature's public range that the release step suggests to hide, to one digit."""
WIDE = 12
"""Up to so many features have a field each for their hidden change; more have a rule, and exceptions from it."""
LITTLE = Decimal("0.000001")
"""The least epsilon of an answer: a cap has to allow one."""
PLANAR_FEATURES_MAX = 20
"""Up to so many features a release needs no delta, whatever epsilon is."""


def step_of(name: str) -> str | None:
    """The step that shows an input, or None."""
    return "release" if name.endswith(".hidden_change") else _STEP_OF.get(name.partition(".")[0])


def carried(form: Form, step: str) -> list[tuple[str, str]]:
    """The values of other steps, for hidden fields of this one."""
    others = ((name, form.all(name)) for name in form.values if step_of(name) not in (None, step))
    return [(name, value) for name, values in others for value in values]


def body_of(form: Form, dataset: wire.DatasetView, upto: str) -> Body:
    """The study from the steps up to ``upto``, inclusive; faults are added to ``form.errors``."""
    steps = NAMES[: NAMES.index(upto) + 1]
    of_groups, hides = groups.is_chosen(form), _choice_of_hide(form)
    without = {name for name in wire.StudyCreate.model_fields if step_of(name) not in steps}
    without |= {"release", "answers", "privacy_unit", "refine"} if of_groups else {"release.sensitivity"}
    without |= {"features.*.hidden_change"} if of_groups or hides != "small" else set()
    without |= {"features.*.scale"} if not of_groups and hides not in ("small", "own") else set()
    without |= {"measurement.noise_variance", "answers.centre", "answers.value_bound"}
    without |= {name for name in ("kernel", "refine") if not form.has(name)}
    if form.get("release.mechanism") in ("auto", "axes"):  # rho decides how many columns there are
        without |= {"release.r"}
    without |= set() if dataset.person_column is None else {"rows_per_person"}  # it is the dataset's
    body = form.read(wire.StudyCreate, without)
    if "features" in steps:
        _check_features(form, body["features"], [column.name for column in dataset.columns])
    if "release" in steps and not of_groups and hides == "small":
        _hide(form, body["features"], dataset)
    if "measurement" in steps:
        form.check_good()
        error = form.real(error_field := _error_field(form), needed=False) or 0.0
        if error < 0:
            form.wrong(error_field, "Must be at least 0")
        body["measurement"]["noise_variance"] = float(f"{error * error:.12g}")
    if "release" in steps and of_groups:
        body |= groups.body_of(form, dataset, list(body["features"]), is_priced="answers" in steps)
        body["budget"] = body.get("budget", {}) | groups.cap(form)
    elif "release" in steps and "epsilon" in body["release"]:
        body["release"]["sensitivity"] = _sensitivity(form, body["features"])
        if body["release"].get("acknowledge_refuted") is False:
            form.wrong("release.acknowledge_refuted", "Needed: this release is not private")
    if "answers" in steps:
        if not of_groups and body["answers"]["mechanism"] != "none":
            body["answers"] |= groups.answer_range(form)
        _check_queries(form)
    return body


def _error_field(form: Form) -> str:
    """The input of a measurement's error, as a standard deviation."""
    return "column_error" if (form.get("measurement.source") or "column") == "column" else "people_error"


def body_so_far(form: Form, dataset: wire.DatasetView, upto: str) -> Body:
    """The same while its step is filled in: the cap on measurements may still be open."""
    body = body_of(form, dataset, upto)
    if not form.get("budget.queries"):
        form.errors.pop("budget.queries", None)
    return body


def _choice_of_hide(form: Form) -> str:
    """The choice of what a release hides; anything else is the first one."""
    return hides if (hides := form.get("hide")) in ("everything", "most", "own") else "small"


def _check_features(form: Form, features: Body, columns: Sequence[str]) -> None:
    if not features:
        form.wrong("features.0.column", "Choose at least one feature")
    for i, feature in features.items():
        if i >= len(columns) or feature["column"] != columns[i]:
            form.wrong(f"features.{i}.column", "The dataset has no such column: choose the features again")
        form.interval(f"features.{i}.lower", f"features.{i}.upper")
        if feature.get("hidden_change") is not None and feature.get("scale") is not None:
            message = "Leave it empty, or the hidden change: that is the unit where it is stated"
            form.wrong(f"features.{i}.scale", message)


def _hide(form: Form, features: Body, dataset: wire.DatasetView) -> None:
    """Hidden changes that no field states: of yes/no columns whose list is ticked, and by the rule of many features."""
    lists = private_bounds.lists(dataset)
    ticked = {name for column in form.all("categories") for name in lists.get(column, [])}
    percent, promise = form.real("hide_share", needed=False), _promise(form)
    if percent is not None and not 0 < percent <= 100:
        form.wrong("hide_share", "Enter a number above 0, and 100 at most")
    for feature in features.values():
        if feature["hidden_change"] is not None or feature["scale"] is not None:
            continue
        if feature["column"] in ticked:
            feature["hidden_change"] = private_bounds.CATEGORY_CHANGES[promise]
        elif percent is not None and feature["lower"] is not None and feature["upper"] is not None:
            feature["hidden_change"] = _share_of(feature, percent)


def _percent(feature: Mapping[str, Any]) -> float:
    share: float = feature["hidden_change"] / (feature["upper"] - feature["lower"])
    return 100 * share


def _share_of(feature: Mapping[str, Any], percent: float) -> float:
    return float(f"{percent * (feature['upper'] - feature['lower']) / 100:.12g}")


def _sensitivity(form: Form, features: Body) -> float | None:
    """Delta in scaled units, from what must not be learned about one record."""
    match _choice_of_hide(form):
        case "everything":
            return _everything(len(features), _promise(form))
        case "most":
            return 1.0
        case "own":
            return form.real("release.sensitivity")
    if all(feature["hidden_change"] is None for feature in features.values()):
        form.wrong("hide", "Enter a change for one feature at least, or choose one of the other two")
    return 1.0


def _promise(form: Form) -> str:
    """The promise that the release step chose, where its mechanism has the choice."""
    has_choice = form.get("release.mechanism") in ("auto", "planar_laplace")
    return "one_feature" if has_choice and form.get("release.promise") == "one_feature" else "euclidean"


def _everything(d: int, promise: str) -> float:
    """The move of a record whose ``d`` features all change over their whole ranges, which are their units."""
    return float(d) if promise == "one_feature" else sqrt(d)


def _check_queries(form: Form) -> None:
    """The owner has to decide on the cap on measurements."""
    if form.has("budget.uncapped") and form.get("budget.queries"):
        form.wrong("budget.queries", "Leave it empty, or do not tick that there is no cap")
    elif not form.has("budget.uncapped") and not form.get("budget.queries"):
        form.wrong("budget.queries", "Enter a whole number, or tick that there is no cap")


def derived(form: Form) -> dict[str, str]:
    """The inputs of what the page derives, by the path in the body."""
    names = {"answers.centre": "outcomes.lower", "answers.value_bound": "outcomes.upper"}
    names["measurement.noise_variance"] = _error_field(form)
    if groups.is_chosen(form):
        return names | groups.DERIVED
    return names | ({"release.sensitivity": "hide"} if form.get("hide") != "own" else {})


def labels(dataset: wire.DatasetView) -> dict[str, str]:
    """What the errors call the fields of each column."""
    parts = {"column": "use", "lower": "smallest", "upper": "largest", "hidden_change": "hidden change"}
    parts["scale"] = "scale"
    columns = list(enumerate(column.name for column in dataset.columns))
    names = {f"features.{i}.{part}": f"{column}, {words}" for i, column in columns for part, words in parts.items()}
    return names | {f"release.cells.parts.{i}": f"{column}, number of parts" for i, column in columns}


# --- initial values ---------------------------------------------------------------------------------


def defaults(dataset: wire.DatasetView | None) -> dict[str, Any]:
    is_public = dataset is not None and dataset.public
    return {
        "dataset_id": dataset.id if dataset else None,
        "measurement.direction": "maximize",
        "measurement.source": "column",
        "goal.kind": "best",
        "measurement.shown": dataset.reading.labels if dataset is not None and dataset.reading is not None else [],
        "find": "record",
        "release.mechanism": "identity" if is_public else "auto",
        "release.epsilon": "2",
        "release.promise": "euclidean",
        "release.r": 10,
        "answers.mechanism": "none" if is_public else "auto",
        "answers.epsilon": "1",
        "answers.plays": "each",
        "privacy_unit": "row",
        "rows_per_person": 1,
        "refine.epsilon": "3",
        "kernel.kind": "squared_exponential",
        "kernel.lengthscale": 0.3,
        "kernel.signal_variance": 1.0,
        "kernel.noise_variance": 0.01,
    }


def again(spec: Mapping[str, Any], dataset: wire.DatasetView) -> Form:
    """The form that makes a study again: its spec, with features by column and what the page derives."""
    index = {column.name: i for i, column in enumerate(dataset.columns)}
    columns = [index[feature["column"]] for feature in spec["features"]]
    shown = groups.shown(spec, columns) | {
        "features": dict(zip(columns, spec["features"], strict=True)),
        "hide": _hides(spec),
        "column_error" if spec["measurement"]["source"] == "column" else "people_error": sqrt(
            spec["measurement"]["noise_variance"]
        )
        or None,
    }
    form = Form.blank(**defaults(dataset))
    form.values.pop("measurement.shown", None)  # those of the spec, which may be none
    if shown["hide"] == "small":
        category = private_bounds.CATEGORY_CHANGES[spec["release"].get("promise", "euclidean")]
        shown |= _hiding(shown["features"], private_bounds.lists(dataset), category)
    form.fill({**spec, **shown})
    form.values.pop("release.acknowledge_refuted", None)  # each time by its owner
    if spec["answers"]["mechanism"] != "none":
        form.fill({"outcomes": groups.ends(spec["answers"])})
    ticked = {name: spec.get(name) is not None for name in ("kernel", "refine")}
    form.fill(ticked | {"budget.uncapped": spec["budget"]["queries"] is None})
    return form


def _hides(spec: Mapping[str, Any]) -> str:
    """The choice of the release step that makes what a study hides."""
    if any(feature.get("hidden_change") is not None for feature in spec["features"]):
        return "small"
    sensitivity, promise = spec["release"].get("sensitivity", 1.0), spec["release"].get("promise", "euclidean")
    if sensitivity in (1.0, _everything(len(spec["features"]), promise)) and not any(
        f.get("scale") for f in spec["features"]
    ):
        return "most" if sensitivity == 1.0 else "everything"
    return "own"


def _hiding(features: Mapping[int, Body], lists: Mapping[str, Sequence[str]], category: float) -> Body:
    """The ticked lists, the rule and the exceptions from it, of which ``_hide`` makes the same hidden changes again."""
    stated = {feature["column"]: feature["hidden_change"] for feature in features.values()}
    changes = {column: {stated[name] for name in names if name in stated} for column, names in lists.items()}
    ticked = [column for column, hidden in changes.items() if hidden == {category}]
    listed = {name for column in ticked for name in lists[column]}
    others = [f for f in features.values() if f["column"] not in listed and f["scale"] is None]
    percents = Counter(float(f"{_percent(f):.12g}") for f in others if f["hidden_change"] is not None)
    is_rule = len(features) > WIDE and sum(percents.values()) == len(others) > 0
    percent = max(percents, key=percents.__getitem__) if is_rule else None
    without = {"hidden_change": None}
    fields = {
        i: f | (without if f["column"] in listed or (percent and f["hidden_change"] == _share_of(f, percent)) else {})
        for i, f in features.items()
    }
    return {"features": fields, "categories": ticked} | ({"hide_share": percent or ""} if len(features) > WIDE else {})


def _suggest_release(form: Form, lists: Mapping[str, Sequence[str]]) -> None:
    chosen = form.items("features", "column")
    if len(chosen) > PLANAR_FEATURES_MAX and not form.get("release.delta"):
        form.values["release.delta"] = ["1e-6"]  # the noise for so many features needs one
    if len(chosen) > WIDE:
        form.values.setdefault("hide_share", [f"{100 * SMALL_SHARE:g}"])
    if "hide" in form.values:
        return
    form.fill({"hide": "small", "categories": list(lists)})
    stated = {name for names in lists.values() for name in names}
    for i in () if form.has("hide_share") else chosen:
        if form.get(f"features.{i}.column") not in stated and (ends := _ends(form, f"features.{i}")) is not None:
            form.values.setdefault(f"features.{i}.hidden_change", [_plain(SMALL_SHARE * (ends[1] - ends[0]))])


def suggest(
    form: Form,
    step: str,
    columns: Sequence[str] = (),
    ranges: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    made: Mapping[str, tuple[str, str, str]] = MappingProxyType({}),
    lists: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Fill in empty fields whose values follow from earlier steps, and bounds: private, of categories, by name."""
    public = private_bounds.suggested(columns) if step == "features" else {}
    for i, column in enumerate(columns if step == "features" else ()):
        lower, upper, hidden = (f"features.{i}.{part}" for part in ("lower", "upper", "hidden_change"))
        if column in made and lower not in form.values:
            form.fill(dict(zip((lower, upper, hidden), made[column], strict=True)))
        ends = ranges.get(column) or public.get(column)
        if ends is not None and lower not in form.values and upper not in form.values:
            form.values[lower], form.values[upper] = ([end] for end in ends)
    if step == "release":
        _suggest_release(form, lists)
    if step == "answers" and not form.get("outcomes.lower") and not form.get("outcomes.upper"):
        if (y := private_y(form, ranges)) is not None:
            form.values["outcomes.lower"], form.values["outcomes.upper"] = ([end] for end in y)
        elif form.get("measurement.source") in ("inbox", "webhook"):
            use_declared_range(form)


def bounded(form: Form, columns: Sequence[str]) -> list[int]:
    return [i for i in range(len(columns)) if all(form.get(f"features.{i}.{end}") for end in ("lower", "upper"))]


def tick_bounded(form: Form, columns: Sequence[str]) -> None:
    """Make a feature of each row in which both bounds were typed since it was shown.

    Bounds that the page filled in, as of a public list, make none. A script ticks rows, and takes this list away.
    """
    if "bounded" in form.values:
        before = {*form.get("bounded").split()}
        for i in bounded(form, columns):
            if str(i) not in before:
                form.values[f"features.{i}.column"] = [columns[i]]


def use_declared_range(form: Form) -> None:
    """Let answers cover the declared range of the outcome, which is public."""
    if _ends(form, "measurement") is not None:
        for end in ("lower", "upper"):
            form.values[f"outcomes.{end}"] = form.all(f"measurement.{end}")


def use_answers(form: Form, epsilon: str) -> None:
    if epsilon == "exact":
        form.values["answers.mechanism"] = ["none"]
        return
    form.values["answers.epsilon"] = [epsilon]
    if form.get("answers.mechanism") in ("", "none"):
        form.values["answers.mechanism"] = ["auto"]


def private_y(form: Form, ranges: Mapping[str, tuple[str, str]]) -> tuple[str, str] | None:
    """The range of a column of y that has private bounds; None for another y."""
    is_column = form.get("measurement.source") == "column"
    return ranges.get(form.get("measurement.column")) if is_column else None


def row_cap(form: Form) -> str | None:
    """The cost of the release and five answers about a row; None if answers are free or other persons'."""
    if groups.is_chosen(form) or form.get("answers.mechanism") in ("", "none") or form.get("privacy_unit") == "answer":
        return None
    try:
        release = Decimal(0) if form.get("release.mechanism") == "identity" else Decimal(form.get("release.epsilon"))
        cap = release + ANSWERS_PER_ROW * Decimal(form.get("answers.epsilon"))
    except ArithmeticError:
        return None
    return format(cap, "f") if cap.is_finite() and cap < groups.EPSILON_END else None


def with_little_answers(form: Form) -> Body:
    """Answers and caps that add ``LITTLE`` to the release, for a form whose step for these is still to come.

    Raises ArithmeticError for a release whose epsilon is no number.
    """
    cap = Decimal(form.get("release.epsilon")) + LITTLE
    answers = {"mechanism": "auto", "epsilon": format(LITTLE, "f"), "value_bound": 1.0}
    return {"answers": answers, "budget": {"epsilon_per_row": format(cap, "f")}}


def _plain(value: float) -> str:
    """A number to one significant digit, as a form takes it."""
    return format(Decimal(f"{value:.1g}"), "f") if 1e-6 < value < 1e9 else f"{value:.1g}"


def _ends(form: Form, name: str) -> tuple[float, float] | None:
    """The bounds that were typed, if they are numbers in order."""
    try:
        (lower,), (upper,) = (readings(form.get(f"{name}.{end}")) for end in ("lower", "upper"))
    except ValueError:  # none, or one that can be read in two ways
        return None
    return (lower, upper) if lower < upper else None
