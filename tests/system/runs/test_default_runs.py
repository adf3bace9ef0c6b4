"""Runs that are given where to ask and nothing else: REST with the required fields, over studies of each kind."""

import numpy as np
import pytest

from blindopt import wire
from tests.system.crashes.crash_checks import command

PRIVATE = {"epsilon": "4", "value_bound": 1.0, "centre": 0.5}
STUDIES = {
    "a column": {},
    "no kernel": {"kernel": None},
    "noisy candidates": {"kernel": None, "release": "gaussian"},
    "second draws": {"kernel": None, "release": "one_feature", "refine": wire.Refine(epsilon="3", persons=40)},
    "public axes": {"kernel": None, "release": "public_axes"},
    "private axes": {"kernel": None, "release": "private_axes"},
    "measurement noise": {"kernel": None, "noise_variance": 0.01},
    "Laplace answers": {"kernel": None, "answers": wire.LaplaceAnswers(mechanism="laplace", **PRIVATE)},
    "one-bit answers": {"kernel": None, "answers": wire.OneBitAnswers(mechanism="one_bit", **PRIVATE)},
    "one answer of each": {
        "kernel": None,
        "answers": wire.PiecewiseAnswers(mechanism="piecewise", **PRIVATE),
        "budget": wire.Budget(epsilon_per_row="4"),
    },
}
ALGORITHMS = {
    "noisy candidates": "ei_deblurred",
    "second draws": "ei_deblurred",
    "public axes": "ei_deblurred",
    "private axes": "ei_deblurred",
    "Laplace answers": "laplace_adf",
    "one-bit answers": "bounded_igp",
    "one answer of each": "bounded_igp",
}


@pytest.fixture(scope="module")
def few(owner, small):
    """Forty rows, so that runs are quick; with a third feature, for axes."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, size=(40, 2))
    y = np.exp(-((x - [1, -1]) ** 2).sum(axis=1) / 4)
    table = np.column_stack([x, y, x @ [0.6, 0.6]])
    lines = [",".join([*small.names, "sum"]), *(",".join(map(repr, map(float, row))) for row in table)]
    return owner.register("few", ("\n".join(lines) + "\n").encode(), public=True)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", STUDIES)
def test_a_run_with_the_required_fields_alone_completes_on_any_study(
    name, owner, few, small, open_study, curator, modeler, vendor, releases
):
    """It queries distinct candidates, says why it does what it does, and is derived again as it was."""
    chosen = dict(STUDIES[name])
    axes = {"mechanism": "axes", "epsilon": "8", "delta": 1e-5, "r": 2}
    kinds = releases | {
        "one_feature": wire.AutoRelease(epsilon="1", promise="one_feature"),
        "public_axes": wire.AxesRelease(sample_dataset_id=few.id, **axes),
        "private_axes": wire.AxesRelease(axes="private", radius=5.0, **axes),
    }
    if name.endswith("axes"):
        chosen["features"] = [*small.features, wire.Feature(column="sum", lower=-4, upper=4, scale=1.0)]
    study = open_study(owner, few, kinds[chosen.pop("release", "identity")], **chosen)
    with modeler.http() as http:
        body = {"curator_url": curator.url, "study_id": study.id, "token": study.token}
        reply = http.post("/v1/runs", json=body, headers={"Idempotency-Key": name})
        assert reply.status_code == 201, reply.text
    run = wire.RunView.model_validate_json(reply.content)
    assert run.algorithm == wire.Auto(name="auto")
    ended = vendor.wait(run.id, timeout_s=240)
    assert (ended.state, ended.problem) == ("completed", None), ended.problem
    trials = vendor.export(run.id).trials
    rows = [trial.row for trial in trials]
    draws = {trial.row: trial.passport.z for trial in trials}
    assert [z is not None for z in draws.values()] == ["refine" in chosen] * 40
    assert len(set(rows)) == len(set(rows[:40])) == 40  # all, before any is queried again
    assert ended.plan.algorithm.name == ALGORITHMS.get(name, "ei")
    assert ended.recommendation is not None
    assert len(ended.plan.reasons) >= 3
    code, said = command(modeler, "replay", run.id)
    assert code == 0, said
    code, said = command(curator, "audit", "verify")
    assert code == 0, said
