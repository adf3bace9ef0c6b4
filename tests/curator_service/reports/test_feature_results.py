"""Results by feature: the right points, in their own units, and a relevance that finds the feature that matters."""

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import StudyNotOpen
from tests.curator_service.budget.file_of_records import FileOfRecords

N = 60
X = np.random.default_rng(5).uniform([0, 100, -1], [1, 200, 1], size=(N, 3))
Y = 10 * np.sin(5 * X[:, 0]) + 0.5 * X[:, 2]
NOISE = np.random.default_rng(8).normal(size=N)
MORE = [f"more{i}" for i in range(18)]
CSV = "\n".join(
    [
        ",".join(["a", "b", "c", "y", "equal", "noise", *MORE]),
        *(",".join(map(repr, [*X[i].tolist(), float(Y[i]), 0.1, float(NOISE[i]), *[0.5] * 18])) for i in range(N)),
    ]
)
FEATURES = [
    wire.Feature(column="a", lower=0.0, upper=1.0),
    wire.Feature(column="b", lower=100.0, upper=200.0, scale=3.0),
    wire.Feature(column="c", lower=-1.0, upper=1.0),
]
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="900", value_bound=20.0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    made = FileOfRecords(tmp_path_factory.mktemp("results"), csv=CSV.encode())
    yield made
    made.close()


def _results(file, study):
    return wire.StudyResults.model_validate(file.in_process.call("owner", "GET", f"/v1/studies/{study}/results"))


def _ask(file, study, rows):
    return file.ask(study, *rows).json()["answers"]


@pytest.mark.parametrize("answers", [wire.NONE, LAPLACE], ids=["exact", "laplace"])
def test_points_are_the_answers_as_they_left_against_the_records_own_values(file, answers):
    study = file.study(features=FEATURES, answers=answers)
    empty = _results(file, study)
    assert (empty.answers, empty.problem, [f.points for f in empty.features]) == (
        0,
        "Relevance needs answers about 6 candidates.",
        [[]] * 3,
    )
    released = [*_ask(file, study, range(30)), *_ask(file, study, [3, *range(30, 45)])]
    results = _results(file, study)
    assert (results.answers, results.fitted) == (46, 46)
    assert [f.column for f in results.features] == ["a", "b", "c"]
    records = [file.order(study)[answer["row"]] for answer in released]
    for feature, column in zip(results.features, X.T, strict=True):
        assert [(p.row, p.y) for p in feature.points] == [(a["row"], a["y"]) for a in released]
        assert [p.value for p in feature.points] == column[records].tolist()
        assert [p.measured for p in feature.points] == Y[records].tolist()
    if answers is wire.NONE:
        assert all(p.y == p.measured for p in results.features[0].points)
    first, second, third = (feature.relevance for feature in results.features)
    assert first > 0.8 > 0.2 > max(second, third)
    assert first + second + third == pytest.approx(1)
    again = _results(file, study)
    assert again == results


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("answers", [wire.NONE, LAPLACE], ids=["exact", "laplace"])
def test_what_was_found_is_counted_beside_what_random_candidates_would_give(file, answers, direction):
    """Against the records themselves; a record that was measured twice counts once. A best record has no such count."""
    gain = Y if direction == "maximize" else -Y
    level = np.sort(gain)[-6]  # of 60: a tenth
    stated = wire.FindMany(threshold=float(level if direction == "maximize" else -level))
    measurement = wire.ColumnMeasurement(column="y", direction=direction)
    rows = [7, *range(5, 35)]
    for goal in (stated, wire.FindMany(share=0.1)):
        study = file.study(features=FEATURES, answers=answers, measurement=measurement, goal=goal)
        _ask(file, study, rows[:1])
        _ask(file, study, rows[1:])
        good, records = _results(file, study).good, [file.order(study)[row] for row in set(rows)]
        assert (good.found, good.queried) == (sum(gain[records] >= level), 30)
        assert (good.threshold, good.by_chance) == (stated.threshold, pytest.approx(3.0))
        assert "exact outcomes of all" in good.label
    assert _results(file, file.study(features=FEATURES, answers=answers, measurement=measurement)).good is None


@pytest.mark.parametrize(
    ("goal", "figures"),
    [(wire.FindMany(threshold=2.0), (1, 2.0, None)), (wire.FindMany(share=0.1), (None, None, pytest.approx(0.2)))],
    ids=["stated", "share"],
)
def test_where_people_measure_only_what_they_measured_counts(file, goal, figures):
    """Of three candidates two are measured."""
    measurement = wire.InboxMeasurement(question="How much?", direction="maximize")
    study = file.study(features=FEATURES, answers=wire.NONE, measurement=measurement, goal=goal)
    for row in (3, 8, 9):
        file.ask(study, row)
    items = file.in_process.call("owner", "GET", f"/v1/inbox?study_id={study}")["items"]
    for item, value in zip(items[:2], (2.5, 1.5), strict=True):
        values = [{"measurement_id": item["id"], "value": value}]
        file.in_process.call("owner", "POST", f"/v1/queries/{item['query_id']}:answer", json={"values": values})
    good = _results(file, study).good
    assert (good.queried, good.found, good.threshold, good.by_chance) == (2, *figures)
    assert "a vendor's recommendation" in good.label


def test_few_or_equal_answers_and_a_draft_have_no_relevance(file):
    study = file.study(features=FEATURES, answers=wire.NONE)
    for _ in range(7):
        _ask(file, study, [1])
    assert _results(file, study).problem == "Relevance needs answers about 6 candidates."
    wide = [*FEATURES, *(wire.Feature(column=column, lower=0.0, upper=1.0) for column in MORE)]
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-6)
    of_many = file.study(features=wide, release=release, answers=wire.NONE)
    assert "20 features at most" in _results(file, of_many).problem
    _ask(file, study, range(2, 46))
    assert _results(file, study).problem is None
    for column, problem in (("equal", "All answers are equal"), ("noise", "do not show yet which features matter")):
        measurement = wire.ColumnMeasurement(column=column, direction="maximize")
        other = file.study(features=FEATURES, measurement=measurement, answers=wire.NONE)
        _ask(file, other, range(50))
        assert problem in _results(file, other).problem
    draft = file.draft(features=FEATURES)
    refused = file.in_process.send("owner", "GET", f"/v1/studies/{draft}/results")
    assert refused.json()["code"] == StudyNotOpen.code
