"""Runs that were recorded by earlier versions make the same choices again, by the engine of their time."""

import json
from pathlib import Path

import numpy as np
import pytest

from blindopt import wire
from blindopt.optimizer.chooser import RowChooser
from blindopt.optimizer.defaults import PublicCandidates, plan_for

RUNS = json.loads((Path(__file__).parents[3] / "data" / "engine_1.json").read_text())
"""Plans and choices (phase, row, mean, sd, acquisition, ties) as version 0.3.0 of 22 November 2026 made them."""
KERNEL = wire.Kernel(lengthscale=0.2, signal_variance=1.0, noise_variance=1e-4)
"""Of the runs whose candidates have noise of 20 length-scales; the other one fits its kernel."""


def chooser(plan):
    rng = np.random.default_rng(11)
    x = rng.uniform(size=(400, 2))
    is_fitted = plan.fit != "auto"
    z = np.round(x + rng.normal(scale=0.05 if is_fitted else 4.0, size=x.shape), 6)
    study = PublicCandidates(n=400, r=2, direction="maximize", kernel=None, noise=wire.NoiseLaw(family="none"))
    spec = wire.RunSpec(
        curator_url="http://localhost",
        study_id="std_" + 16 * "0",
        algorithm=plan.algorithm,
        iterations=20 if is_fitted else 30,
        seed=4,
        kernel=None if is_fitted else KERNEL,
        fit="auto",
    )
    return RowChooser(spec, study, z, plan=plan), np.round(np.sin(7 * x).sum(axis=1) - (0 if is_fitted else 2.5), 6)


def choices(plan):
    choosing, y = chooser(plan)
    made = []
    while proposals := choosing.next():
        (proposal,) = proposals
        made.append([proposal.phase, proposal.row, proposal.mean, proposal.sd, proposal.acquisition, proposal.ties])
        choosing.observe(proposal.row, float(y[proposal.row]))
    return made


@pytest.mark.parametrize("run", RUNS, ids=["gp_ucb", "ei", "fitted"])
def test_a_run_of_the_first_engine_makes_the_same_choices_again(run):
    plan = wire.Plan.model_validate(run["plan"])
    assert plan.engine == 1
    again = choices(plan)
    assert [[phase, row, ties] for phase, row, *_, ties in again] == [
        [phase, row, ties] for phase, row, *_, ties in run["choices"]
    ]
    for made, recorded in zip(again, run["choices"], strict=True):
        if recorded[0] == "algorithm":
            np.testing.assert_allclose(made[2:5], recorded[2:5], rtol=1e-12)
    later = choices(plan.model_copy(update={"engine": 2}))
    assert later != again


def test_new_plans_have_the_second_engine_and_runs_that_had_no_plan_the_first():
    study = PublicCandidates(n=400, r=2, direction="maximize", kernel=None, noise=wire.NoiseLaw(family="none"))
    spec = wire.RunSpec(curator_url="http://localhost", study_id="std_" + 16 * "0")
    assert [plan_for(spec, study).engine, plan_for(spec, study, had_none=True).engine] == [2, 1]
