"""What the console sends of its form: nothing that was left empty, so that the service decides it."""

import pytest
from starlette.datastructures import FormData

from modeler_service.console.start import _blank, _spec
from service_kit.console import Form

ACCESS = {"curator_url": "http://127.0.0.1:9", "study_id": "std_0123456789abcdef", "token": "t"}
SHOWN = {"name": "run", "iterations": 50, "batch_size": 1, "seed": 0}
"""Fields that the form fills in, as they are the defaults of the service."""


def sent(**typed):
    values = {name: value for name, (value,) in _blank().values.items()}
    form = Form.of(FormData(values | ACCESS | typed))
    body = _spec(form)
    assert form.ok, form.errors
    return body


def test_an_empty_form_sends_no_choice_that_the_service_can_make():
    assert sent() == ACCESS | SHOWN


@pytest.mark.parametrize(
    ("typed", "more"),
    [
        ({"algorithm": "ei"}, {"algorithm": {"name": "ei"}}),
        ({"initial_rows": "7", "initial_design": "random"}, {"initial_rows": 7, "initial_design": "random"}),
        ({"repeats": "never"}, {"repeats": "never"}),
        ({"hyper": "fitted"}, {"fit": {}}),
        ({"hyper": "fixed"}, {"fit": None}),
        (
            {"hyper": "given", "lengthscale": "2", "signal_variance": "1", "noise_variance": "0.1"},
            {
                "kernel": {
                    "kind": "squared_exponential",
                    "lengthscale": 2.0,
                    "signal_variance": 1.0,
                    "noise_variance": 0.1,
                    "mean": 0.0,
                }
            },
        ),
    ],
)
def test_what_is_filled_in_is_sent(typed, more):
    assert sent(**typed) == ACCESS | SHOWN | more


def test_a_form_like_a_run_sends_what_that_run_was_given(browsers, ended):
    """The run of the fixture was given all settings, and of a fit that there is none."""
    browser = browsers["vendor"]
    browser.get(f"/start?like={ended}")
    form = browser.form("/start")
    given = {name: form[name] for name in ("algorithm", "initial_rows", "initial_design", "repeats", "hyper")}
    assert given == {
        "algorithm": "gp_ucb",
        "initial_rows": "2",
        "initial_design": "random",
        "repeats": "algorithm",
        "hyper": "fixed",
    }
