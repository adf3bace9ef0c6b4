"""Replies that are kept under a principal and a key: found again, streamed beside the log, erased, sealed anew."""

from datetime import UTC, datetime

import pytest

from blindopt.errors import Erased, IdempotencyKeyReused
from modeler_service.context import open_context
from modeler_service.settings import Settings
from service_kit.store import stored_replies
from service_kit.store.base import stamp
from service_kit.store.database import StoreFault
from service_kit.store.stored_replies import Stored, StoredReply

NOW = stamp(datetime(2026, 11, 21, 12, tzinfo=UTC))
MINE, THEIRS, OWNER = "grt_" + "1" * 16, "grt_" + "2" * 16, "own_" + "3" * 16
GONE = stored_replies.erased_marker("std_1")


@pytest.fixture
def database(tmp_path):
    with open_context(Settings(data_dir=tmp_path)) as context:
        yield context.database


@pytest.fixture
def keep(database):
    """Store a reply."""

    def add(principal, key, body, *, status=201, sealed=False, log_seq=0, request="r"):
        reply = StoredReply(status, body)
        database.write(
            lambda db: stored_replies.add(db, principal, key, request, reply, sealed=sealed, at=NOW, log_seq=log_seq)
        )

    return add


@pytest.fixture
def bodies(database):
    """What is stored, by principal and key."""

    def read():
        with database.read() as db:
            return {
                (principal, key): body
                for principal in (MINE, THEIRS, OWNER)
                for key, body in db.exec_driver_sql(
                    f"SELECT idempotency_key, body FROM replies WHERE principal = '{principal}'"
                )
            }

    return read


def find(database, *arguments):
    with database.read() as db:
        return stored_replies.find(db, *arguments)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_reply_is_found_under_its_principal_and_key(database, keep, sealed):
    keep(MINE, "k", b'{"id":"a"}', status=202, sealed=sealed, log_seq=7)
    stored = Stored(StoredReply(202, b'{"id":"a"}', replayed=True), sealed, 7)
    assert find(database, MINE, "k", ["r"]) == stored
    assert find(database, MINE, "k", None) == stored
    assert find(database, THEIRS, "k", ["r"]) is None
    assert find(database, MINE, "other", ["r"]) is None
    with pytest.raises(IdempotencyKeyReused):
        find(database, MINE, "k", ["another request"])
    statement, values = stored_replies.ahead_of(MINE, "k")
    with database.read() as db:
        assert statement.row(db, **values).body == stored.reply.body


def test_an_erased_reply_is_refused_and_no_other_looks_like_one(database, keep):
    keep(MINE, "k", GONE)
    with pytest.raises(Erased):
        find(database, MINE, "k", ["r"])
    with pytest.raises(IdempotencyKeyReused):  # another request learns nothing of it
        find(database, MINE, "k", ["another request"])
    assert GONE == b'{"erased":"std_1"}'
    assert stored_replies.is_erased(GONE)
    for other in (b'{"id":"erased"}', b' {"erased":"std_1"}', '{"erased":"std_1"}', None):
        assert not stored_replies.is_erased(other)
    stored_replies.check_not_erased(b'{"id":"std_1"}')
    assert stored_replies.describes(b'{"id":"std_1"}')
    assert not stored_replies.describes(b'{"ids":["std_1"]}')


# --- beside the log ---------------------------------------------------------------------------------


def test_answers_to_modelers_are_those_that_are_not_sealed(database, keep):
    keep(MINE, "a", b"1")
    keep(MINE, "b", b"2", status=202)
    keep(MINE, "sealed", b"3", sealed=True)
    keep(THEIRS, "c", b"4")
    keep(OWNER, "d", b"5")
    keep("grtx" + "4" * 16, "e", b"6")  # an underscore stands for itself
    with database.read() as db:
        assert stored_replies.answer(db, MINE, "b") == (202, b"2")
        assert stored_replies.answer(db, MINE, "sealed") is None
        assert stored_replies.answer(db, MINE, "c") is None
        assert sorted(stored_replies.answers_of(db, MINE)) == [("a", b"1"), ("b", b"2")]
        assert sorted(stored_replies.answer_keys(db)) == [(MINE, "a"), (MINE, "b"), (THEIRS, "c")]
        assert stored_replies.count_answers(db) == 3


