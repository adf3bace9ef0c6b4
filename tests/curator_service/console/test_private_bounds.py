"""Private bounds, from the page of a dataset to the form of a study."""

import re

import pytest

from curator_service.console.drafting import private_y, suggest
from service_kit.console import Form

MARKUP = "<i>age</i>"
CSV = f"{MARKUP},y\n" + "".join(f"{20 + i % 50},{i % 13}\n" for i in range(300))
RANGES = {"age": ("20.5", "80"), "y": ("1", "12")}


@pytest.fixture(scope="module")
def dataset(people):
    owner = people["owner"]
    owner.get("/datasets/new")
    owner.submit("/datasets", files={"file": ("a.csv", CSV.encode())})
    return owner.path.rpartition("/")[2]


def test_bounds_are_found_shown_charged_and_offered_to_a_study(owner, dataset):
    path = f"/datasets/{dataset}/bounds"
    owner.get(f"/datasets/{dataset}")
    assert path in owner.text
    owner.get(path)
    every = {"use_0": "yes", "lower_0": "0", "upper_0": "128", "use_1": "yes", "lower_1": "0", "upper_1": "64"}
    owner.submit(path, epsilon="50", outermost="10", **every)
    assert owner.status == 200, owner.shown[-600:]
    assert "Found, for epsilon 50" in owner.shown
    assert "50-differential privacy of each record" in owner.shown
    assert "<i>age" not in owner.text
    owner.get(f"/studies/new?dataset={dataset}")
    owner.submit("/studies/new", go="next", name="s")
    assert owner.shown.count("found privately") >= 4  # two ends of two columns
    form = owner.form("/studies/new")
    assert 0 <= float(form["lower_0"]) < 35
    assert 55 < float(form["upper_0"]) <= 128
    owner.submit("/studies/new", go="next", use_0="yes")
    owner.submit("/studies/new", go="next", source="column", column="y")
    owner.submit("/studies/new", go="next", release_epsilon="2")
    form = owner.form("/studies/new")
    lower, upper = (float(form["answers_centre"]) + s * float(form["answers_value_bound"]) for s in (-1, 1))
    assert 0 <= lower < 3 < 9 < upper <= 20
    assert owner.shown.count("Found privately: ") == 2


def test_what_is_wrong_with_a_request_is_said_beside_its_field_and_costs_nothing(owner, dataset):
    path = f"/datasets/{dataset}/bounds"
    owner.get(path)
    before = owner.shown.count("Private bounds for")
    owner.submit(path, epsilon="1", drop=("use_0", "use_1"))
    assert (owner.status, "Choose at least one column" in owner.shown) == (422, True)
    owner.submit(path, use_0="yes", lower_0="5", upper_0="1", epsilon="1")
    assert (owner.status, "Must be larger" in owner.shown) == (422, True)
    owner.submit(path, use_0="yes", lower_0="", upper_0="1", epsilon="1")
    assert (owner.status, "Enter a number" in owner.shown) == (422, True)
    owner.submit(path, use_0="yes", lower_0="0", upper_0="1", epsilon="0")
    assert owner.status == 422
    owner.submit(path, use_0="yes", lower_0="0", upper_0="1", epsilon="1", outermost="60")
    assert (owner.status, "from 0.1 to 49" in owner.shown) == (422, True)
    owner.get(path)
    assert owner.shown.count("Private bounds for") == before


def test_the_outermost_share_can_be_said(owner, dataset):
    path = f"/datasets/{dataset}/bounds"
    owner.get(path)
    owner.submit(path, use_0="yes", lower_0="0", upper_0="128", epsilon="5", outermost="10")
    assert owner.status == 200
    assert re.search(r"Shares of records below: 10 %, 90 %", owner.shown)


# --- the draft ------------------------------------------------------------------------------------------


def test_a_draft_takes_found_bounds_where_nothing_was_typed():
    form = Form.blank(lower_1="", upper_1="9")
    suggest(form, "features", ["age", "y", "other"], RANGES)
    assert (form.get("lower_0"), form.get("upper_0")) == ("20.5", "80")
    assert (form.get("lower_1"), form.get("upper_1")) == ("", "9")
    assert "lower_2" not in form.values


def test_centre_and_bound_of_y_follow_from_its_found_bounds():
    form = Form.blank(source="column", column="y")
    assert private_y(form, RANGES) == ("6.5", "5.5")
    suggest(form, "answers", [], RANGES)
    assert (form.get("answers_centre"), form.get("answers_value_bound")) == ("6.5", "5.5")
    for other in ({"source": "inbox", "column": "y"}, {"source": "column", "column": "z"}):
        assert private_y(Form.blank(**other), RANGES) is None
    typed = Form.blank(source="column", column="y", answers_value_bound="3")
    suggest(typed, "answers", [], RANGES)
    assert typed.get("answers_value_bound") == "3"
