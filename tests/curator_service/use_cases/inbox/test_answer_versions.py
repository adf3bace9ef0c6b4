"""Versions of what a modeler is told: their law, what a crash leaves, what the log verifies; broken ones are found."""

import json
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from scipy import stats

from blindopt import wire
from blindopt.errors import LogBroken
from curator_service.use_cases.integrity import log_checks
from curator_service.use_cases.integrity.restore import restored
from curator_service.use_cases.queries import answer_versions
from service_kit.store import audit_log
from service_kit.store.database import Database
from tests.curator_service.use_cases.inbox.in_process_curator import House
from tests.curator_service.use_cases.inbox.measured_study import LAPLACE
from tests.scale import scaled

PLAYS = 40
SURE = 1e-6


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.close()


def _draws(house, study, y):
    """y with its noise, through the whole path, and again after a correction of each measurement."""
    query = house.ask(study, list(range(scaled(50))), PLAYS)
    items = house.items(query)
    assert house.tell("answer", query, items, *[y] * len(items)).status_code == 200
    first = [answer.y for answer in house.reply(study, query).answers]
    wrong = [y + 1e-9] * len(items)
    assert house.tell("correct", query, items, *wrong).status_code == 200
    return np.array(first), np.array([answer.y for answer in house.reply(study, query).answers])


@pytest.mark.parametrize(("y", "at"), [(1.5, 1.5), (400.0, 5.0)])
def test_an_answer_of_the_inbox_has_the_noise_that_its_passport_tells(house, small, study_of, y, at):
    """2,000 draws: a scale off by a half fails; a right one, once in a million. Corrections have noise of their own."""
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    law = stats.laplace(loc=at, scale=2 * 5.0 / 0.5)
    first, second = _draws(house, study, y)
    for draws in (first, second):
        assert stats.kstest(draws, law.cdf).pvalue > SURE
    assert abs(stats.pearsonr(first, second).statistic) < 5 / len(first) ** 0.5
    house.check()


def test_noise_of_another_scale_would_be_seen(house, small, study_of, monkeypatch):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    weak = LAPLACE.model_copy(update={"epsilon": "0.75"})
    release = answer_versions.release
    monkeypatch.setattr(
        answer_versions, "release", lambda rows, spec: release(rows, spec.model_copy(update={"answers": weak}))
    )
    first, _ = _draws(house, study, 1.5)
    assert stats.kstest(first, stats.laplace(loc=1.5, scale=20.0).cdf).pvalue < SURE


def _corrected(house, study):
    """Three rows, of which one is corrected: before, after, and the ledger's lines."""
    query = house.ask(study, [3, 4, 5])
    items = house.items(query)
    house.tell("answer", query, items, 1.0, 2.0, 3.0)
    before = house.reply(study, query)
    assert house.tell("correct", query, items[1:2], -1.0).status_code == 200
    lines = house.done("owner", "GET", f"/v1/studies/{study}/ledger")["entries"]
    return query, before, house.reply(study, query), [line for line in lines if line["query_id"] == query]


def _check_correction(before, after, lines):
    assert [a.model_dump_json() for a in after.answers[::2]] == [a.model_dump_json() for a in before.answers[::2]]
    assert after.answers[1] != before.answers[1]
    assert [(line["kind"], line["row"], line["epsilon"]) for line in lines[3:]] == [("correction", 4, "0.5")]


def test_a_correction_keeps_what_did_not_change_bit_for_bit(house, small, study_of):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    _, *found = _corrected(house, study)
    _check_correction(*found)


def test_a_curator_that_draws_all_anew_or_charges_nothing_is_found(house, small, study_of, monkeypatch):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    changed = answer_versions.Versions._changed

    def all_anew(self, db, query_id, spec, earlier, basis):
        fresh, again = changed(self, db, query_id, spec, earlier, basis)
        whole, _ = changed(self, db, query_id, spec, [], basis)
        return (whole, again) if earlier else (fresh, again)

    with monkeypatch.context() as broken:
        broken.setattr(answer_versions.Versions, "_changed", all_anew)
        _, *found = _corrected(house, study)
    with pytest.raises(AssertionError):
        _check_correction(*found)
    with pytest.raises(LogBroken, match="3 answers anew"):
        house.check()


def test_a_correction_that_is_not_charged_is_found(house, small, study_of, monkeypatch):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    monkeypatch.setattr(answer_versions.Versions, "_charge", lambda *rest, **named: None)
    _corrected(house, study)
    with pytest.raises(LogBroken, match="1 answers anew"):
        house.check()


