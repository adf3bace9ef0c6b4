"""What a new study's form holds before anything is typed there."""

import json

import pytest

from blindopt import wire
from curator_service.console.drafting import PLANAR_FEATURES_MAX, again, body_of, derived, row_cap, suggest
from curator_service.console.private_bounds import encoded, fill_in, lists
from curator_service.privacy import noise
from service_kit.console import Form
from service_kit.console.forms import filled_in, input_of, sent

AUTO = {"release.mechanism": "auto", "release.epsilon": "2"}
ANSWERED = {"answers.mechanism": "auto", "answers.epsilon": "1"}


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        (AUTO | ANSWERED | {"answers.epsilon": "0.3"}, "3.5"),
        (ANSWERED | {"release.mechanism": "identity", "answers.mechanism": "laplace"}, "5"),
        (AUTO | {"answers.mechanism": "none"}, None),
        (AUTO, None),
        (ANSWERED | {"release.epsilon": "2", "privacy_unit": "answer"}, None),
        (ANSWERED | {"release.epsilon": "two"}, None),
        (ANSWERED | {"release.epsilon": "inf"}, None),
    ],
)
def test_the_cap_of_a_row_leaves_room_for_the_release_and_five_answers(fields, cap):
    assert row_cap(Form.blank(**fields)) == cap


def test_the_cap_on_measurements_is_decided_on_and_never_filled_in():
    """Found by hand: 100 stood in the box, a run takes 55, and the second run died."""
    form = Form.blank(**ANSWERED | {"release.epsilon": "2"})
    suggest(form, "answers")
    assert not [name for name in form.values if name.startswith("budget")]
    budgets = [
        ({}, None, True),
        ({"budget.queries": "7"}, 7, False),
        ({"budget.uncapped": "yes"}, None, False),
        ({"budget.uncapped": "yes", "budget.queries": "7"}, None, True),
    ]
    for typed, queries, is_wrong in budgets:
        form = Form.blank(**STATED | typed | {"answers.mechanism": "none"})
        body = body_of(form, DATASET, "answers")
        assert ("budget.queries" in form.errors, is_wrong or body["budget"]["queries"] == queries) == (is_wrong, True)


@pytest.mark.parametrize(
    ("typed", "is_wrong"),
    [({}, True), ({"threshold": "7"}, False), ({"share": "0.1"}, False), ({"threshold": "7", "share": "0.1"}, True)],
)
def test_what_counts_as_good_is_asked_for_at_its_step(typed, is_wrong):
    goal = {f"goal.{name}": value for name, value in typed.items()}
    form = Form.blank(**STATED | {"goal.kind": "many"} | goal)
    body_of(form, DATASET, "measurement")
    assert list(form.errors) == (["goal.threshold"] if is_wrong else [])
    form = Form.blank(**STATED | {"goal.kind": "best"} | goal)
    body_of(form, DATASET, "measurement")
    assert form.ok  # the control: the best record needs none


def a_dataset(*names, **more):
    columns = [wire.Column(name=name, minimum=0.0, maximum=1.0) for name in names]
    return wire.DatasetView.model_construct(id="ds_1", columns=columns, public=False, **more)


DATASET = a_dataset("kg", "m")
STATED = {
    "name": "s", "dataset_id": "ds_1", "measurement.direction": "maximize", "measurement.column": "y",
    "features.0.column": "kg", "features.0.lower": "0", "features.0.upper": "120",
    "features.1.column": "m", "features.1.lower": "0", "features.1.upper": "2",
    "release.mechanism": "auto", "release.epsilon": "1", "release.sensitivity": "0.25",
}  # fmt: skip


def test_changes_that_are_stated_as_hidden_set_delta_to_one():
    form = Form.blank(**STATED | {"features.0.hidden_change": "1.5"})
    body = body_of(form, DATASET, "release")
    assert form.ok
    assert [(f.get("hidden_change"), f["scale"]) for f in body["features"].values()] == [(1.5, None), (None, None)]
    assert body["release"]["sensitivity"] == 1.0
    assert input_of("features.0.hidden_change", body, derived(form)) == "features.0.hidden_change"


def test_without_one_the_release_step_states_delta():
    form = Form.blank(**STATED | {"features.0.scale": "3", "hide": "own"})
    body = body_of(form, DATASET, "release")
    assert (body["features"][0]["scale"], body["release"]["sensitivity"]) == (3.0, 0.25)