def test_answers_are_streamed_as_they_lie_and_looked_up_out_of_order(database, keep):
    """Also more than are read at once, positions without a reply, and replies of before positions were stored."""
    positions = [*range(0, 500, 2), 3, 1_000]
    for number, position in enumerate(positions):
        keep(MINE, f"k{number}", b"%d" % position, log_seq=position)
    keep(MINE, "early", b"early", log_seq=None)
    keep(MINE, "sealed", b"sealed", log_seq=2, sealed=True)
    keep(THEIRS, "k1", b"theirs", log_seq=2)
    by_position = sorted(enumerate(positions), key=lambda pair: pair[1])
    with database.read() as db:
        answers = stored_replies.Answers(db)
        for number, position in by_position:
            assert answers.find(MINE, f"k{number}", position)[-2:] == (201, b"%d" % position), position
            assert answers.find(MINE, "absent", position) is None
            assert answers.find(MINE, "early", position)[-2:] == (201, b"early")
            assert answers.find(MINE, "sealed", position) is None
        assert answers.find(THEIRS, "k1", 2_000)[-2:] == (201, b"theirs")  # beyond the last one


def test_answers_take_what_is_next_without_a_look_up(database, keep, monkeypatch):
    for number in range(3):
        keep(MINE, f"k{number}", b"%d" % number, log_seq=10 * number)
    looked_up = []
    monkeypatch.setattr(stored_replies, "answer", lambda *of: looked_up.append(of[1:]))
    with database.read() as db:
        answers = stored_replies.Answers(db)
        for number in range(3):
            row = answers.find(MINE, f"k{number}", 10 * number)
            assert (row.status, row.body, row.log_seq) == (201, b"%d" % number, 10 * number)
            assert answers.find(MINE, f"k{number}", 10 * number) is row  # until the next position
        answers.find(THEIRS, "k2", 20)
        answers.find(MINE, "k1", 20)
        answers.find(MINE, "k2", 21)
    assert looked_up == [(THEIRS, "k2"), (MINE, "k1"), (MINE, "k2")]


# --- erased and sealed ------------------------------------------------------------------------------


def test_an_erasure_replaces_what_describes_an_id_and_nothing_else(database, keep, bodies):
    kept = {
        (MINE, "longer"): b'{"id":"std_10","name":"x"}',
        (MINE, "within"): b'{"study":{"id":"std_1"}}',
        (MINE, "later"): b' {"id":"std_1"}',
        (OWNER, "other"): b'{"id":"ds_1"}',
    }
    taken = {(MINE, "first"): b'{"id":"std_1"}', (OWNER, "owner"): b'{"id":"std_1","name":"x"}'}
    for (principal, key), body in (kept | taken).items():
        keep(principal, key, body)
    keep(OWNER, "sealed", b'{"id":"std_1"}', sealed=True)
    database.write(lambda db: stored_replies.forget(db, "std_1", GONE))
    assert bodies() == kept | dict.fromkeys(taken, GONE) | {(OWNER, "sealed"): b'{"id":"std_1"}'}


def test_all_replies_to_some_principals_are_replaced_if_they_describe_anything(database, keep, bodies):
    keep(MINE, "a", b'{"id":"qry_1"}')
    keep(MINE, "b", b'{"id":"qry_2","answers":[]}')
    keep(THEIRS, "c", b'{"id":"qry_3"}')
    kept = {(MINE, "d"): b'{"total":1}', (MINE, "e"): b'{"id":"qry_4"}', (OWNER, "f"): b'{"id":"std_1"}'}
    for (principal, key), body in kept.items():
        keep(principal, key, body, sealed=key == "e")
    count = database.write(lambda db: stored_replies.forget_all(db, [MINE, THEIRS, "grt_nobody"], GONE))
    assert count == 3
    assert bodies() == kept | {(MINE, "a"): GONE, (MINE, "b"): GONE, (THEIRS, "c"): GONE}
    assert database.write(lambda db: stored_replies.forget_all(db, [MINE], GONE)) == 0


def test_sealed_replies_are_sealed_anew_each_for_itself(database, keep, bodies):
    keep(MINE, "a", b"one", sealed=True)
    keep(MINE, "b", b"two", sealed=True)
    keep(OWNER, "a", b"three", sealed=True)
    keep(OWNER, "open", b"four")
    database.write(lambda db: stored_replies.seal_anew(db, lambda body: body[::-1]))
    assert bodies() == {(MINE, "a"): b"eno", (MINE, "b"): b"owt", (OWNER, "a"): b"eerht", (OWNER, "open"): b"four"}
    assert find(database, OWNER, "a", ["r"]).sealed


@pytest.mark.parametrize(
    "change",
    [
        lambda db: stored_replies.forget(db, "std_1", GONE),
        lambda db: stored_replies.forget_all(db, [MINE], GONE),
        lambda db: stored_replies.seal_anew(db, lambda body: b""),
    ],
)
def test_the_table_is_append_only_again_after_each_change(database, keep, change):
    keep(MINE, "a", b'{"id":"std_2"}')
    database.write(change)
    with pytest.raises(StoreFault):
        database.write(lambda db: db.exec_driver_sql("UPDATE replies SET status = 1"))
