"""Runs that wait for people: without a worker, for days; declines; corrections; and their replay."""

import json
import time
from urllib.parse import parse_qs

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import Vendor
from blindopt.formats import npy_files
from blindopt.optimizer.chooser import RowChooser
from tests.given_settings import GIVEN
from tests.modeler_service.runs.human_measured_curator import HumanMeasuredCurator
from tests.system.audit.tampering import Party
from tests.system.crashes.crash_checks import command

QUICK = {
    "retry_attempts": "2",
    "retry_seconds_max": "0.1",
    "people_hold_seconds": "0.1",
    "people_seconds": "0.2",
    "people_seconds_max": "0.4",
    "wait_seconds_first": "0.2",
    "wait_seconds_max": "0.4",
}


@pytest.fixture(scope="module")
def own(make_service, tmp_path_factory):
    return make_service("modeler", tmp_path_factory.mktemp("people"), concurrent_runs="2", **QUICK).start()


def spec_of(inbox_curator, algorithm="gp_ucb", **chosen):
    settings = GIVEN | {"iterations": 4, "initial_rows": 2, "seed": 5} | chosen
    named = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    required = {"curator_url": inbox_curator.url, "study_id": inbox_curator.study_id, "token": "t", "algorithm": named}
    return wire.RunCreate.model_validate(required | settings)


def settings_of(spec):
    return wire.RunSpec(**spec.model_dump(exclude={"token", "observations", "hold"}))


def smooth(row):
    return float(np.sin(row / 5))


def replays(own, run):
    """A run is derived again; that the log verifies is tested once for all of them, at the end."""
    code, output = command(own, "replay", run)
    assert code == 0, output


# --- waiting ----------------------------------------------------------------------------------------


def test_a_run_waits_for_people_without_a_worker_and_goes_on_by_itself(inbox_curator, vendor, own, until):
    run = vendor.start(spec_of(inbox_curator)).id
    waiting = until(lambda: (view := vendor.run(run).view).state == "waiting" and view)
    assert (waiting.waiting_for, waiting.open_measurements, waiting.problem) == ("people", 1, None)
    assert waiting.created_at < waiting.waiting_since == vendor.export(run).trials[0].asked_at
    with own.http() as http, http.stream("GET", f"/v1/runs/{run}/events") as stream:
        assert next(line for line in stream.iter_lines() if '"waiting_for":"people"' in line).startswith("data: ")
    until(lambda: inbox_curator.looks > 6)
    studies, size = inbox_curator.studies, len(inbox_curator.bodies)
    until(lambda: inbox_curator.looks > 9)
    assert (inbox_curator.studies, len(inbox_curator.bodies)) == (studies, size)  # it looks, and that is all it does
    inbox_curator.answer(inbox_curator.open[0], 0.5)
    inbox_curator.measure = smooth
    ended = vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.ended_because, ended.trials) == ("completed", "budget", 6)
    assert (ended.waiting_for, ended.waiting_since, ended.open_measurements) == (None, None, 0)
    assert [trial.y for trial in vendor.export(run).trials] == [
        0.5,
        *(smooth(r[0]) for r in list(inbox_curator.rows.values())[1:]),
    ]
    replays(own, run)


def waiting_run(vendor, inbox_curator, until, **chosen):
    """A run that waits for its first answer."""
    run = vendor.start(spec_of(inbox_curator, **chosen)).id
    until(lambda: vendor.run(run).state == "waiting")
    return run


@pytest.mark.slow(sibling="test_a_run_waits_for_people_without_a_worker_and_goes_on_by_itself")
def test_waiting_runs_take_no_worker_from_others(study, vendor, own, until):
    """Four wait, there are two workers, and another run goes through at once."""
    with HumanMeasuredCurator(study) as slow, HumanMeasuredCurator(study) as quick:
        runs = [vendor.start(spec_of(slow, seed=seed)).id for seed in range(4)]
        until(lambda: {vendor.run(run).state for run in runs} <= {"waiting", "running"} and len(slow.open) == 4)
        quick.measure = smooth
        assert vendor.wait(vendor.start(spec_of(quick)).id, timeout_s=240).state == "completed"
        assert len(slow.open) == 4
        slow.measure = smooth
        for query in slow.open:
            slow.answer(query, 1.0)
        assert {vendor.wait(run, timeout_s=240).state for run in runs} == {"completed"}
        replays(own, runs[-1])


