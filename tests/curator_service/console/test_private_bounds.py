"""Private bounds, from the page of a dataset to the form of a study."""

import re

import pytest

from curator_service.console.drafting import private_y, suggest
from service_kit.console import Form

MARKUP = "<i>age</i>"
CSV = f"{MARKUP},y\n" + "".join(f"{20 + i % 50},{i % 13}\n" for i in range(300))
RANGES = {"age": ("20.5", "80"), "y": ("1", "12")}


def _requested(column, lower, upper, number=0):
    """What is filled in for one column."""
    name = f"columns.{number}"
    return {f"{name}.column": column, f"{name}.outer.0": lower, f"{name}.outer.1": upper}


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
    every = _requested(MARKUP, "0", "128") | _requested("y", "0", "64", 1)
    owner.submit(path, epsilon="50", outermost="10", **every)
    assert owner.status == 200, owner.shown[-600:]
    assert "Found, for epsilon 50" in owner.shown
    assert "50-differential privacy of each record" in owner.shown
    assert "<i>age" not in owner.text
    owner.get(f"/studies/new?dataset={dataset}")
    assert owner.shown.count("found privately") >= 4  # two ends of two columns
    form = owner.form("/studies/new")
    assert 0 <= float(form["features.0.lower"]) < 35
    assert 55 < float(form["features.0.upper"]) <= 128
    owner.submit("/studies/new", go="next", **{"features.0.column": MARKUP})
    owner.submit("/studies/new", go="next", **{"measurement.source": "column", "measurement.column": "y"})
    owner.submit("/studies/new", go="next", **{"release.epsilon": "2"})
    form = owner.form("/studies/new")
    lower, upper = float(form["outcomes.lower"]), float(form["outcomes.upper"])
    assert 0 <= lower < 3 < 9 < upper <= 20
    assert owner.shown.count("Found privately: ") == 1


def test_what_is_wrong_with_a_request_is_said_beside_its_field_and_costs_nothing(owner, dataset):
    path = f"/datasets/{dataset}/bounds"
    owner.get(path)
    before = owner.shown.count("Private bounds for")
    owner.submit(path, epsilon="1", drop=("columns.0.column", "columns.1.column"))
    assert (owner.status, "Choose at least one column" in owner.shown) == (422, True)
    owner.submit(path, epsilon="1", **_requested(MARKUP, "5", "1"))
    assert (owner.status, "Must be larger" in owner.shown) == (422, True)
    owner.submit(path, epsilon="1", **_requested(MARKUP, "", "1"))
    assert (owner.status, "Enter a number" in owner.shown) == (422, True)
    owner.submit(path, epsilon="0", **_requested(MARKUP, "0", "1"))
    assert owner.status == 422
    owner.submit(path, epsilon="1", outermost="60", **_requested(MARKUP, "0", "1"))
    assert (owner.status, "from 0.1 to 49" in owner.shown) == (422, True)
    owner.get(path)
    assert owner.shown.count("Private bounds for") == before


def test_the_outermost_share_can_be_said(owner, dataset):
    path = f"/datasets/{dataset}/bounds"
    owner.get(path)
    owner.submit(path, epsilon="5", outermost="10", **_requested(MARKUP, "0", "128"))
    assert owner.status == 200
    assert re.search(r"Shares of records below: 10 %, 90 %", owner.shown)


# --- the draft ------------------------------------------------------------------------------------------


def test_a_draft_takes_found_bounds_where_nothing_was_typed():
    form = Form.blank(**{"features.1.lower": "", "features.1.upper": "9"})
    suggest(form, "features", ["age", "y", "other"], RANGES)
    assert (form.get("features.0.lower"), form.get("features.0.upper")) == ("20.5", "80")
    assert (form.get("features.1.lower"), form.get("features.1.upper")) == ("", "9")
    assert "features.2.lower" not in form.values


def test_the_range_of_y_follows_from_its_found_bounds():
    form = Form.blank(measurement={"source": "column", "column": "y"})
    assert private_y(form, RANGES) == ("1", "12")
    suggest(form, "answers", [], RANGES)
    assert (form.get("outcomes.lower"), form.get("outcomes.upper")) == ("1", "12")
    for other in ({"source": "inbox", "column": "y"}, {"source": "column", "column": "z"}):
        assert private_y(Form.blank(measurement=other), RANGES) is None
    typed = Form.blank(measurement={"source": "column", "column": "y"}, outcomes={"upper": "3"})
    suggest(typed, "answers", [], RANGES)
    assert (typed.get("outcomes.lower"), typed.get("outcomes.upper")) == ("", "3")
