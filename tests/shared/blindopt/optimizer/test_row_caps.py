"""A cap on what is told about one record: candidates that have reached it are not chosen again, and the run goes on."""

import math
from collections import Counter

import numpy as np
import pytest

from blindopt import wire
from blindopt.gp.acquisition import beta
from blindopt.optimizer.chooser import RowChooser
from blindopt.optimizer.defaults import answers_per_row, plan_for
from tests.shared.blindopt.optimizer.small_runs import N, candidates, outcome_of, spec, study
from tests.shared.blindopt.optimizer.test_chooser import dense

EXACT = wire.NoisePassport(measurement_variance=0.0)
FEW = 7


def laplace(epsilon="0.5"):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=5.0)


def capped(n=N, cap="1.5", **chosen):
    return study(n, answers=laplace(), budget=wire.Budget(epsilon_per_row=cap), **chosen)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_each_choice_has_the_largest_bound_among_the_rows_that_may_still_be_queried(batch_size):
    """The slow form: a dense posterior of all that is answered or pending, rows struck off at three answers by hand."""
    z = candidates()
    y, run, rows = outcome_of(z), RowChooser(spec("gp_bucb", iterations=40, batch_size=batch_size), capped(), z), []
    struck = 0
    while proposals := run.next():
        if proposals[0].phase == "algorithm":
            mean, _ = dense(rows, y, z)
            for index, proposal in enumerate(proposals):
                chosen = rows + [p.row for p in proposals[:index]]
                _, sd = dense(chosen, y, z)
                bound = mean + math.sqrt(beta(N, len(rows) + index, 0.025)) * sd
                full = [row for row, count in Counter(chosen).items() if count == 3]
                struck += bool(full) and int(np.argmax(bound)) in full
                bound[full] = -np.inf
                assert bound[proposal.row] == pytest.approx(bound.max(), rel=1e-8)
        for proposal in proposals:
            rows.append(proposal.row)
            run.observe(proposal.row, float(y[proposal.row]), EXACT)
    assert max(Counter(rows).values()) == 3
    assert (len(rows), run.ended_because) == (41, "budget")
    assert struck >= 3, "the cap decided nothing, so the test has no teeth"


@pytest.mark.parametrize(
    "chosen",
    [
        {"algorithm": "gp_ucb"},
        {"algorithm": "gp_bucb", "batch_size": 3},
        {"algorithm": "ei"},
        {"algorithm": "ei", "repeats": "after_all", "batch_size": 3},
        {"algorithm": "random", "repeats": "after_all"},
        {"algorithm": "laplace_adf"},
        {"algorithm": "thompson"},
        {"algorithm": {"name": "ldp_ata"}},
        {"algorithm": {"name": "ldp_tgp"}},
        {"algorithm": {"name": "ldp_moma", "plays": 3}},
    ],
    ids=str,
)
def test_every_algorithm_queries_each_row_up_to_its_cap_and_ends_when_none_is_left(chosen):
    z = candidates(FEW)
    run, rows = RowChooser(spec(iterations=100, initial_rows=0, **chosen), capped(FEW, "1.0"), z), []
    while proposals := run.next():
        for proposal in proposals:
            rows.append(proposal.row)
            run.observe(proposal.row, float(outcome_of(z)[proposal.row]))
    assert Counter(rows) == dict.fromkeys(range(FEW), 2)
    assert run.ended_because == "exhausted"


def test_the_plan_of_an_earlier_version_does_not_look_at_the_cap():
    """Its choices stay what they were; the control of the tests above."""
    z, settings = candidates(FEW), spec("gp_ucb", iterations=30, initial_rows=0)
    plan = plan_for(settings, capped(FEW, "1.0"))
    assert plan.answers_per_row == 2
    assert plan_for(settings, capped(FEW, "1.0"), engine=1).answers_per_row is None
    run, rows = RowChooser(settings, capped(FEW, "1.0"), z, plan=plan.model_copy(update={"answers_per_row": None})), []
    while proposals := run.next():
        rows.append(proposals[0].row)
        run.observe(rows[-1], float(outcome_of(z)[rows[-1]]))
    assert max(Counter(rows).values()) > 2
    assert (len(rows), run.ended_because) == (30, "budget")


def test_answers_of_an_earlier_run_count_and_measurements_from_elsewhere_do_not():
    z = candidates(FEW)
    earlier = [wire.Observation(row=row, y=0.0, passport=EXACT) for row in (0, 0, 1)]
    elsewhere = [wire.Observation(row=2, y=0.0, noise_variance=1.0)] * 5
    run, rows = RowChooser(spec("gp_ucb", iterations=99), capped(FEW, "1.0"), z, earlier + elsewhere), []
    while proposals := run.next():
        rows.append(proposals[0].row)
        run.observe(rows[-1], 1.0)
    assert Counter(rows) == dict.fromkeys(range(1, FEW), 2) | {1: 1}


@pytest.mark.parametrize(
    ("expected", "chosen"),
    [
        (3, {}),
        (7, {"cap": "1.0", "epsilon": "0.3", "answer": "0.1"}),  # as floats 6.999...
        (1, {"cap": "0.5"}),
        (3, {"privacy_unit": "answer", "measurement_source": "column"}),
        (None, {"privacy_unit": "answer", "measurement_source": "inbox"}),
        (None, {"cap": None}),
        (None, {"answers": wire.NoAnswerNoise(mechanism="none")}),
    ],
)
def test_how_many_answers_a_cap_allows(expected, chosen):
    settings = {"answers": laplace(chosen.pop("answer", "0.5"))}
    settings["budget"] = wire.Budget(epsilon_per_row=chosen.pop("cap", "1.5"))
    assert answers_per_row(study(**settings | chosen)) == expected
