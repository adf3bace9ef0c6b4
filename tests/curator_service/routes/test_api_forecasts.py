"""Forecasts over the real API: their lives, who sees them, and what a crash leaves."""

import json
import os
import signal
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import Owner, StudyClient
from blindopt.errors import AuditUnavailable, Remote
from curator_service import store
from curator_service import store as table
from curator_service.context import open_context
from curator_service.privacy.guarantees import GAPS
from curator_service.releases.forecast_jobs import Forecasts
from curator_service.settings import Settings
from curator_service.vault import Vault
from service_kit.runner.runner import Runner
from tests.builders import a_study_of, registered_apart
from tests.curator_service.number_traces import tells
from tests.processes import parent_of, workers_of

WAIT = 240.0
# The calibration of Gaussian noise takes its process a second to load: one test waits for it.
PLANAR = {"mechanisms": ["planar_laplace"], "rows": "records"}
SHORT = wire.ForecastCreate(epsilons=["1", "8"], functions=3, queries=5, **PLANAR, rows_max=40)
LEVELS = [str(level) for level in range(1, 21)]
LONG = wire.ForecastCreate(epsilons=LEVELS, functions=200, queries=100, **PLANAR, rows_max=400)


@pytest.fixture(scope="module")
def draft(owner, small):
    """A draft on records that were not declared public."""
    private = registered_apart(owner, "private", small.csv)
    return owner.create_study(_study(private, small)).id


def _study(dataset, small, **more):
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="4", delta=1e-5)
    return a_study_of(small, dataset.id, **{"release": release, "kernel": small.kernel} | more)


def _path(study, *more):
    return "/".join((f"/v1/studies/{study}/forecasts", *more))


def _post(http, path, key, forecast=None):
    return http.post(path, json=forecast and forecast.model_dump(), headers={"Idempotency-Key": key})


@pytest.fixture
def own(make_service, tmp_path, small):
    """Makes a curator that the test may stop or kill, with a client and a draft."""
    clients = []

    def make(**settings):
        service = make_service("curator", tmp_path, **settings).start()
        clients.append(owner := Owner(service.url, service.token, timeout_s=60))
        return service, owner, owner.create_study(_study(owner.register("small", small.csv), small)).id

    yield make
    for client in clients:
        client.close()


def _moves(owner, study, identity, until):
    return until(lambda: (view := owner.forecast(study, identity)).progress > 0 and view)


# --- the life of one ------------------------------------------------------------------------------


def test_one_is_accepted_and_found_again_where_location_says(curator, owner, draft):
    spec = SHORT.model_copy(update={"mechanisms": ["gaussian", "planar_laplace"], "epsilons": ["1"]})
    with curator.http() as http:
        reply = _post(http, _path(draft), "life", spec)
        assert reply.status_code == 202, reply.text
        begun = wire.ForecastView.model_validate_json(reply.content)
        assert (begun.state, begun.progress, begun.points, begun.spec) == ("running", 0, [], spec)
        assert reply.headers["Location"] == _path(draft, begun.id)
        assert http.get(reply.headers["Location"]).status_code == 200
    ended = owner.wait_forecast(draft, begun.id, timeout_s=WAIT)
    assert (ended.state, ended.progress, ended.problem) == ("completed", 1, None)
    assert ended.ended_at > ended.created_at == begun.created_at
    points = [(point.mechanism, point.epsilon) for point in ended.points]
    assert points == [("identity", None), ("random_rows", None), ("gaussian", "1"), ("planar_laplace", "1")]
    assert all(point.low <= point.regret <= point.high for point in ended.points)
    assert owner.forecast(draft, begun.id) == ended


def test_progress_moves_and_the_exchange_goes_on(curator, owner, draft, study_client, until):
    begun = owner.start_forecast(draft, LONG)
    assert _moves(owner, draft, begun.id, until).state == "running"
    for row in range(5):
        query = wire.QueryRequest(rows=[wire.RowPlays(row=row)])
        assert study_client.ask(query, key=f"beside {begun.id} {row}")[0].state == "answered"
    now = owner.forecast(draft, begun.id)
    assert now.state == "running"
    until(lambda: owner.forecast(draft, begun.id).progress > now.progress)
    assert owner.cancel_forecast(draft, begun.id).state == "cancelled"


# --- its ends -------------------------------------------------------------------------------------


