"""Synthetic bandits in the way of Zhou & Tan (2021): 100 arms on [0, 1], f = sum a_i k(., x_i), uniform noise."""

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from blindopt import wire
from blindopt.gp.kernels import SquaredExponential
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem
from blindopt.optimizer.algorithms.bandits.reward_law import RewardLaw

KERNEL = wire.Kernel(lengthscale=0.2, signal_variance=1.0, noise_variance=1.0)
ANSWERS = {
    "laplace": wire.LaplaceAnswers,
    "one_bit": wire.OneBitAnswers,
    "piecewise": wire.PiecewiseAnswers,
    "auto": wire.AutoAnswers,
}


def answers_of(family, epsilon="1", **more):
    """Answers of a study with value bound 4 and noise bound 1, unless ``more`` says otherwise."""
    return ANSWERS[family](mechanism=family, epsilon=epsilon, **{"value_bound": 4.0, "noise_bound": 1.0} | more)


@dataclass
class Bandit:
    """f (n,) on n arms; released rewards follow the law of ``answers``. Simulation only: numpy draws the noise."""

    values: np.ndarray
    gram: np.ndarray
    law: RewardLaw
    rng: np.random.Generator

    @classmethod
    def drawn(cls, seed, family="laplace", epsilon="1", n=100, kernel="se"):
        rng = np.random.default_rng(seed)
        x = np.linspace(0, 1, n)[:, None]
        if kernel == "se":
            gram = SquaredExponential(0.2)(x, x)
        else:
            d = cdist(x, x) * np.sqrt(5) / 0.2
            gram = (1 + d + d**2 / 3) * np.exp(-d)
        values = gram @ rng.uniform(-1, 1, size=n)
        answers = answers_of(family, epsilon, value_bound=float(np.abs(values).max()))
        return cls(values, gram, RewardLaw.of(answers, KERNEL), rng)

    def problem(self, horizon, initial=0, seed=0):
        return BanditProblem(self.gram, self.law, sign=1, seed=seed, horizon=horizon, initial=initial)

    def reward(self, arm):
        law, rng = self.law, self.rng
        y = float(np.clip(self.values[arm] + rng.uniform(-1, 1) * law.noise_bound, -law.bound, law.bound))
        if law.family == "laplace":
            return y + float(rng.laplace(scale=law.scale))
        if law.family == "one_bit":
            return law.scale if rng.random() < (1 + y / law.scale) / 2 else -law.scale
        root = np.exp(law.epsilon / 2)
        low = (root + 1) / 2 * y / law.bound * (2 / (root - 1)) - 1 / (root - 1)  # end of the window, in units of M
        width = law.scale / law.bound - 1
        if rng.random() < root / (root + 1):
            return law.bound * (low + width * rng.random())
        outside = (2 * law.scale / law.bound - width) * rng.random() - law.scale / law.bound
        return law.bound * (outside if outside < low else outside + width)


def regret(algorithm, bandit, horizon):
    """Pseudo-regret of a run, divided by that of uniform play in the mean."""
    total = 0.0
    for step in range(1, horizon + 1):
        arm = algorithm.choose(step).row
        algorithm.observe(arm, bandit.reward(arm))
        total += bandit.values.max() - bandit.values[arm]
    return total / horizon / float(np.mean(bandit.values.max() - bandit.values))
