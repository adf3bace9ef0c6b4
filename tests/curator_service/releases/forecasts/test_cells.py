"""What a forecast tries, from what the owner asks and what the study says."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Invalid, ReleaseImpossible
from curator_service.releases.forecasts.cells import cells_of
from curator_service.releases.mechanisms.po_gp_ucb import largest_r, omega, spectrum

IDENTITY = wire.IdentityRelease(mechanism="identity")


def test_identity_comes_first_and_a_repeated_cell_is_tried_once(study_of):
    forecast = wire.ForecastCreate(epsilons=["2", "1.0", "1", "2.00"], mechanisms=["gaussian", "identity", "gaussian"])
    tried = [(cell.name, cell.epsilon) for cell in cells_of(study_of(), forecast)]
    assert tried == [("identity", None), ("gaussian", "2"), ("gaussian", "1.0")]


def test_each_has_the_studys_own_delta_and_sensitivity(study_of):
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="3", delta=1e-7, sensitivity=2.5)
    forecast = wire.ForecastCreate(epsilons=["0.5"], mechanisms=["gaussian", "po_gp_ucb"])
    _, gaussian, published = cells_of(study_of(release=release), forecast)
    for cell in (gaussian, published):
        mechanism = cell.mechanism
        assert (mechanism.epsilon, mechanism.delta, mechanism.sensitivity) == (Decimal("0.5"), 1e-7, 2.5)


def test_planar_laplace_has_a_delta_where_the_study_has_it_with_one(study_of):
    forecast = wire.ForecastCreate(epsilons=["0.5"], mechanisms=["planar_laplace"])
    planar = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="3", delta=1e-7)
    pure = wire.AutoRelease(mechanism="auto", epsilon="3", delta=1e-7)
    assert [cells_of(study_of(release=own), forecast)[1].mechanism.delta for own in (planar, pure)] == [1e-7, None]


def test_a_study_without_a_delta_gets_one_where_it_is_needed(study_of):
    forecast = wire.ForecastCreate(epsilons=["0.5"], mechanisms=["gaussian"])
    for release in (IDENTITY, wire.AutoRelease(mechanism="auto", epsilon="1")):
        _, cell = cells_of(study_of(release=release), forecast)
        assert (cell.mechanism.delta, cell.mechanism.sensitivity) == (1e-6, 1.0)


def test_po_gp_ucb_has_the_studys_r_or_that_of_the_papers_rule(study_of, rows_of):
    rows = rows_of(200)
    forecast = wire.ForecastCreate(epsilons=["1", "90"], mechanisms=["po_gp_ucb"])
    own = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="4", delta=1e-5, r=7, acknowledge_refuted=True)
    assert [cell.on(rows).columns(2) for cell in cells_of(study_of(release=own), forecast)[1:]] == [7, 7]
    sigma_min = spectrum(rows).sigma_min
    small, large = (cell.on(rows).columns(2) for cell in cells_of(study_of(), forecast)[1:])
    assert small == 1
    assert omega(1, 1.0, 1e-5) > sigma_min  # not even one column avoids the lift
    assert large == largest_r(sigma_min, 90.0, 1e-5) > 1


def test_features_that_depend_on_each_other_are_reported_before_anything_is_drawn(study_of, rows_of):
    rows = rows_of(50)
    rows.values[:, 1] = rows.values[:, 0]
    _, cell = cells_of(study_of(), wire.ForecastCreate(epsilons=["1"], mechanisms=["po_gp_ucb"]))
    with pytest.raises(ReleaseImpossible, match="linearly dependent"):
        cell.on(rows)


def test_a_mechanism_that_cannot_be_is_refused_with_its_place(study_of):
    forecast = wire.ForecastCreate(mechanisms=["gaussian", "gaussian_projection"])
    with pytest.raises(Invalid, match="gaussian_projection cannot be tried for this study") as refused:
        cells_of(study_of(), forecast)
    assert [error["field"] for error in refused.value.errors] == ["mechanisms.1"]
    narrow = [wire.Feature(column=name, lower=-1e9, upper=1e9, scale=1e-9) for name in "ab"]
    study = study_of().model_copy(update={"features": narrow})
    with pytest.raises(Invalid, match="gaussian cannot be tried") as refused:
        cells_of(study, wire.ForecastCreate(mechanisms=["gaussian"]))
    assert "sensitivity" in str(refused.value.errors)


def test_the_order_of_levels_is_that_of_the_request(study_of):
    epsilons = ["8", "0.5", "2"]
    cells = cells_of(study_of(), wire.ForecastCreate(epsilons=epsilons, mechanisms=["gaussian"]))
    assert [cell.epsilon for cell in cells[1:]] == epsilons
    assert np.all(np.diff([cell.mechanism.sd(2) for cell in cells[1:]]) * np.array([1, -1]) > 0)
