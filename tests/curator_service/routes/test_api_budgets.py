"""Budgets over REST: charges, refusals, their records, and who may read them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.client import Owner

IDENTITY = wire.IdentityRelease(mechanism="identity")


def laplace(epsilon, plays="each"):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=1.0, plays=plays)


@pytest.fixture
def made(owner, dataset, open_study):
    """Opens a study with caps."""

    def make(answers=laplace("0.1"), unit="row", release=IDENTITY, **caps):
        return open_study(owner, dataset, release, answers=answers, privacy_unit=unit, budget=wire.Budget(**caps))

    return make


@pytest.fixture
def ask(curator):
    """Asks rows (row, plays) of a study under a key of its own."""
    count = iter(range(10**6))

    def ask_rows(study, *rows, key=None):
        body = {"rows": [{"row": row, "plays": plays} for row, plays in rows]}
        with curator.http(study.token, **{"Idempotency-Key": key or f"budget-{next(count)}"}) as http:
            return http.post(f"/v1/studies/{study.id}/queries", json=body)

    return ask_rows


def budget_of(reply):
    assert (reply.status_code, reply.json()["code"]) == (403, "privacy_budget_exhausted")
    assert not reply.json()["retryable"]  # what was spent never comes back
    assert "retry-after" not in reply.headers
    return reply.json()["budget"]


def test_ten_answers_of_a_tenth_fit_under_one_and_the_eleventh_is_refused(made, ask, owner):
    study = made(epsilon_per_row="1.0")
    for _ in range(10):
        assert ask(study, (17, 1)).status_code == 201
    said = {"cap": "epsilon_per_row", "row": 17, "requested": "0.1", "spent": "1", "limit": "1"}
    assert budget_of(ask(study, (17, 1))) == said | {"remaining": "none"}
    assert ask(study, (18, 1)).status_code == 201  # another person
    (exposed, _) = owner.exposure(study.id)
    assert (exposed.row, exposed.queries, exposed.plays, exposed.epsilon, exposed.spent) == (17, 10, 10, "1", "1")


def test_a_refusal_is_recorded_and_costs_nothing(made, ask, owner, curator):
    study = made(epsilon_per_row="0.3", epsilon_total="0.9")
    assert ask(study, (8, 2)).status_code == 201
    balance = owner.balance(study.id)
    reply = ask(study, (8, 2), key="refused one")
    assert "blindopt-receipt" in reply.headers
    after = owner.balance(study.id)
    assert (after.total_epsilon, after.total_plays) == (balance.total_epsilon, balance.total_plays) == ("0.2", 2)
    line = list(owner.ledger(study.id))[-1]
    assert (line.kind, line.query_id, line.row, line.plays, line.cap) == ("refused", None, 8, 2, "epsilon_per_row")
    assert (line.epsilon, line.row_epsilon, line.total_epsilon) == ("0.2", "0.2", "0.2")
    records = curator.records()
    record = [r for r in records if r["kind"] == "charge.refused" and r["details"]["study_id"] == study.id][-1]
    exchanges = [r["exchange"] for r in records if "exchange" in r]
    exchange = next(e for e in reversed(exchanges) if e["idempotency_key"] == "refused one")
    assert record["details"] == {
        "study_id": study.id, "cap": "epsilon_per_row", "row": 8, "requested": "0.2", "spent": "0.2", "limit": "0.3",
        "rows": [[8, 2]],
    }  # fmt: skip
    assert (exchange["status"], exchange["reply_sha256"]) == (403, merkle_log.sha256(reply.content))
    assert ask(study, (8, 1), key="refused one").status_code == 201  # a refusal does not use its key up
    verified = curator.run_in_process("audit", "verify")
    assert (verified.returncode, verified.stderr) == (0, "")


def without_ids(reply):
    """A reply without what names this request, this study and this moment."""
    body = re.sub(r"(std|qry|grt|rel)_[0-9a-f]{16}|[0-9a-f]{32}", "-", reply.text)
    names = sorted(set(reply.headers) - {"date", "x-request-id", "blindopt-receipt"})
    return reply.status_code, body, [(name, reply.headers[name]) for name in names]


def test_a_refusal_depends_on_the_history_of_requests_and_not_on_the_data(owner, small, open_study, ask):
    """The same questions about two datasets that share nothing but their form."""
    rng = np.random.default_rng(1)
    lines = [",".join(small.names)]
    lines += [",".join(map(repr, row)) for row in np.c_[rng.uniform(-3, 3, (400, 2)), rng.normal(9e6, 5, 400)].tolist()]
    other = owner.register("other", ("\n".join(lines) + "\n").encode(), public=True)
    first = owner.register("first", small.csv, public=True)
    budget = wire.Budget(epsilon_per_row="0.5", epsilon_total="2.3", queries=25)
    statuses = []
    for dataset in (first, other):
        study = open_study(owner, dataset, answers=laplace("0.1"), budget=budget)
        draws = np.random.default_rng(2)
        replies = []
        for _ in range(40):
            rows = [(int(row), int(plays)) for row, plays in draws.integers((0, 1), (6, 4), (draws.integers(1, 4), 2))]
            replies.append(ask(study, *rows))
        refused = [without_ids(reply) for reply in replies if reply.status_code == 403]
        lines = [line.model_dump(exclude={"seq", "created_at", "query_id"}) for line in owner.ledger(study.id)]
        exposed = [row.model_dump(exclude={"record", "file_row"}) for row in owner.exposure(study.id)]
        statuses.append(([reply.status_code for reply in replies], refused, lines, exposed))
    assert statuses[0] == statuses[1]
    assert {json.loads(body)["budget"]["cap"] for _, body, _ in statuses[0][1]} >= {"epsilon_per_row", "epsilon_total"}


# --- two grants of one study --------------------------------------------------------------------------


@pytest.fixture
def rivals(made, ask, owner):
    """Opens a study of two grants; a refusal of the first, without what differs at each request; asks of the second."""

    def make(*given, **caps):
        study = made(*given, **caps)
        other = replace(study, token=owner.grant(study.id, wire.GrantCreate(name="rival")).token)

        def refused(*rows):
            reply = ask(study, *rows)
            assert reply.status_code == 403, reply.text
            return reply.json() | {"request_id": ""}

        return study, refused, lambda *rows: ask(other, *rows)

    return make


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("answers", [laplace("0.1"), laplace("0.1", "mean"), wire.NoAnswerNoise(mechanism="none")])
def test_a_refusal_says_nothing_about_the_queries_of_another_grant(answers, rivals, ask, owner, curator):
    """The review's attack: requests that are too dear are free, and each told how often a rival had asked its row."""
    caps = {"queries": 60} if answers.mechanism == "none" else {"epsilon_per_row": "1", "epsilon_total": "6"}
    study, refused, rival = rivals(answers, **caps)
    assert ask(study, (2, 1), (0, 1)).status_code == 201
    too_dear = [(row, 1) for _ in range(11) for row in range(6)]
    requests = [[(row, 100)] * 11 for row in range(6)] + [too_dear, too_dear[::-1]]
    before = [refused(*request) for request in requests]
    for rows in ([(1, 2)], [(0, 3), (3, 3)], [(3, 5)], [(1, 1)] * 7):
        assert rival(*rows).status_code == 201
        assert [refused(*request) for request in requests] == before
    own = "2" if answers.mechanism == "none" else "0.2"
    assert {refusal["budget"]["spent"] for refusal in before} <= {own, "0.1", "0"}
    assert {refusal["budget"]["remaining"] for refusal in before} == {"some"}
    # The owner reads it all: the control, which is what the modeler read once.
    with curator.http() as http:
        entries = http.get("/v1/audit/entries", params={"kind": "charge.refused", "page_size": 1000}).json()["entries"]
    details = [json.loads(entry["body"])["details"] for entry in entries]
    spent = {d["spent"] for d in details if d["study_id"] == study.id}
    assert len(spent) > 3
    assert any(line.kind == "refused" and line.total_plays > 10 for line in owner.ledger(study.id))