def test_an_answer_released_often_is_held_against_its_cap_beside_one_released_once(house, small, study_of):
    """Two plays of one record, each another person's: only the first is corrected three times, which is its cap."""
    budget = wire.Budget(epsilon_per_row="2")
    draft = {"answers": LAPLACE, "privacy_unit": "answer", "budget": budget}
    study = house.open(small.csv, lambda dataset: study_of(dataset, **draft))
    query = house.ask(study, [3], plays=2)
    items = house.items(query)
    house.tell("answer", query, items, 1.0, 2.0)
    for value in (1.1, 1.2, 1.3):
        assert house.tell("correct", query, items[:1], value).status_code == 200
    refused = house.tell("correct", query, items, 1.4, 2.4)
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    assert house.reply(study, query).version == 4
    assert house.tell("correct", query, items[1:], 2.4).status_code == 200
    house.check()


# --- answers that are taken back --------------------------------------------------------------------


def _take_back(house, query, items, key=None, **more):
    told = {"void": [item["id"] for item in items], "reason": "record", **more}
    return house.send("measurer", "POST", f"/v1/queries/{query}:correct", key=key, json=told)


def _ledger(house, study, query):
    lines = house.done("owner", "GET", f"/v1/studies/{study}/ledger")["entries"]
    return [(line["kind"], line["row"], line["epsilon"]) for line in lines if line["query_id"] == query]


def test_an_answer_taken_back_is_declined_in_the_next_version_and_costs_nothing(house, small, study_of):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    query = house.ask(study, [3, 4, 5])
    items = house.items(query)
    house.tell("answer", query, items, 1.0, 2.0, 3.0)
    before, spent = house.reply(study, query), _ledger(house, study, query)
    done = _take_back(house, query, items[1:2], key="once")
    assert (done.status_code, done.json()["version"], done.json()["charged"]) == (200, 2, None)
    assert _take_back(house, query, items[1:2], key="once").content == done.content
    after = house.reply(study, query)
    assert (after.version, after.declined) == (2, [4])
    assert [a.model_dump_json() for a in after.answers] == [a.model_dump_json() for a in before.answers[::2]]
    assert _ledger(house, study, query) == spent
    (now,) = [i for i in house.items(query) if i["id"] == items[1]["id"]]
    assert (now["state"], now["value"], now["version"], now["reason"]) == ("declined", None, 1, "record")
    house.check()
    again = _take_back(house, query, items[1:2])
    assert (again.status_code, "is declined" in again.json()["detail"]) == (409, True)


@pytest.mark.parametrize("value", [2.0, -1.0])
def test_an_answer_in_the_place_of_a_void_one_is_drawn_anew_and_charged_whatever_it_is(house, small, study_of, value):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    query = house.ask(study, [3, 4])
    items = house.items(query)
    house.tell("answer", query, items, 1.0, 2.0)
    before = house.reply(study, query)
    _take_back(house, query, items[1:])
    told = house.tell("answer", query, items[1:], value)
    assert (told.json()["version"], told.json()["charged"]) == (3, "0.5")
    after = house.reply(study, query)
    assert (after.declined, [a.row for a in after.answers]) == ([], [3, 4])
    assert after.answers[0] == before.answers[0]
    assert after.answers[1].y != before.answers[1].y
    assert _ledger(house, study, query)[2:] == [("correction", 4, "0.5")]
    house.check()


def test_a_curator_that_takes_a_void_answer_for_never_released_is_found(house, small, study_of, monkeypatch):
    """Else whoever takes back and answers again sees fresh noise for nothing, as often as they like."""
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    changed = answer_versions.Versions._changed

    def forgetful(self, db, query_id, spec, earlier, basis):
        fresh, again = changed(self, db, query_id, spec, earlier, basis)
        last = {answer_versions._unit(unit) for unit in json.loads(earlier[-1].fresh)} if earlier else set()
        return fresh, [unit for unit in again if unit in last]

    monkeypatch.setattr(answer_versions.Versions, "_changed", forgetful)
    query = house.ask(study, [3])
    items = house.items(query)
    house.tell("answer", query, items, 1.0)
    _take_back(house, query, items)
    assert house.tell("answer", query, items, 1.0).json()["charged"] is None
    with pytest.raises(LogBroken, match="1 answers anew"):
        house.check()


