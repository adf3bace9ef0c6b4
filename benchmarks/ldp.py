"""Processor time of a round of the algorithms for few arms, at several lengths of the history."""

import time

import numpy as np

from benchmarks.table import Cell, Table
from blindopt import wire
from blindopt.optimizer.algorithms.bandits.few_arms import FewArms
from blindopt.optimizer.algorithms.factory import build_few_arms
from blindopt.optimizer.algorithms.settings import AlgorithmSettings

HISTORIES = (1_000, 10_000, 50_000)
ROUNDS, BLOCK = 1_280, 64
ARMS = 100
KERNEL = wire.Kernel(lengthscale=0.2, signal_variance=1.0, noise_variance=1.0)
BOUNDS = {"epsilon": "1", "value_bound": 4.0, "noise_bound": 1.0}
LAPLACE = wire.LaplaceAnswers.model_validate({"mechanism": "laplace", **BOUNDS})
ONE_BIT = wire.OneBitAnswers.model_validate({"mechanism": "one_bit", **BOUNDS})
ALGORITHMS: list[tuple[str, wire.FewArms, wire.Answers]] = [
    ("ldp_ata", wire.LdpAta(name="ldp_ata"), LAPLACE),
    ("ldp_tgp", wire.LdpTgp(name="ldp_tgp"), LAPLACE),
    ("ldp_moma, k = 5", wire.LdpMoma(name="ldp_moma"), LAPLACE),
    ("laplace_adf", wire.LaplaceAdf(name="laplace_adf"), LAPLACE),
    ("igp_ucb", wire.IgpUcb(name="igp_ucb"), LAPLACE),
    ("bounded_igp", wire.BoundedIgp(name="bounded_igp"), ONE_BIT),
    ("thompson", wire.Thompson(name="thompson"), ONE_BIT),
]


def rounds(spec: wire.FewArms, answers: wire.Answers) -> list[float]:
    """Time of a round (choice and update) in microseconds at each history: the median of blocks of 64 rounds."""
    z = np.linspace(0, 1, ARMS)[:, None]
    total = HISTORIES[-1] + ROUNDS
    algorithm = build_few_arms(
        spec,
        z,
        AlgorithmSettings(KERNEL, answers=answers, sign=1, seed=0, capacity=total, initial=0, unit_is_row=False),
    )
    rewards = _rewards(answers, total)
    rows, done = [], 0
    for history in HISTORIES:
        _play(algorithm, rewards, done, history)
        times = []
        for first in range(history, history + ROUNDS, BLOCK):
            started = time.thread_time()
            _play(algorithm, rewards, first, first + BLOCK)
            times.append((time.thread_time() - started) / BLOCK * 1e6)
        rows.append(float(np.median(times)))
        done = history + ROUNDS
    return rows


def _rewards(answers: wire.Answers, total: int) -> list[float]:
    """Draw the noise of all rounds beforehand: the cost of a round depends on the noise's size, not on f."""
    rng = np.random.default_rng(0)
    if answers is LAPLACE:
        return [float(y) for y in rng.laplace(scale=10.0, size=total)]
    return [float(y) for y in rng.choice([-10.8, 10.8], size=total)]


def _play(algorithm: FewArms, rewards: list[float], first: int, last: int) -> None:
    for t in range(first, last):
        choice = algorithm.choose(t + 1)
        assert choice is not None
        row = choice.row
        algorithm.observe(row, 3 * np.sin(7 * row / ARMS) + rewards[t])


def tables() -> list[Table]:
    """Time each algorithm."""
    rows: list[list[Cell]] = [[name, *rounds(spec, answers)] for name, spec, answers in ALGORITHMS]
    columns = ["algorithm", *(f"us of processor time a round at t = {history:,}" for history in HISTORIES)]
    return [Table(f"A round over {ARMS} arms", columns, rows)]
