"""What the owner's people look at before they act, held against slow readings; the log's own check."""

import json
from collections import Counter
from decimal import Decimal
from itertools import accumulate
from pathlib import Path

import pytest

from blindopt import wire
from blindopt.audit import reconciliation
from blindopt.audit.checkpoints import Receipt
from blindopt.client import Owner, StudyClient
from curator_service.context import open_context
from curator_service.settings import Settings
from service_kit import verification as log_verification
from service_kit.store import checkpoints
from tests.builders import a_study_of

ANSWERS = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.25", value_bound=2.0)
REFUSED = 399
BUDGET = wire.Budget(epsilon_per_row="5", queries=60)


@pytest.fixture(scope="module")
def measured_study(owner, curator, dataset, open_study):
    """A study with 41 measurements of 12 rows."""
    made = open_study(
        owner,
        dataset,
        wire.GaussianRelease(mechanism="gaussian", epsilon="2", delta=1e-5),
        answers=ANSWERS,
        budget=BUDGET,
    )
    with StudyClient(curator.url, made.token, made.id) as modeler:
        for i in range(32):
            rows = [wire.RowPlays(row=(i * i) % 23, plays=1 + (i % 7 == 0) * 2 - (i == 0))]
            modeler.ask(wire.QueryRequest(rows=rows), key=f"overview-{i}")
    with curator.http(made.token, **{"Idempotency-Key": "too much"}) as api:  # refused, and about a row of its own
        rows = [{"row": REFUSED, "plays": 13}]
        assert api.post(f"/v1/studies/{made.id}/queries", json={"rows": rows}).status_code == 403
    return made


def _get(curator, path, **query):
    with curator.http() as api:
        reply = api.get(path, params={k: v for k, v in query.items() if v is not None})
        assert reply.status_code == 200, reply.text
        return reply.json()


def test_an_account_is_what_the_ledger_adds_up_to(curator, owner, measured_study):
    lines = list(owner.ledger(measured_study.id))
    account = _get(curator, f"/v1/studies/{measured_study.id}/account")
    by_row = Counter()
    for line in lines:
        if line.kind == "answers":
            by_row[line.row] += Decimal(line.epsilon)
    assert Decimal(account["total_epsilon"]) == 2 + sum(by_row.values())
    assert Decimal(account["row_epsilon"]) == 2 + max(by_row.values())
    assert account["total_plays"] == sum(line.plays for line in lines if line.kind != "refused")
    listed = _get(curator, "/v1/accounts", page_size=1000)["accounts"]
    assert account in listed


@pytest.mark.parametrize("points", [2, 3, 7, 1000])
def test_a_thinned_ledger_is_some_of_its_lines_with_the_last(curator, owner, measured_study, points):
    lines = list(owner.ledger(measured_study.id))
    curve = _get(curator, f"/v1/studies/{measured_study.id}/ledger/curve", points=points)
    assert curve["lines"] == len(lines)
    chosen = [(p["line"], p["total_epsilon"], p["total_plays"]) for p in curve["points"]]
    assert len(chosen) <= points
    assert chosen == [(n, lines[n - 1].total_epsilon, lines[n - 1].total_plays) for n, _, _ in chosen]
    assert (chosen[0][0], chosen[-1][0]) == (1, len(lines))
    assert points < len(lines) or len(chosen) == len(lines)


def test_the_histogram_counts_every_row_once(curator, owner, measured_study, small):
    plays = Counter(
        row.row for row in owner.ledger(measured_study.id) for _ in range(row.plays) if row.kind != "refused"
    )
    slow = Counter(plays.values())
    slow[0] = len(small.x) - len(plays)
    counts = _get(curator, f"/v1/studies/{measured_study.id}/exposure/histogram")["counts"]
    assert {part["plays"]: part["rows"] for part in counts} == dict(slow)
    assert [line.kind for line in owner.ledger(measured_study.id) if line.row == REFUSED] == ["refused"]
    exposed = _get(curator, f"/v1/studies/{measured_study.id}/exposure", page_size=5)
    assert [row["row"] for row in exposed["rows"]] == sorted(plays)[:5]
    assert REFUSED not in [row["row"] for row in _get(curator, f"/v1/studies/{measured_study.id}/exposure")["rows"]]


