"""Notices of budgets and waiting queries: once, exactly at 80 %, with ids and counts alone."""

from fractions import Fraction

import numpy as np
import pytest

from blindopt import wire
from curator_service import notices
from curator_service.budget import budgets, ledger
from curator_service.budget.ledger import Account, Balance, Cost, RowBalance
from curator_service.context import open_context
from curator_service.settings import Settings
from service_kit.context.outbox import view
from service_kit.store import notices as store

STUDY = "std_0123456789abcdef"


@pytest.fixture
def context(tmp_path):
    (tmp_path / "key").write_text("k" * 32)
    settings = Settings(data_dir=tmp_path, notify_url="http://127.0.0.1:1/", notify_secret_file=tmp_path / "key")
    with open_context(settings) as opened:
        yield opened


@pytest.fixture
def outbox(context):
    """Reads the notices in the outbox."""

    def read():
        with context.database.read() as db:
            return [view(row).notice for row in store.page(db, after=0, limit=1_000)]

    return read


COLUMN = {"column": "zq_yield", "direction": "maximize"}
BY_HAND = {"source": "inbox", "question": "How much?", "direction": "maximize"}


def _study(small_features, measurement=COLUMN, **chosen):
    return wire.StudyCreate(
        name="s",
        dataset_id="ds_1",
        features=small_features,
        measurement=measurement,
        release=wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5),
        answers=wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", value_bound=1.0),
        **chosen,
    )


@pytest.mark.parametrize("unit", ["row", "answer", "simulation"])
@pytest.mark.parametrize("seed", range(3))
def test_each_cap_has_one_notice_at_the_charge_that_brings_it_to_80_per_cent(context, outbox, small, unit, seed):
    """Held against sums of fractions, line by line, over the same random queries."""
    rng = np.random.default_rng(seed)
    caps = {"epsilon_per_row": "1.7", "epsilon_total": "5.3", "queries": 47}
    chosen = {"measurement": BY_HAND if unit == "answer" else COLUMN, "budget": wire.Budget(**caps)}
    spec = _study(small.features, privacy_unit="row" if unit == "row" else "answer", **chosen)
    tenth, release = Fraction(1, 10), Fraction(1)
    balance, rows, spent, expected = Balance(), {}, {}, []

    def charge(charges):
        context.database.write(lambda db: budgets.note_caps(db, context.outbox, STUDY, spec, charges))

    def expect(now):
        for cap in caps:
            if now[cap] >= Fraction(4, 5) * Fraction(str(caps[cap])) and cap not in [c for c, _ in expected]:
                expected.append((cap, int(100 * now[cap] / Fraction(str(caps[cap])))))

    first = ledger.charge_release(spec, balance)
    charge([first])
    balance = first.after
    expect({"epsilon_per_row": release, "epsilon_total": release, "queries": 0})
    while True:
        request = [(int(row), int(rng.integers(1, 3))) for row in rng.integers(0, 9, size=rng.integers(1, 3))]
        try:
            charges = ledger.charge_answers(spec, balance, request, rows)
        except ledger.BudgetExhausted:
            break
        charge(charges)
        for row, plays in request:
            spent[row] = spent.get(row, 0) + plays
        balance = charges[-1].after
        rows |= {c.row: c.row_after for c in charges}
        most = tenth * max(spent[row] for row, _ in request) if unit != "answer" else 0
        plays = sum(spent.values())
        expect({"epsilon_per_row": release + most, "epsilon_total": release + tenth * plays, "queries": plays})
        assert [(n.subject.cap, n.counts.percent) for n in outbox()] == expected
    assert {n.subject.study_id for n in outbox()} == {STUDY}
    assert "epsilon_per_row" in [cap for cap, _ in expected] or unit == "answer"
    assert len(expected) >= 1


@pytest.mark.parametrize(("releases", "percent"), [(7, []), (8, [80]), (9, [90])])
def test_an_answer_of_another_person_counts_as_often_as_it_was_released(context, outbox, small, releases, percent):
    """By hand: so many times 0.2, of a cap of 2; the release alone costs 1. Corrections counted nothing."""
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.2", value_bound=1.0)
    spec = _study(small.features, BY_HAND, privacy_unit="answer", budget=wire.Budget(epsilon_per_row="2"))
    spec = spec.model_copy(update={"answers": answers})
    released = ledger.charge_release(spec, Balance())
    charges = ledger.charge_corrections(spec, released.after, [(3, 1)], {}, releases - 1)
    context.database.write(lambda db: budgets.note_caps(db, context.outbox, STUDY, spec, [released]))
    context.database.write(lambda db: budgets.note_caps(db, context.outbox, STUDY, spec, charges))
    assert [n.counts.percent for n in outbox() if n.subject.cap == "epsilon_per_row"] == percent


def test_a_row_is_never_named(context, outbox, small):
    spec = _study(small.features, budget=wire.Budget(epsilon_per_row="1.2"))
    charges = ledger.charge_answers(spec, Balance(release=10**12, total=10**12), [(317, 2)], {317: RowBalance()})
    context.database.write(lambda db: budgets.note_caps(db, context.outbox, STUDY, spec, charges))
    (notice,) = outbox()
    assert notice.sentence == f"100 % of the cap epsilon_per_row of study {STUDY} is used."
    assert "317" not in notice.model_dump_json(exclude={"id", "at"})  # which hold digits of their own


def test_the_account_of_a_file_has_a_notice_for_each_cap(context, outbox):
    def charged(epsilon, delta, cap_epsilon="10", cap_delta="1e-5"):
        account, used = Account().with_caps(cap_epsilon, cap_delta), Cost.of(epsilon, delta)
        name = "ds_0123456789abcdef"
        context.database.write(lambda db: budgets.note_file_caps(db, context.outbox, name, account, used))
        return [(n.subject.cap, n.counts.percent) for n in outbox()]

    assert charged("7.999999", "0", cap_delta="0") == []
    assert charged("7.999999", "0.0000079999", cap_delta=None) == []
    assert charged("8", "0.000001") == [("epsilon", 80)]
    assert charged("10", "0.000009") == [("epsilon", 80), ("delta", 90)]
    assert charged("10", "0.00001") == [("epsilon", 80), ("delta", 90)]
    assert outbox()[0].sentence == "80 % of the cap epsilon of dataset ds_0123456789abcdef is used."


def test_a_query_that_waits_has_a_notice_with_the_number_of_its_measurements(context, outbox):
    for number in (1, 12):
        query = f"qry_{number:016x}"
        context.database.write(lambda db, q=query, n=number: notices.pending(db, context.outbox, STUDY, q, n))
    assert [(n.event, n.subject.query_id, n.counts.measurements) for n in outbox()] == [
        ("query_pending", "qry_0000000000000001", 1),
        ("query_pending", "qry_000000000000000c", 12),
    ]
