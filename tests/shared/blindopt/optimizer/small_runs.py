"""Small studies without services, and runs on them, for tests of the rows that a run chooses."""

from typing import Any

import numpy as np

from blindopt import wire
from blindopt.optimizer.chooser import RowChooser
from tests.given_settings import GIVEN

KERNEL = wire.Kernel(lengthscale=0.8, signal_variance=2.0, noise_variance=1e-2, mean=0.5)
N = 60


def candidates(n: int = N) -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 4, size=(n, 2))


def outcome_of(z: np.ndarray) -> np.ndarray:
    return np.sin(2 * z[:, 0]) + np.cos(3 * z[:, 1]) * z[:, 0] / 2


def study(n: int = N, **chosen: Any) -> wire.StudyView:
    settings: dict[str, Any] = {
        "id": "std_0123456789abcdef",
        "state": "open",
        "n": n,
        "r": 2,
        "release_id": "rel_1",
        "release_sha256": "0" * 64,
        "mechanism": "identity",
        "status": "unprotected",
        "epsilon": None,
        "delta": None,
        "sensitivity": None,
        "noise": wire.NoiseLaw(family="none"),
        "answers": wire.NoAnswerNoise(mechanism="none"),
        "privacy_unit": "row",
        "budget": wire.Budget(),
        "grant_id": "grt_0123456789abcdef",
        "log_key": "x",
        "direction": "maximize",
        "measurement_noise_variance": 0.0,
        "kernel": KERNEL,
        "limits": wire.Limits(rows_per_query=1000, plays_per_row=1000),
        "reply_after_ms": None,
        "guarantee": "none",
        "not_protected": [],
    }
    return wire.StudyView(**settings | chosen)


def spec(algorithm: str | dict[str, Any] = "gp_ucb", **chosen: Any) -> wire.RunSpec:
    named = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    required = {"curator_url": "http://127.0.0.1:9", "study_id": "std_0123456789abcdef", "algorithm": named}
    return wire.RunSpec.model_validate(required | GIVEN | chosen)


def played(chooser: RowChooser, y: np.ndarray, queries: int = 10_000) -> list[list[int]]:
    """The rows of each query until the end."""
    queried = []
    while len(queried) < queries and (proposals := chooser.next()):
        queried.append([proposal.row for proposal in proposals])
        for row in queried[-1]:
            chooser.observe(row, float(y[row]), wire.NoisePassport(measurement_variance=0.0))
    return queried
