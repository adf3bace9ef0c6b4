"""Messages of vendors: what is taken, what the owner decides, whose record it is, and caps that rise."""

import json

import pytest

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import LogBroken
from curator_service.integrity import log_checks
from service_kit.store import audit_log
from tests import beside
from tests.curator_service.budget.file_of_records import CSV, FileOfRecords

EXACT = {"answers": wire.NONE, "budget": wire.Budget(queries=2)}
HOSTILE = "<script>alert(1)</script>\nsecond line \u202e"


@pytest.fixture
def file(tmp_path):
    made = FileOfRecords(tmp_path, notify_url="http://127.0.0.1:9/", notify_secret_file=_secret(tmp_path))
    yield made
    made.close()


def _secret(folder):
    path = folder / "secret"
    path.write_text("s" * 32)
    return path


def _recommend(file, study, row=3, key=None, **more):
    body = {"kind": "recommendation", "row": row, "mean": 1.5, "interval": [1.0, 2.0], **more}
    return file.in_process.send(study, "POST", f"/v1/studies/{study}/messages", json=body, key=key)


def _request(file, study, **more):
    body = {"kind": "budget", "more": more, "note": "two more weeks"}
    return file.in_process.send(study, "POST", f"/v1/studies/{study}/messages", json=body)


def _decide(file, message, decision, **more):
    body = {"decision": decision, **more}
    return file.in_process.send("owner", "POST", f"/v1/messages/{message}:decide", json=body)


def _notices(file):
    listed = file.in_process.call("owner", "GET", "/v1/notices")["notices"]
    return [notice["notice"]["event"] for notice in listed]


def _records(file, kind):
    with file.in_process.context.database.read() as db:
        return [entry.record for entry in audit_log.walk(db) if entry.record["kind"] == kind]


def test_a_recommendation_waits_for_the_owner_whose_word_the_vendor_reads(file):
    study = file.study()
    sent = _recommend(file, study, note=HOSTILE, key="one")
    assert sent.status_code == 201
    message = sent.json()
    assert (message["state"], message["name"], message["message"]["note"]) == ("open", "m", HOSTILE)
    assert _recommend(file, study, note=HOSTILE, key="one").content == sent.content  # once
    assert _notices(file)[-1] == "recommendation_received"
    (waiting,) = file.in_process.call("owner", "GET", "/v1/messages?only_open=true")["messages"]
    assert waiting == message
    where = f"/v1/studies/{study}/messages/{message['id']}"
    for decision in ("accepted", "measured"):  # it may be decided again
        assert _decide(file, message["id"], decision, word="thank you").status_code == 200
        read = file.in_process.call(study, "GET", where)
        assert (read["state"], read["word"]) == (decision, "thank you")
    assert file.in_process.call("owner", "GET", "/v1/messages?only_open=true")["messages"] == []
    # The shared log has the exchange and digests alone.
    (received,) = _records(file, "message.received")
    assert received["exchange"]["path"] == f"/v1/studies/{study}/messages"
    assert HOSTILE not in json.dumps(received)


def test_a_value_in_a_message_or_in_the_owners_word_cannot_be_guessed_from_the_log(file):
    study, word = file.study(), "4.31 MPa"
    message = _recommend(file, study, note=word).json()
    _decide(file, message["id"], "measured", word=word)
    (received,), (decided,) = _records(file, "message.received"), _records(file, "message.decided")
    body = wire.RecommendationMessage.model_validate(message["message"]).model_dump_json()
    assert received["details"]["message_sha256"] != sha256(body.encode())
    assert decided["details"]["word_sha256"] != sha256(word.encode())
    with file.in_process.context.database.read() as db:
        stored = db.exec_driver_sql("SELECT m.body, m.salt, d.word, d.salt FROM messages m, decisions d").one()
        log_checks.check(db, (entry.record for entry in audit_log.walk(db)))
    assert (stored[0], stored[2]) == (body, word)
    read = file.in_process.call(study, "GET", f"/v1/studies/{study}/messages/{message['id']}")
    assert (message["salt"], read["salt"]) == (stored[1], stored[3])  # the log has digests of these replies too
    assert len({stored[1], stored[3]}) == 2
    assert received["details"]["message_sha256"] == sha256((stored[1] + body).encode())
    assert decided["details"]["word_sha256"] == sha256((stored[3] + word).encode())


def _recommend_many(file, study, rows, **more):
    body = {"kind": "recommendations", "rows": [{"row": row, "probability": 0.9} for row in rows], "found": 1.8, **more}
    return file.in_process.send(study, "POST", f"/v1/studies/{study}/messages", json=body)


def test_many_candidates_are_recommended_together_and_opened_by_one_act(file):
    study = file.study(features=[wire.Feature(column="a", lower=0.0, upper=4.0)])
    sent = _recommend_many(file, study, [4, 1, 2], threshold=2.5, note="three")
    assert sent.status_code == 201
    assert _notices(file)[-1] == "recommendation_received"
    where = f"/v1/messages/{sent.json()['id']}"
    table = file.in_process.call("owner", "POST", f"{where}:open_records")
    assert [record["row"] for record in table["records"]] == [4, 1, 2]
    for record in table["records"]:
        single = file.in_process.call("owner", "POST", f"/v1/studies/{study}:open_record", json={"row": record["row"]})
        assert single == record
    first, *others = _records(file, "record.opened")
    assert first["details"] == {"study_id": study, "records": 3}  # how many, and not which
    assert len(others) == 3
    assert _decide(file, sent.json()["id"], "measured", word="all three").status_code == 200


