"""Forecasts of studies of groups: candidates are centres, and noise follows from how many records each group has."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Invalid
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy.measurement.groups import GroupAnswers
from curator_service.releases.forecasts import simulation
from curator_service.releases.forecasts.cells import cells_of, uniform_rows, whole
from curator_service.releases.forecasts.simulation import simulate
from tests.builders import a_study, group_release, laplace
from tests.interventions import record_calls

FORECAST = wire.ForecastCreate(epsilons=["0.01", "1", "1000"], functions=20, queries=12, rows_max=60)


def study(cells=None, **more):
    release = group_release("0.5", (7, 7), 20, cells=cells)
    return a_study(release, laplace("0.25"), d=2, upper=2.0, **({"epsilon_per_row": "1"} | more))


def forecast_of(draft, records, seed=1, **more):
    n = min(records, 2_000)
    rows = ScaledRows(uniform_rows(draft.features, n, seed), [0, 1], draft.features, np.arange(n))
    wanted = FORECAST.model_copy(update=more)
    shares = []
    points = simulate(draft, wanted, rows, seed=seed, on_progress=shares.append, records=records)
    assert shares == sorted(shares)
    assert shares[-1] == 1
    return {(point.mechanism, point.epsilon): point for point in points}


def test_a_level_is_that_of_a_record_in_all_and_is_divided_as_the_study_divides_its_own():
    private = study(wire.PrivateCells(kind="private", number=9, epsilon="0.2"))
    assert whole(private) == 1
    assert whole(private.model_copy(update={"budget": wire.Budget()})) == Decimal("0.75")
    cell = cells_of(private, FORECAST.model_copy(update={"epsilons": ["2"]}))[-1]
    assert (cell.name, cell.epsilon) == ("groups", "2")
    assert cell.mechanism.epsilon == 2 * Decimal("0.3")
    assert cell.mechanism.private.epsilon == 2 * Decimal("0.2")
    assert cell.answers.answers.epsilon == "0.5"


def test_much_noise_is_as_bad_as_chance_and_almost_none_as_good_as_no_privacy():
    points = forecast_of(study(), 20_000)
    assert list(points) == [("identity", None), ("random_rows", None), *(("groups", e) for e in FORECAST.epsilons)]
    useless, between, free = (points["groups", epsilon].regret for epsilon in FORECAST.epsilons)
    assert abs(free - points["identity", None].regret) < 0.02
    assert points["identity", None].regret <= between + 0.02 < useless
    assert useless > 0.5 * points["random_rows", None].regret
    assert points["groups", "1"].noise_sd is points["groups", "1"].distance_error is None


def test_more_records_bear_a_smaller_epsilon():
    """Ten times as many records: the same regret at a tenth of epsilon, or nearly; a tenth of them: far more."""
    few, many = (forecast_of(study(), n, epsilons=["0.1"])["groups", "0.1"].regret for n in (2_000, 200_000))
    assert many < 0.5 * few


def test_the_noise_is_that_of_an_answer_about_the_median_group(monkeypatch):
    calls = record_calls(monkeypatch, simulation, "gp_ucb_regret")
    draft = study()
    forecast_of(draft, 49_000, epsilons=["1"], functions=2)
    exact = GroupAnswers.of(draft).variance(1_000)
    assert exact == pytest.approx((2 * (2 / 0.25) ** 2 + 2 * (2 / 0.5) ** 2) / 1_000**2)
    used = [variance for _, _, _, _, variance, _ in calls]
    assert used[6:] == pytest.approx([exact] * 6, rel=0.2)  # uniform rows of which 2,000 were drawn


@pytest.mark.parametrize(
    "cells",
    [
        wire.GridCells(kind="grid", parts=[40, 40]),  # more groups than a forecast simulates
        wire.GridCells(kind="grid", parts=[1, 1]),
        wire.CentreCells(kind="centres", centres=[[0.1, 0.1], [1.9, 1.9]]),
        wire.PrivateCells(kind="private", number=30, epsilon="0.2"),
    ],
    ids=lambda cells: cells.kind,
)
def test_every_partition_has_a_forecast(cells):
    points = forecast_of(study(cells), 500, epsilons=["1"], functions=2, queries=4)
    assert all(np.isfinite([point.regret, point.low, point.high]).all() for point in points.values())


def test_a_level_whose_noise_does_not_fit_is_refused():
    with pytest.raises(Invalid, match="too small"):
        cells_of(study(), FORECAST.model_copy(update={"epsilons": ["0.00000001"]}))


def test_other_mechanisms_are_refused():
    with pytest.raises(Invalid, match="by itself"):
        cells_of(study(), FORECAST.model_copy(update={"mechanisms": ["gaussian"]}))
