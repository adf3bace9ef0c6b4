"""Batches, imports, ends, recommendations, posteriors, exports and events of runs, through both services."""

import csv
import io
import json
import math

import numpy as np
import pytest

import blindopt as bo
from blindopt import wire
from blindopt.errors import Remote
from blindopt.formats import npy_files
from blindopt.gp.kernels import SquaredExponential
from blindopt.optimizer.chooser import RowChooser
from modeler_service.use_cases.exports import RUN_KEY
from tests.builders import a_run

LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)


@pytest.fixture(scope="module")
def opened(owner, dataset, open_study):
    """A study that runs alone ask: a modeler disputes a query under its grant that it did not make."""
    return open_study(owner, dataset)


@pytest.fixture
def run(curator, vendor, opened):
    """Start a run and wait for it, or not."""

    def start(algorithm="gp_ucb", study=opened, wait=True, **chosen):
        settings = {"algorithm": {"name": algorithm}, "iterations": 12, "initial_rows": 2} | chosen
        spec = a_run(curator.url, study.id, study.token, **settings)
        started = vendor.start(spec)
        return vendor.wait(started.id, timeout_s=240) if wait else started.view

    return start


@pytest.fixture
def z(modeler):
    def load(run):
        return npy_files.load(modeler.data / "candidates" / f"{run.study.release_sha256}.npy")

    return load


def dense(z, export, kernel):
    """Posterior moments at all rows from the export, by one solve."""
    own = kernel.noise_variance
    past = [(t.row, t.y, t.passport.measurement_variance, t.passport.privacy.variance or 0.0) for t in export.trials]
    past += [(o.row, o.y, o.noise_variance or 0.0, 0.0) for o in export.observations]
    rows = np.array([row for row, *_ in past])
    y = np.array([y for _, y, *_ in past])
    spread = [max(own, measured) + private for *_, measured, private in past]
    k = SquaredExponential(kernel.lengthscale, kernel.signal_variance)(z, z)
    inverse = np.linalg.inv(k[np.ix_(rows, rows)] + np.diag(spread))
    return k[:, rows] @ inverse @ y, np.diag(k) - np.einsum("ij,jk,ik->i", k[:, rows], inverse, k[:, rows])


# --- batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["gp_bucb", "random"])
def test_a_batch_is_one_query_and_each_of_its_answers_a_trial(run, vendor, curator, modeler, algorithm, small, z):
    done = run(algorithm, batch_size=5, iterations=13, initial_rows=7, seed=3)
    assert (done.state, done.ended_because, done.trials, done.batch_size) == ("completed", "budget", 20, 5)
    export = vendor.export(done.id)
    assert [trial.query for trial in export.trials] == [1] * 5 + [6] * 2 + [8] * 5 + [13] * 5 + [18] * 3
    assert len({trial.query_id for trial in export.trials}) == 5
    order = small.place_of(z(done))
    assert all(trial.y == small.y[order[trial.row]] for trial in export.trials)
    keys = [key for (key,) in curator.rows("SELECT idempotency_key FROM queries ORDER BY seq") if done.id in key]
    assert keys == [f"{done.id}:{first}" for first in (1, 6, 8, 13, 18)]
    assert modeler.run_in_process("audit", "verify").returncode == 0


def test_the_choices_of_a_batched_run_follow_from_its_record(run, vendor, z):
    done = run("gp_bucb", batch_size=4, iterations=21, repeats="never", initial_design="maximin", initial_rows=6)
    export = vendor.export(done.id)
    settings = {name: getattr(done, name) for name in wire.RunSpec.model_fields if hasattr(done, name)}
    choosing = RowChooser(wire.RunSpec(**settings), done.study, z(done))
    trials = list(export.trials)
    while proposals := choosing.next():
        batch, trials = trials[: len(proposals)], trials[len(proposals) :]
        assert [p.row for p in proposals] == [t.row for t in batch]
        assert [p.mean for p in proposals] == [t.mean for t in batch]
        for trial in batch:
            choosing.observe(trial.row, trial.y, trial.passport)
    assert trials == []
    assert len({trial.row for trial in export.trials}) == 27