def test_a_list_of_candidates_is_of_this_study_and_not_empty(file):
    study = file.study()
    assert _recommend_many(file, study, [1, 99]).json()["code"] == "unknown_row"
    assert _recommend_many(file, study, []).status_code == 422
    assert file.in_process.send(study, "POST", "/v1/messages/msg_0:open_records").status_code == 403
    budget = file.study(**EXACT)
    message = _request(file, budget, queries=5).json()["id"]
    refused = file.in_process.send("owner", "POST", f"/v1/messages/{message}:open_records")
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")


def test_what_is_no_message_of_this_grant_is_refused(file):
    study, other = file.study(), file.study()
    assert _recommend(file, study, row=99).json()["code"] == "unknown_row"
    message = _recommend(file, study).json()["id"]
    assert file.in_process.send(other, "GET", f"/v1/studies/{other}/messages/{message}").status_code == 404
    assert file.in_process.send(other, "GET", f"/v1/studies/{study}/messages/{message}").status_code == 404
    assert _decide(file, message, "approved").status_code == 422
    assert _request(file, study, queries=5).status_code == 409  # the study has no such cap
    assert _recommend(file, study, note="x" * 2_001).status_code == 422
    assert _recommend(file, study, note="a\x00b").status_code == 422
    assert [_recommend(file, study).status_code for _ in range(5)] == [201] * 4 + [409]


def test_a_withdrawn_grant_sends_nothing(file):
    study = file.study()
    (grant,) = file.in_process.call("owner", "GET", f"/v1/studies/{study}/grants")["grants"]
    file.in_process.call("owner", "POST", f"/v1/studies/{study}/grants/{grant['id']}:revoke")
    refused = _recommend(file, study)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")


def test_a_study_that_is_closed_takes_recommendations_and_no_request_for_budget(file):
    study = file.study(**EXACT)
    file.in_process.call("owner", "POST", f"/v1/studies/{study}:close")
    assert _recommend(file, study).status_code == 201
    assert _request(file, study, queries=5).json()["code"] == "study_not_open"


def test_the_record_behind_any_candidate_is_the_owners_alone_and_an_act(file):
    study = file.study(features=[wire.Feature(column="a", lower=0.0, upper=4.0)])
    lines = [line.split(",") for line in CSV.decode().splitlines()]
    shown = []
    for row in range(len(lines) - 1):
        view = file.in_process.call("owner", "POST", f"/v1/studies/{study}:open_record", json={"row": row})
        shown.append(view["record"])
        columns = {column["column"]: column["value"] for column in view["columns"]}
        expected = dict(zip(lines[0], map(float, lines[view["record"]]), strict=True))
        assert (view["row"], view["plays"], columns) == (row, 0, expected)
    assert sorted(shown) == list(range(1, len(lines)))
    opened = _records(file, "record.opened")
    assert [record["details"] for record in opened] == [{"study_id": study}] * len(shown)  # not which
    where = f"/v1/studies/{study}"
    (dataset,) = file.in_process.call("owner", "GET", "/v1/datasets")["datasets"]
    file.in_process.call("owner", "POST", f"/v1/datasets/{dataset['id']}:withhold", json={"record": shown[2]})
    again = [file.in_process.call("owner", "POST", f"{where}:open_record", json={"row": row}) for row in range(6)]
    assert [view["withheld"] for view in again] == [False, False, True, False, False, False]
    missing = file.in_process.send("owner", "POST", f"/v1/studies/{study}:open_record", json={"row": 6})
    assert missing.json()["code"] == "unknown_row"
    for role in ("measurer", study):
        refused = file.in_process.send(role, "POST", f"/v1/studies/{study}:open_record", json={"row": 0})
        assert refused.status_code == 403


def test_the_numbers_of_a_file_with_persons_are_those_of_the_file(tmp_path):
    csv = b"who,a,y\n" + b"".join(b"p%d,%d,%d\n" % (i % 3, i % 2, i) for i in range(9))
    file = FileOfRecords(tmp_path, csv=csv, fields={"person": "who", "rows_per_person": "1"})
    study = file.study(features=[wire.Feature(column="a", lower=0.0, upper=4.0)])
    for row in range(3):
        view = file.in_process.call("owner", "POST", f"/v1/studies/{study}:open_record", json={"row": row})
        values = {column["column"]: column["value"] for column in view["columns"]}
        assert values["y"] == view["record"] - 1  # y counts the lines of the file
    file.close()


def _raise(file, study, reason="agreed", **budget):
    body = {"budget": budget, "reason": reason}
    return file.in_process.send("owner", "PUT", f"/v1/studies/{study}/budget", json=body)


