"""Notices of runs and curators by webhook: no text of a curator, and each wait once."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from blindopt import wire
from modeler_service import store
from modeler_service.context import open_context
from modeler_service.runs import notices
from modeler_service.runs.witness import Witness
from modeler_service.settings import Settings
from service_kit.context.outbox import view
from service_kit.store import notices as outbox
from service_kit.store.base import stamp
from tests.modeler_service.stored_trials import add_run

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RUN, STUDY = "run_0123456789abcdef", "std_0123456789abcdef"


@pytest.fixture
def context(tmp_path):
    (tmp_path / "key").write_text("k" * 32)
    settings = Settings(data_dir=tmp_path, notify_url="http://127.0.0.1:1/", notify_secret_file=tmp_path / "key")
    spec = wire.RunSpec(name="a name", curator_url="http://127.0.0.1:2", study_id=STUDY)
    with open_context(settings, lambda: NOW) as opened:
        opened.database.write(lambda db: add_run(db, RUN, spec=spec.model_dump_json()))
        yield opened


@pytest.fixture
def sent(context):
    def read():
        with context.database.read() as db:
            return [view(row).notice for row in outbox.page(db, after=0, limit=1_000)]

    return read


def _with_run(context, act):
    context.database.write(lambda db: act(db, context.outbox, store.find_run(db, RUN)))


def _problem(code):
    return json.dumps({"code": code, "detail": "words of a curator: zq_yield is 17.25"})


@pytest.mark.parametrize(
    ("state", "code", "event", "problem"),
    [
        ("completed", None, "run_ended", None),
        ("completed", "privacy_budget_exhausted", "run_ended", "privacy_budget_exhausted"),
        ("stopped", None, "run_ended", None),
        ("failed", "out_of_memory", "run_failed", "out_of_memory"),
        ("failed", "zq_yield_is_high", "run_failed", "another_code"),
        ("failed", "blindopt_0123456789abcdef.x", "run_failed", "another_code"),
    ],
)
def test_the_notice_of_an_end_has_a_code_of_ours(context, sent, state, code, event, problem):
    ending = {"state": state, "problem": code and _problem(code)}
    _with_run(context, lambda db, box, row: notices.notify_ended(db, box, row, ending))
    (notice,) = sent()
    assert (notice.event, notice.subject.problem, notice.counts.answers) == (event, problem, 0)
    assert (notice.subject.run_id, notice.subject.study_id) == (RUN, STUDY)
    for word in ("zq", "17.25", "a name", "blindopt_0", "words"):
        assert word not in notice.model_dump_json()


def test_a_wait_that_is_long_enough_brings_a_notice_once_and_a_later_wait_another(context, sent):
    def wait(since, now, **more):
        ending = {"state": "waiting", "waiting_since": stamp(since), "problem": _problem("unreachable"), **more}
        _with_run(context, lambda db, box, row: notices.notify_waiting(db, box, row, ending, now, timedelta(hours=1)))
        return [(n.event, n.counts.minutes) for n in sent()]

    hour, later = timedelta(hours=1), NOW + timedelta(days=1)
    assert wait(NOW, NOW) == []
    assert wait(NOW, NOW + hour - timedelta(seconds=1)) == []
    assert wait(NOW, NOW + hour) == [("run_waiting", 60)]
    assert wait(NOW, NOW + 2 * hour) == [("run_waiting", 60)]
    assert wait(later, later + 3 * hour, waiting_for="people") == [("run_waiting", 60)]
    assert wait(later, later + 2 * hour, waiting_for="curator") == [("run_waiting", 60), ("run_waiting", 120)]


def test_the_notice_of_a_broken_protocol_has_no_text_of_the_curator(context, sent):
    Witness(context, STUDY, RUN, lambda db, key, digest: True).dispute("its words: zq_yield is 17.25")
    (notice,) = sent()
    assert (notice.event, notice.subject.study_id) == ("log_disputed", STUDY)
    assert "zq_yield" not in notice.model_dump_json()


def test_a_warning_brings_one_notice_of_its_kind(context, sent):
    def warn(code):
        context.database.write(lambda db: notices.notify_warned(db, context.outbox, RUN, STUDY, code))
        return [(notice.event, notice.subject.problem) for notice in sent()]

    assert warn("queries_repeat") == [("run_warned", "queries_repeat")]
    assert warn("queries_repeat") == [("run_warned", "queries_repeat")]
    assert warn("model_explains_nothing")[1:] == [("run_warned", "model_explains_nothing")]
    assert sent()[0].sentence == f"Run {RUN} has a warning: queries_repeat. Its page says what to do."
