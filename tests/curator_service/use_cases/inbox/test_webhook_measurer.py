"""The owner's own system measures, over real HTTP: well, slowly, wrongly, later, and not at all."""

import json
import threading
import time
from contextlib import ExitStack

import pytest

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.errors import Remote
from tests.curator_service.number_traces import tells
from tests.curator_service.scoring.scorer import KEY, serving
from tests.curator_service.use_cases.inbox.measured_study import told

HUGE = b'{"value": 1.0, "more": "' + b"x" * (1 << 20) + b'"}'
BAD = {
    "500": (500, b""),
    "redirect": (302, b""),
    "NaN": (200, b'{"value": NaN}'),
    "infinite": (200, b'{"value": 1e999}'),
    "text": (200, b'{"value": "7.1250625"}'),
    "out of range": (200, b'{"value": 7.1250625}'),
    "no reason": (200, b'{"declined": "7.1250625"}'),
    "both": (200, b'{"value": 1.0, "declined": "other"}'),
    "neither": (200, b"[]"),
    "no JSON": (200, b"7.1250625 is what we measured"),
    "huge": (200, HUGE),
}


@pytest.fixture(scope="module")
def house(make_service, tmp_path_factory, small):
    """A curator beside a measurer whose replies the tests choose."""
    replies = {}
    with ExitStack() as stack:
        measurer = stack.enter_context(serving(lambda asked, number: replies["next"](asked, number)))
        folder = tmp_path_factory.mktemp("webhook")
        secret = folder / "secret"
        secret.write_text(KEY)
        settings = {"measurer_url": measurer.url, "measurer_secret_file": str(secret)}
        settings |= {"measurer_hours": "0.00001", "measurer_timeout_seconds": "0.5"}
        curator = make_service("curator", folder, **settings).start()
        yield curator, measurer, replies


@pytest.fixture(scope="module")
def lab(house, asked_of, small):
    curator, _, _ = house
    with curator.http() as http:
        files, headers = {"file": ("a.csv", small.csv)}, {"Idempotency-Key": "d"}
        dataset = http.post("/v1/datasets", files=files, data={"name": "n", "public": "true"}, headers=headers).json()
    bounds = {"lower": -5.0, "upper": 5.0, "shown": [small.names[1]]}
    with asked_of(curator, dataset["id"], source="webhook", measurement=bounds) as asked:
        yield asked


def test_a_measurer_is_asked_with_the_record_signed_and_answers(house, lab, small):
    _, measurer, replies = house
    replies["next"] = lambda asked, number: (200, json.dumps({"value": asked["record"] / 1000}).encode())
    query = lab.ask(3, 5, plays=2)
    reply = lab.reply(query.id) if lab.modeler.query(query.id, wait_s=30)[0].state == "answered" else None
    items = {item.id: item for item in lab.of(query.id)}
    assert [answer.y for answer in reply.answers] == [item.record / 1000 for item in items.values()]
    for said, key in zip(measurer.asked[-4:], measurer.keys[-4:], strict=True):
        item = items[key]
        assert said == {
            "measurement_id": item.id,
            "query_id": query.id,
            "study_id": lab.study,
            "study": "by hand",
            "record": item.record,
            "play": item.play,
            "shown": {small.names[1]: small.x[item.record - 1, 1]},
            "unit": "mg",
        }
    assert measurer.forged == 0
    assert {item.changed_by for item in items.values()} == {"the owner's system"}


def test_a_measurer_may_decline(house, lab):
    house[2]["next"] = lambda asked, number: (200, b'{"declined": "consent"}')
    query = lab.ask(7)
    reply = lab.modeler.query(query.id, wait_s=30)[0]
    assert (reply.answers, reply.declined) == ([], [7])
    assert lab.of(query.id)[0].reason == "consent"


