"""Measurements by the owner's own system, over real HTTP: right, slow, wrong, late, and none at all."""

import json
import threading
import time
from contextlib import ExitStack

import pytest

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.errors import ProtocolViolated, Remote
from curator_service.queries.inbox.webhook_measurer import read_reply
from tests.curator_service.number_traces import tells
from tests.curator_service.queries.inbox.measured_study import answers_for
from tests.curator_service.tuning.scoring.scorer import KEY, serving

HUGE = b'{"value": 1.0, "more": "' + b"x" * (1 << 20) + b'"}'
BAD = {
    "500": (500, b""),
    "redirect": (302, b""),
    "NaN": (200, b'{"value": NaN}'),
    "text": (200, b'{"value": "7.1250625"}'),
    "out of range": (200, b'{"value": 7.1250625}'),
    "huge": (200, HUGE),
}
NO_ANSWERS = (
    b'{"declined": "7.1250625"}',
    b'{"value": 1.0, "declined": "other"}',
    b"[]",
    b"7.1250625 is what we measured",
)


@pytest.fixture(scope="module")
def webhook_curator(make_service, tmp_path_factory):
    """A curator beside a measurer whose replies the tests choose."""
    replies = {}
    with ExitStack() as stack:
        measurer = stack.enter_context(serving(lambda call, number: replies["next"](call, number)))
        folder = tmp_path_factory.mktemp("webhook")
        secret = folder / "secret"
        secret.write_text(KEY)
        settings = {"measurer_url": measurer.url, "measurer_secret_file": str(secret)}
        settings |= {"measurer_hours": "0.00001", "measurer_timeout_seconds": "2"}
        curator = make_service("curator", folder, **settings).start()
        yield curator, measurer, replies


@pytest.fixture(scope="module")
def study(webhook_curator, open_measured, small):
    bounds = {"lower": -5.0, "upper": 5.0, "shown": [small.names[1]]}
    with open_measured(webhook_curator[0], source="webhook", measurement=bounds) as study:
        yield study


def test_a_measurer_gets_the_record_signed_and_answers(webhook_curator, study, small):
    _, measurer, replies = webhook_curator
    replies["next"] = lambda call, number: (200, json.dumps({"value": call["record"] / 1000}).encode())
    query = study.ask(3, 5, plays=2)
    reply = study.reply(query.id) if study.modeler.query(query.id, wait_s=30)[0].state == "answered" else None
    items = {item.id: item for item in study.items(query.id)}
    assert [answer.y for answer in reply.answers] == [item.record / 1000 for item in items.values()]
    for body, key in zip(measurer.requests[-4:], measurer.keys[-4:], strict=True):
        item = items[key]
        assert body == {
            "measurement_id": item.id,
            "query_id": query.id,
            "study_id": study.study,
            "study": "by hand",
            "record": item.record,
            "file_row": item.record + 1,
            "labels": {},
            "play": item.play,
            "shown": {small.names[1]: small.x[item.record - 1, 1]},
            "unit": "mg",
        }
    assert measurer.forged == 0
    assert {item.changed_by for item in items.values()} == {"the owner's system"}


def test_a_measurer_may_decline(webhook_curator, study):
    webhook_curator[2]["next"] = lambda call, number: (200, b'{"declined": "consent"}')
    query = study.ask(7)
    reply = study.modeler.query(query.id, wait_s=30)[0]
    assert (reply.answers, reply.declined) == ([], [7])
    assert study.items(query.id)[0].reason == "consent"


