"""The axes of a lattice from noisy points of it: Lenstra, Lenstra & Lovasz (1982), floating-point Gram-Schmidt."""

import numpy as np

_LOVASZ = 0.99


def reduced(basis: np.ndarray) -> np.ndarray:
    """An LLL-reduced basis (m, p) of the lattice of the rows of ``basis``, 64-bit integers; the rows are independent.

    Each row is reduced by those before it, again and again, until nothing changes, so that the orthogonal parts are
    computed from short rows alone.
    """
    rows = basis.astype(np.int64).copy()
    count = len(rows)
    orthogonal = np.zeros(rows.shape)
    squared = np.zeros(count)
    k = 0
    while k < count:
        parts = _reduce(rows, k, orthogonal, squared)
        rest = rows[k] - parts @ orthogonal[:k]
        rest -= ((orthogonal[:k] @ rest) / squared[:k]) @ orthogonal[:k]  # once more, against cancellation
        length = float(rest @ rest)
        if k and length < (_LOVASZ - parts[k - 1] ** 2) * squared[k - 1]:
            rows[[k - 1, k]] = rows[[k, k - 1]]
            k -= 1
            continue
        orthogonal[k], squared[k] = rest, length
        k += 1
    return rows


def _reduce(rows: np.ndarray, k: int, orthogonal: np.ndarray, squared: np.ndarray) -> np.ndarray:
    """Subtract multiples of the rows before row ``k`` from it; its coefficients (k,) are then within about a half."""
    while True:
        parts = (orthogonal[:k] @ rows[k]) / squared[:k]
        remaining, changed = parts.copy(), False
        for j in range(k - 1, -1, -1):
            if abs(remaining[j]) > 0.501:
                multiple = round(remaining[j])
                rows[k] -= multiple * rows[j]
                remaining[: j + 1] -= multiple * ((orthogonal[: j + 1] @ rows[j]) / squared[: j + 1])
                changed = True
        if not changed:
            return parts


def axes(z: np.ndarray, step: float, weight: float) -> np.ndarray:
    """The d shortest independent vectors (d, d), in steps, of a lattice of ``step`` that the rows z (m, d) lie near.

    Sums of a few rows that nearly cancel come first in the reduced basis: ``weight`` is what a row in a sum costs,
    against a step, and stands for how far rows may lie from the lattice. What does not cancel spans the lattice.
    """
    m, d = z.shape
    fine = 2.0**12
    points = np.rint(z / step * fine)
    basis = np.hstack([np.eye(m) * round(weight * fine), points]).astype(np.int64)
    return reduced(basis)[-d:, -d:] / fine


def degrees_off(directions: np.ndarray, secret: np.ndarray) -> float:
    """The largest angle between a row of ``secret`` (d, d) and the nearest direction among ``directions`` (k, d)."""
    lengths = np.linalg.norm(directions, axis=1)
    unit = directions[lengths > 0] / lengths[lengths > 0, None]
    if not len(unit):
        return 90.0
    cosines = np.abs(secret @ unit.T).max(axis=1)
    return float(np.degrees(np.arccos(np.clip(cosines, 0, 1))).max())