@pytest.mark.parametrize("how", ["stop", "pause"])
def test_a_run_that_waits_is_halted_at_once(how, inbox_curator, vendor, until, own):
    run = waiting_run(vendor, inbox_curator, until)
    getattr(vendor, how)(run)
    waiting = until(lambda: (view := vendor.run(run).view).state in ("stopped", "paused") and view)
    assert (waiting.waiting_for, waiting.open_measurements, waiting.trials) == (None, 1, 0)
    if how == "pause":
        inbox_curator.measure = smooth
        inbox_curator.answer(inbox_curator.open[0], 1.0)
        vendor.resume(run)
        assert vendor.wait(run, timeout_s=240).trials == 6
        assert len(inbox_curator.rows) == 6  # no query was sent twice
    replays(own, run)


def test_a_curator_that_has_no_news_at_once_is_not_asked_again_at_once(inbox_curator, vendor, own, until):
    """It is asked once a second, however long this test takes on a busy machine."""
    news, began = [], time.monotonic()

    def exchange(request, path):
        if path.endswith("/revisions") and "wait=" in request.path:
            news.append(request.path)
            return 202, json.dumps({"revisions": [], "next_page_token": None}).encode(), {}
        return HumanMeasuredCurator.exchange(inbox_curator, request, path)

    inbox_curator.exchange = exchange
    run = waiting_run(vendor, inbox_curator, until)
    until(lambda: len(news) >= 2)
    time.sleep(1.0)
    assert len(news) <= 2 + time.monotonic() - began
    vendor.stop(run)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("how", ["to the end", "stop"])
def test_revisions_without_an_end_hold_no_run_for_ever(how, inbox_curator, vendor, own, until):
    pages = []

    def exchange(request, path):
        if path.endswith("/revisions"):
            after = int(parse_qs(request.path.partition("?")[2]).get("page_token", ["0"])[0])
            pages.append(after)
            revisions = [{"seq": after + 1, "query_id": f"qry_{0:016x}", "version": 1}]
            return 200, json.dumps({"revisions": revisions, "next_page_token": str(after + 1)}).encode(), {}
        return HumanMeasuredCurator.exchange(inbox_curator, request, path)

    inbox_curator.exchange = exchange
    inbox_curator.measure = smooth
    run = vendor.start(spec_of(inbox_curator, iterations=2)).id
    if how == "stop":
        until(lambda: len(pages) > 3)
        vendor.stop(run)
    ended = vendor.wait(run, timeout_s=240)
    assert ended.state == ("stopped" if how == "stop" else "completed")
    assert pages == sorted(set(pages))


def test_another_token_is_used_at_once(inbox_curator, until, make_service, tmp_path):
    rare = QUICK | {"people_seconds": "600", "people_seconds_max": "600"}
    own = make_service("modeler", tmp_path, **rare).start()
    with Vendor(own.url, own.token) as vendor:
        run = waiting_run(vendor, inbox_curator, until)
        looks = inbox_curator.looks
        vendor.replace_token(run, "t2")
        until(lambda: inbox_curator.looks > looks)
        inbox_curator.measure = smooth
        inbox_curator.answer(inbox_curator.open[0], 1.0)
        vendor.resume(run)
        assert vendor.wait(run, timeout_s=240).state == "completed"


