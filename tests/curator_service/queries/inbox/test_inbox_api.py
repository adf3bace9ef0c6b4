"""Answers, declines and corrections of people, and the versions that the modeler gets."""

import threading
import time

import pytest

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.client.connection import Watch
from blindopt.errors import Remote
from tests.curator_service.queries.inbox.measured_study import LAPLACE, answers_for


@pytest.fixture(scope="module")
def exact(curator, dataset, open_measured):
    with open_measured(curator, dataset.id, measurement={"lower": -10.0, "upper": 10.0}) as study:
        yield study


@pytest.fixture(scope="module")
def private(curator, dataset, open_measured):
    budget = wire.Budget(epsilon_per_row="1.5", epsilon_total="40")
    with open_measured(curator, dataset.id, answers=LAPLACE, budget=budget) as study:
        yield study


def refused(call, *arguments, **named):
    with pytest.raises(Remote) as caught:
        call(*arguments, **named)
    return caught.value


def charges_of(study):
    """The charges of a study: kind, query, row, plays and epsilon of each."""
    return [(line.kind, line.query_id, line.row, line.plays, line.epsilon) for line in study.owner.ledger(study.study)]


def test_a_query_is_pending_until_all_of_it_is_measured(exact, small):
    query = exact.ask(3, 5)
    items = exact.items(query.id)
    assert [item.state for item in items] == ["open", "open"]
    item = items[0]
    assert (item.question, item.unit, item.play, item.plays) == ("How much?", "mg", 1, 1)
    assert [(cell.column, cell.value) for cell in item.shown] == [(small.names[0], small.x[item.record - 1, 0])]
    assert exact.modeler.query(query.id)[0].state == "pending"
    assert exact.measurer.answer(query.id, answers_for(items[1:], 2.5)).model_dump() == {
        "query_id": query.id, "state": "pending", "version": 0, "open": 1, "charged": None,
    }  # fmt: skip
    assert exact.modeler.query(query.id)[0].state == "pending"
    assert exact.measurer.answer(query.id, answers_for(items[:1], -1.5)).state == "answered"
    reply = exact.reply(query.id)
    answers = [(a.row, a.y, a.passport.measurement_variance_known) for a in reply.answers]
    assert answers == [(3, -1.5, False), (5, 2.5, False)]
    assert (reply.version, reply.declined) == (1, [])
    again = exact.modeler.query(query.id)[1]
    assert again.body == exact.modeler.query(query.id)[1].body
    assert again.receipt is not None
    assert [(r.query_id, r.version) for r in exact.modeler.revisions().revisions][-1] == (query.id, 1)


def test_a_repeated_question_gets_the_pending_bytes_and_no_further_charge(exact):
    query = wire.QueryRequest(rows=[wire.RowPlays(row=11)])
    first, again = (exact.modeler.ask(query, key="repeated")[1] for _ in range(2))
    assert (first.status, again.status) == (202, 202)
    assert first.body == again.body
    assert (first.exchange.replayed, again.exchange.replayed) == (False, True)
    assert first.receipt is not None
    identity = wire.QueryPending.model_validate_json(first.body).id
    assert [line for line in charges_of(exact) if line[1] == identity] == [("answers", identity, 11, 1, None)]
    exact.answer(identity, 1.0)
    assert exact.modeler.ask(query, key="repeated")[1].body == first.body
    other = wire.QueryRequest(rows=[wire.RowPlays(row=12)])
    assert refused(exact.modeler.ask, other, key="repeated").remote_code == "idempotency_key_reused"


def test_a_look_at_a_pending_query_is_in_no_log_and_an_answer_is(exact, curator):
    query = exact.ask(21)
    path = f"/v1/studies/{exact.study}/queries/{query.id}"
    seen = []
    with StudyClient(curator.url, exact.grant.token, exact.study, watch=Watch(lambda e, r: seen.append(e))) as modeler:
        before = len(curator.records())
        reply = modeler.query(query.id)[1]
        assert (reply.status, reply.receipt, seen) == (202, None, [])
        assert len(curator.records()) == before
        exact.answer(query.id, 1.0)
        reply = modeler.query(query.id)[1]
    assert (reply.status, reply.receipt is not None) == (200, True)
    exchanges = [r["exchange"] for r in curator.records() if (r.get("exchange") or {}).get("path") == path]
    assert [(e["method"], e["status"]) for e in exchanges] == [("GET", 200)]
    assert reply.exchange.reply_sha256 == exchanges[0]["reply_sha256"]


