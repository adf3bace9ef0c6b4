"""A loop of one's own against a real curator: on a bad network, after crashes, and against curators that lie."""

import html
import json
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import blindopt as bo
from blindopt import wire
from blindopt.audit import reconciliation
from blindopt.client import StudyClient
from blindopt.client.auditing import read_log
from blindopt.client.connection import Reply
from blindopt.client.witness import Witness
from blindopt.errors import Declined, Invalid, LogBroken, ProtocolViolated, StateConflict, StillMeasured
from tests.interventions import fail_at
from tests.modeler_service.lying_curator import FakeCurator, receipt
from tests.modeler_service.runs.human_measured_curator import HumanMeasuredCurator
from tests.modeler_service.runs.test_parts import InParts
from tests.system.meddler import MIDDLEBOXES, between, cut, late, middlebox, refused, repeated, truncated

QUICK = {"timeout_s": 20.0, "patience_s": 60.0}


def grant_file(url, opened):
    """The file that the console of a curator offers for a grant."""
    with StudyClient(url, opened.token, opened.id) as client:
        key = client.study().log_key
    given = {"curator_url": url, "study_id": opened.id, "token": opened.token, "log_key": key, "name": "vendor"}
    more = {"format": "blindopt-grant-1", "expires_at": "2030-01-01T00:00:00Z"}
    return wire.GrantFile.model_validate_json(json.dumps(given | more))


@pytest.fixture
def noisy(owner, dataset, open_study):
    """A study whose answers are drawn anew by each query: a repeated measurement would show."""
    return open_study(owner, dataset, noise_variance=1.0)


@pytest.fixture
def noiseless(owner, opened):
    """A grant of its own for the shared study: a log holds all queries of its grant, or it does not verify."""
    granted = owner.grant(opened.id, wire.GrantCreate(name="another"))
    return replace(opened, token=granted.token, grant_id=granted.id)


def reconciled(curator, study, folder):
    """What an auditor says of the curator's export and a study's own file."""
    (folder / "curator.jsonl").write_text(curator.run_in_process("audit", "export").stdout)
    return bo.reconcile(folder / "curator.jsonl", study)


def test_on_a_bad_network_every_answer_is_charged_once_and_both_logs_agree(curator, owner, noisy, tmp_path):
    faults = random.Random(5)
    kinds = [late, refused, cut, repeated, truncated, *map(middlebox, [*MIDDLEBOXES, "reply of before"])]

    def anything(net, forward):
        return faults.choice(kinds)(net, forward)

    grant = grant_file(curator.url, noisy)
    with between(curator, anything) as net:
        with bo.Study.from_grant(grant, url=net.url, log=tmp_path / "study.sqlite", **QUICK) as study:
            assert study.candidates.shape == (400, 2)
            answers = [study.query(row) for row in [*range(20), 3, 3]]
            assert study.answers == answers
            assert study.noise == study.view.noise
            assert "400 candidates, 22 answers" in repr(study)
            assert study.view.guarantee in html.unescape(study._repr_html_())
        assert net.seen.total() >= 10
        assert sum(count > 0 for count in net.seen.values()) >= 8, net.seen
    assert answers[3].y != answers[20].y != answers[21].y
    assert owner.balance(noisy.id).total_plays == 22
    compared = reconciled(curator, tmp_path / "study.sqlite", tmp_path)
    assert compared.agree, compared.differences
    assert compared.compared >= 24
    assert f"{compared.compared} exchanges compared, 0 differences" in compared._repr_html_()
    assert compared.studies == [noisy.id]
    verified = bo.verify_log(tmp_path / "study.sqlite")
    assert (verified.service, len(verified.shared)) == ("blindopt-modeler", 1)


