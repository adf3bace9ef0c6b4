"""Where answers are randomized, no single one is a headline or a recommendation."""

import pytest

from blindopt import wire
from blindopt.errors import Remote
from modeler_service.console import figures

ONE_BIT = wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=1.0)


@pytest.fixture(scope="module")
def study(owner, dataset, open_study):
    return open_study(owner, dataset, answers=ONE_BIT)


def test_the_luckiest_answer_is_no_best_and_a_row_with_one_answer_is_not_recommended(vendor, curator, study, run_of):
    """Found by hand: "Best answer 189.8" of a quantity below 82.6, and its row was recommended."""
    run = vendor.start(run_of(curator.url, study, random=True, iterations=4))
    run = vendor.wait(run.id, timeout_s=60)
    assert (run.state, run.trials, run.best, run.recommendation) == ("completed", 5, None, None)
    with pytest.raises(Remote, match="two answers at least"):
        vendor.recommendation(run.id)
    curve = [
        wire.CurvePoint(number=t.number, y=t.y, best=None, mean=None, sd=None) for t in vendor.export(run.id).trials
    ]
    chart = figures.convergence(run, curve)
    assert "best" not in chart.title
    assert "best so far" not in chart.svg


def test_a_model_is_recommended_from_by_its_mean_with_an_interval(vendor, curator, study, run_of):
    run = vendor.wait(vendor.start(run_of(curator.url, study, iterations=4)).id, timeout_s=60)
    assert (run.best, run.recommendation.by) == (None, "posterior")
    low, high = run.recommendation.interval
    assert low < run.recommendation.mean < high
