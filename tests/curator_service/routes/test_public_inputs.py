"""Nothing private in a public input: what the owner reads beside figures that are made from the records."""

import pytest

from blindopt import wire
from curator_service.privacy.guarantees import CHOOSING
from tests import beside
from tests.builders import a_study
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

ROWS = "a,b,y\n" + "".join(f"{i},{i * i % 11},{i % 5}\n" for i in range(12))


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    made = InProcessCurator(folder)
    made.data = folder / "data"
    yield made
    made.curator.close()
    made.close()


@pytest.fixture(scope="module", params=["private", "public"])
def draft(request, service):
    """A draft on private records, and one on public ones, with whether they are private."""
    dataset = service.register(ROWS, public=request.param == "public")
    kernel = wire.Kernel(lengthscale=0.3, signal_variance=1.0, noise_variance=0.01)
    release = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=0.25)
    spec = a_study(release, dataset_id=dataset, columns="ab", upper=20.0, kernel=kernel)
    return service.draft(spec), request.param == "private"


def test_the_gap_names_every_public_input_and_whether_to_release(draft):
    study, _ = draft
    (gap,) = (sentence for sentence in study["not_protected"] if sentence.startswith("Public inputs: "))
    for name in ("epsilon", "delta", "hidden change", "r", "mechanism", "caps", "bounds", "scales", "kernel"):
        assert f" {name}," in gap.replace("the ", ""), name
    assert "whether to release are taken as public" in gap
    assert "looking at the records" in gap


def test_a_preview_of_private_records_says_that_choosing_by_it_leaks(service, draft):
    study, is_private = draft
    report = service.call("owner", "POST", f"/v1/studies/{study['id']}:preview")
    assert report["choosing"] == (CHOOSING if is_private else None)


def test_a_forecast_on_private_records_says_that_choosing_by_it_leaks(service, draft):
    study, is_private = draft
    path = f"/v1/studies/{study['id']}/forecasts"
    body = {"epsilons": ["1"], "mechanisms": ["identity"], "functions": 2, "queries": 2}
    forecast = service.call("owner", "POST", path, json=body | {"rows": "records"})
    assert forecast["choosing"] == (CHOOSING if is_private else None)
    assert service.call("owner", "POST", path, json=body)["choosing"] is None  # public rows, by default


def test_the_report_of_a_release_is_no_reason_to_choose(service, draft):
    study, _ = draft
    confirmed = {"spec_sha256": study["spec_sha256"], "confirm_high_risk": True}  # exact answers
    released = service.call("owner", "POST", f"/v1/studies/{study['id']}:release", json=confirmed)
    assert released["report"]["choosing"] is None


# --- cautions ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def careless(service):
    """A draft that no expert would pass, on records whose extremes are its bounds; the reply and the study."""
    rows = "a,b,y\n" + "".join(f"{0.123456789 + i},{i * i % 11 - 0.5},{i % 5}\n" for i in range(12))
    bounds = {"a": (0.123456789, 30.0), "b": (-20.0, 20.0)}
    features = [wire.Feature(column=c, lower=lower, upper=upper) for c, (lower, upper) in bounds.items()]
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="1000", delta=0.1, sensitivity=0.01)
    spec = a_study(release, dataset_id=service.register(rows), features=features)
    return service.draft(spec), service.call("owner", "POST", "/v1/studies:check", json=spec.model_dump(mode="json"))


PUBLIC_CODES = ["epsilon_large", "delta_large", "sensitivity_small", "exact_answers", "no_cap"]


def codes(cautions):
    return [caution["code"] for caution in cautions]


def test_check_preview_and_release_tell_the_same_cautions(service, careless):
    study, checked = careless
    path = f"/v1/studies/{study['id']}"
    report = service.call("owner", "POST", f"{path}:preview")
    assert codes(checked["cautions"]) == PUBLIC_CODES
    assert all(set(caution) == {"code", "field", "message", "level", "fix"} for caution in checked["cautions"])
    assert report["cautions"] == checked["cautions"]
    assert codes(checked["record_cautions"]) == ["bound_is_extreme"]
    assert report["record_cautions"] == checked["record_cautions"]
    confirmed = {"spec_sha256": study["spec_sha256"], "confirm_high_risk": True}  # exact answers
    released = service.call("owner", "POST", f"{path}:release", json=confirmed)
    assert released["report"]["cautions"] == checked["cautions"]  # as accepted
    assert released["report"]["record_cautions"] == []
    assert service.call("owner", "GET", path)["report"]["cautions"] == checked["cautions"]


def test_what_follows_from_the_records_is_stored_nowhere_and_told_to_nobody_else(service, careless, caplog):
    study, checked = careless
    (caution,) = checked["record_cautions"]
    assert "0.123456789" in caution["message"]
    contents = {path: path.read_bytes() for path in service.data.rglob("*") if path.is_file()}
    contents[service.data] = stored = beside.stored(service.data / "curator.sqlite")
    for path, content in contents.items():
        assert b"bound_is_extreme" not in content, path
        assert b"is exactly the" not in content, path
    assert "bound_is_extreme" not in caplog.text
    # The negative control: public cautions are stored with the release.
    assert b"sensitivity_small" in stored
    token = service.call("owner", "POST", f"/v1/studies/{study['id']}/grants", json={"name": "m"})["token"]
    service.tokens["modeler"] = token
    view = service.send("modeler", "GET", f"/v1/studies/{study['id']}")
    assert view.status_code == 200
    assert "caution" not in view.text


def test_a_report_of_a_tuning_that_an_older_version_stored_is_read():
    fields = dict.fromkeys(wire.TuningReport.model_fields, "0") | {"points": 1, "records": 2, "constants": {}}
    fields |= {"index_epsilon": None, "value_epsilon": None}
    numbers = ("index_sensitivity", "index_scale", "value_sensitivity", "value_scale")
    fields |= dict.fromkeys((*numbers, "expected_gap", "expected_value_error"))
    del fields["cautions"], fields["guarantee_kind"]
    report = wire.TuningReport.model_validate(fields | {"warnings": ["Noise larger than the signal."]})
    assert [caution.message for caution in report.cautions] == ["Noise larger than the signal."]
    assert not hasattr(report, "warnings")
