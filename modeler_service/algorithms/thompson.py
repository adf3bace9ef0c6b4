"""Thompson sampling over few arms."""

from math import sqrt

import numpy as np

from modeler_service.algorithms.few_arms import FewArms, Stage
from shared.acquisition import Choice
from shared.embedding import Root, features
from shared.matrix import Matrix, Vector
from shared.quiet import left_product, right_product

_BLOCK = 256
_STREAM = 2  # apart from those of initial rows and ties


class Thompson(FewArms):
    """The arm that is best under one draw of f from its posterior, with ``scale`` times its standard deviation.

    Prior amplitude B, noise variance that of the law: mean U^T (U S), and U^T z for z of m independent normals has
    covariance C / lam. The normals depend on seed and step alone.
    """

    def __init__(self, stage: Stage, scale: float) -> None:
        super().__init__(stage)
        variance = stage.law.noise_variance
        self.root = Root(features(stage.gram), variance / stage.law.value_bound**2)
        self._sums: Vector = np.zeros(len(stage.gram))
        self._sd, self._scale = sqrt(variance), scale
        self._block: tuple[int, Matrix] = (-1, np.zeros((0, 0)))

    def choose(self, step: int) -> Choice:
        """The arm that is largest in the draw of this step."""
        mean, spread, sd = self._index()
        draw = (self._scale * self._sd) * left_product(self._normals(step), self.root.turned)
        return self.stage.choice(step, mean, draw, spread + sd)

    def _index(self) -> tuple[Vector, Vector, Vector]:
        mean = left_product(right_product(self.root.turned, self._sums), self.root.turned)
        return mean, np.zeros(len(mean)), self._sd * np.sqrt(np.maximum(self.root.norms, 0.0))

    def _learn(self, arm: int, reward: float) -> None:
        self.root.play(arm)
        self._sums[arm] += reward

    def _normals(self, step: int) -> Vector:
        """Normals of this step (m,): drawn by the block, since a generator costs as much as a round."""
        number, place = divmod(step, _BLOCK)
        if self._block[0] != number:
            rng = np.random.default_rng([self.stage.seed, number, _STREAM])
            self._block = number, rng.standard_normal((_BLOCK, self.root.rank))
        return np.asarray(self._block[1][place])