def test_where_the_caps_allow_no_other_answer_a_void_one_stays_void(house, small, study_of):
    budget = wire.Budget(epsilon_per_row="0.7")
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE, budget=budget))
    query = house.ask(study, [3])
    items = house.items(query)
    house.tell("answer", query, items, 1.0)
    assert _take_back(house, query, items).status_code == 200
    refused = house.tell("answer", query, items, 1.0)
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    assert house.reply(study, query).declined == [3]
    head = "measurement_id;value\n" + f"{items[0]['id']};1.5\n"
    sheet = house.send("measurer", "POST", "/v1/inbox:import", content=head, headers={"content-type": "text/csv"})
    assert sheet.status_code == 403
    assert house.reply(study, query).declined == [3]
    house.check()


def test_of_a_mean_one_play_less_is_another_mean_and_charged(house, small, study_of):
    means = LAPLACE.model_copy(update={"plays": "mean", "epsilon": "500"})
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=means))
    query = house.ask(study, [3], plays=3)
    items = house.items(query)
    house.tell("answer", query, items, 1.0, 2.0, 4.5)
    assert house.reply(study, query).answers[0].y == pytest.approx(2.5, abs=0.3)
    assert _take_back(house, query, items[2:]).json()["charged"] == "500"
    (mean,) = house.reply(study, query).answers
    assert (mean.plays, mean.y) == (2, pytest.approx(1.5, abs=0.3))
    assert _take_back(house, query, items[:2]).json()["charged"] is None
    assert (house.reply(study, query).answers, house.reply(study, query).declined) == ([], [3])
    house.check()


def test_values_and_void_answers_are_corrected_together_and_each_fault_is_named(house, small, study_of):
    study = house.open(small.csv, study_of)
    query = house.ask(study, [3, 4, 5])
    items = house.items(query)
    house.tell("answer", query, items, 1.0, 2.0, 3.0)
    value = [{"measurement_id": items[0]["id"], "value": 9.0}]
    wrong = _take_back(house, query, [items[1], items[0]], values=value)
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "void.1")
    for body in ({"void": [items[1]["id"]]}, {"values": value, "reason": "record"}, {"values": []}):
        assert house.send("measurer", "POST", f"/v1/queries/{query}:correct", json=body).status_code == 422
    assert house.reply(study, query).version == 1
    assert _take_back(house, query, items[1:2], values=value).status_code == 200
    after = house.reply(study, query)
    assert ([(a.row, a.y) for a in after.answers], after.declined, after.version) == ([(3, 9.0), (5, 3.0)], [4], 2)
    house.check()


# --- two who tell at once, and a crash in between ---------------------------------------------------


def test_of_two_draws_of_one_version_one_is_told(house, small, study_of):
    """Two threads draw, both try to tell: the second one's draw is thrown away, also where a correction rests on it."""
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    query, made = house.ask(study, [3]), house.curator.inbox._versions
    items, settle = house.items(query), made.settle
    made.settle = lambda query_ids: None  # a crash after the commit
    house.tell("answer", query, items, 1.0)
    house.tell("correct", query, items, 2.0)
    assert house.send("modeler", "GET", f"/v1/studies/{study}/queries/{query}").status_code == 202
    early, late = (made._next_of([query]) for _ in range(2))
    assert early[0].answers != late[0].answers
    house.context.database.write(lambda db: made._tell_all(early, db))
    told = house.reply(study, query)
    house.context.database.write(lambda db: made._tell_all(late, db))
    assert house.reply(study, query) == told
    assert told.answers == early[0].answers
    settle([query])
    settle([query])
    assert house.reply(study, query).version == 2
    kinds = [line["kind"] for line in house.done("owner", "GET", f"/v1/studies/{study}/ledger")["entries"]]
    assert kinds == ["release", "answers", "correction"]
    house.check()


def test_the_next_request_tells_what_a_crash_left(house, small, study_of):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    query, made = house.ask(study, [3]), house.curator.inbox._versions
    items = house.items(query)
    made.settle = lambda query_ids: None
    first = house.tell("answer", query, items, 1.0, key="same")
    del made.settle
    again = house.tell("answer", query, items, 1.0, key="same")
    assert (first.content, again.headers["idempotency-replayed"]) == (again.content, "true")
    assert house.reply(study, query).version == 1


