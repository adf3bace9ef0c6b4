"""A study of embeddings by REST: axes of a public sample, or of the records, from the draft to the erasure."""

import io

import numpy as np
import pytest

from blindopt import wire
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

D, N = 24, 300
NAMES = [f"e{j}" for j in range(D)]


@pytest.fixture(scope="module")
def curator(tmp_path_factory):
    made = InProcessCurator(tmp_path_factory.mktemp("axes"))
    yield made
    made.curator.close()
    made.close()


def embeddings(seed, columns=NAMES, n=N):
    """A few directions hold most of the variance, the same ones in each table."""
    spread = np.arange(1, D + 1) ** -1.5
    turned, _ = np.linalg.qr(np.random.default_rng(99).normal(size=(D, D)))
    x = (np.random.default_rng(seed).normal(size=(n, D)) * np.sqrt(spread / spread.sum()) * 8) @ turned.T
    lines = [",".join(map(repr, row)) for row in np.column_stack([x, x[:, 0]]).round(6).tolist()]
    return "\n".join([",".join([*columns, "y"]), *lines]) + "\n"


@pytest.fixture(scope="module")
def sample(curator):
    return curator.register(embeddings(1), public=True)


def draft(dataset, **release):
    features = [wire.Feature(column=c, lower=-20.0, upper=20.0, scale=1.0) for c in NAMES]
    spec = wire.StudyCreate(
        name="embeddings",
        dataset_id=dataset,
        features=features,
        measurement=wire.InboxMeasurement(question="How active?", direction="maximize", lower=0.0, upper=1.0),
        release=wire.IdentityRelease(mechanism="identity"),
        answers=wire.NoAnswerNoise(mechanism="none"),
        budget=wire.Budget(queries=10),
    ).model_dump(mode="json")
    return spec | {"release": {"epsilon": "2", "delta": 1e-5} | release}


def published(curator, dataset, **release):
    """A draft, its preview, and its view once it is released; with a grant."""
    made = curator.call("owner", "POST", "/v1/studies", json=draft(dataset, **release))
    preview = curator.call("owner", "POST", f"/v1/studies/{made['id']}:preview")
    body = {"spec_sha256": made["spec_sha256"], "confirm_high_risk": True}
    opened = curator.call("owner", "POST", f"/v1/studies/{made['id']}:release", json=body)
    curator.grant(made["id"])
    return made, preview, opened


def candidates(curator, study):
    reply = curator.send("modeler", "GET", f"/v1/studies/{study}/candidates")
    assert reply.is_success, reply.text
    return np.load(io.BytesIO(reply.content))


def erase(curator, dataset):
    for verb in ("archive", "erase"):
        curator.call("owner", "POST", f"/v1/datasets/{dataset}:{verb}")


def check_of(curator, dataset, **release):
    return curator.call("owner", "POST", "/v1/studies:check", json=draft(dataset, **release))


def test_auto_takes_axes_of_a_public_sample_with_the_same_promise(curator, sample):
    dataset = curator.register(embeddings(2))
    plain, named = (check_of(curator, dataset, **more) for more in ({}, {"sample_dataset_id": sample}))
    assert (plain["mechanism"], plain["tool"]["figures"]) == ("gaussian", {})
    assert "public sample" in " ".join(plain["tool"]["hints"])
    assert (named["mechanism"], "public sample" in " ".join(named["tool"]["hints"])) == ("axes", False)
    assert named["tool"]["figures"]["rho"] > 0.35
    assert named["price"]["release_epsilon"] == plain["price"]["release_epsilon"] == "2"
    of_axes = " It lies on axes of a public sample, in which no record takes part."
    assert named["guarantee"].replace(of_axes, "") == plain["guarantee"] != named["guarantee"]
    made, preview, opened = published(curator, dataset, sample_dataset_id=sample)
    report, r = opened["report"], made["spec"]["release"]["r"]
    assert (report["mechanism"], report["r"], report["n"]) == ("axes", r, N)
    assert 2 <= r < D
    for shown in (preview, report):
        assert (shown["noise_sd"], shown["guarantee"]) == (named["noise_sd"], named["guarantee"])
    assert {finding["attack"] for finding in preview["attacks"]} >= {"linkage", "membership", "column_space"}
    assert {feature["noise_sd"] for feature in report["features"]} == {None}  # columns are no features
    assert curator.call("owner", "GET", f"/v1/studies/{made['id']}/account")["release_epsilon"] == "2"
    view = curator.call("modeler", "GET", f"/v1/studies/{made['id']}")
    assert (view["r"], view["noise"]["sd"], view["mechanism"]) == (r, named["noise_sd"], "axes")
    assert candidates(curator, made["id"]).shape == (N, r)
    curator.check()
    curator.call("owner", "POST", f"/v1/studies/{made['id']}:close")
    erase(curator, dataset)
    curator.check()


