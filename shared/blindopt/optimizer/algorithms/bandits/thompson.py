"""Thompson sampling over few arms."""

from math import sqrt

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.gp.acquisition import Choice
from blindopt.gp.features import Root, features
from blindopt.gp.single_thread_blas import left_product, right_product
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem, FewArms

_BLOCK = 256
_STREAM = 2  # apart from those of initial rows and ties


class Thompson(FewArms):
    """The arm that is best under one draw of f from its posterior, with ``scale`` times its standard deviation.

    Prior amplitude B, noise variance that of the law: mean U^T (U S), and U^T z for z of m independent normals has
    covariance C / lam. z = Q^T w for the eigenvectors Q (n, m) of the arms' covariances and n normals w, which depend
    on seed and step alone: so a draw does not depend on the sign and order of eigenvectors, which differ between
    machines.
    """

    def __init__(self, problem: BanditProblem, scale: float) -> None:
        super().__init__(problem)
        variance = problem.law.noise_variance
        self.root = Root(features(problem.gram), variance / problem.law.value_bound**2)
        self._sums: Vector = np.zeros(len(problem.gram))
        self._sd, self.scale = sqrt(variance), scale
        lengths = np.sqrt(np.einsum("ij,ij->i", self.root.phi, self.root.phi))
        self._turn: Matrix = (self.root.phi / lengths[:, None]).T.copy()  # Q: features are its multiples
        self._block: tuple[int, Matrix] = (-1, np.zeros((0, 0)))

    def choose(self, step: int) -> Choice:
        mean, variance, width, amplitude = self.estimates()
        index = left_product(self.normals(step), self.root.whitened)
        index *= width
        index += mean
        index[self.hidden] = -np.inf
        return self.problem.choice(step, index, mean, variance, amplitude)

    def suppose(self, row: int) -> None:
        """Nothing: each round of a batch has a draw of its own (parallel Thompson sampling, Kandasamy et al. 2018)."""

    def retract(self) -> None:
        """Nothing: pending rounds leave no trace."""

    def estimates(self) -> tuple[Vector, Vector, float, float]:
        mean = left_product(right_product(self.root.whitened, self._sums), self.root.whitened)
        return mean, self.root.squared_norms, self.scale * self._sd, self._sd

    def _learn(self, arm: int, reward: float) -> None:
        self.root.play(arm)
        self._sums[arm] += reward

    def normals(self, step: int) -> Vector:
        """Normals of this step (m,): drawn by the block, since a generator costs as much as a round."""
        number, index = divmod(step, _BLOCK)
        if self._block[0] != number:
            rng = np.random.default_rng([self.problem.seed, number, _STREAM])
            self._block = number, rng.standard_normal((_BLOCK, len(self._turn))) @ self._turn
        return np.asarray(self._block[1][index])