def test_a_query_that_a_crash_interrupts_is_repeated_under_its_key(curator, owner, noisy, tmp_path, monkeypatch):
    grant = grant_file(curator.url, noisy)
    log = tmp_path / "study.sqlite"
    study = bo.Study.from_grant(grant, log=log)
    study.query(1)

    with monkeypatch.context() as crash:
        fail_at(crash, bo.Study, "_store", SystemExit)
        with pytest.raises(SystemExit):
            study.query(2)
    study._end()
    assert owner.balance(noisy.id).total_plays == 2
    with bo.Study.from_grant(grant, log=log) as study:
        assert [candidate for candidate, _ in study.history] == [1, 2]
        assert study.query(2).y != study.history[1][1].y  # another query, charged again
    assert owner.balance(noisy.id).total_plays == 3
    assert reconciled(curator, log, tmp_path).agree


def test_a_resumed_loop_chooses_as_one_that_was_never_interrupted(curator, owner, opened, noiseless, tmp_path):
    settings = {"seed": 4, "iterations": 6, "initial_rows": 3}

    def looped(study, queries):
        optimizer = study.optimizer(**settings)
        for _ in range(queries):
            i = optimizer.ask()
            answer = study.query(i)
            optimizer.tell(i, answer.y, passport=answer.passport)
        return [outcome.row for outcome in optimizer.history]

    granted = owner.grant(opened.id, wire.GrantCreate(name="another"))
    grant = grant_file(curator.url, replace(opened, token=granted.token))
    with pytest.warns(UserWarning, match="in memory"), bo.Study.from_grant(grant) as study:
        expected = looped(study, 9)
    for queries in (4, 5):
        with bo.Study.from_grant(grant_file(curator.url, noiseless), log=tmp_path / "study.sqlite") as study:
            rows = looped(study, queries)
    assert rows == expected


def test_one_call_optimizes_goes_on_with_its_seed_and_hands_over(curator, owner, dataset, open_study, tmp_path):
    """The oracle is an optimizer of the same seed that is told the same answers, never interrupted."""
    opened = open_study(owner, dataset, budget=wire.Budget(queries=50))
    log, seen = tmp_path / "study.sqlite", []
    with bo.Study.from_grant(grant_file(curator.url, opened), log=log) as study:
        study.optimize(6, seen.append, initial_rows=3)
        seed, candidates, view = study.optimizer().seed, study.candidates, study.view
    with bo.Study.from_grant(grant_file(curator.url, opened), log=log) as study:
        assert study.optimizer().seed == seed
        best = study.optimize(10, seen.append, initial_rows=3)
        assert [trial.row for trial in seen] == [candidate for candidate, _ in study.history]
        again = study.optimize(10, seen.append, initial_rows=3)
        assert (len(seen), again) == (10, best)  # nothing is queried twice
        handed = study.hand_over("look at it")
        wish = study.request_budget(queries=5, note="nearly there")
        assert study.message(handed.id).state == "open"
        with pytest.raises(Invalid, match="say how much more"):
            study.request_budget()
    oracle = bo.Optimizer(candidates, study=view, seed=seed, initial_rows=3, queries=10)
    for trial in seen:
        assert oracle.ask() == trial.row
        oracle.tell(trial.row, trial.y, passport=trial.passport)
    assert oracle.recommendation() == best
    received = {message.id: message.message for message in owner.messages(study_id=opened.id)}
    assert (received[handed.id].row, received[handed.id].note) == (best.row, "look at it")
    assert received[wish.id].more.queries == 5
    assert reconciled(curator, log, tmp_path).agree


def test_a_search_ends_with_a_recommendation_where_the_budget_ends(curator, owner, dataset, open_study, tmp_path):
    budgeted = open_study(owner, dataset, budget=wire.Budget(queries=4))
    with bo.Study.from_grant(grant_file(curator.url, budgeted), log=tmp_path / "study.sqlite") as study:
        best = study.optimize(20, seed=1)
        assert len(study.answers) == 4
        assert best.row in [answer.row for answer in study.answers]


def test_a_message_whose_reply_was_lost_is_no_dispute(curator, owner, noiseless, tmp_path, monkeypatch):
    log = tmp_path / "study.sqlite"
    study = bo.Study.from_grant(grant_file(curator.url, noiseless), log=log)
    study.query(1)
    with monkeypatch.context() as crash:
        fail_at(crash, Reply, "check", SystemExit)
        fail_at(crash, Witness, "record", SystemExit)
        with pytest.raises(SystemExit):
            study.hand_over("lost")
    study._end()
    with bo.Study.from_grant(grant_file(curator.url, noiseless), log=log) as study:
        study.settle()
        study.query(2)
    assert reconciled(curator, log, tmp_path).agree