def test_a_long_look_wakes_as_soon_as_the_answer_is_stored(exact):
    query, seen = exact.ask(22), {}

    def look():
        seen["reply"] = exact.modeler.query(query.id, wait_s=30)[0]
        seen["at"] = time.monotonic()

    waiting = threading.Thread(target=look)
    waiting.start()
    time.sleep(0.3)
    assert not seen
    exact.answer(query.id, 1.0)
    answered = time.monotonic()
    waiting.join(timeout=60)
    assert seen["reply"].state == "answered"
    assert seen["at"] - answered < 25  # it would have waited 30 s
    began = time.monotonic()
    assert exact.modeler.query(query.id, wait_s=0.2, version=2)[0].state == "pending"
    assert time.monotonic() - began >= 0.2


def test_rows_that_nobody_measures_are_declined_without_the_reason(exact, curator):
    query, logged = exact.ask(31, 32, 33, plays=2), len(curator.log)  # an earlier test may have opened a record
    items = exact.items(query.id)
    exact.measurer.answer(query.id, answers_for(items[:1], 1.25, note="on paper slip 7"))
    declined = wire.DeclineCreate(measurement_ids=[items[1].id], reason="consent", note="she said no")
    exact.measurer.decline(query.id, declined)
    assert exact.measurer.decline(query.id, wire.DeclineCreate(reason="record")).state == "answered"
    reply, sent = exact.modeler.query(query.id)
    assert [(a.row, a.play, a.y) for a in reply.answers] == [(31, 1, 1.25)]
    assert reply.declined == [32, 33]
    for word in ("consent", "record", "slip", "said no", "msr_"):
        assert word not in sent.body.decode()
        assert word not in curator.log[logged:]
        assert word == "record" or all(word not in str(record) for record in curator.records())
    assert [(i.state, i.reason, i.note, i.changed_by) for i in exact.items(query.id)[:2]] == [
        ("answered", None, "on paper slip 7", "Ms M"),
        ("declined", "consent", "she said no", "Ms M"),
    ]


def test_a_late_answer_is_a_new_version_and_costs_nothing_that_was_not_paid(private):
    query = private.ask(41, 42)
    items = private.items(query.id)
    private.measurer.answer(query.id, answers_for(items[:1], 1.0))
    private.measurer.decline(query.id, wire.DeclineCreate(reason="unavailable"))
    first = private.reply(query.id)
    assert ([a.row for a in first.answers], first.declined) == ([41], [42])
    late = private.measurer.answer(query.id, answers_for(items[1:], 2.0))
    assert (late.version, late.charged) == (2, None)
    second = private.reply(query.id, version=2)
    assert ([a.row for a in second.answers], second.declined) == ([41, 42], [])
    assert second.answers[0] == first.answers[0]
    assert [line for line in charges_of(private) if line[1] == query.id] == [
        ("answers", query.id, 41, 1, "0.5"),
        ("answers", query.id, 42, 1, "0.5"),
    ]


def test_a_correction_releases_and_charges_what_changed_and_nothing_else(private):
    query = private.ask(51, 52, 53)
    items = private.items(query.id)
    private.measurer.answer(query.id, answers_for(items, 1.0, 2.0, 3.0))
    first = private.reply(query.id)
    done = private.measurer.correct(query.id, answers_for(items[1:2], -2.0))
    assert (done.version, done.charged) == (2, "0.5")
    second = private.reply(query.id)
    assert second.version == 2
    assert (second.answers[0], second.answers[2]) == (first.answers[0], first.answers[2])
    assert second.answers[1].y != first.answers[1].y
    assert [line for line in charges_of(private) if line[1] == query.id][3:] == [("correction", query.id, 52, 0, "0.5")]
    revisions = [(r.query_id, r.version) for r in private.modeler.revisions().revisions]
    assert revisions[-2:] == [(query.id, 1), (query.id, 2)]
    exposure = {row.row: row for row in private.owner.exposure(private.study)}
    assert (exposure[52].queries, exposure[52].plays, exposure[52].epsilon) == (1, 1, "1")
    # The cap of 1.5 allows one more about this row, and no further one: that changes nothing.
    private.measurer.correct(query.id, answers_for(items[1:2], -3.0))
    before = private.reply(query.id), private.items(query.id), charges_of(private)
    error = refused(private.measurer.correct, query.id, answers_for(items[1:2], -4.0))
    assert (error.remote_code, error.remote_status) == ("privacy_budget_exhausted", 403)
    assert "epsilon_per_row" in str(error)
    assert (private.reply(query.id), private.items(query.id), charges_of(private)) == before


