"""What the console sends of its form: nothing that was left empty, so that the service decides it."""

import asyncio
import io
import json

import pytest
from starlette.datastructures import FormData, UploadFile

from blindopt import wire
from modeler_service import console
from modeler_service.console.start import _access, _blank, _spec
from service_kit.console import Form
from tests import console_errors

ACCESS = {
    "curator_url": "http://127.0.0.1:9",
    "study_id": "std_0123456789abcdef",
    "token": f"blindopt_{16 * '0'}_{43 * 'A'}",
}


def sent(typed):
    values = {name: value for name, (value,) in _blank().values.items()}
    form = Form.of(FormData(values | ACCESS | typed))
    body = _spec(form, ACCESS)
    assert form.ok, form.errors
    return body


def run_of(**given):
    """The request with these fields alone."""
    return wire.RunCreate.model_validate_json(json.dumps(ACCESS | given))


GRANT = ACCESS | {
    "format": "blindopt-grant-1",
    "log_key": "curator+00000000+AQ==",
    "name": "Vera",
    "expires_at": "2027-01-02T03:04:05Z",
}


def read(**typed):
    """What the form makes of a grant, and the form."""
    form = Form.of(FormData(typed))
    return asyncio.run(_access(form)), form


def uploaded(text):
    return UploadFile(io.BytesIO(text.encode()), filename="grant.json")


def test_a_grant_comes_as_a_file_as_text_or_as_values():
    text = json.dumps(GRANT)
    whole = ACCESS | {"log_key": GRANT["log_key"]}
    for typed in (
        {"grant_file": uploaded(text)},
        {"grant": f"\n{text}"},
        {"grant_file": uploaded("\ufeff" + text)},
        whole,
    ):
        access, form = read(**typed)
        assert access == whole
        assert form.ok
        assert form.get("study_id") == ACCESS["study_id"]  # shown again
        if typed is not whole:
            assert "t" not in [*form.all("grant"), *form.all("token")]  # the token is not
    assert read(**ACCESS)[0] == ACCESS


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "null", "\x00\ufffd", json.dumps(ACCESS), json.dumps(GRANT | {"more": 1})),
        json.dumps(GRANT | {"format": "blindopt-grant-2"}),
        json.dumps(GRANT | {"name": "x" * (1 << 14)}),
    ],
)
def test_what_is_no_grant_is_refused_beside_its_field(text):
    for name, value in (("grant_file", uploaded(text)), ("grant", text)):
        access, form = read(**{name: value})
        assert access == {}
        assert "grant.json" in form.errors[name]
    assert "Choose the file grant.json" in read()[1].errors["grant_file"]
    assert set(read(study_id=ACCESS["study_id"])[1].errors) == {"curator_url", "token"}


def test_an_empty_form_sends_no_choice_that_the_service_can_make():
    assert wire.RunCreate.model_validate_json(json.dumps(sent({}))) == run_of()


KERNEL = {"lengthscale": 2.0, "signal_variance": 1.0, "noise_variance": 0.1}


@pytest.mark.parametrize(
    ("typed", "more"),
    [
        ({"algorithm.name": "ei"}, {"algorithm": {"name": "ei"}}),
        ({"initial_rows": "7", "initial_design": "random"}, {"initial_rows": 7, "initial_design": "random"}),
        ({"repeats": "never"}, {"repeats": "never"}),
        ({"goal.kind": "best"}, {"goal": {"kind": "best"}}),
        (
            {"goal.kind": "many", "goal.threshold": "280", "stop.found": "12", "stop.least_probability": "0.1"},
            {"goal": {"kind": "many", "threshold": 280.0}, "stop": {"found": 12, "least_probability": 0.1}},
        ),
        ({"goal.kind": "many", "goal.share": "0.01"}, {"goal": {"kind": "many", "share": 0.01}}),
        ({"hyper": "fitted"}, {"fit": {}}),
        ({"hyper": "fixed"}, {"fit": None}),
        ({"hyper": "given"} | {f"kernel.{k}": str(v) for k, v in KERNEL.items()}, {"kernel": KERNEL}),
    ],
)
def test_what_is_filled_in_is_sent(typed, more):
    assert wire.RunCreate.model_validate_json(json.dumps(sent(typed))) == run_of(**more)


@pytest.mark.parametrize("said", [{}, {"goal.threshold": "1", "goal.share": "0.01"}])
def test_a_search_for_many_says_once_what_is_good(said):
    form = Form.of(FormData({"name": "run", "goal.kind": "many"} | said))
    _spec(form, ACCESS)
    assert form.errors == {"goal.threshold": "State a value, or choose a share: one of them"}


