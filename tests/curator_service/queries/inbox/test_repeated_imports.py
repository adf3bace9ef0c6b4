"""A file that is imported twice changes nothing the second time; other values than the stored ones are asked back."""

import random

import pytest
from sqlalchemy import select

from blindopt import wire
from curator_service.budget import ledger_lines
from curator_service.privacy.prices import text
from curator_service.queries.inbox import inbox
from curator_service.store.base import METADATA
from service_kit.store import audit_log
from tests.curator_service.queries.inbox.measured_study import LAPLACE

ANSWERS = {
    "each": LAPLACE,
    "mean": LAPLACE.model_copy(update={"plays": "mean"}),
    "exact": wire.NoAnswerNoise(mechanism="none"),
}
REASONS = ("unavailable", "consent")
SHOWN = ("stored", "stored_reason", "value", "reason")


def sheet_of(lines):
    rows = [f"{identity},{'' if value is None else value},{reason or ''}" for identity, (value, reason) in lines]
    return "\n".join(["measurement_id,value,decline_reason", *rows, ""]).encode()


def send(in_process, file, **options):
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return in_process.send("measurer", "POST", f"/v1/inbox:import?{query}", content=file, headers=CSV)


CSV = {"content-type": "text/csv"}


def tables_of(in_process):
    """The curator's tables: all but the log of exchanges and the replies to them, as a second import is one more."""
    with in_process.context.database.read() as db:
        return {table.name: sorted(map(repr, db.execute(select(table)).all())) for table in METADATA.sorted_tables}


def used(in_process, study):
    with in_process.context.database.read() as db:
        return ledger_lines.balance(db, study).total


def drawn_line(rng):
    """What a person writes beside a measurement: nothing, a value, or a reason."""
    kind = rng.choice(["blank", "value", "value", "value", "reason"])
    value = rng.choice([1.5, -2.0, 0.1 + 0.2]) if kind == "value" else None
    return value, rng.choice(REASONS) if kind == "reason" else None


def sorted_by_hand(states, lines):
    """New, declined, unchanged, corrected and blank lines, from what is stored and what a file says."""
    counts = dict.fromkeys(("answered", "declined", "unchanged", "corrected", "blank"), 0)
    for identity, line in lines:
        stored = states.get(identity)
        if line == (None, None):
            counts["blank"] += 1
        elif line == stored:
            counts["unchanged"] += 1
        elif stored is None or (stored[0] is None and line[0] is not None):
            counts["answered" if line[0] is not None else "declined"] += 1
        else:
            counts["corrected"] += 1
    return counts


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_import_that_is_made_twice_is_that_import_made_once(in_process, small, draft_of, kind):
    """Files that the test draws, over states that it draws: three groups, their charge, and nothing the second time."""
    rng = random.Random(kind)
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=ANSWERS[kind]))
    charged = 0
    for _ in range(8):
        query = in_process.ask(study, rng.sample(range(20), 2), plays=2)
        identities = [item["id"] for item in in_process.items(query)]
        states = {}
        for _ in range(4):
            lines = [(identity, drawn_line(rng)) for identity in rng.sample(identities, len(identities))]
            file, expected = sheet_of(lines), sorted_by_hand(states, lines)
            before, epsilon = tables_of(in_process), used(in_process, study)
            dry = send(in_process, file, dry_run="true").json()
            assert {name: dry[name] for name in expected} == expected
            assert tables_of(in_process) == before
            listed = [tuple(line[name] for name in SHOWN) for line in dry["corrections"]]
            corrected = [
                (*states[identity], *line)
                for identity, line in lines
                if identity in states
                and line not in ((None, None), states[identity])
                and (states[identity][0] is not None or line[0] is None)
            ]
            assert listed == corrected
            if corrected:
                assert send(in_process, file).status_code == 422
                assert tables_of(in_process) == before
            first = send(in_process, file, corrections="apply")
            assert first.json() == dry | {"dry_run": False, "corrections": [], "first": []}
            after, cost = tables_of(in_process), used(in_process, study) - epsilon
            assert dry["charged"] == (text(cost) if cost else None)
            charged += cost
            states |= {identity: line for identity, line in lines if line != (None, None)}
            for options in ({}, {"corrections": "apply"}):
                second = send(in_process, file, **options).json()
                unchanged = {"answered": 0, "declined": 0, "corrected": 0, "charged": None, "queries": 0}
                assert second == {**first.json(), **unchanged, "unchanged": len(lines) - expected["blank"]}
                assert tables_of(in_process) == after
    assert (charged > 0) == (kind != "exact")
    in_process.check()


def test_without_the_comparison_the_second_import_is_refused(in_process, small, draft_of, monkeypatch):
    """The control: each line is taken for a new one."""
    study = in_process.open(small.csv, draft_of)
    (item,) = in_process.items(in_process.ask(study, [3]))
    file = sheet_of([(item["id"], (1.5, None))])
    assert send(in_process, file).status_code == 201
    assert send(in_process, file).status_code == 201
    add = inbox._SortedLines.add
    monkeypatch.setattr(
        inbox._SortedLines,
        "add",
        lambda lines, number, entry, row, released: add(lines, number, entry, row._replace(entry=None), released),
    )
    refused = send(in_process, file)
    assert (refused.status_code, "is answered" in refused.json()["detail"]) == (409, True)


def test_a_line_that_differs_is_named_and_neither_log_nor_stored_reply_has_a_value_of_it(in_process, small, draft_of):
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=LAPLACE))
    items = in_process.items(in_process.ask(study, [3, 4, 5]))
    send(in_process, sheet_of([(items[0]["id"], (1.25, None))]))
    file = sheet_of([(items[1]["id"], (2.0, None)), (items[0]["id"], (2.75, None))])
    refused = send(in_process, file)
    assert refused.status_code == 422
    assert [(error["line"], error["column"]) for error in refused.json()["errors"]] == [(3, "value")]
    assert "corrections=apply" in refused.json()["detail"]
    assert "2.75" not in refused.text
    assert [item["state"] for item in in_process.items(items[0]["query_id"])] == ["answered", "open", "open"]
    applied = send(in_process, file, corrections="apply")
    assert (applied.json()["corrected"], applied.json()["charged"]) == (1, None)  # no answer has left yet
    with in_process.context.database.read() as db:
        stored = repr(list(audit_log.walk(db))) + repr(db.exec_driver_sql("SELECT * FROM replies").all())
    assert "2.75" not in stored


def test_a_correction_that_the_budget_does_not_allow_leaves_everything_as_it_was(in_process, small, draft_of):
    caps = wire.Budget(epsilon_total="0.5", epsilon_per_row="0.5", queries=10)
    study = in_process.open(small.csv, lambda dataset: draft_of(dataset, answers=LAPLACE, budget=caps))
    items = in_process.items(in_process.ask(study, [3]))
    assert send(in_process, sheet_of([(items[0]["id"], (1.25, None))])).status_code == 201
    file, before = sheet_of([(items[0]["id"], (2.75, None))]), tables_of(in_process)
    assert send(in_process, file, dry_run="true").json()["charged"] == "0.5"
    assert send(in_process, file, corrections="apply").status_code == 403
    assert tables_of(in_process) == before