def test_a_correction_of_a_value_that_was_entered_anew_meanwhile_changes_and_charges_nothing(private):
    query = private.ask(54)
    items = private.items(query.id)
    private.measurer.answer(query.id, answers_for(items, 1.0))

    def decided_on(version, value):
        value = wire.Measured(measurement_id=items[0].id, value=value, expected_version=version)
        return wire.AnswerCreate(values=[value])

    private.measurer.correct(query.id, decided_on(1, 2.0))
    before = private.reply(query.id), private.items(query.id), charges_of(private)
    error = refused(private.measurer.correct, query.id, decided_on(1, 3.0))
    assert error.remote_status == 409
    assert "meanwhile" in str(error)
    assert (private.reply(query.id), private.items(query.id), charges_of(private)) == before


def test_a_correction_before_the_modeler_got_the_answer_costs_nothing(private):
    query = private.ask(61, 62)
    items = private.items(query.id)
    private.measurer.answer(query.id, answers_for(items[:1], 1.0))
    assert private.measurer.correct(query.id, answers_for(items[:1], 1.5)).charged is None
    assert private.measurer.answer(query.id, answers_for(items[1:], 2.0)).version == 1
    assert [line[0] for line in charges_of(private) if line[1] == query.id] == ["answers", "answers"]
    assert private.items(query.id)[0].version == 2


def test_an_undo_that_is_overtaken_takes_nothing_back(private, exact):
    """The page saw version 1, not yet released; before its request arrives, the answer leaves, or is replaced."""

    def undo(item, version):
        return wire.CorrectCreate(void=[item.id], reason="other", undo_version=version)

    query = private.ask(31, 32)
    private.answer(query.id, 1.0)
    saved = private.items(query.id)[0]
    assert (saved.version, saved.costs_again) == (1, False)  # what the page saw
    private.answer(query.id, 2.0)  # the last of the query: its private answers leave now
    late = refused(private.measurer.correct, query.id, undo(saved, 1))
    assert (late.remote_code, "has left" in str(late)) == ("state_conflict", True)
    assert (private.items(query.id)[0].value, private.reply(query.id).version) == (1.0, 1)

    query = exact.ask(31, 32)
    exact.answer(query.id, 1.0)
    saved = exact.items(query.id)[0]
    exact.measurer.correct(query.id, answers_for([saved], 1.5))  # another person
    assert refused(exact.measurer.correct, query.id, undo(saved, 1)).remote_code == "state_conflict"
    assert exact.items(query.id)[0].value == 1.5
    exact.measurer.correct(query.id, undo(saved, 2))  # control: what is still so is taken back
    assert exact.items(query.id)[0].state == "declined"


def test_means_are_released_once_over_what_was_measured(curator, dataset, open_measured):
    answers = LAPLACE.model_copy(update={"plays": "mean"})
    with open_measured(curator, dataset.id, answers=answers, measurement={"noise_variance": 0.5}) as study:
        query = study.ask(3, 4, plays=4)
        items = study.items(query.id)
        study.measurer.answer(query.id, answers_for(items[:2], 1.0, 2.0))
        study.measurer.decline(query.id, wire.DeclineCreate(reason="other"))
        first = study.reply(query.id)
        assert [(a.row, a.plays) for a in first.answers] == [(3, 2)]
        passport = first.answers[0].passport
        assert (passport.measurement_variance, passport.measurement_variance_known) == (0.25, True)
        assert first.declined == [4]
        # Row 4 was paid for and never released; row 3 was: another mean of it is another charge.
        assert study.measurer.answer(query.id, answers_for(items[4:5], 1.0)).charged is None
        assert study.measurer.answer(query.id, answers_for(items[2:3], 1.0)).charged == "0.5"
        third = study.reply(query.id)
        assert [(a.row, a.plays) for a in third.answers] == [(3, 3), (4, 1)]
        assert third.answers[1] == study.modeler.query(query.id)[0].answers[1]
        corrections = [line for line in charges_of(study) if line[0] == "correction"]
        assert corrections == [("correction", query.id, 3, 0, "0.5")]