def test_a_form_like_a_run_sends_what_that_run_was_given(browsers, ended):
    """The run of the fixture was given all settings, and of a fit that there is none."""
    browser = browsers["vendor"]
    browser.get(f"/start?like={ended}")
    form = browser.form("/start")
    given = {name: form[name] for name in ("algorithm.name", "initial_rows", "initial_design", "repeats", "hyper")}
    assert list(given.values()) == ["gp_ucb", "2", "random", "algorithm", "fixed"]


def test_answers_that_are_yours_are_offered_and_counted(browsers, ended, opened, owner, curator):
    """Found by hand: nothing offered what was bought, and the second run bought it again."""
    browser = browsers["vendor"]
    browser.get("/start")
    assert "6 answers, study" in browser.shown
    token = owner.grant(opened.id, wire.GrantCreate(name="again")).token
    access = {"curator_url": curator.url, "study_id": opened.id, "token": token}
    browser.send("POST", "/console/start:test", data=browser.form("/start") | access)
    assert "6 answers of this study are already yours" in browser.shown
    assert "What the owner offers" in browser.shown  # without a script
    assert "Answers come at once." in browser.shown
    assert "4 of 4 steps of the connection work" in browser.shown
    browser.send("POST", "/console/start:test", data=browser.form("/start") | access | {"continue_from": ended})
    assert "already yours" not in browser.shown
    assert browser.form("/start")["queries"] == "50"  # the study has no cap
    browser.get(f"/start?like={ended}")
    assert browser.form("/start")["continue_from"] == ended
    assert not browser.form("/start")["seed"]


@pytest.mark.parametrize("is_tested", [True, False])
def test_a_run_asks_for_as_many_queries_as_the_owner_allows_and_never_is_refused(
    browsers, api, owner, curator, dataset, open_study, until, is_tested
):
    capped = open_study(owner, dataset, budget=wire.Budget(queries=30))
    browser, access = browsers["vendor"], {"curator_url": curator.url, "study_id": capped.id, "token": capped.token}
    browser.get("/start")
    if is_tested:
        browser.send("POST", "/console/start:test", data=browser.form("/start") | access | {"queries": "60"})
        assert "60 queries, 30 allowed: the run would end at 30." in browser.shown
        browser.send("POST", "/console/start:test", data=browser.form("/start") | access | {"queries": ""})
        assert browser.form("/start")["queries"] == "30"
    browser.submit("/start", **access)
    run = browser.path.rpartition("/")[2]
    until(lambda: api.run(run).view.ended_at)
    ended = api.run(run).view
    assert (ended.trials, ended.ended_because) == (30, "budget")
    browser.get("/start")
    browser.send("POST", "/console/start:test", data=browser.form("/start") | access)
    assert "Your runs have used all of it" in browser.shown


def test_a_page_names_what_is_wrong_with_a_grant_and_does_not_show_it_again(browsers):
    browser = browsers["vendor"]
    browser.get("/start")
    broken = json.dumps(GRANT | {"study_id": "st_1", "token": "blindopt_secret"})
    for typed, says in (({"grant": broken}, "This is not a grant."), ({}, "Choose the file grant.json")):
        reply = browser.send("POST", "/console/start:test", data=browser.form("/start") | typed)
        assert reply.status_code == 422
        assert says in reply.text
        assert "blindopt_secret" not in reply.text


BUTTONS = {
    *(f"/runs/{{run_id}}:{act}" for act in ("pause", "resume", "stop", "archive", "unarchive", "delete")),
    "/runs/{run_id}/messages/{number}:update",
    "/log:verify",
    "/notices:test",
}
"""Targets of forms without a field to type in."""
ELSEWHERE = {"/start:test", "/runs/{run_id}:replace_token"}
"""Another button of the form of a start, and a form of runs whose token was refused: driven here."""


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("garbage", ["", "-1", "a_b 1.2"])
def test_no_error_of_any_form_names_a_field_of_the_api_an_id_or_a_path(browsers, ended, garbage):
    browser = browsers["vendor"]
    faults, buttons = console_errors.drive(browser, console.build().entries, {"run_id": [ended]}, garbage)
    assert faults == {}
    assert buttons == BUTTONS | ELSEWHERE  # a new form is driven, or said to be a button
    browser.get("/start")
    form = browser.form("/start")
    for target in ("/start:test", f"/runs/{ended}:replace_token"):
        browser.send("POST", "/console" + target, data=form | dict.fromkeys(console_errors.seen(browser.text), garbage))
        assert console_errors.faults_of(browser.text) == [], target
    filled = ACCESS | {"hyper": "given", "kernel.lengthscale": garbage, "stop.target": garbage}
    browser.get("/start")
    browser.submit("/start", **filled)
    assert (browser.status, console_errors.faults_of(browser.text)) == (422, [])
