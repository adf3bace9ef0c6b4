"""PO-GP-UCB's Theorem 1, refuted: rebuild all rows from d+1 known ones. Run: python docs/refutation.py."""

from decimal import Decimal

import numpy as np

from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.mechanism import Mechanism
from curator_service.release.po_gp_ucb import PoGpUcb
from curator_service.scaling import ScaledRows
from shared.matrix import Matrix
from shared.wire import Feature


def rebuild(z: Matrix, x: Matrix, known: int) -> Matrix:
    """All rows from the first ``known`` ones, by the affine map that fits them."""
    one = np.ones((len(z), 1))
    affine, *_ = np.linalg.lstsq(np.hstack([z[:known], one[:known]]), x[:known], rcond=None)
    rebuilt: Matrix = np.hstack([z, one]) @ affine
    return rebuilt


def main() -> None:
    """Attack both branches of the published mechanism, and the sound one."""
    n, d = 1_000, 5
    x = np.random.default_rng(0).uniform(-25, 25, size=(n, d))
    features = [Feature(column=f"x{j}", lower=-25.0, upper=25.0, scale=1.0) for j in range(d)]
    rows = ScaledRows(x, list(range(d)), features, np.arange(n))
    mechanisms: dict[str, Mechanism] = {
        "po_gp_ucb, epsilon 100": PoGpUcb(Decimal(100), 1e-5, 1.0, r=5),
        "po_gp_ucb, epsilon 0.1": PoGpUcb(Decimal("0.1"), 1e-5, 1.0, r=5),
        "gaussian,  epsilon 1": GaussianMechanism(Decimal(1), 1e-5, 1.0),
    }
    for name, mechanism in mechanisms.items():
        z = np.empty((n, mechanism.columns(d)))
        branch = mechanism.draw(rows, z).branch or "-"
        error = np.linalg.norm(rebuild(z, x, d + 1) - x, axis=1)[d + 1 :] / np.linalg.norm(x, axis=1)[d + 1 :]
        print(f"{name}  branch {branch:7}  relative error of {n - d - 1} rebuilt rows: at most {error.max():.1e}")


if __name__ == "__main__":
    main()