def test_a_batch_of_more_than_the_budget_left_is_refused_as_a_whole(owner, dataset, open_study, run, vendor):
    tight = open_study(owner, dataset, budget=wire.Budget(queries=10))
    done = run("gp_bucb", study=tight, batch_size=4, iterations=20, initial_rows=4)
    assert (done.state, done.ended_because, done.trials) == ("completed", "refused", 8)
    assert done.recommendation.outcomes == 8


# --- ends -------------------------------------------------------------------------------------------


def test_runs_tell_which_rule_ended_them(run, small):
    target = run(stop={"target": float(np.sort(small.y)[-5])}, iterations=60)
    assert (target.ended_because, target.best.y >= target.stop.target) == ("target", True)
    good = run(stop={"improvement": 0.02}, iterations=300)
    assert good.ended_because == "improvement"
    assert small.y.max() - good.best.y <= 0.02
    assert good.trials < 300
    all_of_them = run("random", repeats="never", iterations=500, batch_size=100)
    assert (all_of_them.ended_because, all_of_them.trials) == ("exhausted", 400)


# --- past observations ------------------------------------------------------------------------------


def _observations(small, z, rows):
    order = small.place_of(z)
    return [wire.Observation(row=row, y=float(small.y[order[row]])) for row in rows]


def test_past_observations_are_part_of_the_record_and_never_reach_the_curator(run, vendor, z, small, modeler, curator):
    candidates = z(run(iterations=1))
    past = _observations(small, candidates, [5, 17, 5, 300])
    before = len(curator.rows("SELECT 1 FROM queries"))
    held = run(hold=True, wait=False, initial_rows=0, iterations=4)
    assert (held.state, held.observations) == ("paused", 0)
    body = wire.ObservationImport(observations=past)
    dry = vendor.import_observations(held.id, body, dry_run=True)
    assert (dry.dry_run, dry.observations, dry.rows, dry.total, dry.faults) == (True, 4, 3, 4, [])
    assert vendor.run(held.id).view.observations == 0
    imported = vendor.import_observations(held.id, body, key="import")
    assert vendor.import_observations(held.id, body, key="import") == imported
    assert (imported.dry_run, imported.total) == (False, 4)
    lines = f"row,y,noise_variance\n9,0.25,4\n{past[0].row},{past[0].y!r},\n"
    with modeler.http() as http:
        headers = {"Content-Type": "text/csv", "Idempotency-Key": "csv"}
        reply = http.post(f"/v1/runs/{held.id}/observations", content=lines, headers=headers)
        assert (reply.status_code, reply.json()["total"]) == (201, 6)
    assert len(curator.rows("SELECT 1 FROM queries")) == before
    vendor.resume(held.id)
    done = vendor.wait(held.id, timeout_s=240)
    assert (done.state, done.trials, done.observations) == ("completed", 4, 6)
    export = vendor.export(done.id)
    assert export.observations == [*past, wire.Observation(row=9, y=0.25, noise_variance=4.0), past[0]]
    assert len(curator.rows("SELECT 1 FROM queries")) == before + 4
    at_once = run(observations=export.observations, initial_rows=0, iterations=4)
    assert [t.row for t in vendor.export(at_once.id).trials] == [t.row for t in export.trials]
    by_tell = bo.Optimizer(
        candidates,
        study=done.study,
        algorithm=done.algorithm,
        seed=done.seed,
        initial_rows=0,
        initial_design=done.initial_design,
        repeats=done.repeats,
        fit=done.fit,
        iterations=4,
    )
    for past in export.observations:
        by_tell.tell(past.row, past.y, variance=past.noise_variance)
    for trial in export.trials:
        assert by_tell.ask() == trial.row
        by_tell.tell(trial.row, trial.y, passport=trial.passport)
    without = run(initial_rows=0, iterations=4)
    assert [t.row for t in vendor.export(without.id).trials] != [t.row for t in export.trials]
    with pytest.raises(Remote, match="has started") as error:
        vendor.import_observations(done.id, body)
    assert error.value.remote_status == 409


