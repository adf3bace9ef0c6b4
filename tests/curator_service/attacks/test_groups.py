"""Attacks on groups: what they show follows from epsilon, and is never more than it."""

import math

import numpy as np
import pytest

from blindopt import wire
from curator_service.attacks import groups
from curator_service.release.registry import mechanism_of


def findings(epsilon, queries=None):
    spec = wire.StudyCreate(
        name="g",
        dataset_id="ds_0",
        features=[wire.Feature(column="x", lower=0.0, upper=1.0)],
        measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
        release=wire.GroupsRelease(mechanism="groups", epsilon=epsilon, cells=wire.GridCells(kind="grid", parts=[3])),
        answers=wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=1.0),
        budget=wire.Budget(queries=queries),
    )
    mechanism = mechanism_of(spec, spec.release)
    return dict(groups.one_by_one(spec, mechanism, np.linspace(-1, 1, 50), np.random.default_rng(1)))


def test_a_small_epsilon_leaves_attackers_guessing_and_they_prove_no_more_than_it():
    seen = findings("0.1", queries=1)
    assert set(seen) | {"averaging"} == set(groups.ATTACKS)
    most = 1 / (1 + math.exp(-0.2))  # the share of right guesses that the sum of both epsilons allows
    for finding in seen.values():
        assert finding.success < most + 5 * 0.5 / math.sqrt(groups.TRIALS)
    assert seen["column_space"].figure <= 0.2
    assert "sees the numbers of records and 1 answer about each group" in seen["membership"].sentence


@pytest.mark.parametrize("queries", [5, None])
def test_a_large_one_tells_them_all(queries):
    seen = findings("10", queries)
    assert seen["column_space"].success > 0.99
    assert seen["membership"].success > 0.95
    assert seen["column_space"].figure > 2
