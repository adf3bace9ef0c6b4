"""Rows in the unit square of 20 scaled units, and studies on them."""

import numpy as np
import pytest

from blindopt import wire
from curator_service.datasets.scaling import ScaledRows
from tests.builders import a_study


@pytest.fixture(scope="session")
def features_of():
    def make(d):
        return [wire.Feature(column=f"c{i}", lower=0.0, upper=1.0, scale=0.05) for i in range(d)]

    return make


@pytest.fixture(scope="session")
def rows_of(features_of):
    """``n`` uniform random rows with ``d`` features."""

    def make(n, d=2, seed=3):
        values = np.random.default_rng(seed).uniform(0, 1, (n, d))
        return ScaledRows(values=values, columns=list(range(d)), features=features_of(d), order=np.arange(n))

    return make


@pytest.fixture(scope="session")
def study_of(features_of):
    def make(d=2, **more):
        release = wire.GaussianRelease(mechanism="gaussian", epsilon="3", delta=1e-5)
        kernel = wire.Kernel(lengthscale=3.0, signal_variance=4.0, noise_variance=1e-4)
        return a_study(**{"release": release, "kernel": kernel, "features": features_of(d)} | more)

    return make
