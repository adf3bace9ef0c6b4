"""What a new study's form holds before anything is typed there."""

import pytest

from curator_service.console.drafting import (
    PLANAR_FEATURES_MAX,
    body_of,
    field_of,
    like,
    row_cap,
    suggest,
)
from curator_service.console.private_bounds import encoded, fill_in
from curator_service.privacy import noise
from service_kit.console import Form


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({"release": "auto", "release_epsilon": "2", "answers": "auto", "answers_epsilon": "0.3"}, "3.5"),
        ({"release": "identity", "answers": "laplace", "answers_epsilon": "1"}, "5"),
        ({"release": "auto", "release_epsilon": "2", "answers": "none"}, None),
        ({"release": "auto", "release_epsilon": "2"}, None),
        (
            {"release_epsilon": "2", "answers": "auto", "answers_epsilon": "1", "privacy_unit": "answer"},
            None,
        ),
        ({"release_epsilon": "two", "answers": "auto", "answers_epsilon": "1"}, None),
        ({"release_epsilon": "inf", "answers": "auto", "answers_epsilon": "1"}, None),
    ],
)
def test_the_cap_of_a_row_leaves_room_for_the_release_and_five_answers(fields, cap):
    assert row_cap(Form.blank(**fields)) == cap


def test_the_cap_on_measurements_is_decided_on_and_never_filled_in():
    """Found by hand: 100 stood in the box, a run takes 55, and the second run died."""
    fields = {"release_epsilon": "2", "answers": "auto", "answers_epsilon": "1"}
    form = Form.blank(**fields)
    suggest(form, "budget")
    assert not [name for name in form.values if name.startswith("budget")]
    budgets = [
        ({}, None, True),
        ({"budget_queries": "7"}, 7, False),
        ({"budget_uncapped": "yes"}, None, False),
        ({"budget_uncapped": "yes", "budget_queries": "7"}, None, True),
    ]
    for typed, queries, is_wrong in budgets:
        form = Form.blank(**STATED, **typed, answers="none")
        body = body_of(form, DATASET, "budget")
        assert ("budget_queries" in form.errors, is_wrong or body["budget"]["queries"] == queries) == (is_wrong, True)


DATASET = {"id": "ds_1", "columns": [{"name": "kg"}, {"name": "m"}], "person_column": None, "public": False}
STATED = {
    "name": "s", "use_0": "yes", "lower_0": "0", "upper_0": "120", "use_1": "yes", "lower_1": "0", "upper_1": "2",
    "column": "y", "release": "auto", "release_epsilon": "1", "release_sensitivity": "0.25",
}  # fmt: skip


def test_changes_that_are_stated_as_hidden_set_delta_to_one():
    form = Form.blank(**STATED, hidden_change_0="1.5")
    body = body_of(form, DATASET, "release")
    assert form.ok
    assert [(f["hidden_change"], f["scale"]) for f in body["features"]] == [(1.5, None), (None, None)]
    assert body["release"]["sensitivity"] == 1.0
    assert field_of("features.0.hidden_change", form, DATASET) == "hidden_change_0"


def test_without_one_the_release_step_states_delta():
    form = Form.blank(**STATED, scale_0="3", hide="own")
    body = body_of(form, DATASET, "release")
    assert (body["features"][0]["scale"], body["release"]["sensitivity"]) == (3.0, 0.25)


def test_a_hidden_change_and_a_scale_of_one_feature_are_wrong():
    form = Form.blank(**STATED, hidden_change_1="0.1", scale_1="3")
    body_of(form, DATASET, "features")
    assert list(form.errors) == ["scale_1"]


def test_a_study_is_made_again_with_what_it_hides():
    form = Form.blank(**STATED, hidden_change_0="1.5")
    spec = body_of(form, DATASET, "release") | {
        "answers": {"mechanism": "none"}, "budget": {}, "kernel": None, "privacy_unit": "row", "reply_after_ms": None,
    }  # fmt: skip
    again = like(spec, DATASET)
    assert (again["hidden_change_0"], again["hidden_change_1"], again["scale_0"]) == (1.5, None, None)


@pytest.mark.parametrize(
    ("hide", "sensitivity", "stated"), [("most", 1.0, None), ("everything", 2**0.5, None), ("small", 1.0, 3.0)]
)
def test_what_nobody_must_find_out_sets_delta_and_is_read_back(hide, sensitivity, stated):
    form = Form.blank(**STATED, hide=hide, hidden_change_0="3", scale_1="")
    body = body_of(form, DATASET, "release")
    assert form.ok
    assert (body["release"]["sensitivity"], body["features"][0]["hidden_change"]) == (sensitivity, stated)
    spec = body | {
        "answers": {"mechanism": "none"}, "budget": {}, "kernel": None, "privacy_unit": "row", "reply_after_ms": None,
    }  # fmt: skip
    assert like(spec, DATASET)["hide"] == hide