def test_a_run_waits_for_a_curator_that_is_away_while_people_measure(inbox_curator, vendor, own, until):
    run = waiting_run(vendor, inbox_curator, until)
    inbox_curator.refuses = (503, "standby")
    until(lambda: (view := vendor.run(run).view).waiting_for == "curator" and view.problem.code == "standby")
    assert vendor.run(run).view.open_measurements == 1
    inbox_curator.refuses = None
    until(lambda: (view := vendor.run(run).view).waiting_for == "people" and view.problem is None)
    inbox_curator.measure = smooth
    inbox_curator.answer(inbox_curator.open[0], 1.0)
    assert vendor.wait(run, timeout_s=240).state == "completed"
    replays(own, run)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, "unauthenticated", ("failed", "failed")),
        (403, "study_not_open", ("completed", "refused")),
        (410, "erased", ("completed", "refused")),
    ],
)
def test_a_grant_revoked_or_a_study_closed_while_it_waits_ends_the_run_in_words(
    status, code, expected, inbox_curator, vendor, until
):
    run = waiting_run(vendor, inbox_curator, until)
    inbox_curator.refuses = (status, code)
    ended = vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.ended_because) == expected
    assert ended.problem.code == code


def test_a_run_waits_for_days_from_the_last_look_and_then_says_how_to_go_on(
    make_service, tmp_path, inbox_curator, until
):
    own = make_service("modeler", tmp_path, **QUICK, people_days="0.00001", wait_hours="0.00001").start()
    with Vendor(own.url, own.token) as vendor:
        run = waiting_run(vendor, inbox_curator, until)
        until(lambda: inbox_curator.looks > 8)  # longer than its days: each look begins them anew
        assert vendor.run(run).state in ("waiting", "running")
        inbox_curator.refuses = (503, "standby")
        ended = vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.problem.code) == ("failed", "standby")
    assert "start another with its answers as observations" in ended.problem.detail


def test_killed_while_it_waits_it_goes_on_after_the_restart(make_service, tmp_path, inbox_curator, until):
    own = make_service("modeler", tmp_path, **QUICK).start()
    with Vendor(own.url, own.token) as vendor:
        run = waiting_run(vendor, inbox_curator, until, algorithm="gp_bucb", batch_size=3)
        own.kill()
        inbox_curator.measure = smooth
        for query, y in zip(inbox_curator.open, (1.0, None), strict=True):
            inbox_curator.answer(query, y)
        own.start()
        ended = vendor.wait(run, timeout_s=240)
        assert (ended.state, ended.trials, ended.declined) == ("completed", 5, 1)
        assert [len(rows) for rows in inbox_curator.rows.values()] == [1] * 6
        replays(own, run)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("lost", ["queries", "answers", "revisions"])
def test_lost_replies_are_fetched_again_and_no_query_is_sent_twice(lost, inbox_curator, vendor, own):
    """Every reply of a kind is lost once."""
    inbox_curator.measure, dropped = smooth, set()

    def drop(method, path):
        kind = {"queries": path.endswith("/queries"), "answers": "/qry_" in path, "revisions": "/revisions" in path}
        key = method, path, len(inbox_curator.rows)
        if kind[lost] and key not in dropped:
            dropped.add(key)
            raise ConnectionAbortedError

    inbox_curator.after = drop
    run = vendor.start(spec_of(inbox_curator)).id
    ended = vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.trials, len(inbox_curator.rows), len(dropped)) == (
        "completed",
        6,
        6,
        6 + (lost == "revisions"),
    )
    assert inbox_curator.countersigned_heads()[-1].size == len(inbox_curator.bodies)
    replays(own, run)


# --- declines ---------------------------------------------------------------------------------------


def test_declined_rows_count_as_trials_teach_nothing_and_are_not_chosen_again(inbox_curator, vendor, own):
    """Of the rows each third is declined. The oracle: a fresh RowChooser that is shown the same."""
    turns = {}  # not by their numbers: which are chosen is chance, since the order of the rows is secret
    inbox_curator.measure = lambda row: None if turns.setdefault(row, len(turns)) % 3 == 0 else smooth(row)
    spec = spec_of(inbox_curator, algorithm="gp_bucb", batch_size=4, iterations=16, initial_rows=4)
    run = vendor.wait(vendor.start(spec).id, timeout_s=240)
    export = vendor.export(run.id)
    declined = [trial.row for trial in export.trials if trial.declined]
    assert (run.state, run.ended_because, run.trials + run.declined) == ("completed", "budget", 20)
    assert all(turns[row] % 3 == 0 for row in declined)
    assert len(declined) == run.declined >= 2
    for index, trial in enumerate(export.trials):
        before = [t for t in export.trials[:index] if t.declined and t.query < trial.query]
        assert trial.row not in {t.row for t in before}
    again = RowChooser(settings_of(spec), run.study, z_of(own, run))
    for trial in export.trials:
        if trial.query == trial.number:
            proposals = again.next()
        assert proposals[trial.number - trial.query].row == trial.row
        if trial.number == trial.query + len(proposals) - 1:
            for t in export.trials[trial.query - 1 : trial.number]:
                again.decline(t.row) if t.declined else again.observe(t.row, t.y, t.passport)
    recommendation = vendor.recommendation(run.id)
    assert (turns[recommendation.row] % 3 > 0, recommendation.outcomes) == (True, run.trials)
    assert vendor.posterior(run.id, top=3).outcomes == run.trials
    lines = vendor.export_csv(run.id).splitlines()
    assert sum(",true," in line for line in lines) == run.declined
    replays(own, run.id)


