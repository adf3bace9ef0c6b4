"""Answers of people: matching replies to rows, and a table of versions that only grows."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from blindopt import wire
from blindopt.client.study_client import answers_of
from blindopt.errors import ProtocolViolated
from modeler_service import store
from modeler_service.context import open_context
from modeler_service.integrity.log_checks import findings
from modeler_service.settings import Settings
from service_kit.store.database import StoreFault
from tests.modeler_service.stored_trials import ANSWER, AT, add_run, chosen_trial


def reply(*rows, declined=(), refined=()):
    """Answers whose y is their index."""
    passport = wire.NoisePassport(measurement_variance=0.0)
    answers = [wire.Answer(row=row, play=1, y=float(y), passport=passport) for y, row in enumerate(rows)]
    return wire.QueryReply(
        id="qry_0123456789abcdef",
        study_id="std_1",
        state="answered",
        created_at=datetime(2026, 11, 21, tzinfo=UTC),
        answers=answers,
        declined=list(declined),
        refined=[wire.Refinement(row=row, z=[float(row)]) for row in refined],
        salt="s",
    )


@pytest.mark.parametrize(
    ("rows", "answered", "values"),
    [
        ([3, 5, 7], reply(3, 5, 7), [0.0, 1.0, 2.0]),
        ([3, 5, 7], reply(3, 7, declined=[5]), [0.0, None, 1.0]),
        ([3, 5], reply(declined=[5, 3]), [None, None]),
        ([3, 5, 3], reply(3, 5, 3), [0.0, 1.0, 2.0]),  # a batch may have a row twice
        ([3, 5, 3], reply(3, 5), [0.0, 1.0, None]),
        ([3, 5, 3], reply(5, declined=[3]), [None, 0.0, None]),
    ],
)
def test_each_trial_of_a_query_gets_its_own_answer_or_none(rows, answered, values):
    assert [answer and answer.y for answer in answers_of(answered, rows)] == values


def test_the_second_draw_of_a_row_comes_with_each_of_its_answers():
    answered = reply(3, 5, 3, declined=[7], refined=[3, 5])
    places = [answer and answer.passport.z for answer in answers_of(answered, [3, 5, 3, 7])]
    assert places == [[3.0], [5.0], [3.0], None]
    assert "z" not in answers_of(reply(3), [3])[0].passport.model_dump(), "a reply without draws is stored as before"


@pytest.mark.parametrize(
    "answered",
    [
        reply(5, 3),  # another order
        reply(3),  # silently left out
        reply(3, 5, 7),
        reply(3, 5, declined=[5]),
        reply(3, 5, declined=[9]),
        reply(3, 3, declined=[5]),
        reply(),
        reply(3, declined=[5], refined=[3, 5]),
        reply(3, 5, refined=[3, 3, 5]),
        reply(3, 5, refined=[9]),
    ],
)
def test_a_reply_about_anything_else_is_refused(answered):
    with pytest.raises(ProtocolViolated):
        answers_of(answered, [3, 5])


@pytest.fixture
def database(tmp_path):
    with open_context(Settings(data_dir=tmp_path / "data")) as context:

        def work(db):
            add_run(db, "run_1")
            for number in (1, 2):
                store.add_trial(db, chosen_trial("run_1", number, query=1))
            store.add_version(db, "run_1", 1, 0, at=AT, reply=b"pending")
            store.add_version(db, "run_1", 1, 1, at=AT, reply=b"first")

        context.database.write(work)
        yield context.database


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE versions SET reply = x'00'",
        "UPDATE versions SET after = 9 WHERE version = 1",
        "DELETE FROM versions",
        "REPLACE INTO versions SELECT * FROM versions",
        "INSERT OR REPLACE INTO versions SELECT seq, run_id, query, version, 9, at, reply FROM versions",
    ],
)
def test_no_version_is_changed_or_taken_away(statement, database):
    with pytest.raises(StoreFault):
        database.write(lambda db: db.execute(text(statement)))
    with database.read() as db:
        kept = [(row.version, row.after, row.reply) for row in store.version_page(db, "run_1")]
    assert kept == [(0, 2, b"pending"), (1, 2, b"first")]


def test_a_version_is_stored_once(database):
    with pytest.raises(StoreFault):
        database.write(lambda db: store.add_version(db, "run_1", 1, 1, at=AT, reply=b"other"))


def test_two_second_draws_of_one_candidate_are_named_whichever_runs_they_came_to(tmp_path):
    """In another study the same number is another candidate's, and the same draw again is none of two."""
    draws = {"run_1": [1.0, 2.0], "run_2": [1.0, 2.0], "run_3": [1.0, 2.5], "run_4": [3.0]}
    with open_context(Settings(data_dir=tmp_path / "data")) as context:

        def work(db):
            for run_id, z in draws.items():
                study_id = "std_2" if run_id == "run_4" else "std_1"
                add_run(db, run_id, spec=f'{{"study_id": "{study_id}"}}')
                store.add_trial(db, chosen_trial(run_id, 1, row=7))
                store.answer_trial(db, run_id, 1, ANSWER.refined(z), answered_at=AT, version=1)

        context.database.write(work)
        with context.database.read() as db:
            faults = [str(fault) for fault in findings(db, [])]
    words = "the curator of std_1 sent two different second draws of candidate 7: with trial 1 of run_1 and trial 1 of "
    assert [fault for fault in faults if "draws" in fault] == [f"{words}run_3"]
