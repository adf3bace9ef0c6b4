"""The scorer's side of the wire: what is sent, what is retried, what is no score."""

import math
import socket
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from blindopt.client import WebhookClient
from blindopt.errors import ProtocolViolated, TuningFailed
from curator_service.tuning.scoring.webhook import RETRIES, Webhook
from tests.curator_service.tuning.scoring.scorer import KEY, serving


def _score(url, *, records=40, by_record=False, attempts=3, timeout_s=5.0, key=KEY, waits=None):
    with WebhookClient(url, key.encode(), timeout_s=timeout_s) as client:
        sleep = (lambda seconds: None) if waits is None else waits.append
        return Webhook(client, "tun_1", "trees", attempts, "ds_1", records, by_record, sleep).score(7, {"depth": 3.0})


def test_it_is_asked_for_a_point_with_a_signature_and_a_key():
    with serving(lambda request, count: (200, b'{"score": 0.25}')) as scorer:
        assert _score(scorer.url) == 0.25
    assert scorer.requests == [
        {
            "tuning_id": "tun_1",
            "evaluation": 7,
            "model": "trees",
            "hyperparameters": {"depth": 3.0},
            "validation_dataset_id": "ds_1",
            "records": 40,
        }
    ]
    assert scorer.keys == ["tun_1:7"]


def test_another_key_does_not_verify():
    """The control of the signature."""
    with (
        serving(lambda request, count: (200, b'{"score": 0.25}')) as scorer,
        pytest.raises(TuningFailed, match="answered 401"),
    ):
        _score(scorer.url, key=KEY + "!")
    assert (scorer.forged, scorer.requests) == (1, [])


def test_a_fault_that_passes_is_retried_under_the_same_key():
    waits = []
    with serving(lambda request, count: (503, b"") if count < 3 else (200, b'{"score": 1}')) as scorer:
        assert _score(scorer.url, waits=waits) == 1.0
    assert scorer.keys == ["tun_1:7"] * 3
    assert waits == [0.2, 0.4]


def test_waits_grow_and_end_at_a_limit():
    waits = []
    with pytest.raises(TuningFailed, match="failed 12 times"):
        _score("http://127.0.0.1:9/", attempts=12, waits=waits)
    assert waits == sorted(waits)
    assert waits[-1] == RETRIES.longest_s


def test_one_that_is_slow_is_given_up_after_the_last_attempt():
    with (
        serving(lambda request, count: time.sleep(1) or (200, b"{}")) as scorer,
        pytest.raises(TuningFailed, match="failed 2 times, at last: the other party did not answer in time"),
    ):
        _score(scorer.url, attempts=2, timeout_s=0.1)


@contextmanager
def _dripping(parts, seconds):
    """A server that answers each connection with ``parts``, so many seconds apart; how many came."""
    listener, came = socket.create_server(("127.0.0.1", 0)), []

    def answer(connection):
        with suppress(OSError), connection:
            received = b""
            while not received.endswith(b"}"):  # head and body come apart; one unread would reset the connection
                received += connection.recv(65_536)
            for part in parts:
                connection.sendall(part)
                time.sleep(seconds)

    def accept():
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                came.append(connection)
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/", came
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in came:
            connection.close()


_HEAD, _BODY = b"HTTP/1.1 200 OK\r\nX-Padding: 0123456789\r\nContent-Length: 14\r\n\r\n", b'{"score": 0.5}'


@pytest.mark.parametrize("slow", ["head", "body"])
def test_a_reply_that_comes_a_byte_at_a_time_is_given_up_in_time(slow):
    """Each byte comes in time, all of them do not. The control: the same bytes without a pause are a score."""
    head = [bytes([byte]) for byte in _HEAD] if slow == "head" else [_HEAD]
    parts = [*head, *(bytes([byte]) for byte in _BODY)]
    with (
        _dripping(parts, 0.15) as (url, came),
        pytest.raises(TuningFailed, match="2 times, at last: the other party did not answer in time"),
    ):
        _score(url, attempts=2, timeout_s=0.3)
    assert len(came) == 2
    with _dripping(parts, 0) as (url, came):
        assert _score(url, attempts=1) == 0.5


def test_a_redirect_is_not_followed_and_a_reply_without_end_is_cut():
    """What answers at the other address would be a score."""
    with serving(lambda request, count: (200, b'{"score": 0.5}')) as other:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n".encode()
        with _dripping([moved], 0) as (url, _), pytest.raises(TuningFailed, match="answered 307"):
            _score(url)
        assert other.requests == []
    endless = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"100\r\n" + b" " * 256 + b"\r\n"] * 100]
    with _dripping(endless, 0) as (url, _):
        client = WebhookClient(url, KEY.encode(), timeout_s=5, reply_max_bytes=10_000)
        with client, pytest.raises(ProtocolViolated, match="larger than 10000 bytes"):
            client.post(b"{}", key="k")


@pytest.mark.parametrize("status", [400, 404, 302, 201])
def test_a_refusal_is_not_retried(status):
    with (
        serving(lambda request, count: (status, b'{"score": 0.5}')) as scorer,
        pytest.raises(TuningFailed, match=f"answered {status}"),
    ):
        _score(scorer.url)
    assert len(scorer.requests) == 1


@pytest.mark.parametrize(
    "body", [b"", b"0.512345", b"[]", b'{"score": "0.512345"}', b'{"score": true}', b'{"score": null}', b"[" * 100_000]
)
def test_what_is_no_score_fails_and_is_not_repeated_in_the_text(body):
    with (
        serving(lambda request, count: (200, body)) as scorer,
        pytest.raises(TuningFailed, match="broke the protocol") as failed,
    ):
        _score(scorer.url)
    assert "512345" not in str(failed.value)


@pytest.mark.parametrize(
    ("body", "value"), [(b"NaN", math.nan), (b"-Infinity", -math.inf), (b"1e999", math.inf), (b"9" * 400, math.inf)]
)
def test_numbers_that_are_not_finite_arrive_as_what_they_are(body, value):
    """So that the tuning fails for this reason, and is not asked for again."""
    with serving(lambda request, count: (200, b'{"score": %s}' % body)) as scorer:
        np.testing.assert_equal(_score(scorer.url), value)
    assert len(scorer.requests) == 1


def test_scores_of_records_come_as_a_list_of_just_so_many():
    with serving(lambda request, count: (200, b'{"scores": [0.5, 1, NaN]}')) as scorer:
        np.testing.assert_equal(_score(scorer.url, records=3, by_record=True), [0.5, 1.0, math.nan])
        for m in (2, 4):
            with pytest.raises(TuningFailed, match=f"each of the {m} validation records"):
                _score(scorer.url, records=m, by_record=True)
        with pytest.raises(TuningFailed, match='"score"'):
            _score(scorer.url)