def test_small_differences_need_one_change_at_least():
    form = Form.blank(**STATED, hide="small")
    body_of(form, DATASET, "release")
    assert "hide" in form.errors
    assert field_of("release.sensitivity", form, DATASET) == "hide"


def test_the_release_step_suggests_a_twentieth_of_each_range_and_a_delta_for_many_features_alone():
    form = Form.blank(**STATED)
    suggest(form, "release", ["kg", "m"])
    assert (form.get("hide"), form.get("hidden_change_0"), form.get("hidden_change_1")) == ("small", "6", "0.1")
    assert form.get("release_delta") == ""
    form = Form.blank(**STATED, hide="most", hidden_change_0="")
    suggest(form, "release", ["kg", "m"])
    assert (form.get("hide"), form.get("hidden_change_0")) == ("most", "")
    wide = Form.blank(**{f"use_{i}": "yes" for i in range(PLANAR_FEATURES_MAX + 1)})
    suggest(wide, "release", [str(i) for i in range(PLANAR_FEATURES_MAX + 1)])
    assert wide.get("release_delta") == "1e-6"
    assert PLANAR_FEATURES_MAX == noise.PLANAR_FEATURES_MAX


WIDE = {
    "columns": [{"name": name} for name in ("carat", "table", "cut=Good", "cut=Ideal", "clarity")],
    "reading": {
        "columns": [
            {"column": "carat", "kind": "number"},
            {"column": "cut", "kind": "one_hot", "values": ["Good", "Ideal"]},
            {"column": "clarity", "kind": "codes", "values": list("abcd"), "missing": "fill", "fill": -1.0},
        ]
    },
}


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
    form = Form.blank(pasted="not read" if file else text, lower_0="7", upper_4="1")
    fill_in(form, WIDE, b"\xef\xbb\xbf" + text.encode() if file else None)
    assert form.ok, form.errors
    assert {name: form.get(name) for name in form.values} == {
        "use_0": "yes",
        "lower_0": "0",
        "upper_0": "5",
        "hidden_change_0": "0.5",
        "use_1": "yes",
        "lower_1": "40",
        "upper_1": "90",
        "upper_4": "1",
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("carat,0,5\ntabel,1,2", 'Line 2: no column "tabel"; did you mean "table"?'),
        ("zebra,1,2", 'Line 1: no column "zebra" in this dataset'),
        ("carat,0", "Line 1: write a name and two numbers"),
        ("carat,0,x", "Line 1: write a name and two numbers"),
        ("carat;1,034;5", "Line 1: write a name and two numbers"),  # a thousand, or one and a bit
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
    """Another category moves two columns by 1 each: sqrt(2), which a hidden change of 1.42 is one unit of."""
    assert encoded(WIDE) == {
        **dict.fromkeys(("cut=Good", "cut=Ideal"), ("0", "1", "1.42")),
        "clarity": ("-1", "4", "5"),
    }
    assert 1.42 > 2**0.5
    form = Form.blank(lower_2="0.5")
    suggest(form, "features", [c["name"] for c in WIDE["columns"]], made=encoded(WIDE))
    assert {name: form.get(name) for name in form.values if name.endswith(("_0", "_2", "_3"))} == {
        "lower_2": "0.5",
        "lower_3": "0",
        "upper_3": "1",
        "hidden_change_3": "1.42",
    }
    assert encoded({"columns": [], "reading": None}) == {}


GROUPS = STATED | {
    "find": "groups", "groups_epsilon": "1", "groups_again": "1", "parts_0": "20", "parts_1": "10",
    "answers_centre": "5", "answers_value_bound": "2", "budget_queries": "50",
    "hidden_change_0": "3", "scale_1": "2", "privacy_unit": "answer",
}  # fmt: skip


def test_one_epsilon_of_a_study_of_groups_is_halved_and_the_cap_on_a_record_is_all_of_it():
    form = Form.blank(**GROUPS)
    body = body_of(form, DATASET, "budget")
    assert form.ok, form.errors
    assert body["release"] == {
        "mechanism": "groups",
        "epsilon": "0.5",
        "cells": {"kind": "grid", "parts": [20, 10]},
        "min_count": 22,  # 4 log(200) is 21.2
    }
    assert (body["answers"]["mechanism"], body["answers"]["epsilon"], body["privacy_unit"]) == ("laplace", "0.5", "row")
    assert body["budget"] == {"epsilon_per_row": "1", "epsilon_total": None, "queries": 50}
    assert [(f["hidden_change"], f["scale"]) for f in body["features"]] == [(None, None), (None, 2.0)]


def test_the_scale_of_a_draft_of_groups_stays_when_it_is_edited():
    body = body_of(Form.blank(**GROUPS), DATASET, "budget")
    spec = body | {"kernel": None, "rows_per_person": 1, "reply_after_ms": None}
    assert body_of(Form.blank(**like(spec, DATASET)), DATASET, "budget")["features"] == body["features"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ({"groups_epsilon": "1", "groups_share": "0.2"}, ("0.2", "0.8")),
        ({"groups_epsilon": "1", "groups_again": "3"}, ("0.5", "0.166666")),  # never more than the whole
        ({"groups_epsilon": "0.3", "groups_again": "2"}, ("0.15", "0.075")),
    ],
)
def test_epsilon_is_divided_as_it_was_chosen_and_the_form_shows_it_again(typed, expected):
    body = body_of(Form.blank(**GROUPS | typed), DATASET, "budget")
    assert (body["release"]["epsilon"], body["answers"]["epsilon"]) == expected
    spec = body | {"kernel": None, "rows_per_person": 1, "reply_after_ms": None}
    again = body_of(Form.blank(**like(spec, DATASET)), DATASET, "budget")
    assert {part: again[part] for part in ("release", "budget")} == {part: body[part] for part in ("release", "budget")}
    assert again["answers"]["epsilon"] == body["answers"]["epsilon"]


