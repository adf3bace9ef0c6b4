"""What a new study's form holds before anything is typed there."""

import pytest

from curator_service.console.drafting import body_of, field_of, like, suggest
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
    form = Form.blank(**fields)
    suggest(form, "budget")
    assert (form.get("budget_epsilon_per_row") or None) == cap
    assert form.get("budget_queries") == "100"


def test_what_was_typed_is_left_as_it_is():
    fields = {"release_epsilon": "2", "answers": "auto", "answers_epsilon": "1"}
    form = Form.blank(**fields, budget_epsilon_per_row="", budget_queries="7")
    suggest(form, "budget")
    assert (form.get("budget_epsilon_per_row"), form.get("budget_queries")) == ("", "7")


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
    form = Form.blank(**STATED, scale_0="3")
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