def test_an_answer_may_come_later_by_a_call_back(webhook_curator, study, until):
    _, measurer, replies = webhook_curator
    replies["next"] = lambda call, number: (202, b"")
    query = study.ask(9)
    item = study.items(query.id)[0]
    until(lambda: item.id in measurer.keys)
    time.sleep(0.8)  # longer than it would wait for its next attempt
    assert measurer.keys.count(item.id) == 1
    assert study.items(query.id)[0].problem is None
    study.measurer.answer(query.id, answers_for([item], 2.0))
    assert study.reply(query.id).answers[0].y == 2.0


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_answer_is_asked_for_again_then_left_to_people(webhook_curator, study, until, kind):
    curator, measurer, replies = webhook_curator
    replies["next"] = lambda call, number: (200, b'{"value": 0.0}')
    study.measurer.try_again()  # after an earlier case the system may count as down: a success ends that
    assert study.modeler.query(study.ask(10, key=f"before {kind}").id, wait_s=30)[0].state == "answered"
    replies["next"] = lambda call, number: BAD[kind]
    query = study.ask(11, key=kind)
    item = study.items(query.id)[0]
    failed = until(lambda: (shown := study.items(query.id)[0]).problem and shown)
    calls = measurer.keys.count(item.id)
    assert (failed.state, failed.system.state, failed.system.attempts) == ("open", "given_up", calls)
    assert calls == 3
    for text in (failed.problem, curator.log, str(curator.records())):
        assert not tells(text, "7.1250625")
    assert study.modeler.query(query.id)[0].state == "pending"
    study.answer(query.id, 1.0)
    assert study.reply(query.id).answers[0].y == 1.0
    assert study.items(query.id)[0].problem is None


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_a_reply_that_is_no_answer_is_refused_and_not_quoted(body):
    with pytest.raises(ProtocolViolated) as refused:
        read_reply("msr_0123456789abcdef", body)
    assert not tells(str(refused.value), "7.1250625")


def test_a_measurer_that_is_slow_is_asked_again_under_the_same_key(webhook_curator, study, until):
    _, measurer, replies = webhook_curator

    def slow(call, number):
        if measurer.keys.count(call["measurement_id"]) == 1:
            time.sleep(2.5)  # past the timeout
        return 200, b'{"value": 3.0}'

    replies["next"] = slow
    query = study.ask(13)
    assert study.modeler.query(query.id, wait_s=30)[0].answers[0].y == 3.0
    assert measurer.keys.count(study.items(query.id)[0].id) >= 2


def test_a_person_who_was_quicker_counts(webhook_curator, study):
    def answer_first(call, number):
        item = study.measurer.measurement(call["measurement_id"])
        study.measurer.answer(item.query_id, answers_for([item], -1.0))
        return 200, b'{"value": 4.0}'

    webhook_curator[2]["next"] = answer_first
    query = study.ask(15)
    assert study.modeler.query(query.id, wait_s=30)[0].answers[0].y == -1.0
    time.sleep(0.3)
    assert study.reply(query.id).version == 1
    assert study.items(query.id)[0].version == 1


def test_a_restart_goes_on_where_it_was(webhook_curator, study, until):
    curator, measurer, replies = webhook_curator
    replies["next"] = lambda call, number: (503, b"")
    query = study.ask(17)
    item = study.items(query.id)[0]
    until(lambda: item.id in measurer.keys)
    curator.kill()
    replies["next"] = lambda call, number: (200, b'{"value": 0.5}')
    curator.start()
    assert study.modeler.query(query.id, wait_s=30)[0].answers[0].y == 0.5
    assert measurer.keys.count(item.id) >= 2
    verified = curator.run("audit", "verify")
    assert (verified.returncode, verified.stderr) == (0, "")


def test_a_shutdown_lets_those_who_wait_go_at_once(webhook_curator, study, until):
    (curator, _, replies), seen = webhook_curator, {}
    replies["next"] = lambda call, number: (202, b"")
    query = study.ask(19)

    def look():
        with StudyClient(curator.url, study.grant.token, study.study) as modeler:
            seen["reply"] = modeler.query(query.id, wait_s=50)[0]

    def follow():
        with curator.http(study.measurer_token) as http, http.stream("GET", "/v1/inbox/events?seconds=50") as stream:
            seen["listens"] = True
            seen["events"] = [line for line in stream.iter_lines() if line.startswith("data")]

    threads = [threading.Thread(target=act) for act in (look, follow)]
    for thread in threads:
        thread.start()
    until(lambda: "listens" in seen)
    time.sleep(1.0)
    began = time.monotonic()
    assert curator.stop(40) == 0
    for thread in threads:
        thread.join(40)
    assert time.monotonic() - began < 45
    assert seen["reply"].state == "pending"
    assert len(seen["events"]) == 1
    curator.start()


def test_a_draft_needs_the_setting(owner, dataset, draft_of):
    with pytest.raises(Remote, match="MEASURER_URL"):
        owner.create_study(draft_of(dataset.id, source="webhook"))


def test_the_passport_tells_what_the_owner_declared(study):
    view = study.modeler.study()
    assert (view.measurement_source, view.measurement_noise_variance) == ("webhook", 0.0)
    assert wire.StudyView.model_fields["measurement_source"].default == "column"
