"""Runs that were recorded by earlier versions make the same choices again, by the engine of their time."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.errors import Invalid
from blindopt.optimizer.chooser import RowChooser
from blindopt.optimizer.defaults import PublicCandidates, plan_of_run
from blindopt.optimizer.optimizer import Optimizer

DATA = Path(__file__).parents[3] / "data"
KERNEL = wire.Kernel(lengthscale=0.2, signal_variance=1.0, noise_variance=1e-4)
NO_NOISE = wire.NoiseLaw(family="none")


class Case(NamedTuple):
    """Candidates with an outcome each, and how a run of them is asked for."""

    candidates: Matrix
    y: Vector
    settings: dict[str, Any]
    noise: wire.NoiseLaw = NO_NOISE
    past: int = 0
    declined: int = 0
    """Every so many trials one is declined; 0: none."""


def of_engine_1(name: str) -> Case:
    """Candidates with noise of 20 length-scales where the kernel is given; "fitted" fits it."""
    rng, is_fitted = np.random.default_rng(11), name == "fitted"
    x = rng.uniform(size=(400, 2))
    z = np.round(x + rng.normal(scale=0.05 if is_fitted else 4.0, size=x.shape), 6)
    y = np.round(np.sin(7 * x).sum(axis=1) - (0 if is_fitted else 2.5), 6)
    kernel = None if is_fitted else KERNEL
    return Case(z, y, {"iterations": 20 if is_fitted else 30, "kernel": kernel, "fit": "auto"})


def of_engine_2(name: str) -> Case:
    """One kind of run each: columns of very different sizes, and outcomes that depend on some of them."""
    r = {"25 columns": 25, "120 columns": 120, "noisy, by draws": 4}.get(name, 2 if name.startswith("noisy") else 3)
    rng = np.random.default_rng(7)
    x = rng.uniform(size=(300, r))
    y = np.round(np.sin(5 * x[:, :3]).sum(axis=1) + x[:, -1], 6)
    z = np.round(x * 10.0 ** (np.arange(r) % 4 - 1), 6)
    match name:
        case "25 columns":
            return Case(z, y, {"iterations": 12})
        case "120 columns":
            return Case(z, y, {"iterations": 12, "initial_rows": 8})
        case "noisy, on cells":
            law = wire.NoiseLaw(family="gaussian", scale=0.1)
            return Case(np.round(x + rng.normal(scale=0.1, size=x.shape), 6), y, {"iterations": 12}, law)
        case "noisy, by draws":
            law = wire.NoiseLaw(family="planar_laplace", scale=0.05)
            return Case(np.round(x + rng.laplace(scale=0.05, size=x.shape), 6), y, {"iterations": 10}, law)
        case "given kernel":
            kernel = wire.Kernel(lengthscale=0.5, signal_variance=1.0, noise_variance=1e-3, mean=1.0)
            return Case(x, y, {"iterations": 12, "kernel": kernel, "algorithm": {"name": "gp_ucb"}, "fit": None})
        case "batches":
            return Case(z, y, {"iterations": 18, "batch_size": 3})
        case "declines":
            return Case(z, y, {"iterations": 18}, declined=4)
        case "past":
            return Case(z, y, {"iterations": 15}, past=4)
        case _:
            return Case(z, y, {"iterations": 20})


OF_ENGINE = {1: of_engine_1, 2: of_engine_2}
RECORDED = [
    pytest.param(engine, run, id=f"engine {engine}: {run['name']}")
    for engine in OF_ENGINE
    for run in json.loads((DATA / f"engine_{engine}.json").read_text(encoding="utf-8"))
]
"""Plans and choices (phase, row, mean, sd, acquisition, ties) as each version of the rules made them."""


class Recorded(NamedTuple):
    """A chooser of a recorded run, and all that it was made from."""

    case: Case
    spec: wire.RunSpec
    study: PublicCandidates
    past: list[wire.Observation]


def recorded(case: Case, **chosen: Any) -> Recorded:
    n, r = case.candidates.shape
    study = PublicCandidates(n=n, r=r, direction="maximize", kernel=None, noise=case.noise)
    fields = {"curator_url": "http://localhost", "study_id": "std_" + 16 * "0", "seed": 4}
    past = [wire.Observation(row=7 * k, y=float(case.y[7 * k])) for k in range(case.past)]
    return Recorded(case, wire.RunSpec.model_validate(fields | case.settings | chosen), study, past)


def choices(of: Recorded, plan: wire.Plan) -> list[list[Any]]:
    chooser, trials, y = RowChooser(of.spec, of.study, of.case.candidates, of.past, plan=plan), [], of.case.y
    while proposals := chooser.next():
        for p in proposals:
            trials.append([p.phase, p.row, p.mean, p.sd, p.acquisition, p.ties])
            if of.case.declined and len(trials) % of.case.declined == 0:
                chooser.decline(p.row)
            else:
                chooser.observe(p.row, float(y[p.row]))
    return trials


@pytest.mark.parametrize(("engine", "run"), RECORDED)
def test_a_recorded_run_makes_the_same_choices_again(engine, run):
    plan = wire.Plan.model_validate(run["plan"])
    assert plan.engine == engine
    of = recorded(OF_ENGINE[engine](run["name"]), algorithm=plan.algorithm)
    again = choices(of, plan)
    assert [[phase, row, ties] for phase, row, *_, ties in again] == [
        [phase, row, ties] for phase, row, *_, ties in run["choices"]
    ]
    for choice, stored in zip(again, run["choices"], strict=True):
        if stored[0] == "algorithm":
            np.testing.assert_allclose(choice[2:5], stored[2:5], rtol=1e-12)
    if engine < 3 and run["name"] not in {"noisy, on cells", "noisy, by draws", "given kernel"}:
        assert choices(of, plan.model_copy(update={"engine": engine + 1})) != again


@pytest.mark.parametrize(("engine", "run"), [of for of in RECORDED if of.values[0] > 1])
def test_a_plan_of_an_earlier_version_is_made_again(engine, run):
    of = recorded(OF_ENGINE[engine](run["name"]))
    again = plan_of_run(of.spec, of.study, of.past, engine=engine)
    plan = wire.Plan.model_validate(run["plan"])
    assert again.model_copy(update={"reasons": plan.reasons}) == plan


def test_an_optimizer_goes_on_by_the_version_that_its_history_began_with():
    (run,) = [of.values[1] for of in RECORDED if of.values[1]["name"] == "3 columns"]
    case = of_engine_2("3 columns")
    optimizer = Optimizer(case.candidates, seed=4, iterations=20, engine=2)
    for _, row, *_ in run["choices"]:
        assert optimizer.ask() == row
        optimizer.tell(row, float(case.y[row]))
    with pytest.raises(Invalid, match="engine must be one of"):
        Optimizer(case.candidates, engine=0)


def test_with_a_given_kernel_versions_2_and_3_choose_the_same_rows():
    """So figures of searches with a kernel are of both: the frontier in benchmarks/papers/results is one."""
    (run,) = [of.values[1] for of in RECORDED if of.values[1]["name"] == "given kernel"]
    plan = wire.Plan.model_validate(run["plan"]).model_copy(update={"engine": 3})
    again = choices(recorded(of_engine_2("given kernel"), algorithm=plan.algorithm), plan)
    assert [row for _, row, *_ in again] == [row for _, row, *_ in run["choices"]]


def test_a_new_run_has_the_newest_version():
    of = recorded(of_engine_2("3 columns"))
    assert plan_of_run(of.spec, of.study, []).engine == Optimizer(of.case.candidates).plan.engine == 3