def z_of(own, run):
    return npy_files.load(own.data / "candidates" / f"{run.study.release_sha256}.npy")


def test_a_run_of_which_everything_is_declined_ends_without_a_recommendation(inbox_curator, vendor, own):
    inbox_curator.measure = lambda row: None
    batched = {"algorithm": "gp_bucb", "batch_size": 8, "repeats": "never", "iterations": 60}
    run = vendor.wait(vendor.start(spec_of(inbox_curator, **batched)).id, timeout_s=240)
    assert (run.ended_because, run.trials, run.declined, run.recommendation) == ("exhausted", 0, 40, None)
    replays(own, run.id)


# --- corrections ------------------------------------------------------------------------------------


def corrected_run(inbox_curator, vendor, until, to=40.0, **chosen):
    """A run of nine trials; after five, the answer to trial 2 is corrected, and the declined row is answered late."""
    declines = []

    def measure(row):
        if len(inbox_curator.rows) == 6:
            return "wait"
        if len(inbox_curator.rows) == 3:
            declines.append(row)
            return None
        return smooth(row)

    inbox_curator.measure = measure
    run = vendor.start(spec_of(inbox_curator, iterations=7, **chosen)).id
    until(lambda: vendor.run(run).state == "waiting")
    queries = list(inbox_curator.rows)
    inbox_curator.answer(queries[1], to)
    inbox_curator.answer(queries[2], 0.25)
    inbox_curator.measure = smooth
    inbox_curator.answer(queries[5], 0.75)
    return run, vendor.wait(run, timeout_s=240), declines[0]


@pytest.mark.parametrize("page", [1, 1_000])
def test_a_correction_takes_effect_from_the_next_choice_on(page, inbox_curator, vendor, own, until):
    inbox_curator.page = page
    run, ended, late = corrected_run(inbox_curator, vendor, until)
    export = vendor.export(run)
    trials = export.trials
    assert (ended.state, ended.trials, ended.declined) == ("completed", 9, 0)
    assert [(t.y, t.version, t.declined) for t in trials[1:3]] == [(40.0, 2, False), (0.25, 2, False)]
    assert {t.version for t in trials[3:]} == {1}
    assert (trials[2].row, ended.best.y, ended.best.trial) == (late, 40.0, 2)
    assert vendor.recommendation(run).row == trials[1].row == ended.recommendation.row
    # Up to trial 6 with the first answers, from trial 7 on with the corrected ones. The oracle is a fresh RowChooser.
    spec = settings_of(spec_of(inbox_curator, iterations=7))
    first = {v.number: v for v in reversed(export.versions)}
    assert [(v.number, v.version, v.after) for v in export.versions if v.version > 1] == [(2, 2, 6), (3, 2, 6)]
    rows = {}
    for correct in (True, False):
        for number in range(1, 10):
            chooser = RowChooser(spec, ended.study, z_of(own, ended))
            for trial in trials[: number - 1]:
                y = trial.y if correct and number > 6 else first[trial.number].y
                chooser.decline(trial.row) if y is None else chooser.observe(trial.row, y, trial.passport)
            (rows[correct, number],) = (proposal.row for proposal in chooser.next())
    assert [rows[True, number] for number in range(1, 10)] == [trial.row for trial in trials]
    assert any(rows[False, number] != rows[True, number] for number in (7, 8, 9))  # it provably changed a choice
    replays(own, run)