def test_an_answer_may_come_later_by_a_call_back(house, lab, until):
    _, measurer, replies = house
    replies["next"] = lambda asked, number: (202, b"")
    query = lab.ask(9)
    item = lab.of(query.id)[0]
    until(lambda: item.id in measurer.keys)
    time.sleep(0.8)  # longer than it would wait for its next attempt
    assert measurer.keys.count(item.id) == 1
    assert lab.of(query.id)[0].problem is None
    lab.measurer.answer(query.id, told([item], 2.0))
    assert lab.reply(query.id).answers[0].y == 2.0


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_answer_is_asked_for_again_then_left_to_people(house, lab, until, kind):
    curator, measurer, replies = house
    replies["next"] = lambda asked, number: BAD[kind]
    query = lab.ask(11, key=kind)
    item = lab.of(query.id)[0]
    failed = until(lambda: (found := lab.of(query.id)[0]).problem and found)
    asked = measurer.keys.count(item.id)
    assert (failed.state, failed.system.state, failed.system.attempts) == ("open", "given_up", asked)
    assert asked == 3 or (kind in ("500", "redirect") and asked >= 1)  # one that is down is asked once more
    for text in (failed.problem, curator.log, str(curator.records())):
        assert not tells(text, "7.1250625")
    assert lab.modeler.query(query.id)[0].state == "pending"
    lab.answer(query.id, 1.0)
    assert lab.reply(query.id).answers[0].y == 1.0
    assert lab.of(query.id)[0].problem is None


def test_a_measurer_that_is_slow_is_asked_again_under_the_same_key(house, lab, until):
    _, measurer, replies = house

    def slow(asked, number):
        if measurer.keys.count(asked["measurement_id"]) == 1:
            time.sleep(1.0)  # past the timeout
        return 200, b'{"value": 3.0}'

    replies["next"] = slow
    query = lab.ask(13)
    assert lab.modeler.query(query.id, wait_s=30)[0].answers[0].y == 3.0
    assert measurer.keys.count(lab.of(query.id)[0].id) == 2


def test_a_person_who_was_quicker_counts(house, lab):
    def while_asked(asked, number):
        item = lab.measurer.measurement(asked["measurement_id"])
        lab.measurer.answer(item.query_id, told([item], -1.0))
        return 200, b'{"value": 4.0}'

    house[2]["next"] = while_asked
    query = lab.ask(15)
    assert lab.modeler.query(query.id, wait_s=30)[0].answers[0].y == -1.0
    time.sleep(0.3)
    assert lab.reply(query.id).version == 1
    assert lab.of(query.id)[0].version == 1


def test_a_restart_goes_on_where_it_was(house, lab, until):
    curator, measurer, replies = house
    replies["next"] = lambda asked, number: (503, b"")
    query = lab.ask(17)
    item = lab.of(query.id)[0]
    until(lambda: item.id in measurer.keys)
    curator.kill()
    replies["next"] = lambda asked, number: (200, b'{"value": 0.5}')
    curator.start()
    assert lab.modeler.query(query.id, wait_s=30)[0].answers[0].y == 0.5
    assert measurer.keys.count(item.id) == 2
    told = curator.run("audit", "verify")
    assert (told.returncode, told.stderr) == (0, "")


def test_a_shutdown_lets_those_who_wait_go_at_once(house, lab, until):
    (curator, _, replies), study, found = house, lab, {}
    replies["next"] = lambda asked, number: (202, b"")
    query = study.ask(19)

    def look():
        with StudyClient(curator.url, study.grant.token, study.study) as modeler:
            found["reply"] = modeler.query(query.id, wait_s=50)[0]

    def follow():
        with curator.http(study.measurer_token) as http, http.stream("GET", "/v1/inbox/events?seconds=50") as stream:
            found["listens"] = True
            found["events"] = [line for line in stream.iter_lines() if line.startswith("data")]

    threads = [threading.Thread(target=act) for act in (look, follow)]
    for thread in threads:
        thread.start()
    until(lambda: "listens" in found)
    time.sleep(1.0)
    began = time.monotonic()
    assert curator.stop(15) == 0
    for thread in threads:
        thread.join(15)
    assert time.monotonic() - began < 15
    assert found["reply"].state == "pending"
    assert len(found["events"]) == 1
    curator.start()


def test_a_draft_needs_the_setting(owner, dataset, study_of):
    with pytest.raises(Remote, match="MEASURER_URL"):
        owner.create_study(study_of(dataset.id, source="webhook"))


def test_the_passport_tells_what_the_owner_declared(lab):
    view = lab.modeler.study()
    assert (view.measurement_source, view.measurement_noise_variance) == ("webhook", 0.0)
    assert wire.StudyView.model_fields["measurement_source"].default == "column"