def test_a_grant_whose_own_spending_leaves_room_is_refused_without_a_cap_or_a_row(rivals, ask):
    """That another grant spent it shows in the decision: the amounts, the row and the cap are not told."""
    study, refused, rival = rivals(laplace("0.1"), epsilon_per_row="0.5", queries=20)
    assert ask(study, (3, 1), (4, 2)).status_code == 201
    assert rival((3, 4)).status_code == 201
    once = refused((4, 1), (3, 1))
    assert once["budget"] == {"requested": "0.2", "spent": "0.3", "remaining": "some"}
    assert wire.Problem.model_validate_json(json.dumps(once)).budget.cap is None  # a modeler reads it, and its run ends
    assert "row" not in once["detail"].replace("rows", "")
    assert refused((3, 1))["budget"] == {"requested": "0.1", "spent": "0.3", "remaining": "none"}
    assert rival((4, 3)).status_code == 201  # the other row, and then all measurements
    assert refused((4, 1), (3, 1)) == once
    assert rival(*[(row, 2) for row in range(10, 15)]).status_code == 201
    assert refused((4, 1), (3, 1)) == once


def test_an_auditor_sees_what_was_spent_and_not_which_records(made, ask, curator, owner, small):
    study = made(wire.NoAnswerNoise(mechanism="none"), queries=9)
    for row in (5, 3, 5):
        assert ask(study, (row, 1)).status_code == 201
    token = curator.run_in_process("token", "create", "--name", "a", "--role", "auditor").stdout.strip()
    with Owner(curator.url, token) as auditor:
        seen = list(auditor.exposure(study.id))
        assert [(row.row, row.record, row.queries) for row in seen] == [(3, None, 1), (5, None, 2)]
        assert list(auditor.ledger(study.id)) == list(owner.ledger(study.id))
    answered = {reply.json()["answers"][0]["y"] for reply in (ask(study, (3, 1)), ask(study, (5, 1)))}
    records = [row.record for row in owner.exposure(study.id)]
    assert {small.y[record - 1] for record in records} == answered


def test_ledger_and_exposure_come_in_pages_that_neither_skip_nor_repeat(made, ask, curator, owner):
    study = made(epsilon_per_row="0.2")
    for row in (4, 0, 4, 9, 2, 4):
        ask(study, (row, 1))
    with curator.http() as http:
        for what, name, whole in (("ledger", "seq", owner.ledger), ("exposure", "row", owner.exposure)):
            names, token = [], None
            while True:
                params = {"page_size": 2} | ({"page_token": token} if token else {})
                page = http.get(f"/v1/studies/{study.id}/{what}", params=params).json()
                items = page["entries" if what == "ledger" else "rows"]
                assert len(items) <= 2
                names += [item[name] for item in items]
                if (token := page["next_page_token"]) is None:
                    break
            assert names == [getattr(item, name) for item in whole(study.id)] == sorted(set(names))
