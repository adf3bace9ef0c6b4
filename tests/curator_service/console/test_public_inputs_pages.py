"""Pages about public inputs: cautions, forecasts on public rows with a band, and sandboxes with their label."""

import pytest

from blindopt import wire
from blindopt.client import OwnerClient
from curator_service.console import figures

CSV = "a,b,y\n" + "".join(f"{i},{i * i % 11},{i % 5}\n" for i in range(12))
SANDBOX = "made-up rows and values; no person is behind it"
LEAKS = "Choosing by this leaks what is not counted"


@pytest.fixture(scope="module")
def api(service):
    with OwnerClient(service.url, service.token, timeout_s=60) as client:
        yield client


def spec_of(dataset, **changed):
    spec = {
        "name": "inputs",
        "dataset_id": dataset.id,
        "features": [wire.Feature(column=c, lower=0.0, upper=20.0) for c in "ab"],
        "measurement": wire.ColumnMeasurement(column="y", direction="maximize"),
        "release": wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="11", sensitivity=0.5),
        "answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=3.0),
        "budget": wire.Budget(epsilon_per_row="12"),
    }
    return wire.StudyCreate(**(spec | changed))


@pytest.fixture(scope="module")
def study(api):
    return api.create_study(spec_of(api.register("private", CSV.encode()))).id


def test_a_draft_shows_its_cautions_before_it_is_released_and_after(owner, api, study):
    owner.get(f"/studies/{study}")
    loud, extreme = "which rules out next to nothing", "0.0 is exactly the smallest value of the column"
    for text in (loud, extreme, "for you alone, stored nowhere", ", and accept the cautions"):
        assert text in owner.shown, text
    owner.submit(f"/studies/{study}:release", sure="yes")
    assert loud in owner.shown
    assert extreme not in owner.shown
    assert "Cautions that were accepted with it" in owner.shown


def test_the_last_step_of_a_draft_shows_its_cautions(owner, study):
    owner.get(f"/studies/new?from={study}")
    for _ in range(6):
        owner.submit("/studies/new", go="next")
    assert "epsilon is 11" in owner.shown
    assert "an expert would not make them" in owner.shown


def test_a_careful_draft_shows_none(owner, api):
    careful = spec_of(
        api.register("careful", CSV.encode()),
        features=[wire.Feature(column=c, lower=-1.0, upper=20.5) for c in "ab"],
        release=wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=0.25),
        budget=wire.Budget(epsilon_per_row="3"),
    )
    owner.get(f"/studies/{api.create_study(careful).id}")
    assert "accept the cautions" not in owner.shown


def test_a_forecast_is_on_public_rows_unless_said_otherwise_and_needs_no_kernel(owner, api, study):
    owner.get(f"/studies/{study}/forecasts")
    assert owner.form(f"/studies/{study}/forecasts")["rows"] == "public"
    assert 'value="records"' not in owner.text  # this study has no kernel
    sent = {"functions": "2", "queries": "2", "epsilons": "1, 2", "m_auto": "", "m_planar_laplace": "yes"}
    owner.submit(f"/studies/{study}/forecasts", drop=("m_auto",), **sent)
    (forecast,) = api.forecasts(study)
    assert (forecast.spec.rows, forecast.spec.mechanisms) == ("public", ["planar_laplace"])
    api.wait_forecast(study, forecast.id, timeout_s=240)
    owner.get(f"/studies/{study}/forecasts/{forecast.id}")
    assert "public rows, uniform within the declared bounds" in owner.shown
    assert "the band reaches over three" in owner.shown
    assert "Regret at 0.212" in owner.shown  # 0.15 of the diagonal, sqrt(2)
    assert LEAKS not in owner.shown
    assert "depend on your records" not in owner.shown


def test_a_forecast_on_the_records_says_that_choosing_by_it_leaks(owner, api):
    kernel = wire.Kernel(lengthscale=0.3, signal_variance=1.0, noise_variance=0.01)
    study = api.create_study(spec_of(api.register("k", CSV.encode()), kernel=kernel)).id
    owner.get(f"/studies/{study}/forecasts")
    assert LEAKS in owner.shown
    sent = {"functions": "2", "queries": "2", "epsilons": "1", "m_planar_laplace": "yes", "rows": "records"}
    owner.submit(f"/studies/{study}/forecasts", drop=("m_auto",), **sent)
    (forecast,) = api.forecasts(study)
    api.wait_forecast(study, forecast.id, timeout_s=240)
    owner.get(f"/studies/{study}/forecasts/{forecast.id}")
    assert LEAKS in owner.shown
    assert "the band reaches over three" not in owner.shown


def test_a_sample_must_be_chosen_where_one_is_wanted(owner, study):
    owner.get(f"/studies/{study}/forecasts")
    owner.submit(f"/studies/{study}/forecasts", rows="sample")
    assert owner.status == 422
    assert "A dataset" in owner.shown


def test_the_band_of_the_chart_reaches_over_the_length_scales():
    scales = [{"lengthscale": s, "regret": r, "low": 0.0, "high": 9.0} for s, r in ((1, 0.7), (2, 0.5), (4, 0.2))]
    point = {"mechanism": "auto", "epsilon": "1", "regret": 0.5, "low": 0.4, "high": 0.6}
    assert figures._band(point | {"by_lengthscale": scales}) == (0.2, 0.7)
    assert figures._band(point | {"by_lengthscale": scales[:1]}) == (0.4, 0.6)
    assert figures._band(point | {"by_lengthscale": []}) == (0.4, 0.6)  # of an older version


def test_a_sandbox_is_made_and_labelled_on_every_page_of_it(owner, api, study):
    owner.get(f"/studies/{study}")
    assert SANDBOX not in owner.shown
    owner.submit(f"/studies/{study}:sandbox")
    made = owner.path.rpartition("/")[2]
    sandbox = api.study(made)
    assert sandbox.sandbox
    assert "This is the sandbox" in owner.shown
    assert SANDBOX in owner.shown
    assert "Make a sandbox" not in owner.shown
    for path in (f"/studies/{made}", f"/studies/{made}/grants", f"/datasets/{sandbox.spec.dataset_id}"):
        owner.get(path)
        assert SANDBOX in owner.shown, path
    for path in ("/studies", "/datasets"):
        owner.get(path)
        assert ">sandbox</span>" in owner.text, path
    owner.get(f"/studies/{made}/grants")
    owner.submit(f"/studies/{made}/grants", name="vendor")
    assert SANDBOX in owner.shown
