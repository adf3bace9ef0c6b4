"""Finite features of arms, and the root of their ridge matrix under plays."""

import numpy as np
from scipy.linalg import eigh

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.single_thread_blas import add_outer, left_product

RANK_TOLERANCE = 1e-10
"""Eigenvalues below this share of the largest are dropped."""
RENEWED_EVERY = 4_096
"""Plays between two roots from scratch: what rounding did until then is forgotten."""


def features(gram: Matrix, dictionary: Matrix | None = None) -> Matrix:
    """Features phi (m, n) of n arms with phi^T phi near ``gram`` (n, n): m is its numerical rank.

    phi = (K_S^(1/2))^+ k_S in the eigen-coordinates of K_S: Nystrom embedding of Zhou & Tan (2021), section 3, with
    the dictionary S given as indices, or with all arms.
    """
    index = np.arange(len(gram)) if dictionary is None else np.asarray(dictionary, dtype=np.intp)
    values, vectors = eigh(gram[np.ix_(index, index)])
    kept = values > RANK_TOLERANCE * values[-1]
    if not kept.any():
        raise NumericalFailure("the kernel of the arms is not positive: check its length-scale and the candidates")
    found: Matrix = np.ascontiguousarray((vectors[:, kept] / np.sqrt(values[kept])).T @ gram[index])
    return found


class Root:
    """U = A phi for all arms, with A V A^T = I and V = phi diag(N) phi^T + lam I, under plays.

    ``phi`` (m, n) are the features. A play costs O(n m): for V' = V + p p^T with u = A p and s = |u|^2,
    A' = A - (1 - (1 + s)^(-1/2)) / s u u^T A. The estimates of a ridge regression follow from U alone: its mean is
    U^T (U S) for the sums S of rewards, its variance lam |U_x|^2.

    Which root A is: the symmetric V^(-1/2), as printed in the paper, at the start and anew every ``renewed_every``
    plays; in between its product with the steps above. Any A serves the theorems (spec: they use A V A^T = I alone).
    """

    def __init__(self, phi: Matrix, lam: float, renewed_every: int = RENEWED_EVERY) -> None:
        if not 0 < lam < np.inf:
            raise ValueError(f"lam must be positive and finite, not {lam}")
        self.phi, self.lam = phi, lam
        self._renewed_every = renewed_every
        self.counts: Vector = np.zeros(phi.shape[1])
        self.plays = 0
        self.turned: Matrix
        """U (m, n)."""
        self.norms: Vector
        """|U_x|^2 of each arm (n,)."""
        self._renew()

    @property
    def rank(self) -> int:
        """m: how many features there are."""
        return len(self.phi)

    def play(self, arm: int) -> None:
        """One more play of ``arm``."""
        self.counts[arm] += 1
        self.plays += 1
        if self.plays % self._renewed_every == 0:
            self._renew()
            return
        column = self.turned[:, arm].copy()
        size = float(column @ column)
        if size == 0.0:  # an arm without features teaches nothing
            return
        overlap = left_product(column, self.turned)
        add_outer(self.turned, column, overlap, -(1 - (1 + size) ** -0.5) / size)
        overlap *= overlap
        self.norms -= overlap / (1 + size)

    def _renew(self) -> None:
        if self.plays == 0:
            self.turned = self.phi / np.sqrt(self.lam)
        else:
            ridge = (self.phi * self.counts) @ self.phi.T
            ridge[np.diag_indices(self.rank)] += self.lam
            values, vectors = eigh(ridge)
            self.turned = np.ascontiguousarray(
                (vectors / np.sqrt(np.maximum(values, self.lam))) @ (vectors.T @ self.phi)
            )
        self.norms = np.einsum("ij,ij->j", self.turned, self.turned)
