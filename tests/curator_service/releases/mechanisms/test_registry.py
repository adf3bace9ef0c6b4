"""Every mechanism: found by its request, honest about its claim, filling the matrix it promises."""

import dataclasses
from contextlib import contextmanager
from decimal import Decimal

import numpy as np
import pytest
from pydantic import TypeAdapter

from blindopt import wire
from blindopt.errors import Invalid, ReleaseImpossible
from blindopt.wire import Feature
from curator_service.datasets.scaling import BLOCK_ROWS, ScaledRows
from curator_service.privacy.calibration import concrete
from curator_service.releases.mechanisms import registry
from curator_service.releases.mechanisms.axes import Axes
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.mechanism import Identity
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb
from curator_service.releases.mechanisms.registry import MECHANISMS, planned_mechanism
from curator_service.releases.mechanisms.row_noise import GaussianMechanism, GaussianProjection, PlanarLaplaceMechanism
from tests.builders import a_study

SPECS = {
    "planar_laplace": ('{"mechanism": "planar_laplace", "epsilon": "1.5", "sensitivity": 0.5}', "sound"),
    "gaussian_projection": (
        '{"mechanism": "gaussian_projection", "epsilon": "1.5", "delta": 1e-6, "sensitivity": 0.5, "r": 3}',
        "sound",
    ),
    "gaussian": ('{"mechanism": "gaussian", "epsilon": "1.5", "delta": 1e-6, "sensitivity": 0.5}', "sound"),
    "axes": (
        '{"mechanism": "axes", "epsilon": "1.5", "sensitivity": 0.5, "sample_dataset_id": "ds_1", "r": 2}',
        "sound",
    ),
    "groups": (
        '{"mechanism": "groups", "epsilon": "1.5", "cells": {"kind": "grid", "parts": [2, 3]}, "min_count": 5}',
        "sound",
    ),
    "po_gp_ucb": (
        '{"mechanism": "po_gp_ucb", "epsilon": "1.5", "delta": 1e-6, "r": 7, "acknowledge_refuted": true}',
        "refuted",
    ),
    "identity": ('{"mechanism": "identity"}', "unprotected"),
}
EXPECTED = {
    "planar_laplace": PlanarLaplaceMechanism(Decimal("1.5"), 0.5),
    "gaussian_projection": GaussianProjection(Decimal("1.5"), 1e-6, 0.5, 3),
    "gaussian": GaussianMechanism(Decimal("1.5"), 1e-6, 0.5),
    "axes": Axes(
        wire.AxesRelease(mechanism="axes", epsilon="1.5", sensitivity=0.5, sample_dataset_id="ds_1", r=2),
        2,
        axes=np.eye(2),
    ),
    "groups": Groups(
        [Feature(column=f"x{j}", lower=0.0, upper=8.0) for j in range(2)],
        wire.GridCells(kind="grid", parts=[2, 3]),
        Decimal("1.5"),
        5,
    ),
    "po_gp_ucb": PoGpUcb(Decimal("1.5"), 1e-6, 1.0, 7),
    "identity": Identity(),
}


def test_every_mechanism_has_a_name_of_its_own_and_is_in_this_battery():
    assert sorted(m.name for m in MECHANISMS) == sorted(SPECS)


def test_sound_mechanisms_come_first():
    order = [m.status for m in MECHANISMS]
    assert order == ["sound"] * order.count("sound") + ["refuted", "unprotected"]


WIDTH = {"gaussian_projection": 13}
"""Features of a study of that mechanism; two for the others."""


def study_of(release, d: int = 2, **bounds):
    return a_study(release, d=d, **({"upper": 8.0} | bounds))


def test_a_delta_that_doubles_cannot_tell_apart_is_refused():
    """At Delta 1e-12 against a range of a million, scaling in doubles moves a row by many Delta."""
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5, sensitivity=1e-12)
    with pytest.raises(Invalid, match="double precision"):
        planned_mechanism(study_of(release, lower=0.0, upper=1e6, scale=1.0))
    assert planned_mechanism(
        study_of(release.model_copy(update={"sensitivity": 1e-3}), lower=0.0, upper=1e6, scale=1.0)
    )


@pytest.mark.parametrize("name", SPECS)
def test_a_request_finds_its_mechanism_with_its_parameters(name):
    text, status = SPECS[name]
    d = WIDTH.get(name, 2)
    study = study_of(TypeAdapter(wire.ReleaseSpec).validate_json(text), d)
    mechanism, expected = planned_mechanism(study), EXPECTED[name]
    if status == "sound" and name != "groups":
        # each feature half a scaled unit to each side: 2^-51 sqrt(1/4 + 1/4 + ...), and 2^-20 more
        more = {"axes": None} if name == "axes" else {}  # these come from the sample
        expected = dataclasses.replace(expected, **more, rounding=2.0**-51 * (1 + 2.0**-20) * (d / 4) ** 0.5)
    assert mechanism == expected
    assert concrete(study)[1] is None
    assert (mechanism.name, mechanism.status) == (name, status)


@pytest.mark.parametrize("name", SPECS)
def test_only_a_sound_mechanism_claims_differential_privacy(name):
    claim = EXPECTED[name].claim
    promises = "differential privacy" in claim and "no differential privacy" not in claim
    assert promises == (SPECS[name][1] == "sound")


@pytest.mark.parametrize("name", SPECS)
def test_a_mechanism_cannot_be_changed_after_it_was_made(name):
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
        EXPECTED[name].epsilon = Decimal(1_000)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "groups"])
