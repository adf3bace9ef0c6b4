"""What a new study's form holds before anything is typed there."""

import pytest

from curator_service.console.drafting import suggest
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