def test_one_that_runs_and_one_that_waits_can_be_cancelled(curator, owner, draft, until):
    runs, waits, after = (owner.start_forecast(draft, spec).id for spec in (LONG, LONG, SHORT))
    moved = _moves(owner, draft, runs, until).progress
    assert owner.cancel_forecast(draft, waits).state == "cancelled"
    cancelled = owner.cancel_forecast(draft, runs)
    assert (cancelled.state, cancelled.points, cancelled.problem) == ("cancelled", [], None)
    assert 0 < moved <= cancelled.progress < 1
    assert owner.wait_forecast(draft, after, timeout_s=WAIT).state == "completed"  # the next one runs
    assert owner.cancel_forecast(draft, runs) == cancelled
    assert owner.forecast(draft, waits).progress == 0
    with pytest.raises(Remote, match="ended already") as refused:
        owner.cancel_forecast(draft, after)
    assert refused.value.remote_status == 409


def test_more_than_may_wait_are_refused_until_one_ends(own):
    _, owner, study = own(forecasts_waiting_max="1")
    first, second = (owner.start_forecast(study, LONG) for _ in range(2))
    with pytest.raises(Remote, match="1 forecasts wait") as refused:
        owner.start_forecast(study, LONG)
    assert refused.value.remote_status == 409
    owner.cancel_forecast(study, second.id)
    third = owner.start_forecast(study, SHORT)
    owner.cancel_forecast(study, first.id)
    assert owner.wait_forecast(study, third.id, timeout_s=WAIT).state == "completed"


def test_one_that_takes_too_long_fails_and_says_what_to_do(own):
    _, owner, study = own(forecast_seconds_max="1")
    ended = owner.wait_forecast(study, owner.start_forecast(study, LONG).id, timeout_s=WAIT)
    assert (ended.state, ended.points) == ("failed", [])
    assert "FORECAST_SECONDS_MAX" in ended.problem


def test_records_that_a_mechanism_cannot_take_make_it_fail_with_the_reason(owner, small):
    twins = owner.register("twins", b"a,b,y\n" + b"".join(b"%d,%d,1\n" % (i, i) for i in range(30)))
    features = [wire.Feature(column=c, lower=0.0, upper=30.0) for c in "ab"]
    measurement = wire.ColumnMeasurement(column="y", direction="maximize")
    spec = _study(twins, small).model_copy(update={"features": features, "measurement": measurement})
    study = owner.create_study(spec).id
    forecast_spec = SHORT.model_copy(update={"mechanisms": ["po_gp_ucb"]})
    ended = owner.wait_forecast(study, owner.start_forecast(study, forecast_spec).id, timeout_s=WAIT)
    assert ended.state == "failed"
    assert "linearly dependent" in ended.problem


def test_one_whose_process_dies_fails_and_the_next_one_runs(curator, owner, draft, until):
    """What a machine does that is short of memory."""
    begun, after = (owner.start_forecast(draft, spec).id for spec in (LONG, SHORT))
    _moves(owner, draft, begun, until)
    (worker,) = workers_of(curator.process.pid)
    assert parent_of(worker) == parent_of(curator.process.pid), "a fork of a process with threads"
    os.kill(worker, signal.SIGKILL)
    ended = owner.wait_forecast(draft, begun, timeout_s=WAIT)
    assert (ended.state, ended.points) == ("failed", [])
    assert "status -9" in ended.problem
    assert "fewer rows" in ended.problem
    assert owner.wait_forecast(draft, after, timeout_s=WAIT).state == "completed"


class StoredForecasts(Forecasts):
    """Runs forecasts that are stored already; its start does not end them."""

    def _recover(self, db):
        pass

    def submit(self, identity):
        self._submit(identity)


class FullDisk:
    """A database that refuses the first writes, and keeps them in ``refused``."""

    def __init__(self, database):
        self.database, self.refused = database, []

    def __getattr__(self, name):
        return getattr(self.database, name)

    def write(self, work):
        if len(self.refused) < 2:
            self.refused.append(work)
            raise AuditUnavailable("the database cannot be written")
        return self.database.write(work)