def test_a_hidden_change_and_a_scale_of_one_feature_are_wrong():
    form = Form.blank(**STATED | {"features.1.hidden_change": "0.1", "features.1.scale": "3"})
    body_of(form, DATASET, "features")
    assert list(form.errors) == ["features.1.scale"]


@pytest.mark.parametrize(
    ("hide", "sensitivity", "stated"), [("most", 1.0, None), ("everything", 2**0.5, None), ("small", 1.0, 3.0)]
)
def test_what_nobody_must_find_out_sets_delta(hide, sensitivity, stated):
    form = Form.blank(**STATED | {"hide": hide, "features.0.hidden_change": "3", "features.1.scale": ""})
    body = body_of(form, DATASET, "release")
    assert form.ok
    assert (body["release"]["sensitivity"], body["features"][0].get("hidden_change")) == (sensitivity, stated)


def test_small_differences_need_one_change_at_least():
    form = Form.blank(**STATED | {"hide": "small"})
    body = body_of(form, DATASET, "release")
    assert "hide" in form.errors
    assert input_of("release.sensitivity", body, derived(form)) == "hide"


def test_the_release_step_suggests_a_twentieth_of_each_range_and_a_delta_for_many_features_alone():
    form = Form.blank(**STATED)
    suggest(form, "release", ["kg", "m"])
    names = ("hide", "features.0.hidden_change", "features.1.hidden_change")
    assert [form.get(name) for name in names] == ["small", "6", "0.1"]
    assert form.get("release.delta") == ""
    form = Form.blank(**STATED | {"hide": "most", "features.0.hidden_change": ""})
    suggest(form, "release", ["kg", "m"])
    assert (form.get("hide"), form.get("features.0.hidden_change")) == ("most", "")
    wide = Form.blank(**{f"features.{i}.column": "x" for i in range(PLANAR_FEATURES_MAX + 1)})
    suggest(wide, "release", [str(i) for i in range(PLANAR_FEATURES_MAX + 1)])
    assert wide.get("release.delta") == "1e-6"
    assert PLANAR_FEATURES_MAX == noise.PLANAR_FEATURES_MAX


WIDE = a_dataset(
    *("carat", "table", "cut=Good", "cut=Ideal", "clarity"),
    reading=wire.FileReading(
        separator=",",
        decimal=".",
        columns=[
            wire.ColumnChoice(column="carat"),
            wire.ColumnChoice(column="cut", kind="one_hot", values=["Good", "Ideal"]),
            wire.ColumnChoice(column="clarity", kind="codes", values=list("abcd"), missing="fill", fill=-1.0),
        ],
    ),
)


@pytest.mark.parametrize(
    "text",
    [
        "name,smallest,largest,hidden\ncarat,0,5,0.5\ntable,40,90\n",
        "carat;0;5;0,5\n\ntable;40;90\n",
        "carat\t0\t5\t0.5\r\ntable\t40\t90\t\r\n",
    ],
)
@pytest.mark.parametrize("file", [False, True])
def test_bounds_of_a_text_or_a_file_fill_in_the_features_that_they_name(text, file):
    form = Form.blank(pasted="not read" if file else text, features={0: {"lower": 7}, 4: {"upper": 1}})
    fill_in(form, WIDE, b"\xef\xbb\xbf" + text.encode() if file else None)
    assert form.ok, form.errors
    assert {name: form.get(name) for name in form.values} == {
        "features.0.column": "carat",
        "features.0.lower": "0",
        "features.0.upper": "5",
        "features.0.hidden_change": "0.5",
        "features.1.column": "table",
        "features.1.lower": "40",
        "features.1.upper": "90",
        "features.4.upper": "1",
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("carat,0,5\ntabel,1,2", 'Line 2: no column "tabel"; did you mean "table"?'),
        ("zebra,1,2", 'Line 1: no column "zebra" in this dataset'),
        ("carat,0", "Line 1: write a name and two numbers"),
        ("carat,0,x", "Line 1: write a name and two numbers"),
        ("carat;1,034;5", "1,034 is 1.034 or 1034: write it so that it can be read in one way"),
        ('carat,"0', "Write name, smallest, largest on each line"),
    ],
)
def test_what_cannot_be_read_of_bounds_is_named_by_its_line(text, fault):
    form = Form.blank(pasted=text)
    fill_in(form, WIDE, None)
    assert form.errors["pasted"].startswith(fault)
    assert form.get("pasted") == text
    fill_in(form := Form.blank(), WIDE, text.encode())
    assert form.errors["bounds_file"].startswith(fault)


