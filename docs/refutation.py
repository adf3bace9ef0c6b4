"""Refute Theorem 1 of PO-GP-UCB: rebuild all records from d+1 known ones, and distinguish neighbours every time.

Run: python docs/refutation.py. Attacks both branches of the published mechanism, and a sound mechanism as control.
"""

from decimal import Decimal

import numpy as np

from blindopt.arrays import Matrix
from curator_service.releases.attacks.column_space import implied, neighbours
from curator_service.releases.attacks.scene import affine, as_rows, draw
from curator_service.releases.mechanisms.mechanism import Mechanism
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb
from curator_service.releases.mechanisms.row_noise import GaussianMechanism

N, D, DELTA = 1_000, 5, 1e-5
RUNS, ALPHA = 50, 1e-6
MECHANISMS: dict[str, Mechanism] = {
    "po_gp_ucb, epsilon 100": PoGpUcb(Decimal(100), DELTA, 1.0, r=D),
    "po_gp_ucb, epsilon 1": PoGpUcb(Decimal(1), DELTA, 1.0, r=D),
    "gaussian,  epsilon 1": GaussianMechanism(Decimal(1), DELTA, 1.0),
}


def rebuild(z: Matrix, x: Matrix, count: int) -> Matrix:
    """Rebuild all rows from the first ``count``, which are known, by the affine map that fits them (proposition 2)."""
    return affine(z[:count], x[:count])(z)


def main() -> None:
    """Run two attacks against three mechanisms."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-25, 25, size=(N, D))
    size = np.linalg.norm(x, axis=1)[D + 1 :]
    for name, mechanism in MECHANISMS.items():
        error = np.linalg.norm(rebuild(draw(mechanism, x), x, D + 1) - x, axis=1)[D + 1 :] / size
        branch = mechanism.assess(as_rows(x)).branch or "none"
        measure = f"relative error of {N - D - 1} rows rebuilt from {D + 1} known"
        print(f"{name:22}  branch {branch:7}  {measure}: at most {error.max():.1e}")
    few = x[:60]  # in which one row moves by 1 = Delta (proposition 1)
    for name, mechanism in MECHANISMS.items():
        first, second = neighbours(few, mechanism, 1.0, rng, runs=RUNS)
        right = int(np.sum(first <= 0) + np.sum(second > 0))
        bound = implied(first, second, 0.0, DELTA, ALPHA)
        score = f"{right} of {2 * RUNS} neighbours named right"
        print(f"{name:22}  {score}: but for one chance in a million, epsilon is at least {bound:.2f}")


if __name__ == "__main__":
    main()