def test_after_a_restore_nothing_is_drawn_that_may_have_been_drawn_before(house, small, study_of):
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    pending, answered = house.ask(study, [3], key="a"), house.ask(study, [4], key="b")
    items = {query: house.items(query) for query in (pending, answered)}
    house.tell("answer", answered, items[answered], 1.0)
    house.context.database.write(lambda db: restored(db, house.context))
    assert house.tell("answer", pending, items[pending], 1.0).status_code == 409
    assert house.tell("correct", answered, items[answered], 2.0).status_code == 409
    reply = house.send("modeler", "GET", f"/v1/studies/{study}/queries/{pending}")
    assert (reply.status_code, reply.json()["code"]) == (403, "study_not_open")
    assert house.reply(study, answered).version == 1
    house.curator.overdue.look()
    house.check()


# --- what a modeler, an auditor and the logs can see -------------------------------------------------

WORDS = ("zq_left", "How much?", "furlong", "slip seven", "consent", "measurer", "msr_", "by hand")
VALUES = ("1.234567", "2.345678", "9.876543")


def test_nothing_that_people_see_or_write_reaches_a_modeler_or_the_logs(house, small, study_of, caplog):
    """What is shown, notes, reasons, values, names; in what a modeler can fetch, in what auditors read, in logs."""
    caplog.set_level("DEBUG")
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
    chosen = {"answers": LAPLACE, "release": release, "measurement": {"unit": "furlong"}}
    study = house.open(small.csv, lambda dataset: study_of(dataset, **chosen), public=False)
    query = house.ask(study, [3, 4, 5])
    items, path = house.items(query), f"/v1/queries/{query}"
    assert "furlong" in str(items)
    seen = [house.send("modeler", "GET", f"/v1/studies/{study}/queries/{query}")]
    told = {"values": [{"measurement_id": items[0]["id"], "value": 1.234567}], "note": "slip seven"}
    house.done("measurer", "POST", f"{path}:answer", json=told)
    refusal = {"values": [{"measurement_id": items[0]["id"], "value": 9.876543}] * 2}
    refused = house.send("measurer", "POST", f"{path}:answer", json=refusal)
    assert refused.status_code == 422
    assert "9.876543" not in refused.text
    declined = {"measurement_ids": [items[1]["id"]], "reason": "consent", "note": "slip seven"}
    house.done("measurer", "POST", f"{path}:decline", json=declined)
    house.tell("answer", query, items[2:], 2.345678)
    house.tell("correct", query, items[2:], 1.234567)
    paths = "", "/revisions", f"/queries/{query}", f"/queries/{query}?version=9", "/queries/qry_0000000000000000"
    seen += [house.send("modeler", "GET", f"/v1/studies/{study}{end}") for end in paths]
    seen += [house.send("modeler", "GET", f"/v1/audit/{what}") for what in ("entries", "checkpoint")]
    seen += [house.send("modeler", "GET", f"/v1/inbox{end}") for end in ("", ".csv")]
    for reply in seen:
        for word in (*WORDS, *VALUES):
            assert word not in reply.text.replace("needs the role owner or measurer", ""), (reply.url.path, word)
    read = "".join(str(entry) for entry in house.done("owner", "GET", "/v1/audit/entries?page_size=1000")["entries"])
    for word in (*VALUES, "slip seven", "consent", "furlong", "How much?"):
        assert word not in read
        assert word not in caplog.text
    assert "measurement.declined" in read  # the search does see what is there


def test_an_inbox_may_be_asked_for_much_at_once(house, small, study_of):
    """10,000 measurements in one query: all are there, and answered in one request."""
    study = house.open(small.csv, lambda dataset: study_of(dataset))
    query = house.ask(study, list(range(100)), 100)
    items = house.items(query)
    assert len(items) == wire.MEASUREMENTS_MAX
    house.app.state.context.audit_trail.check_sound()
    half = len(items) // 2
    for part in (items[:half], items[half:]):
        assert house.tell("answer", query, part, *range(len(part))).status_code == 200
    assert len(house.reply(study, query).answers) == wire.MEASUREMENTS_MAX


# --- tampering --------------------------------------------------------------------------------------

