"""Studies that cannot work: each caution names its column, has a link, and goes when its cause goes."""

import json

import numpy as np
import pytest

from blindopt import wire
from curator_service.privacy.prices import ONE_FEATURE
from service_kit.store import audit_log
from tests import beside
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

N = 200
BOUNDS = {"age": (0.0, 120.0), "height": (100.0, 220.0)}


@pytest.fixture(scope="module")
def curator(tmp_path_factory):
    made = InProcessCurator(tmp_path_factory.mktemp("usefulness"))
    yield made
    made.curator.close()
    made.close()


def table(seed=3):
    """The columns of a clinic's table, in which nothing is wrong."""
    draw = np.random.default_rng(seed)
    return {
        "age": draw.integers(18, 95, N).astype(float),
        "height": np.round(draw.uniform(145, 205, N), 1),
        "hba1c": np.round(draw.uniform(4, 14, N), 2),
    }


def csv_of(columns):
    rows = zip(*columns.values(), strict=True)
    return ",".join(columns) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


def spec_of(dataset, columns=tuple(BOUNDS), **more):
    fields = {
        "name": "s",
        "dataset_id": dataset,
        "features": [wire.Feature(column=c, lower=BOUNDS[c][0], upper=BOUNDS[c][1]) for c in columns],
        "measurement": wire.ColumnMeasurement(column="hba1c", direction="maximize"),
        "release": wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=0.5),
        "answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", centre=10.0, value_bound=10.0),
        "budget": wire.Budget(queries=10, epsilon_per_row="5"),
    }
    return wire.StudyCreate(**fields | more)


def checked(curator, columns, kinds=None, **more):
    """The check of a study on a file with these columns."""
    dataset = curator.register(csv_of(columns), **({"columns": json.dumps(kinds)} if kinds else {}))
    return curator.call("owner", "POST", "/v1/studies:check", json=spec_of(dataset, **more).model_dump(mode="json"))


def by_code(reply):
    useful = {"few_records", "answers_miss_outcomes", "column_constant", "feature_clipped", "outcomes_clipped"}
    useful |= {"records_copied", "values_far", "label_repeated", "bound_is_extreme"}
    cautions = [each for each in (*reply["cautions"], *reply["record_cautions"]) if each["code"] in useful]
    assert len({each["message"] for each in cautions}) == len(cautions)
    return {each["code"]: each for each in cautions}


PEOPLE = {"measurement": wire.InboxMeasurement(question="?", direction="maximize", lower=3.0, upper=20.0)}


def few(columns):
    return {name: values[:1] for name, values in columns.items()}


def in_metres(columns):
    columns["height"][::3] = np.round(columns["height"][::3] / 100, 3)
    return columns


def constant(name):
    def change(columns):
        return columns | {name: np.full(N, 7.0 if name == "hba1c" else 150.0)}

    return change