def test_columns_made_from_categories_have_public_bounds():
    assert encoded(WIDE) == {**dict.fromkeys(("cut=Good", "cut=Ideal"), ("0", "1", "")), "clarity": ("-1", "4", "5")}
    form = Form.blank(features={2: {"lower": 0.5}})
    suggest(form, "features", [column.name for column in WIDE.columns], made=encoded(WIDE))
    assert {
        name: form.get(name) for name in form.values if name.startswith(("features.0", "features.2", "features.3"))
    } == {
        "features.2.lower": "0.5",
        "features.3.lower": "0",
        "features.3.upper": "1",
        "features.3.hidden_change": "",
    }
    assert encoded(a_dataset()) == {}


def test_one_tick_hides_which_category_a_record_has():
    """Another category moves two columns by 1 each: sqrt(2), which a hidden change of 1.42 is one unit of."""
    columns = {f"features.{i}.column": column.name for i, column in enumerate(WIDE.columns)}
    ends = {f"features.{i}.{end}": value for i in range(5) for end, value in (("lower", "0"), ("upper", "1"))}
    form = Form.blank(**STATED | columns | ends)
    suggest(form, "release", lists=lists(WIDE))
    assert form.all("categories") == ["cut"]

    def hidden():
        changes = [feature["hidden_change"] for feature in body_of(form, WIDE, "release")["features"].values()]
        assert form.ok, form.errors
        return changes

    assert hidden() == [0.05, 0.05, 1.42, 1.42, 0.05]
    assert 1.42 > 2**0.5
    form.fill({"features.2.hidden_change": "2"})
    assert hidden()[2:4] == [2.0, 1.42]  # what is typed goes before
    form.fill({"features.2.hidden_change": "", "release.promise": "one_feature"})
    assert hidden() == [0.05, 0.05, 2.0, 2.0, 0.05]  # two changes by 1 each add up to 1
    form.fill({"features.2.hidden_change": "2", "release.promise": "euclidean"})
    del form.values["categories"]
    assert hidden()[2:4] == [2.0, None]


COUNT = 400
BROAD = a_dataset(*(f"c{i}" for i in range(COUNT)))
RANGES = [0.1 * 3 ** (i % 7) for i in range(COUNT)]


def broad(**more):
    inputs = {name: STATED[name] for name in STATED if not name.startswith("features")}
    for i in range(COUNT):
        inputs |= {f"features.{i}.column": f"c{i}", f"features.{i}.lower": "0", f"features.{i}.upper": repr(RANGES[i])}
    return Form.blank(**inputs | more)


def test_one_rule_for_400_features_makes_the_study_of_400_fields():
    ruled, typed = broad(), broad(hide="small", hide_share="", **{"features.3.hidden_change": "0.5"})
    suggest(ruled, "release")
    suggest(typed, "release")
    assert [name for name in ruled.values if name.endswith("hidden_change")] == []
    assert ruled.get("hide_share") == "5"
    for i, range_ in enumerate(RANGES):
        typed.values.setdefault(f"features.{i}.hidden_change", [filled_in(float(f"{0.05 * range_:.6g}"))])
    ruled.fill({"exceptions": "c3, 0.5"})
    fill_in(ruled, BROAD, None, "exceptions")
    bodies = [json.dumps(sent(body_of(form, BROAD, "release"))) for form in (ruled, typed)]
    assert (ruled.errors, typed.errors) == ({}, {})
    assert bodies[0] == bodies[1]
    ruled.fill({"hide_share": "7"})
    assert json.dumps(sent(body_of(ruled, BROAD, "release"))) != bodies[1]


@pytest.mark.parametrize("percent", ["0", "-1", "100.5", "nan", "x"])
def test_a_rule_that_is_no_part_of_a_range_is_wrong_at_its_field(percent):
    form = broad(hide_share=percent)
    body_of(form, BROAD, "release")
    assert next(iter(form.errors)) == "hide_share"


@pytest.mark.parametrize(("line", "fault"), [("c5", "write a name and one number"), ("x, 1", 'no column "x"')])
def test_what_cannot_be_read_of_exceptions_is_named_by_its_line(line, fault):
    form = broad(exceptions=f"c1, 1\n{line}")
    del form.values["features.4.column"]
    fill_in(form, BROAD, None, "exceptions")
    assert form.errors["exceptions"].startswith("Line 2: ")
    assert fault in form.errors["exceptions"]
    fill_in(unused := broad(exceptions="c400, 1"), BROAD, None, "exceptions")
    assert "no column" in unused.errors["exceptions"]


