"""Sandboxes over REST: from public values alone, charged nothing, labelled everywhere."""

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import StorageUnavailable
from curator_service import store
from curator_service.privacy.guarantees import SANDBOX
from curator_service.releases import sandboxes as module
from curator_service.releases.sandboxes import Sandboxes
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.interventions import fail_at

FAR = 1e6
"""Where the private values lie: beyond every declared bound, so that a trace of them stands out."""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    made = InProcessCurator(tmp_path_factory.mktemp("sandboxes"))
    yield made
    made.check()
    made.curator.close()
    made.close()


def register(service, seed=1):
    rows = FAR + np.random.default_rng(seed).normal(size=(60, 4))
    lines = ["a,b,y,z", *(",".join(map(repr, row)) for row in rows.tolist())]
    return service.register("\n".join(lines))


def draft_of(service, dataset, **changed):
    spec = {
        "name": "real",
        "dataset_id": dataset,
        "features": [wire.Feature(column="b", lower=0.0, upper=1.0), wire.Feature(column="y", lower=-2.0, upper=2.0)],
        "measurement": wire.InboxMeasurement(
            source="inbox", direction="minimize", question="?", lower=0.0, upper=9.0, noise_variance=0.25
        ),
        "release": wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-6, sensitivity=0.25),
        "answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=4.0, centre=4.0),
        "budget": wire.Budget(epsilon_per_row="3"),
        "reply_after_ms": 5,
    }
    return service.draft(wire.StudyCreate(**(spec | changed)))


@pytest.fixture(scope="module")
def pair(service):
    """A draft on private records, and its sandbox."""
    draft = draft_of(service, register(service))
    return draft, service.call("owner", "POST", f"/v1/studies/{draft['id']}:sandbox")


def test_it_is_open_with_the_same_settings_on_made_up_rows(service, pair):
    draft, sandbox = pair
    assert (sandbox["state"], sandbox["sandbox"], draft["sandbox"]) == ("open", True, False)
    real, made_up = draft["spec"], sandbox["spec"]
    same = ("features", "release", "answers", "budget", "privacy_unit", "kernel", "reply_after_ms")
    assert [made_up[field] for field in same] == [real[field] for field in same]
    measurement = {"source": "column", "column": "y_", "direction": "minimize", "noise_variance": 0.25}
    assert made_up["measurement"] == measurement  # a feature is called y already
    preview = service.call("owner", "POST", "/v1/studies:check", json=real)
    assert sandbox["report"]["noise_sd"] == preview["noise_sd"]
    assert sandbox["report"]["n"] == 60


def test_no_record_is_in_it_and_every_value_is_within_the_declared_bounds(service, pair):
    _, sandbox = pair
    dataset = service.call("owner", "GET", f"/v1/datasets/{sandbox['spec']['dataset_id']}")
    assert (dataset["public"], dataset["sandbox"], dataset["rows"]) == (True, True, 60)
    ranges = [(column["name"], column["minimum"], column["maximum"]) for column in dataset["columns"]]
    for (name, low, high), (expected, lower, upper) in zip(
        ranges, [("b", 0, 1), ("y", -2, 2), ("y_", 0, 8)], strict=True
    ):
        assert (name, lower <= low < high <= upper) == (expected, True)


def test_it_is_made_without_the_records(service, monkeypatch):
    """The files of the real dataset are gone; a preview, the negative control, needs them."""
    dataset = register(service, seed=7)
    draft = draft_of(service, dataset, name="blind")
    path = service.curator.vault.records(dataset)
    path.rename(path.with_suffix(".away"))
    try:
        assert service.send("owner", "POST", f"/v1/studies/{draft['id']}:sandbox").status_code == 200
        with pytest.raises(StorageUnavailable, match="missing"):
            service.curator.releases.preview(draft["id"])
    finally:
        path.with_suffix(".away").rename(path)


def test_the_real_dataset_and_study_are_charged_nothing(service, pair):
    draft, sandbox = pair
    account = service.call("owner", "GET", f"/v1/studies/{draft['id']}/account")
    assert (account["total_epsilon"], account["total_plays"]) == ("0", 0)
    ledger = service.call("owner", "GET", f"/v1/studies/{draft['id']}/ledger")
    assert ledger["entries"] == []
    assert service.call("owner", "GET", f"/v1/studies/{draft['id']}")["state"] == "draft"
    whole = service.call("owner", "GET", f"/v1/datasets/{draft['spec']['dataset_id']}/account")
    assert (whole["epsilon"], whole["delta"], whole["studies"]) == ("0", "0", 0)
    charged = service.call("owner", "GET", f"/v1/studies/{sandbox['id']}/account")
    assert charged["total_epsilon"] == "1"  # the negative control: its own account goes as a real one would


