"""Attacks on groups: what they show follows from epsilon, and is never more than it."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from blindopt import wire
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases import attack_preview
from curator_service.releases.attacks import averaging, groups, trial
from curator_service.releases.attacks.worker import Job, PreviewResult
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.mechanism import Assessment
from curator_service.releases.mechanisms.registry import mechanism_of
from tests.builders import a_study, group_release, laplace


def spec(epsilon, queries=None):
    return a_study(group_release(epsilon), laplace(epsilon), queries=queries)


def findings(epsilon, queries=None):
    drafted = spec(epsilon, queries)
    mechanism = mechanism_of(drafted, drafted.release)
    return dict(groups.one_by_one(drafted, mechanism, np.linspace(-1, 1, 50), np.random.default_rng(1)))


def test_a_small_epsilon_leaves_attackers_guessing_and_they_prove_no_more_than_it():
    seen = findings("0.1", queries=1)
    assert set(seen) | {"averaging"} == set(groups.ATTACKS)
    most = 1 / (1 + math.exp(-0.2))  # the share of right guesses that the sum of both epsilons allows
    for finding in seen.values():
        assert finding.success < most + 5 * 0.5 / math.sqrt(groups.TRIALS)
    assert seen["column_space"].figure <= 0.2
    assert "sees the numbers of records and 1 answer about its group" in seen["membership"].sentence


def test_attacks_see_no_more_answers_than_the_caps_allow():
    """At a cap of 1, half of it used by the release, an answer about each of two groups fits, or two about one."""
    drafted = spec("0.5").model_copy(update={"budget": wire.Budget(epsilon_per_row="1")})
    scenes = groups.one_by_one(
        drafted, mechanism_of(drafted, drafted.release), np.linspace(-1, 1, 50), np.random.default_rng(1)
    )
    said = {name: re.search(r"\d+ answers? about \w+", finding.sentence)[0] for name, finding in scenes}
    assert said == {"column_space": "1 answer about each", "membership": "2 answers about its"}


@pytest.mark.parametrize("queries", [5, 2_000])
def test_averaging_has_the_noise_of_a_group_which_grows_with_the_records_of_a_person(queries):
    """Errors of one record and of 8 of a person, by the law of the mean: sd of the sum's noise over the root of k."""
    y = np.zeros(2_000)
    for k in (1, 8):
        drafted = spec("4", queries).model_copy(update={"rows_per_person": k, "person_column": k > 1})
        errors = averaging.means_of(drafted, y[: 2_000 if queries > 100 else 300], queries, np.random.default_rng(2))
        sd = np.sqrt(2) * 2 * k / 4 / np.sqrt(queries)
        assert errors.std() < 1.1 * sd  # less where the clip cuts it off
        if sd < 0.3:
            assert errors.std() > 0.9 * sd


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(
    ("y", "more"),
    [
        (np.array([3.0]), {}),
        (np.array([1e300, -1e300]), {}),
        (np.zeros(5), {"budget": wire.Budget(epsilon_per_row="1", queries=1)}),  # the cap allows no answer
        (np.zeros(5), {"rows_per_person": 1_000, "person_column": True}),
    ],
    ids=["one record", "y far outside of the clip", "no answer", "1,000 records of a person"],
)
def test_edges_of_a_preview_have_findings(y, more):
    drafted = spec("1", 1).model_copy(update=more)
    rows = ScaledRows(np.full((len(y), 1), 0.5), [0], drafted.features, np.arange(len(y)))
    seen = trial.in_order(
        trial.one_by_one(drafted, rows, y, Groups.of(drafted, drafted.release), rng=np.random.default_rng(3))
    )
    assert {finding.attack for finding in seen} >= {"column_space", "membership"}
    assert all(0 <= finding.success <= 1 and np.isfinite(finding.figure) for finding in seen)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("queries", [5, None])
def test_a_large_one_tells_them_all(queries):
    seen = findings("10", queries)
    assert seen["column_space"].success > 0.99
    assert seen["membership"].success > 0.95
    assert seen["column_space"].figure > 2


@pytest.mark.parametrize("private", [False, True])
def test_a_preview_says_that_it_does_not_attack_private_centres(private):
    """Their part of epsilon would let anybody do anything, and the attacks on what is left do nothing."""
    drafted = spec("0.25", 1)
    if private:
        cells = wire.PrivateCells(kind="private", number=2, epsilon="100")
        release = drafted.release.model_copy(update={"epsilon": "100.25", "cells": cells})
        drafted = drafted.model_copy(update={"release": release})
    mechanism, y = mechanism_of(drafted, drafted.release), np.linspace(-1, 1, 50)
    seen = dict(groups.one_by_one(drafted, mechanism, y, np.random.default_rng(1)))
    assert ["but not the centres" in finding.sentence for finding in seen.values()] == [private] * 2
    result = PreviewResult(Assessment(), seen | {"averaging": None})
    job = Job(study=drafted, release=drafted.release, records=Path(), columns=[0], outcome=1, seconds=1.0)
    preview = attack_preview.preview_of(job, result)
    assert ("groups' centres" in (preview.not_tried or "")) is private
    assert ("Not every attack was tried" in preview.verdict.sentence) is private