@pytest.mark.parametrize(
    ("changes", "rule", "exceptions"),
    [
        (lambda i: float(f"{0.05 * RANGES[i]:.12g}"), "5", set()),
        (lambda i: 0.31 if i == 9 else float(f"{0.03 * RANGES[i]:.12g}"), "3", {9}),
        (lambda i: None if i == 9 else 0.01, "", set(range(COUNT)) - {9}),
    ],
)
def test_the_rule_of_a_stored_study_with_400_features_makes_its_bytes_again(changes, rule, exceptions):
    columns = enumerate(BROAD.columns)
    features = [
        {"column": c.name, "lower": 0.0, "upper": RANGES[i], "hidden_change": changes(i), "scale": None}
        for i, c in columns
    ]
    stored = json.dumps(features)
    draft = {"name": "a", "dataset_id": "ds_1", "features": features, "release": GAUSSIAN, "budget": {"queries": 7}}
    draft |= {"measurement": {"direction": "maximize", "column": "y"}, "answers": {"mechanism": "none"}}
    study = wire.StudyCreate.model_validate_json(json.dumps(draft))
    form = again(study.model_dump(mode="json"), BROAD)
    assert form.get("hide_share") == rule
    assert {i for i in range(COUNT) if form.get(f"features.{i}.hidden_change")} == exceptions
    remade = wire.StudyCreate.model_validate_json(json.dumps(sent(body_of(form, BROAD, "answers"))))
    assert form.ok, form.errors
    assert remade.model_dump_json() == study.model_dump_json()
    assert stored == json.dumps(features)


GROUPS = STATED | {
    "find": "groups", "groups.epsilon": "1", "groups.again": "1",
    "release.cells.parts.0": "20", "release.cells.parts.1": "10",
    "outcomes.lower": "3", "outcomes.upper": "7", "budget.queries": "50",
    "features.0.hidden_change": "3", "features.1.scale": "2", "privacy_unit": "answer",
}  # fmt: skip


def test_one_epsilon_of_a_study_of_groups_is_halved_and_the_cap_on_a_record_is_all_of_it():
    form = Form.blank(**GROUPS)
    body = body_of(form, DATASET, "answers")
    assert form.ok, form.errors
    assert body["release"] == {
        "mechanism": "groups",
        "epsilon": "0.5",
        "cells": {"kind": "grid", "parts": {0: 20, 1: 10}},
        "min_count": 22,  # 4 log(200) is 21.2
    }
    assert (body["answers"]["mechanism"], body["answers"]["epsilon"], body["privacy_unit"]) == ("laplace", "0.5", "row")
    assert body["budget"] == {"epsilon_per_row": "1", "epsilon_total": None, "queries": 50}
    assert [(f.get("hidden_change"), f["scale"]) for f in body["features"].values()] == [(None, None), (None, 2.0)]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ({"groups.epsilon": "1", "groups.share": "0.2"}, ("0.2", "0.8")),
        ({"groups.epsilon": "1", "groups.again": "3"}, ("0.5", "0.166666")),  # never more than the whole
        ({"groups.epsilon": "0.3", "groups.again": "2"}, ("0.15", "0.075")),
    ],
)
def test_epsilon_is_divided_as_it_was_chosen(typed, expected):
    body = body_of(Form.blank(**GROUPS | typed), DATASET, "answers")
    assert (body["release"]["epsilon"], body["answers"]["epsilon"]) == expected


def test_centres_take_the_place_of_parts():
    form = Form.blank(**GROUPS | {"release.cells.kind": "centres", "release.cells.centres": "60; 1,5\n\n70;0,5\n"})
    body = body_of(form, DATASET, "answers")
    assert body["release"]["cells"] == {"kind": "centres", "centres": [[60.0, 1.5], [70.0, 0.5]]}
    wrong = Form.blank(**GROUPS | {"release.cells.kind": "centres", "release.cells.centres": "60; 1.5\n70; here"})
    body_of(wrong, DATASET, "answers")
    assert wrong.errors["release.cells.centres"].startswith("Line 2")