def test_a_dry_run_tells_every_fault_and_an_import_with_one_stores_nothing(run, vendor, modeler):
    held = run(hold=True, wait=False)
    lines = "row,y\n1,0.5\n400,0.5\n2,x\n3\n"
    wanted = [{"line": 3, "field": "row"}, {"line": 4, "field": "y"}, {"line": 5, "field": "line"}]
    with modeler.http() as http:
        headers = {"Content-Type": "text/csv", "Idempotency-Key": "dry"}
        path = f"/v1/runs/{held.id}/observations"
        for _ in range(2):
            reply = http.post(f"{path}?dry_run=true", content=lines, headers=headers)
            assert reply.status_code == 200
            assert [{k: f[k] for k in ("line", "field")} for f in reply.json()["faults"]] == wanted
            assert reply.json()["observations"] == 1
        reply = http.post(path, content=lines, headers=headers)
        assert reply.status_code == 422
        assert [fault["field"] for fault in reply.json()["errors"]] == ["3.row", "4.y", "5.line"]
        for media in ("text/plain", "application/xml"):
            assert http.post(path, content=lines, headers=headers | {"Content-Type": media}).status_code == 415
    assert vendor.run(held.id).view.observations == 0
    vendor.stop(held.id)


def test_an_import_asks_nothing_of_a_curator_that_is_away(run, vendor, opened):
    spec = wire.RunCreate(curator_url="http://127.0.0.1:9", study_id=opened.id, token=opened.token, hold=True)
    held = vendor.start(spec)
    with pytest.raises(Remote) as error:
        vendor.import_observations(held.id, wire.ObservationImport(observations=[wire.Observation(row=0, y=0.0)]))
    assert (error.value.remote_status, error.value.remote_retryable) == (502, True)


def test_a_run_with_a_past_observation_outside_its_release_fails_in_words(run):
    done = run(observations=[wire.Observation(row=0, y=0.0), wire.Observation(row=400, y=0.0)])
    assert (done.state, done.problem.code) == ("failed", "invalid")
    assert "past observation 2" in done.problem.detail


# --- what is believed -------------------------------------------------------------------------------


def test_the_recommendation_is_the_best_mean_of_the_dense_posterior(run, vendor, z, small, modeler):
    done = run(iterations=15, seed=5)
    export, candidates = vendor.export(done.id), z(done)
    mean, variance = dense(candidates, export, small.kernel)
    rows = sorted({t.row for t in export.trials})
    recommended = done.recommendation
    assert recommended == vendor.recommendation(done.id)
    assert (recommended.row, recommended.by, recommended.outcomes) == (
        max(rows, key=lambda row: mean[row]),
        "posterior",
        17,
    )
    outcome = min(max(mean[recommended.row], -LAPLACE.value_bound), LAPLACE.value_bound)  # it cannot lie outside
    assert recommended.mean == pytest.approx(outcome, abs=1e-8)
    assert recommended.sd == pytest.approx(math.sqrt(max(variance[recommended.row], 0)), abs=1e-6)
    over_all = vendor.recommendation(done.id, over="all")
    assert (over_all.row, over_all.over) == (int(mean.argmax()), "all")
    printed = modeler.run_in_process("recommendation", done.id, "--json")
    assert wire.Recommendation.model_validate_json(printed.stdout) == recommended
    assert modeler.run_in_process("recommendation", "run_0").returncode == 5


def test_the_posterior_by_page_and_the_best_rows_are_those_of_the_dense_one(run, vendor, z, small):
    done = run(iterations=15, seed=6)
    mean, variance = dense(z(done), vendor.export(done.id), small.kernel)
    points, token = [], None
    while True:
        page = vendor.posterior(done.id, page_size=150, page_token=token)
        points += page.points
        if (token := page.next_page_token) is None:
            break
    assert [point.row for point in points] == list(range(400))
    np.testing.assert_allclose([point.mean for point in points], mean, atol=1e-7)
    np.testing.assert_allclose([point.sd**2 for point in points], np.maximum(variance, 0), atol=1e-7)
    best = vendor.posterior(done.id, top=7).points
    assert [point.row for point in best] == np.argsort(-mean, kind="stable")[:7].tolist()