def test_a_cap_that_is_raised_counts_at_once_and_everybody_reads_why(file):
    study = file.study(**EXACT)
    assert file.ask(study, 0, 1).status_code == 201
    assert _notices(file).count("budget_80") == 1
    assert file.ask(study, 2).json()["code"] == "privacy_budget_exhausted"
    assert _raise(file, study, queries=2).status_code == 409
    assert _raise(file, study, queries=1).status_code == 409
    raised = _raise(file, study, queries=3)
    assert raised.status_code == 200, raised.text
    assert raised.json()["spec"]["budget"]["queries"] == 3
    assert _notices(file)[-1] == "cap_raised"
    assert file.ask(study, 2).status_code == 201
    assert file.ask(study, 3).json()["code"] == "privacy_budget_exhausted"
    assert _notices(file).count("budget_80") == 2  # of the new cap
    for role, path in ((study, f"/v1/studies/{study}"), ("owner", f"/v1/studies/{study}/account")):
        (change,) = file.in_process.call(role, "GET", path)["budget_changes"]
        assert (change["before"]["queries"], change["after"]["queries"], change["reason"]) == (2, 3, "agreed")
    assert _raise(file, study).status_code == 200  # no cap from now on
    assert file.ask(study, 3, 4, 5).status_code == 201
    file.reopen()
    assert file.ask(study, 0).status_code == 201
    file.in_process.call("owner", "POST", f"/v1/studies/{study}:close")
    assert _raise(file, study, queries=9).status_code == 409


def test_a_cap_on_epsilon_rises_too_and_a_draft_is_changed_instead(file):
    budget = wire.Budget(epsilon_per_row="1.5", epsilon_total="2")
    draft = file.draft(budget=budget)
    assert _raise(file, draft, epsilon_per_row="3", epsilon_total="3").status_code == 409
    study = file.study(budget=budget)
    assert file.ask(study, 0).status_code == 201
    assert file.ask(study, 0).status_code == 403
    assert _raise(file, study, epsilon_per_row="3", epsilon_total="1.9").status_code == 409
    assert _raise(file, study, epsilon_per_row="2", epsilon_total="2.5").status_code == 200
    assert file.ask(study, 0).status_code == 201
    assert file.ask(study, 0).status_code == 403
    assert file.ask(study, 1).status_code == 201
    assert file.ask(study, 2).status_code == 403


def test_a_request_for_budget_is_approved_up_to_what_was_requested_or_declined(file):
    study = file.study(**EXACT)
    assert file.ask(study, 0, 1).status_code == 201
    first, second = (_request(file, study, queries=10).json()["id"] for _ in range(2))
    assert _notices(file)[-1] == "budget_requested"
    refused = _decide(file, first, "approved", budget={"queries": 13})
    assert refused.json()["errors"][0]["field"] == "budget.queries"
    assert _decide(file, first, "approved", budget={"queries": 4}, word="four").json()["state"] == "approved"
    assert file.ask(study, 2, 3).status_code == 201
    assert file.ask(study, 4).status_code == 403
    assert _decide(file, first, "declined").status_code == 409  # once
    assert _decide(file, second, "declined", word="not this year").json()["word"] == "not this year"
    third = _request(file, study, queries=1).json()["id"]
    assert _decide(file, third, "approved").status_code == 200
    view = file.in_process.call(study, "GET", f"/v1/studies/{study}")
    assert (view["budget"]["queries"], len(view["budget_changes"])) == (5, 2)


@pytest.mark.parametrize(("cap", "more"), [("queries", 2**53 - 1), ("epsilon_total", "999999")])
def test_more_than_a_cap_can_be_is_the_vendors_fault_and_says_which(file, cap, more):
    study = file.study(budget=wire.Budget(queries=2, epsilon_total="999999"))
    refused = _request(file, study, **{cap: more})
    assert (refused.status_code, [fault["field"] for fault in refused.json()["errors"]]) == (422, [f"more.{cap}"])


TAMPERED = (
    "UPDATE messages SET body = replace(body, '3', '4')",
    "DELETE FROM messages",
    "UPDATE decisions SET decision = 'measured'",
    "UPDATE decisions SET word = 'no'",
    "UPDATE decisions SET salt = 'other'",
    "UPDATE budget_changes SET reason = 'another'",
    "UPDATE studies SET spec = replace(spec, '\"queries\":3', '\"queries\":4')",
)


def test_a_message_a_decision_or_a_raise_that_somebody_changed_is_what_verify_finds(file):
    study = file.study(**EXACT)
    _decide(file, _recommend(file, study).json()["id"], "accepted", word="yes")
    assert _raise(file, study, queries=3).status_code == 200
    database = file.in_process.context.database

    class Undo(Exception):
        pass

    def work(db, change):
        beside.drop_triggers(db)
        db.exec_driver_sql(change)
        with pytest.raises(LogBroken):
            log_checks.check(db, (entry.record for entry in audit_log.walk(db)))
        raise Undo

    for change in TAMPERED:
        with pytest.raises(Undo):
            database.write(lambda db, change=change: work(db, change))
