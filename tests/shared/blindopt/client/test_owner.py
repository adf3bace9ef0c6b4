"""`bo.Owner` and `bo.Measurer`: requests from what an owner writes, and a study from its file to its account."""

import json
import re
import stat

import numpy as np
import pytest

import blindopt as bo
from blindopt import wire
from blindopt.client import StudyClient, new_key
from blindopt.client.drafts import columns_of, study_of
from blindopt.client.owner import _file
from blindopt.errors import BlindoptError, Invalid, StateConflict
from tests.builders import ALGORITHMS


def body(**chosen):
    settings = {
        "features": {"age": (0, 110, 5), "stay": (0, 60)},
        "outcome": "charges",
        "direction": "maximize",
        "privacy": 0.5,
        "answers": {"epsilon": 1, "centre": 45, "value_bound": 45},
    }
    return study_of({"name": "s", "dataset_id": "ds_1", "budget": {"queries": 3}, "kernel": None}, **settings | chosen)


def test_what_an_owner_writes_is_the_request_that_says_it_in_full():
    assert body() == wire.StudyCreate(
        name="s",
        dataset_id="ds_1",
        features=[
            wire.Feature(column="age", lower=0, upper=110, hidden_change=5),
            wire.Feature(column="stay", lower=0, upper=60),
        ],
        measurement=wire.ColumnMeasurement(column="charges", direction="maximize"),
        release=wire.AutoRelease(epsilon="0.5"),
        answers=wire.AutoAnswers(epsilon="1", centre=45, value_bound=45),
        budget=wire.Budget(queries=3),
    )
    assert body(privacy="public", answers="exact").release == wire.IdentityRelease(mechanism="identity")
    people = wire.InboxMeasurement(question="How much?", direction="minimize")
    assert body(outcome=people).measurement == people
    gaussian = wire.GaussianRelease(mechanism="gaussian", epsilon="2", delta=1e-5)
    assert body(privacy=gaussian).release == gaussian
    assert body(privacy={"epsilon": 1e-6}).release == wire.AutoRelease(epsilon="0.000001")
    single = body(privacy={"epsilon": 1, "promise": "one_feature"}).release
    assert single == wire.AutoRelease(epsilon="1", promise="one_feature")
    assert '"promise"' not in body().model_dump_json()  # the bytes of a study of the default promise are as before


def test_numbers_of_numpy_are_numbers():
    """Found by hand: a bound that is an int64 was "not JSON serializable"."""
    features = {"age": (np.int64(0), np.float64(110), np.float32(5)), "stay": np.array([0, 60])}
    drafted = body(features=features, privacy=np.int64(3), answers={"epsilon": np.int32(1), "value_bound": 4})
    assert [(each.lower, each.upper, each.hidden_change) for each in drafted.features] == [(0, 110, 5), (0, 60, None)]
    assert drafted.release == wire.AutoRelease(epsilon="3")
    assert drafted.answers == wire.AutoAnswers(epsilon="1", value_bound=4)


@pytest.mark.parametrize(
    ("chosen", "where"),
    [
        ({"features": {"age": (110, 0)}}, "^features.age: lower must be smaller"),
        ({"features": {"age": (0,)}}, "^features.age must be .lower, upper."),
        ({"privacy": -1}, "^privacy.epsilon must be a number from"),
        ({"answers": {"epsilon": 1}}, "^answers.value_bound is missing"),
        ({"answers": None}, "state what is done to y"),
    ],
)
def test_what_cannot_be_right_names_its_field(chosen, where):
    with pytest.raises(Invalid, match=where):
        body(**chosen)


def test_a_choice_of_a_column_is_read_and_a_wrong_one_is_refused():
    choice = {"column": "cut", "kind": "one_hot", "values": ["Good"]}
    assert columns_of(["price", choice]) == ["price", wire.ColumnChoice(column="cut", kind="one_hot", values=["Good"])]
    with pytest.raises(Invalid, match="columns"):
        columns_of([{"column": "cut", "kind": "codes"}])
    with pytest.raises(Invalid, match=r'^columns.0.kind must be one of "number", .* or "label": did you mean "codes"'):
        columns_of([{"column": "cut", "kind": "code"}])


