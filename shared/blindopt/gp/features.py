"""Finite features of arms, and a whitening root of their ridge matrix that plays update."""

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.errors import NumericalFailure
from blindopt.gp.single_thread_blas import add_outer, left_product

RANK_TOLERANCE = 1e-10
"""Eigenvalues below this share of the largest are dropped."""
RENEWED_EVERY = 4_096
"""Plays after which the root is computed from scratch, so that rounding errors do not accumulate."""


def features(gram: Matrix, dictionary: Matrix | None = None) -> Matrix:
    """Features phi (m, n) of n arms with phi^T phi near ``gram`` (n, n): m is its numerical rank.

    phi = (K_S^(1/2))^+ k_S in the eigen-coordinates of K_S: Nystrom embedding of Zhou & Tan (2021), section 3, where
    ``dictionary`` holds the indices S, or S is all arms. Raises NumericalFailure if no eigenvalue is positive.
    """
    from scipy.linalg import eigh  # late, for a fast start of the services

    index = np.arange(len(gram)) if dictionary is None else np.asarray(dictionary, dtype=np.intp)
    values, vectors = eigh(gram[np.ix_(index, index)])
    informative = values > RANK_TOLERANCE * values[-1]
    if not informative.any():
        raise NumericalFailure("the kernel of the arms is not positive: check its length-scale and the candidates")
    phi: Matrix = np.ascontiguousarray((vectors[:, informative] / np.sqrt(values[informative])).T @ gram[index])
    return phi


class Root:
    """Whitened features U = A phi of all arms, where A V A^T = I and V = phi diag(N) phi^T + lam I.

    ``phi`` (m, n) are the features, and N (n,) the plays of each arm. A play costs O(n m): for V' = V + p p^T with
    u = A p and s = |u|^2, A' = A - (1 - (1 + s)^(-1/2)) / s u u^T A. The estimates of a ridge regression follow from U
    alone: its mean is U^T (U S) for the sums S of rewards, its variance lam |U_x|^2.

    A is the symmetric V^(-1/2), as printed in the paper, at the start and after every ``renewed_every`` plays; in
    between, it is multiplied by the steps above. The theorems use A V A^T = I alone, so any root serves them.
    """

    def __init__(self, phi: Matrix, lam: float, renewed_every: int = RENEWED_EVERY) -> None:
        if not 0 < lam < np.inf:
            raise ValueError(f"lam must be positive and finite, not {lam}")
        self.phi, self.lam = phi, lam
        self._renewed_every = renewed_every
        self.counts: Vector = np.zeros(phi.shape[1])
        self.plays = 0
        self.whitened: Matrix
        """U (m, n)."""
        self.squared_norms: Vector
        """|U_x|^2 of each arm x (n,)."""
        self._renew()

    @property
    def rank(self) -> int:
        """m: the number of features."""
        return len(self.phi)

    def play(self, arm: int) -> None:
        self.counts[arm] += 1
        self.plays += 1
        if self.plays % self._renewed_every == 0:
            self._renew()
            return
        column = self.whitened[:, arm].copy()
        size = float(column @ column)
        if size == 0.0:  # an arm whose features are all zero changes nothing
            return
        overlap = left_product(column, self.whitened)
        add_outer(self.whitened, column, overlap, -(1 - (1 + size) ** -0.5) / size)
        overlap *= overlap
        self.squared_norms -= overlap / (1 + size)

    def _renew(self) -> None:
        if self.plays == 0:
            self.whitened = self.phi / np.sqrt(self.lam)
        else:
            from scipy.linalg import eigh

            ridge = (self.phi * self.counts) @ self.phi.T
            ridge[np.diag_indices(self.rank)] += self.lam
            values, vectors = eigh(ridge)
            self.whitened = np.ascontiguousarray(
                (vectors / np.sqrt(np.maximum(values, self.lam))) @ (vectors.T @ self.phi)
            )
        self.squared_norms = np.einsum("ij,ij->j", self.whitened, self.whitened)
