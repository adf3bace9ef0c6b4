"""A forecast on public rows: from public values alone, without a kernel, as a band over three length-scales."""

import json
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from blindopt import wire
from blindopt.errors import Invalid
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.forecast_jobs import forecast_request
from curator_service.releases.forecasts.cells import kernels_of, uniform_rows
from curator_service.releases.forecasts.worker import Job, Reply, _work
from curator_service.studies.public_kernels import FACTORS, diagonal
from service_kit.runner import Worker
from tests.builders import a_study, laplace
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.replaced_noise import replace_secrets
from tests.curator_service.seeded_noise import seed_gaussian_releases

PUBLIC = wire.ForecastCreate(epsilons=["1"], mechanisms=["gaussian"], functions=3, queries=6, rows_max=60)
RECORDS = PUBLIC.model_copy(update={"rows": "records"})


def boxed(d, scale=None):
    return [wire.Feature(column=f"c{i}", lower=-2.0, upper=6.0, scale=scale) for i in range(d)]


# --- what it is made from ----------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 10])
def test_the_correlation_over_a_typical_distance_is_the_same_in_any_number_of_features(study_of, d):
    """Between uniform rows, by their simulated distances: 0.02, 0.40 and 0.79."""
    study = study_of().model_copy(update={"features": boxed(d), "kernel": None})
    rows = ScaledRows(uniform_rows(study.features, 1_500, 5), list(range(d)), study.features, np.arange(1_500))
    ((_, x),) = rows.blocks()
    typical = np.mean(pdist(x) ** 2)
    expected = (0.0247, 0.396, 0.793)
    for kernel, correlation in zip(kernels_of(study, PUBLIC), expected, strict=True):
        assert np.exp(-typical / (2 * kernel.lengthscale**2)) == pytest.approx(correlation, abs=0.015)


def test_the_band_is_about_the_declared_kernel_where_there_is_one(study_of):
    declared = study_of().kernel
    kernels = kernels_of(study_of(), PUBLIC)
    assert [kernel.lengthscale / declared.lengthscale for kernel in kernels] == list(FACTORS)
    assert {kernel.signal_variance for kernel in kernels} == {declared.signal_variance}
    assert kernels_of(study_of(), RECORDS) == [declared]
    with pytest.raises(Invalid) as refused:
        kernels_of(study_of(kernel=None), RECORDS)
    assert [fault["field"] for fault in refused.value.errors] == ["kernel"]


def test_without_a_kernel_y_spreads_as_far_as_the_study_declares(study_of):
    """A value bound of 6 is two standard deviations; so are 6 units of a range of 12; else the unit of y is unknown."""
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=6.0)
    people = wire.WebhookMeasurement(source="webhook", direction="maximize", lower=0.0, upper=12.0, noise_variance=0.5)
    noisy = wire.ColumnMeasurement(column="y", direction="maximize", noise_variance=0.5)
    for changed, signal, noise in (
        ({"answers": answers}, 9.0, 0.09),
        ({"measurement": people}, 9.0, 0.5),
        ({"measurement": noisy}, 1.0, 0.01),
    ):
        study = study_of(kernel=None).model_copy(update=changed)
        kernel = kernels_of(study, PUBLIC)[1]
        assert (kernel.signal_variance, kernel.noise_variance) == (signal, pytest.approx(noise))


def test_bounds_of_any_size_make_a_kernel(study_of):
    for lower, upper, scale in ((-1e50, 1e50, 1e-50), (0.0, 1e-50, 1e50)):
        wild = [wire.Feature(column="c0", lower=lower, upper=upper, scale=scale)]
        assert len(kernels_of(study_of(kernel=None).model_copy(update={"features": wild}), PUBLIC)) == 3


def test_rows_are_uniform_in_the_declared_box():
    rows = uniform_rows([*boxed(2), wire.Feature(column="far", lower=100.0, upper=101.0)], 4_000, 9)
    assert rows.min(axis=0) == pytest.approx([-2, -2, 100], abs=0.02)
    assert rows.max(axis=0) == pytest.approx([6, 6, 101], abs=0.02)
    assert rows.mean(axis=0) == pytest.approx([2, 2, 100.5], abs=0.2)
    assert abs(np.corrcoef(rows.T) - np.eye(3)).max() < 0.08
    assert diagonal(boxed(4, scale=2.0)) == 8.0  # four sides of 4 scaled units


# --- what comes out -----------------------------------------------------------------------------------


class Silent:
    """Takes the progress of a job and sends it nowhere."""

    def progress(self, share):
        pass


def test_a_band_has_three_length_scales_and_the_point_is_the_middle_one(study_of, monkeypatch):
    seed_gaussian_releases(monkeypatch, 7)
    reply = _work(Job(study=study_of(kernel=None), forecast=PUBLIC, seed=3, n=60), None, Silent())
    assert isinstance(reply, Reply)
    assert [point.mechanism for point in reply.points] == ["identity", "random_rows", "gaussian"]
    for point in reply.points:
        scales = [part.lengthscale for part in point.by_lengthscale]
        assert [b / a for a, b in pairwise(scales)] == pytest.approx([2.0, 2.0])
        middle = point.by_lengthscale[1]
        assert (point.regret, point.low, point.high) == (middle.regret, middle.low, middle.high)
    rough, _, smooth = (part.regret for part in reply.points[1].by_lengthscale)
    assert rough > smooth  # a random row of a smooth function is near the best more often