def test_private_axes_are_charged_with_the_release_and_reported_as_they_ran(curator):
    dataset = curator.register(embeddings(3, n=3_000))
    checked = check_of(curator, dataset, radius=8.0, epsilon="5")
    assert (checked["mechanism"], checked["price"]["release_epsilon"]) == ("axes", "5")
    made, _, opened = published(curator, dataset, radius=8.0, epsilon="5")
    r = opened["report"]["r"]
    assert 2 <= r < D
    assert "found for epsilon 1 and delta 5e-06 of these." in opened["guarantee"] == opened["report"]["guarantee"]
    assert (opened["spec"]["release"]["r"], opened["report"]["delta"]) == (None, 1e-5)
    assert candidates(curator, made["id"]).shape == (3_000, r)
    view = curator.call("modeler", "GET", f"/v1/studies/{made['id']}")
    assert (view["epsilon"], view["noise"]["sd"]) == ("5", opened["report"]["noise_sd"])
    curator.check()


def test_a_sample_that_is_none_is_named_before_anything_is_charged(curator, sample):
    dataset = curator.register(embeddings(5))
    other = curator.register(embeddings(6, ["f0", *NAMES[1:]]), public=True)
    same = curator.register(embeddings(5), public=True)  # its axes would be those of the private records
    of_name = {dataset: "not declared public", other: "has no column e0", "ds_none": "is no dataset", same: "same file"}
    for name, says in of_name.items():
        reply = curator.send("owner", "POST", "/v1/studies", json=draft(dataset, sample_dataset_id=name))
        assert reply.status_code == 422
        assert reply.json()["errors"][0]["field"] == "release.sample_dataset_id"
        assert says in reply.json()["errors"][0]["message"]
    for release in ({"sample_dataset_id": sample, "radius": 1.0}, {"axes": "private", "radius": 1.0, "delta": None}):
        reply = curator.send("owner", "POST", "/v1/studies", json=draft(dataset, mechanism="axes", **release))
        assert reply.status_code == 422
    all_columns = {"mechanism": "axes", "sample_dataset_id": sample, "r": D, "delta": None}
    reply = curator.send("owner", "POST", "/v1/studies", json=draft(dataset, **all_columns))
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "release.delta")
    gone = curator.register(embeddings(7), public=True)
    made = curator.call("owner", "POST", "/v1/studies", json=draft(dataset, sample_dataset_id=gone))
    erase(curator, gone)
    reply = curator.send("owner", "POST", f"/v1/studies/{made['id']}:release")
    assert (reply.status_code, "erased" in reply.json()["detail"]) == (422, True)
    assert curator.call("owner", "GET", f"/v1/studies/{made['id']}/account")["release_epsilon"] == "0"
    assert curator.call("owner", "GET", f"/v1/studies/{made['id']}")["state"] == "draft"


def test_what_was_released_on_the_axes_of_a_sample_outlives_the_sample(curator):
    """The signed report says which attacks it lacks, and a further study reads the stored candidates."""
    gone, dataset = curator.register(embeddings(8), public=True), curator.register(embeddings(9))
    made = curator.call("owner", "POST", "/v1/studies", json=draft(dataset, sample_dataset_id=gone, r=2))

    def release(study):
        body = {"spec_sha256": study["spec_sha256"]}
        return curator.call("owner", "POST", f"/v1/studies/{study['id']}:release", json=body)

    first = release(made)
    erase(curator, gone)
    (reported,) = curator.call("owner", "POST", f"/v1/studies/{made['id']}:report")["report"]["studies"]
    assert reported["not_tried"] == "Not tried: the public sample of its axes cannot be read any more."
    further = made["spec"] | {"name": "further", "release_of": made["id"]}
    opened = release(curator.call("owner", "POST", "/v1/studies", json=further))
    assert (opened["state"], opened["release_sha256"]) == ("open", first["release_sha256"])
    curator.check()
