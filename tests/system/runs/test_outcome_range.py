"""Runs complete in the whole public range of outcomes, make the same choices in any unit, and say why they cannot."""

from dataclasses import replace

import numpy as np
import pytest

import blindopt as bo
from blindopt import wire
from blindopt.errors import Invalid, NumericalFailure, Remote, StateConflict
from blindopt.optimizer.algorithms.gp import surrogate
from blindopt.wire.base import parsed
from modeler_service.runs.posterior_views import PosteriorViews

RNG = np.random.default_rng(4)
X = RNG.uniform(size=(40, 2))
Y = 1.0 - ((X - 0.4) ** 2).sum(axis=1) / 2  # at most 1
SIZES = (wire.OUTCOME_MAX, -wire.OUTCOME_MAX, 1e-50, 1e-300, 1e-9, 1e25)


def table(size):
    rows = np.column_stack([X, size * Y]).tolist()
    return "\n".join(["a,b,y", *(",".join(map(repr, row)) for row in rows)])


def draft_on(owner, size, **more):
    dataset = owner.upload(table(size).encode(), name=f"y times {size:g}", public=True)
    features = {"a": (0, 1), "b": (0, 1)}
    direction = "maximize" if size > 0 else "minimize"
    fields = {"features": features, "outcome": "y", "direction": direction, "privacy": "public", "answers": "exact"}
    return dataset.study("n", **fields | more)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("size", SIZES)
def test_a_run_completes_at_both_ends_of_the_range_and_between(owner, vendor, size):
    """The recommended candidate is the best that it queried, in the unit of the file."""
    study = draft_on(owner, size).release()
    run = vendor.start(study.grant("v").file, iterations=8, seed=3).wait(timeout_s=240)
    assert (run.state, run.view.trials) == ("completed", 13)
    outcomes = {trial.row: trial.y / size for trial in run.export.trials}
    assert outcomes[run.recommendation.row] == max(outcomes.values()) >= np.sort(Y)[-4]
    assert run.recommendation.mean / size == pytest.approx(max(outcomes.values()), rel=1e-6)


@pytest.mark.parametrize("size", [1.01 * wire.OUTCOME_MAX, -1e300])
def test_a_column_beyond_the_range_is_refused_at_the_draft_and_named(owner, size):
    with pytest.raises(Remote) as refused:
        draft_on(owner, size * 2)
    assert refused.value.remote_status == 422
    assert "measurement.column: y has outcomes beyond 1e+50" in str(refused.value)


def test_what_people_measure_ends_where_columns_do():
    measured = {"measurement_id": f"msr_{'0' * 16}", "value": 1.01 * wire.OUTCOME_MAX}
    with pytest.raises(Invalid, match="must be at most"):
        parsed(wire.AnswerCreate, {"values": [measured]})


def test_without_the_scaling_outcomes_at_the_ends_end_in_a_failure(monkeypatch):
    """The control: the same search, of which the unit of outcomes is always 1."""

    def search():
        optimizer = bo.Optimizer(X, seed=3, iterations=8)
        while (proposal := optimizer.propose()) is not None:
            optimizer.tell(proposal.row, 1e305 * Y[proposal.row])

    search()
    unit = surrogate.OutcomeUnit()
    monkeypatch.setattr(surrogate.OutcomeUnit, "of", classmethod(lambda cls, outcomes: replace(unit)))
    with pytest.raises(NumericalFailure):
        search()


def test_a_run_that_cannot_be_computed_with_says_why(tmp_path):
    """409 with the reason: 500 would be a fault of the service."""
    views = PosteriorViews(None, tmp_path, 1)
    with pytest.raises(StateConflict, match="cannot be computed with: outcome 3"), views._alone():
        raise NumericalFailure("outcome 3 cannot be absorbed")
    assert (StateConflict.status, NumericalFailure.status) == (409, 500)
