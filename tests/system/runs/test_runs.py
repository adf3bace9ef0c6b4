"""Runs of one modeler against one curator: several, stopped, exported, repeated, refused."""

import csv
import io
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest

from blindopt.audit import reconciliation
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


@pytest.mark.slow(sibling="test_witness.py::test_several_runs_at_once_under_a_grant_share_its_log")
def test_runs_at_once_do_not_disturb_each_other(play, opened, vendor):
    """More runs than the modeler works on at once: each chooses as the same run does alone."""
    choices = [{"iterations": 12, "seed": seed} for seed in range(6)]
    together = play(opened, *choices)
    assert {(run.state, run.trials) for run in together} == {("completed", 13)}
    for choice, run in zip(choices[:2], together[:2], strict=True):
        (alone,) = play(opened, choice)
        assert _rows(vendor, alone) == _rows(vendor, run)


def test_the_seed_decides_the_rows(play, opened, vendor):
    for chosen in ({"iterations": 15}, {"iterations": 15, "random": True}):
        first, again, other = play(opened, {"seed": 7, **chosen}, {"seed": 7, **chosen}, {"seed": 8, **chosen})
        assert _rows(vendor, first) == _rows(vendor, again) != _rows(vendor, other)


def test_random_rows_are_never_asked_twice_and_end_when_there_are_no_more(play, owner, small, open_study, vendor):
    few = b"".join(small.csv.splitlines(keepends=True)[:61])
    opened = open_study(owner, owner.register("few", few, public=True))
    (run,) = play(opened, {"iterations": 1000, "initial_rows": 10, "random": True})
    assert (run.state, run.ended_because, run.trials) == ("completed", "exhausted", 60)
    assert sorted(_rows(vendor, run)) == list(range(60))


def test_gp_ucb_finds_the_largest_outcome_where_random_rows_do_not(play, opened, small):
    seeds = range(4)
    learned = play(opened, *({"iterations": 30, "seed": s} for s in seeds))
    guessed = play(opened, *({"iterations": 30, "seed": s, "random": True} for s in seeds))
    assert [run.best.y for run in learned] == [small.y.max()] * len(seeds)
    # 31 of 400 rows hold the best with probability 0.08: all four would, once in 20,000.
    assert any(run.best.y < small.y.max() for run in guessed)


def test_minimizing_finds_the_smallest_outcome(curator, owner, small, vendor, run_of, open_study):
    """The same outcomes upside down: what a maximizing run cannot find within 30 queries."""
    negative = replace(small, y=-small.y)
    study = open_study(owner, owner.register("negative", negative.csv, public=True), direction="minimize")
    run = vendor.wait(vendor.start(run_of(curator.url, study, iterations=30)).id, timeout_s=240)
    assert run.best.y == min(trial.y for trial in vendor.export(run.id).trials) == -small.y.max()


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


def test_a_stopped_run_ends_soon_and_keeps_its_answers(vendor, curator, opened, run_of, until):
    run = vendor.start(run_of(curator.url, opened, iterations=20_000))
    until(lambda: vendor.run(run.id).view.trials >= 10)
    stopped = vendor.stop(run.id)
    assert stopped.id == run.id
    ended = vendor.wait(run.id, timeout_s=240)
    assert (ended.state, ended.ended_because, ended.problem) == ("stopped", "stopped", None)
    assert 10 <= ended.trials < 20_000
    assert len([t for t in vendor.export(run.id).trials if t.y is not None]) == ended.trials
    assert vendor.run(run.id).view == ended


def test_a_run_that_is_stopped_as_it_starts_ends_once_and_stays_ended(vendor, curator, modeler, opened, run_of):
    """Twenty runs, each stopped at some moment between its queue and its first query."""
    spec, ended = run_of(curator.url, opened, iterations=20_000), []
    for number in range(20):
        run = vendor.start(spec)
        time.sleep(number * 4e-4)
        vendor.stop(run.id)
        ended.append(vendor.wait(run.id, timeout_s=240).id)
    records = [record for record in modeler.records() if record["kind"] == "run.ended"]
    counts = Counter(record["details"]["run_id"] for record in records)
    for run in (vendor.run(run_id).view for run_id in ended):
        assert (run.state, run.ended_because, run.problem) == ("stopped", "stopped", None)
        assert counts[run.id] <= 1
        assert run.started_at is None or run.started_at <= run.ended_at


@pytest.mark.slow(sibling="test_exchange.py::test_both_exports_verify_and_hold_one_log_of_a_run_byte_for_byte")
def test_logs_that_are_exported_in_the_middle_of_a_run_verify(
    vendor, curator, modeler, opened, run_of, until, tmp_path
):
    run = vendor.start(run_of(curator.url, opened, iterations=20_000))
    until(lambda: vendor.run(run.id).view.trials >= 5)
    for service in (curator, modeler):
        path = tmp_path / f"{service.name}.jsonl"
        path.write_text(service.run_in_process("audit", "export").stdout)
        export = reconciliation.read(path)
        assert reconciliation.verify_export(export).size == len(export.own)
        assert f"{run.id}:5" in {exchange["idempotency_key"] for exchange in export.exchanges(opened.grant_id)}
    assert vendor.run(run.id).state == "running"
    vendor.stop(run.id)
    vendor.wait(run.id, timeout_s=240)


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


def test_the_moments_of_a_run_are_in_order(play, opened, vendor):
    (run,) = play(opened, {"iterations": 5})
    assert run.created_at <= run.started_at <= run.ended_at
    trials = vendor.export(run.id).trials
    assert all(t.chosen_at <= t.answered_at for t in trials)
    assert all(a.answered_at <= b.chosen_at for a, b in pairwise(trials))


def test_a_run_against_a_closed_study_ends_as_refused(vendor, curator, owner, dataset, open_study, run_of, until):
    study = open_study(owner, dataset)
    run = vendor.start(run_of(curator.url, study, iterations=20_000))
    until(lambda: vendor.run(run.id).view.trials >= 5)
    owner.close_study(study.id)
    ended = vendor.wait(run.id, timeout_s=240)
    assert (ended.state, ended.ended_because) == ("completed", "refused")
    assert ended.problem.code == "study_not_open"


def test_a_run_whose_grant_is_revoked_fails_and_says_why(vendor, curator, owner, dataset, open_study, run_of, until):
    study = open_study(owner, dataset)
    run = vendor.start(run_of(curator.url, study, iterations=20_000))
    until(lambda: vendor.run(run.id).view.trials >= 5)
    owner.revoke(study.id, study.grant_id)
    ended = vendor.wait(run.id, timeout_s=240)
    assert ended.state == "failed"
    assert ended.problem.code == "unauthenticated"
    answered = curator.rows("SELECT count(*) FROM queries WHERE study_id = ?", study.id)[0][0]
    assert answered == ended.trials


def test_a_run_against_nobody_fails_as_unreachable_and_not_at_once(vendor, opened, run_of):
    run = vendor.wait(vendor.start(run_of("http://127.0.0.1:9", opened)).id, timeout_s=240)
    assert (run.state, run.problem.code, run.trials) == ("failed", "unreachable", 0)
    assert (run.ended_at - run.started_at).total_seconds() > 0.5  # it tried again