def test_what_nobody_believes_is_refused_in_words(run, vendor):
    guess = run("random")
    assert vendor.recommendation(guess.id).by == "observed"
    for ask in (lambda: vendor.posterior(guess.id), lambda: vendor.recommendation(guess.id, over="all")):
        with pytest.raises(Remote, match="estimates nothing") as error:
            ask()
        assert error.value.remote_status == 422
    held = run(hold=True, wait=False)
    for ask in (vendor.posterior, vendor.recommendation):
        with pytest.raises(Remote) as error:
            ask(held.id)
        assert error.value.remote_status == 409


def test_private_answers_count_with_their_variance_in_what_is_recommended(owner, dataset, open_study, run, vendor, z):
    kernel = wire.Kernel(lengthscale=3.0, signal_variance=1.0, noise_variance=0.1)
    private = open_study(owner, dataset, answers=LAPLACE, kernel=kernel)
    done = run("gp_bucb", study=private, batch_size=6, iterations=24, initial_rows=6)
    mean, variance = dense(z(done), vendor.export(done.id), kernel)
    recommended = done.recommendation
    outcome = min(max(mean[recommended.row], -LAPLACE.value_bound), LAPLACE.value_bound)  # it cannot lie outside
    assert recommended.mean == pytest.approx(outcome, abs=1e-8)
    assert recommended.sd == pytest.approx(math.sqrt(variance[recommended.row]), abs=1e-8)


# --- files and events -------------------------------------------------------------------------------


def test_parquet_has_the_trials_and_all_else_as_metadata(run, vendor, modeler):
    pq = pytest.importorskip("pyarrow.parquet")
    done = run(observations=[wire.Observation(row=3, y=0.5)])
    export = vendor.export(done.id)
    with modeler.http() as http:
        reply = http.get(f"/v1/runs/{done.id}/export?format=parquet")
        lines = list(csv.DictReader(io.StringIO(http.get(f"/v1/runs/{done.id}/export?format=csv").text)))
    table = pq.read_table(io.BytesIO(reply.content))
    assert table["row"].to_pylist() == [t.row for t in export.trials] == [int(line["row"]) for line in lines]
    assert table["y"].to_pylist() == [t.y for t in export.trials] == [float(line["y"]) for line in lines]
    assert table["answered_at"].to_pylist() == [t.answered_at for t in export.trials]
    whole = wire.RunExport.model_validate_json(table.schema.metadata[RUN_KEY])
    assert whole == export.model_copy(update={"trials": []})


def _events(lines):
    events, current = [], {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            current[name] = value
        elif current.keys() - {"retry"}:
            events.append(current)
            current = {}
        else:
            current = {}
    return events


def test_events_tell_each_trial_once_and_go_on_where_they_were_left(run, vendor, modeler):
    made = run(wait=False, iterations=40)
    with modeler.http() as http:
        with http.stream("GET", f"/v1/runs/{made.id}/events") as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            events = _events(reply.iter_lines())
        trials = [event for event in events if event["event"] == "trial"]
        assert [int(event["id"]) for event in trials] == list(range(1, 43))
        stored = vendor.export(made.id).trials
        assert [wire.TrialView.model_validate_json(event["data"]) for event in trials] == stored
        last = events[-1]
        assert (last["event"], json.loads(last["data"])["state"], "id" in last) == ("run", "completed", False)
        with http.stream("GET", f"/v1/runs/{made.id}/events", headers={"Last-Event-ID": "30"}) as reply:
            again = _events(reply.iter_lines())
        assert again == [*trials[30:], last]
        assert http.get("/v1/runs/run_0/events").status_code == 404
        assert http.get(f"/v1/runs/{made.id}/events", headers={"Last-Event-ID": "x"}).status_code == 422


def test_a_service_that_goes_down_ends_its_streams(make_service, tmp_path):
    """A reply without an end would hold it up for DRAIN_SECONDS."""
    own = make_service("modeler", tmp_path).start()
    body = {"curator_url": "http://127.0.0.1:9", "study_id": "std_0123456789abcdef", "token": "t", "hold": True}
    with own.http() as http:
        held = http.post("/v1/runs", json=body, headers={"Idempotency-Key": "a"}).json()["id"]
        with http.stream("GET", f"/v1/runs/{held}/events") as reply:
            lines = reply.iter_lines()
            assert next(lines).startswith("retry")
            own.process.terminate()
            for _ in lines:
                pass
    assert own.process.wait(timeout=240) == 0
