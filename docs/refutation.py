"""PO-GP-UCB's Theorem 1, refuted: rebuild all rows from d+1 known ones, and tell neighbours apart every time.

Run: python docs/refutation.py. It attacks both branches of the published mechanism, and a sound one as control.
"""

from decimal import Decimal

import numpy as np

from blindopt.arrays import Matrix
from curator_service.attacks.column_space import implied, neighbours
from curator_service.attacks.maps import affine
from curator_service.attacks.scene import as_rows, draw
from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.mechanism import Mechanism
from curator_service.release.po_gp_ucb import PoGpUcb

N, D, DELTA = 1_000, 5, 1e-5
RUNS, ALPHA = 50, 1e-6
MECHANISMS: dict[str, Mechanism] = {
    "po_gp_ucb, epsilon 100": PoGpUcb(Decimal(100), DELTA, 1.0, r=D),
    "po_gp_ucb, epsilon 1": PoGpUcb(Decimal(1), DELTA, 1.0, r=D),
    "gaussian,  epsilon 1": GaussianMechanism(Decimal(1), DELTA, 1.0),
}


def rebuild(z: Matrix, x: Matrix, known_count: int) -> Matrix:
    """All rows from the first ``known`` ones, by the affine map that fits them (proposition 2)."""
    return affine(z[:known_count], x[:known_count])(z)


def main() -> None:
    """Two attacks, three mechanisms."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-25, 25, size=(N, D))
    size = np.linalg.norm(x, axis=1)[D + 1 :]
    for name, mechanism in MECHANISMS.items():
        error = np.linalg.norm(rebuild(draw(mechanism, x), x, D + 1) - x, axis=1)[D + 1 :] / size
        branch = mechanism.assess(as_rows(x)).branch or "none"
        text = f"relative error of {N - D - 1} rows rebuilt from {D + 1} known"
        print(f"{name:22}  branch {branch:7}  {text}: at most {error.max():.1e}")
    few = x[:60]  # in which one row moves by 1 = Delta (proposition 1)
    for name, mechanism in MECHANISMS.items():
        first, second = neighbours(few, mechanism, 1.0, rng, runs=RUNS)
        right = int(np.sum(first <= 0) + np.sum(second > 0))
        bound = implied(first, second, 0.0, DELTA, ALPHA)
        text = f"{right} of {2 * RUNS} neighbours named right"
        print(f"{name:22}  {text}: but for one chance in a million, epsilon is at least {bound:.2f}")


if __name__ == "__main__":
    main()