def test_centres_from_the_records_have_their_share():
    form = Form.blank(
        **GROUPS | {"release.cells.kind": "private", "release.cells.number": "50", "groups.centre_share": "0.3"}
    )
    body = body_of(form, DATASET, "answers")
    assert body["release"] == {
        "mechanism": "groups",
        "epsilon": "0.5",
        "cells": {"kind": "private", "number": 50, "epsilon": "0.15"},
        "min_count": 23,  # 2 / 0.35 log(50) is 22.4
    }
    assert input_of("release.cells.number", body, derived(form)) == "release.cells.number"
    assert input_of("release.cells.epsilon", body, derived(form)) == "groups.centre_share"


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (
            {"release.cells.kind": "private", "release.cells.number": "9", "groups.centre_share": "1"},
            "groups.centre_share",
        ),
        ({"release.cells.kind": "private", "release.cells.number": "x"}, "release.cells.number"),
        ({"groups.epsilon": "none"}, "groups.epsilon"),
        ({"groups.epsilon": "inf"}, "groups.epsilon"),
        ({"groups.epsilon": "0"}, "groups.epsilon"),
        ({"groups.epsilon": "1e30"}, "groups.epsilon"),
        ({"groups.share": "1"}, "groups.share"),
        ({"groups.share": "half"}, "groups.share"),
        ({"groups.share": "nan"}, "groups.share"),
        ({"groups.again": "-1"}, "groups.again"),
        ({"release.cells.parts.1": ""}, "release.cells.parts.1"),
    ],
)
def test_what_is_wrong_with_groups_is_said_at_its_field(typed, field):
    form = Form.blank(**GROUPS | typed)
    body_of(form, DATASET, "answers")
    assert list(form.errors) == [field]


def test_a_study_whose_y_is_no_column_is_not_one_of_groups():
    people = {"measurement.source": "inbox", "measurement.question": "How tall?"}
    fields = GROUPS | people | {"release.epsilon": "1", "hide": "most"}
    assert body_of(Form.blank(**fields), DATASET, "release")["release"]["mechanism"] == "auto"


@pytest.mark.parametrize(
    ("where", "field"),
    [
        ("release.epsilon", "groups.epsilon"),
        ("answers.epsilon", "groups.epsilon"),
        ("budget.epsilon_per_row", "groups.epsilon"),
        ("release.cells.parts", "release.cells.parts.0"),
        ("release.min_count", "release.min_count"),
        ("answers.value_bound", "outcomes.upper"),
        ("measurement.noise_variance", "column_error"),
    ],
)
def test_errors_of_the_api_about_groups_stand_at_their_fields(where, field):
    form = Form.blank(**GROUPS)
    assert input_of(where, body_of(form, DATASET, "answers"), derived(form)) == field


# --- a stored study -------------------------------------------------------------------------------------

FEATURES = [
    {"column": "m", "lower": 0.0, "upper": 2.5, "hidden_change": 0.125},
    {"column": "kg", "lower": -1e-5, "upper": 120.0},
]  # not in the order of the dataset
SCALED = [{"column": "kg", "lower": 0.0, "upper": 9.0, "scale": 0.1}, {"column": "m", "lower": 0.0, "upper": 1.0}]
PLAIN = [{"column": "kg", "lower": 0.0, "upper": 9.0}, {"column": "m", "lower": 0.0, "upper": 1.0}]
PEOPLE = {"direction": "minimize", "source": "inbox", "question": "How\ntall?", "shown": ["m", "kg"], "unit": "cm"}
SYSTEM = {"direction": "maximize", "source": "webhook", "shown": ["m"], "lower": 1.0, "noise_variance": 0.25}
PRICED = {"epsilon": "0.3", "value_bound": 3.5, "noise_bound": 0.5, "centre": -2.0, "plays": "mean"}
GAUSSIAN = {"mechanism": "gaussian", "epsilon": "1.25", "delta": 1e-7, "rotate": True}
PROJECTED = {"mechanism": "gaussian_projection", "epsilon": "1", "delta": 1e-6, "r": 1, "sensitivity": 0.7}
KERNEL = {"kind": "matern_32", "lengthscale": 0.2, "signal_variance": 2.0, "noise_variance": 1e-4, "mean": 5.0}


def _of_groups(**cells):
    release = {"mechanism": "groups", "epsilon": "0.5", "min_count": 7, "cells": cells}
    answers = {"mechanism": "laplace", "epsilon": "0.25", "value_bound": 3.0, "centre": 1.0}
    caps = {"epsilon_per_row": "1", "epsilon_total": "7", "queries": 9}
    return {"features": PLAIN, "release": release, "answers": answers, "budget": caps}


