"""A withheld record is measured and released no more; the log does not say which record it is."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import LogBroken
from curator_service.budget import ledger_lines
from curator_service.privacy.prices import text
from curator_service.queries import queries
from curator_service.queries.answer_versions import AnswerVersions
from curator_service.queries.inbox import inbox
from curator_service.releases.mechanisms.mechanism import Identity
from service_kit.store import audit_log
from tests import beside
from tests.builders import a_study
from tests.curator_service.queries.inbox.test_repeated_imports import send, sheet_of
from tests.curator_service.replaced_steps import replace_kept_release, replace_measuring

ROWS = 6
CSV = ("x,y\n" + "".join(f"{i / 10},{i}\n" for i in range(ROWS))).encode()
RECORD = 3
FEATURES = [wire.Feature(column="x", lower=0.0, upper=1.0)]
IDENTITY = wire.IdentityRelease(mechanism="identity")
ANSWERS = {
    "none": wire.NoAnswerNoise(mechanism="none"),
    "laplace": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=9.0),
    "mean": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=9.0, plays="mean"),
}
SOURCES = {
    "column": wire.ColumnMeasurement(column="y", direction="maximize"),
    "inbox": wire.InboxMeasurement(question="How much?", direction="maximize", shown=["x"]),
}


def study(source="column", answers="none", release=IDENTITY, **more):
    of_x = {"columns": "x", "measurement": SOURCES[source]}
    return lambda dataset: a_study(release, ANSWERS[answers], dataset_id=dataset, **of_x, **more)


@pytest.fixture
def opened(in_process):
    """Opens a study on the six records; the study, its dataset, and the row of each record, by its number."""

    def make(**parts):
        identity = in_process.open(CSV, study(**parts))
        return identity, *of(in_process, identity)

    return make


def of(curator, identity):
    with curator.context.database.read() as db:
        released = curator.curator.released.of(db, identity)
    return released.spec.dataset_id, {int(record) + 1: row for row, record in enumerate(released.order)}


@contextmanager
def crash_before_the_draw(monkeypatch):
    """Versions of answers are charged and not drawn, as if the process had ended in between."""
    with monkeypatch.context() as patch:
        patch.setattr(AnswerVersions, "settle", lambda *_: None)
        yield


def withhold(curator, dataset, record=RECORD, **sent):
    return curator.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"record": record}, **sent)


def ask(curator, identity, rows, key=None, plays=1):
    body = {"rows": [{"row": row, "plays": plays} for row in rows]}
    return curator.call("modeler", "POST", f"/v1/studies/{identity}/queries", json=body, key=key)


@pytest.mark.parametrize("answers", ANSWERS)
def test_a_withheld_record_of_a_column_is_declined_and_others_are_answered(answers, opened, in_process):
    identity, dataset, row_of = opened(answers=answers)
    rows = [row_of[2], row_of[RECORD], row_of[4]]
    before = ask(in_process, identity, rows, key="before", plays=2)
    assert before["declined"] == []
    assert withhold(in_process, dataset) == {"dataset_id": dataset, "records": 1, "named": []}
    after = ask(in_process, identity, rows, plays=2)
    assert after["declined"] == [row_of[RECORD]]
    assert {answer["row"] for answer in after["answers"]} == {row_of[2], row_of[4]}
    assert ask(in_process, identity, [row_of[RECORD]])["answers"] == []
    assert ask(in_process, identity, rows, key="before", plays=2) == before  # what has left stays
    in_process.check()


@pytest.mark.parametrize("source", SOURCES)
def test_a_withheld_record_is_declined_at_no_charge_and_others_pay_for_themselves(source, opened, in_process):
    identity, dataset, row_of = opened(source=source, answers="laplace", epsilon_per_row="1", queries=2)
    withhold(in_process, dataset)
    for key in ("alone", "again"):
        reply = ask(in_process, identity, [row_of[RECORD]], key=key, plays=2)
        assert ask(in_process, identity, [row_of[RECORD]], key=key, plays=2) == reply
    assert used(in_process, identity) == ("0", 0)
    ask(in_process, identity, [row_of[RECORD], row_of[1]])
    assert used(in_process, identity) == ("1", 1)  # the control: what is not withheld is charged
    ask(in_process, identity, [row_of[2], row_of[RECORD]])
    refused = in_process.send("modeler", "POST", f"/v1/studies/{identity}/queries", json={"rows": [{"row": row_of[4]}]})
    assert refused.json()["code"] == "privacy_budget_exhausted"
    assert used(in_process, identity) == ("2", 2)
    assert ask(in_process, identity, [row_of[RECORD]])["state"] == ("answered" if source == "column" else "pending")
    in_process.check()


def used(curator, identity):
    """Epsilon and measurements that a study was charged in all."""
    with curator.context.database.read() as db:
        balance = ledger_lines.balance(db, identity)
    return text(balance.total), balance.plays


def test_a_record_that_was_charged_before_it_was_withheld_keeps_its_charge(opened, in_process, monkeypatch):
    """A query that a crash, or an earlier version, left charged and unanswered is declined under its one charge."""
    identity, dataset, row_of = opened(answers="laplace", reply_after_ms=1)
    with monkeypatch.context() as patch:
        replace_measuring(patch, lambda *_: 1 / 0)
        sent = {"rows": [{"row": row_of[RECORD], "plays": 1}]}
        path = f"/v1/studies/{identity}/queries"
        assert in_process.send("modeler", "POST", path, json=sent, key="cut").status_code == 500
    withhold(in_process, dataset)
    assert ask(in_process, identity, [row_of[RECORD]], key="cut")["declined"] == [row_of[RECORD]]
    assert used(in_process, identity) == ("1", 1)
    in_process.check()


def remove_withheld(curator):
    """Remove the list of withheld records; nothing notices it before the next verification."""

    def remove(db):
        beside.drop_triggers(db, "withheld_DELETE")
        db.exec_driver_sql("DELETE FROM withheld")

    curator.context.database.write(remove)


@pytest.mark.parametrize("more", [{"reply_after_ms": 1}, {}], ids=["delayed", "at_once"])
def test_a_row_that_was_not_charged_is_not_answered_when_it_is_withheld_no_more(more, opened, in_process, monkeypatch):
    identity, dataset, row_of = opened(answers="laplace", **more)
    rows = [row_of[RECORD], row_of[1]]
    withhold(in_process, dataset)
    with monkeypatch.context() as patch:
        replace_measuring(patch, lambda *_: 1 / 0)
        sent = {"rows": [{"row": row, "plays": 1} for row in rows]}
        path = f"/v1/studies/{identity}/queries"
        assert in_process.send("modeler", "POST", path, json=sent, key="cut").status_code == 500
    remove_withheld(in_process)
    reply = ask(in_process, identity, rows, key="cut")
    assert (reply["declined"], [answer["row"] for answer in reply["answers"]]) == ([row_of[RECORD]], [row_of[1]])
    assert used(in_process, identity) == ("1", 1)
    assert ask(in_process, identity, rows)["declined"] == []  # the control: charged now, so answered
    assert used(in_process, identity) == ("3", 3)


@pytest.mark.parametrize("corrections", ["ask", "apply"])
@pytest.mark.parametrize("is_answered", [False, True], ids=["open", "answered"])
def test_a_sheet_that_returns_after_a_record_was_withheld_is_imported_without_its_values(
    is_answered, corrections, opened, in_process
):
    identity, dataset, row_of = opened(source="inbox", answers="laplace")
    query = in_process.ask(identity, [row_of[2], row_of[RECORD], row_of[4]])
    items = in_process.items(query)
    sheet = sheet_of([(item["id"], (1.0 + item["record"], None)) for item in items])
    if is_answered:
        assert in_process.enter("answer", query, [item for item in items if item["record"] == RECORD], 9.0).is_success
    withhold(in_process, dataset)
    dry, done = (send(in_process, sheet, dry_run=dry, corrections=corrections) for dry in ("true", "false"))
    assert (dry.status_code, done.status_code) == (200, 201), done.text
    counts = ("answered", "withheld", "corrected", "queries")
    assert [reply.json()[name] for reply in (dry, done) for name in counts] == [2, 1, 0, 1] * 2
    reply = in_process.reply(identity, query)
    assert (reply.declined, {answer.row for answer in reply.answers}) == ([row_of[RECORD]], {row_of[2], row_of[4]})
    again = send(in_process, sheet, corrections=corrections).json()
    assert [again[name] for name in (*counts, "unchanged")] == [0, 1, 0, 0, 2]
    in_process.check()


@pytest.mark.parametrize("answers", ["laplace", "mean"])
def test_a_measurement_that_was_not_charged_takes_no_value_when_it_is_withheld_no_more(answers, opened, in_process):
    identity, dataset, row_of = opened(source="inbox", answers=answers)
    withhold(in_process, dataset)
    query = in_process.ask(identity, [row_of[RECORD], row_of[1]])
    items = in_process.items(query)
    remove_withheld(in_process)
    assert in_process.enter("answer", query, items[:1], 4.0).status_code == 409
    assert in_process.enter("answer", query, items[1:], 5.0).is_success  # the control: it was charged
    reply = in_process.reply(identity, query)
    assert (reply.declined, [answer.row for answer in reply.answers]) == ([row_of[RECORD]], [row_of[1]])
    assert used(in_process, identity) == ("1", 1)


def test_a_value_that_was_not_charged_does_not_leave_when_it_was_entered_all_the_same(opened, in_process, monkeypatch):
    identity, dataset, row_of = opened(source="inbox", answers="laplace")
    withhold(in_process, dataset)
    query = in_process.ask(identity, [row_of[RECORD], row_of[1]])
    remove_withheld(in_process)
    with monkeypatch.context() as patch:
        patch.setattr(inbox, "declined_rows", lambda *_: set())
        assert in_process.enter("answer", query, in_process.items(query), 4.0, 5.0).is_success
    reply = in_process.reply(identity, query)
    assert (reply.declined, [answer.row for answer in reply.answers]) == ([row_of[RECORD]], [row_of[1]])


@pytest.mark.parametrize("source", SOURCES)
def test_a_query_of_withheld_records_alone_is_refused_where_a_verification_found_their_list_changed(
    source, opened, in_process
):
    identity, dataset, row_of = opened(source=source, answers="laplace")
    withhold(in_process, dataset)
    trail = in_process.context.audit_trail
    trail.replace_findings("first", [LogBroken("the withheld records are not those of the log", about=dataset)])
    sent, path = {"rows": [{"row": row_of[RECORD], "plays": 1}]}, f"/v1/studies/{identity}/queries"
    refused = in_process.send("modeler", "POST", path, json=sent)
    assert refused.json()["code"] == "record_changed"
    trail.replace_findings("first", [])
    assert ask(in_process, identity, [row_of[RECORD]])["state"] == ("answered" if source == "column" else "pending")


def test_a_number_that_was_drawn_before_a_record_was_withheld_does_not_leave_after_it(opened, in_process, monkeypatch):
    identity, dataset, row_of = opened(answers="laplace", reply_after_ms=1)  # the charge is committed before the draw
    drawn = queries.measure

    def withheld_meanwhile(*parts):
        answers = drawn(*parts)
        withhold(in_process, dataset)
        return answers

    replace_measuring(monkeypatch, withheld_meanwhile)
    reply = ask(in_process, identity, [row_of[RECORD], row_of[1]])
    assert reply["declined"] == [row_of[RECORD]]
    assert [answer["row"] for answer in reply["answers"]] == [row_of[1]]


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("answers", ["none", "laplace", "mean"])
def test_open_measurements_are_declined_at_once_and_take_no_value(answers, opened, in_process):
    identity, dataset, row_of = opened(source="inbox", answers=answers)
    query = in_process.ask(identity, [row_of[RECORD], row_of[5]])
    items = in_process.items(query)
    withhold(in_process, dataset)
    assert [item["state"] for item in in_process.items(query)] == ["declined", "open"]
    reply = in_process.enter("answer", query, items[:1], 1.0)
    assert (reply.status_code, reply.json()["code"]) == (409, "state_conflict")
    assert "withheld" in reply.json()["detail"]
    assert in_process.enter("answer", query, items[1:], 2.0).is_success
    answer = in_process.reply(identity, query)
    assert (answer.declined, [a.row for a in answer.answers]) == ([row_of[RECORD]], [row_of[5]])
    again = in_process.ask(identity, [row_of[RECORD]])  # asked after it was withheld: nobody is shown it as open
    assert [item["state"] for item in in_process.items(again)] == ["declined"]
    in_process.curator.deadlines.look()
    assert in_process.reply(identity, again).declined == [row_of[RECORD]]
    in_process.check()


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("answers", ["none", "laplace", "mean"])
def test_a_value_that_waits_for_others_of_its_query_does_not_leave(answers, opened, in_process):
    identity, dataset, row_of = opened(source="inbox", answers=answers)
    query = in_process.ask(identity, [row_of[RECORD], row_of[5]])
    items = in_process.items(query)
    assert in_process.enter("answer", query, items[:1], 1.0).is_success
    withhold(in_process, dataset)
    assert in_process.enter("answer", query, items[1:], 2.0).is_success
    answer = in_process.reply(identity, query)
    assert (answer.declined, [a.row for a in answer.answers]) == ([row_of[RECORD]], [row_of[5]])
    in_process.check()


@pytest.mark.parametrize("answers", ["laplace", "mean"])
def test_a_version_that_a_crash_left_undrawn_does_not_publish_a_record_that_was_withheld(
    answers, opened, in_process, monkeypatch
):
    identity, dataset, row_of = opened(source="inbox", answers=answers)
    rows = [row_of[5], row_of[RECORD], row_of[1]]
    query = in_process.ask(identity, rows, plays=2)
    items = in_process.items(query)
    with crash_before_the_draw(monkeypatch):
        assert in_process.enter("answer", query, items, *range(6)).is_success
        withhold(in_process, dataset)
    in_process.curator.inbox.publish([query])
    first = in_process.reply(identity, query)
    assert (first.declined, {a.row for a in first.answers}) == ([rows[1]], {rows[0], rows[2]})
    assert in_process.enter("correct", query, items[:1], 7.0).is_success
    second = in_process.reply(identity, query)
    assert (second.version, second.declined, {a.row for a in second.answers}) == (2, [rows[1]], {rows[0], rows[2]})
    assert [a.y for a in second.answers if a.row == rows[2]] == [a.y for a in first.answers if a.row == rows[2]]
    body = {"values": [], "void": [items[2]["id"], items[3]["id"]], "reason": "consent"}
    assert in_process.send("measurer", "POST", f"/v1/queries/{query}:correct", json=body).is_success
    third = in_process.reply(identity, query)
    assert (third.declined, third.answers) == (second.declined, second.answers)
    in_process.check()


def test_a_row_of_which_one_play_has_left_is_declined_when_another_is_withheld_undrawn(opened, in_process, monkeypatch):
    identity, dataset, row_of = opened(source="inbox", answers="laplace")
    query = in_process.ask(identity, [row_of[RECORD]], plays=2)
    items = in_process.items(query)
    assert in_process.enter("answer", query, items[:1], 1.0).is_success
    body = {"measurement_ids": [items[1]["id"]], "reason": "impossible"}
    assert in_process.send("measurer", "POST", f"/v1/queries/{query}:decline", json=body).is_success
    assert [a.play for a in in_process.reply(identity, query).answers] == [1]
    with crash_before_the_draw(monkeypatch):
        assert in_process.enter("answer", query, items[1:], 2.0).is_success
        withhold(in_process, dataset)
    in_process.curator.inbox.publish([query])
    last = in_process.reply(identity, query)
    assert (last.version, last.answers, last.declined) == (2, [], [row_of[RECORD]])
    in_process.check()


def test_an_answer_that_has_left_can_be_voided_and_not_corrected(opened, in_process):
    identity, dataset, row_of = opened(source="inbox", answers="laplace")
    query = in_process.ask(identity, [row_of[RECORD]])
    items = in_process.items(query)
    assert in_process.enter("answer", query, items, 1.0).is_success
    withhold(in_process, dataset)
    assert in_process.enter("correct", query, items, 2.0).status_code == 409
    body = {"values": [], "void": [items[0]["id"]], "reason": "consent"}
    assert in_process.send("measurer", "POST", f"/v1/queries/{query}:correct", json=body).is_success
    assert in_process.reply(identity, query).declined == [row_of[RECORD]]
    in_process.check()


def test_a_later_release_of_the_same_file_leaves_it_out(opened, in_process):
    _, dataset, _ = opened()
    withhold(in_process, dataset)
    later, other, row_of = opened()  # registered anew: the same file
    assert other != dataset
    assert set(row_of) == set(range(1, ROWS + 1)) - {RECORD}
    view = in_process.call("modeler", "GET", f"/v1/studies/{later}")
    assert view["n"] == ROWS - 1
    assert ask(in_process, later, list(range(ROWS - 1)))["declined"] == []
    with in_process.context.database.read() as db:
        released = in_process.curator.released.of(db, later)
    z = np.load(in_process.curator.vault.candidates(released.id))
    assert 0.2 - 0.5 not in z  # that record's x, in scaled units
    assert 0.3 - 0.5 in z


def test_the_log_says_that_a_record_is_withheld_and_not_which(opened, in_process):
    _, dataset, _ = opened()
    withhold(in_process, dataset, key="once")
    withhold(in_process, dataset, key="once")
    withhold(in_process, dataset)  # again: nothing changes
    listed = in_process.call("owner", "GET", f"/v1/datasets/{dataset}/withheld")["withheld"]
    assert [(item["record"], item["person"]) for item in listed] == [(RECORD, None)]
    with in_process.context.database.read() as db:
        records = [entry.record for entry in audit_log.walk(db)]
    logged = [record["details"] for record in records if record["kind"] == "record.withheld"]
    assert [set(details) - {"dataset_id", "account"} for details in logged] == [{"unit_sha256"}, set()]
    assert not any(str(RECORD) == str(value) for details in logged for value in details.values())
    assert in_process.send("measurer", "GET", f"/v1/datasets/{dataset}/withheld").status_code == 403


def test_a_withheld_record_that_was_removed_from_the_table_is_seen(opened, in_process):
    _, dataset, _ = opened()
    withhold(in_process, dataset)
    in_process.check()
    remove_withheld(in_process)
    with pytest.raises(LogBroken, match="withheld"):
        in_process.check()


@pytest.mark.parametrize("record", [0, ROWS + 1, 2**60, "x"])
def test_a_record_that_is_not_there_is_refused(record, opened, in_process):
    _, dataset, _ = opened()
    reply = in_process.send("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"record": record})
    assert reply.status_code == 422
    assert "record" in json.dumps(reply.json()["errors"])


PERSONS = ("who,x,y\n" + "".join(f"P-{i % 3},{i / 10},{i}\n" for i in range(9))).encode()


@pytest.fixture
def registered(in_process):
    """A dataset of nine records of three persons, of whom two records each are kept."""
    return in_process.register(PERSONS, public=True, person="who", rows_per_person="2")


def test_every_record_of_a_person_is_withheld_and_the_name_is_kept_nowhere(registered, in_process):
    spec = study()(registered).model_copy(update={"rows_per_person": 2})
    identity = in_process.release(spec)
    body = {"person": " P-1 "}
    reply = in_process.call("owner", "POST", f"/v1/datasets/{registered}:withhold", json=body)
    assert reply == {"dataset_id": registered, "records": 2, "named": []}
    with in_process.context.database.read() as db:
        released = in_process.curator.released.of(db, identity)
        log = json.dumps([entry.record for entry in audit_log.walk(db)])
    of_person = [row for row in range(6) if (released.record(row) - 1) % 3 == 1]
    assert sorted(ask(in_process, identity, list(range(6)))["declined"]) == of_person
    assert "P-1" not in log
    assert "P-1" not in in_process.send("owner", "GET", f"/v1/datasets/{registered}/withheld").text
    in_process.check()


@pytest.mark.parametrize("body", [{"person": "P-7"}, {"person": ""}, {}, {"person": "P-1", "record": 1}])
def test_a_person_who_is_not_there_is_refused_without_a_word_of_the_name(body, registered, in_process):
    reply = in_process.send("owner", "POST", f"/v1/datasets/{registered}:withhold", json=body)
    assert reply.status_code == 422
    assert "P-7" not in reply.text


def test_without_a_person_column_no_person_is_known(opened, in_process):
    _, dataset, _ = opened()
    reply = in_process.send("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"person": "P-1"})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "person")


def test_records_are_named_by_their_numbers_in_the_file_where_some_were_not_kept(registered, in_process):
    kept = in_process.curator.vault.numbers(registered).tolist()
    dropped = next(number for number in range(1, 10) if number not in kept)
    path = f"/v1/datasets/{registered}:withhold"
    assert in_process.send("owner", "POST", path, json={"record": dropped}).status_code == 422
    assert in_process.call("owner", "POST", path, json={"record": kept[-1]})["records"] == 1


def test_a_record_that_is_withheld_while_a_release_is_drawn_does_not_leave_with_it(opened, in_process, monkeypatch):
    _, dataset, _ = opened()
    draft = in_process.call("owner", "POST", "/v1/studies", json=study()(dataset).model_dump(mode="json"))["id"]

    def withheld_meanwhile(keep, *parts):
        digest = keep(*parts)
        withhold(in_process, dataset)
        return digest

    replace_kept_release(monkeypatch, withheld_meanwhile)
    refused = in_process.send("owner", "POST", f"/v1/studies/{draft}:release")
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
    assert "withheld" in refused.json()["detail"]
    monkeypatch.undo()
    assert in_process.call("owner", "POST", f"/v1/studies/{draft}:release")["report"]["n"] == ROWS - 1
    in_process.check()


def test_a_record_is_found_in_every_block_of_a_long_order():
    order = np.arange((1 << 21) + 5)
    for record in (0, (1 << 20) - 1, 1 << 20, (1 << 21) + 4):
        assert Identity().holds(order, [-1, record])
    assert not Identity().holds(order, [-1, (1 << 21) + 5])
    assert not Identity().holds(order, [])