TAMPERED = {
    "a value": "UPDATE entries SET value = value + 1 WHERE seq = 2",
    "a value in its last bit": "UPDATE entries SET value = 1.0000000000000002 WHERE seq = 1",
    "a note": "UPDATE entries SET note = 'x' WHERE seq = 1",
    "who": "UPDATE entries SET name = 'x' WHERE seq = 1",
    "an entry gone": "DELETE FROM entries WHERE seq = 3",
    "an entry more": "INSERT INTO entries SELECT 99, measurement_id, query_id, kind, version + 1, value, reason, note, "
    "actor, name, salt, created_at FROM entries WHERE seq = 1",
    "a state": "UPDATE measurements SET state = 'open' WHERE seq = 1",
    "a row": "UPDATE measurements SET row = 17 WHERE seq = 1",
    "a measurement gone": "DELETE FROM measurements WHERE seq = 4",
    "a version's bytes": "UPDATE revisions SET body = replace(body, '3', '4') WHERE version = 1",
    "a version gone": "DELETE FROM revisions WHERE version = 2",
    "a version of another place": "UPDATE revisions SET seq = 7 WHERE version = 2",
    "what is released anew": "UPDATE rounds SET fresh = '[[0, 1], [1, 1]]' WHERE version = 2",
    "a version that was begun": "DELETE FROM rounds WHERE version = 2",
    "where a query stands": "UPDATE inquiries SET version = 0",
    "a query that is told no more": "UPDATE inquiries SET lost = 1",
    "a query gone": "DELETE FROM inquiries WHERE open > 0",
    "a charge": "DELETE FROM ledger WHERE kind = 'correction'",
    "the pending reply": "UPDATE replies SET body = body || ' ' WHERE status = 202",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small, study_of):
    """A database with an answered, corrected query and a pending one."""
    house = House(tmp_path_factory.mktemp("finished"))
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    _corrected(house, study)
    house.ask(study, [9])
    house.check()
    path = house.context.database.path
    house.close()
    return path


@pytest.mark.parametrize("kind", TAMPERED)
def test_whoever_changes_a_table_of_the_inbox_is_found(finished, tmp_path, kind):
    path = tmp_path / "copy.sqlite"
    shutil.copy(finished, path)
    with closing(sqlite3.connect(path)) as db, db:
        triggers = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
        for name in triggers:
            db.execute(f"DROP TRIGGER {name}")
        assert db.execute(TAMPERED[kind]).rowcount >= 1
    with Database.read_from(path) as db, pytest.raises(LogBroken):
        log_checks.check(db, (entry.record for entry in audit_log.walk(db)))


def test_untouched_it_verifies(finished):
    with Database.read_from(finished) as db:
        log_checks.check(db, (entry.record for entry in audit_log.walk(db)))


# --- what a modeler sees of it --------------------------------------------------------------------------

VISIBLE = {
    "pending": {"id", "study_id", "state", "created_at", "due_at"},
    "answered": {"id", "study_id", "state", "version", "created_at", "answers", "declined", "salt"},
    "answer": {"row", "play", "plays", "y", "passport"},
    "revision": {"seq", "query_id", "version"},
    "revisions": {"revisions", "next_page_token"},
}


def test_a_modeler_sees_of_people_what_is_listed_here_and_nothing_else(house, small, study_of):
    """Not who measured, when each was, why one was declined, nor how many people there are."""
    study = house.open(small.csv, lambda dataset: study_of(dataset, answers=LAPLACE))
    plain = set(house.done("modeler", "GET", f"/v1/studies/{study}"))
    assert plain == set(wire.StudyView.model_fields)
    query = house.ask(study, [3, 4, 5])
    here = f"/v1/studies/{study}/queries/{query}"
    assert set(house.done("modeler", "GET", here)) == VISIBLE["pending"]
    items = house.items(query)
    assert house.tell("answer", query, items[:2], 1.5, 1.75).is_success
    declined = {"measurement_ids": [items[2]["id"]], "reason": "consent", "note": "slip seven"}
    house.done("measurer", "POST", f"/v1/queries/{query}:decline", json=declined)
    assert house.tell("correct", query, items[:1], 2.5).is_success
    for version in ("", "?version=1", "?version=2"):
        answered = house.done("modeler", "GET", f"{here}{version}")
        assert set(answered) == VISIBLE["answered"]
        assert all(set(one) == VISIBLE["answer"] for one in answered["answers"])
        assert answered["declined"] == [5]
    told = house.done("modeler", "GET", f"/v1/studies/{study}/revisions")
    assert set(told) == VISIBLE["revisions"]
    assert [one["version"] for one in told["revisions"]] == [1, 2]
    assert all(set(one) == VISIBLE["revision"] for one in told["revisions"])