def test_the_stream_has_declines_and_corrections_also_for_a_client_that_comes_again(inbox_curator, vendor, own, until):
    run, _, _ = corrected_run(inbox_curator, vendor, until)
    for after in (0, 5):
        with own.http(**({"Last-Event-ID": str(after)} if after else {})) as http:
            events = http.get(f"/v1/runs/{run}/events").text
        blocks = [block.splitlines() for block in events.split("\n\n") if "data: " in block]
        trials = [json.loads(lines[-1][6:]) for lines in blocks if "event: trial" in lines]
        corrections = [json.loads(lines[-1][6:]) for lines in blocks if "event: correction" in lines]
        assert [trial["number"] for trial in trials] == list(range(after + 1, 10))
        assert [(trial["number"], trial["y"]) for trial in corrections] == ([(2, 40.0), (3, 0.25)] if after else [])


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("algorithm", ["moma", "ata", "random", "thompson"])
def test_other_algorithms_go_on_after_declines_and_corrections(algorithm, inbox_curator, vendor, own, until):
    heavy = {"value_bound": 3.0, "noise_moment": 1.0} if algorithm in ("moma", "ata") else {}
    named = {"name": algorithm, **heavy} | ({"plays": 3} if algorithm == "moma" else {})
    run, ended, _ = corrected_run(inbox_curator, vendor, until, to=3.0, algorithm=named)
    assert (ended.state, ended.trials) == ("completed", 9)
    replays(own, run)


@pytest.mark.slow(sibling="test_a_correction_takes_effect_from_the_next_choice_on")
def test_a_fit_after_a_correction_is_another(inbox_curator, vendor, own, until):
    run, ended, _ = corrected_run(inbox_curator, vendor, until, fit={"every": 3}, initial_rows=3)
    assert ended.state == "completed"
    replays(own, run)


# --- changes of the stored record ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(make_service, tmp_path_factory, study, until):
    own = make_service("modeler", tmp_path_factory.mktemp("stopped"), **QUICK).start()
    with HumanMeasuredCurator(study) as inbox_curator, Vendor(own.url, own.token) as vendor:
        run, _, _ = corrected_run(inbox_curator, vendor, until)
        export = vendor.export(run).model_dump_json()
    own.stop()
    party = Party("modeler", own.data)
    assert party.command("replay", run)[0] == party.command("audit", "verify")[0] == 0
    return party, run, export


LATER = "query = 2 AND version = 2"
CHANGES = {
    "y": "UPDATE trials SET y = 39.0 WHERE number = 2",
    "version of the trial": "UPDATE trials SET version = 1 WHERE number = 2",
    "declined": "UPDATE trials SET declined = 1 WHERE number = 2",
    "query": "UPDATE trials SET query_id = 'qry_0000000000000000' WHERE number = 2",
    "reply": f"UPDATE versions SET reply = CAST(replace(CAST(reply AS TEXT), '40.0', '41.0') AS BLOB) WHERE {LATER}",
    "first": "UPDATE versions SET reply = CAST('{}' AS BLOB) WHERE version = 1 AND query = 2",
    "pending reply": "UPDATE versions SET reply = CAST('{}' AS BLOB) WHERE query = 2 AND version = 0",
    "time": f"UPDATE versions SET after = 7 WHERE {LATER}",
    "version": f"UPDATE versions SET version = 3 WHERE {LATER}",
    "gone": f"DELETE FROM versions WHERE {LATER}",
    "all gone": "DELETE FROM versions WHERE query = 2",
    "order": "UPDATE versions SET seq = CASE version WHEN 1 THEN 99 ELSE 98 END WHERE query = 2 AND version > 0",
}


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("what", CHANGES)
def test_whatever_is_changed_of_a_version_is_named_by_replay_and_by_verify(what, stopped, tmp_path):
    original, run, _ = stopped
    copy = original.copy(tmp_path / "copy")
    with copy.open() as db:
        assert db.execute(CHANGES[what]).rowcount >= 1
    code, output = copy.command("replay", run)
    assert (code, f"{run}: trial 2: " in output) == (3, True), output
    code, output = copy.command("audit", "verify")
    assert (code, f"trial 2 of {run}" in output) == (3, True), output