def test_a_data_frame_a_path_and_bytes_are_files(tmp_path):
    class Frame:
        def to_csv(self, *, index):
            return "a,b\n1,2\n" if not index else ""

    path = tmp_path / "small.parquet"
    path.write_bytes(b"PAR1")
    assert _file(Frame()) == _file(b"a,b\n1,2\n") == (b"a,b\n1,2\n", "data.csv")
    assert _file(path) == _file(str(path)) == (b"PAR1", "small.parquet")
    with pytest.raises(Invalid, match="a table is a DataFrame, the path"):
        _file([[1, 2]])


@pytest.fixture(scope="module")
def owner(curator):
    with bo.Owner(curator.url, curator.token, timeout_s=240) as library:
        yield library


def test_a_study_that_the_curator_refuses_says_which_field_is_wrong(owner):
    """Found by hand: the error said no more than "errors says where", and had no errors."""
    dataset = owner.upload(b"age,stay\n20,1\n30,2\n", name="ages")
    wrong = [wire.Feature(column="agee", lower=0, upper=110)]
    with pytest.raises(bo.Remote) as refused:
        dataset.study("x", features=wrong, outcome="stay", privacy=3, answers="exact")
    assert refused.value.faults == ('features.0.column names no column of the dataset: did you mean "age"?',)
    assert str(refused.value) == f"invalid (422): {refused.value.faults[0]}"


def test_each_name_that_is_mistyped_in_python_gets_the_nearest_at_the_argument(owner):
    dataset = owner.upload(b"age,stay\n21,1\n32,2\n", name="mistyped")
    study = {"features": {"age": (0, 110)}, "outcome": "stay", "privacy": 3, "answers": "exact"}
    for change, words in (
        ({"features": {"agee": (0, 110)}}, 'features.agee names no column of the dataset: did you mean "age"?'),
        ({"outcome": "stey"}, 'outcome names no column of the dataset: did you mean "stay"?'),
        ({"budgt": {}}, 'budgt is no field here: did you mean "budget"?'),
        ({"budget": {"querys": 3}}, 'budget.querys is no field here: did you mean "queries"?'),
    ):
        with pytest.raises(Invalid) as refused:
            dataset.study("x", **study | change)
        assert str(refused.value) == words
    for settings, words in (
        ({"algoritm": "ei"}, 'algoritm is no field here: did you mean "algorithm"?'),
        ({"querys": 3}, 'querys is no field here: did you mean "queries"?'),
        ({"algorithm": "gp_usb"}, f'algorithm is none of the {ALGORITHMS} that exist: did you mean "gp_ucb"?'),
    ):
        with pytest.raises(Invalid) as refused:
            bo.Optimizer([[0.0], [1.0]], **settings)
        assert str(refused.value) == words


def test_an_outcome_with_a_question_is_measured_by_people(owner):
    dataset = owner.upload(b"age,stay\n23,1\n34,2\n", name="asked")
    draft = dataset.study(
        "x",
        features={"age": (0, 110)},
        outcome={"question": "How long?", "unit": "days"},
        direction="minimize",
        privacy=3,
        answers="exact",
        budget={"queries": 2},
    )
    expected = wire.InboxMeasurement(question="How long?", unit="days", direction="minimize")
    assert draft.view.spec.measurement == expected


