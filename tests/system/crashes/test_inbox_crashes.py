"""A curator that dies while people measure: one charge, one draw that is told for each version, nothing forgotten."""

import functools
import signal
import time
from collections import Counter

import pytest

from blindopt import wire
from blindopt.client import Measurer, Owner
from blindopt.errors import Unreachable
from tests.curator_service.queries.inbox.measured_study import LAPLACE, answers_for, open_measured_study
from tests.system.crashes.crashing_service import Shot, arm, shots

PATIENCE_SECONDS = 240.0
# Each kill: at what, and whether what was told is in the database then.
KILLS = {
    ("ask", "charge.before-commit"): False,
    ("ask", "charge.after-commit"): True,
    ("answer", "entered.before-commit"): False,
    ("answer", "entered.after-commit"): True,
    ("answer", "version.draw.before"): True,
    ("answer", "version.draw.after"): True,
    ("answer", "told.before-commit"): True,
    ("answer", "told.after-commit"): True,
    ("correct", "entered.before-commit"): False,
    ("correct", "entered.after-commit"): True,
    ("correct", "version.draw.after"): True,
    ("correct", "told.before-commit"): True,
    ("correct", "told.after-commit"): True,
}


@pytest.fixture(scope="module")
def curator(make_service, tmp_path_factory):
    """One that is killed again and again."""
    service = make_service("curator", tmp_path_factory.mktemp("inbox-crashes"))
    arm(service, service.folder / "control")
    yield service.start()
    service.process.kill()


@pytest.fixture(scope="module")
def study(curator, small):
    with Owner(curator.url, curator.token) as owner:
        dataset = owner.register("small", small.csv, public=True).id
    with open_measured_study(small, curator, dataset, answers=LAPLACE) as study:
        yield study


def _wait_for(what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.02)


def _kinds(curator, query_id):
    stored = curator.rows("SELECT kind FROM ledger WHERE query_id = ?", query_id)
    return Counter(kind for (kind,) in stored)


def _has_told(curator, query_id, version):
    return version in _bodies(curator, query_id)


def _bodies(curator, query_id):
    stored = curator.rows("SELECT version, body FROM revisions WHERE query_id = ? ORDER BY version", query_id)
    return dict(stored)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("act", "point"), KILLS)
def test_a_kill_leaves_one_charge_and_one_draw_for_each_version(curator, study, act, point):
    control, key = curator.folder / "control", f"{act} {point}"
    rows = [wire.RowPlays(row=row) for row in (3, 4)]
    queries, seen = {}, {}

    def step_of(step, client):
        if step == "ask":
            return study.modeler.ask(wire.QueryRequest(rows=rows), key=key)[0]
        if step == "answer":
            return client.answer(queries["id"], answers_for(queries["items"], 1.0, 2.0), key=f"answer {key}")
        return client.correct(queries["id"], answers_for(queries["items"][:1], 3.0), key=f"correct {key}")

    with Measurer(curator.url, study.measurer_token) as client:
        for step in ("ask", "answer", "correct"):
            if step == act:
                before, killed = curator.records()[-1]["seq"], len(shots(control))
                Shot(point).aim(control)
                with pytest.raises(Unreachable):
                    step_of(step, client)
                assert curator.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
                assert len(shots(control)) == killed + 1
                curator.start()
                begun = act != "ask" and KILLS[act, point]
                if begun:  # nobody asks again: it is told all the same
                    version = 1 if act == "answer" else 2
                    _wait_for(functools.partial(_has_told, curator, queries["id"], version))
                stored = {record["kind"] for record in curator.records()[before + 1 :]}
                names = {"ask": "charge", "answer": "measurement.answered", "correct": "measurement.corrected"}
                assert (names[act] in stored) == KILLS[act, point]
            reply = step_of(step, client)
            assert isinstance(reply, wire.QueryPending if step == "ask" else wire.QueryMeasurements)
            if step == "ask":
                queries = {"id": reply.id, "items": list(client.measurements(query_id=reply.id))}
                assert len(queries["items"]) == 2
            seen = _bodies(curator, queries["id"]) | seen  # what was told once stays
            assert seen == _bodies(curator, queries["id"])
            assert step_of(step, client) == reply  # under its key, nothing more happens
    assert _kinds(curator, queries["id"]) == {"answers": 2, "correction": 1}
    bodies = _bodies(curator, queries["id"])
    assert list(bodies) == [1, 2]
    first, second = (wire.QueryReply.model_validate_json(body) for body in bodies.values())
    assert first.answers[1] == second.answers[1]
    assert first.answers[0] != second.answers[0]
    assert study.modeler.query(queries["id"])[1].body == bodies[2]


def test_after_all_kills_the_log_verifies(curator, study):
    verified = curator.run("audit", "verify")
    assert (verified.returncode, verified.stderr) == (0, "")


def test_a_date_that_passed_while_the_curator_was_down_counts_at_its_start(curator, study, small):
    dataset = study.owner.study(study.study).view.spec.dataset_id
    with open_measured_study(small, curator, dataset, measurement={"due_hours": 0.001}) as opened_study:
        query = opened_study.ask(3)
        curator.kill()
        time.sleep(4.0)
        curator.start()
        _wait_for(lambda: opened_study.modeler.query(query.id)[0].state == "answered")
        assert opened_study.reply(query.id).declined == [3]
        assert opened_study.items(query.id)[0].state == "overdue"
        assert opened_study.measurer.answer(query.id, answers_for(opened_study.items(query.id), 1.0)).version == 2