def test_an_export_of_a_corrected_run_is_derived_again_without_the_service(stopped, tmp_path):
    original, run, export = stopped
    (tmp_path / "log.jsonl").write_text(original.command("audit", "export")[1])
    z = next((original.data / "candidates").glob("*.npy"))
    nowhere = Party("modeler", tmp_path / "nothing")

    def derived(text):
        (tmp_path / "run.json").write_text(text)
        options = ("--export", str(tmp_path / "run.json"), "--log", str(tmp_path / "log.jsonl"), "--candidates", str(z))
        return nowhere.command("replay", run, *options)

    assert derived(export)[0] == 0
    changed = json.loads(export)
    index = next(i for i, version in enumerate(changed["versions"]) if version["version"] == 2)
    changed["versions"][index]["after"] -= 1
    assert "trial 2: version 2 of its answer came after trial 6" in derived(json.dumps(changed))[1]
    changed = json.loads(export)
    changed["versions"][index]["y"] = changed["trials"][1]["y"] = 20.0
    assert "trial 7: recorded" in derived(json.dumps(changed))[1]


# --- curators that lie --------------------------------------------------------------------------------


def _other_row(inbox_curator, query):
    inbox_curator.rows[query] = [row + 1 for row in inbox_curator.rows[query]]
    inbox_curator.answer(query, 1.0)


def _row_missing(inbox_curator, query):
    inbox_curator.answer(query, None, declined=[])


def _both(inbox_curator, query):
    inbox_curator.answer(query, 1.0, declined=inbox_curator.rows[query])


def _another_query(inbox_curator, query):
    inbox_curator.answer(query, 1.0)
    inbox_curator.versions[query][-1] = inbox_curator.versions[query][-1].replace(
        query.encode(), b"qry_0123456789abcdef"
    )


def _never_given(inbox_curator, query):
    inbox_curator.answer(query, 1.0)
    inbox_curator.measure = smooth
    inbox_curator.revised.append((query, 2))


def _backwards(inbox_curator, query):
    inbox_curator.answer(query, 1.0)
    inbox_curator.measure = smooth
    inbox_curator.seqs = [3, 1]


def _too_far(inbox_curator, query):
    inbox_curator.answer(query, 1.0)
    inbox_curator.measure = smooth
    inbox_curator.seqs = [10**30]


LIES = {
    _other_row: "answered other rows than those queried",
    _row_missing: "left out a row without saying that it is declined",
    _both: "answered other rows than those queried",
    _another_query: "answered another query than the one sent",
    _never_given: "or an older version",
    _backwards: "revisions are not in order",
    _too_far: "revisions are not in order",
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_an_answer_is_disputed(lie, inbox_curator, vendor, own, until):
    run = waiting_run(vendor, inbox_curator, until, iterations=2)
    lie(inbox_curator, inbox_curator.open[0])
    ended = vendor.wait(run, timeout_s=240)
    assert (ended.state, ended.problem.code) == ("failed", "protocol_violated"), ended.problem
    assert LIES[lie] in ended.problem.detail


def test_an_answer_without_a_receipt_is_not_used_until_it_comes_with_one(inbox_curator, vendor, own, until):
    run, true = waiting_run(vendor, inbox_curator, until, iterations=2), inbox_curator.receipt_of
    inbox_curator.receipt_of = lambda position: None
    inbox_curator.answer(inbox_curator.open[0], 1.0)
    refused = until(lambda: (view := vendor.run(run).view).problem and view)
    assert (refused.state, refused.problem.code, refused.trials) == ("waiting", "unreachable", 0)
    assert "without the curator's receipt" in refused.problem.detail
    inbox_curator.receipt_of = true
    vendor.resume(run)
    until(lambda: vendor.run(run).view.trials == 1)
    vendor.stop(run)


def test_after_all_of_these_runs_and_lies_the_log_verifies(own):
    code, output = command(own, "audit", "verify")
    assert code == 0, output
