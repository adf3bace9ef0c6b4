"""Nothing private in a public input: what the owner reads beside figures that are made from the records."""

import pytest

from blindopt import wire
from curator_service.privacy.guarantees import CHOOSING
from tests.curator_service.use_cases.inbox.in_process_curator import InProcessCurator

ROWS = "a,b,y\n" + "".join(f"{i},{i * i % 11},{i % 5}\n" for i in range(12))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    made = InProcessCurator(tmp_path_factory.mktemp("inputs"))
    yield made
    made.curator.close()
    made.close()


@pytest.fixture(scope="module", params=["private", "public"])
def draft(request, service):
    """A draft on private records, and one on public ones, with whether they are private."""
    data = {"name": request.param, "public": "true" if request.param == "public" else "false"}
    dataset = service.call("owner", "POST", "/v1/datasets", files={"file": ("a.csv", ROWS.encode())}, data=data)["id"]
    spec = wire.StudyCreate(
        name="inputs",
        dataset_id=dataset,
        features=[wire.Feature(column=c, lower=0.0, upper=20.0) for c in "ab"],
        measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
        release=wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=0.25),
        kernel=wire.Kernel(lengthscale=0.3, signal_variance=1.0, noise_variance=0.01),
    )
    study = service.call("owner", "POST", "/v1/studies", json=spec.model_dump(mode="json"))
    return study, request.param == "private"


def test_the_gap_names_every_public_input_and_whether_to_release(draft):
    study, _ = draft
    (gap,) = (sentence for sentence in study["not_protected"] if sentence.startswith("Public inputs: "))
    for name in ("epsilon", "delta", "Delta", "r", "mechanism", "caps", "bounds", "scales", "kernel"):
        assert f" {name}," in gap.replace("the ", ""), name
    assert "whether to release at all" in gap
    assert "chosen by looking" in gap


def test_a_preview_of_private_records_says_that_choosing_by_it_leaks(service, draft):
    study, is_private = draft
    report = service.call("owner", "POST", f"/v1/studies/{study['id']}:preview")
    assert report["choosing"] == (CHOOSING if is_private else None)


def test_a_forecast_on_private_records_says_that_choosing_by_it_leaks(service, draft):
    study, is_private = draft
    path = f"/v1/studies/{study['id']}/forecasts"
    body = {"epsilons": ["1"], "mechanisms": ["identity"], "functions": 2, "queries": 2}
    forecast = service.call("owner", "POST", path, json=body)
    assert forecast["choosing"] == (CHOOSING if is_private else None)


def test_the_report_of_a_release_is_no_reason_to_choose(service, draft):
    study, _ = draft
    released = service.call("owner", "POST", f"/v1/studies/{study['id']}:release")
    assert released["report"]["choosing"] is None
