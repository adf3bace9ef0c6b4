"""What the owner is told of noise, in each feature's own unit."""

import numpy as np
import pytest

from blindopt import wire
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.releases.report import ReleaseStatus, report_of
from tests.builders import a_study

LAW = {"epsilon": "1", "delta": 1e-5, "sensitivity": 0.5}
PLAIN = wire.GaussianRelease(mechanism="gaussian", **LAW)
PROJECTION = wire.GaussianProjectionRelease(mechanism="gaussian_projection", r=4, **LAW)


@pytest.mark.parametrize("release", [PLAIN, PROJECTION], ids=lambda r: r.mechanism)
def test_noise_has_a_feature_s_unit_only_where_a_column_is_a_feature(release):
    features = [wire.Feature(column=f"x{j}", lower=0.0, upper=1.0 + j) for j in range(13)]
    spec = a_study(release, features=features)
    rows = ScaledRows(np.zeros((20, 13)), list(range(13)), features, np.arange(20))
    mechanism = mechanism_of(spec, release)
    report = report_of(spec, rows, mechanism, ReleaseStatus(release, None, "sound", None), mechanism.assess(rows))
    assert [feature.sensitivity for feature in report.features] == [0.5 * (1 + j) for j in range(13)]
    expected = [None] * 13 if release is PROJECTION else [report.noise_sd * (1 + j) for j in range(13)]
    assert [feature.noise_sd for feature in report.features] == expected