def test_an_end_that_cannot_be_stored_is_stored_once_it_can(tmp_path, small, until):
    """A disk that is full for a while: the forecast does not run for ever."""
    settings = Settings(data_dir=tmp_path)
    context, vault = open_context(settings), Vault(tmp_path / "files")
    (identity,) = _stored(context, vault, small, 1)
    database = FullDisk(context.database)
    database.refused += [None] * 2  # not full yet
    runner = Runner()
    jobs = StoredForecasts(replace(context, database=database), vault, settings, runner)
    database.refused.clear()
    jobs.submit(identity)
    try:
        study = f"std_{0:016x}"
        until(lambda: jobs.view(study, identity).state == "completed")
        assert len(database.refused) == 2
        assert len(jobs.view(study, identity).points) == 4
    finally:
        runner.close()
        context.close()


class FailsOnce(Vault):
    """Cannot read the records of its first forecast."""

    has_failed = False

    def dataset(self, identity):
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError("77123456789.25")
        return super().dataset(identity)


def test_a_fault_in_the_curator_itself_is_reported_without_its_text(tmp_path, small, until, caplog):
    settings = Settings(data_dir=tmp_path)
    context, vault = open_context(settings), FailsOnce(tmp_path / "files")
    first, second = _stored(context, vault, small, 2)
    runner = Runner()
    jobs = StoredForecasts(context, vault, settings, runner)
    try:
        for identity in (first, second):
            jobs.submit(identity)
        study = f"std_{0:016x}"
        until(lambda: jobs.view(study, second).state == "completed")
        failed = jobs.view(study, first)
        assert (failed.state, "ZeroDivisionError" in failed.problem) == ("failed", True)
        assert "77123456789" not in failed.problem + caplog.text
    finally:
        runner.close()
        context.close()


def _stored(context, vault, small, count):
    """Store a dataset, a study and forecasts that have not begun; the ids of the forecasts."""
    vault.keep_dataset("ds_0", [np.column_stack([small.x, small.y])])
    columns = json.dumps([{"name": name} for name in small.names])
    said = {"created_at": "2026-01-01T00:00:00.000000Z"}
    dataset = {"name": "d", "public": 0, "rows": 400, "columns": columns, "dropped": "[]", "sha256": "0" * 64}
    study, ids = f"std_{0:016x}", [f"fct_{position:016x}" for position in range(count)]
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="4", delta=1e-5)
    spec = a_study_of(small, "ds_0", release, kernel=small.kernel).model_dump_json()

    def add(db):
        store.insert(db, store.datasets, id="ds_0", **dataset, **said)
        store.insert(db, store.studies, id=study, dataset_id="ds_0", state="draft", spec=spec, **said)
        for identity in ids:
            values = {"state": "running", "spec": SHORT.model_dump_json(), "progress": 0.0, "points": "[]"}
            store.insert(db, table.forecasts, id=identity, study_id=study, **values, **said)

    context.database.write(add)
    return ids


# --- who may see what -----------------------------------------------------------------------------


def test_a_modeler_is_told_of_no_forecast(curator, owner, opened):
    made = owner.wait_forecast(opened.id, owner.start_forecast(opened.id, SHORT).id, timeout_s=WAIT)
    with StudyClient(curator.url, opened.token, opened.id) as modeler:
        view = modeler.study()
        assert made.id not in view.model_dump_json()
        assert "forecast" not in view.model_dump_json(exclude={"not_protected"})  # the gaps tell that there may be some


def test_an_auditor_can_tell_from_what_failed_that_features_depend_on_each_other_as_the_list_of_gaps_says(
    curator, owner, small
):
    """Two datasets that differ in one value: the same requests, the same study, other records in the log."""
    token = curator.run_in_process("token", "create", "--role", "auditor", "--name", "gaps").stdout.strip()
    views = {}
    for name, last in (("independent", 7), ("dependent", 29)):
        lines = b"".join(b"%d,%d,1\n" % (i, i if i < 29 else last) for i in range(30))
        twins = registered_apart(owner, name, b"a,b,y\n" + lines)
        changed = {
            "features": [wire.Feature(column=c, lower=0.0, upper=30.0) for c in "ab"],
            "measurement": wire.ColumnMeasurement(column="y", direction="maximize"),
            "release": wire.PoGpUcbRelease(
                mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True
            ),
        }
        study = owner.create_study(_study(twins, small).model_copy(update=changed)).id
        spec = SHORT.model_copy(update={"mechanisms": ["po_gp_ucb"], "rows_max": 1_000})
        owner.wait_forecast(study, owner.start_forecast(study, spec).id, timeout_s=WAIT)
        with suppress(Remote):
            owner.release(study)
        with Owner(curator.url, token) as auditor:
            records = [json.loads(entry.body) for entry in auditor.audit()]
        mine = [r for r in records if (r.get("details") or {}).get("study_id") == study]
        views[name] = {(r["kind"], r["details"].get("state")) for r in mine}
    only = ("forecast.ended", "failed"), ("release.abandoned", None)
    assert views["dependent"] - views["independent"] == set(only)
    assert views["independent"] - views["dependent"] == {("forecast.ended", "completed"), ("study.released", None)}
    (gap,) = (gap for gap in GAPS if gap.heading == "Other readers")
    assert all(word in gap.whole for word in ("Auditors", "abandoned", "failed", "linearly dependent"))