def test_centres_take_the_place_of_parts_and_come_back():
    form = Form.blank(**GROUPS, groups_kind="centres", groups_centres="60; 1.5\n\n70;0,5\n")
    body = body_of(form, DATASET, "budget")
    assert body["release"]["cells"] == {"kind": "centres", "centres": [[60.0, 1.5], [70.0, 0.5]]}
    spec = body | {"kernel": None, "rows_per_person": 1, "reply_after_ms": None}
    assert body_of(Form.blank(**like(spec, DATASET)), DATASET, "budget")["release"] == body["release"]
    wrong = Form.blank(**GROUPS, groups_kind="centres", groups_centres="60; 1.5\n70; here")
    body_of(wrong, DATASET, "budget")
    assert wrong.errors["groups_centres"].startswith("Line 2")


def test_centres_from_the_records_have_their_share_and_come_back():
    form = Form.blank(**GROUPS, groups_kind="private", groups_number="50", groups_centre_share="0.3")
    body = body_of(form, DATASET, "budget")
    assert body["release"] == {
        "mechanism": "groups",
        "epsilon": "0.5",
        "cells": {"kind": "private", "number": 50, "epsilon": "0.15"},
        "min_count": 23,  # 2 / 0.35 log(50) is 22.4
    }
    spec = body | {"kernel": None, "rows_per_person": 1, "reply_after_ms": None}
    assert body_of(Form.blank(**like(spec, DATASET)), DATASET, "budget")["release"] == body["release"]
    assert field_of("release.groups.cells.private.number", form, DATASET) == "groups_number"
    assert field_of("release.cells.epsilon", form, DATASET) == "groups_centre_share"


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"groups_kind": "private", "groups_number": "9", "groups_centre_share": "1"}, "groups_centre_share"),
        ({"groups_kind": "private", "groups_number": "x"}, "groups_number"),
        ({"groups_epsilon": "none"}, "groups_epsilon"),
        ({"groups_epsilon": "inf"}, "groups_epsilon"),
        ({"groups_epsilon": "0"}, "groups_epsilon"),
        ({"groups_epsilon": "1e30"}, "groups_epsilon"),
        ({"groups_share": "1"}, "groups_share"),
        ({"groups_share": "half"}, "groups_share"),
        ({"groups_share": "nan"}, "groups_share"),
        ({"groups_again": "-1"}, "groups_again"),
        ({"parts_1": ""}, "parts_1"),
    ],
)
def test_what_is_wrong_with_groups_is_said_at_its_field(typed, field):
    form = Form.blank(**GROUPS | typed)
    body_of(form, DATASET, "budget")
    assert list(form.errors) == [field]


def test_a_study_whose_y_is_no_column_is_not_one_of_groups():
    fields = GROUPS | {"source": "inbox", "question": "How tall?", "release_epsilon": "1", "hide": "most"}
    assert body_of(Form.blank(**fields), DATASET, "release")["release"]["mechanism"] == "auto"


@pytest.mark.parametrize(
    ("where", "field"),
    [
        ("release.groups.epsilon", "groups_epsilon"),
        ("answers.laplace.epsilon", "groups_epsilon"),
        ("budget.epsilon_per_row", "groups_epsilon"),
        ("release.groups.cells.parts", "parts_0"),
        ("release.groups.min_count", "release_min_count"),
        ("answers.laplace.value_bound", "answers_value_bound"),
        ("measurement.noise_variance", "column_noise"),
    ],
)
def test_errors_of_the_api_about_groups_stand_at_their_fields(where, field):
    assert field_of(where, Form.blank(**GROUPS), DATASET) == field
