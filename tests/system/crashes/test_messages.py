"""A recommendation and a request for budget on their way to the owner: once, whatever is killed, and in both logs."""

from contextlib import closing

import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.errors import Remote, Unreachable
from tests import beside
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.crashing_service import Shot
from tests.system.crashes.test_crash_matrix import Parties

POINTS = (
    ("modeler", "message.before"),
    ("modeler", "message.after"),
    ("curator", "message.before-commit"),
    ("curator", "message.after-commit"),
    ("curator", "message.reply.before"),
)


@pytest.fixture
def parties(make_service, tmp_path):
    made = Parties(make_service("curator", tmp_path), make_service("modeler", tmp_path, retry_attempts="2"))
    yield made
    for service in (made.curator, made.modeler):
        service.process.kill()


def test_each_message_arrives_once_and_is_decided_and_both_logs_agree(parties, small, open_study, run_of, tmp_path):
    curator, modeler = parties.curator, parties.modeler
    with Owner(curator.url, curator.token, timeout_s=240) as owner:
        study = open_study(owner, owner.register("small", small.csv, public=True), budget=wire.Budget(queries=4))
    with Vendor(modeler.url, modeler.token, timeout_s=240) as vendor:
        run = vendor.wait(vendor.start(run_of(curator.url, study, random=True, iterations=3)).id, timeout_s=240)
        assert (run.trials, run.ended_because) == (4, "refused" if run.problem else "budget")
    wish = wire.RecommendationWish(kind="recommendation", note="<b>measure it again</b>")
    for number, (name, point) in enumerate(POINTS, start=1):
        service = parties.named(name)
        Shot(point).aim(parties.control(service))
        key = f"message-{number}"
        with Vendor(modeler.url, modeler.token, timeout_s=240) as vendor, pytest.raises((Unreachable, Remote)):
            vendor.send_message(run.id, wish, key=key)
        parties.restore()
        with Vendor(modeler.url, modeler.token, timeout_s=240) as vendor:
            assert [message.state for message in vendor.messages(run.id)][-1] == "unsent"
            again = vendor.update_message(run.id, number) if number % 2 else vendor.send_message(run.id, wish, key=key)
            assert (again.number, again.state, again.problem) == (number, "open", None)
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        received = owner.messages(study_id=study.id, only_open=True)
        assert len(received) == len(POINTS)
        best = vendor.recommendation(run.id)
        assert {m.message.row for m in received} == {best.row}
        record = owner.study(study.id).open_record(best.row)
        assert record[small.names[2]] == run.best.y == max(t.y for t in vendor.export(run.id).trials)
        with pytest.raises(Remote) as refused:  # five wait
            vendor.send_message(run.id, wish)
        assert refused.value.remote_code == "state_conflict"
        last = vendor.messages(run.id)[-1]
        assert (last.state, "wait for the owner" in last.problem) == ("unsent", True)
        owner.decide(received[0].id, wire.MessageDecision(decision="accepted", word="we take it"))
        assert vendor.messages(run.id)[0].state == "open"  # until it is read
        decided = vendor.update_message(run.id, 1)
        assert (decided.state, decided.word) == ("accepted", "we take it")
        assert vendor.update_message(run.id, last.number).state == "open"

        more = wire.BudgetMessage(kind="budget", more=wire.Budget(queries=3), note="two rows are close")
        asked_for = vendor.send_message(run.id, more)
        (request,) = [m for m in owner.messages(only_open=True) if m.message.kind == "budget"]
        owner.decide(request.id, wire.MessageDecision(decision="approved"))
        assert vendor.update_message(run.id, asked_for.number).state == "approved"
        again = run_of(curator.url, study, random=True, iterations=2, seed=9, continue_from=run.id)
        assert vendor.wait(vendor.start(again).id, timeout_s=240).trials == 3  # under the higher cap

        owner.revoke(study.id, study.grant_id)
        with pytest.raises(Remote):
            vendor.send_message(run.id, more)
        assert "withdrawn this grant" in vendor.messages(run.id)[-1].problem
    for service in (curator, modeler):
        checks.check_service(service)
    checks.check_reconciled(curator, modeler, [study.id], tmp_path)
    for change in (
        "UPDATE messages SET body = replace(body, 'measure', 'forget') WHERE number = 1",
        "UPDATE messages SET reply = replace(reply, 'we take it', 'we leave it') WHERE number = 1",
        "DELETE FROM messages WHERE number = 2",
    ):
        with closing(beside.connect(modeler.database)) as db:
            kept = list(db.execute("SELECT * FROM messages"))
            db.execute(change)
            db.commit()
            status, output = checks.command(modeler, "audit", "verify")
            assert (status, "message" in output) == (3, True), output
            db.execute("DELETE FROM messages")
            for row in kept:
                db.execute(f"INSERT INTO messages VALUES ({','.join('?' * len(row))})", row)
            db.commit()
    checks.check_service(modeler)
