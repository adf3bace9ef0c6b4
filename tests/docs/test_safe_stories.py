"""The stories that pages tell are safe, and their counter-example is not: previews of a file of 120 houses."""

import itertools

import numpy as np
import pytest

import blindopt as bo
from tests.browser.two_services import BOUNDS, houses, price

RANGE = {"centre": 450, "value_bound": 250}
RECORDS = {"area_m2": (*BOUNDS["area_m2"], 22), "built": (*BOUNDS["built"], 12.5)}
TWICE = {name: (lower, upper, 2 * hidden) for name, (lower, upper, hidden) in RECORDS.items()}
GROUPS = {"mechanism": "groups", "epsilon": 0.5, "cells": {"kind": "grid", "parts": [5, 5]}, "min_count": 2}
PRIVATE = {"epsilon": 0.5, **RANGE}
ONE_ANSWER, WHOLE_RECORD = {"epsilon_per_row": 1.5}, {"epsilon_per_row": 1}


@pytest.fixture(scope="module")
def dataset(curator):
    values = np.array([[area, built, price(area, built)] for _, area, built in houses(120)])
    lines = ["area_m2,built,price", *(",".join(f"{value:g}" for value in row) for row in values.tolist())]
    return bo.Owner(curator.url, curator.token).upload("\n".join(lines).encode(), name="120 houses")


@pytest.mark.parametrize(
    ("features", "privacy", "answers", "budget", "levels"),
    [
        (RECORDS, 6, "exact", {"queries": 100}, {"high"}),  # the control: what no page teaches
        (RECORDS, 1, PRIVATE, ONE_ANSWER, {"low", "notable"}),
        (TWICE, 1, PRIVATE, ONE_ANSWER, {"low", "notable"}),
        (BOUNDS, GROUPS, PRIVATE, WHOLE_RECORD, {"low", "notable"}),
    ],
    ids=["the counter-example", "private answers", "twice the hidden change", "groups"],
)
def test_the_verdict_is_high_for_the_counter_example_alone(dataset, features, privacy, answers, budget, levels):
    draft = dataset.study(
        "a story", features=features, outcome="price", privacy=privacy, answers=answers, budget=budget
    )
    verdict = draft.preview().verdict
    assert verdict.level in levels, verdict.sentence


def test_a_forecasts_regret_falls_with_epsilon_within_its_intervals(dataset):
    draft = dataset.study("a story", features=RECORDS, outcome="price", privacy=1, answers="exact")
    forecast = draft.forecast([0.1, 1, 30], functions=30, queries=12, rows_max=100)
    points = sorted((point for point in forecast.points if point.epsilon), key=lambda point: float(point.epsilon))
    assert len(points) == 3
    assert all(less.low <= more.high for more, less in itertools.pairwise(points))
    assert points[-1].regret < points[0].regret  # by 0.26, give or take 0.08