def test_where_each_answer_is_another_persons_a_correction_is_the_same_persons_again(curator, dataset, open_measured):
    budget = wire.Budget(epsilon_per_row="1")
    with open_measured(curator, dataset.id, answers=LAPLACE, privacy_unit="answer", budget=budget) as study:
        queries = [study.ask(3, key=f"k{number}") for number in range(3)]  # as often as one likes
        for query in queries:
            study.answer(query.id, 1.0)
        items = study.items(queries[0].id)
        assert study.measurer.correct(queries[0].id, answers_for(items, 2.0)).charged == "0.5"
        assert refused(study.measurer.correct, queries[0].id, answers_for(items, 3.0)).remote_status == 403
        assert study.measurer.correct(queries[1].id, answers_for(study.items(queries[1].id), 2.0)).charged == "0.5"
        assert [row.spent for row in study.owner.exposure(study.study)] == ["1"]
        assert study.owner.accounting(study.study).rows[-1].epsilon == "1"
        with curator.http() as http:
            assert http.get(f"/v1/studies/{study.study}/account").json()["row_epsilon"] == "1"


def test_what_cannot_be_right_is_refused_and_named_and_nothing_is_stored(exact, curator):
    query = exact.ask(71, key="wrong")
    item_id = exact.items(query.id)[0].id

    def body(value, measurement_id=item_id, times=1):
        values = ", ".join([f'{{"measurement_id": "{measurement_id}", "value": {value}}}'] * times)
        return f'{{"values": [{values}]}}'

    wrong = dict.fromkeys((body("11.0"), body("-10.5"), body("NaN"), body("1e999"), body("true")), "values.0.value")
    wrong |= {body("1.0", times=2): "values.1.measurement_id", body("1", f"msr_{'0' * 16}"): "values.0.measurement_id"}
    for number, (content, field) in enumerate(wrong.items()):
        headers = {"Idempotency-Key": f"wrong-{number}", "Content-Type": "application/json"}
        with curator.http(exact.measurer_token) as http:
            reply = http.post(f"/v1/queries/{query.id}:answer", content=content, headers=headers)
        assert reply.status_code == 422
        assert [error["field"] for error in reply.json()["errors"]] == [field], content
        assert "11" not in reply.json()["detail"]
    assert exact.items(query.id)[0].state == "open"


# The state after each act, from each state; None: refused with 409, and nothing changes.
MACHINE = {
    ("open", "answer"): "answered",
    ("open", "decline"): "declined",
    ("open", "correct"): None,
    ("answered", "answer"): None,
    ("answered", "decline"): None,
    ("answered", "correct"): "answered",
    ("declined", "answer"): "answered",
    ("declined", "decline"): None,
    ("declined", "correct"): None,
    ("overdue", "answer"): "answered",
    ("overdue", "decline"): "declined",
    ("overdue", "correct"): None,
}


@pytest.fixture(scope="module")
def overdue(curator, dataset, open_measured):
    with open_measured(curator, dataset.id, measurement={"due_hours": 0.001}) as study:
        yield study


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("state", "act"), MACHINE)
def test_a_measurement_goes_from_state_to_state_as_it_may(exact, overdue, state, act, until):
    study = overdue if state == "overdue" else exact
    query = study.ask(81, key=f"{state}-{act}")
    item = study.items(query.id)[0]
    if state == "answered":
        study.answer(query.id, 1.0)
    elif state == "declined":
        study.measurer.decline(query.id, wire.DeclineCreate(reason="other"))
    elif state == "overdue":
        until(lambda: study.items(query.id)[0].state == "overdue")
        assert study.reply(query.id).declined == [81]
    acts = {
        "answer": lambda: study.measurer.answer(query.id, answers_for([item], 2.0)),
        "correct": lambda: study.measurer.correct(query.id, answers_for([item], 2.0)),
        "decline": lambda: study.measurer.decline(
            query.id, wire.DeclineCreate(measurement_ids=[item.id], reason="impossible")
        ),
    }
    before = study.items(query.id)
    if (after := MACHINE[state, act]) is None:
        assert refused(acts[act]).remote_code == "state_conflict"
        assert study.items(query.id) == before
    else:
        acts[act]()
        assert study.items(query.id)[0].state == after