def test_what_the_curator_refuses_is_not_queried_again(curator, owner, dataset, open_study, tmp_path):
    budgeted = open_study(owner, dataset, budget=wire.Budget(queries=1))
    log = tmp_path / "study.sqlite"
    with bo.Study.from_grant(grant_file(curator.url, budgeted), log=log) as study:
        study.query(0)
        with pytest.raises(bo.Remote) as refused:
            study.query(1)
        assert refused.value.code == "privacy_budget_exhausted"
        assert "request more" in refused.value.what_to_do
        for candidate in (400, -1, 2.5):  # 2.5 is no query of candidate 2: that would be charged
            with pytest.raises(Invalid, match="a whole number from 0 to 399"):
                study.query(candidate)
    with bo.Study.from_grant(grant_file(curator.url, budgeted), log=log) as study:
        assert [candidate for candidate, _ in study.history] == [0]
    assert reconciled(curator, log, tmp_path).agree


def test_a_grant_and_an_export_that_windows_saved_with_a_mark_are_read(curator, noiseless, tmp_path):
    grant = tmp_path / "grant.json"
    grant.write_text(grant_file(curator.url, noiseless).model_dump_json(), encoding="utf-8-sig")
    with bo.Study.from_grant(grant, log=tmp_path / "study.sqlite"):
        pass
    export = tmp_path / "modeler.jsonl"
    export.write_text("".join(reconciliation.write(read_log(tmp_path / "study.sqlite"))), encoding="utf-8-sig")
    assert bo.verify_log(export).records > 0


def test_a_file_of_something_else_is_refused(curator, noiseless, noisy, tmp_path):
    with bo.Study.from_grant(grant_file(curator.url, noiseless), log=tmp_path / "study.sqlite"):
        pass
    with pytest.raises(StateConflict, match="another study"):
        bo.Study.from_grant(grant_file(curator.url, noisy), log=tmp_path / "study.sqlite")
    (tmp_path / "text").write_text("no database, and long enough to be taken for one" * 40)
    with pytest.raises(StateConflict, match="no log of a study"):
        bo.Study.from_grant(grant_file(curator.url, noisy), log=tmp_path / "text")
    with pytest.raises(Invalid, match="no grant file"):
        bo.Study.from_grant(tmp_path / "text", log=tmp_path / "other.sqlite")
    with pytest.raises(LogBroken):
        bo.verify_log(tmp_path / "text")


def test_a_missing_file_is_a_missing_file_and_no_broken_log(tmp_path):
    """Found by hand: the advice was that somebody had changed or cut a log."""
    for look in (bo.verify_log, lambda path: bo.reconcile(path, path)):
        with pytest.raises(Invalid, match=r"missing\.jsonl cannot be read: no such file or directory"):
            look(tmp_path / "missing.jsonl")


def test_a_changed_record_shows(curator, noiseless, tmp_path):
    log = tmp_path / "study.sqlite"
    with bo.Study.from_grant(grant_file(curator.url, noiseless), log=log) as study:
        study.query(5)
        study.export(tmp_path / "own.jsonl")
    assert bo.verify_log(tmp_path / "own.jsonl").records <= bo.verify_log(log).records
    assert "Records" in bo.verify_log(log)._repr_html_()
    for table, change, what in (
        ("log", "body = replace(body, '1', '2')", "was changed"),  # a time has a 1
        ("receipts", "note = replace(note, '\n', '1\n')", "place|receipt|history|signature|note"),
    ):
        copy = tmp_path / f"{table}.sqlite"
        copy.write_bytes(log.read_bytes())
        with sqlite3.connect(copy) as db:
            db.execute(f"UPDATE {table} SET {change} WHERE seq = 1")
        db.close()
        with pytest.raises(LogBroken, match=what):
            bo.verify_log(copy)


