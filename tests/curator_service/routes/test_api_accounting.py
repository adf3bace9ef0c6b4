"""Accounting over REST: the report, the price of a preview, and a ledger that adds up to what mechanisms cost."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire

GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
REFUTED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True)
IDENTITY = wire.IdentityRelease(mechanism="identity")


def laplace(epsilon="0.2"):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=1.0)


@pytest.fixture
def made(owner, dataset, open_study):
    def make(release=GAUSSIAN, answers=laplace(), unit="row", **caps):
        return open_study(owner, dataset, release, answers=answers, privacy_unit=unit, budget=wire.Budget(**caps))

    return make


@pytest.fixture
def ask(curator):
    """Asks rows (row, plays) of a study under a key of its own; the status."""
    count = iter(range(10**6))

    def ask_rows(study, *rows):
        body = {"rows": [{"row": row, "plays": plays} for row, plays in rows]}
        with curator.http(study.token, **{"Idempotency-Key": f"accounting-{next(count)}"}) as http:
            return http.post(f"/v1/studies/{study.id}/queries", json=body).status_code

    return ask_rows


def test_a_report_counts_every_row_by_the_sum_and_tightly(made, ask, owner):
    study = made()
    assert ask(study, (7, 5), (8, 2)) == 201
    assert ask(study, (9, 1), (8, 3)) == 201
    accounting = owner.accounting(study.id)
    assert accounting.delta == 1e-5  # the study's own
    counted = [(row.answers, row.rows, row.epsilon) for row in accounting.rows]
    assert counted == [(0, 397, "1"), (1, 1, "1.2"), (5, 2, "2")]
    assert accounting.rows[2].tight_epsilon == pytest.approx(1.76, abs=0.005)
    assert accounting.study.epsilon == owner.balance(study.id).total_epsilon == "3.2"
    assert accounting.study.tight_epsilon < 3.2
    assert "epsilon 2 and delta 1e-05 by the sum, 1.76 at delta 1e-05" in accounting.sentence
    smaller = owner.accounting(study.id, delta=1e-7)
    assert smaller.delta == 1e-7
    assert smaller.rows[2].tight_epsilon > accounting.rows[2].tight_epsilon


@pytest.mark.parametrize("delta", ["0", "1e-19", "0.11", "-1", "nan", "inf", "x", ""])
def test_a_delta_that_makes_no_sense_is_refused(delta, curator, opened):
    with curator.http() as http:
        assert http.get(f"/v1/studies/{opened.id}/accounting", params={"delta": delta}).status_code == 422


def test_a_report_without_a_delta_of_the_study_is_at_a_millionth_and_null_where_nothing_is_bounded(made, owner):
    accounting = owner.accounting(made(IDENTITY, wire.NoAnswerNoise(mechanism="none")).id)
    assert accounting.delta == 1e-6
    assert (accounting.study.epsilon, accounting.study.tight_epsilon) == ("0", 0.0)  # public records, and no answer yet
    refuted = owner.accounting(made(REFUTED).id)
    assert (refuted.rows[0].epsilon, refuted.rows[0].tight_epsilon) == (None, None)


def test_a_report_depends_on_what_was_asked_and_not_on_the_values(owner, small, open_study, ask):
    reports = []
    for stretch in (1.0, 0.001):
        lines = small.csv.decode().splitlines()
        values = [[repr(float(cell) * stretch) for cell in line.split(",")] for line in lines[1:]]
        file = "\n".join([lines[0], *map(",".join, values)]).encode()
        study = open_study(owner, owner.register("stretched", file), GAUSSIAN, answers=laplace())
        assert ask(study, (0, 3), (1, 1)) == 201
        reports.append(owner.accounting(study.id))
    assert reports[0] == reports[1]


def test_every_figure_of_a_simulation_adds_up_the_answers_about_a_row(made, ask, owner, curator):
    """One stored value is behind them all: 4 answers of 1.5, beside a release of 1, are 7 and not 1.5."""
    study = made(answers=laplace("1.5"), unit="answer", epsilon_per_row="7")
    assert ask(study, (3, 4)) == 201
    accounting = owner.accounting(study.id)
    assert [(row.answers, row.epsilon) for row in accounting.rows] == [(0, "1"), (4, "7")]
    assert accounting.study.epsilon == "7"
    assert "has used epsilon 7 " in accounting.sentence
    (exposed,) = owner.exposure(study.id)
    assert (exposed.plays, exposed.epsilon, exposed.spent) == (4, "6", "7")
    with curator.http() as http:
        assert http.get(f"/v1/studies/{study.id}/account").json()["row_epsilon"] == "7"
    assert ask(study, (3, 1)) == 403
    assert study.view.guarantee.startswith("A simulation: no person is behind it.")


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("caps", [{}, {"epsilon_per_row": "2.1"}, {"epsilon_total": "3.3", "queries": 40}], ids=str)
def test_ledger_totals_are_what_the_mechanisms_cost_whatever_was_asked(seed, caps, made, ask, owner):
    """Random histories with refusals: every sum, by row and in all, redone from the answers that really left."""
    rng = np.random.default_rng(seed)
    epsilon = Decimal(str(rng.choice(["0.1", "0.37", "0.000001"])))
    study = made(answers=laplace(str(format(epsilon, "f"))), **caps)
    released, refused = [0] * 400, 0
    for _ in range(12):
        rows = [(int(row), int(plays)) for row, plays in zip(rng.integers(0, 4, 3), rng.integers(1, 5, 3), strict=True)]
        status = ask(study, *rows)
        assert status in (201, 403)
        refused += status == 403
        for row, plays in rows if status == 201 else []:
            released[row] += plays
    balance, accounting = owner.balance(study.id), owner.accounting(study.id)
    assert Decimal(balance.total_epsilon) == 1 + sum(released) * epsilon == Decimal(accounting.study.epsilon)
    assert {exposed.row: Decimal(exposed.spent) for exposed in owner.exposure(study.id)} == {
        row: 1 + plays * epsilon for row, plays in enumerate(released) if plays
    }
    by_answers = {row.answers: (row.rows, Decimal(row.epsilon)) for row in accounting.rows}
    assert by_answers == {plays: (released.count(plays), 1 + plays * epsilon) for plays in set(released)}
    assert sum(line.kind == "refused" for line in owner.ledger(study.id)) == refused
    for loss in (*accounting.rows, accounting.study):
        assert loss.tight_epsilon <= float(loss.epsilon)