def test_a_file_that_needs_decisions_says_which_and_is_not_kept(owner, curator):
    text = "price,cut,sold,depth\n1,Good,2024-01-02,61\n2,Ideal,2024-01-03,\n3,Good,2024-01-05,60\n"
    with pytest.raises(bo.Remote) as refused:
        owner.upload(text.encode(), name="stones", columns=["price", "cut", "depth"])
    said = "\n".join([str(refused.value), *refused.value.__notes__])
    assert (
        "column cut, row 2 of the file: not a number: correct it, leave the column out, or encode it (3 times)" in said
    )
    assert 'cut holds no numbers: leave it out of columns, or choose {"column": "cut", "kind": "one_hot"' in said
    assert 'depth has 1 missing cell: choose {"column": "depth", "missing": "leave_out"}' in said
    assert "sold" not in said
    with curator.http() as http:
        assert http.get("/v1/uploads").json()["uploads"] == []
    with pytest.raises(bo.Remote) as refused:
        owner.upload(("patient,crp\n" + "".join(f"P-{i},{i if i else '<5'}\n" for i in range(40))).encode(), name="crp")
    said = "\n".join(refused.value.__notes__)
    assert 'patient holds labels: leave it out, or choose {"column": "patient", "kind": "label"}.' in said
    assert 'crp holds numbers, but for 1 cell: choose {"column": "crp", "missing_values": ["<5"], "missing"' in said
    chosen = [
        "price",
        {"column": "cut", "kind": "one_hot", "values": ["Good", "Ideal"]},
        {"column": "sold", "kind": "date", "since": "2024-01-01"},
        {"column": "depth", "missing": "leave_out"},
    ]
    dataset = owner.upload(text.encode(), name="stones", columns=chosen)
    assert [column.name for column in dataset.view.columns] == ["price", "cut=Good", "cut=Ideal", "sold", "depth"]
    assert "<td>sold</td>" in dataset._repr_html_()


def test_a_study_from_its_file_to_its_account(owner, curator, small, tmp_path):
    path = tmp_path / "small.csv"
    path.write_bytes(small.csv)
    dataset = owner.upload(path, name="small", public=True)
    assert dataset.view.rows == len(small.y)
    draft = dataset.study(
        "by hand",
        features=dict.fromkeys(small.names[:2], small.bounds),
        outcome=wire.InboxMeasurement(question="<b>How much?</b>", direction="maximize", shown=[small.names[0]]),
        privacy="public",
        answers="exact",
        budget={"queries": 4},
    )
    assert "public" in draft.check()._repr_html_()
    for shown in (draft, draft.check(), draft.preview()):
        assert 3 <= len(str(shown).splitlines()) <= 30
    assert "Price" in draft.preview()._repr_html_()
    forecast = draft.forecast([1], functions=2, rows_max=10)
    assert (forecast.state, forecast.spec.queries) == ("completed", 4)  # the cap of the study
    assert draft.forecast([1], functions=2, queries=2, rows_max=10).spec.queries == 2
    assert forecast._repr_html_().count("<tr>") == len(str(forecast).splitlines()) == len(forecast.points) + 1
    labels = [line.get_label() for line in forecast.plot().get_lines()]
    assert {"identity", "random rows"} <= set(labels)
    beside = forecast.points[1].model_copy(update={"mechanism": "groups_at_once", "epsilon": "9"})
    both = forecast.model_copy(update={"points": [*forecast.points, beside]})
    assert "groups_at_once" in str(both)
    assert {line.get_label() for line in both.plot().get_lines()} == {*labels, "groups at once"}
    assert "9" not in [tick.get_text() for tick in both.plot().get_xticklabels()]
    study = owner.draft(draft.id).release()

    grant = study.grant("Acme")
    saved = grant.save(tmp_path / "grant.json")
    access = wire.GrantFile.model_validate_json(saved.read_text())
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert access.access.study_id == study.id
    assert access.token not in repr(grant)
    with pytest.raises(StateConflict, match="exists"):
        grant.save(saved)

    with StudyClient(access.curator_url, access.token, study.id) as vendor:
        vendor.ask(wire.QueryRequest(rows=[wire.RowPlays(row=0), wire.RowPlays(row=1)]), key=new_key())
        message = wire.RecommendationMessage(kind="recommendation", row=1)
        vendor.send_message(message, key=new_key())
    with bo.Measurer(curator.url, curator.token) as measurer:
        assert "&lt;b&gt;How much?" in measurer._repr_html_()
        first, second = [item for item in measurer.inbox if item.view.study_id == study.id]
        assert first.shown == {small.names[0]: pytest.approx(small.x[first.record - 1, 0])}
        with pytest.raises(Invalid, match="finite"):
            first.answer(float("nan"))
        first.answer(44.25)
        second.decline("consent")
        assert study.id not in {item.view.study_id for item in measurer.inbox}

    (message,) = study.messages
    message.decide("accepted", "thank you")
    assert study.messages[0].view.state == "accepted"
    assert "the largest outcome" in str(study)
    record = study.open_record(1)
    assert record[small.names[2]] in small.y
    account = study.account()
    assert (account.total_plays, account.budget.queries) == (2, 4)
    assert "no finite bound" in account._repr_html_()
    assert json.loads(study.report().model_dump_json())["report"]["studies"][0]["id"] == study.id
    assert "<table>" in dataset.account()._repr_html_()
    assert study.close().state == "closed"
    with pytest.raises(BlindoptError, match="state_conflict"):
        draft.release()