def test_it_is_labelled_for_everybody(service, pair):
    draft, sandbox = pair
    path = f"/v1/studies/{sandbox['id']}"
    grant = service.call("owner", "POST", f"{path}/grants", json={"name": "vendor"})
    assert grant["sandbox"]
    service.tokens["modeler"] = grant["token"]
    view = service.call("modeler", "GET", path)
    assert view["sandbox"]
    assert view["measurement_source"] == "column"
    for text in (view["guarantee"], sandbox["guarantee"], sandbox["report"]["guarantee"]):
        assert text.startswith(SANDBOX)
        assert "differential privacy" in text
    assert SANDBOX == "Sandbox: made-up records and outcomes. No person is behind it."
    (listed,) = service.call("owner", "GET", f"{path}/grants")["grants"]
    assert listed["sandbox"]
    sandboxes = {s["id"] for s in service.call("owner", "GET", "/v1/studies?page_size=100")["studies"] if s["sandbox"]}
    assert sandbox["id"] in sandboxes
    assert draft["id"] not in sandboxes
    assert SANDBOX not in draft["guarantee"]
    answered = service.call("modeler", "POST", f"{path}/queries", json={"rows": [{"row": 3}]})
    assert answered["state"] == "answered"  # at once, though people would measure the real one


def test_what_cannot_have_one_is_refused(service, pair):
    draft, sandbox = pair
    again = service.send("owner", "POST", f"/v1/studies/{sandbox['id']}:sandbox")
    assert (again.status_code, "itself" in again.json()["detail"]) == (409, True)
    closed = draft_of(service, draft["spec"]["dataset_id"], name="closed")
    for verb in ("release", "close"):
        service.call("owner", "POST", f"/v1/studies/{closed['id']}:{verb}")
    refused = service.send("owner", "POST", f"/v1/studies/{closed['id']}:sandbox")
    assert (refused.status_code, "closed" in refused.json()["detail"]) == (409, True)
    assert service.send("owner", "POST", "/v1/studies/std_0000000000000000:sandbox").status_code == 404


def counts(service):
    with service.context.database.read() as db:
        return len(list(store.every(db, store.studies))), len(store.page(db, store.datasets, after=0, limit=1_000))


def test_a_repeated_request_makes_one_sandbox_also_where_the_release_was_interrupted(service, pair):
    draft, _ = pair
    path = f"/v1/studies/{draft['id']}:sandbox"
    studies, datasets = counts(service)
    releases = service.curator.releases

    class Interrupted:
        def release(self, request, identity):
            raise OSError("the machine went down")

    context = service.context
    service.curator.sandboxes = Sandboxes(context, service.curator.vault, Interrupted())
    assert service.send("owner", "POST", path, key="again").status_code == 500
    service.curator.sandboxes = Sandboxes(context, service.curator.vault, releases)
    first = service.send("owner", "POST", path, key="again")
    second = service.send("owner", "POST", path, key="again")
    assert (first.status_code, first.content) == (200, second.content)
    assert counts(service) == (studies + 1, datasets + 1)
    assert first.json()["state"] == "open"


def test_a_failure_before_the_draft_leaves_no_file(service, pair, monkeypatch):
    draft, _ = pair
    folder = service.curator.vault.records("x").parent
    before = sorted(path.name for path in folder.glob("*.npy"))
    fail_at(monkeypatch, module, "fitted", OSError("no"))
    assert service.send("owner", "POST", f"/v1/studies/{draft['id']}:sandbox").status_code == 500
    assert sorted(path.name for path in folder.glob("*.npy")) == before


def test_one_of_persons_has_made_up_persons_and_the_same_noise(service):
    lines = ["a,b,y,who", *(f"{i % 5},{i % 7},{i % 3},p{i // 2}" for i in range(21))]
    dataset = service.register("\n".join(lines), person="who", rows_per_person="2")
    draft = draft_of(service, dataset, name="visits")
    preview = service.call("owner", "POST", "/v1/studies:check", json=draft["spec"])
    made = service.call("owner", "POST", f"/v1/studies/{draft['id']}:sandbox")
    assert (made["spec"]["rows_per_person"], made["spec"]["person_column"]) == (2, True)
    assert made["report"]["noise_sd"] == preview["noise_sd"]
    made_up = service.call("owner", "GET", f"/v1/datasets/{made['spec']['dataset_id']}")
    assert (made_up["rows"], made_up["persons"], made_up["rows_per_person"]) == (21, 11, 2)


def test_every_mechanism_makes_one(service):
    dataset = register(service, seed=3)
    for release in (
        wire.AutoRelease(epsilon="1"),
        wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="4", delta=1e-5, r=1, acknowledge_refuted=True),
    ):
        draft = draft_of(service, dataset, name="m", release=release, budget=wire.Budget(queries=9))
        made = service.call("owner", "POST", f"/v1/studies/{draft['id']}:sandbox")
        assert made["report"]["status"] == ("sound" if release.mechanism == "auto" else "refuted")
