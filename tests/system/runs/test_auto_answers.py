"""Answers that a draft leaves to ``auto``: one plan, of a run over REST and of ``bo.Optimizer``."""

import numpy as np
import pytest

import blindopt as bo
from blindopt import wire
from blindopt.client.study_client import StudyClient


@pytest.mark.parametrize("epsilon", ["1.28", "20", "20.5"])
def test_the_plan_of_a_run_is_that_of_an_optimizer(epsilon, owner, dataset, open_study, curator, vendor):
    auto = wire.AutoAnswers(epsilon=epsilon, value_bound=1.0)
    opened = open_study(owner, dataset, kernel=None, answers=auto)
    wishes = {"curator_url": curator.url, "study_id": opened.id, "token": opened.token, "seed": 1, "iterations": 3}
    run = vendor.wait(vendor.start(wire.RunCreate.model_validate(wishes)).id, timeout_s=60)
    with StudyClient(curator.url, opened.token, opened.id) as client:
        view = client.study()
    drafted = view.model_copy(update={"answers": auto})
    z = np.arange(view.n * view.r, dtype=float).reshape(view.n, view.r)
    inline = [bo.Optimizer(z, study=study, seed=1, iterations=3).plan for study in (view, drafted)]
    assert inline == [run.plan, run.plan]
    assert run.plan.algorithm.name == ("bounded_igp" if float(epsilon) <= 20 else "laplace_adf")
    before = bo.Optimizer(z, study=drafted, seed=1, iterations=3, engine=2).plan
    assert before.algorithm.name == "thompson"  # as it began