def test_a_closed_study_takes_no_query_and_its_pending_ones_are_still_answered(curator, dataset, open_measured):
    with open_measured(curator, dataset.id) as study:
        query = study.ask(3)
        study.owner.close_study(study.study)
        assert refused(study.ask, 4).remote_code == "study_not_open"
        study.answer(query.id, 1.0)
        assert study.reply(query.id).answers[0].y == 1.0
        study.measurer.correct(query.id, answers_for(study.items(query.id), 2.0))
        assert study.reply(query.id).answers[0].y == 2.0


def test_another_grant_sees_nothing_of_a_query(exact, curator):
    query = exact.ask(91)
    grant = exact.owner.grant(exact.study, wire.GrantCreate(name="another"))
    with StudyClient(curator.url, grant.token, exact.study) as another:
        assert refused(another.query, query.id).remote_code == "not_found"
        assert another.revisions().revisions == []


def test_the_inbox_pages_through_all_states_in_the_order_of_asking(curator, dataset, open_measured):
    with open_measured(curator, dataset.id) as study:
        queries = [study.ask(row, key=f"p{row}") for row in range(9)]
        for number, query in enumerate(queries[:6]):
            if number % 2:
                study.answer(query.id, 1.0)
            else:
                study.measurer.decline(query.id, wire.DeclineCreate(reason="other"))
        items, token = [], None
        while True:
            page = study.measurer.inbox_page(study_id=study.study, state="all", page_size=2, page_token=token)
            items += page.items
            if (token := page.next_page_token) is None:
                break
        assert [item.query_id for item in items] == [query.id for query in queries]
        counts = {
            s: len(list(study.measurer.measurements(study_id=study.study, state=s))) for s in ("open", "answered")
        }
        assert counts == {"open": 3, "answered": 3}
        assert study.measurer.measurement(items[0].id) == items[0]


def test_the_inbox_tells_its_news(exact, curator):
    with curator.http(exact.measurer_token) as http, http.stream("GET", "/v1/inbox/events?seconds=20") as stream:
        events = (line for line in stream.iter_lines() if line.startswith("data: "))
        first = wire.InboxNews.model_validate_json(next(events)[6:])
        query = exact.ask(95)
        second = wire.InboxNews.model_validate_json(next(events)[6:])
        assert (second.open, second.seq) == (first.open + 1, first.seq + 1)
        exact.answer(query.id, 1.0)
        assert wire.InboxNews.model_validate_json(next(events)[6:]).open == first.open


def test_a_draft_that_cannot_be_measured_is_refused_with_its_field(owner, dataset, draft_of, small):
    def fields(**chosen):
        with pytest.raises(Remote) as caught:
            owner.create_study(draft_of(dataset.id, **chosen))
        return str(caught.value)

    assert "no measurer" in fields(source="webhook")
    fields(measurement={"shown": ["nothing"]})
    fields(measurement={"shown": [small.names[0]] * 2})
    fields(measurement={"lower": 6.0}, answers=LAPLACE)
    fields(measurement={"upper": -5.0}, answers=LAPLACE)
    draft = owner.create_study(draft_of(dataset.id, measurement={"upper": 6.0}, answers=LAPLACE))
    assert any(sentence.startswith("Measuring:") for sentence in draft.not_protected)
    report = owner.preview(draft.id)
    assert [finding.attack for finding in report.attacks][-1] == "averaging"
    assert "spread evenly over the range, not on measured ones" in report.attacks[-1].sentence


def test_the_log_and_the_tables_tell_the_same_story(exact, private, overdue, curator):
    verified = curator.run("audit", "verify")
    assert (verified.returncode, verified.stderr) == (0, "")
