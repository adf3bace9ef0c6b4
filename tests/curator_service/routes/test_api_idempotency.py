"""The same key with the same body does it once and answers with the same bytes."""

import json
import socket
import threading

import pytest

from blindopt import wire

QUERY = {"rows": [{"row": 3, "plays": 2}]}
FILE = b"a,b\n1,2\n3,4\n"


@pytest.fixture(scope="module")
def noisy(owner, dataset, open_study):
    """Each measurement differs, so a second one would show."""
    return open_study(owner, dataset, noise_variance=1.0)


@pytest.fixture
def modeler(curator, noisy):
    with curator.http(noisy.token) as client:
        yield client


@pytest.fixture
def http(curator):
    with curator.http() as client:
        yield client


def _key(key):
    return {"Idempotency-Key": key}


def _upload(http, key, content=FILE, **said):
    return http.post(
        "/v1/datasets", files={"file": ("x.csv", content)}, data={"name": "once"} | said, headers=_key(key)
    )


def _check_replay(first, second):
    assert first.is_success
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert second.headers["content-type"] == first.headers["content-type"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"


def _check_reused(reply):
    assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_key_reused")


def test_a_query_asked_again_gets_the_same_bytes_and_no_new_noise(curator, noisy, modeler):
    path = f"/v1/studies/{noisy.id}/queries"
    before = curator.rows("SELECT count(*) FROM queries")[0][0]
    first = modeler.post(path, json=QUERY, headers=_key("q1"))
    for _ in range(3):
        _check_replay(first, modeler.post(path, json=QUERY, headers=_key("q1")))
    assert curator.rows("SELECT count(*) FROM queries")[0][0] == before + 1
    assert modeler.get(f"{path}/{first.json()['id']}").content == first.content
    other = modeler.post(path, json=QUERY, headers=_key("q2"))
    assert other.json()["answers"] != first.json()["answers"]
    assert other.json()["salt"] != first.json()["salt"]


BODY = json.dumps(QUERY).encode()
TOKEN = "Authorization: Bearer {token}"
SIZE, KEY, KIND = f"Content-Length: {len(BODY)}", "Idempotency-Key: {key}", "Content-Type: application/json"
CHUNKED = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (9, BODY[:9], len(BODY) - 9, BODY[9:])
EQUAL = {
    "white space after": ([TOKEN, SIZE, KIND, KEY + " \t "], BODY),
    "white space before": ([TOKEN, SIZE, KIND, KEY.replace(": ", ":\t  ")], BODY),
    "none": ([TOKEN, SIZE, KIND, KEY.replace(": ", ":")], BODY),
    "another case": ([TOKEN, SIZE, KIND.upper(), "IDEMPOTENCY-KEY: {key}"], BODY),
    "another order": ([KEY, KIND, SIZE, TOKEN], BODY),
    "a parameter": ([TOKEN, SIZE, KIND + " ; charset=utf-8", KEY], BODY),
    "in chunks": ([TOKEN, "Transfer-Encoding: chunked", KIND, KEY], CHUNKED),
}
"""Heads and bodies of requests that HTTP calls equal (RFC 9110, sections 5 and 8.6; RFC 9112, section 7)."""
TWO_READINGS = {
    "two keys": ([TOKEN, SIZE, KIND, KEY, "Idempotency-Key: other"], BODY),
    "one key twice": ([TOKEN, SIZE, KIND, KEY, KEY], BODY),
    "a folded key": ([TOKEN, SIZE, KIND, KEY + "\r\n more"], BODY),
    "two lengths": ([TOKEN, SIZE, "Content-Length: 2", KIND, KEY], BODY),
    "a length and chunks": ([TOKEN, SIZE, "Transfer-Encoding: chunked", KIND, KEY], CHUNKED),
    "two types": ([TOKEN, SIZE, KIND, "Content-Type: text/plain", KEY], BODY),
}


def _sent(curator, token, study, key, head, body):
    """The status and the body of a reply to a request as it is written."""
    lines = [f"POST /v1/studies/{study.id}/queries HTTP/1.1", "Host: x", "Connection: close"]
    lines += [line.format(token=token, key=key) for line in head]
    with socket.create_connection(("127.0.0.1", curator.port), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        reply = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, answer = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), answer


def test_requests_that_http_calls_equal_are_one_query(curator, noisy):
    before = curator.rows("SELECT count(*) FROM queries")[0][0]
    replies = {name: _sent(curator, noisy.token, noisy, "equal", *request) for name, request in EQUAL.items()}
    assert set(replies.values()) == {(201, replies["none"][1])}, replies
    assert curator.rows("SELECT count(*) FROM queries")[0][0] == before + 1
    assert _sent(curator, noisy.token, noisy, "another", *EQUAL["none"])[0] == 201  # another key is another charge
    assert curator.rows("SELECT count(*) FROM queries")[0][0] == before + 2


@pytest.mark.parametrize("how", TWO_READINGS)
def test_a_request_with_two_readings_is_refused_before_a_charge(how, curator, noisy):
    before = curator.rows("SELECT count(*) FROM queries")[0][0]
    status, _ = _sent(curator, noisy.token, noisy, "two", *TWO_READINGS[how])
    assert status == (415 if how == "two types" else 400)
    assert curator.rows("SELECT count(*) FROM queries")[0][0] == before


def test_a_key_serves_one_request_alone(noisy, modeler):
    path = f"/v1/studies/{noisy.id}/queries"
    first = modeler.post(path, json=QUERY, headers=_key("r1"))
    _check_reused(modeler.post(path, json={"rows": [{"row": 4}]}, headers=_key("r1")))
    respaced, kind = json.dumps(QUERY, indent=1).encode(), {"Content-Type": "application/json"}
    _check_reused(modeler.post(path, content=respaced, headers=_key("r1") | kind))  # bytes are compared, not meaning
    _check_replay(first, modeler.post(path, json=QUERY, headers=_key("r1")))


def test_an_answer_is_read_again_by_its_own_grant_and_by_no_other(curator, owner, noisy, modeler):
    path = f"/v1/studies/{noisy.id}/queries"
    queried = modeler.post(path, json=QUERY, headers=_key("mine"))
    assert modeler.get(f"{path}/{queried.json()['id']}").content == queried.content
    grant = owner.grant(noisy.id, wire.GrantCreate(name="another modeler"))
    with curator.http(grant.token) as another:
        reply = another.get(f"{path}/{queried.json()['id']}")
    assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


def test_an_answer_is_repeated_after_the_study_was_closed(curator, owner, dataset, open_study):
    """Nothing new is measured: the modeler may have lost the reply on its way."""
    study = open_study(owner, dataset)
    path = f"/v1/studies/{study.id}/queries"
    with curator.http(study.token) as another:
        first = another.post(path, json=QUERY, headers=_key("before"))
        owner.close_study(study.id)
        _check_replay(first, another.post(path, json=QUERY, headers=_key("before")))
        assert another.post(path, json=QUERY, headers=_key("after")).status_code == 403


def test_a_refused_request_does_not_use_its_key_up(noisy, modeler):
    path = f"/v1/studies/{noisy.id}/queries"
    assert modeler.post(path, json={"rows": [{"row": 400}]}, headers=_key("mended")).status_code == 404
    assert modeler.post(path, json=QUERY, headers=_key("mended")).status_code == 201


def _files(curator):
    """Ids of the datasets and releases that have a file."""
    return {path.name.partition(".")[0] for path in (curator.data / "files").glob("*.npy")}


def test_a_file_sent_again_is_registered_once(curator, http):
    before, kept = curator.rows("SELECT count(*) FROM datasets")[0][0], _files(curator)
    first = _upload(http, "f1")
    _check_replay(first, _upload(http, "f1"))  # the boundary of a form is another each time
    _check_reused(_upload(http, "f1", FILE + b"5,6\n"))
    _check_reused(_upload(http, "f1", name="another name"))
    _check_reused(_upload(http, "f1", public="true"))
    _check_reused(_upload(http, "f1", columns='["a"]'))
    assert curator.rows("SELECT count(*) FROM datasets")[0][0] == before + 1
    assert len(_files(curator) - kept) == 1


def test_a_study_its_release_its_grants_and_its_end_happen_once(curator, http, opened):
    spec = opened.view.spec.model_dump(mode="json")
    first = http.post("/v1/studies", json=spec, headers=_key("s1"))
    _check_replay(first, http.post("/v1/studies", json=spec, headers=_key("s1")))
    _check_reused(http.post("/v1/studies", json=spec | {"name": "other"}, headers=_key("s1")))
    path = f"/v1/studies/{first.json()['id']}"

    released = http.post(f"{path}:release", headers=_key("s2"))
    _check_replay(released, http.post(f"{path}:release", headers=_key("s2")))
    again = http.post(f"{path}:release", headers=_key("s3"))
    assert (again.status_code, again.json()["code"]) == (409, "state_conflict")
    assert http.get(path).json()["release_sha256"] == released.json()["release_sha256"]

    granted = http.post(f"{path}/grants", json={"name": "m"}, headers=_key("s4"))
    _check_replay(granted, http.post(f"{path}/grants", json={"name": "m"}, headers=_key("s4")))
    assert len(http.get(f"{path}/grants").json()["grants"]) == 1

    closed = http.post(f"{path}:close", headers=_key("s5"))
    _check_replay(closed, http.post(f"{path}:close", headers=_key("s5")))
    _check_replay(released, http.post(f"{path}:release", headers=_key("s2")))  # as it was answered then
    _check_reused(http.post(f"{path}:close", headers=_key("s2")))  # the path is part of what was asked


def test_a_replay_is_a_record_of_its_own(curator, noisy, modeler):
    path = f"/v1/studies/{noisy.id}/queries"
    before = len(curator.records())
    for _ in range(2):
        modeler.post(path, json=QUERY, headers=_key("recorded"))
    added = curator.records()[before:]
    assert [record["kind"] for record in added] == ["charge", "exchange", "exchange"]
    first, second = (record["exchange"] for record in added[1:])
    assert second["position"] == first["position"] + 1  # both sides tell it, too
    assert (first["replayed"], second["replayed"]) == (False, True)
    assert first["reply_sha256"] == second["reply_sha256"]
    assert first["request_id"] != second["request_id"]


@pytest.mark.parametrize("what", ["release", "upload"])
def test_long_work_asked_twice_at_once_is_done_once(what, curator, owner, opened):
    """The second request meets the first under way, or its stored reply; never a second effect."""
    draft = owner.create_study(opened.view.spec)
    counts = "SELECT (SELECT count(*) FROM releases) + (SELECT count(*) FROM datasets)"
    identities = "SELECT id FROM releases UNION SELECT id FROM datasets"
    earlier, kept = set(curator.rows(identities)), _files(curator)  # some were erased by other tests
    before, replies, together = curator.rows(counts)[0][0], [], threading.Barrier(4)

    def ask():
        with curator.http() as http:
            together.wait()
            if what == "release":
                replies.append(http.post(f"/v1/studies/{draft.id}:release", headers=_key(f"twice {draft.id}")))
            else:
                replies.append(_upload(http, f"twice {draft.id}"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert curator.rows(counts)[0][0] == before + 1
    done = [reply for reply in replies if reply.is_success]
    assert len({reply.content for reply in done}) == 1
    for reply in replies:
        if not reply.is_success:
            assert (reply.status_code, reply.json()["code"], reply.json()["retryable"]) == (409, "still_running", True)
            assert reply.headers["retry-after"] == "1"
    assert _files(curator) - kept == {identity for (identity,) in set(curator.rows(identities)) - earlier}


def test_a_release_without_waiting_is_drawn_once_and_answers_a_repetition(curator, owner, opened):
    draft = owner.create_study(opened.view.spec)
    path, asynchronous = f"/v1/studies/{draft.id}:release", {"Prefer": "wait=5, respond-async", **_key(f"a {draft.id}")}
    with curator.http() as http:
        first = http.post(path, headers=asynchronous)
        assert first.status_code == 202
        assert (first.headers["location"], first.headers["preference-applied"]) == (
            f"/v1/studies/{draft.id}",
            "respond-async",
        )
        assert first.json()["state"] in ("releasing", "open")
        assert http.post(path, headers=asynchronous | {"Idempotency-Key": "another"}).json()["code"] == "state_conflict"
        while (reply := http.post(path, headers=asynchronous)).status_code == 202:
            pass
        assert (reply.status_code, reply.json()["state"]) == (200, "open")
        assert http.get(first.headers["location"]).json()["release_id"] == reply.json()["release_id"]
        waiting = http.post(path, headers=_key(f"a {draft.id}"))
        assert (waiting.status_code, waiting.content) == (200, reply.content)
    assert curator.rows("SELECT count(*) FROM releases WHERE study_id = ?", draft.id) == [(1,)]


def test_a_release_without_waiting_is_refused_at_once_where_it_can_be(curator, owner, opened):
    with curator.http() as http:
        refused = http.post(f"/v1/studies/{opened.id}:release", headers={"Prefer": "respond-async", **_key("refused")})
    assert (refused.status_code, refused.json()["code"]) == (409, "state_conflict")