STUDIES = {
    "column": {},
    "noisy column": {"measurement": {"direction": "minimize", "column": "y", "noise_variance": 0.5}},
    "people": {"measurement": PEOPLE | {"upper": 1e6, "due_hours": 1.5}, "privacy_unit": "answer"},
    "system": {"measurement": SYSTEM, "rows_per_person": 4, "reply_after_ms": 250},
    "scales": {"features": SCALED, "release": PROJECTED},
    "whole range": {"features": PLAIN, "release": GAUSSIAN},
    "everything": {"features": PLAIN, "release": GAUSSIAN | {"sensitivity": 2**0.5}},
    "planar": {"release": {"mechanism": "planar_laplace", "epsilon": "0.000001", "delta": 1e-9}},
    "one feature": {"release": {"mechanism": "auto", "epsilon": "1", "promise": "one_feature"}},
    "everything, one feature": {
        "release": {"mechanism": "planar_laplace", "epsilon": "1", "sensitivity": 2.0, "promise": "one_feature"},
        "features": PLAIN,
    },
    "auto axes": {"release": {"epsilon": "2", "delta": 1e-6, "sample_dataset_id": "ds_2"}},
    "private axes": {"release": {"mechanism": "axes", "epsilon": "2", "delta": 1e-6, "axes": "private", "radius": 7.5}},
    "refuted": {"release": PROJECTED | {"mechanism": "po_gp_ucb", "acknowledge_refuted": True}, "features": SCALED},
    "nothing": {"release": {"mechanism": "identity"}, "answers": {"mechanism": "none"}, "features": PLAIN},
    **{name: {"answers": PRICED | {"mechanism": name}} for name in ("auto", "laplace", "one_bit", "piecewise")},
    "second draws": {"refine": {"epsilon": "2.5", "persons": 40}},
    "caps and kernel": {"budget": {"epsilon_per_row": "3", "epsilon_total": "9.5"}, "kernel": KERNEL},
    "grid": _of_groups(kind="grid", parts=[4, 2]),
    "grid in another order": _of_groups(kind="grid", parts=[4, 2]) | {"features": PLAIN[::-1]},
    "centres": _of_groups(kind="centres", centres=[[0.5, 1.0], [1e-7, 0.3333333333]]),
    "private centres": _of_groups(kind="private", number=12, epsilon="0.2"),
}


@pytest.mark.parametrize("changes", STUDIES.values(), ids=STUDIES)
def test_the_form_of_a_stored_study_makes_that_study_again(changes):
    draft = {"name": "a study", "dataset_id": "ds_1", "features": FEATURES, "budget": {"queries": 7}}
    draft |= {"measurement": {"direction": "maximize", "column": "y"}, "release": GAUSSIAN}
    study = wire.StudyCreate.model_validate_json(json.dumps(draft | {"answers": {"mechanism": "none"}} | changes))
    form = again(study.model_dump(mode="json"), DATASET)
    if changes.get("release", {}).get("mechanism") == "po_gp_ucb":  # each time by its owner
        assert not form.has("release.acknowledge_refuted")
        form.fill({"release.acknowledge_refuted": True})
    body = sent(body_of(form, DATASET, "answers"))
    assert form.errors == {}
    remade = wire.StudyCreate.model_validate_json(json.dumps(body))
    by_column = sorted(study.features, key=lambda feature: feature.column)  # the order of the dataset
    expected = study.model_dump() | {"features": [feature.model_dump() for feature in by_column]}
    if changes is STUDIES["grid in another order"]:
        expected["release"]["cells"]["parts"] = [2, 4]
    assert remade.model_dump() == expected


def test_values_that_no_page_sends_are_wrong_at_their_input_and_no_fault_of_the_program():
    stated = STATED | ANSWERED
    unknown = Form.blank(**stated | {"features.0.column": "nosuch"})
    body_of(unknown, DATASET, "features")
    assert "features.0.column" in unknown.errors
    beyond = Form.blank(**stated | {"features.999.column": "a"})
    body_of(beyond, DATASET, "features")
    assert "features.999.column" in beyond.errors
    bogus = Form.blank(**stated | {"hide": "bogus"})
    assert body_of(bogus, DATASET, "release")["release"]["sensitivity"] == 1.0
    for epsilon in ("1e999999999", "1e7", "nan"):
        assert row_cap(Form.blank(**ANSWERED | {"release.epsilon": epsilon})) is None


def test_bounds_with_a_decimal_comma_get_a_suggestion():
    form = Form.blank(**{"features.0.column": "a", "features.0.lower": "0", "features.0.upper": "60,5"})
    suggest(form, "release")
    assert form.get("features.0.hidden_change") == "3"
