"""Numpy's seeded noise in the place of the curator's own: for tests of what is made of noise, not of the noise.

The curator's noise comes from the operating system's entropy, which no seed fixes: a verdict on a statistic of it
fails by chance now and then. What is drawn here is the same every time.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from curator_service.privacy import noise
from tests.curator_service.replaced_noise import replace_answer_release, replace_measurement_noise


def seed_answers(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Laplace answers, and the normal noise of a measurement, from one numpy generator. Other laws are refused."""
    rng = np.random.default_rng(seed)

    def release(mechanism, offsets):
        assert mechanism.noise.family == "laplace"
        return mechanism.centre + offsets + rng.laplace(0, mechanism.noise.scale, len(offsets))

    replace_answer_release(monkeypatch, release)
    replace_measurement_noise(monkeypatch, lambda values, sd: values + rng.normal(0, sd, np.shape(values)))


def seed_gaussian_releases(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The noise of Gaussian releases from one numpy generator."""
    rng = np.random.default_rng(seed)
    replace_release_noise(monkeypatch, lambda law, block: block + rng.normal(0, law.sd, block.shape), noise.GaussianLaw)


def replace_release_noise(
    monkeypatch: pytest.MonkeyPatch, add: Callable[[Any, np.ndarray], np.ndarray], *laws: type
) -> None:
    """``add`` in place of the noise of releases by ``laws``, in this process alone: workers would not know it."""
    monkeypatch.setattr(noise.parallel, "PARALLEL_DRAWS", math.inf)
    for law in laws:
        monkeypatch.setattr(law, "add", add)