def test_a_private_tuning_is_previewed_charged_and_waited_for(owner, small):
    """The candidates for lambda are scored on the private file; the account of that file then names what it cost."""
    header, *rows = small.csv.splitlines()
    public = owner.upload(b"\n".join([header, *rows[:200]]), name="public", public=True)
    private = owner.upload(b"\n".join([header, *rows[200:]]), name="private")
    if private.view.overlaps:
        owner.decide_overlap(private.id, separate="another test has these records")
    first, second, label = small.names
    bounds = dict(zip(("lower", "upper"), small.bounds, strict=True))
    score = {"kind": "logistic", "training_dataset_id": public.id, "label": label, "threshold": 0.5, "loss": "zero_one"}
    tuning = {
        "name": "lambda",
        "grid": [{"name": "lambda", "values": [0.01, 1, 100], "scale": "log10"}],
        "score": score | {"features": [{"column": first} | bounds, {"column": second} | bounds]},
        "validation_dataset_id": private.id,
        "budget": {"epsilon": 2},
        "caps": {"epsilon": 3},
    }
    assert float(owner.preview_tuning(tuning).epsilon) <= 2
    assert private.account().epsilon == "0"
    done = owner.tune(tuning)
    assert done.state == "completed"
    assert done.result.hyperparameters["lambda"] in (0.01, 1, 100)
    assert 0 < float(private.account().epsilon) <= 2
    with pytest.raises(Invalid):
        owner.preview_tuning(tuning | {"grid": "all"})


def test_a_study_of_groups_runs_to_the_group_behind_a_candidate(owner):
    """200 houses at one place, and 100 at another: noise of scale 4 makes it the smaller one once in 10^10 times."""
    houses = "-122.33,47.61,6.1\n" * 200 + "-121.9,47.3,5.2\n" * 100
    draft = owner.upload(b"long,lat,log10_price\n" + houses.encode(), name="houses").study(
        "Where do houses sell best?",
        features={"long": (-122.6, -121.3), "lat": (47.1, 47.8)},
        outcome="log10_price",
        privacy={"mechanism": "groups", "epsilon": 0.5, "cells": {"kind": "grid", "parts": [20, 20]}, "min_count": 24},
        answers={"epsilon": 0.5, "centre": 5.75, "value_bound": 0.75},
        budget={"epsilon_per_row": 1, "queries": 50},
    )
    assert draft.check().price.row_epsilon == "1"
    study = draft.release()
    groups = study.groups()
    at = max(groups, key=lambda group: group.count)  # an empty group is a candidate now and then
    assert at.lower[0] < -122.33 < at.upper[0]
    assert at.lower[1] < 47.61 < at.upper[1]
    assert (at.spent, abs(at.count - 200) < 100) == ("0", True)
    opened = study.open_group(at.row)
    assert (opened.size, opened.mean, opened.records[:2]) == (200, pytest.approx(6.1), [1, 2])
    shown = dict(re.split(r"  +", line, maxsplit=1) for line in str(opened).splitlines()[:5])
    assert (shown["Candidate"], shown["Records"], shown["True mean outcome"]) == (str(at.row), "200", "6.1")
    assert study.groups() == groups
    answered = study.answer_all()  # printed as a table, the best first
    title, head, first, *_ = str(answered).splitlines()
    best = max(answered, key=lambda group: group.expected)
    assert (title, head.split()[:2]) == (f"Group {best.row} is expected to be the best.", ["Candidate", "Middle"])
    assert first.split()[0] == str(best.row)
    with pytest.raises(bo.Remote, match="open the group"):
        study.open_record(at.row)