def copied(columns):
    return {name: np.concatenate([values[: N // 2]] * 2) for name, values in columns.items()}


ROWS = {
    "few_records": (few, {}, "The study has 1 record. A search needs at least 10.", "data"),
    "column_constant": (constant("hba1c"), {}, "hba1c: the same in every record", "measurement"),
    "column_constant ": (constant("height"), {}, "height: the same in every record", "features"),
    "feature_clipped": (in_metres, {}, "height: 67 of 200 values lie outside 100 to 220", "features"),
    "values_far": (in_metres, {}, "height: 67 of 200 values lie far from the rest", "data"),
    "outcomes_clipped": (
        dict,
        {"answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)},
        "hba1c: Every outcome lies outside -1 to 1",
        "answers",
    ),
    "records_copied": (copied, {}, "100 of 200 records are exact copies of another record. If they are", "answers"),
    "answers_miss_outcomes": (
        dict,
        PEOPLE | {"answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", centre=5.0, value_bound=4.0)},
        "Outcomes are declared from 3 to 20, and answers cover 1 to 9.",
        "answers",
    ),
}


@pytest.mark.parametrize("code", ROWS)
def test_each_cause_has_its_caution_once_with_a_fix_and_without_the_cause_it_goes(curator, code):
    change, more, says, step = ROWS[code]
    caution = by_code(checked(curator, change(table()), **more))[code.strip()]
    assert says in caution["message"]
    assert caution["fix"]["step"] == step
    assert caution["level"] in ("note", "high")
    sound = {name: value for name, value in more.items() if name == "measurement"}
    assert by_code(checked(curator, table(seed=4), **sound)) == {}


def test_the_fix_of_the_answers_takes_the_declared_range_alone(curator):
    _, more, *_ = ROWS["answers_miss_outcomes"]
    fix = by_code(checked(curator, table(seed=5), **more))["answers_miss_outcomes"]["fix"]
    assert fix == {"step": "answers", "words": "Use 3 to 20", "use": [3.0, 20.0]}
    of_records = (each for each in checked(curator, in_metres(table(seed=6)))["record_cautions"])
    assert all(each["fix"]["use"] is None for each in of_records)


def test_columns_that_were_made_from_a_public_list_raise_nothing(curator):
    columns = table(seed=7) | {
        "sex": np.array(["f", "m"] * (N // 2)),
        "grade": np.array(["a", "b", "b", "b"] * (N // 4)),
    }
    kinds = ["age", "height", "hba1c", {"column": "sex", "kind": "one_hot", "values": ["f", "m"]}]
    kinds.append({"column": "grade", "kind": "codes", "values": ["a", "b"]})
    features = [wire.Feature(column=c, lower=0.0, upper=1.0) for c in ("sex=f", "sex=m")]
    features.append(wire.Feature(column="grade", lower=1.0, upper=2.0))
    assert by_code(checked(curator, columns, kinds, features=features)) == {}


def test_two_equal_labels_are_a_caution_that_does_not_quote_them(curator):
    names = [f"Zq label {i}" for i in range(N)]
    kinds = ["age", "height", "hba1c", {"column": "who", "kind": "label"}]
    for repeated in (0, 2):
        columns = table(seed=8 + repeated) | {"who": np.array([names[0]] * repeated + names[repeated:])}
        cautions = by_code(checked(curator, columns, kinds))
        assert set(cautions) == ({"label_repeated"} if repeated else set())
    assert cautions["label_repeated"]["message"].startswith("2 records have a label that another record has too")
    assert "Zq" not in json.dumps(cautions)


def test_a_preview_says_what_the_check_says(curator):
    dataset = curator.register(csv_of(in_metres(table(seed=11))))
    spec = spec_of(dataset)
    check = curator.call("owner", "POST", "/v1/studies:check", json=spec.model_dump(mode="json"))
    preview = curator.call("owner", "POST", f"/v1/studies/{curator.draft(spec)['id']}:preview")
    assert [each for each in preview["record_cautions"] if each in check["record_cautions"]] == check["record_cautions"]
    assert {"feature_clipped", "values_far"} <= set(by_code(preview))


# --- the line between public and private -----------------------------------------------------------


def test_files_that_differ_in_one_record_are_the_same_but_for_what_is_for_the_owner_alone(tmp_path):
    """The neighbour has a height in metres, below the bounds, which is far from all others."""
    columns = table(seed=12)
    neighbour = columns | {"height": np.concatenate([columns["height"][:-1], [1.7]])}
    replies, pictures = [], []
    for i, values in enumerate((columns, neighbour)):
        alone = InProcessCurator(tmp_path / str(i))
        dataset = alone.register(csv_of(values))
        spec = spec_of(dataset).model_dump(mode="json")
        reply = alone.call("owner", "POST", "/v1/studies:check", json=spec)
        private = reply.pop("record_cautions")
        replies.append(json.dumps(reply).replace(dataset, "").encode())
        pictures.append((private, alone.call("owner", "GET", f"/v1/datasets/{dataset}/picture")))
        alone.curator.close()
        alone.close()
    assert replies[0] == replies[1]
    assert pictures[0][0] == []
    assert [each["code"] for each in pictures[1][0]] == ["values_far"]
    assert pictures[0][1] != pictures[1][1]


def test_a_histogram_is_that_of_the_values_and_for_owners_alone(curator):
    columns = table(seed=13)
    dataset = curator.register(csv_of(columns))
    path = f"/v1/datasets/{dataset}/picture"
    with curator.context.database.read() as db:
        before = sum(1 for _ in audit_log.walk(db))
    for each in curator.call("owner", "GET", path)["columns"]:
        counts, ends = np.histogram(columns[each["column"]], bins=20)
        assert each["counts"] == counts.tolist()
        assert (each["low"], each["high"]) == (ends[0], ends[-1])
    with curator.context.database.read() as db:
        assert sum(1 for _ in audit_log.walk(db)) == before
    curator.tokens["auditor"] = curator.context.authentication.issue("auditor", "auditor", days=1)[0].text
    for role in ("measurer", "auditor"):
        assert curator.send(role, "GET", path).status_code == 403


def test_after_an_erasure_nothing_of_the_picture_is_left(curator):
    dataset = curator.register(csv_of(table(seed=14)))
    path = f"/v1/datasets/{dataset}"
    counts = curator.call("owner", "GET", f"{path}/picture")["columns"][0]["counts"]
    for act in ("archive", "erase"):
        curator.call("owner", "POST", f"{path}:{act}")
    assert curator.send("owner", "GET", f"{path}/picture").status_code == 410
    assert dataset not in curator.curator.vault.pictures
    assert str(counts).encode() not in beside.stored(curator.context.database.path)


def test_answers_like_chance_are_released_after_a_confirmation_alone(curator):
    """10 answers at epsilon 1 are worth less than 1 exact one. A release without a body is refused too."""
    dataset = curator.register(csv_of(table(seed=11)))
    draft = curator.draft(spec_of(dataset, **PEOPLE))
    check = curator.call("owner", "POST", "/v1/studies:check", json=draft["spec"])
    (caution,) = (each for each in check["cautions"] if each["code"] == "answers_hide_search")
    assert check["answers_mean"]["sentences"][-1] in caution["message"]
    assert check["tool"]["name"] == "not_useful"
    path, seen = f"/v1/studies/{draft['id']}:release", {"spec_sha256": draft["spec_sha256"]}
    for body in ({}, {"json": seen}, {"json": seen | {"confirm_high_risk": True}}):
        reply = curator.send("owner", "POST", path, **body)
        assert (reply.status_code, "confirm_chance" in reply.json()["detail"]) == (409, True)
    assert curator.call("owner", "POST", path, json=seen | {"confirm_chance": True})["state"] == "open"
    exact = curator.draft(spec_of(dataset, **PEOPLE, answers=wire.NONE, budget=wire.Budget(queries=10)))
    assert curator.call("owner", "POST", f"/v1/studies/{exact['id']}:release")["state"] == "open"


def test_theorem_t_counts_the_answers_of_a_record_and_is_not_said_of_exact_ones(curator):
    """The caps allow epsilon 3 of a record: 1 by the release, 2 by answers. By the release alone it would be e / n."""
    dataset = curator.register(csv_of(table(seed=15)))
    whole = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=2**0.5)
    tools = []
    for cap, answers in (("3", {}), ("32", {}), (None, {"answers": wire.NONE})):
        spec = spec_of(dataset, **PEOPLE | answers, release=whole, budget=wire.Budget(queries=10, epsilon_per_row=cap))
        tools.append(curator.call("owner", "POST", "/v1/studies:check", json=spec.model_dump(mode="json"))["tool"])
    probabilities = [tool["figures"].get("probability") for tool in tools]
    assert probabilities == [pytest.approx(np.exp(3) / N), None, None]
    assert ["Theorem T" in tool["why"] for tool in tools] == [True, False, False]


def test_a_check_offers_one_feature_at_a_time_with_what_each_promise_costs_and_auto_never_takes_it(curator):
    """Six features, of each of which a fifth of its range is hidden, at epsilon 3. By hand, in the features' units."""
    rng = np.random.default_rng(0)
    columns = {f"x{j}": rng.random(N) * (j + 1) for j in range(6)} | {"hba1c": rng.random(N)}
    features = [wire.Feature(column=f"x{j}", lower=0.0, upper=j + 1.0, hidden_change=0.2 * (j + 1)) for j in range(6)]
    auto = wire.AutoRelease(epsilon="3")
    reply = checked(curator, columns, features=features, release=auto, budget=wire.Budget(epsilon_per_row="9"))
    assert reply["noise_sd"] == pytest.approx(np.sqrt(7) / 3)
    both = {each["promise"]: each for each in reply["promises"]}
    for promise, sd, epsilons in (
        ("euclidean", np.sqrt(7) / 3, [3, 3 * np.sqrt(2), 3 * np.sqrt(6)]),
        ("one_feature", np.sqrt(2) / 3, [3, 6, 18]),
    ):
        assert both[promise]["noise_sds"] == pytest.approx([0.2 * (j + 1) * sd for j in range(6)])
        assert both[promise]["epsilons"] == pytest.approx(epsilons)
    assert both["one_feature"]["rho"] >= both["euclidean"]["rho"] + 0.1
    assert "one_feature" in reply["tool"]["hints"][0]
    changed = auto.model_copy(update={"promise": "one_feature"})
    taken = checked(curator, columns, features=features, release=changed, budget=wire.Budget(epsilon_per_row="9"))
    assert taken["noise_sd"] == pytest.approx(np.sqrt(2) / 3)
    assert not any("one_feature" in hint for hint in taken["tool"]["hints"])
    assert [ONE_FEATURE in each["account"]["sentence"] for each in (reply, taken)] == [False, True]
    few_features = checked(curator, columns, features=features[:3], release=auto)
    assert not any("one_feature" in hint for hint in few_features["tool"]["hints"])
    turned = auto.model_copy(update={"rotate": True})
    assert checked(curator, columns, features=features, release=turned)["promises"] == []