def test_a_draw_fills_every_number_of_the_matrix_it_promises(name):
    n, d = BLOCK_ROWS + 10, WIDTH.get(name, 2)
    x = np.random.default_rng(0).uniform(0, 1, size=(n, d))
    before = x.copy()
    features = [Feature(column=f"x{j}", lower=0.0, upper=1.0) for j in range(d)]
    rows = ScaledRows(x, list(range(d)), features, np.arange(n))
    out = np.full((n, EXPECTED[name].columns(d)), np.nan)
    shares: list[float] = []
    EXPECTED[name].draw(rows, out, shares.append)
    assert np.isfinite(out).all()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    np.testing.assert_array_equal(x, before)


def test_a_draw_of_groups_has_no_row_for_each_record():
    with pytest.raises(ReleaseImpossible, match="no candidate for each record"):
        EXPECTED["groups"].draw(ScaledRows(np.zeros((1, 2)), [0, 1], EXPECTED["groups"].features, np.arange(1)), None)


def test_identity_is_the_scaled_rows_in_their_order():
    x = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 99.0]])
    features = [Feature(column="a", lower=0.0, upper=4.0), Feature(column="b", lower=0.0, upper=40.0, scale=10.0)]
    out = np.empty((3, 2))
    Identity().draw(ScaledRows(x, [0, 1], features, np.array([2, 0, 1])), out)
    np.testing.assert_allclose(out, [[0.25, 2.0], [-0.25, -1.0], [0.0, 0.0]])
    assert Identity().noise(2) == wire.NoiseLaw(family="none")


@pytest.mark.parametrize("release", ["gaussian", "planar_laplace", "auto"])
def test_a_rotation_is_asked_for_by_name(release):
    text = f'{{"mechanism": "{release}", "epsilon": "1", "delta": 1e-5, "rotate": true}}'
    spec = TypeAdapter(wire.ReleaseSpec).validate_json(
        text.replace('"delta": 1e-5, ', "") if "planar" in release else text
    )
    assert planned_mechanism(study_of(spec)).rotate
    assert not planned_mechanism(study_of(spec.model_copy(update={"rotate": False}))).rotate


def refused(release, d: int, **bounds) -> tuple[str, str]:
    with pytest.raises(Invalid) as caught:
        planned_mechanism(study_of(release, d, **bounds))
    (fault,) = caught.value.errors
    assert set(fault) == {"field", "message"}
    return fault["field"], str(caught.value)


def projection(r: int, sensitivity: float = 1.0):
    return wire.GaussianProjectionRelease(
        mechanism="gaussian_projection", epsilon="1", delta=1e-5, r=r, sensitivity=sensitivity
    )


def test_a_projection_is_for_thirteen_features_and_fewer_columns():
    field, why = refused(projection(2), 12)
    assert field == "release.r"
    assert "13 features" in why
    assert "keeps every feature" in why
    for r in (13, 14):
        field, why = refused(projection(r), 13)
        assert field == "release.r"
        assert "smaller than the 13" in why
    assert planned_mechanism(study_of(projection(12), 13)).columns(13) == 12


def test_a_projection_whose_rounding_would_show_is_refused():
    field, why = refused(projection(2, 1e-6), 900, lower=0.0, upper=1e5, scale=1.0)
    assert field == "release.sensitivity"
    assert "double precision" in why


def test_planar_laplace_is_for_twenty_features():
    release = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
    field, why = refused(release, 21)
    assert field == "release.mechanism"
    assert "20 features" in why
    assert planned_mechanism(study_of(release, 20)).name == "planar_laplace"


def test_one_feature_at_a_time_is_for_any_number_of_features_without_a_delta_or_a_rotation():
    release = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", promise="one_feature")
    mechanism = planned_mechanism(study_of(release, 200))
    assert mechanism.rounding == pytest.approx(2.0**-51 * 200 / 2, rel=1e-5)  # the sum over features, not its root
    assert mechanism.noise(200) == wire.NoiseLaw(family="laplace_each", sd=mechanism.law(200).sd)
    assert mechanism.law(200).sd == pytest.approx(2**0.5, rel=1e-9)
    for name, value in (("delta", 1e-6), ("rotate", True)):
        assert refused(release.model_copy(update={name: value}), 3)[0] == f"release.{name}"
    auto = wire.AutoRelease(epsilon="1", delta=1e-6, promise="one_feature")
    assert planned_mechanism(study_of(auto, 200)) == mechanism
    of_two = study_of(release, 2).model_copy(update={"rows_per_person": 4, "person_column": True})
    assert planned_mechanism(of_two).law(2).sd == pytest.approx(4 * 2**0.5, rel=1e-9)


@contextmanager
def errors_of(release, rounding=0.0, slack=None):
    """Rounding of features, and the slack of projections, that are these shares of the sensitivity."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "rounding_of", lambda features, promise: rounding * release.sensitivity)
        if slack is not None:
            patch.setattr(GaussianProjection, "slack", lambda mechanism, d: slack * release.sensitivity)
        yield


@pytest.mark.parametrize("share", [0.00101, 0.5])
def test_rounding_beyond_a_thousandth_of_the_sensitivity_is_refused_and_a_thousandth_is_not(share):
    gaussian = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5, sensitivity=0.5)
    planar = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=0.5)
    releases = [projection(2), gaussian, planar]
    for release in releases:
        with errors_of(release, rounding=share):
            assert refused(release, 13)[0] == "release.sensitivity"
        with errors_of(release, rounding=1e-3, slack=1e-3):
            assert planned_mechanism(study_of(release, 13)).name == release.mechanism


@pytest.mark.parametrize("share", [0.00101, 0.5])
def test_a_projection_is_refused_where_its_slack_would_show(share):
    with errors_of(projection(2), slack=share):
        assert refused(projection(2), 13)[0] == "release.sensitivity"