def test_threads_query_at_the_same_time(curator, noiseless, tmp_path):
    with (
        bo.Study.from_grant(grant_file(curator.url, noiseless), log=tmp_path / "study.sqlite") as study,
        ThreadPoolExecutor(4) as pool,
    ):
        assert [answer.row for answer in pool.map(study.query, range(12))] == list(range(12))
    assert reconciled(curator, tmp_path / "study.sqlite", tmp_path).agree


# --- curators that lie, and people who measure ------------------------------------------------------


@pytest.fixture
def view(study_client):
    return study_client.study().model_dump(mode="json")


def grant_of(fake):
    given = {"curator_url": fake.url, "study_id": fake.study_id, "token": "t", "log_key": fake.signer.verifier.vkey}
    more = {"format": "blindopt-grant-1", "name": "vendor", "expires_at": "2030-01-01T00:00:00Z"}
    return wire.GrantFile.model_validate_json(json.dumps(given | more))


def test_a_curator_that_forks_its_log_is_caught_and_recorded(view, tmp_path):
    with FakeCurator(view) as liar:
        study = bo.Study.from_grant(grant_of(liar), log=tmp_path / "study.sqlite", patience_s=0.0)
        study.query(3)
        other = [*liar.bodies[:-1], liar.bodies[-1].replace(b"201", b"200")]
        liar.receipt_of = lambda position: receipt(
            position, liar.note(position + 1, bodies=[*other, *liar.bodies[len(other) :]])
        )
        with pytest.raises(ProtocolViolated, match="shows another history"), study:
            study.query(4)
    assert b"log.disputed" in (tmp_path / "study.sqlite").read_bytes()
    assert bo.verify_log(tmp_path / "study.sqlite").records == 3  # two exchanges, and one dispute
    with FakeCurator(view) as liar:
        another = grant_of(liar).model_copy(update={"log_key": view["log_key"]})
        with pytest.raises(ProtocolViolated, match="not the one"):
            bo.Study.from_grant(another, log=tmp_path / "other.sqlite", patience_s=0.0)


def test_candidates_in_parts_are_fetched_once_and_a_loop_over_them_verifies(view, tmp_path):
    log = tmp_path / "study.sqlite"
    with InParts(view) as curator:
        for row in (3, 4):
            with bo.Study.from_grant(grant_of(curator), log=log, patience_s=0.0) as study:
                assert study.candidates.tobytes() == curator.candidates[-8 * 40 * 2 :]
                study.query(row)
        assert sorted(number for number, _ in curator.served) == [0, 1, 2, 3]
        (tmp_path / "study.sqlite.npy").write_bytes(curator.candidates[:-1] + b"0")
        with bo.Study.from_grant(grant_of(curator), log=log, patience_s=0.0) as study:
            assert study.candidates.tobytes() == curator.candidates[-8 * 40 * 2 :]
        assert len(curator.served) == 8
    assert bo.verify_log(log).shared == {curator.grant: 3 + 2 + 8}  # the study, the queries, the parts


def test_people_measure_decline_and_correct(view, tmp_path):
    with (
        HumanMeasuredCurator(view) as people,
        bo.Study.from_grant(grant_of(people), log=tmp_path / "study.sqlite", patience_s=0.0) as study,
    ):
        for _ in range(2):  # the second one continues the first
            with pytest.raises(StillMeasured, match="candidate 7"):
                study.query(7, wait_s=0.0)
        assert len(people.rows) == 1
        people.answer(people.open[0], 1.5)
        assert study.query(7).y == 1.5
        people.measure = lambda row: None
        with pytest.raises(Declined, match="candidate 8"):
            study.query(8)
        first = next(iter(people.rows))
        people.answer(first, 2.5)
        assert study.refresh() == 1
        assert [(i, a and a.y) for i, a in study.history] == [(7, 2.5), (8, None)]
        optimizer = study.optimizer(seed=0, algorithm="random", repeats="never", iterations=5)
        assert [outcome[:2] for outcome in optimizer.history] == [(7, 2.5), (8, None)]
        assert study.refresh() == 0