def test_a_check_tells_what_the_draft_then_is_and_makes_none(curator, owner, dataset, small):
    study = a_study_of(small, dataset.id, wire.AutoRelease(epsilon="1", delta=1e-6), budget=BUDGET, answers=ANSWERS)
    before = curator.rows("select count(*) from studies")
    with curator.http() as api:
        body = api.post("/v1/studies:check", json=study.model_dump()).json()
        wrong = study.model_dump() | {"features": [{"column": "none", "lower": 0.0, "upper": 1.0}]}
        refused = api.post("/v1/studies:check", json=wrong)
    assert curator.rows("select count(*) from studies") == before
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "features.0.column")
    draft = owner.create_study(study)
    preview = owner.preview(draft.id)
    assert body["guarantee"] == draft.guarantee == preview.guarantee
    assert body["features"] == [feature.model_dump() for feature in preview.features]
    assert body["price"] == preview.price.model_dump()
    assert (body["mechanism"], body["noise_sd"]) == (preview.mechanism, preview.noise_sd)
    assert body["epsilon_hidden"] <= body["epsilon_whole"]
    assert body["protection"].endswith(f", {body['strength']}.")


def test_the_log_is_read_backwards_and_by_kind(curator):
    with Owner(curator.url, curator.token) as owner:
        forward = [entry.seq for entry in owner.audit()]
    backward, token = [], None
    while True:
        page = _get(curator, "/v1/audit/entries", order="newest", page_size=37, page_token=token)
        backward += [entry["seq"] for entry in page["entries"]]
        if (token := page["next_page_token"]) is None:
            break
    assert backward[-len(forward) :] == forward[::-1]
    kinds = _get(curator, "/v1/audit/entries", kind="study.created", page_size=1000)["entries"]
    assert kinds
    assert all('"kind":"study.created"' in entry["body"] for entry in kinds)


def test_names_of_those_who_acted_are_shown_to_those_who_read_the_whole_log(curator, measured_study):
    page = _get(curator, "/v1/audit/entries", kind="grant.created", page_size=1000)
    actors = {json.loads(entry["body"])["actor"].partition(":")[2] for entry in page["entries"]}
    grants = {json.loads(entry["body"])["details"]["grant_id"] for entry in page["entries"]}
    assert (actors | grants) <= {named["id"] for named in page["names"]}
    with StudyClient(curator.url, measured_study.token, measured_study.id) as vendor:
        seen = vendor._send_unrecorded("GET", "/v1/audit/entries", params={}).read(wire.AuditPage)
    assert seen.names == []


def test_the_log_is_filtered_as_python_does(curator, measured_study):
    with Owner(curator.url, curator.token) as owner:
        records = [(entry.seq, json.loads(entry.body), entry.body) for entry in owner.audit()]
    # Other tests' commands may have a clock that is days behind: such a record is listed with those before it.
    times = accumulate((record["time"] for _, record, _ in records), max)
    rising = {record["seq"]: time for (_, record, _), time in zip(records, times, strict=True)}
    middle = rising[len(records) // 2]
    actor = next(record["actor"] for _, record, _ in records if record["actor"].startswith("owner:"))
    filters = {
        "kind": (
            ["study.", "dataset.registered"],
            lambda r, b: r["kind"].startswith("study.") or r["kind"] == "dataset.registered",
        ),
        "actor": (actor, lambda r, b: r["actor"] == actor),
        "about": (measured_study.id, lambda r, b: measured_study.id in b),
        "since": (middle, lambda r, b: rising[r["seq"]] >= middle),
        "until": (middle, lambda r, b: rising[r["seq"]] < middle),
    }
    for name, (value, matches) in filters.items():
        expected = [seq for seq, record, body in records if matches(record, body)]
        assert 0 < len(expected) < len(records), name
        listed = [e["seq"] for e in _get(curator, "/v1/audit/entries", **{name: value}, page_size=1000)["entries"]]
        assert [seq for seq in listed if seq <= records[-1][0]] == expected[:1000], name


def test_the_process_that_verifies_imports_what_this_one_has_imported():
    """In a container nothing is installed: the packages lie in the folder where the service was started."""
    root = Path(__file__).parents[3]
    folders = log_verification._folders_of("service_kit", "blindopt", "curator_service")
    assert set(map(Path, folders)) == {root, root / "shared"}


def test_an_export_has_the_receipts_of_a_log_of_which_no_record_was_fetched(tmp_path):
    """A run that is stopped after its first exchange, under a grant that others had used before."""
    with open_context(Settings(data_dir=tmp_path)) as context:
        context.database.write(lambda db: checkpoints.RECEIPTS.add(db, "grt_1", Receipt(64, b"{}", "a receipt")))
        with context.database.read() as db:
            lines = [json.loads(line) for line in reconciliation.write(context.audit_trail.export(db))]
    assert [line["note"] for line in lines if line.get("kind") == "receipt"] == ["a receipt"]
