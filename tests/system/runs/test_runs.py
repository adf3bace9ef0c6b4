"""Runs of one modeler against one curator: several, stopped, exported, repeated, refused."""

import csv
import io
from datetime import datetime

import pytest

from blindopt.errors import Remote


@pytest.fixture(scope="module")
def opened(owner, dataset, open_study):
    """A study that runs alone ask: a modeler disputes a query under its grant that it did not make."""
    return open_study(owner, dataset)


@pytest.fixture
def play(vendor, curator, run_of):
    """Start runs together and wait for all of them."""

    def start_and_wait(opened, *choices):
        started = [vendor.start(run_of(curator.url, opened, **chosen)) for chosen in choices]
        return [vendor.wait(run.id, timeout_s=240) for run in started]

    return start_and_wait


def _rows(vendor, run):
    return [trial.row for trial in vendor.export(run.id).trials]


def test_a_run_brings_the_kernel_where_the_study_has_none(
    play, curator, owner, dataset, open_study, small, opened, vendor
):
    bare = open_study(owner, dataset, kernel=None)
    with_own, without, random = play(
        bare, {"iterations": 5, "kernel": small.kernel}, {"iterations": 5}, {"iterations": 5, "random": True}
    )
    assert (with_own.state, with_own.trials) == ("completed", 6)
    assert (random.state, random.trials) == ("completed", 6)
    assert (without.state, without.ended_because, without.trials) == ("failed", "failed", 0)
    assert without.problem.code == "invalid"
    assert "kernel" in without.problem.detail


def test_the_kernel_of_a_run_comes_before_that_of_the_study(play, opened, small, vendor):
    """A kernel so wide that every row is alike after one outcome makes other choices."""
    wide = small.kernel.model_copy(update={"lengthscale": 1e6})
    own, given = play(opened, {"iterations": 8, "seed": 2}, {"iterations": 8, "seed": 2, "kernel": wide})
    assert _rows(vendor, own)[:1] == _rows(vendor, given)[:1]
    assert _rows(vendor, own) != _rows(vendor, given)


def test_a_run_that_ended_by_itself_cannot_be_stopped(play, opened, vendor):
    (run,) = play(opened, {"iterations": 1})
    with pytest.raises(Remote) as refused:
        vendor.stop(run.id)
    assert (refused.value.remote_code, refused.value.remote_status) == ("state_conflict", 409)


def test_csv_and_json_exports_tell_the_trials_alike(play, opened, vendor):
    (run,) = play(opened, {"iterations": 10, "initial_rows": 3})
    export = vendor.export(run.id)
    lines = list(csv.DictReader(io.StringIO(vendor.export_csv(run.id))))
    assert len(lines) == len(export.trials) == 13
    for line, trial in zip(lines, export.trials, strict=True):
        assert {name: int(line[name]) for name in ("number", "row", "ties")} == {
            "number": trial.number,
            "row": trial.row,
            "ties": trial.ties,
        }
        for name in ("y", "mean", "sd", "acquisition"):
            value = getattr(trial, name)
            assert line[name] == "" if value is None else float(line[name]) == value
        assert (line["phase"], line["query_id"]) == (trial.phase, trial.query_id)
        assert float(line["measurement_variance"]) == trial.passport.measurement_variance
        assert datetime.fromisoformat(line["answered_at"]) == trial.answered_at
    assert export.run == vendor.run(run.id).view


def test_trials_and_runs_are_listed_in_pages_without_a_gap(play, opened, vendor, modeler):
    runs = play(opened, *({"iterations": 6, "seed": s} for s in range(3)))

    def pages(path, name, size):
        listed, token = [], None
        with modeler.http() as client:
            while True:
                query = {"page_size": size} | ({"page_token": token} if token else {})
                page = client.get(path, params=query).json()
                assert 0 < len(page[name]) <= size
                listed += page[name]
                if (token := page["next_page_token"]) is None:
                    return listed

    trials = pages(f"/v1/runs/{runs[0].id}/trials", "trials", 3)
    assert [t["number"] for t in trials] == list(range(1, 8))
    listed = [run["id"] for run in pages("/v1/runs", "runs", 2)]
    assert len(listed) == len(set(listed))
    assert listed[-3:] == [run.id for run in runs]
    assert listed == [run.id for run in vendor.runs()]