# --- independence of the records ----------------------------------------------------------------------


class Twins:
    """A curator with two studies on private datasets of the same shape and different values."""

    def __init__(self, folder, small):
        self.service = InProcessCurator(folder)
        self.studies = []
        for seed in (1, 2):
            rng = np.random.default_rng(seed)
            rows = rng.normal(0, 1 + seed, size=(50, 3))
            self.studies.append(self.draft(self.register(rows), small))

    def register(self, rows, public=False, names="abc"):
        lines = [",".join(names), *(",".join(map(repr, row)) for row in rows.tolist())]
        return self.service.register("\n".join(lines), public=public)

    def draft(self, dataset, small):
        release = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-6)
        on = {"dataset_id": dataset, "columns": "ab", "lower": -3.0, "upper": 3.0, "kernel": small.kernel}
        of_c = wire.ColumnMeasurement(column="c", direction="maximize")
        return self.service.draft(a_study(release, laplace(value_bound=3.0), measurement=of_c, **on))["id"]

    def start(self, study, **spec):
        body = {"epsilons": ["1"], "mechanisms": ["identity"], "functions": 3, "queries": 5} | spec
        return self.service.send("owner", "POST", f"/v1/studies/{study}/forecasts", json=body)

    @contextmanager
    def forecasts_by(self, worker):
        """Forecasts that are started in the context run in processes that ``worker`` starts."""
        kind = self.service.curator.runner.kinds["forecast"]
        usual, kind.make_worker = kind.make_worker, worker
        try:
            yield
        finally:
            kind.make_worker = usual

    def ended(self, study, until, **spec):
        reply = self.start(study, **spec)
        assert reply.status_code == 202, reply.text
        path = f"/v1/studies/{study}/forecasts/{reply.json()['id']}"

        def end():
            view = self.service.call("owner", "GET", path)
            return view if view["state"] != "running" else None

        view = until(end)
        assert view["state"] == "completed", view
        return view


@pytest.fixture(scope="module")
def twins(tmp_path_factory, small):
    made = Twins(tmp_path_factory.mktemp("twins"), small)
    yield made
    made.service.curator.close()
    made.service.close()


def test_two_datasets_of_one_shape_have_the_same_forecast_to_the_byte_and_not_on_their_records(
    twins, until, monkeypatch
):
    """``identity`` draws no noise, so that the seed alone decides the whole result."""
    replace_secrets(monkeypatch, randbits=lambda bits: 12345)
    results = {}
    for rows in ("public", "records"):
        views = [twins.ended(study, until, rows=rows) for study in twins.studies]
        results[rows] = [json.dumps(view["points"]).encode() for view in views]
        assert [view["choosing"] is None for view in views] == [rows == "public"] * 2
    assert results["public"][0] == results["public"][1]
    assert b"groups_at_once" in results["public"][0]
    assert results["records"][0] != results["records"][1]  # the negative control


def test_nothing_of_the_records_is_sent_to_a_forecast_on_public_rows(twins, until, monkeypatch):
    """With noise as well: the process gets the same job, and no rows."""
    sent = []

    class Recorder(Worker):
        def work(self, job, array=None):
            sent.append((job.model_dump_json(exclude={"study": {"dataset_id"}}), array))
            return super().work(job, array)

    replace_secrets(monkeypatch, randbits=lambda bits: 12345)
    with twins.forecasts_by(Recorder):
        for study in twins.studies:
            twins.ended(study, until, mechanisms=["planar_laplace"], functions=2)
        assert sent[0] == sent[1]
        assert sent[0][1] is None
        twins.ended(twins.studies[0], until, functions=2, rows="records")
    assert sent[2][1].shape == (50, 2)  # the negative control


def test_a_public_sample_takes_the_role_of_uniform_rows(twins, until):
    public = twins.register(np.random.default_rng(4).uniform(-1, 1, size=(20, 2)), public=True, names="ba")
    view = twins.ended(twins.studies[0], until, sample_dataset_id=public)
    assert view["choosing"] is None
    private = twins.register(np.random.default_rng(5).uniform(-1, 1, size=(20, 2)), names="ba")
    narrow = twins.register(np.random.default_rng(6).uniform(-1, 1, size=(20, 1)), public=True, names="a")
    for sample, why in ((private, "not declared public"), (narrow, "no column b")):
        refused = twins.start(twins.studies[0], sample_dataset_id=sample)
        assert refused.status_code == 422, refused.text
        (error,) = refused.json()["errors"]
        assert (error["field"], why in error["message"]) == ("sample_dataset_id", True)
    both = twins.start(twins.studies[0], rows="records", sample_dataset_id=public)
    assert both.status_code == 422


def test_a_stored_forecast_of_an_older_version_was_on_the_records():
    row = type("Row", (), {"spec": json.dumps({"epsilons": ["1"], "mechanisms": ["auto"], "rows": 40})})
    spec = forecast_request(row)
    assert (spec.rows, spec.rows_max) == ("records", 40)
    stored = type("Row", (), {"spec": PUBLIC.model_dump_json()})
    assert forecast_request(stored) == PUBLIC