def test_logs_tell_ids_and_counts_and_nothing_that_was_found(curator, owner, dataset, small):
    study = owner.create_study(_study(dataset, small)).id
    done = owner.wait_forecast(study, owner.start_forecast(study, SHORT).id, timeout_s=WAIT)
    cancelled = owner.cancel_forecast(study, owner.start_forecast(study, LONG).id)
    log_records = [record for record in curator.records() if record["kind"].startswith("forecast.")]
    records = [record for record in log_records if record["details"]["study_id"] == study]
    kinds = [record["kind"].removeprefix("forecast.") for record in records]
    assert kinds == ["started", "ended", "started", "cancelled"]
    ids = {"study_id": study, "forecast_id": done.id}
    sizes = {"levels": 2, "mechanisms": 1, "functions": 3, "queries": 5, "rows": "records", "rows_max": 40}
    assert records[0]["details"] == ids | sizes
    assert records[1]["details"] == ids | {"state": "completed"}
    assert records[3]["details"] == {"study_id": study, "forecast_id": cancelled.id}
    for point in done.points:
        for value in (point.regret, point.low, point.high, point.distance_error, point.noise_sd):
            if len(text := repr(value)) > 8:  # shorter ones are in times and counts too
                assert not tells(curator.log + repr(log_records), text[:8])


# --- what is refused ------------------------------------------------------------------------------


def test_a_study_without_kernel_is_refused_with_the_field(owner, small):
    study = owner.create_study(_study(registered_apart(owner, "k", small.csv), small, kernel=None)).id
    with pytest.raises(Remote, match="kernel") as refused:
        owner.start_forecast(study, SHORT)
    assert (refused.value.remote_status, refused.value.remote_code) == (422, "invalid")


REFUSED = [
    ({"epsilons": []}, "epsilons"),
    ({"epsilons": ["0"]}, "epsilons.0"),
    ({"epsilons": ["1"] * 21}, "epsilons"),
    ({"mechanisms": []}, "mechanisms"),
    ({"mechanisms": ["random_rows"]}, "mechanisms.0"),
    ({"mechanisms": ["gaussian", "gaussian_projection"]}, "mechanisms.1"),
    ({"functions": 1}, "functions"),
    ({"functions": 2.5}, "functions"),
    ({"queries": 501}, "queries"),
    ({"rows": 40}, "rows"),
    ({"rows": "some"}, "rows"),
    ({"rows_max": 9}, "rows_max"),
    ({"rows_max": 5_001}, "rows_max"),
    ({"rows": "public", "sample_dataset_id": ""}, "sample_dataset_id"),
    ({"rows": "public", "sample_dataset_id": "ds_0000000000000000"}, "sample_dataset_id"),
    ({"seed": 1}, "seed"),
]


@pytest.mark.parametrize(("change", "field"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_with_its_field(curator, draft, change, field):
    with curator.http() as http:
        sent = SHORT.model_dump() | change
        reply = http.post(_path(draft), json=sent, headers={"Idempotency-Key": f"refused {change}"})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert [error["field"] for error in reply.json()["errors"]] == [field]


def test_a_dataset_of_one_row_is_refused(owner, small):
    line = b"\n".join(small.csv.splitlines()[:2]) + b"\n"
    study = owner.create_study(_study(owner.register("one", line), small)).id
    with pytest.raises(Remote, match="2 rows or more") as refused:
        owner.start_forecast(study, SHORT)
    assert refused.value.remote_status == 422
